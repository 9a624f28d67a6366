"""Carriers: stacks on which tasks run, one at a time.

No room above this one may know what kind of stack a carrier is (ADR 0006). There are two kinds:
greenlets, which are made here, and threads, see `kernbench.des.threads`.
"""

import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, Protocol

from greenlet import GreenletExit, getcurrent, greenlet

Killed = GreenletExit
"""The exception that ends a task when other code throws its stack away."""


class Carrier(Protocol):
    """A stack that runs one job at a time, switched by the hub."""

    subject: object
    """What the job stands for, such as a rank; `current_subject` returns it."""

    def begin(self, job: Callable[[], None], subject: object) -> None:
        """Takes a job; it starts at the next `resume`."""
        ...

    def resume(self) -> None:
        """Runs the job until it suspends or ends. Called by the hub."""
        ...

    def suspend(self) -> None:
        """Hands control back to the hub. Called from inside the job."""
        ...

    @property
    def frame(self) -> FrameType | None:
        """Innermost frame of a suspended job; None while it runs, and before it begins."""
        ...

    @property
    def hub_frame(self) -> FrameType | None:
        """Innermost frame of the hub, which is suspended while the job runs."""
        ...

    @property
    def thread(self) -> int | None:
        """The thread whose code runs while the job does; None if that is the hub's thread."""
        ...


class Carriers(Protocol):
    """A supply of carriers, from which the tasks of a loop take theirs."""

    def take(self) -> Carrier:
        """Returns a carrier without a job."""
        ...

    def give_back(self, carrier: Carrier) -> None:
        """Takes back a carrier whose job has ended."""
        ...


class _Here(threading.local):
    """What is kept of each thread.

    Attributes:
        carrier: The carrier that the thread belongs to; None for a thread of somebody else.
        greenlets: Whether the thread may have greenlets. Asking `getcurrent` in a thread that has
            none makes it one that has, and the end of such a thread is not free of risk.
    """

    carrier: Carrier | None = None
    greenlets = False


here: Final = _Here()

_threads: Final[set[Carrier]] = set()
_some_threads = False  # whether there are any; asked by every operation, so not by the set's length


def thread_begins(carrier: Carrier) -> None:
    """Notes a carrier that is a thread. While there are none, nobody looks at `here`."""
    global _some_threads  # noqa: PLW0603 - threads are the process's
    _threads.add(carrier)
    _some_threads = True


def thread_ends(carrier: Carrier) -> None:
    """Forgets a carrier that was a thread."""
    global _some_threads  # noqa: PLW0603
    _threads.discard(carrier)
    _some_threads = bool(_threads)


class _GreenletCarrier(greenlet):
    """A greenlet that runs job after job, since a fresh one costs several microseconds."""

    def __init__(self) -> None:
        super().__init__(_run_jobs)
        self.subject: object = None
        self.job: Callable[[], None] | None = None

    def begin(self, job: Callable[[], None], subject: object) -> None:
        self.job = job
        self.subject = subject

    def resume(self) -> None:
        # Set at each resume, since the hub is the greenlet that drives the loop now.
        self.parent = getcurrent()
        self.switch()

    def suspend(self) -> None:
        hub = self.parent
        assert hub is not None
        hub.switch()

    @property
    def frame(self) -> FrameType | None:
        frame: FrameType | None = self.gr_frame
        return frame

    @property
    def hub_frame(self) -> FrameType | None:
        hub = self.parent
        frame: FrameType | None = None if hub is None else hub.gr_frame
        return frame

    @property
    def thread(self) -> None:
        return None


def _run_jobs() -> None:
    """Runs on a carrier, job after job.

    While it waits for a job, nothing on its stack refers to the carrier. So an idle one is freed
    with its pool, although the garbage collector does not see what a suspended greenlet refers to.
    """
    while True:
        carrier: Any = getcurrent()
        job, carrier.job = carrier.job, None
        job()
        carrier.subject, hub = None, carrier.parent
        del job, carrier
        hub.switch()


class CarrierPool(threading.local):
    """Keeps greenlets whose job has ended, and hands them out for new jobs.

    A greenlet runs in the thread that made it, so each thread has carriers of its own.
    """

    def __init__(self) -> None:  # runs once in each thread that uses the pool
        here.greenlets = True
        self._idle: list[_GreenletCarrier] = []

    def take(self) -> Carrier:
        """Returns a carrier without a job."""
        return self._idle.pop() if self._idle else _GreenletCarrier()

    def give_back(self, carrier: Carrier) -> None:
        """Takes back a carrier whose job has ended."""
        assert isinstance(carrier, _GreenletCarrier)
        if len(self._idle) < _IDLE:
            self._idle.append(carrier)

    def clear(self) -> None:
        """Drops the idle carriers of the running thread."""
        self._idle.clear()


_IDLE: Final = 1024
"""The most idle carriers that a thread keeps: some 16 MiB."""


POOL: Final = CarrierPool()
"""The greenlets, on which tasks run unless their loop is told otherwise."""


def current_carrier() -> object:
    """Returns the identity of the running stack; hashable, and different for each task alive."""
    if _some_threads:
        carrier = here.carrier
        if carrier is not None and _innermost_greenlet() is None:
            return carrier
    return getcurrent()


def current_subject() -> object | None:
    """Returns the subject of the innermost carrier around the running stack; None if there is none.

    A greenlet that user code started from a task has that task's subject.
    """
    if _some_threads:
        inner = _innermost_greenlet() or here.carrier
        return None if inner is None else inner.subject
    stack: greenlet | None = getcurrent()
    while stack is not None:
        if isinstance(stack, _GreenletCarrier):
            return stack.subject
        stack = stack.parent
    return None


def _innermost_greenlet() -> _GreenletCarrier | None:
    """Returns the innermost greenlet of a task around the running stack; None if there is none."""
    stack: greenlet | None = getcurrent() if here.greenlets else None
    while stack is not None:
        if isinstance(stack, _GreenletCarrier):
            return stack
        stack = stack.parent
    return None


def in_carriers_thread() -> bool:
    """Returns whether the running thread is a carrier, so that some hub waits for it."""
    return _some_threads and here.carrier is not None
