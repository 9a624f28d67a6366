"""Threads that a rank starts: they run in turns with it, on its device and in its groups."""

import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from bridge_torchrun import run

import kernbench
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.units import PS_PER_S

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch")


def on_ranks(worker: Callable[[int], Any], nprocs: int = 2) -> Any:
    def rank_main(rank: int) -> Any:
        import torch.distributed as dist

        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        return worker(rank)

    return kernbench.torchrun_spawn(rank_main, nprocs=nprocs)


def _ones(value: float = 1.0) -> Any:
    return torch.full((4,), value, device="cuda")


def test_a_rank_takes_what_its_thread_makes() -> None:
    def worker(rank: int) -> list[float]:
        import torch.distributed as dist

        batches: queue.Queue[Any] = queue.Queue(2)

        def produce() -> None:
            assert threading.current_thread() is not threading.main_thread()
            for number in range(5):
                batches.put(_ones(number + rank))
            batches.put(None)

        assert threading.current_thread() is threading.main_thread()
        thread = threading.Thread(target=produce)
        thread.start()
        sums = []
        while (batch := batches.get()) is not None:
            dist.all_reduce(batch)
            sums.append(batch[0].item())
        thread.join()
        assert not thread.is_alive()
        return sums

    outcomes = [on_ranks(worker) for _ in range(3)]
    assert outcomes[0].returned == [[1.0, 3.0, 5.0, 7.0, 9.0]] * 2
    assert all(outcome.document == outcomes[0].document for outcome in outcomes)


def test_threads_of_a_pool_compute_and_a_loop_asks_for_them() -> None:
    def worker(rank: int) -> Any:
        done, found = threading.Event(), []

        def serve() -> None:
            while not done.is_set():
                found.append(_ones(rank).sum().item())
                if len(found) == 3:
                    done.set()

        with ThreadPoolExecutor(2) as pool:
            sums = [pool.submit(lambda i: _ones(i + rank).sum().item(), i) for i in range(5)]
            threading.Thread(target=serve, daemon=True).start()
            while not done.is_set():
                time.sleep(0.001)
            return [future.result() for future in sums], found

    expected = [([4.0 * (i + rank) for i in range(5)], [4.0 * rank] * 3) for rank in range(3)]
    assert on_ranks(worker, 3).returned == expected


def test_a_thread_calls_a_collective_and_goes_back_through_a_model() -> None:
    def worker(rank: int) -> Any:
        import torch.distributed as dist

        found = []

        def step() -> None:
            weight = _ones(rank + 1.0).requires_grad_()
            weight.square().sum().backward()
            dist.all_reduce(weight.grad)
            gathered = torch.ops._c10d_functional.all_reduce(_ones(), "sum", "0")
            summed = torch.ops._c10d_functional.wait_tensor(gathered)
            found.append((weight.grad.tolist()[0], summed.tolist()[0]))

        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
        return found[0]

    assert on_ranks(worker).returned == [(6.0, 2.0)] * 2


