"""Threads that a rank starts: they run in turns with it, as one process of the simulated machine.

A rank's threads are threads of this computer of which one runs at a time: the one that has the
rank's turn. Who waits for another thread (a lock, an event, a queue, `join`), looks whether it is
done, or sleeps, passes the turn on; so runs repeat themselves. While a thread waits for the device,
the whole rank waits.
"""

import contextlib
import functools
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from threading import get_ident
from typing import Any, Final, NoReturn

from kernbench.des import Killed
from kernbench.des.carrier import here
from kernbench.isolation.here import HERE, Rank, this_rank
from kernbench.isolation.replaced import Patch
from kernbench.process.process import MAIN, enter, leave
from kernbench.ranks.spawn_errors import RankAborted

_REAL: Final = threading.Lock

_PythonRLock: Final[Any] = vars(threading)["_RLock"]

_BEGINNING: Final[dict[Any, Any]] = vars(threading)["_limbo"]
"""Threads that have been started, and are not yet among those that `threading` knows."""

_PAUSE_S: Final = 0.0005
"""Seconds between two looks at what only this computer can bring, such as the end of a time-out."""

_PATIENCE_S: Final = 5.0
"""Seconds for which the end of a rank waits for daemons that are in a call of C."""

_WITHOUT: Final = frozenset(("kernbench", "multiprocessing"))
"""Packages whose threads are not the program's, and run by themselves."""


