"""Carriers that are threads of the operating system, for programs that keep state by thread.

A baton of two locks lets one thread run at a time: the hub waits while a job runs, and each job
waits while the hub or another job runs.

Handlers of signals and other threads may raise an exception in a thread between any two lines. So
the baton is passed on and waited for by one call of C, and the count of passes, which is changed
right before, says to all threads who has it.
"""

import operator
import sys
import threading
import time
from _thread import allocate_lock
from collections.abc import Callable
from functools import partial
from threading import get_ident
from types import CodeType, FrameType, TracebackType
from typing import ClassVar, Final, Self

from kernbench.des.carrier import POOL, Carrier, here, thread_begins, thread_ends

_call: Final[Callable[[Callable[[], object]], object]] = operator.call

_Pair = tuple[Callable[[], object], Callable[[], object]]

_AGAIN_S: Final = 0.05
"""Seconds after which a waiting hub waits anew: a signal right before a wait does not end it."""

_GRACE_S: Final = 5.0
"""Seconds after which an interrupted job that has not come back is stuck in a call of C."""

_LOOK_S: Final = 0.001
"""Seconds between two looks of an interrupted hub whether its job has suspended."""


class ThreadCarrier:
    """A thread that runs job after job; it runs only while the hub waits for it.

    An exception that comes to the waiting hub from a handler of a signal is raised in the thread
    whose code runs. All that a job raises comes out of `resume`.

    Attributes:
        lent: The thread that runs in place of its own, which waits for it; None for its own.
        stuck: Called with the interrupt, in the thread of the hub, if the code that runs does not
            take it, since it is in a call of C that does not return; None for nothing.
    """

    stuck: ClassVar[Callable[[BaseException], None] | None] = None

    def __init__(self) -> None:
        self.subject: object = None
        self.lent: int | None = None
        self._job: Callable[[], None] | None = None
        self._error: BaseException | None = None
        self._begun = self._ended = False
        self._suspended, self._resumed = 0, 1  # how often; the thread starts as if resumed
        self._inner: ThreadCarrier | None = None  # for which the job waits as a hub
        self._hub_thread = 0
        mine, hub = allocate_lock(), allocate_lock()
        mine.acquire()
        hub.acquire()
        self._take_back: Callable[[], bool] = partial(hub.acquire, blocking=False)
        self._let_go = mine.release
        # The first call of each pair returns None, so `any` makes the second, which returns True.
        self._wait: Callable[[], bool] = partial(hub.acquire, timeout=_AGAIN_S)
        self._to_job: _Pair = (mine.release, self._wait)
        self._to_hub: _Pair = (hub.release, mine.acquire)
        self._thread = threading.Thread(target=self._live, name="kernbench carrier", daemon=True)
        thread_begins(self)
        self._thread.start()
        hub.acquire()

    def begin(self, job: Callable[[], None], subject: object) -> None:
        """Takes a job; it starts at the next `resume`."""
        self._job = job
        self.subject = subject

    def resume(self) -> None:
        """Runs the job until it suspends or ends. Called by the hub, which may be any thread.

        Raises:
            BaseException: What the job has raised, or what a handler of a signal raised when the
                job had just suspended.
        """
        self._hub_thread = get_ident()
        outer = here.carrier
        if not isinstance(outer, ThreadCarrier):
            outer = None
        else:
            outer._inner = self
        passing = map(_call, self._to_job)
        self._resumed += 1
        try:
            back = any(passing)
            while not back:
                back = self._wait()
        except BaseException as error:
            self._relay(error)
        if outer is not None:
            outer._inner = None
        if self._error is not None:
            raised, self._error = self._error, None
            raise raised

    def suspend(self) -> None:
        """Hands control back to the hub. Called from inside the job."""
        passing = map(_call, self._to_hub)
        self._suspended += 1
        any(passing)

    def end(self) -> None:
        """Ends the thread, which has no job, and waits for its end."""
        assert self._job is None
        assert not self._begun
        self._ended = True
        self._let_go()
        self._thread.join()

    @property
    def _running(self) -> bool:
        return self._suspended < self._resumed

    @property
    def frame(self) -> FrameType | None:
        """Innermost frame of a suspended job; None while it runs, and before it begins."""
        return (
            _of_thread(self.lent or self._thread.ident)
            if self._begun and not self._running
            else None
        )

    @property
    def hub_frame(self) -> FrameType | None:
        """Innermost frame of the hub, which is suspended while the job runs."""
        return _of_thread(self._hub_thread)

    @property
    def thread(self) -> int | None:
        """The thread whose code runs while the job does."""
        inner = self._inner
        return (self.lent or self._thread.ident) if inner is None else inner.thread

    @property
    def _threads(self) -> set[int | None]:
        """The threads that an interrupt goes to: the one that runs, and the one that lends to it.

        The one that runs is to come back. It may end then, or take the interrupt for an error of
        its own; the other has the job, which is to end.
        """
        inner = self._inner
        if inner is not None:
            return inner._threads
        return {self._thread.ident, self.lent or self._thread.ident}

    def _live(self) -> None:
        here.carrier = self
        while not self._ended:
            try:
                self._run_jobs()
            except BaseException as error:  # of the job, or raised in the thread between two jobs
                self._error = error
        if here.greenlets:
            POOL.clear()  # here, since the end of a thread is no place to end greenlets
        thread_ends(self)

    def _run_jobs(self) -> None:
        while not self._ended:
            job, self._job = self._job, None
            if job is not None:
                self._begun = True
                job()
                del job
            self.subject, self.lent, self._begun = None, None, False
            self.suspend()

    def _relay(self, error: BaseException | None) -> None:
        """Raises what came to the waiting hub in the running thread, and waits on."""
        since: float | None = None
        while True:
            try:
                if error is not None and self._running:
                    for thread in self._threads:
                        raise_in(thread, type(error))
                    told, error, since = error, None, time.monotonic()
                while self._running:
                    time.sleep(_LOOK_S)
                    if since is not None and time.monotonic() - since > _GRACE_S:
                        since = None
                        if (end := ThreadCarrier.stuck) is not None:
                            end(told)
                break
            except BaseException as another:
                error = another
        self._take_back()  # unless the error came when the hub had it already
        if error is not None:
            raise error


