"""Attention on one device."""

from collections.abc import Mapping
from typing import Any, Final

from kernbench.calibration import lines
from kernbench.validation.table import COUNT, FLAG, MEASURED, WORD, Row, Table
from kernbench.validation.timing import alone_us, new

_BACKENDS: Final = {
    "flash": "FLASH_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
}


def _attention(torch: Any, row: Row) -> Mapping[str, float]:
    """Forward without gradients, and the gradients of query, key and value."""
    kind, batch, heads, groups, queries, keys, width, causal = lines.attention(row)
    backend = getattr(torch.nn.attention.SDPBackend, _BACKENDS[kind])
    dtype = row.get("dtype") or "bf16"
    q = new(torch, batch, heads, queries, width, dtype=dtype, grad=True)
    k, v = (new(torch, batch, groups, keys, width, dtype=dtype, grad=True) for _ in range(2))

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
    Table(
        name="attention3",
        about="memory-efficient attention, which PyTorch takes for fp32 and for masks; also bf16",
        columns={"dtype": WORD, "backend": WORD, **_SHAPE, "sq": COUNT, "s": COUNT, **_TIMES},
        program=_attention,
    ),
)
