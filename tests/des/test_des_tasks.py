"""Tasks: clocks of their own, waits that switch only if they must, ends of every kind."""

import random
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from greenlet import greenlet
from hypothesis import given
from hypothesis import strategies as st

from kernbench.des import (
    DeadlockError,
    Event,
    EventLoop,
    Killed,
    SwallowedAbortError,
    Task,
    current_carrier,
    current_task,
)


class Abort(SystemExit):
    """As the runtime aborts siblings."""


@pytest.fixture
def loop() -> EventLoop:
    return EventLoop()


def here() -> Task:
    task = current_task()
    assert task is not None
    return task


def start(
    loop: EventLoop, function: Callable[[], object], key: int = 0, clock: int | None = None
) -> Task:
    return loop.start(function, owner=loop.owner(key), name=f"rank {key}", clock=clock)


def settle_at(loop: EventLoop, event: Event, time: int) -> None:
    """Lets an event settle in the hub, after every task of that instant."""
    loop.at(time, loop.owner(1000), lambda: event.settle(time))


def test_a_task_has_its_result_and_its_end(loop: EventLoop) -> None:
    def work() -> str:
        here().clock += 7
        return "done"

    task = start(loop, work, clock=5)
    loop.run()
    assert (task.result, task.error, task.done.time) == ("done", None, 12)
    assert loop.idle


def test_waiting_for_a_settled_event_moves_the_clock_and_does_not_switch(loop: EventLoop) -> None:
    settled, seen = Event(), list[str]()
    settled.settle(50)

    def first() -> None:
        assert here().wait(settled) == 50
        assert here().wait(settled) == 50
        seen.append("first")

    start(loop, first, key=0)
    start(loop, lambda: seen.append("second"), key=1)
    loop.run()
    assert seen == ["first", "second"]


def test_a_wait_ends_when_the_event_has_happened_in_local_time(loop: EventLoop) -> None:
    events = [Event(), Event()]
    clocks: list[int] = []

    def ahead() -> None:
        here().clock = 100
        clocks.extend([here().wait(events[0]), here().wait(events[1])])

    start(loop, ahead)
    settle_at(loop, events[0], 30)
    settle_at(loop, events[1], 300)
    loop.run()
    assert clocks == [100, 300]


def test_a_settled_future_wakes_the_task_then_and_not_before(loop: EventLoop) -> None:
    event, seen = Event(), list[tuple[str, int]]()

    def wait() -> None:
        here().wait(event)
        seen.append(("task", loop.now))

    start(loop, wait)
    loop.at(1, loop.owner(5), event.settle, 60)
    loop.at(59, loop.owner(5), lambda: seen.append(("other", loop.now)))
    loop.run()
    assert seen == [("other", 59), ("task", 60)]


def test_synchronize_stays_inline_when_nobody_comes_before(loop: EventLoop) -> None:
    seen: list[tuple[str, int]] = []

    def ahead() -> None:
        here().clock = 40
        here().synchronize()
        seen.append(("ahead", loop.now))

    start(loop, ahead)
    loop.at(41, loop.owner(9), lambda: seen.append(("later", loop.now)))
    loop.run()
    assert seen == [("ahead", 40), ("later", 41)]


@pytest.mark.parametrize(("key", "first"), [(0, "other"), (7, "ahead")])
@pytest.mark.parametrize("earlier", [True, False])
def test_synchronize_takes_its_turn_by_time_and_owner(
    loop: EventLoop, key: int, first: str, earlier: bool
) -> None:
    seen: list[str] = []

    def ahead() -> None:
        here().clock = 40
        here().synchronize()
        seen.append("ahead")

    start(loop, ahead, key=5)
    loop.at(40, loop.owner(key), seen.append, "other")
    if earlier:
        loop.at(39, loop.owner(9), seen.append, "earlier")
    loop.run()
    rest = {"ahead", "other"} - {first}
    assert seen == [*(["earlier"] * earlier), first, *rest]


def test_an_error_keeps_its_own_traceback(loop: EventLoop) -> None:
    def deep() -> None:
        raise ValueError("mine")

    def work() -> None:
        deep()

    task = start(loop, work)
    other = start(loop, lambda: "fine", key=1)
    loop.run()
    assert isinstance(task.error, ValueError)
    frames = [frame.name for frame in traceback.extract_tb(task.error.__traceback__)]
    assert frames[-2:] == ["work", "deep"]
    assert task.done.error is None
    assert other.result == "fine"


def test_a_failed_event_raises_its_very_error_in_whoever_waits(loop: EventLoop) -> None:
    event, error = Event(), KeyError("gone")
    tasks = [start(loop, lambda: here().wait(event), key) for key in range(2)]
    loop.at(3, loop.owner(9), event.fail, error, 3)
    loop.run()
    assert [task.error for task in tasks] == [error, error]
    late = start(loop, lambda: here().wait(event))
    loop.run()
    assert late.error is error


