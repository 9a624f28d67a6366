"""Locks of ranks: who waits for one lets other threads of the rank run.

Locks that modules and classes have before the ranks begin are shared by all ranks, and so they
would keep out another rank, which a process of its own would not meet; and who waits for them would
keep the turn. So each rank has such a lock for itself.
"""

import queue
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any, Final, NoReturn
from weakref import WeakKeyDictionary

from kernbench.isolation.here import HERE, Rank
from kernbench.isolation.replaced import Patch
from kernbench.isolation.turns import turns_of

_REAL: Final = threading.Lock

_PythonRLock: Final[Any] = vars(threading)["_RLock"]

_LOCK: Final = type(threading.Lock())
_RLOCK: Final = type(threading.RLock())

_WITHOUT: Final = frozenset(("kernbench", "multiprocessing", "multiprocess"))
"""Packages whose threads are not the program's, and run by themselves."""

_POOLS: Final = ("pool", "dummy")

_WITHIN: Final = frozenset(
    f"{package}.{name}" for package in ("multiprocessing", "multiprocess") for name in _POOLS
)
"""Modules of these whose threads run the program's code, or pickle what it has."""

_PROCESS: Final = _WITHOUT | {"threading", "_thread", "queue", "_queue", "importlib"}
"""Packages whose locks guard what all ranks have together, or whose names are replaced anyway."""


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

    def call(self: "_OfEachRank", *args: Any, **options: Any) -> Any:
        return getattr(self._mine(), name)(*args, **options)

    return call


class _OfEachRank:
    """A lock that ranks share, as that of a library's module: each has one for itself.

    Args:
        make: Makes the lock of a rank.
        real: The lock for code outside of ranks; None: one that `make` makes.
    """

    __slots__ = ("__weakref__", "_locks", "_make")

    def __init__(self, make: Callable[[], Any], real: Any = None) -> None:
        self._make: Final = make
        self._locks: Final[dict[Rank | None, Any]] = {} if real is None else {None: real}

    def _mine(self) -> Any:
        rank = HERE.rank
        lock = self._locks.get(rank)
        if lock is None:
            lock = self._locks[rank] = self._make()
        return lock

    acquire, release = _of_caller("acquire"), _of_caller("release")
    locked = _of_caller("locked")
    _is_owned, _release_save = _of_caller("_is_owned"), _of_caller("_release_save")
    _acquire_restore = _of_caller("_acquire_restore")
    _at_fork_reinit = _of_caller("_at_fork_reinit")

    def __enter__(self) -> bool:
        return bool(self._mine().acquire())

    def __exit__(self, *_: object) -> None:
        self._mine().release()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"cannot pickle {type(self._mine()).__name__!r} object")


def is_without() -> bool:
    """Returns whether a library asks whose threads run by themselves; it calls two frames out."""
    caller: str = sys._getframe(2).f_globals.get("__name__", "")
    return caller.partition(".")[0] in _WITHOUT and caller not in _WITHIN


def _lock_of(real: Callable[[], Any]) -> Callable[[], Any]:
    def lock() -> Any:
        return real() if HERE.rank is None or is_without() else _Lock()

    return lock


def _rlock_of(real: Callable[[], Any]) -> Callable[[], Any]:
    def rlock() -> Any:
        return real() if HERE.rank is None or is_without() else _OfEachRank(_PythonRLock)

    return rlock


def _simple_queue(real: Any) -> type:
    class SimpleQueue(queue._PySimpleQueue):  # type: ignore[name-defined]
        """The queue of C, or in a rank the one of Python, which waits by its locks."""

        def __new__(cls) -> Any:
            return real() if HERE.rank is None else super().__new__(cls)

    return SimpleQueue


_KNOWN: Final[WeakKeyDictionary[ModuleType, list[tuple[Any, str]]]] = WeakKeyDictionary()


def _shared() -> Iterator[tuple[Any, str, Any]]:
    """Yields locks of modules and classes, and names that modules have for what makes locks."""
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and name.partition(".")[0] not in _PROCESS:
            known = _KNOWN.get(module)
            if known is None:
                known = _KNOWN[module] = list(_found_in(module))
            for owner, attribute in known:
                yield owner, attribute, vars(owner).get(attribute)


def _found_in(module: ModuleType) -> Iterator[tuple[Any, str]]:
    for name, value in list(vars(module).items()):
        if _is_meant(value):
            yield module, name
        elif issubclass(type(value), type) and vars(value).get("__module__") == module.__name__:
            for attribute, held in list(vars(value).items()):
                if type(held) in (_LOCK, _RLOCK):
                    yield value, attribute


def _is_meant(value: Any) -> bool:
    return type(value) in (_LOCK, _RLOCK) or any(value is each for each in _MAKERS)


_MAKERS: Final[tuple[Any, ...]] = (threading.Lock, threading.RLock, queue.SimpleQueue)


def patches() -> Iterator[Patch]:
    """Yields what is replaced of `threading` and `queue`, and the locks of other modules."""
    made = (_lock_of(_MAKERS[0]), _rlock_of(_MAKERS[1]), _simple_queue(_MAKERS[2]))
    locks: dict[int, _OfEachRank] = {}  # a lock may have many names
    for owner, name, value in _shared():
        kind = type(value)
        if kind in (_LOCK, _RLOCK):
            make: Any = _Lock if kind is _LOCK else _PythonRLock
            yield Patch(owner, name, locks.setdefault(id(value), _OfEachRank(make, value)))
        else:
            for real, maker in zip(_MAKERS, made, strict=True):
                if value is real:
                    yield Patch(owner, name, maker)
    # Last, as a function is named for the last place that it is put.
    for owner, name, of in (
        (threading, "Lock", _lock_of),
        (threading, "_allocate_lock", _lock_of),
        (threading, "RLock", _rlock_of),
        (queue, "SimpleQueue", _simple_queue),
    ):
        of_any: Any = of
        yield Patch(owner, name, of_any(getattr(owner, name)))
