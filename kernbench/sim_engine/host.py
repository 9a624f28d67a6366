"""The processor that issues commands: its clock, its launch queue, and its waits."""

from collections import deque
from typing import TYPE_CHECKING, Final

from kernbench.des import Event, EventLoop, Owner, Task

if TYPE_CHECKING:
    from collections.abc import Callable


class Host:
    """The processor of one rank, or of main.

    A host runs ahead of the device: issuing a command costs `dispatch` and returns. A host waits
    only in `wait`, and in `launched` when the launch queue is full.

    Attributes:
        rank: Global rank; -1 for main.
        clock: Local time in picoseconds.
        waited: Time spent waiting, in picoseconds.
        issued: Number of commands issued so far.
        task: Task that runs the rank; None for main.
        faults: Errors of the device, raised at the next blocking point.
        polled: Event that the host looked at last.
        polls: Number of fruitless looks in a row: looks at an event that is not under way, while no
            other event is left to happen either.
        fruitless: Called after each fruitless look; may raise.
    """

    def __init__(self, loop: EventLoop, rank: int, owner: Owner, clock: int, queue: int) -> None:
        self.loop: Final = loop
        self.rank: Final = rank
        self.owner: Final = owner
        self.clock = clock
        self.waited = 0
        self.issued = 0
        self.task: Task | None = None
        self.faults: list[BaseException] = []
        self.polled: Event | None = None
        self.polls = 0
        self.fruitless: Callable[[], None] | None = None
        self._outstanding: deque[Event] = deque()
        self._queue: Final = queue

    def launched(self, done: Event) -> None:
        """Notes a command in the launch queue; waits for the oldest one if the queue is full.

        Args:
            done: Completion of the command.
        """
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
            BaseException: The error of a command of this host, or of the awaited command.
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
        """Lets all other tasks reach this host's local time, so that a poll sees the truth.

        Args:
            dispatch: Time of one look, in picoseconds; at least 1 is spent, so that a loop of looks
                reaches the awaited moment.
            awaited: Event that is looked at.

        Raises:
            BaseException: An error that `fruitless` raises.
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
        """Raises the first device fault that nobody has seen yet.

        Raises:
            BaseException: The error of a command of this host.
        """
        if self.faults:
            error = self.faults[0]
            self.faults.clear()
            raise error