def test_an_interrupted_wait_runs_finally_at_once(loop: EventLoop) -> None:
    seen: list[str] = []

    def work() -> None:
        try:
            here().wait(Event("news"))
        finally:
            seen.append("finally")

    task = start(loop, work)
    abort = Abort("sibling failed")

    def interrupt() -> None:
        assert task.waiting_for == "news"
        task.interrupt(abort)
        seen.append("after")

    loop.at(8, loop.owner(9), interrupt)
    loop.run()
    assert seen == ["finally", "after"]
    assert task.error is abort
    assert loop.idle


@pytest.mark.parametrize("kind", ["unsettled", "settled", "synchronize"])
def test_an_interrupt_stays_in_force_at_each_later_wait(loop: EventLoop, kind: str) -> None:
    settled = Event()
    settled.settle(0)
    caught: list[BaseException] = []

    def again() -> None:
        if kind == "synchronize":
            here().synchronize()
        else:
            here().wait(settled if kind == "settled" else Event())

    def work() -> None:
        for attempt in range(5):
            try:
                if attempt:
                    again()
                else:
                    here().wait(Event())
            except Abort as abort:
                caught.append(abort)

    task, abort = start(loop, work), Abort()
    loop.at(1, loop.owner(9), task.interrupt, abort)
    loop.run()
    assert caught == [abort] * 5
    assert task.error is None


def test_a_task_interrupted_before_its_start_never_runs(loop: EventLoop) -> None:
    seen: list[int] = []
    task = start(loop, lambda: seen.append(1), clock=10)
    abort = Abort()
    task.interrupt(abort)
    loop.run()
    assert (seen, task.error, loop.idle) == ([], abort, True)


def test_interrupting_what_has_ended_does_nothing(loop: EventLoop) -> None:
    task = start(loop, lambda: 5)
    loop.run()
    task.interrupt(Abort())
    assert (task.result, task.error) == (5, None)


def test_a_swallowed_abort_ends_the_task_after_a_thousand_and_others_go_on(loop: EventLoop) -> None:
    swallowed = 0

    def stubborn() -> None:
        nonlocal swallowed
        while True:
            try:
                here().wait(Event("nothing"))
            except BaseException:
                swallowed += 1

    event = Event()
    task = start(loop, stubborn, key=0)
    other = start(loop, lambda: here().wait(event), key=1)
    loop.at(1, loop.owner(9), task.interrupt, Abort())
    settle_at(loop, event, 20)
    loop.run()
    assert swallowed == 1000
    assert isinstance(task.error, SwallowedAbortError)
    assert str(task.error) == "rank 0 caught its abort 1000 times and waited again"
    assert other.result == 20
    # Its stack can never be used again.
    after = start(loop, current_carrier, key=2)
    loop.run()
    assert after.result not in loop.abandoned
    assert len(loop.abandoned) == 1


def test_stale_wake_ups_are_ignored(loop: EventLoop) -> None:
    old, new = Event("old"), Event("new")
    trace: list[str] = []

    def work() -> None:
        try:
            here().wait(old)
        except Abort:
            trace.append(f"aborted at {loop.now}")
        try:
            here().wait(new)
        except Abort:
            trace.append(f"aborted again at {loop.now}")

    task = start(loop, work)
    # The wake-up for `old` is queued for 50 when the interrupt comes.
    loop.at(1, loop.owner(9), old.settle, 50)
    loop.at(2, loop.owner(9), task.interrupt, Abort())
    settle_at(loop, new, 90)
    loop.run()
    assert trace == ["aborted at 2", "aborted again at 2"]
    assert task.done.time == 0  # its local clock: the interrupt takes no time
    assert loop.now == 90


def test_a_wake_up_of_an_earlier_wait_does_not_end_a_later_one(loop: EventLoop) -> None:
    first, second = Event(), Event()
    clocks: list[int] = []

    def work() -> None:
        clocks.append(here().wait(first))
        clocks.append(here().wait(second))

    start(loop, work)
    # Two events of one instant: the second one settles before the task has run on the first.
    loop.at(5, loop.owner(9), first.settle, 5)
    loop.at(5, loop.owner(9), second.settle, 70)
    loop.run()
    assert clocks == [5, 70]


def test_stacks_are_pooled_and_differ_between_tasks_alive(loop: EventLoop) -> None:
    gate = Event()

    def carrier_of() -> object:
        found = current_carrier()
        here().wait(gate)
        return found

    together = [start(loop, carrier_of, key) for key in range(3)]
    settle_at(loop, gate, 5)
    loop.run()
    assert len({id(task.result) for task in together}) == 3
    for _ in range(4):
        again = [start(loop, current_carrier, key) for key in range(3)]
        loop.run()
        assert {id(task.result) for task in again} <= {id(task.result) for task in together}


