"""Calls that wait in C for files, sockets and processes: other threads of the rank run meanwhile.

What a call waits for may come from another thread, such as the result of an event loop, or the
worker of a pool that another thread feeds. So a thread that is not its rank's only one looks again
and again whether it is there, as it does for a lock. The only thread of a rank waits in C.
"""

import functools
import os
import select
import selectors
import socket
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any, Final

from kernbench.isolation.replaced import Patch, WhenImported
from kernbench.isolation.turns import turns_here

_SELECTORS: Final = ("SelectSelector", "PollSelector", "EpollSelector", "DevpollSelector")

_READS: Final = (
    *("_accept", "recv", "recv_into", "recvfrom", "recvfrom_into", "recvmsg", "recvmsg_into"),
)

_WRITES: Final = ("send", "sendto", "sendmsg")

_poll: Final = select.poll
_read: Final = os.read
_write: Final = os.write
_waitpid: Final = os.waitpid


def _is_ready(file: int, event: int) -> bool:
    if file < 0:  # it is closed, as the call says
        return True
    poll = _poll()
    poll.register(file, event)
    return bool(poll.poll(0))


def _await(file: int, event: int, timeout: float | None = None) -> bool:
    """Returns whether a file is ready, for which other threads run.

    Args:
        event: For what, as `select.poll` takes it.
        timeout: Seconds of this computer; None for no limit.
    """
    turns = turns_here()
    return turns is None or turns.until(partial(_is_ready, file, event), timeout)


def _reading(file: int, size: int, /) -> bytes:
    _await(file, select.POLLIN)
    return _read(file, size)


def _writing(file: int, data: Any, /) -> int:
    if turns_here() is None:
        return _write(file, data)
    _await(file, select.POLLOUT)
    return _write(file, memoryview(data).cast("B")[: select.PIPE_BUF])  # a pipe takes that much


def _waiting_for_process(process: int, options: int, /) -> tuple[int, int]:
    turns = turns_here()
    if turns is None or options & os.WNOHANG:
        return _waitpid(process, options)
    found = (0, 0)

    def has_ended() -> bool:
        nonlocal found
        found = _waitpid(process, options | os.WNOHANG)
        return found[0] != 0

    turns.until(has_ended)
    return found


def _selecting(real: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the method of a selector that waits, or `select.select`."""

    @functools.wraps(real)
    def wait(*args: Any, timeout: float | None = None) -> Any:
        turns = turns_here()
        *about, limit = args if len(args) == of_limit else (*args, timeout)
        if turns is None:
            return real(*about, limit)
        found: Any = None

        def is_there() -> bool:
            nonlocal found
            found = real(*about, 0)
            return any(found) if about[1:] else bool(found)

        if limit is not None and limit <= 0:
            turns.pass_on()
            is_there()
        else:
            turns.until(is_there, limit)
        return found

    of_limit = 4 if real is select.select else 2
    return wait


def _of_socket(real: Callable[..., Any], event: int) -> Callable[..., Any]:
    @functools.wraps(real)
    def call(own: Any, *args: Any, **options: Any) -> Any:
        timeout = own.gettimeout()
        if timeout != 0 and not _await(own.fileno(), event, timeout):
            raise TimeoutError("timed out")
        return real(own, *args, **options)

    return call


def _sending_all(real: Callable[..., None], send: Callable[..., int]) -> Callable[..., None]:
    @functools.wraps(real)
    def sendall(own: Any, data: Any, flags: int = 0) -> None:
        if turns_here() is None or own.gettimeout() == 0:
            real(own, data, flags)
            return
        left = memoryview(data).cast("B")
        while left:
            # The system takes what there is room for, and does not wait for more.
            left = left[send(own, left, flags | socket.MSG_DONTWAIT) :]

    return sendall


def _sending(real: Callable[..., int]) -> Callable[..., int]:
    """Returns `send` that tries again if another has taken the room."""
    waits = _of_socket(real, select.POLLOUT)

    def send(*args: Any) -> int:
        while True:
            try:
                return int(waits(*args))
            except BlockingIOError:
                continue

    return send


def _pieces(real: Callable[..., Any], move: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what a connection receives or sends with, piece by piece."""

    @functools.wraps(real)
    def call(connection: Any, data: Any) -> Any:
        return real(connection, data, move)

    return call


def _connections(module: ModuleType) -> Iterator[Patch]:
    kind: Any = module.Connection
    yield Patch(kind, "_recv", _pieces(kind._recv, _reading))
    yield Patch(kind, "_send", _pieces(kind._send, _writing))


def _semaphores(module: ModuleType) -> Iterator[Patch]:
    kind: Any = module.SemLock
    yield Patch(kind, "_make_methods", _making(kind._make_methods))
    yield Patch(kind, "__enter__", _entering(kind.__enter__))


def _making(real: Callable[[Any], None]) -> Callable[[Any], None]:
    def make_methods(semaphore: Any) -> None:
        real(semaphore)
        semaphore.acquire = partial(_acquire, semaphore.acquire)

    return make_methods


def _acquire(real: Callable[..., bool], block: bool = True, timeout: float | None = None) -> bool:
    turns = turns_here()
    if turns is None:
        return real(block, timeout)
    if not block:
        return real(False)
    return turns.until(partial(real, False), None if timeout is None else max(timeout, 0))


def _entering(real: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def enter(semaphore: Any) -> bool:
        return real(semaphore) if turns_here() is None else bool(semaphore.acquire())

    return enter


def patches() -> Iterator[Patch | WhenImported]:
    """Yields what is replaced of `select`, `socket`, `os` and `multiprocessing`."""
    yield Patch(os, "read", _reading)
    yield Patch(os, "waitpid", _waiting_for_process)
    yield Patch(select, "select", _selecting(select.select))
    for name in _SELECTORS:
        if kind := getattr(selectors, name, None):
            yield Patch(kind, "select", _selecting(kind.select))
    own: Any = socket.socket
    for name in _READS:
        yield Patch(own, name, _of_socket(getattr(own, name), select.POLLIN))
    for name in _WRITES:
        yield Patch(own, name, _of_socket(getattr(own, name), select.POLLOUT))
    yield Patch(own, "sendall", _sending_all(own.sendall, _sending(own.send)))
    for package in ("multiprocessing", "multiprocess"):
        yield WhenImported(f"{package}.connection", _connections)
        yield WhenImported(f"{package}.synchronize", _semaphores)
