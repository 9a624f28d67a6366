"""Clock, events and tasks. Knows no hardware.

Time is an integer number of picoseconds. Whatever happens at one instant happens in the order
`(time, owner, owner's sequence number)`: never in the order in which it was set up (ADR 0001).
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from threading import RLock, get_ident
from types import FrameType, TracebackType
from typing import Any, Final, cast

from kernbench.des.carrier import (
    POOL,
    Carrier,
    Carriers,
    current_subject,
    in_carriers_thread,
)
from kernbench.des.interrupts import InterruptedContextError, cut_short

_CALLS_OF_A_TURN: Final = 40
"""Bits of the number of calls that an owner, or a turn of an owner, may queue."""

MAX_SWALLOWED_ABORTS: Final = 1000
"""How often a task may catch its abort and wait again before it is left parked for good."""


_TURN: Final = RLock()
_HAS_TURN: Final = nullcontext()

default_carriers: Carriers = POOL
"""Where the tasks of a new loop take their carriers from."""


def turn() -> AbstractContextManager[object]:
    """Returns the lock that a thread holds while it drives a loop.

    Loops share what is kept about machines and plans, part of which is written while it is used, so
    the loops of several threads run one after the other. A task whose carrier is a thread needs no
    lock for a loop of its own: the hub that waits for it holds the lock.
    """
    return _HAS_TURN if in_carriers_thread() else _TURN


class DeadlockError(Exception):
    """Nothing is left to happen, yet tasks wait.

    Attributes:
        waits: The waiting tasks in the order of their owners, each with what it waits for.
    """

    def __init__(self, parked: Sequence["Task"]) -> None:
        self.waits = tuple((task, task.waiting_for) for task in parked)
        waits = "; ".join(f"{task.name} waits for {reason}" for task, reason in self.waits)
        super().__init__(f"nothing is left to happen: {waits or 'the awaited event never settles'}")


class Owner:
    """A party that schedules calls. Its key orders it among others at the same instant.

    Keys come from what a thing *is* (its place in the machine), so that they do not depend on the
    order of creation. `EventLoop.owner` makes owners.
    """

    __slots__ = ("key", "sequence")

    def __init__(self, key: int) -> None:
        self.key = key
        self.sequence = 0

    def turn(self, number: int) -> "Owner":
        """Returns an owner with the same key, for a part of what this owner does.

        At one instant, calls of lower turns come first, whenever they were queued; the calls of
        this owner itself come before those of its turns.

        Args:
            number: Number of the turn, from 1; one owner stands for one turn.
        """
        turn = Owner(self.key)
        turn.sequence = number << _CALLS_OF_A_TURN
        return turn


class Event:
    """A moment that is unknown at first and settles once.

    Settled is not the same as happened: the moment may lie in the future of the loop.

    Attributes:
        time: The moment in picoseconds; None while it is unknown.
        error: Error of what was awaited; raised in each task that waits for the event. None if
            there is none.
        label: What a task waits for when it waits for this event, for reports.
    """

    __slots__ = ("__weakref__", "_callbacks", "error", "label", "time")

    def __init__(self, label: object = "event") -> None:
        self.time: int | None = None
        self.error: BaseException | None = None
        self.label = label
        self._callbacks: list[Callable[[int], None]] | None = None

    def settle(self, time: int) -> None:
        """Makes the moment known and runs the callbacks in the order in which they were added."""
        assert self.time is None, f"{self.label} settled twice"
        self.time = time
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback(time)

    def fail(self, error: BaseException, time: int) -> None:
        """Settles the event as failed."""
        self.error = error
        self.settle(time)

    def when_settled(self, callback: Callable[[int], None]) -> None:
        """Calls `callback(time)` once the moment is known; at once if it is known already."""
        if self.time is not None:
            callback(self.time)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def forget(self, label: object) -> None:
        """Drops the waiters of an event that will not happen; keeps a new label."""
        self._callbacks = None
        self.label = label

    def __repr__(self) -> str:
        return f"<Event {self.label} at {self.time}>"


class _State(Enum):
    NEW = auto()
    RUNNING = auto()
    PARKED = auto()
    DONE = auto()


# Looking a member up in the enum costs as much as a function call.
_NEW, _RUNNING, _PARKED, _DONE = _State


class Task:
    """A function of the user (a rank's, a tile program's) that runs with a clock of its own.

    The local clock may run ahead of the loop; it never lags behind it. A task waits only in the
    methods of this class that say so.

    Attributes:
        name: Name of the task, for reports.
        owner: Orders the task among others at equal times.
        subject: What the task stands for, such as a rank; `current_task().subject` returns it. None
            after the end.
        clock: Local time in picoseconds.
        waiting_for: What the task is parked on; None while it is not parked.
        done: Settles at the local time at which the function ends, by a return or by an error.
        result: Return value of the function.
        error: The exception that ended the function, with its own traceback.
    """

    __slots__ = (
        "_args",
        "_carrier",
        "_carriers",
        "_function",
        "_state",
        "_swallowed",
        "_thrown",
        "_ticket",
        "clock",
        "done",
        "error",
        "loop",
        "name",
        "owner",
        "result",
        "subject",
        "waiting_for",
    )

    def __init__(
        self,
        loop: "EventLoop",
        function: Callable[..., Any],
        args: tuple[Any, ...],
        owner: Owner,
        name: str,
        subject: object,
        clock: int,
    ) -> None:
        self.loop = loop
        self.name = name
        self.owner = owner
        self.subject = subject
        self.clock = clock
        self.waiting_for: object = None
        self.done = Event(name)
        self.result: Any = None
        self.error: BaseException | None = None
        self._function = function
        self._args = args
        # A carrier is taken here and not at the start, so that no two live tasks share a stack.
        self._carriers: Final = loop.carriers
        self._carrier: Carrier | None = self._carriers.take()
        self._state = _NEW
        self._ticket = 0  # number of the current park; a wake-up with a lower number is stale
        self._thrown: BaseException | None = None
        self._swallowed = 0

    @property
    def begun(self) -> bool:
        """Whether the function has been called."""
        return self._state is not _NEW

    @property
    def parked(self) -> bool:
        """Whether the task waits for something."""
        return self._state is _PARKED

    @property
    def frame(self) -> FrameType | None:
        """Innermost frame of the task while it is parked; None while it is not."""
        return self._carrier.frame if self._carrier is not None and self.parked else None

    def wait(self, event: Event) -> int:
        """Waits until `event` has happened in local time; returns the local time in picoseconds.

        The call does not switch to another task if the event is settled already.

        Raises:
            BaseException: The event's error, or the error that `interrupt` was given.
        """
        if self._thrown is not None:
            self._raise_thrown()
        if event.time is None:
            ticket = self._ticket = self._ticket + 1
            event.when_settled(lambda time: self._wake_at(time, ticket))
            self._park(event.label)
        if event.error is not None:
            raise event.error
        time = event.time
        assert time is not None
        if time > self.clock:
            self.clock = time
        return self.clock

    def foresee(self, event: Event) -> int:
        """Waits until the moment of `event` is known; returns that moment, in picoseconds.

        The moment may lie in the future of the loop: the task then runs ahead, as if the event had
        been settled when the task began to wait.

        Raises:
            BaseException: The event's error, or the error that `interrupt` was given.
        """
        if self._thrown is not None:
            self._raise_thrown()
        if event.time is None:
            ticket = self._ticket = self._ticket + 1
            event.when_settled(lambda _: self._wake_at(0, ticket))
            self._park(event.label)
        if event.error is not None:
            raise event.error
        assert event.time is not None
        return event.time

    def poll(self) -> bool:
        """Waits as `synchronize` does, before the task looks at something that may have changed.

        Returns:
            Whether nothing else is left to happen, apart from tasks that poll as well.
        """
        loop = self.loop
        loop.polling += 1
        try:
            self.synchronize()
        finally:
            loop.polling -= 1
        return len(loop._queue) <= loop.polling

    def give_way(self) -> bool:
        """Parks until all others have reached the local clock, also if nothing comes before.

        Returns:
            Whether nothing else is left to happen, apart from tasks that poll as well.
        """
        if self._thrown is not None:
            self._raise_thrown()
        loop = self.loop
        if self.clock < loop.now:  # it is behind all others: its turn is now, which is not late
            self.clock = loop.now
        loop.polling += 1
        try:
            self._queue_for_turn()
        finally:
            loop.polling -= 1
        return len(loop._queue) <= loop.polling

    def step_aside(self) -> bool:
        """Parks until whatever comes next has happened, for a wait of which the loop knows nothing.

        Returns:
            Whether nothing else is left to happen, apart from tasks that poll as well.
        """
        queue = self.loop._queue
        if queue and queue[0][0] >= self.clock:
            self.clock = queue[0][0] + 1
        return self.give_way()

    def _queue_for_turn(self) -> None:
        ticket = self._ticket = self._ticket + 1
        self.loop.at(self.clock, self.owner, self._resume, ticket)
        self._park("its turn")

    def synchronize(self) -> None:
        """Waits until the loop has reached the local clock; then the task may use shared state."""
        if self._thrown is not None:
            self._raise_thrown()
        loop, clock, owner = self.loop, self.clock, self.owner
        queue = loop._queue
        if (
            not queue
            or (time := queue[0][0]) > clock
            or (time == clock and queue[0][1] > owner.key)
        ):
            # Nothing in the queue comes before.
            if clock >= loop.now:
                loop.now = clock
            else:
                self.clock = loop.late(clock)
            return
        self._queue_for_turn()

    def interrupt(self, error: BaseException) -> None:
        """Raises `error` in the task: at once if the task is parked, else at its next wait.

        The `error` stays in force: each later wait of the task raises it again.
        """
        if self._state is _DONE:
            return
        self._thrown = error
        if self._state is _PARKED:
            self._ticket += 1
            self._run()
        elif self._state is _NEW:
            carrier, self._carrier = self._carrier, None
            assert carrier is not None
            self._carriers.give_back(carrier)
            self._finish(None, error)
            self.loop.task_ended(self)

    def _wake_at(self, time: int, ticket: int) -> None:
        loop = self.loop
        loop.at(time if time > loop.now else loop.now, self.owner, self._resume, ticket)

    def _resume(self, ticket: int) -> None:
        if ticket == self._ticket and self._state is _PARKED:
            now = self.loop.now
            if now > self.clock:
                self.clock = now
            self._run()

    def _start(self) -> None:
        if self._state is _NEW:
            assert self._carrier is not None
            self._carrier.begin(self._main, self)
            self._run()

    def _run(self) -> None:
        loop, carrier = self.loop, self._carrier
        assert carrier is not None
        assert loop.current is None, "only the hub resumes tasks"
        if loop.on_resume is not None:
            loop.tell_resumed(self)
        self._state = _RUNNING
        self.waiting_for = None
        loop.current = self
        try:
            carrier.resume()
            while self._state is _RUNNING:
                # This task has thrown something into another task, and that one has come to the
                # hub in its place. This task continues after the call that threw.
                other = loop.current
                assert other is not None
                if other._state is _DONE:
                    other._let_go()
                loop.current = self
                carrier.resume()
        finally:
            loop.current = None
            if self._state is _DONE:  # also if an interrupt of the user came to the hub
                self._let_go()

    def _let_go(self) -> None:
        """Gives back the carrier of a task that has ended."""
        carrier, self._carrier = self._carrier, None
        assert carrier is not None
        self.loop.task_ended(self)
        if isinstance(self.error, SwallowedAbortError):
            self.loop.abandoned.append(carrier)
        else:
            self._carriers.give_back(carrier)

    def _park(self, reason: object) -> None:
        assert self.loop.current is self, f"{self.name} may only wait by itself"
        self._state = _PARKED
        self.waiting_for = reason
        carrier = self._carrier
        assert carrier is not None
        if self.loop.on_park is not None:
            self.loop.on_park(self)
        try:
            carrier.suspend()
        except BaseException:
            # User code has thrown this into the stack without the loop. The task runs in the place
            # of the one that threw, until it ends or parks.
            if self._state is _PARKED:
                self._state = _RUNNING
                self._ticket += 1
                self.waiting_for = None
                self.loop.current = self
            raise
        if self._thrown is not None:
            self._raise_thrown()

    def _raise_thrown(self) -> None:
        thrown = self._thrown
        assert thrown is not None
        self._swallowed += 1
        if self._swallowed <= MAX_SWALLOWED_ABORTS:
            try:
                raise thrown.with_traceback(None)
            finally:
                thrown = None  # its traceback holds this frame
        # The task catches whatever is raised here, so its stack is left parked for good.
        self._finish(None, SwallowedAbortError(self.name, thrown.__traceback__))
        assert self._carrier is not None
        self._carrier.suspend()

    def _main(self) -> None:
        result, error = None, None
        try:
            result = self._function(*self._args)
        except BaseException as raised:
            error = raised
        self._finish(result, error)

    def _finish(self, result: Any, error: BaseException | None) -> None:
        self._state = _DONE
        self.result, self.error = result, error
        # The function and its arguments may hold a user's tensors.
        self._function, self._args, self._thrown = _nothing, (), None
        self.done.settle(self.clock)


def _nothing() -> None:
    pass


class SwallowedAbortError(BaseException):
    """A task caught its own abort again and again and went on waiting.

    Its traceback is that of the abort when the task caught it last: the outermost frame is the
    frame that caught it.
    """

    def __init__(self, name: str, last: TracebackType | None = None) -> None:
        super().__init__(f"{name} caught its abort {MAX_SWALLOWED_ABORTS} times and waited again")
        self.__traceback__ = last


Call = tuple[int, int, int, Callable[..., None], tuple[Any, ...]]
"""A queued call: its time in picoseconds, its owner's key and sequence, function and arguments."""