class Turns:
    """The turn of one rank, which its threads pass on, first come, first served.

    Args:
        rank: The rank; the calling thread has the turn.

    Attributes:
        first: The thread with which the rank began.
    """

    def __init__(self, rank: Rank) -> None:
        self.first: Final = threading.current_thread()
        self._rank: Final = rank
        self._carrier: Final[Any] = here.carrier
        self._waiting: Final[deque[Any]] = deque()  # what lets each waiting thread go on
        self._batons: Final[dict[int, Any]] = {get_ident(): _shut()}
        self._live: Final[set[threading.Thread]] = set()
        self._fruitless = 0  # how many threads in a row have waited in vain
        self._closed = False

    def admit(self, thread: Any) -> None:
        """Gives a thread that is about to start a place; it begins when the turn is passed on."""
        baton = _shut()
        thread._started = _Started(partial(self._enter, baton))
        self._live.add(thread)
        self._waiting.append(baton)

    def _enter(self, baton: Any) -> None:
        self._batons[get_ident()] = baton
        baton.acquire()
        here.carrier = self._carrier
        rank = HERE.rank = self._rank
        if rank.process.rank == MAIN:
            enter(rank.process)
        rank.enter_thread()
        self._take_up()

    def leave(self, thread: threading.Thread) -> None:
        """Passes the turn on for the last time.

        Args:
            thread: The thread that ends, which is the one that runs.
        """
        self._live.discard(thread)
        rank = self._rank
        rank.leave_thread()
        if rank.process.rank == MAIN:
            leave(rank.process)
        HERE.rank = here.carrier = None
        del self._batons[get_ident()]
        self._fruitless = 0
        self._waiting.popleft().release()

    def has(self, thread: threading.Thread) -> bool:
        """Returns whether a thread is one of the rank's, and has not ended."""
        return thread in self._live

    def pass_on(self) -> None:
        """Lets the other threads run."""
        if self._waiting:
            baton = self._batons[get_ident()]
            self._waiting.append(baton)
            self._waiting.popleft().release()
            baton.acquire()
            self._take_up()

    def _take_up(self) -> None:
        if self._carrier is not None:
            self._carrier.lent = get_ident()
        # By its number, as a thread that begins is not yet among those that `threading` knows.
        if self._closed and get_ident() != self.first.ident:
            raise SystemExit  # its process ends

    def until(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Waits until something is so, while other threads and other ranks run.

        Args:
            done: Whether it is so; may make it so.
            timeout: Seconds of this computer after which to wait no longer; None for no limit.

        Returns:
            Whether it is so.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not done():
            if end is not None and time.monotonic() >= end:
                return False
            self._fruitless += 1
            if self._fruitless > len(self._waiting):  # no other thread can go on
                self._fruitless = 0
                _let_ranks_run()
            self.pass_on()
        self._fruitless = 0
        return True

    def finish(self) -> None:
        """Waits for the rank's threads, but for daemons, as Python does at a process's end."""
        self.until(lambda: all(thread.daemon for thread in self._live))

    def close(self) -> None:
        """Ends the threads that are left."""
        self._closed = True
        end = time.monotonic() + _PATIENCE_S
        while self._live and time.monotonic() < end:
            self.pass_on()
            if self._live and not self._waiting:
                time.sleep(_PAUSE_S)


def turns_of(rank: Rank) -> Turns:
    """Returns whose turn it is among the threads of a rank.

    Args:
        rank: The rank, whose code runs.
    """
    turns = rank.turns
    if turns is None:
        turns = rank.turns = Turns(rank)
    assert isinstance(turns, Turns)
    return turns


def pass_on() -> None:
    """Lets other threads of the rank run, if there are any."""
    rank = HERE.rank
    if rank is not None and rank.turns is not None:
        rank.turns.pass_on()


def _let_ranks_run() -> None:
    """Lets other ranks run; if they only wait as well, lets time pass on this computer."""
    host = this_rank().process.host
    task = host.task
    if task is None:
        time.sleep(_PAUSE_S)
        return
    task.clock = host.clock
    hopeless = task.step_aside()
    host.clock = max(host.clock, task.clock)
    if hopeless:
        time.sleep(_PAUSE_S)


def _shut() -> Any:
    baton = _REAL()
    baton.acquire()
    return baton


class _Started(threading.Event):
    """What a thread of a rank sets when it begins: the thread then waits for its turn.

    Args:
        enter: Waits for the turn.
    """

    def __init__(self, enter: Callable[[], None]) -> None:
        super().__init__()
        self._begun: Final = _shut()
        self._enter: Final = enter

    def is_set(self) -> bool:
        """Returns whether the thread has begun."""
        return self._flag

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for the beginning of the thread, and not for its turn.

        Args:
            timeout: Not used: nothing holds the beginning up.
        """
        del timeout
        with self._begun:
            return True

    def set(self) -> None:
        """Lets the one that has started the thread go on, and waits for the turn."""
        self._flag = True
        self._begun.release()
        self._enter()


class _Lock:
    """A lock that a rank has made: who waits for it lets other threads run.

    It keeps out threads of one rank. If ranks share it, as that of a library's module, each would
    have it for itself, so who is of another rank than the holder does not wait.
    """

    __slots__ = ("__weakref__", "_aside", "_holder", "_real")

    def __init__(self) -> None:
        self._real: Final = _REAL()
        self._holder: Rank | None = None
        self._aside: dict[Rank, Any] = {}

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As of a lock of Python."""
        real, rank = self._real, HERE.rank
        if rank is None:
            return real.acquire(blocking, timeout)
        if real.acquire(False):
            self._holder = rank
            return True
        if self._holder is not None and self._holder is not rank:
            real = self._aside.setdefault(rank, _REAL())
        if not blocking:
            return real.acquire(False)
        limit = None if timeout == -1 else timeout
        return turns_of(rank).until(partial(real.acquire, False), limit)

    def release(self) -> None:
        """As of a lock of Python."""
        if self._aside and HERE.rank in self._aside:
            self._aside.pop(HERE.rank).release()
            return
        self._holder = None
        self._real.release()

    def locked(self) -> bool:
        """As of a lock of Python."""
        return self._real.locked()

    def __enter__(self) -> bool:
        """As of a lock of Python."""
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        """As of a lock of Python."""
        self.release()

    def _at_fork_reinit(self) -> None:
        self._real._at_fork_reinit()  # type: ignore[attr-defined]

    def __reduce__(self) -> NoReturn:
        """Refuses copies, as locks of Python do."""
        raise TypeError("cannot pickle '_thread.lock' object")


def _of_caller(name: str) -> Callable[..., Any]:
    """Returns a method that calls that of the calling rank's lock.

    `Condition` takes methods of a lock once, and may serve ranks other than the one that made it.
    """

    def call(self: "_RLock", *args: Any, **options: Any) -> Any:
        return getattr(self._mine(), name)(*args, **options)

    return call


class _RLock:
    """A lock that a thread may take again; each rank that shares it has its own."""

    __slots__ = ("__weakref__", "_locks")

    def __init__(self) -> None:
        self._locks: dict[Rank | None, Any] = {}

    def _mine(self) -> Any:
        rank = HERE.rank
        lock = self._locks.get(rank)
        if lock is None:
            lock = self._locks[rank] = _PythonRLock()
        return lock

    acquire, release = _of_caller("acquire"), _of_caller("release")
    _is_owned, _release_save = _of_caller("_is_owned"), _of_caller("_release_save")
    _acquire_restore = _of_caller("_acquire_restore")
    _at_fork_reinit = _of_caller("_at_fork_reinit")

    def __enter__(self) -> bool:
        return bool(self._mine().acquire())

    def __exit__(self, *_: object) -> None:
        self._mine().release()

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle '_thread.RLock' object")


def _is_without() -> bool:
    """Returns whether a library asks whose threads run by themselves; it calls two frames out."""
    caller: str = sys._getframe(2).f_globals.get("__name__", "")
    return caller.partition(".")[0] in _WITHOUT


def _lock_of(real: Callable[[], Any]) -> Callable[[], Any]:
    def lock() -> Any:
        return real() if HERE.rank is None or _is_without() else _Lock()

    return lock


def _rlock_of(real: Callable[[], Any]) -> Callable[[], Any]:
    def rlock() -> Any:
        return real() if HERE.rank is None or _is_without() else _RLock()

    return rlock


def _simple_queue(real: Any) -> type:
    class SimpleQueue(queue._PySimpleQueue):  # type: ignore[name-defined]
        """The queue of C, or in a rank the one of Python, which waits by its locks."""

        def __new__(cls) -> Any:
            return real() if HERE.rank is None else super().__new__(cls)

    return SimpleQueue


def _init(real: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(real)
    def init(thread: Any, *args: Any, **options: Any) -> None:
        if isinstance(thread, threading._DummyThread):
            pass  # `current_thread` makes it for a thread that it does not know
        elif HERE.rank is not None and threading.current_thread() is threading.main_thread():
            # Of a process it is no daemon, and so neither is what it starts.
            options["daemon"] = bool(options.get("daemon"))
        real(thread, *args, **options)

    return init


def _start(real: Callable[[Any], None]) -> Callable[[Any], None]:
    def start(thread: Any) -> None:
        rank = HERE.rank
        if rank is not None and not thread._started.is_set():
            if _is_without():  # the rank waits for its beginning, and keeps the turn meanwhile
                thread._started = _Started(lambda: None)
            else:
                turns_of(rank).admit(thread)
                thread._turns = rank.turns
        real(thread)

    return start


def _delete(real: Callable[[Any], None]) -> Callable[[Any], None]:
    def delete(thread: Any) -> None:
        turns = getattr(thread, "_turns", None)
        if turns is None:
            real(thread)
            return
        try:
            if _BEGINNING.pop(thread, None) is None:  # else its rank ended before it began
                real(thread)
        finally:
            turns.leave(thread)

    return delete


def _main_thread(real: Callable[[], threading.Thread]) -> Callable[[], threading.Thread]:
    def main_thread() -> threading.Thread:
        rank = HERE.rank
        if rank is None:
            return real()
        first: threading.Thread = rank.turns.first if rank.turns else threading.current_thread()
        return first

    return main_thread


def _join(real: Callable[..., None]) -> Callable[..., None]:
    def join(thread: Any, timeout: float | None = None) -> None:
        rank = HERE.rank
        if rank is not None and rank.turns is not None and rank.turns.has(thread):
            limit = None if timeout is None else max(timeout, 0)
            if thread is threading.current_thread():
                raise RuntimeError("cannot join current thread")
            if not rank.turns.until(lambda: not rank.turns.has(thread), limit):
                return
        real(thread, timeout)

    return join


def _is_alive(real: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def is_alive(thread: Any) -> bool:
        rank = HERE.rank
        if rank is None or rank.turns is None or thread is threading.current_thread():
            return real(thread)
        rank.turns.pass_on()
        return bool(rank.turns.has(thread)) or real(thread)

    return is_alive


def _telling(real: Callable[[], Callable[[Any], None]]) -> Callable[[], Callable[[Any], None]]:
    """Returns what makes the function that prints the error that has ended a thread."""

    def make() -> Callable[[Any], None]:
        tell = real()

        def invoke(thread: Any) -> None:
            if not isinstance(
                sys.exception(), RankAborted | Killed
            ):  # it goes to all threads of the rank
                tell(thread)

        return invoke

    return make


def _looking(real: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that looks at what another thread does; the others run first."""

    @functools.wraps(real)
    def look(*args: Any, **options: Any) -> Any:
        pass_on()
        return real(*args, **options)

    return look


def patches() -> Iterator[Patch]:
    """Yields what is replaced of `threading` and `queue`."""
    thread: Any = threading.Thread
    for owner, name, of in (
        (threading, "Lock", _lock_of),
        (threading, "_allocate_lock", _lock_of),
        (threading, "RLock", _rlock_of),
        (threading, "_make_invoke_excepthook", _telling),
        (threading, "main_thread", _main_thread),
        (thread, "__init__", _init),
        (thread, "start", _start),
        (thread, "_delete", _delete),
        (thread, "join", _join),
        (thread, "is_alive", _is_alive),
        (threading.Event, "is_set", _looking),
        (queue.Queue, "empty", _looking),
        (queue.Queue, "get_nowait", _looking),
        (Future, "done", _looking),
        (queue, "SimpleQueue", _simple_queue),
    ):
        make: Any = of
        yield Patch(owner, name, make(getattr(owner, name)))
