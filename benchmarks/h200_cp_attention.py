"""Attention of a sequence that is cut among GPUs, on `h200x8`: microseconds measured and predicted.

The reference cells were measured on 2026-11-20 on one host with 8 NVIDIA H200 (PyTorch 2.11.0, CUDA
13.0, NCCL 2.28.9 with NVLS off): forward in bfloat16 with FlashAttention 2, `s` tokens in all, by
CUDA events. The programs below do what was measured, in plain PyTorch:

- `p2p`: a ring. Keys and values go on to the next rank beside the attention of those at hand;
  partial outputs are merged in float32 by the logarithms of their sums. Unmasked.
- `p2p_zigzag`: the same, causal. The sequence is cut into 2n chunks; rank r has chunks r and
  2n - 1 - r, so that all ranks have equal work.
- `all_gather`: keys and values of all ranks, then one attention.
- `a2a`: heads for tokens, attention of some heads over the whole sequence, and back.
- `local block`: the attention of one ring step alone.

Another table of the kind may be named: CSV with columns `kind`, `causal`, `n`, `b`, `h`, `hk`, `s`,
`d`, `us`.
"""

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import _measure

from kernbench import torch
from kernbench.testing import Kernbench

dist = torch.distributed
flash = torch.ops.aten._scaled_dot_product_flash_attention
ITERATIONS = 3

Parts = tuple[Any, Any, Any]
"""Query, key and value of a rank, `[b, heads, tokens, width]`."""


class Cell(NamedTuple):
    """Sizes, and the microseconds it took."""

    kind: str
    causal: bool
    ranks: int
    batch: int
    heads: int
    groups: int
    tokens: int
    width: int
    us: float


REFERENCE = [
    Cell("p2p", False, 8, 1, 32, 32, 32768, 128, 11860.985),
    Cell("all_gather", False, 8, 1, 32, 32, 32768, 128, 8169.733),
    Cell("a2a", False, 8, 1, 32, 32, 32768, 128, 7050.58),
    Cell("a2a", True, 8, 1, 32, 32, 32768, 128, 4610.035),
    Cell("local block", False, 8, 1, 32, 32, 32768, 128, 792.905),
    Cell("p2p_zigzag", True, 8, 1, 32, 32, 32768, 128, 9150.665),
]


def merged(out: Any, lse: Any, block: Any, sums: Any) -> tuple[Any, Any]:
    """Returns the attention of two sets of keys from that of each."""
    both = torch.logaddexp(lse, sums)
    kept = out * (lse - both).exp().unsqueeze(-1)
    return kept + block.float() * (sums - both).exp().unsqueeze(-1), both


def ring(rank: int, ranks: int, parts: Parts, attend: Callable[[int, Any, Any], Any]) -> Any:
    """Attends to one rank's keys and values after another, the next ones on their way meanwhile."""
    there, state = torch.stack(parts[1:]), None
    for step in range(ranks):
        works, more = [], there
        if step < ranks - 1:
            more = torch.empty_like(there)
            to, source = (rank + 1) % ranks, (rank - 1) % ranks
            works = dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, there, to), dist.P2POp(dist.irecv, more, source)]
            )
        state = attend((rank - step) % ranks, there, state)
        for work in works:
            work.wait()
        there = more
    assert state is not None
    return state[0].to(torch.bfloat16)


def p2p(rank: int, cell: Cell, parts: Parts) -> Any:
    """Ring attention without a mask."""

    def attend(source: int, there: Any, state: Any) -> Any:
        block, sums, *_ = flash(parts[0], there[0], there[1])
        if state is None:
            return block.float(), sums
        return merged(state[0], state[1], block, sums)

    return ring(rank, cell.ranks, parts, attend)


def p2p_zigzag(rank: int, cell: Cell, parts: Parts) -> Any:
    """Causal ring attention: of other ranks' keys, all queries see half or half of them see all."""
    q, half = parts[0], parts[0].shape[2] // 2
    late = q[:, :, half:].contiguous()

    def attend(source: int, there: Any, state: Any) -> Any:
        k, v = there[0], there[1]
        if state is None:
            block, sums, *_ = flash(q, k, v, 0.0, True)
            return block.float(), sums
        if source < rank:
            block, sums, *_ = flash(q, k[:, :, :half], v[:, :, :half])
            return merged(state[0], state[1], block, sums)
        out, lse = state
        block, sums, *_ = flash(late, k, v)
        found = merged(out[:, :, half:], lse[:, :, half:], block, sums)
        out[:, :, half:], lse[:, :, half:] = found
        return out, lse

    return ring(rank, cell.ranks, parts, attend)


