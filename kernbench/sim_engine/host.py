"""The processor that issues commands: its clock, its streams, and what it waits for."""

from collections import deque
from typing import TYPE_CHECKING, Final

from kernbench.des import Event, EventLoop, Owner, Task

if TYPE_CHECKING:
    from collections.abc import Callable


class Host:
    """One rank's processor, or main's.

    It runs ahead of the device: issuing costs `dispatch` and returns. It waits only in `wait` and
    when the launch queue is full.

    Attributes:
        rank: Global rank; -1 for main.
        clock: Local time in picoseconds.
        waited: Time spent waiting, in picoseconds.
        faults: Errors of the device, raised at the next blocking point.
        polled: What the host looked at last.
        polls: Looks in a row, up to the last one, at something that is not under way while nothing
            else was left to happen either.
        fruitless: Called after each of them.
    """

    def __init__(self, loop: EventLoop, rank: int, owner: Owner, clock: int, queue: int) -> None:
        self.loop: Final = loop
        self.rank: Final = rank
        self.owner: Final = owner
        self.clock = clock
        self.waited = 0
        self.task: Task | None = None
        self.faults: list[BaseException] = []
        self.polled: Event | None = None
        self.polls = 0
        self.fruitless: Callable[[], None] | None = None
        self._outstanding: deque[Event] = deque()
        self._queue: Final = queue

    def launched(self, done: Event) -> None:
        """Notes a command in the launch queue; waits for the oldest one if the queue is full."""
        outstanding = self._outstanding
        outstanding.append(done)
        if len(outstanding) > self._queue:
            oldest = outstanding.popleft()
            over = oldest.time is not None and oldest.time <= self.clock
            if not over or oldest.error is not None or self.faults:
                self.wait(oldest)

    def wait(self, event: Event) -> None:
        """Waits until `event` has happened: parks in a worker, drives the loop on main.

        Raises:
            BaseException: What a command of this host, or the awaited one, failed with.
            DeadlockError: On main, if the event can never happen.
        """
        task = self.task
        if event.time is None:
            if task is None:
                self.loop.run(until=event)
            else:
                task.clock = self.clock
                task.wait(event)
            assert event.time is not None
        if event.time > self.clock:
            self.waited += event.time - self.clock
            self.clock = event.time
        if event.error is not None:
            raise event.error
        self.raise_fault()

    def poll(self, dispatch: int, awaited: Event | None = None) -> None:
        """Lets everybody else reach this host's local time, so that a poll sees the truth.

        Args:
            dispatch: Time that a look takes, in picoseconds. It is never nothing, so that a loop of
                looks comes to the moment it waits for.
            awaited: What is looked at.

        Raises:
            BaseException: What `fruitless` raises.
        """
        self.clock += dispatch or 1
        self.polled = awaited
        task = self.task
        if task is None:
            now = Event("now")
            now.settle(self.clock)
            self.loop.run(until=now)
            return
        task.clock = self.clock
        hopeless = task.poll() and awaited is not None and awaited.time is None
        self.polls = self.polls + 1 if hopeless else 0
        if hopeless and self.fruitless is not None:
            self.fruitless()

    def raise_fault(self) -> None:
        """Raises the first fault of the device that nobody has seen yet."""
        if self.faults:
            error = self.faults[0]
            self.faults.clear()
            raise error
