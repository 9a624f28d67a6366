"""Carriers: stacks on which tasks run, one at a time.

No room above this one may know what kind of stack a carrier is (ADR 0006). Greenlets are the only
kind so far.
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
    """Keeps carriers whose job has ended, and hands them out for new jobs.

    A greenlet runs in the thread that made it, so each thread has carriers of its own.
    """

    def __init__(self) -> None:
        self._idle: list[_GreenletCarrier] = []

    def take(self) -> Carrier:
        """Returns a carrier without a job."""
        return self._idle.pop() if self._idle else _GreenletCarrier()

    def give_back(self, carrier: Carrier) -> None:
        """Takes back a carrier whose job has ended."""
        assert isinstance(carrier, _GreenletCarrier)
        if len(self._idle) < _IDLE:
            self._idle.append(carrier)


_IDLE: Final = 1024
"""The most idle carriers that a thread keeps: some 16 MiB."""


POOL: Final = CarrierPool()
"""The carriers of all event loops."""


def current_carrier() -> object:
    """Returns the identity of the running stack; hashable, and different for each task alive."""
    return getcurrent()


def current_subject() -> object | None:
    """Returns the subject of the innermost carrier around the running stack; None if there is none.

    A greenlet that user code started from a task has that task's subject.
    """
    stack: greenlet | None = getcurrent()
    while stack is not None:
        if isinstance(stack, _GreenletCarrier):
            return stack.subject
        stack = stack.parent
    return None