def all_gather(rank: int, cell: Cell, parts: Parts) -> Any:
    """Attention to the keys and values of all ranks."""
    q, *rest = parts
    whole = []
    for each in rest:
        b, heads, tokens, width = each.shape
        found = each.new_empty(cell.ranks, b, heads, tokens, width)
        dist.all_gather_into_tensor(found, each)
        whole.append(found.permute(1, 2, 0, 3, 4).reshape(b, heads, cell.ranks * tokens, width))
    return flash(q, *whole)[0]


def a2a(rank: int, cell: Cell, parts: Parts) -> Any:
    """Attention of some heads over the whole sequence."""
    n = cell.ranks
    whole: list[Any] = []
    for each in parts:
        b, heads, tokens, width = each.shape
        sent = each.view(b, n, heads // n, tokens, width).transpose(0, 1).contiguous()
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent)
        whole.append(got.permute(1, 2, 0, 3, 4).reshape(b, heads // n, n * tokens, width))
    q, k, v = whole
    out = flash(q, k, v, 0.0, cell.causal)[0]
    b, heads, tokens, width = out.shape
    sent = out.view(b, heads, n, tokens // n, width).permute(2, 0, 1, 3, 4).contiguous()
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent)
    return got.transpose(0, 1).reshape(b, heads * n, tokens // n, width)


def local_block(rank: int, cell: Cell, parts: Parts) -> Any:
    """The attention of one step of a ring."""
    return flash(*parts)[0]


PROGRAMS: dict[str, Callable[[int, Cell, Parts], Any]] = {
    "p2p": p2p,
    "p2p_zigzag": p2p_zigzag,
    "all_gather": all_gather,
    "a2a": a2a,
    "local block": local_block,
}


def predicted(cell: Cell) -> float:
    """Returns the microseconds of one call, the mean of ranks and of calls back to back."""
    times = [0.0] * cell.ranks

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=cell.ranks)
        tokens = cell.tokens // cell.ranks
        q, k, v = (
            torch.empty(
                cell.batch, heads, tokens, cell.width, dtype=torch.bfloat16, device=f"cuda:{rank}"
            )
            for heads in (cell.heads, cell.groups, cell.groups)
        )
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        call = PROGRAMS[cell.kind]
        call(rank, cell, (q, k, v))
        dist.barrier()
        start.record()
        for _ in range(ITERATIONS):
            call(rank, cell, (q, k, v))
        end.record()
        end.synchronize()
        times[rank] = 1000 * start.elapsed_time(end) / ITERATIONS

    Kernbench().spawn(worker, nprocs=cell.ranks, topology="h200x8", data=False)
    return sum(times) / cell.ranks


def read(path: Path) -> list[Cell]:
    """Returns the cells of a table."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Cell(
                row["kind"],
                row["causal"] in {"True", "1"},
                int(row["n"]),
                int(row["b"]),
                int(row["h"]),
                int(row["hk"]),
                int(row["s"]),
                int(row["d"]),
                float(row["us"]),
            )
            for row in csv.DictReader(file)
        ]


def main() -> None:
    cells = read(Path(sys.argv[1])) if len(sys.argv) > 1 else REFERENCE
    rows, errors = [], []
    for cell in cells:
        ours = predicted(cell)
        errors.append(ours / cell.us - 1)
        sizes = [cell.ranks, cell.heads, cell.groups, cell.tokens, cell.width]
        kind = f"{cell.kind}{', causal' if cell.causal else ''}"
        rows.append([kind, *sizes, f"{cell.us:.0f}", f"{ours:.0f}", f"{errors[-1]:+.0%}"])
    header = ["", "ranks", "heads", "groups", "tokens", "width", "measured", "predicted", "off"]
    _measure.show("Attention of a sequence cut among H200, microseconds", header, rows)
    mean = sum(map(abs, errors)) / len(errors)
    print(f"mean error {mean:.1%}, from {min(errors):+.0%} to {max(errors):+.0%}")


if __name__ == "__main__":
    main()
