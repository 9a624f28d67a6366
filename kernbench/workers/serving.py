"""The worker's side: reads requests, calls handlers, writes responses."""

import contextlib
import faulthandler
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from kernbench.workers.failing import Message, ProtocolError
from kernbench.workers.lines import LineBuffer, decode, encode

Handler = Callable[[Message], Mapping[str, Any]]
"""Answers a request with plain values; what it raises is an answer, too."""

_CHUNK: Final = 1 << 16

_ORPHAN_S = 5.0
"""Seconds that the process may go on after the parent has gone."""


def serve(requests: int, responses: int, module: str) -> None:
    """Serves requests until `shutdown`, or until nobody is left to ask.

    Args:
        requests: Private descriptor of the requests.
        responses: Private descriptor of the responses.
        module: Name of the module with `HANDLERS`, the handlers by `op`; and, if it has them,
            `stacks()`, which returns what its tasks do, for the report of a request that hangs,
            and `prepare()`, which is called once before the first request.
    """
    here = os.getpid()
    _keep_from_children([requests, responses])
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    incoming = _Incoming(requests)
    loaded = import_module(module)
    handlers: Mapping[str, Handler] = loaded.HANDLERS
    if hasattr(loaded, "stacks"):
        _dump_also(loaded.stacks)
    with contextlib.suppress(BrokenPipeError):  # nobody is left to hear it
        write(responses, encode({"hello": True, "pid": here}))
        if hasattr(loaded, "prepare"):
            loaded.prepare()
        while (line := incoming.next()) is not None:
            answer, more = respond(line, handlers)
            if os.getpid() != here:
                os._exit(0)  # a child that the handler forked came back: the parent answers
            _mend_streams()
            write(responses, answer)
            if not more:
                return


class _Incoming:
    """The requests, which a thread reads so that the end of the parent is seen at any time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="kernbench requests", daemon=True).start()

    def next(self) -> bytes | None:
        """Returns the next request, for which it waits; None if there will be none."""
        return self._lines.get()

    def _read(self) -> None:
        # Python sees a signal at once only if the system gives it to the main thread.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        buffer = LineBuffer()
        with contextlib.suppress(OSError):  # a handler has closed the descriptor
            while data := os.read(self._descriptor, _CHUNK):
                for line in buffer.feed(data):
                    self._lines.put(line)
        self._lines.put(None)
        # The parent has gone. What runs, or a thread that a request has left, may never end.
        time.sleep(_ORPHAN_S)
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)


def respond(line: bytes, handlers: Mapping[str, Handler]) -> tuple[bytes, bool]:
    """Returns the response to a request, and whether to serve on.

    Args:
        line: The request.
        handlers: Handlers by `op`.
    """
    answer: Message = {"id": None, "ok": False}
    try:
        request = decode(line)
        answer["id"] = request.get("id")
        op = str(request.get("op"))
        if op in _OF_EVERY_WORKER:
            return encode({**answer, "ok": True}), op != "shutdown"
        if op in handlers:
            return encode({"ok": True, **handlers[op](request), "id": answer["id"]}), True
        known = ", ".join([*_OF_EVERY_WORKER, *sorted(handlers)])
        answer["error"] = f"expected an op of {known}, got {op}"
    except ProtocolError as error:
        answer["error"] = str(error)
    except BaseException:
        answer["error"] = traceback.format_exc()
    return encode(answer), True


_OF_EVERY_WORKER: Final = ("ping", "shutdown")


def write(descriptor: int, data: bytes) -> None:
    """Writes bytes to a raw descriptor; waits until all are written."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _mend_streams() -> None:
    """Writes out what a handler has printed; opens streams again that it has closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        with contextlib.suppress(Exception):  # a handler may have put anything there
            if stream.closed:
                again = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
                setattr(sys, name, again)
            stream.flush()


def _keep_from_children(descriptors: list[int]) -> None:
    """Closes descriptors in forked children, which must neither answer nor hold them."""

    def close() -> None:
        while descriptors:  # a child of a child has none left
            os.close(descriptors.pop())

    os.register_at_fork(after_in_child=close)


def _dump_also(stacks: Callable[[], str]) -> None:
    """Lets SIGUSR1 write what tasks do to standard error, after the stacks of all threads."""

    def dump(number: int, frame: object) -> None:
        try:
            told = stacks()
        except Exception:
            told = traceback.format_exc()
        write(2, told.encode(errors="replace"))

    faulthandler.unregister(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, dump)
    # In C, so that it also works while no Python code can run; then it calls the handler above.
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True, chain=True)
