"""The processor that issues commands: its clock, its launch queue, and its waits."""

from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from kernbench.des import Event, EventLoop, Owner, Task
from kernbench.memory import Allocation

if TYPE_CHECKING:
    from collections.abc import Callable


class Read(NamedTuple):
    """A value in memory that a host has read.

    Attributes:
        block: The block of memory.
        version: How often the block had been written.
        offset: Place of the first element in the block, in elements.
        shape: Shape of the value.
    """

    block: Allocation
    version: int
    offset: int
    shape: tuple[int, ...]


class Tape(Protocol):
    """Notes what a host does, for other ranks that do the same, or to be run later.

    Attributes:
        later: Whether what it notes is run later, and not now.
    """

    later: bool

    def submit(self, command: Any, reads: Any = (), writes: Any = ()) -> None:
        """Notes a command, and submits it, unless it is only to be run later.

        Args:
            reads: Blocks of memory that it reads.
            writes: Blocks of memory that it writes.
        """
        ...

    def together(self, joined: Any, posted: Any) -> Any:
        """Notes what the next command does together with commands of other ranks.

        Args:
            joined: The call, as `distributed.issuing.Joined`.
            posted: The same as `distributed.issuing.Posted`.

        Returns:
            What the command does, as `process.act.Entered`, if the other ranks are not to be called
            now; else None.
        """
        ...

    def draws(self, again: Any, named: object) -> bool:
        """Notes that a command of the device writes random numbers.

        Args:
            again: Draws them.
            named: The generator that the program names; None for the default one.

        Returns:
            Whether they are drawn later.
        """
        ...

    def stream(self, stream: Any, kind: str) -> None:
        """Notes a stream that was made.

        Args:
            kind: `default` for the first one of a device, `new` for another one.
        """
        ...

    def wait(self, event: Event, awaited: Any) -> None:
        """Notes a wait that begins.

        Args:
            awaited: What the user waits for, for traces.
        """
        ...

    def waited(self, event: Event) -> None:
        """Notes that the wait is over."""
        ...

    def flush(self) -> None:
        """Lets others do what was noted so far: the host is about to park."""
        ...

    def did(self, function: Any, *args: Any, shown: Any = None) -> None:
        """Notes a function that every rank calls for itself.

        Args:
            function: What others call, with themselves and the further arguments.
            args: Further arguments.
            shown: What ranks must agree on, beside the function.
        """
        ...

    def look(self) -> None:
        """Refuses a look at the device, which other ranks may see in another state.

        Raises:
            UnsupportedError: Always.
        """
        ...


_LAUNCHES: Final = 1024
"""Number of commands after which a host lets others catch up."""

READS: Final = 256
"""Number of reads of values after which a host lets others catch up."""

_MOST_VALUES: Final = 64
"""Most values whose reads count as repeated when a loop looks at several."""

_MOST_DOUBLINGS: Final = 36
"""The longest step of a loop of reads is 2 to this power of picoseconds, some 70 ms."""


