"""Programs whose result depends on what a receive from any source takes (P8)."""

# ruff: noqa: E501 - texts as users see them

from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from report_text import relative

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.errors import UsageError
from kernbench.ranks.exploring import ScheduleError
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench
from kernbench.testing.harness import UnexploredWarning


def _x(rank: int) -> torch.Tensor:
    """Returns a tensor that is there later on higher ranks, so that the lowest comes first."""
    dist.init_process_group("nccl")
    x = torch.full((4,), float(rank), device="cuda")
    for _ in range(3 * rank):
        x.mul_(1)
    return x


def _told(kernbench: Kernbench, worker: Callable[[int], None], nprocs: int) -> str:
    with pytest.raises(ScheduleError) as caught:
        kernbench.explore(worker, nprocs=nprocs)
    return relative(str(caught.value), worker)


def test_p8_what_a_host_reads_depends_on_the_match(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x, y = _x(rank), torch.empty(4, device="cuda")
        if rank == 0:
            dist.recv(x)
            dist.recv(y)
            (x - y).tolist()
        else:
            dist.send(x, 0)

    def digest(value: float) -> str:
        read = sha256(b"float32 (4,) " + np.full(4, value, np.float32).tobytes()).digest()
        return sha256(b"0 1 " + read).hexdigest()[:12]

    expected = f"""\
[P8] the result depends on which message a receive from any source takes
  rank 0, message #1 of group WORLD: recv([4], torch.float32, from any rank, tag 0) at 2 us, at FILE+3: dist.recv(x)
  schedule 0 takes that of rank 1: hosts read data {digest(-1)}, all ranks return
  schedule 2.1 takes that of rank 2 of those of ranks 1-2: hosts read data {digest(1)}, all ranks return
  hint: name the source, or use what comes in a way that no order changes; kernbench.spawn(..., schedule=[2, 1]) runs the second one again"""
    assert _told(kernbench, worker, 3) == expected
    assert _told(kernbench, worker, 3) == expected


def test_p8_how_a_rank_ends_depends_on_a_later_match(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = _x(rank)
        if rank == 0:
            sources = [dist.recv(x) for _ in range(3)]
            if sources[2] == 2:
                raise ValueError("2 is the last one\nof three")
        else:
            dist.send(x, 0)

    assert _told(kernbench, worker, 4) == (
        """[P8] the result depends on which message a receive from any source takes
  rank 0, message #2 of group WORLD: recv([4], torch.float32, from any rank, tag 0) at 10 us, at FILE+3: sources = [dist.recv(x) for _ in range(3)]
  schedule 0 takes that of rank 2: hosts read data e3b0c44298fc, all ranks return
  schedule 1.2.1 takes that of rank 3 of those of ranks 2-3: hosts read data e3b0c44298fc, rank 0 failed: ValueError: 2 is the last one, at FILE+5: raise ValueError("2 is the last one\\nof three")
  hint: name the source, or use what comes in a way that no order changes; kernbench.spawn(..., schedule=[1, 2, 1]) runs the second one again"""
    )


def test_p8_a_deadlock_that_only_another_match_shows(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = _x(rank)
        if rank == 0:
            dist.recv(x)
            dist.recv(x, 2)
        else:
            dist.send(x, 0)

    text = _told(kernbench, worker, 3)
    assert "schedule 0 takes that of rank 1: hosts read data" in text
    assert "rank 0 failed: RankDeadlockError [P1]" in text
    assert "rank 1 failed: RankDeadlockError [P2]" in text


def test_what_no_order_changes_is_no_race(kernbench: Kernbench) -> None:
    """Also if the values are read one by one: that is the same set of values."""
    orders: list[tuple[int, ...]] = []

    def worker(rank: int) -> None:
        x = _x(rank)
        if rank == 0:
            order, total = [], 0.0
            for _ in range(3):
                order.append(dist.recv(x))
                total += x[0].item()
            assert total == 6
            orders.append(tuple(order))
        else:
            dist.send(x, 0)

    # Each order once, and the first to come.
    assert kernbench.explore(worker, nprocs=4) == (7, True)
    assert orders[0] == (1, 2, 3)
    assert sorted(orders[1:]) == sorted(permutations((1, 2, 3)))
    orders.clear()
    with pytest.warns(UnexploredWarning) as caught:
        assert kernbench.explore(worker, nprocs=4, schedules=4) == (4, False)
    assert len(orders) == 4
    assert [str(warning.message) for warning in caught] == [
        "4 schedules were tried, which agree; more are left: raise explore(..., schedules=4)"
    ]
    assert caught[0].filename == __file__
    # As many as there are.
    assert kernbench.explore(worker, nprocs=4, schedules=7) == (7, True)


@pytest.mark.parametrize("schedules", [0, -7, 1, True, 2.0, "x"])
def test_a_number_of_schedules_that_compares_nothing(kernbench: Kernbench, schedules: Any) -> None:
    with pytest.raises(UsageError) as caught:
        kernbench.explore(lambda rank: None, nprocs=2, schedules=schedules)
    said = f"explore(schedules=): expected a number of schedules from 2, got {schedules!r}"
    assert str(caught.value) == said


def test_a_program_without_a_choice_runs_once(kernbench: Kernbench) -> None:
    def known(rank: int) -> None:
        x = _x(rank)
        dist.recv(x, 1) if rank == 0 else dist.send(x, 0)

    def single(rank: int) -> None:
        x = _x(rank)
        dist.recv(x) if rank == 0 else dist.send(x, 0)

    assert kernbench.explore(known, nprocs=2) == (1, True)
    # Nobody knew before that it is the only one.
    assert kernbench.explore(single, nprocs=2) == (2, True)


def test_receives_that_are_polled_for_and_known_ones_behind_them(kernbench: Kernbench) -> None:
    got: list[tuple[float, ...]] = []

    def worker(rank: int) -> None:
        x, y = _x(rank), torch.empty(4, device="cuda")
        if rank == 0:
            anybody, known = dist.irecv(x), dist.irecv(y, 1)
            while not anybody.is_completed():
                pass
            known.wait()
            got.append((x[0].item(), y[0].item()))
        else:
            dist.send(x, 0)
            dist.send(x.add(10), 0) if rank == 1 else None

    assert kernbench.explore(worker, nprocs=2, schedules=5) == (2, True)
    assert got == [(1.0, 11.0), (1.0, 11.0)]


@pytest.mark.parametrize("fidelity", ["kernel", "tile", "functional"])
def test_a_schedule_can_be_repeated(kernbench: Kernbench, fidelity: Any) -> None:
    def worker(rank: int) -> None:
        x = _x(rank)
        if rank == 0:
            raise ValueError([dist.recv(x), dist.recv(x), x[0].item()])
        dist.send(x, 0)

    def failed(picks: tuple[int, ...] | None) -> Iterator[object]:
        with pytest.raises(SpawnException) as caught:
            kernbench.spawn(worker, nprocs=3, schedule=picks, fidelity=fidelity)
        yield str(caught.value.errors[0])
        yield caught.value.as_json()["replay"]["schedule"]

    assert list(failed(None)) == ["[1, 2, 2.0]", "0"]
    assert list(failed((1, 1))) == ["[1, 2, 2.0]", "1.1"]
    assert list(failed((2, 1))) == ["[2, 1, 1.0]", "2.1"]
    with pytest.raises(UsageError) as caught:
        kernbench.spawn(worker, nprocs=3, schedule=[2, 2])
    assert str(caught.value) == (
        """schedule 2.2: receive 2 from any source is to take message 2
  it has 1, of rank 1"""
    )


def test_a_first_run_that_fails_is_told_as_it_is(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        raise ValueError(rank)

    with pytest.raises(SpawnException):
        kernbench.explore(worker, nprocs=2)
