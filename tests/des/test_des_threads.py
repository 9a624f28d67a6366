"""Tasks on threads: a baton lets one run at a time, and none is left when the pool is closed."""

import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest
from greenlet import greenlet

from kernbench.des import (
    POOL,
    DeadlockError,
    Event,
    EventLoop,
    Fifo,
    SwallowedAbortError,
    Task,
    ThreadCarrier,
    ThreadPool,
    carrier,
    current_carrier,
    current_task,
    stacks,
    threads,
)


class Abort(SystemExit):
    """As the runtime aborts siblings."""


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    before, carriers = set(threading.enumerate()), set(carrier._threads)
    with ThreadPool() as pool:
        yield pool
    assert set(threading.enumerate()) == before
    assert carrier._threads == carriers


@pytest.fixture
def loop(pool: ThreadPool) -> EventLoop:
    loop = EventLoop()
    loop.carriers = pool
    return loop


def here() -> Task:
    task = current_task()
    assert task is not None
    return task


def start(loop: EventLoop, function: Callable[[], object], key: int = 0) -> Task:
    return loop.start(function, owner=loop.owner(key), name=f"rank {key}")


def names(frame: FrameType | None) -> list[str]:
    found = []
    while frame is not None:
        found.append(frame.f_code.co_name)
        frame = frame.f_back
    return found


def test_each_task_has_a_thread_and_threads_are_used_again(loop: EventLoop) -> None:
    together = [start(loop, threading.get_ident, key) for key in range(3)]
    loop.run()
    again = [start(loop, threading.get_ident, key) for key in range(3)]
    loop.run()
    threads = {task.result for task in together}
    assert len(threads) == 3
    assert threading.get_ident() not in threads
    assert {task.result for task in again} == threads


def test_one_runs_at_a_time_in_the_order_of_simulated_time(loop: EventLoop) -> None:
    seen: list[tuple[int, int]] = []

    def work(key: int) -> None:
        for _ in range(3):
            here().clock += 10 + key
            here().synchronize()
            seen.append((here().clock, key))

    for key in range(4):
        start(loop, partial(work, key), key)
    loop.run()
    assert seen == sorted((step * (10 + key), key) for key in range(4) for step in (1, 2, 3))


def test_who_runs_is_found_from_inside(loop: EventLoop) -> None:
    def work() -> tuple[Task | None, object]:
        here().synchronize()
        return current_task(), current_carrier()

    tasks = [start(loop, work, key) for key in range(2)]
    loop.run()
    assert [task.result[0] for task in tasks] == tasks
    assert all(isinstance(task.result[1], ThreadCarrier) for task in tasks)
    assert tasks[0].result[1] is not tasks[1].result[1]
    assert current_task() is None