class EventLoop:
    """The clock and the queue of what happens next. Only the hub, outside any task, drives it.

    Attributes:
        now: Time of the latest thing that happened, in picoseconds.
        current: The running task; None while the hub runs.
        abandoned: Stacks of tasks that could not be ended; kept, since dropping one runs its code.
        limit: Time, in picoseconds, that the simulation may not pass; None for no limit.
        spare: Calls that it may still make; None for any number. To count costs time, so there is a
            number only where somebody wants to give up.
        on_limit: Called once, when the limit is passed or the spare calls are made; may raise.
        driver: The thread that drives the loop now, as `threading.get_ident` gives it; None if
            none does.
        on_park: Called with each task that is about to park; must not wait.
        on_resume: Called in the hub with each task that is about to run, if another task was the
            last to run; must not wait. For what a library keeps for the whole process, such as the
            state of a generator of random numbers.
        carriers: Where new tasks take their carriers from.
        clamps_late: Whether a call for a time that has passed happens now, and is counted. By
            default it is an assertion error, since nothing here asks for that.
        late_calls: How many calls came late.
        most_late: How late the latest of them came, in picoseconds.
        polling: Number of tasks that are inside `Task.poll`.
        inner_steps: Number of steps made on other loops inside of calls of this one.
        unsettled: Whether tasks are under way, or an interrupt has cut a change short: main then
            waits for nothing.
    """

    def __init__(self) -> None:
        self.now = 0
        self.unsettled = False
        self.limit: int | None = None
        self.spare: int | None = None
        self.on_limit: Callable[[], None] | None = None
        self.current: Task | None = None
        self.abandoned: list[Carrier] = []
        self.on_park: Callable[[Task], None] | None = None
        self.on_resume: Callable[[Task], None] | None = None
        self.carriers: Carriers = default_carriers
        self.clamps_late = False
        self.late_calls = 0
        self.most_late = 0
        self.polling = 0
        self.inner_steps = 0
        self._queue: list[Call] = []
        self._owners: dict[int, Owner] = {}
        self._tasks: dict[Task, None] = {}
        self.driver: int | None = None
        self._key = 0  # key of the owner whose turn it is
        self._until: Event | None = None  # what `run` waits for
        self._resumed: Task | None = None  # the last one given to `on_resume`
        self._present: int | None = None  # while the past is relived, the time up to which

    def owner(self, key: int) -> Owner:
        """Returns the owner with this key; equal keys give the same object."""
        owner = self._owners.get(key)
        if owner is None:
            owner = self._owners[key] = Owner(key)
        return owner

    def at(self, time: int, owner: Owner, function: Callable[..., None], *args: Any) -> None:
        """Queues the call `function(*args)`, which the hub makes at `time`.

        Args:
            time: When to call, in picoseconds; not before now, unless the loop clamps.
            owner: Orders the call among others at the same time.
            function: What to call; it must not wait.
            *args: Arguments of `function`.
        """
        if time < self.now:
            time = self.late(time)
        owner.sequence += 1
        heappush(self._queue, (time, owner.key, owner.sequence, function, args))

    def withdraw(self, function: Callable[..., None]) -> None:
        """Takes back the queued calls of a function, such as that of a time-out that is not needed.

        Args:
            function: What `at` was given; the object itself.
        """
        self._queue[:] = [call for call in self._queue if call[3] is not function]
        heapify(self._queue)

    def start(
        self,
        function: Callable[..., Any],
        *args: Any,
        owner: Owner,
        name: str,
        subject: object = None,
        clock: int | None = None,
    ) -> Task:
        """Returns a task that runs `function(*args)`.

        Args:
            function: What the task runs; it may wait.
            *args: Arguments of `function`.
            owner: Orders the task among others at the same time.
            name: Name of the task, for reports.
            subject: What the task stands for; `current_subject` returns it inside the task.
            clock: Local time in picoseconds at which the task starts; now by default.
        """
        begin = self.now if clock is None else clock
        task = Task(self, function, args, owner, name, subject, begin)
        self._tasks[task] = None
        self.at(begin, owner, task._start)
        return task

    def late(self, time: int, now: int | None = None) -> int:
        """Counts a call for a time that has passed; returns the time at which it happens.

        Args:
            time: When the call should have happened, in picoseconds.
            now: When it happens; now by default.

        Raises:
            AssertionError: If the loop does not clamp such calls.
        """
        now = self.now if now is None else now
        if not self.clamps_late:
            raise AssertionError(f"{time} ps lies before now, {now} ps")
        self.late_calls += 1
        self.most_late = max(self.most_late, now - time)
        return now

    def tell_resumed(self, task: Task) -> None:
        """Calls `on_resume` with a task that is about to run, unless it was the last to run."""
        if self.on_resume is not None and self._resumed is not task:
            self._resumed = task
            self.on_resume(task)

    @property
    def thread(self) -> int | None:
        """The thread whose code runs while the loop is driven: the hub's, or a carrier's."""
        task = self.current
        carrier = None if task is None else task._carrier
        inside = None if carrier is None else carrier.thread
        return self.driver if inside is None else inside

    @property
    def idle(self) -> bool:
        """Whether nothing is queued and no task is alive."""
        return not self._queue and not self._tasks

    def tasks(self) -> list[Task]:
        """Returns the tasks that have not ended, in the order of their owners."""
        return sorted(self._tasks, key=lambda task: task.owner.key)

    def run(self, until: Event | None = None) -> None:
        """Drives the loop until `until` has happened, or (without it) until nothing is left.

        Raises:
            RuntimeError: If the loop runs already.
            DeadlockError: If nothing is left to happen while `until` is unsettled or tasks wait.
            InterruptedContextError: If main waits after an interrupt has cut a change short.
        """
        if until is not None and self.unsettled:
            raise InterruptedContextError
        try:
            self._run(until)
        except BaseException as error:
            self.unsettled = self.unsettled or cut_short(error)
            raise

    def _run(self, until: Event | None) -> None:
        with turn():
            if self.driver is not None:
                raise RuntimeError("the event loop runs already: only the hub drives it")
            self.driver = get_ident()
            self._until = until
            try:
                queue = self._queue
                if self.limit is not None or self.spare is not None:
                    self._run_within(until)
                while queue:
                    if until is not None and until.time is not None and queue[0][0] > until.time:
                        break
                    time, self._key, _, function, args = heappop(queue)
                    self.now = time
                    function(*args)
            finally:
                self.driver = self._until = None
        if until is None:
            if self._tasks:
                raise DeadlockError(self.tasks())
        elif until.time is None:
            raise DeadlockError(self.tasks())
        elif until.time > self.now:
            self.now = until.time

    def _run_within(self, until: Event | None) -> None:
        """Does what `run` does while there is a limit; tells when it is passed."""
        queue = self._queue
        while queue and (self.limit is not None or self.spare is not None):
            begin = queue[0][0]
            if until is not None and until.time is not None and begin > until.time:
                return
            if self.limit is not None and begin > self.limit:
                self.check_limit(begin)
                return
            self.spend()
            time, self._key, _, function, args = heappop(queue)
            self.now = time
            function(*args)

    def spend(self, calls: int = 1) -> None:
        """Counts calls, or what costs about as much; tells when no more may be made."""
        if self.spare is not None:
            self.spare -= calls
            if self.spare <= 0:
                self.spare = None
                if self.on_limit is not None:
                    self.on_limit()

    def check_limit(self, time: int) -> None:
        """Tells `on_limit` if a time lies beyond the limit, which then no longer holds.

        Args:
            time: What somebody's clock shows, or is about to show, in picoseconds.
        """
        if self.limit is not None and time > self.limit:
            self.limit = None
            if self.on_limit is not None:
                self.on_limit()

    def relive(self, begin: int, setup: Callable[[], None]) -> None:
        """Calls `setup` as if it were `begin`, and then all that follows from it up to the present.

        This repeats an activity that was timed as if it were alone when another one turns out to
        overlap it, now in a form that others may join. The repeated part must change no state of
        others. Calls that it schedules after the present go to the queue.

        Args:
            begin: When the activity began, in picoseconds; not after now.
            setup: Queues the first events of the activity; called in the hub.
        """
        now, queue = self.now, self._queue
        others = list(queue)
        queue.clear()
        self.now, self._present = begin, now
        setup()
        while queue and queue[0][:2] < (now, self._key):
            self.spend()
            time, _, _, function, args = heappop(queue)
            self.now = time
            function(*args)
        self.now, self._present = now, None
        queue += others
        heapify(queue)

    def calls(self) -> list[Call]:
        """Returns what is queued, in order."""
        return sorted(self._queue, key=_order)

    @property
    def horizon(self) -> int | None:
        """Time in picoseconds up to which the loop certainly goes; None if there is no such time.

        It may stop there, or something that is not queued now may be queued for that time.
        """
        until = self._until.time if self._until is not None else None
        return min((t for t in (until, self.limit, self._present) if t is not None), default=None)

    def skip(self, calls: Sequence[Call], by: int) -> None:
        """Moves the clock and queued calls to later times; the order of these calls stays.

        Args:
            calls: Some of what `calls` returns; with all others the clock does not catch up.
            by: Picoseconds.
        """
        self.now += by
        moved = {id(call) for call in calls}
        self._queue[:] = [
            (call[0] + by, *call[1:]) if id(call) in moved else call for call in self._queue
        ]
        heapify(self._queue)

    def steps(self) -> int:
        """Returns a number that changes when something is queued or happens; for a watchdog.

        Another thread may call this.
        """
        queued = sum([owner.sequence for owner in list(self._owners.values())])
        return queued - len(self._queue) + self.inner_steps

    def discard(self) -> None:
        """Drops everything queued. Used after a failure, when all tasks have ended."""
        assert not self._tasks, "tasks are alive"
        self._queue.clear()

    def abandon(self) -> None:
        """Ends every task without running any more of its code: the last resort after a failure."""
        for task in self.tasks():
            if task._carrier is not None:
                self.abandoned.append(task._carrier)
                task._carrier = None
            task._finish(None, task._thrown)
            self.task_ended(task)
        self.current = None

    def task_ended(self, task: Task) -> None:
        """Forgets a task; the task itself calls this when it ends."""
        del self._tasks[task]
        if self._resumed is task:
            self._resumed = None
        task.subject = None  # which may have the task


def _order(call: Call) -> tuple[int, int, int]:
    return call[:3]


current_task: Final = cast("Callable[[], Task | None]", current_subject)
"""Returns the task whose code is running; None on main. Only tasks are subjects of carriers."""
