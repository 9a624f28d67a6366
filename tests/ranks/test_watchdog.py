"""The guard against code that never yields (K5): whose time it counts. The clock is a number."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

import kernbench.torch as torch
from kernbench import tl
from kernbench.des import EventLoop
from kernbench.ranks import watchdog
from kernbench.ranks.watchdog import Watch, users_code_runs
from kernbench.testing import Kernbench


def _looks(watch: Watch, seconds: float, start: float = 0.0, *, users: bool) -> list[bool]:
    """Looks at a simulation in the usual pauses, for so many seconds."""
    count = round(seconds / watch.pause)
    return [watch.look(start + i * watch.pause, users=users) for i in range(1, count + 1)]


def test_users_code_is_stopped_at_the_limit() -> None:
    watch = Watch(EventLoop(), 0, 32.0)
    assert not any(_looks(watch, 32.0, users=True))
    assert watch.look(32.5, users=True)


def test_the_time_of_the_package_does_not_count() -> None:
    watch = Watch(EventLoop(), 0, 32.0)
    assert not any(_looks(watch, 1000.0, users=False))
    # The first line of a user's code after it: neither is the time before it counted.
    assert not watch.look(1000.5, users=True)
    assert not any(_looks(watch, 31.0, 1000.5, users=True))
    assert any(_looks(watch, 2.0, 1031.5, users=True))


def test_a_step_begins_the_time_anew() -> None:
    loop = EventLoop()
    watch = Watch(loop, 0, 32.0)
    assert not any(_looks(watch, 31.0, users=True))
    loop.inner_steps += 1
    assert not any(_looks(watch, 32.0, 31.0, users=True))


def test_a_thread_that_wakes_late_counts_what_it_has_seen() -> None:
    watch = Watch(EventLoop(), 0, 32.0)
    watch.look(0.5, users=True)
    assert not watch.look(900.0, users=True)


def test_code_that_was_told_to_stop_has_a_second_before_it_is_told_again() -> None:
    watch = Watch(EventLoop(), 0, 0.064, raised=True)
    watch.look(0.0, users=True)
    watch.raised = True
    assert not any(_looks(watch, 0.9, users=True))
    assert any(_looks(watch, 0.2, 0.9, users=True))


def test_once_a_rank_was_stopped_the_others_have_as_long_together() -> None:
    loop = EventLoop()
    watch = Watch(loop, 0, 32.0, ranks=4)
    assert any(_looks(watch, 33.0, users=True))
    watch.raised = True
    for start in (40.0, 60.0, 80.0):
        loop.inner_steps += 1
        watch.look(start, users=True)
        assert not any(_looks(watch, 7.0, start, users=True))
        assert any(_looks(watch, 2.0, start + 7.0, users=True))
        watch.raised = True


def test_main_is_watched_before_ranks_and_again_after_them() -> None:
    with watchdog.over_main(32.0) as main:
        assert main.name == "main"
        assert not any(_looks(main, 31.0, users=True))
        with watchdog.over_main(0.0) as unlimited:
            ranks = watchdog.begin(EventLoop(), 16.0)
            assert watchdog._watch is ranks
            watchdog.end(unlimited)  # that of another thread
            assert ranks.outer is main
            watchdog.end(ranks)
        assert watchdog._watch is main
        assert not any(_looks(main, 31.0, 31.0, users=True))
        assert any(_looks(main, 2.0, 62.0, users=True))
    assert watchdog._watch is None


def test_a_watch_that_an_interrupt_kept_from_its_end_stops_nobody() -> None:
    frame = sys._getframe()
    assert not Watch(EventLoop(), 0, 1.0).runs(frame)  # no rank of its loop runs
    assert not Watch(None, 0, 1.0, starter=Watch.look.__code__).runs(frame)
    assert Watch(None, 0, 1.0, starter=frame.f_code).runs(frame)
    loop = EventLoop()
    seen: list[bool] = []
    watch = Watch(loop, 0, 1.0)
    loop.start(lambda: seen.append(watch.runs(sys._getframe())), owner=loop.owner(0), name="rank 0")
    loop.run()
    assert seen == [True]


def test_a_limit_of_0_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(watchdog, "raise_in", lambda *given: told.append(given))
    with watchdog.over_main(0.0):
        assert watchdog._look() == watchdog._IDLE_S
    assert not told


def _stack(*modules: str) -> Any:
    """Returns a stack of frames of these modules, the innermost first."""
    frame: Any = None
    for module in reversed(modules):
        frame = SimpleNamespace(f_globals={"__name__": module}, f_back=frame)
    return frame


@pytest.mark.parametrize(
    ("modules", "users"),
    [
        (["train", "kernbench.ranks.spawning"], True),
        (["numpy.lib._function_base_impl", "train", "kernbench.ranks.spawning"], True),
        (["threading", "train"], True),
        (["kernbench.ccl.plan", "train"], False),
        (["numpy.lib._function_base_impl", "kernbench.ccl.plan", "train"], False),
        (["heapq", "networkx.algorithms", "kernbench.topology.routes", "train"], False),
        (["random", "kernbench.as_if", "train"], True),
        (["kernbench.bridge.operations.timing", "train"], False),
        (["__main__"], True),
        (["selectors", "asyncio.base_events", "threading"], True),
        (["cmd", "pdb", "bdb", "train", "kernbench.ranks.spawning"], False),
        ([], False),
    ],
)
def test_libraries_run_for_whoever_has_called_them(
    monkeypatch: pytest.MonkeyPatch, modules: list[str], users: bool
) -> None:
    monkeypatch.setattr(watchdog, "_HAND_ON", {"kernbench.as_if"})
    assert users_code_runs(_stack(*modules)) is users


def test_each_program_of_a_launch_is_a_step(kernbench: Kernbench) -> None:
    @tl.jit
    def fill(x: tl.Pointer) -> None:
        tl.store(x + tl.program_id(0), 1.0)

    def worker(rank: int) -> None:
        x = torch.empty(100, device="cuda")
        fill[(100,)](x)
        x.tolist()

    ctx = kernbench.context()
    ctx.multiprocessing.spawn(worker, nprocs=1)
    assert ctx.engine.loop.inner_steps == 100
