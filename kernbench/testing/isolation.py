"""What each case begins with, whatever ran before it; and what is put back after it."""

import decimal
import gc
import logging
import os
import random
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final

import numpy as np

from kernbench.testing.cases import CaseRequest
from kernbench.testing.configs import Kept, begin_anew
from kernbench.testing.environments import (
    CURRENT_TEST,
    Raw,
    change_environment,
    changed_variables,
    raw,
    raw_environment,
)

# numpy's own list of names in its types lacks these.
_drawing: Final[Callable[[], Any]] = vars(np.random)["get_bit_generator"]
_draw_from: Final[Callable[[Any], None]] = vars(np.random)["set_bit_generator"]


class Isolation:
    """A block in which a case runs: seeded, with its environment; all is put back after it.

    Ranks have settings, environments and random streams of their own, which end with them. What is
    kept here belongs to the process.

    Args:
        baseline: The environment before the variables of the request; None for the present one.

    Attributes:
        changes: After the block, a line for each thing that a case must leave as it was.
    """

    def __init__(self, request: CaseRequest, baseline: Mapping[str, str] | None = None) -> None:
        self._request = request
        self._baseline = baseline
        self.changes: list[str] = []

    def __enter__(self) -> "Isolation":
        request = self._request
        self._environ = raw_environment()
        self._random = random.getstate()
        self._bits = _drawing()
        self._numpy = np.random.get_state()
        self._configs = Kept()
        self._rest = [(put, take()) for take, put in _REST]
        begun = dict(self._environ) if self._baseline is None else raw(self._baseline)
        for name, value in {**request.env, CURRENT_TEST: f"{request.nodeid} (call)"}.items():
            if value is None:
                begun.pop(os.fsencode(name), None)
            else:
                begun[os.fsencode(name)] = os.fsencode(value)
        change_environment(self._environ, begun)
        self._begun = begun
        begin_anew()
        random.seed(request.seed)
        np.random.seed(request.seed)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        environ = raw_environment()
        self.changes = self._changes(environ)
        for put, value in self._rest:
            put(value)
        self._configs.restore()
        if _drawing() is not self._bits:
            _draw_from(self._bits)
        np.random.set_state(self._numpy)
        random.setstate(self._random)
        change_environment(environ, self._environ)

    def _changes(self, environ: Raw) -> list[str]:
        lines = []
        for name, value in sorted(changed_variables(self._begun, environ).items()):
            before = self._begun.get(os.fsencode(name))
            was = None if before is None else os.fsdecode(before)
            lines.append(f"environment variable {name}: was {was!r}, is {value!r}")
        bits = _drawing()
        if bits is not self._bits:
            was, got = type(self._bits).__name__, type(bits).__name__
            lines.append(f"policy of random numbers: numpy drew from {was}, draws from {got}")
        return lines


# The rest: restored without a word, since a case cannot be expected to do so


def _attribute(home: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    def put(value: Any) -> None:
        if getattr(home, name) is not value:
            setattr(home, name, value)

    return (lambda: getattr(home, name)), put


def _list(home: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Returns the same for a list, of which the object and the content are kept."""

    def take() -> tuple[list[Any], list[Any]]:
        items = getattr(home, name)
        return items, list(items)

    def put(value: tuple[list[Any], list[Any]]) -> None:
        items, content = value
        if items != content:
            items[:] = content
        if getattr(home, name) is not items:
            setattr(home, name, items)

    return take, put


def _put_folder(folder: str | None) -> None:
    if folder is not None and current_folder() != folder:
        os.chdir(folder)


def current_folder() -> str | None:
    """Returns the current folder; None if it has gone."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


def _handlers() -> list[Any]:
    return [signal.getsignal(number) for number in _SIGNALS]


def _put_handlers(handlers: list[Any]) -> None:
    for number, handler in zip(_SIGNALS, handlers, strict=True):
        # None: C code has set it, and Python cannot set it again.
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def _loggers() -> tuple[int, int, list[logging.Handler], list[Any]]:
    root = logging.root
    return root.level, root.manager.disable, list(root.handlers), list(root.filters)


def _put_loggers(value: Any) -> None:
    if value != _loggers():
        root = logging.root
        root.setLevel(value[0])
        root.manager.disable = value[1]
        root.handlers[:], root.filters[:] = value[2], value[3]


def _collector() -> tuple[bool, tuple[int, int, int]]:
    return gc.isenabled(), gc.get_threshold()


def _put_collector(value: tuple[bool, tuple[int, int, int]]) -> None:
    (gc.enable if value[0] else gc.disable)()
    gc.set_threshold(*value[1])


def _put_errors(kept: Any) -> None:
    np.seterr(**kept)


def _put_recursion(limit: int) -> None:
    if sys.getrecursionlimit() != limit:
        sys.setrecursionlimit(limit)


def _put_torch(torch: Any) -> None:
    """Lets `import torch` mean again what it meant, unless it meant nothing."""
    if torch is not None and sys.modules.get("torch") is not torch:
        sys.modules["torch"] = torch


_REST: Final[list[tuple[Callable[[], Any], Callable[[Any], None]]]] = [
    (current_folder, _put_folder),
    *(_list(sys, name) for name in ("path", "argv", "meta_path", "path_hooks")),
    *(_attribute(sys, name) for name in ("stdin", "stdout", "stderr", "excepthook", "displayhook")),
    *(_attribute(threading, name) for name in ("excepthook",)),
    (_handlers, _put_handlers),
    (_loggers, _put_loggers),
    (_collector, _put_collector),
    (sys.getrecursionlimit, _put_recursion),
    (lambda: sys.modules.get("torch"), _put_torch),
    (socket.getdefaulttimeout, socket.setdefaulttimeout),
    (lambda: decimal.getcontext().copy(), decimal.setcontext),
    (np.geterr, _put_errors),
    (np.get_printoptions, lambda kept: np.set_printoptions(**kept)),
]
"""How to take and to put back what a process has one of."""