def test_current_task_is_found_from_below_and_not_on_main(loop: EventLoop) -> None:
    def work() -> tuple[Task | None, Task | None]:
        below = greenlet(current_task).switch()
        return current_task(), below

    task = start(loop, work)
    loop.run()
    assert task.result == (task, task)
    assert current_task() is None


def test_tasks_are_listed_in_the_order_of_owners(loop: EventLoop) -> None:
    for key in (3, 1, 2):
        start(loop, lambda: here().wait(Event()), key)
    assert [task.name for task in loop.tasks()] == ["rank 1", "rank 2", "rank 3"]
    with pytest.raises(DeadlockError):
        loop.run()
    for task in loop.tasks():
        task.interrupt(Abort())
    assert loop.idle


def test_a_thousand_tasks_that_wake_one_another_do_not_overflow(loop: EventLoop) -> None:
    events = [Event() for _ in range(1001)]

    def pass_on(key: int) -> None:
        here().wait(events[key])
        events[key + 1].settle(here().clock)

    for key in range(1000):
        loop.start(pass_on, key, owner=loop.owner(key), name=f"rank {key}")
    settle_at(loop, events[0], 9)
    loop.run()
    assert events[1000].time == 9


# Random programs


@dataclass(frozen=True)
class Step:
    what: str  # work, wait, settle, turn
    value: int = 0


@st.composite
def programs(draw: st.DrawFn) -> list[list[Step]]:
    count, events = draw(st.integers(1, 5)), draw(st.integers(0, 5))
    tasks: list[list[Step]] = [[] for _ in range(count)]
    steps = st.one_of(
        st.integers(0, 4).map(lambda n: Step("work", n)),
        st.just(Step("turn")),
        *([st.integers(0, events - 1).map(lambda n: Step("wait", n))] if events else []),
    )
    for task in tasks:
        task.extend(draw(st.lists(steps, max_size=6)))
    for event in range(events):  # each is settled by one task, somewhere
        task = tasks[draw(st.integers(0, count - 1))]
        task.insert(draw(st.integers(0, len(task))), Step("settle", event))
    return tasks


def play(tasks: Sequence[list[Step]], order: Sequence[int]) -> tuple[list[object], list[int]]:
    """Runs the programs; returns all that could be observed, and the ends."""
    loop, trace = EventLoop(), list[object]()
    events: dict[int, Event] = {n: Event(f"event {n}") for n in range(8)}

    def run(number: int) -> None:
        task = here()
        for step in tasks[number]:
            match step.what:
                case "work":
                    task.clock += step.value
                case "wait":
                    task.wait(events[step.value])
                case "settle":
                    events[step.value].settle(task.clock)
                case "turn":
                    task.synchronize()
                    trace.append((number, task.clock, loop.now))

    made = {
        n: loop.start(run, n, owner=loop.owner(n), name=f"task {n}", clock=n % 2) for n in order
    }
    try:
        loop.run()
    except DeadlockError as error:
        trace.append(str(error))
        for task in loop.tasks():
            task.interrupt(Abort())
    ends = [made[n].clock if made[n].error is None else -1 for n in range(len(tasks))]
    return trace, ends


def referee(tasks: Sequence[list[Step]]) -> list[int]:
    """Ends by local clocks alone: whoever can go on does, in no particular order."""
    settled: dict[int, int] = {}
    clocks, places = [n % 2 for n in range(len(tasks))], [0] * len(tasks)
    moved = True
    while moved:
        moved = False
        for number, steps in enumerate(tasks):
            while places[number] < len(steps):
                step = steps[places[number]]
                if step.what == "wait":
                    if step.value not in settled:
                        break
                    clocks[number] = max(clocks[number], settled[step.value])
                elif step.what == "work":
                    clocks[number] += step.value
                elif step.what == "settle":
                    settled[step.value] = clocks[number]
                places[number] += 1
                moved = True
    return [clock if places[n] == len(tasks[n]) else -1 for n, clock in enumerate(clocks)]


@given(programs(), st.randoms(use_true_random=False))
def test_any_program_leaves_one_trace_whatever_the_order_of_creation(
    tasks: list[list[Step]], rng: random.Random
) -> None:
    order = list(range(len(tasks)))
    trace, ends = play(tasks, order)
    rng.shuffle(order)
    assert play(tasks, order) == (trace, ends)
    assert ends == referee(tasks)
    turns = [entry for entry in trace if isinstance(entry, tuple)]
    # A turn is taken in simulated-time order, by the owner at equal times.
    assert all(clock == now for _, clock, now in turns)
    assert [now for *_, now in turns] == sorted(now for *_, now in turns)


