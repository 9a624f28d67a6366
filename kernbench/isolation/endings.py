"""How a rank's process ends: `atexit`, `os._exit`, and signals that it sends to itself.

All ranks are one process of this computer. What would end it ends the rank that asks for it, as an
exception: so its `finally` blocks run, which a process that ends so would not do.
"""

import atexit
import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from kernbench.errors import not_simulated
from kernbench.isolation.here import HERE, Rank
from kernbench.isolation.locks import is_without
from kernbench.isolation.replaced import Patch
from kernbench.process.process import MAIN, RankLocal


class ProcessEnded(SystemExit):
    """A rank has ended its process at once.

    Args:
        how: What it has called, or the signal.
        code: The exit code of its process; that of a signal is negative.
    """

    def __init__(self, how: str, code: int) -> None:
        super().__init__(f"{how}, exit code {code}" if code else how)
        self.code = code


_Handler = tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]

_HANDLERS: Final[RankLocal[list[_Handler]]] = RankLocal("handlers of atexit", lambda _: [])
_SIGNALS: Final[RankLocal[dict[int, Any]]] = RankLocal("handlers of signals", lambda _: {})

_PASSED_BY: Final = frozenset((signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH, signal.SIGCONT))
"""Signals that do nothing to a process that has no handler for them."""

_STOPS: Final = frozenset((signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU))


def at_end(rank: Rank) -> None:
    """Calls what a rank has given to `atexit`, the last first, as Python does at a process's end.

    Args:
        rank: The rank, whose state stands.
    """
    handlers = _HANDLERS.of(rank.process)
    called = handlers[::-1]
    handlers.clear()
    for function, args, options in called:
        try:
            function(*args, **options)
        except Exception as error:
            _tell(function, error)
        except SystemExit as stop:  # it does not change the exit code, and Python says so
            _tell(function, stop)


def before_end(rank: Rank, function: Callable[[], object]) -> None:
    """Lets a rank call something at its end, after all that the program has given to `atexit`.

    Args:
        rank: The rank, whose code runs.
        function: What is called.
    """
    _HANDLERS.of(rank.process).insert(0, (function, (), {}))


@contextlib.contextmanager
def as_child(rank: Rank) -> Iterator[None]:
    """Puts back at the end of the block what a process of its own would change of itself.

    Args:
        rank: The rank that would have started the process.
    """
    handlers, signals = _HANDLERS.of(rank.process), _SIGNALS.of(rank.process)
    before, handled = list(handlers), dict(signals)
    try:
        yield
    finally:
        handlers[:] = before
        signals.clear()
        signals.update(handled)


def _tell(function: Any, error: BaseException) -> None:
    print(f"Exception ignored in atexit callback: {function!r}", file=sys.stderr)
    traceback.print_exception(error, file=sys.stderr)


def _own(pid: int) -> Rank | None:
    """Returns the rank that runs, if its process has the number: a fork's child is no rank.

    Main is this process itself, but for a worker of its `DataLoader`.
    """
    rank = HERE.rank
    if rank is None or not os.getpid() == rank.pid == pid:
        return None
    return None if rank.process.rank == MAIN and rank.aside is None else rank


def _register(real: Callable[..., Any]) -> Callable[..., Any]:
    def register(func: Any, *args: Any, **kwargs: Any) -> Any:
        rank = HERE.rank
        if rank is None or is_without():  # such a library has one state for all ranks
            return real(func, *args, **kwargs)
        _HANDLERS.of(rank.process).append((func, args, kwargs))
        return func

    return register


def _unregister(real: Callable[[Any], None]) -> Callable[[Any], None]:
    def unregister(func: Any) -> None:
        rank = HERE.rank
        if rank is None:
            real(func)
        else:
            handlers = _HANDLERS.of(rank.process)
            handlers[:] = [each for each in handlers if each[0] != func]

    return unregister


def _exit(real: Callable[[int], Any]) -> Callable[[int], Any]:
    def end(status: int) -> Any:
        rank = _own(os.getpid())
        if rank is None:
            return real(status)
        _HANDLERS.of(rank.process).clear()  # this end asks nobody
        raise ProcessEnded(f"os._exit({status})", status)

    return end


def _abort(real: Callable[[], Any]) -> Callable[[], Any]:
    def abort() -> Any:
        rank = _own(os.getpid())
        if rank is None:
            return real()
        raise _ended_by(rank, signal.SIGABRT)

    return abort


def _ended_by(rank: Rank, number: int) -> ProcessEnded:
    _HANDLERS.of(rank.process).clear()
    return ProcessEnded(f"ended by {signal.Signals(number).name}", -number)


def _sending(real: Callable[..., Any], *, to_itself: bool) -> Callable[..., Any]:
    """Returns `os.kill`, or `signal.raise_signal`."""

    def send(*args: Any) -> None:
        pid, number = (os.getpid(), *args) if to_itself else args
        rank = _own(pid)
        if rank is None:
            real(*args)
        elif number:
            _deliver(rank, int(number))

    return send


def _deliver(rank: Rank, number: int) -> None:
    handler = _handler(rank, number)
    if number == signal.SIGKILL:
        raise _ended_by(rank, number)
    if number in _STOPS and not callable(handler):
        raise not_simulated(signal.Signals(number).name, "a rank cannot be stopped and go on")
    if handler == signal.SIG_IGN or (handler == signal.SIG_DFL and number in _PASSED_BY):
        return
    if handler == signal.SIG_DFL:
        raise _ended_by(rank, number)
    handler(number, sys._getframe(2))


def _handling(real: Callable[..., Any]) -> Callable[..., Any]:
    def handle(signalnum: int, handler: Any) -> Any:
        rank = _own(os.getpid())
        if rank is None:
            return real(signalnum, handler)
        if not callable(handler) and handler not in (signal.SIG_DFL, signal.SIG_IGN):
            raise TypeError(
                "signal handler must be signal.SIG_IGN, signal.SIG_DFL, or a callable object"
            )
        if signalnum in (signal.SIGKILL, signal.SIGSTOP):
            raise OSError(22, "Invalid argument")
        before = _handler(rank, signalnum)
        _SIGNALS.of(rank.process)[int(signalnum)] = handler
        return before

    return handle


def _handler(rank: Rank, number: int) -> Any:
    default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    return _SIGNALS.of(rank.process).get(int(number), default)


def _getting(real: Callable[[int], Any]) -> Callable[[int], Any]:
    def get(signalnum: int) -> Any:
        rank = _own(os.getpid())
        return real(signalnum) if rank is None else _handler(rank, signalnum)

    return get


def patches() -> Iterator[Patch]:
    """Yields what is replaced of `atexit`, `os` and `signal`."""
    sending = partial(_sending, to_itself=False)
    for owner, name, of in (
        (atexit, "register", _register),
        (atexit, "unregister", _unregister),
        (os, "_exit", _exit),
        (os, "abort", _abort),
        (os, "kill", sending),
        (signal, "raise_signal", partial(_sending, to_itself=True)),
        (signal, "signal", _handling),
        (signal, "getsignal", _getting),
    ):
        make: Any = of
        yield Patch(owner, name, make(getattr(owner, name)))
