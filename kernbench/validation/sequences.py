"""Attention over a sequence that is cut among ranks, in plain PyTorch, forward in bf16.

- `p2p`: a ring. Keys and values go on to the next rank beside the attention of those at hand;
  partial outputs are merged in float32 by the logarithms of their sums. Unmasked.
- `p2p_zigzag`: the same, causal. The sequence is cut into 2n chunks; rank r has chunks r and
  2n - 1 - r, so that all ranks have equal work.
- `all_gather`: keys and values of all ranks, then one attention.
- `a2a`: heads for tokens, attention of some heads over the whole sequence, and back.
- `local block`: the attention of one ring step alone.
"""

from collections.abc import Callable
from typing import Any, Final

from kernbench.calibration.lines import known
from kernbench.validation.table import COUNT, FLAG, MEASURED, WORD, Row, Table, Times
from kernbench.validation.timing import eager_us, new

_CALLS: Final = 3

Parts = tuple[Any, Any, Any]
"""Query, key and value of a rank, `[b, heads, tokens, width]`."""


def _flash(torch: Any, q: Any, k: Any, v: Any, *, causal: bool = False) -> tuple[Any, Any]:
    """Returns attention by FlashAttention 2, and the logarithms of the sums of its rows."""
    out, sums, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
    return out, sums


def _merged(torch: Any, out: Any, lse: Any, block: Any, sums: Any) -> tuple[Any, Any]:
    """Returns the attention of two sets of keys from that of each."""
    both = torch.logaddexp(lse, sums)
    kept = out * (lse - both).exp().unsqueeze(-1)
    return kept + block.float() * (sums - both).exp().unsqueeze(-1), both


def _ring(
    torch: Any,
    parts: Parts,
    attend: Callable[[int, Any, Any, Any], Any],
    *,
    exchange: bool = True,
) -> Any:
    """Attends to one rank's keys and values after another, the next ones on their way meanwhile.

    Without `exchange`, each rank computes with what it has.
    """
    dist = torch.distributed
    rank, ranks = dist.get_rank(), dist.get_world_size()
    there, state = torch.stack(parts[1:]), None
    for step in range(ranks):
        works, more = [], there
        if exchange and step < ranks - 1:
            more = torch.empty_like(there)
            sends = dist.P2POp(dist.isend, there, (rank + 1) % ranks)
            receives = dist.P2POp(dist.irecv, more, (rank - 1) % ranks)
            works = dist.batch_isend_irecv([sends, receives])
        state = attend((rank - step) % ranks, there[0], there[1], state)
        for work in works:
            work.wait()
        there = more if exchange else there
    assert state is not None
    return state[0].to(torch.bfloat16)


def _p2p(torch: Any, parts: Parts, causal: bool) -> Any:
    del causal

    def attend(source: int, k: Any, v: Any, state: Any) -> Any:
        del source
        block, sums = _flash(torch, parts[0], k, v)
        return (
            (block.float(), sums)
            if state is None
            else _merged(torch, state[0], state[1], block, sums)
        )

    return _ring(torch, parts, attend)


def zigzag(torch: Any, parts: Parts, causal: bool = True, *, exchange: bool = True) -> Any:
    """Returns causal attention of chunks that make work equal.

    Of other ranks' keys, all queries see half of them, or half of the queries see all.

    Args:
        parts: Of this rank.
        causal: It always is.
        exchange: Whether ranks get each other's keys; if not, they compute with their own.
    """
    del causal
    q, rank = parts[0], torch.distributed.get_rank()
    half = q.shape[2] // 2
    late = q[:, :, half:].contiguous()

    def attend(source: int, k: Any, v: Any, state: Any) -> Any:
        if state is None:
            block, sums = _flash(torch, q, k, v, causal=True)
            return block.float(), sums
        if source < rank:
            block, sums = _flash(torch, q, k[:, :, :half], v[:, :, :half])
            return _merged(torch, state[0], state[1], block, sums)
        out, lse = state
        block, sums = _flash(torch, late, k, v)
        found = _merged(torch, out[:, :, half:], lse[:, :, half:], block, sums)
        out[:, :, half:], lse[:, :, half:] = found
        return out, lse

    return _ring(torch, parts, attend, exchange=exchange)


def _all_gather(torch: Any, parts: Parts, causal: bool) -> Any:
    ranks = torch.distributed.get_world_size()
    whole = []
    for each in parts[1:]:
        b, heads, tokens, width = each.shape
        found = each.new_empty(ranks, b, heads, tokens, width)
        torch.distributed.all_gather_into_tensor(found, each)
        whole.append(found.permute(1, 2, 0, 3, 4).reshape(b, heads, ranks * tokens, width))
    return _flash(torch, parts[0], *whole, causal=causal)[0]


def _a2a(torch: Any, parts: Parts, causal: bool) -> Any:
    n = torch.distributed.get_world_size()
    whole: list[Any] = []
    for each in parts:
        b, heads, tokens, width = each.shape
        sent = each.view(b, n, heads // n, tokens, width).transpose(0, 1).contiguous()
        got = torch.empty_like(sent)
        torch.distributed.all_to_all_single(got, sent)
        whole.append(got.permute(1, 2, 0, 3, 4).reshape(b, heads // n, n * tokens, width))
    q, k, v = whole
    out = _flash(torch, q, k, v, causal=causal)[0]
    b, heads, tokens, width = out.shape
    sent = out.view(b, heads, n, tokens // n, width).permute(2, 0, 1, 3, 4).contiguous()
    got = torch.empty_like(sent)
    torch.distributed.all_to_all_single(got, sent)
    return got.transpose(0, 1).reshape(b, heads * n, tokens // n, width)


def _local_block(torch: Any, parts: Parts, causal: bool) -> Any:
    return _flash(torch, *parts, causal=causal)[0]


_PROGRAMS: Final[dict[str, Callable[[Any, Parts, bool], Any]]] = {
    "p2p": _p2p,
    "p2p_zigzag": zigzag,
    "all_gather": _all_gather,
    "a2a": _a2a,
    "local block": _local_block,
}


def _cp_attention(torch: Any, row: Row) -> Times:
    ranks, batch, keys, width = (int(row[name]) for name in ("n", "b", "s", "d"))
    heads = int(row["h"]), int(row["hk"]), int(row["hk"])
    q, k, v = (new(torch, batch, each, keys // ranks, width) for each in heads)
    program = known(_PROGRAMS, row["kind"], "kind")
    causal = row["causal"] in {"True", "1"}
    torch.distributed.barrier()
    return {"us": eager_us(torch, lambda: program(torch, (q, k, v), causal), _CALLS)}


CP_ATTENTION: Final = Table(
    name="cp_attention",
    about="attention of a sequence that is cut among ranks, eager",
    columns={
        "kind": WORD,
        "causal": FLAG,
        **dict.fromkeys(("n", "b", "h", "hk", "s", "d"), COUNT),
        "us": MEASURED,
    },
    program=_cp_attention,
    ranks=lambda row: int(row["n"]),
)
