"""Collectives beside kernels begin at the same time under both torches (ADR 0047)."""

from typing import Any

import pytest

import kernbench
from kernbench.testing import Kernbench

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

Shape = tuple[int, int, int]
"""Rows, what is summed over, columns."""

AT_ONCE = ["system.sip.overlap=null"]
WAITS = [f"system.sip.overlap.{key}=0" for key in ("kernel", "message", "collective")]


def _program(torch: Any, rank: int, shape: Shape, known: bool) -> tuple[float, float]:
    """Returns how long a product takes, and products with an all-reduce beside the last two."""
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl")
    x, y = (torch.zeros(1 << 26, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    a = torch.zeros(shape[:2], dtype=torch.bfloat16, device="cuda")
    b = torch.zeros(shape[1:], dtype=torch.bfloat16, device="cuda")
    events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
    torch.distributed.all_reduce(x)
    work = torch.distributed.all_reduce(x, async_op=True)
    work.wait()  # what follows is issued before anybody knows when the all-reduce ends
    if known:
        torch.cuda.synchronize()
    events[0].record()
    a @ b
    events[1].record()
    events[2].record()
    a @ b
    work = torch.distributed.all_reduce(y, async_op=True)
    a @ b
    a @ b
    work.wait()
    events[3].record()
    torch.cuda.synchronize()
    return events[0].elapsed_time(events[1]), events[2].elapsed_time(events[3])


def _both(shape: Shape, known: bool, overlap: list[str]) -> tuple[float, float]:
    import torch

    import kernbench.torch as own

    overrides = [*overlap, "system.sip.event=0 us"]  # the times are those between events
    found: list[tuple[float, float]] = []
    Kernbench().spawn(
        lambda rank: found.append(_program(own, rank, shape, known)),
        nprocs=2,
        topology="h200x8",
        data=False,
        overrides=overrides,
    )
    run = kernbench.torchrun_spawn(
        lambda rank: _program(torch, rank, shape, known), nprocs=2, data=False, overrides=overrides
    )
    found += run.returned
    assert len(found) == 4
    assert len(set(found)) == 1
    return found[0]


@pytest.mark.parametrize("known", [False, True])
def test_a_collective_waits_as_long_under_both_torches(known: bool) -> None:
    # It is ready as the first product ends and the second one begins, which takes all PEs. So the
    # collective, which ends last, begins a product later.
    shape = (2048, 8192, 4096)
    product, _ = _both(shape, False, AT_ONCE)  # where the host is far ahead
    assert product > 0.1
    waits, at_once = (_both(shape, known, overrides)[1] for overrides in (WAITS, AT_ONCE))
    assert waits == pytest.approx(at_once + product, abs=1e-6)


def test_a_small_product_delays_nobody_under_both_torches() -> None:
    # 32 tiles of 64 x 8, whose sums are cut into 4 parts: 128 programs, and 132 PEs.
    shape = (64, 1 << 17, 256)
    assert _both(shape, False, WAITS) == _both(shape, False, AT_ONCE)


@pytest.mark.parametrize("known", [False, True])
def test_kernels_and_collectives_slow_each_other_under_both_torches(known: bool) -> None:
    # The third product begins with the collective, which ends later: it takes 1 / 0.72 of its time,
    # and the collective loses 8 % of that.
    shape = (2048, 8192, 4096)
    product, _ = _both(shape, False, AT_ONCE)
    slowed, waits = (_both(shape, known, overrides)[1] for overrides in ([], WAITS))
    assert slowed == pytest.approx(waits + 0.08 * product / 0.72, abs=1e-6)