def test_a_lock_that_a_rank_holds_while_it_waits_for_others_stops_nobody() -> None:
    def worker(rank: int) -> int:
        import torch.distributed as dist

        if rank == 0:
            shared.append(threading.Lock())
        dist.barrier()
        for _ in range(2):
            if rank == 0:
                with shared[0]:
                    dist.all_reduce(_ones())
            else:
                dist.all_reduce(_ones())
            with shared[0]:
                entered.append(rank)
        return len(entered)

    shared: list[Any] = []
    entered: list[int] = []
    on_ranks(worker)
    assert sorted(entered) == [0, 0, 1, 1]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that is imported before the ranks begin, with locks."""
    module: Any = ModuleType("fakelib")
    module.lock, module.again, module.make = threading.Lock(), threading.RLock(), threading.Lock
    content = {"__module__": "fakelib", "lock": threading.Lock(), "again": module.again}
    module.Shared = type("Shared", (), content)
    monkeypatch.setitem(sys.modules, "fakelib", module)
    return module


@pytest.mark.parametrize("name", ["lock", "again", "Shared.lock", "Shared.again"])
def test_a_lock_that_is_there_before_the_ranks_keeps_out_threads_of_one_rank(
    library: Any, name: str
) -> None:
    lock = attrgetter(name)
    before = lock(library)

    def worker(rank: int) -> list[str]:
        import torch.distributed as dist

        order = []

        def second() -> None:
            with lock(library):
                order.append("second")

        thread = threading.Thread(target=second)
        with lock(library):
            thread.start()
            dist.barrier()  # the other ranks hold theirs meanwhile
            time.sleep(0.001)  # the thread runs
            order.append("first")
        thread.join()
        return order

    assert on_ranks(worker).returned == [["first", "second"]] * 2
    assert lock(library) is before


def test_a_name_of_a_library_for_what_makes_locks_makes_those_of_ranks(library: Any) -> None:
    def worker(_: int) -> list[str]:
        lock, order = library.make(), []

        def second() -> None:
            with lock:
                order.append("second")

        thread = threading.Thread(target=second)
        with lock:
            thread.start()
            time.sleep(0.001)
            order.append("first")
        thread.join()
        return order

    assert on_ranks(worker, 1).returned == [["first", "second"]]


def test_ranks_have_threads_of_a_pool_while_others_wait() -> None:
    def worker(rank: int) -> list[int]:
        end = threading.Event()
        threading.Thread(target=end.wait, daemon=True).start()
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda number: number + rank, range(8)))
        end.set()
        return found

    expected = [[number + rank for number in range(8)] for rank in range(3)]
    assert on_ranks(worker, 3).returned == expected


def test_a_condition_of_a_library_serves_the_ranks_that_come_after_its_maker() -> None:
    def worker(rank: int) -> None:
        if rank == 0 and not conditions:
            conditions.append(threading.Condition(threading.RLock()))
        import torch.distributed as dist

        dist.barrier()
        with conditions[0]:
            conditions[0].notify_all()
            conditions[0].wait(0.001)

    conditions: list[threading.Condition] = []
    for _ in range(2):  # as a module that a rank of an earlier run has imported
        on_ranks(worker)


def test_a_tensor_of_another_rank_is_refused_in_a_thread_as_well() -> None:
    def worker(rank: int) -> None:
        import torch.distributed as dist

        if rank == 0:
            theirs.append(_ones())
        dist.barrier()

        def touch() -> None:
            try:
                theirs[0].sum()
            except Exception as error:
                told.append(str(error))

        if rank == 1:
            thread = threading.Thread(target=touch)
            thread.start()
            thread.join()

    theirs: list[Any] = []
    told: list[str] = []
    on_ranks(worker)
    assert len(told) == 1
    assert "rank 0" in told[0]
    assert "test_isolation_threads.py" in told[0]


def test_the_end_of_a_rank_waits_for_threads_but_for_daemons() -> None:
    def worker(rank: int) -> None:
        def late() -> None:
            time.sleep(1.0)
            found.append(_ones(rank).sum().item())

        def daemon() -> None:
            try:
                queue.Queue[int]().get()
            finally:
                ended.append(rank)

        threading.Thread(target=daemon, daemon=True).start()
        threading.Thread(target=late).start()

    found: list[float] = []
    ended: list[int] = []
    before = threading.active_count()
    outcome = on_ranks(worker)
    assert sorted(found) == [0.0, 4.0]
    assert sorted(ended) == [0, 1]
    assert outcome.context.main.host.clock >= PS_PER_S
    deadline = time.monotonic() + 10
    while threading.active_count() > before:
        assert time.monotonic() < deadline


def test_a_thread_that_has_not_begun_when_its_rank_ends_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def worker(_: int) -> None:
        threading.Thread(target=lambda: begun.append(True), daemon=True).start()

    begun: list[bool] = []
    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: ignored.append(error.exc_value))
    before = threading.enumerate()
    on_ranks(worker)
    assert begun == ignored == []
    assert threading.enumerate() == before


def test_a_rank_that_fails_ends_those_whose_threads_wait(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def worker(rank: int) -> None:
        import torch.distributed as dist

        if rank == 0:
            time.sleep(0.1)
            raise ValueError("planted")
        thread = threading.Thread(target=lambda: dist.all_reduce(_ones()))
        thread.start()
        thread.join()
        queue.Queue[int]().get()

    with pytest.raises(SpawnException, match="planted"):
        on_ranks(worker)
    assert "Exception in thread" not in capsys.readouterr().err


def test_an_error_of_a_thread_goes_to_its_hook_and_the_rank_goes_on() -> None:
    def worker(_: int) -> float:
        threading.excepthook = lambda args: told.append(str(args.exc_value))
        thread = threading.Thread(target=lambda: _ones() + torch.ones(3, device="cuda"))
        thread.start()
        thread.join()
        return float(_ones().sum())

    told: list[str] = []
    assert on_ranks(worker, 1).returned == [4.0]
    assert "must match the size" in told[0]


def test_a_program_without_ranks_has_threads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "one.py"
    script.write_text(
        "import torch, threading\nfound = []\n"
        "def work():\n    found.append(torch.ones(3, device='cuda').sum().item())\n"
        "threads = [threading.Thread(target=work) for _ in range(3)]\n"
        "for thread in threads: thread.start()\nfor thread in threads: thread.join()\n"
        "print('found', found)\n"
    )
    assert not run(script)
    assert "found [3.0, 3.0, 3.0]" in capsys.readouterr().out