class ThreadPool:
    """Keeps threads whose job has ended, and hands them out for new jobs, until it is closed.

    Threads are never ended by the garbage collector. Those of jobs that were abandoned wait until
    the process ends.
    """

    def __init__(self) -> None:
        self._idle: list[ThreadCarrier] = []
        self._closed = False

    def take(self) -> Carrier:
        """Returns a carrier without a job."""
        assert not self._closed, "the pool is closed"
        return self._idle.pop() if self._idle else ThreadCarrier()

    def give_back(self, carrier: Carrier) -> None:
        """Takes back a carrier whose job has ended; ends it if the pool is closed."""
        assert isinstance(carrier, ThreadCarrier)
        if self._closed:
            carrier.end()
        else:
            self._idle.append(carrier)

    def close(self) -> None:
        """Ends the idle threads and waits for their ends; the others end when they come back."""
        self._closed = True
        while self._idle:
            self._idle.pop().end()

    def __enter__(self) -> Self:
        """Returns the pool."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the pool."""
        self.close()


_OUTERMOST: Final[CodeType] = ThreadCarrier._live.__code__


def is_outermost(frame: FrameType) -> bool:
    """Returns whether a frame is the outermost one of a carrier's own; those around it start it."""
    return frame.f_code is _OUTERMOST


def raise_in(thread: int | None, kind: type[BaseException]) -> None:
    """Raises an exception in another thread, as soon as that runs its next line.

    Args:
        thread: The thread, as `threading.get_ident` gives it.
        kind: Class of the exception; the interpreter makes it, without arguments.
    """
    import ctypes

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread or 0), ctypes.py_object(kind))


def _of_thread(thread: int | None) -> FrameType | None:
    frame = sys._current_frames().get(thread or 0)
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    return frame
