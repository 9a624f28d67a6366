"""Attention on one device."""

from collections.abc import Mapping
from typing import Any, Final

from kernbench.validation.table import COUNT, FLAG, MEASURED, WORD, Row, Table, known
from kernbench.validation.timing import alone_us, new

_BACKENDS: Final = {
    "flash": "FLASH_ATTENTION",
    "flash2": "FLASH_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
}


def _attention(torch: Any, row: Row) -> Mapping[str, float]:
    """Forward without gradients, and the gradients of query, key and value."""
    batch, heads, groups, keys, width = (int(row[name]) for name in ("b", "h", "hk", "s", "d"))
    queries = int(row.get("sq", row["s"]))
    kinds = torch.nn.attention.SDPBackend
    backend = getattr(kinds, known(_BACKENDS, row["backend"], "backend"))
    causal = row["causal"] in {"True", "1"}
    q = new(torch, batch, heads, queries, width, grad=True)
    k, v = (new(torch, batch, groups, keys, width, grad=True) for _ in range(2))

    def forward() -> Any:
        with torch.nn.attention.sdpa_kernel([backend]):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=heads != groups
            )

    with torch.no_grad():
        found = {"fwd_us": alone_us(torch, forward)}
    if row["bwd_us"]:
        out = forward()
        grad = torch.ones_like(out)
        found["bwd_us"] = alone_us(
            torch, lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)
        )
    return found


_SHAPE: Final = {"b": COUNT, "h": COUNT, "hk": COUNT}
_TIMES: Final = {"d": COUNT, "causal": FLAG, "fwd_us": MEASURED, "bwd_us": MEASURED}

TABLES: Final = (
    Table(
        name="attention",
        about="scaled_dot_product_attention, forward and backward, bf16",
        columns={"backend": WORD, **_SHAPE, "s": COUNT, **_TIMES},
        program=_attention,
    ),
    Table(
        name="attention2",
        about="attention of more shapes, and one query for many keys",
        columns={"kind": WORD, "backend": WORD, **_SHAPE, "sq": COUNT, "s": COUNT, **_TIMES},
        program=_attention,
    ),
)
