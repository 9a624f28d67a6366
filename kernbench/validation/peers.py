"""Memory of another device: barriers, signals, copies, kernels that reach over links."""

import importlib
from collections.abc import Mapping
from typing import Any, Final

from kernbench.calibration.lines import known
from kernbench.validation.table import COUNT, MEASURED, WORD, Row, Table
from kernbench.validation.timing import Call, met_us, new

_BLOCK: Final = 1024
"""Elements that a program of a kernel moves at once."""

_POLLING: Final = ("kernel_barrier", "one_shot", "two_shot")
"""Rows of kernels that poll words of symmetric memory, which have to have numbers."""


def _symmetric(torch: Any, row: Row) -> Mapping[str, float]:
    memory = importlib.import_module("torch.distributed._symmetric_memory")
    what, group = row["what"], torch.distributed.group.WORLD
    nbytes = int(row["bytes"])
    mine = memory.empty(max(nbytes // 2, _BLOCK), dtype=torch.bfloat16, device="cuda")
    handle = memory.rendezvous(mine, group)
    rank, ranks = handle.rank, handle.world_size
    peer = (rank + 1) % ranks

    def signal() -> None:
        handle.put_signal(peer, 1)
        handle.wait_signal(peer, 1)

    meetings: Mapping[str, Call] = {"barrier": lambda: handle.barrier(0), "signal": signal}
    if what in meetings:
        call = meetings[what]
    elif what.startswith("fused_"):
        call = _fused(torch, row, group.group_name)
    elif hasattr(torch.ops.symm_mem, what):
        call = _collective(torch, row, mine[: nbytes // 2], group.group_name)
    elif what in _POLLING:
        call = _polling(torch, row, handle)
    else:
        call = _reaching(torch, row, handle.get_buffer(peer, (nbytes // 2,), torch.bfloat16))
    return {"us": met_us(torch, lambda: handle.barrier(1), call)}


def _fused(torch: Any, row: Row, group: str) -> Call:
    """Returns PyTorch's product that gathers a factor, or scatters its result, as it goes on."""
    m, k, n = (int(row[name]) for name in ("m", "k", "n"))
    ranks, ops = int(row["ranks"]), torch.ops.symm_mem
    if row["what"] == "fused_matmul_reduce_scatter":
        left, right = new(torch, m, k // ranks), new(torch, k // ranks, n)
        return lambda: ops.fused_matmul_reduce_scatter(left, right, "sum", 0, group)
    given, factor = new(torch, m // ranks, k), new(torch, k, n // ranks)
    return lambda: ops.fused_all_gather_matmul(given, [factor], 0, group)


def _collective(torch: Any, row: Row, mine: Any, group: str) -> Call:
    """Returns a collective of `torch.ops.symm_mem`.

    Args:
        mine: A tensor in symmetric memory.
    """
    ops, wait = torch.ops.symm_mem, torch.ops._c10d_functional.wait_tensor
    out, part = new(torch, mine.numel()), new(torch, mine.numel() // int(row["ranks"]))
    calls: Mapping[str, Call] = {
        "one_shot_all_reduce_out": lambda: ops.one_shot_all_reduce_out(mine, "sum", group, out),
        "one_shot_all_reduce_copy_out": lambda: ops.one_shot_all_reduce_copy_out(
            mine, out, "sum", group, out
        ),
        "two_shot_all_reduce_": lambda: ops.two_shot_all_reduce_(mine, "sum", group),
        "two_shot_all_reduce_out": lambda: ops.two_shot_all_reduce_out(mine, "sum", group, out),
        "reduce_scatter_out": lambda: ops.reduce_scatter_out(mine, group, False, part),
        "_low_contention_all_gather": lambda: wait(ops._low_contention_all_gather(out, group)),
        "_low_contention_reduce_scatter": lambda: wait(
            ops._low_contention_reduce_scatter(out, "sum", group)
        ),
    }
    return known(calls, row["what"], "what")


def _reaching(torch: Any, row: Row, theirs: Any) -> Call:
    """Returns what reads or writes memory of a peer, as an operation or as a kernel of Triton."""
    size, programs = theirs.numel(), int(row["programs"])
    mine, out = new(torch, size), new(torch, size)

    def move(into: Any, given: Any) -> None:
        _kernels().move[(programs,)](into, given, size, _BLOCK)

    calls: Mapping[str, Call] = {
        "copy_from": lambda: out.copy_(theirs),
        "copy_to": lambda: theirs.copy_(mine),
        "add_from": lambda: torch.add(mine, theirs, out=out),
        "add_to": lambda: torch.add(mine, out, out=theirs),
        "kernel_read": lambda: move(out, theirs),
        "kernel_write": lambda: move(theirs, mine),
    }
    return known(calls, row["what"], "what")


def _polling(torch: Any, row: Row, handle: Any) -> Call:
    """Returns a kernel of Triton in which programs of all ranks wait for each other."""
    size, ranks = int(row["bytes"]) // 2, handle.world_size
    out, grid = new(torch, max(size, 1)), (int(row["programs"]),)
    blocks, pads, rank = handle.buffer_ptrs_dev, handle.signal_pad_ptrs_dev, handle.rank
    kernels = _kernels()
    calls: Mapping[str, Call] = {
        "kernel_barrier": lambda: kernels.meet[grid](pads, rank, ranks),
        "one_shot": lambda: kernels.one_shot[grid](out, blocks, pads, rank, size, ranks, _BLOCK),
        "two_shot": lambda: kernels.two_shot[grid](blocks, pads, rank, size, ranks, _BLOCK),
    }
    return calls[row["what"]]


def _kernels() -> Any:
    """Returns the kernels; only programs that need Triton import it."""
    return importlib.import_module("kernbench.triton.measured_peers")


def _needs(row: Row) -> tuple[str, ...]:
    return ("triton",) if row["what"] in _POLLING or row["what"].startswith("kernel_") else ()


TABLE: Final = Table(
    name="symmetric",
    about="barriers, copies, collectives and kernels on symmetric memory of two devices",
    columns={
        "what": WORD,
        **dict.fromkeys(("bytes", "programs", "m", "k", "n", "ranks"), COUNT),
        "us": MEASURED,
    },
    program=_symmetric,
    ranks=lambda row: int(row["ranks"]),
    only_pytorch="symmetric memory is PyTorch's",
    needs=_needs,
    numbers=lambda row: row["what"] in _POLLING,
    part=lambda row, column: row["what"],
)
"""The table of symmetric memory."""
