"""Threads, open files and child processes that were not there before."""

import gc
import os
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any, Final

from kernbench.errors import CallSite, is_ours, site_fact

_GRACE_S: Final = 0.5
"""Seconds that threads and child processes have which are about to end."""

_DESCRIPTORS: Final = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"

_SERVICES: Final = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Processes that Python starts once, on the first use of something, and keeps."""

_WATCHDOG: Final = "kernbench watchdog"


class Remnants:
    """The threads, descriptors and child processes of this process, and what comes to them."""

    def __init__(self) -> None:
        self._threads = _threads()
        self._descriptors = _descriptors()
        self._children = _children()

    def left(self) -> list[str]:
        """Returns a line for each of them that is new; waits a moment for those that end."""
        if not self._new():
            return []
        gc.collect()  # closes what only refers to itself
        deadline = time.monotonic() + _GRACE_S
        while (lines := self._new()) and time.monotonic() < deadline:
            if not self._ends_soon():
                break
            time.sleep(0.005)
        return lines

    def _ends_soon(self) -> bool:
        """Returns whether waiting may help: descriptors of nobody close no more."""
        return bool(_threads() - self._threads or _children() - self._children)

    def _new(self) -> list[str]:
        lines = [_told_thread(number) for number in sorted(_threads() - self._threads)]
        children = _children() - self._children
        lines += [line for number in sorted(children) if (line := _told_child(number))]
        lines += [
            line
            for number in sorted(_descriptors() - self._descriptors)
            if (line := _told_descriptor(number))
        ]
        return [line for line in lines if line]


# Threads


def _threads() -> set[int]:
    return set(sys._current_frames())


def _told_thread(number: int) -> str:
    known = {thread.ident: thread for thread in threading.enumerate()}
    thread = known.get(number)
    if thread is not None and thread.name == _WATCHDOG:
        return ""
    frame = sys._current_frames().get(number)
    if frame is None:
        return ""  # it has ended meanwhile
    where = site_fact(_users_site(frame), "now at")
    if thread is None:
        return f"thread without a name, {where}"
    target: Any = getattr(thread, "_target", None) or type(thread).run
    kind = "daemon thread" if thread.daemon else "thread"
    return f"{kind} {thread.name}, which runs {_function(target)}, {where}"


def _function(target: Any) -> str:
    name = getattr(target, "__qualname__", type(target).__name__)
    code = getattr(target, "__code__", None)
    place = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
    return f"{getattr(target, '__module__', '')}.{name}".strip(".") + place


def _users_site(frame: FrameType) -> CallSite:
    """Returns the place of the innermost frame that is neither ours nor Python's own."""
    inner: FrameType | None = frame
    while inner is not None:
        root = str(inner.f_globals.get("__name__", "")).partition(".")[0]
        if not is_ours(inner) and root not in sys.stdlib_module_names:
            return CallSite(inner.f_code, inner.f_lasti)
        inner = inner.f_back
    return CallSite(frame.f_code, frame.f_lasti)


# Descriptors


def _descriptors() -> set[int]:
    try:
        listed = set(map(int, os.listdir(_DESCRIPTORS)))
    except OSError:
        return set()
    # Without that of the listing, which is closed: it was the lowest one that was free.
    free = os.dup(min(listed))
    os.close(free)
    return listed - {free}


def _told_descriptor(number: int) -> str:
    try:
        target = os.readlink(f"{_DESCRIPTORS}/{number}")
    except OSError:
        return ""  # it has been closed meanwhile
    if number in _of_services():
        return ""
    return f"file descriptor {number}, open on {target}"


def _of_services() -> set[int]:
    found = set()
    for name in _SERVICES:
        module = sys.modules.get(name)
        for service in ("_resource_tracker", "_forkserver"):
            held = getattr(module, service, None)
            for attribute in ("_fd", "_forkserver_alive_fd"):
                number = getattr(held, attribute, None)
                if number is not None:
                    found.add(number)
    return found


# Child processes


def _children() -> set[int]:
    if not hasattr(os, "waitid"):
        return set()
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()  # nearly always, and in a microsecond
    return set(_listed())


def _listed() -> Iterable[int]:
    for path in Path("/proc/self/task").glob("*/children"):
        try:
            yield from map(int, path.read_text(encoding="ascii").split())
        except OSError:
            continue  # the thread has ended


def _told_child(number: int) -> str:
    try:
        words = Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    command = " ".join(word.decode(errors="replace") for word in words).strip()
    if any(service in command for service in _SERVICES):
        return ""
    if not command:
        return f"child process {number}, which has ended and was not waited for"
    return f"child process {number}: {command[:200]}"