def test_greenlet_is_not_asked_in_a_thread_that_has_none(
    loop: EventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked() -> None:
        raise AssertionError

    def work() -> None:
        monkeypatch.setattr(carrier, "getcurrent", asked)
        try:
            here().synchronize()
            current_carrier()
        finally:
            monkeypatch.undo()

    task = start(loop, work)
    loop.run()
    assert task.error is None


def test_tasks_that_are_greenlets_run_inside_of_one_that_is_a_thread(loop: EventLoop) -> None:
    seen: list[object] = []

    def inside() -> None:
        seen.append((here().name, type(current_carrier()) is ThreadCarrier))
        here().clock += 5
        here().synchronize()
        seen.append(greenlet(current_task).switch() is here())  # the user's own stack

    def work() -> None:
        outer = here()
        inner = EventLoop()
        inner.carriers = POOL
        for key in range(2):
            inner.start(inside, owner=inner.owner(key), name=f"tile {key}")
        inner.at(1, inner.owner(9), lambda: seen.append(here() is outer))
        inner.run()
        seen.append((here() is outer, type(current_carrier()) is ThreadCarrier))

    tasks = [start(loop, work, key) for key in range(2)]
    loop.run()
    assert [task.error for task in tasks] == [None, None]
    once = [("tile 0", False), ("tile 1", False), True, True, True, (True, True)]
    assert seen == once * 2


def test_tasks_that_are_threads_run_inside_of_one_that_is_a_thread(
    loop: EventLoop, pool: ThreadPool
) -> None:
    def work() -> tuple[str, bool]:
        inner = EventLoop()
        inner.carriers = pool
        task = inner.start(lambda: here().name, owner=inner.owner(0), name="inner")
        inner.run()
        return task.result, here().name == "rank 0"

    task = start(loop, work)
    loop.run()
    assert task.result == ("inner", True)


def test_frames_of_who_waits_and_of_the_hub(loop: EventLoop) -> None:
    never, told = Event("never"), list[str]()

    def wait_long() -> None:
        here().wait(never)

    def look() -> None:
        assert task.frame is None  # it runs
        told.append(stacks())

    task = start(loop, wait_long)
    assert task.frame is None
    runner = start(loop, look, 1)
    with pytest.raises(DeadlockError):
        loop.run()
    assert runner.error is not None  # the first one waits, so it has a frame
    found = names(task.frame)
    assert found.index("_park") < found.index("wait_long")
    assert "suspend" not in found
    task.interrupt(Abort())
    assert task.frame is None


def test_what_all_do_is_told_without_what_starts_a_thread(loop: EventLoop) -> None:
    told: list[str] = []

    def look() -> None:
        told.append(stacks())

    def drive() -> None:
        loop.run()

    start(loop, look)
    drive()
    (text,) = told
    hub = text[text.index("the hub waits for rank 0:") : text.index("rank 0 runs:")]
    assert "in drive" in hub
    assert "in look" not in hub
    assert "in look" in text[text.index("rank 0 runs:") :]
    assert threading.__file__ not in text


def test_errors_are_the_tasks_and_the_thread_lives_on(loop: EventLoop) -> None:
    def fail() -> None:
        raise ArithmeticError

    failed = start(loop, fail)
    loop.run()
    well = start(loop, lambda: 7)
    loop.run()
    assert isinstance(failed.error, ArithmeticError)
    assert well.result == 7


def test_what_comes_out_of_a_job_comes_out_of_its_resume() -> None:
    carrier = ThreadCarrier()

    def fail() -> None:
        raise ArithmeticError("of a job")

    carrier.begin(fail, "subject")
    with pytest.raises(ArithmeticError, match="of a job"):
        carrier.resume()
    assert carrier.subject is None
    seen: list[object] = []
    carrier.begin(lambda: seen.append(carrier.subject), "another")
    carrier.resume()
    carrier.end()
    assert seen == ["another"]


def test_an_abort_runs_what_stands_in_finally(loop: EventLoop) -> None:
    seen: list[str] = []

    def work() -> None:
        try:
            here().wait(Event("never"))
        finally:
            seen.append("ended")

    task = start(loop, work)
    loop.at(5, loop.owner(9), lambda: task.interrupt(Abort()))
    loop.run()
    assert isinstance(task.error, Abort)
    assert seen == ["ended"]


def test_a_task_that_has_not_begun_gives_its_thread_back(loop: EventLoop, pool: ThreadPool) -> None:
    task = start(loop, threading.get_ident)
    task.interrupt(Abort())
    other = start(loop, threading.get_ident)
    loop.run()
    assert task.error is not None
    assert other.result in {each.thread for each in carrier._threads}


def test_a_thread_that_ends_its_job_after_the_end_of_its_pool_ends() -> None:
    before = set(threading.enumerate())
    pool, loop, event = ThreadPool(), EventLoop(), Event("later")
    loop.carriers = pool
    task = start(loop, lambda: here().wait(event))
    loop.at(5, loop.owner(9), pool.close)
    loop.at(7, loop.owner(9), lambda: event.settle(7))
    loop.run()
    assert task.result == 7
    assert set(threading.enumerate()) == before
    with pytest.raises(AssertionError, match="the pool is closed"):
        start(loop, here)


def test_tasks_that_swallow_their_abort_are_left(capsys: pytest.CaptureFixture[str]) -> None:
    loop = EventLoop()
    with ThreadPool() as pool:
        loop.carriers = pool

        def stubborn() -> None:
            while True:
                try:
                    here().wait(Event("never"))
                except Abort:
                    continue

        task = start(loop, stubborn)
        loop.at(5, loop.owner(9), lambda: task.interrupt(Abort()))
        loop.run()
        assert isinstance(task.error, SwallowedAbortError)
        (left,) = loop.abandoned
    assert left in carrier._threads
    carrier.thread_ends(left)
    assert not capsys.readouterr().err


def test_an_interrupt_of_the_user_comes_to_the_code_that_runs(loop: EventLoop) -> None:
    def spin() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        while True:
            pass

    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals come to the main thread")
    tasks = [start(loop, spin), start(loop, lambda: 7, 1)]
    loop.run()
    assert isinstance(tasks[0].error, KeyboardInterrupt)
    assert tasks[1].result == 7


def test_an_interrupt_that_a_lent_thread_keeps_to_itself_comes_to_the_job(loop: EventLoop) -> None:
    def swallow(job: ThreadCarrier, back: Any) -> None:
        job.lent = threading.get_ident()
        try:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            while True:
                pass
        except KeyboardInterrupt:
            job.lent = None
            back.release()

    def lend() -> None:
        back = threading.Lock()
        back.acquire()
        threading.Thread(target=swallow, args=(carrier.here.carrier, back)).start()
        back.acquire()
        while True:
            pass

    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals come to the main thread")
    task = start(loop, lend)
    loop.run()
    assert isinstance(task.error, KeyboardInterrupt)


def test_an_interrupt_of_code_that_does_not_return_is_told(
    loop: EventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "_GRACE_S", 0.0)
    told, blocked = [], threading.Lock()
    blocked.acquire()

    def stuck(interrupt: BaseException) -> None:
        told.append(type(interrupt))
        blocked.release()

    monkeypatch.setattr(ThreadCarrier, "stuck", stuck)

    def wait() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        blocked.acquire()

    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals come to the main thread")
    if sys.version_info < (3, 12) and sys.gettrace() is not None:
        # While another thread has an exception to come, a traced call never begins there.
        pytest.skip("Python 3.11 may hang in it while it is traced")
    task = start(loop, wait)
    loop.run()
    assert told == [KeyboardInterrupt]
    assert isinstance(task.error, KeyboardInterrupt)


def test_an_interrupt_comes_to_the_innermost_of_nested_tasks(
    loop: EventLoop, pool: ThreadPool
) -> None:
    def spin() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        while True:
            pass

    def work() -> BaseException | None:
        inner = EventLoop()
        inner.carriers = pool
        task = inner.start(spin, owner=inner.owner(0), name="inner")
        inner.run()
        return task.error

    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals come to the main thread")
    task = start(loop, work)
    loop.run()
    assert isinstance(task.result, KeyboardInterrupt)


@pytest.mark.parametrize("waits", [False, True])
def test_an_interrupt_that_comes_when_a_job_has_suspended_comes_to_the_hub(
    loop: EventLoop, waits: bool
) -> None:
    event = Event("later")

    def work() -> int:
        return here().wait(event) if waits else 7

    def interrupted() -> bool:
        assert thread._wait()
        thread._to_job = usual
        raise KeyboardInterrupt

    task, other = start(loop, work), start(loop, lambda: 7, 1)
    settle = loop.owner(9)
    loop.at(7, settle, lambda: event.settle(7))
    thread: Any = task._carrier
    usual = thread._to_job
    thread._to_job = (usual[0], interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    loop.run()
    assert [task.result, other.result] == [7, 7]
    assert loop.idle


def test_a_loop_of_a_task_needs_no_turn_of_its_own(loop: EventLoop, pool: ThreadPool) -> None:
    """The hub holds the lock of all loops while its task drives another loop."""

    def work() -> str:
        inner = EventLoop()
        inner.run()
        return "driven"

    task = start(loop, work)
    loop.run()
    assert task.result == "driven"


# What a loop tells and forgives


def test_who_runs_next_is_told_when_it_is_another_one(pool: ThreadPool) -> None:
    for carriers in (POOL, pool):
        loop, told = EventLoop(), list[str]()
        loop.carriers = carriers
        loop.on_resume = lambda task, told=told: told.append(task.name)

        def work(times: list[int]) -> None:
            for time in times:
                here().clock = time
                here().synchronize()

        start(loop, lambda: work([10, 20, 50]), 0)
        start(loop, lambda: work([30, 40]), 1)
        loop.run()
        assert told == ["rank 0", "rank 1", "rank 0", "rank 1", "rank 0"]


def test_a_late_call_is_an_error_unless_the_loop_clamps() -> None:
    loop, seen = EventLoop(), list[int]()
    loop.at(10, loop.owner(0), lambda: loop.at(4, loop.owner(0), lambda: None))
    with pytest.raises(AssertionError, match="4 ps lies before now, 10 ps"):
        loop.run()
    loop = EventLoop()
    loop.clamps_late = True

    def lag() -> None:
        for time in (12, 4, 7):
            loop.at(time, loop.owner(0), lambda: seen.append(loop.now))

    loop.at(10, loop.owner(0), lag)
    loop.run()
    assert seen == [10, 10, 12]
    assert (loop.late_calls, loop.most_late) == (2, 6)


def test_a_late_reservation_is_an_error_unless_the_loop_clamps() -> None:
    loop = EventLoop()
    fifo = Fifo()
    fifo.share(loop)
    assert fifo.reserve(10, 5) == 15
    with pytest.raises(AssertionError, match="3 ps lies before now, 10 ps"):
        fifo.reserve(3, 1)
    loop.clamps_late = True
    assert fifo.reserve(3, 1) == 16
    assert fifo.reserve(20, 1) == 21
    assert (loop.late_calls, loop.most_late) == (1, 7)


def test_a_task_that_lags_does_not_turn_the_time_back() -> None:
    loop = EventLoop()
    loop.clamps_late = True

    def lag() -> int:
        here().clock = 50
        here().synchronize()
        here().clock = 20
        here().synchronize()
        return loop.now

    task = start(loop, lag)
    loop.run()
    assert (task.result, task.clock) == (50, 50)
    assert (loop.late_calls, loop.most_late) == (1, 30)


@pytest.mark.slow
def test_a_thousand_pools_come_and_go() -> None:
    """Threads that have had greenlets end while the collector runs, again and again."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    before = set(threading.enumerate())
    try:
        for repeat in range(1000):
            total = 0
            with ThreadPool() as pool:
                loop = EventLoop()
                loop.carriers = pool

                def tile() -> None:
                    here().clock += 3
                    here().synchronize()

                def work() -> int:
                    inner = EventLoop()
                    for key in range(3):
                        inner.start(tile, owner=inner.owner(key), name="tile")
                    inner.run()
                    here().clock += 5
                    here().synchronize()
                    gc.collect(0)
                    return 1

                tasks = [start(loop, work, key) for key in range(4)]
                if repeat % 3 == 0:
                    loop.at(4, loop.owner(9), lambda tasks=tasks: tasks[1].interrupt(Abort()))
                loop.run()
                total += sum(task.result or 0 for task in tasks)
            assert total == 4 - (repeat % 3 == 0)
    finally:
        sys.setswitchinterval(interval)
    assert set(threading.enumerate()) == before
