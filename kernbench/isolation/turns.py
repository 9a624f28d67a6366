"""The turn of a rank, which its threads pass on: one of them runs at a time.

Who waits for another thread, looks whether it is done, or sleeps, passes the turn on; so runs
repeat themselves. While a thread waits for the device, the whole rank waits.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any, Final
from weakref import WeakKeyDictionary

from kernbench.des.carrier import here
from kernbench.isolation.here import HERE, Rank, this_rank
from kernbench.process.process import MAIN, enter, leave
from kernbench.ranks.watchdog import NobodyMovesError, check_stillness

_REAL: Final = threading.Lock

_PAUSE_S: Final = 0.0005
"""Seconds between two looks at what only this computer can bring, such as the end of a time-out."""

_PATIENCE_S: Final = 5.0
"""Seconds for which the end of a rank waits for daemons that are in a call of C."""


_End = Callable[[Any], object]


class Turns:
    """The turn of one rank, which its threads pass on, first come, first served.

    Args:
        rank: The rank; the calling thread has the turn.

    Attributes:
        first: The thread with which the rank began.
        executors: What has threads or processes of the rank, each with what asks it to end before
            the rank waits for its threads, and what ends it at once.
    """

    def __init__(self, rank: Rank) -> None:
        self.first: Final = threading.current_thread()
        self.executors: Final[WeakKeyDictionary[Any, tuple[_End, _End]]] = WeakKeyDictionary()
        self._rank: Final = rank
        self._carrier: Final[Any] = here.carrier
        self._waiting: Final[deque[Any]] = deque()  # what lets each waiting thread go on
        self._batons: Final[dict[int, Any]] = {get_ident(): _shut()}
        self._live: Final[set[threading.Thread]] = set()
        self._fruitless = 0  # how many threads in a row have waited in vain
        self._closed = False
        self._given_up = False  # nobody moves any more

    def admit(self, thread: Any) -> None:
        """Gives a thread that is about to start a place; it begins when the turn is passed on."""
        baton = _shut()
        thread._started = Started(partial(self._enter, baton))
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
                break
            self._fruitless += 1
            if self._fruitless > len(self._waiting):  # no other thread can go on
                self._fruitless = 0
                _let_ranks_run()
            if get_ident() == self.first.ident:
                self._check_stillness()
            self.pass_on()
        else:
            self._fruitless = 0
            _STILL.seconds = 0.0
            return True
        _STILL.seconds = 0.0  # it goes on
        return False

    def _check_stillness(self) -> None:
        try:
            check_stillness(_STILL.seconds, set(self._batons) - {self.first.ident})
        except NobodyMovesError:
            self._given_up, _STILL.seconds = True, 0.0
            raise

    def finish(self) -> None:
        """Waits for the rank's threads, but for daemons, as Python does at a process's end."""
        if self._given_up:
            return
        for executor, (ask, _) in list(self.executors.items()):
            ask(executor)
        self.until(lambda: all(thread.daemon for thread in self._live))

    def close(self) -> None:
        """Ends the threads that are left, and what they would have ended."""
        for executor, (_, end_at_once) in list(self.executors.items()):
            end_at_once(executor)
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


def turns_here() -> Turns | None:
    """Returns whose turn it is in the calling rank; None if it has one thread, or nobody is one."""
    rank = HERE.rank
    return None if rank is None else rank.turns


def pass_on() -> None:
    """Lets other threads of the rank run, if there are any."""
    turns = turns_here()
    if turns is not None:
        turns.pass_on()


def _let_ranks_run() -> None:
    """Lets other ranks run; if they only wait as well, lets time pass on this computer."""
    host = this_rank().process.host
    task = host.task
    if task is None:
        _STILL.note(True)
        return
    task.clock = host.clock
    hopeless = task.step_aside()
    host.clock = max(host.clock, task.clock)
    _STILL.note(hopeless)


class _Stillness:
    """For how long nobody has moved: no rank runs, and no thread of one goes on.

    Attributes:
        seconds: How long all have waited together.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._moved = False

    def note(self, hopeless: bool) -> None:
        """Takes what has become of letting all others run.

        Args:
            hopeless: Whether they only wait; time passes then.
        """
        if hopeless:
            time.sleep(_PAUSE_S)
            self.seconds += _PAUSE_S
        elif self._moved:  # not only what looks at the ranks now and then
            self.seconds = 0.0
        self._moved = not hopeless


_STILL: Final = _Stillness()


def _shut() -> Any:
    baton = _REAL()
    baton.acquire()
    return baton


class Started(threading.Event):
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