class Host:
    """The processor of one rank, or of main.

    A host runs ahead of the device: issuing a command costs `dispatch` and returns. A host waits
    only in `wait`, in `launched` when the launch queue is full, and now and then until all others
    have caught up, since a loop that does not end would never let them run.

    Attributes:
        rank: Global rank; -1 for main.
        clock: Local time in picoseconds.
        waited: Time spent waiting, in picoseconds.
        since: When it issued its last command, or had waited last: what it does from then on
            belongs to the next command.
        issued: Number of commands issued so far.
        task: Task that runs the rank; None for main.
        faults: Errors of the device, raised at the next blocking point.
        polled: Event that the host looked at last.
        polls: Number of fruitless looks in a row: looks at an event that is not under way, while no
            other event is left to happen either.
        reads: Number of values in memory that the host has read since it told `have_read`.
        copies_read: How many of these were on a device.
        repeats: Number of reads in a row of values in memory that it has read before, and that
            nothing has written since; one in `READS` is looked at.
        repeated: What was read last.
        tape: Notes what the host does. Others then do it after it, so it must not wait for them
            longer than needed: it goes on as soon as the time of what it waits for is known. None
            if nobody notes.
        fruitless: Called after each fruitless look, and now and then during repeated reads while
            nothing else is left to happen; may raise.
    """

    __slots__ = (
        "_outstanding",
        "_queue",
        "_read_at",
        "_values",
        "clock",
        "copies_read",
        "faults",
        "fruitless",
        "issued",
        "loop",
        "owner",
        "polled",
        "polls",
        "rank",
        "reads",
        "repeated",
        "repeats",
        "since",
        "tape",
        "task",
        "waited",
    )

    def __init__(self, loop: EventLoop, rank: int, owner: Owner, clock: int, queue: int) -> None:
        self.loop: Final = loop
        self.rank: Final = rank
        self.owner: Final = owner
        self.clock = clock
        self.waited = 0
        self.since = clock
        self.issued = 0
        self.task: Task | None = None
        self.faults: list[BaseException] = []
        self.polled: Event | None = None
        self.polls = 0
        self.reads = 0
        self.copies_read = 0
        self.repeats = 0
        self.repeated: Read | None = None
        self._values: frozenset[Read] = frozenset()
        self.fruitless: Callable[[], None] | None = None
        self.tape: Tape | None = None
        self._read_at = -1
        self._outstanding: deque[Event] = deque()
        self._queue: Final = queue

    def launched(self, done: Event) -> None:
        """Notes a command in the launch queue; waits for the oldest one if the queue is full.

        Args:
            done: Completion of the command.
        """
        if not self.issued % _LAUNCHES:
            self._catch_up()
        outstanding = self._outstanding
        outstanding.append(done)
        if len(outstanding) > self._queue:
            oldest = outstanding.popleft()
            over = oldest.time is not None and oldest.time <= self.clock
            if not over or oldest.error is not None or self.faults:
                self.wait(oldest)

    def leave(self) -> list[Event]:
        """Returns the events of its pending commands, and forgets all: the rank has ended."""
        pending = [done for done in self._outstanding if done.time is None]
        self._outstanding.clear()
        self.task = self.fruitless = self.polled = None
        return pending

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
            elif self.tape is not None:
                self.tape.flush()
                task.foresee(event)
            else:
                task.clock = self.clock
                task.wait(event)
            assert event.time is not None
        if event.time > self.clock:
            self.waited += event.time - self.clock
            self.clock = self.since = event.time
            if self.loop.limit is not None:
                self.loop.check_limit(self.clock)
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
        if self.tape is not None:
            self.tape.look()
        self.clock += dispatch or 1
        self.since = self.clock
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

    def have_read(self, what: Read | None) -> None:
        """Lets all other tasks catch up, after `READS` reads of values in memory.

        Args:
            what: The value that was read last, if the host did nothing but read; else None.

        Raises:
            BaseException: An error that `fruitless` raises.
        """
        self.reads = self.copies_read = 0
        if what is None:
            self.repeats = 0
            self._values = frozenset()
        elif what in self._values:
            self.repeats += READS
        else:
            self.repeats = 0
            full = len(self._values) >= _MOST_VALUES
            self._values = frozenset((what,)) if full else self._values | {what}
        self.repeated = what
        if self.repeats and self.clock == self._read_at:
            # Reads of host memory take no time. A loop of them must reach what comes later.
            self.clock += 1 << min(self.repeats // READS, _MOST_DOUBLINGS)
            self.since = self.clock
        self._read_at = self.clock
        hopeless = self._catch_up()
        if hopeless and self.repeats and self.fruitless is not None:
            self.fruitless()

    def _catch_up(self) -> bool:
        """Lets all other tasks reach this host's local time, since it may run ahead for ever.

        Returns:
            Whether nothing else is left to happen, apart from tasks that poll as well.
        """
        task = self.task
        if task is None:
            return self.loop.idle
        if self.tape is not None:  # it goes on as soon as it knows when, and waits for nobody
            self.loop.check_limit(self.clock)
            return False
        task.clock = self.clock
        alone = task.give_way()
        self.loop.check_limit(self.clock)
        return alone

    def sleep(self, duration: int) -> None:
        """Lets time pass, and all other tasks with it.

        Args:
            duration: Picoseconds.
        """
        self.clock += duration
        self.since = self.clock
        self._catch_up()

    def raise_fault(self) -> None:
        """Raises the first device fault that nobody has seen yet.

        Raises:
            BaseException: The error of a command of this host.
        """
        if self.faults:
            error = self.faults[0]
            self.faults.clear()
            raise error