def test_a_poll_says_whether_only_polls_are_left(loop: EventLoop) -> None:
    seen: dict[str, list[bool]] = {"a": [], "b": []}

    def look(name: str) -> None:
        for _ in range(4):
            here().clock += 10
            seen[name].append(here().poll())

    start(loop, lambda: look("a"), key=0)
    start(loop, lambda: look("b"), key=1)
    loop.at(25, loop.owner(1000), lambda: None)
    loop.run()
    assert seen == {"a": [False, False, True, True], "b": [False, False, True, True]}
    assert loop.polling == 0


def test_an_aborted_poll_leaves_no_trace(loop: EventLoop) -> None:
    def look() -> None:
        here().clock += 10
        here().poll()

    task = start(loop, look)
    loop.at(5, loop.owner(1000), lambda: None)
    loop.at(6, loop.owner(1000), lambda: task.interrupt(Abort()))
    loop.run()
    assert isinstance(task.error, Abort)
    assert loop.polling == 0


def test_who_parks_is_told_to_who_asked(loop: EventLoop) -> None:
    event, seen = Event("what"), list[tuple[str, object, bool]]()
    loop.on_park = lambda task: seen.append((task.name, task.waiting_for, task.parked))
    start(loop, lambda: here().wait(event))
    settle_at(loop, event, 3)
    loop.run()
    assert seen == [("rank 0", "what", True)]


@pytest.mark.greenlets_only("nothing can be thrown into a thread that waits")
def test_a_task_that_is_thrown_into_by_another_runs_in_its_place(loop: EventLoop) -> None:
    stacks: list[greenlet] = []
    seen: list[str] = []
    never = Event("never")

    def victim() -> None:
        stacks.append(current_carrier())  # type: ignore[arg-type]
        try:
            here().wait(never)
        except Killed:
            seen.append("thrown")
            here().wait(settled)
            seen.append("waited again")

    def thrower() -> None:
        here().clock += 1
        here().synchronize()
        stacks[0].throw()
        seen.append("threw")
        here().wait(settled)

    settled = Event("later")
    tasks = [start(loop, victim, key=0), start(loop, thrower, key=1)]
    settle_at(loop, settled, 9)
    loop.run()
    assert seen == ["thrown", "threw", "waited again"]
    assert [task.error for task in tasks] == [None, None]
    assert loop.idle


def test_abandoned_tasks_run_no_more_of_their_code(loop: EventLoop) -> None:
    seen: list[str] = []

    def work() -> None:
        try:
            here().wait(Event("never"))
        finally:
            seen.append("ran")

    task = start(loop, work)
    with pytest.raises(DeadlockError):
        loop.run()
    loop.abandon()
    loop.discard()
    assert loop.idle
    assert not task.parked
    assert seen == []
    assert len(loop.abandoned) == 1


def test_steps_change_with_everything_that_is_queued_or_happens(loop: EventLoop) -> None:
    steps = [loop.steps()]
    loop.at(1, loop.owner(0), lambda: steps.append(loop.steps()))
    loop.at(2, loop.owner(0), lambda: steps.append(loop.steps()))
    loop.run()
    assert steps == [0, 1, 2]


def test_who_foresees_goes_on_when_the_moment_is_known(loop: EventLoop) -> None:
    event, seen = Event(), list[tuple[str, int, int]]()

    def early() -> None:
        seen.append(("early", here().foresee(event), loop.now))
        seen.append(("again", here().foresee(event), loop.now))

    def late() -> None:
        seen.append(("late", here().wait(event), loop.now))

    start(loop, early, key=0)
    start(loop, late, key=1)
    loop.at(10, loop.owner(1000), lambda: event.settle(70))
    loop.run()
    assert seen == [("early", 70, 10), ("again", 70, 10), ("late", 70, 70)]


def test_who_foresees_sees_errors_and_interrupts(loop: EventLoop) -> None:
    failing, never = Event(), Event("what never comes")
    failing.fail(ValueError("broken"), 5)
    interrupted = start(loop, lambda: here().foresee(never))
    failed = start(loop, lambda: here().foresee(failing), key=2)
    with pytest.raises(DeadlockError):
        loop.run()
    assert isinstance(failed.error, ValueError)
    loop.at(loop.now, loop.owner(1000), interrupted.interrupt, Abort())
    loop.run()
    assert isinstance(interrupted.error, Abort)


def test_a_task_behind_the_loop_gives_way_now(loop: EventLoop) -> None:
    def work() -> int:
        here().clock = 3
        here().give_way()
        return here().clock

    loop.at(10, loop.owner(0), lambda: None)
    loop.run()
    task = start(loop, work, key=1)
    loop.run()
    assert (task.result, loop.late_calls) == (10, 0)
