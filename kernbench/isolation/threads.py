"""Threads that a rank starts: they run in turns with it, as one process of the simulated machine.

A rank's threads are threads of this computer of which one runs at a time: the one that has the
rank's turn. Who waits for another thread (a lock, an event, a queue, `join`), looks whether it is
done, or sleeps, passes the turn on; so runs repeat themselves. While a thread waits for the device,
the whole rank waits.
"""

import functools
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Final

from kernbench.des import Killed
from kernbench.isolation import executors, locks, waits
from kernbench.isolation.here import HERE
from kernbench.isolation.locks import is_without
from kernbench.isolation.replaced import Patch, WhenImported
from kernbench.isolation.turns import Started, pass_on, turns_of
from kernbench.ranks.spawn_errors import RankAborted

_BEGINNING: Final[dict[Any, Any]] = vars(threading)["_limbo"]
"""Threads that have been started, and are not yet among those that `threading` knows."""


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
            if is_without():  # the rank waits for its beginning, and keeps the turn meanwhile
                thread._started = Started(lambda: None)
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


def patches() -> Iterator[Patch | WhenImported]:
    """Yields what is replaced of `threading`, and of what threads wait for."""
    yield from locks.patches()
    yield from waits.patches()
    yield from executors.patches()
    thread: Any = threading.Thread
    for owner, name, of in (
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
    ):
        make: Any = of
        yield Patch(owner, name, make(getattr(owner, name)))
