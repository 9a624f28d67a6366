"""Programs that never end: a limit of simulated time (K10); reads of what nobody writes (K6)."""

import re

import pytest

from kernbench import torch
from kernbench.ranks import livelock
from kernbench.ranks.time_limit import TimeLimitError
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench
from kernbench.torch import distributed as dist

US = 10**6


def told(kernbench: Kernbench, worker: object, nprocs: int = 3, **dials: object) -> str:
    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=nprocs, **dials)  # type: ignore[arg-type]
    return re.sub(r"at /\S*\.py:\d+:\d+", "at FILE", str(caught.value))


def endless(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.ones(4, device="cuda")
    if rank:
        dist.recv(x, src=0)
        x.tolist()
    while True:
        x += 1


def test_k10_a_limit_of_simulated_time(kernbench: Kernbench) -> None:
    report = told(kernbench, endless, max_time_ps=500 * US)
    ranks, _, said = report.splitlines()[1].partition(": ")
    assert ranks == "ranks 0-2"
    assert said == "TimeLimitError: [K10] the run passed 500 us of simulated time"
    call = "recv([4], torch.float32, from rank 0, tag 0)"
    assert f"  ranks 1-2 wait in {call} at 2 us, at FILE: dist.recv(x, src=0)\n" in report
    assert re.search(r"  rank 0 \w+ .*at FILE: (x \+= 1|while True:)\n", report)
    assert "hint: look for a loop that does not end; --max-time" in report
    assert report == told(kernbench, endless, max_time_ps=500 * US)


def test_a_limit_that_is_not_reached_changes_nothing(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(1 << 16, device="cuda")
        dist.all_reduce(x)
        ends[rank] = x[0].item(), torch.cuda.Event().query()

    ends: dict[int, object] = {}
    kernbench.spawn(worker, nprocs=3)
    first, ends = ends, {}
    kernbench.spawn(worker, nprocs=3, max_time_ps=10**12)
    assert ends == first


def test_a_rank_that_reads_for_ever_passes_the_limit(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        flag = torch.zeros(1, device="cuda")
        while not flag.item():
            flag.mul_(1)

    assert "[K10]" in told(kernbench, worker, 1, max_time_ps=2000 * US)


def test_main_passes_the_limit() -> None:
    with RuntimeContext(RunSpec(max_time_ps=100 * US), quiet=True):
        x = torch.ones(4, device="cuda")
        with pytest.raises(TimeLimitError, match=r"\[K10\] the run passed 100 us"):  # noqa: PT012
            while True:
                x = x + 1
                x.sum().item()


def polls(rank: int, flag: torch.Tensor) -> None:
    while flag.item() == 0:
        pass


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_k6_a_value_that_nobody_writes(
    kernbench: Kernbench, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(livelock, "READS", 1000)

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        if rank == 0:
            polls(rank, torch.zeros(1, device=device))
        dist.barrier()

    report = told(kernbench, worker)
    assert report.splitlines()[:4] == [
        "rank 0 failed",
        "rank 0: LivelockError: [K6] rank 0 polls for ever, and nothing else is left to happen",
        "  rank 0 reads tensor [1] torch.float32 again and again at FILE: while flag.item() == 0:",
        "  nothing is under way that writes tensor [1] torch.float32",
    ]


def test_k6_several_values_that_nobody_writes(
    kernbench: Kernbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(livelock, "READS", 1000)

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        flag, ready = torch.zeros(1), torch.zeros(3)
        while rank == 0 and flag.item() == 0 and ready[2].item() == 0:
            pass
        dist.barrier()

    assert "[K6] rank 0 polls for ever" in told(kernbench, worker, max_time_ps=10**12)


def test_a_deadlock_of_others_is_told_though_a_rank_reads_for_ever(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.zeros(1, device="cuda")
        if rank == 0:
            polls(rank, x)
        dist.recv(x, src=3 - rank)
        x.item()

    assert "[P4] ranks 1-2 wait for one another" in told(kernbench, worker)


def test_reads_that_end_are_no_livelock(
    kernbench: Kernbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(livelock, "READS", 1000)

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.arange(3000, dtype=torch.float32)
        total = sum(x[place].item() for place in range(3000))
        assert total == 4498500
        while x[0].item() < 2000:
            x += 1
        dist.barrier()

    kernbench.spawn(worker, nprocs=2)
