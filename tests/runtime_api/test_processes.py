"""`torch.multiprocessing.Process`: what main starts becomes the ranks of a spawn."""

import time

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
import kernbench.torch.multiprocessing as mp
from kernbench.errors import KernbenchError, OptionError, UnsupportedError
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench


def test_started_processes_are_ranks_in_the_order_of_their_start(kernbench: Kernbench) -> None:
    sums: dict[str, float] = {}

    class Mine(mp.Process):
        def run(self) -> None:
            dist.init_process_group("gloo")
            x = torch.full((1,), float(dist.get_rank()), device="cuda")
            dist.all_reduce(x)
            sums[self.name or ""] = x.item() + 10 * dist.get_rank()

    with kernbench.context():
        first, second = Mine(name="first"), Mine()
        second.start()
        first.start()
        assert sums == {}
        assert (first.exitcode, second.exitcode) == (None, None)
        first.join(timeout=0.1)
        assert sums == {"Process-1": 1.0, "first": 11.0}
        second.join()
        assert not second.is_alive()
        assert (first.exitcode, second.exitcode) == (0, 0)
        second.close()


def test_a_loop_that_looks_for_exit_codes_lets_the_processes_run(kernbench: Kernbench) -> None:
    with kernbench.context():
        both = [mp.Process(target=time.time) for _ in range(2)]
        for each in both:
            each.start()
        looks = 0
        while any(each.exitcode is None for each in both):
            looks += 1
        assert looks == 1
        assert [each.exitcode for each in both] == [0, 0]


def test_processes_that_nobody_joins_run_at_the_end_unless_all_are_daemons(
    kernbench: Kernbench,
) -> None:
    ran: list[object] = []
    with kernbench.context():
        mp.Process(target=ran.append, args=("daemon",), daemon=True).start()
    assert ran == []
    with kernbench.context():
        mp.Process(target=lambda *, what: ran.append(what), kwargs={"what": 3}).start()
        mp.Process().start()
        assert ran == []
    assert ran == [3]


def test_a_process_that_fails_tells_whoever_waits(kernbench: Kernbench) -> None:
    def fail(rank: int) -> None:
        if rank == 1:
            raise ValueError("no")

    with kernbench.context():
        both = [mp.Process(target=fail, args=(rank,)) for rank in range(2)]
        for each in both:
            each.start()
        with pytest.raises(SpawnException, match=r"rank 1: ValueError: no"):
            both[0].join()
        assert [each.exitcode for each in both] == [0, 1]
        assert not both[1].is_alive()


def test_mistakes(kernbench: Kernbench) -> None:
    def inside(rank: int) -> None:
        with pytest.raises(KernbenchError, match=r"\[C19\] Process.start\(\) inside rank 0"):
            mp.Process().start()
        with pytest.raises(KernbenchError, match=r"\[C19\] rank 0 waits for a process"):
            outer.join()

    with kernbench.context() as ctx:
        with pytest.raises(KernbenchError, match=r"join\(\) before start\(\)"):
            mp.Process().join()
        with pytest.raises(OptionError, match="expected None"):
            mp.Process(3)  # type: ignore[arg-type]
        outer = mp.Process(target=print)
        outer.start()
        with pytest.raises(KernbenchError, match="called twice"):
            outer.start()
        with pytest.raises(UnsupportedError, match="not simulated"):
            outer.terminate()
        ctx.multiprocessing.spawn(inside)
        outer.join()


def test_every_start_method_is_the_same(kernbench: Kernbench) -> None:
    for method in "spawn", "fork", "forkserver", None:
        mp.set_start_method(method, force=True)
        assert mp.get_start_method() == "spawn"
    with kernbench.context(), pytest.raises(OptionError, match="expected one of spawn, fork"):
        mp.set_start_method("thread")
