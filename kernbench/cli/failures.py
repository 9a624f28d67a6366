"""Turns an exception into a text for the user, and into an exit code."""

import os
import signal
import sys
import tempfile
import threading
import traceback
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import Final

from kernbench.errors import KernbenchError, call_site_of, site_fact
from kernbench.ranks.spawn_errors import SpawnException, SpawnInterrupted
from kernbench.scripts.failures import describe, is_internal, usage_of, with_pointer


class Exit(IntEnum):
    """Exit codes of the process."""

    OK = 0
    FAILED = 1
    USAGE = 2
    INTERNAL = 3
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


def failed(error: BaseException, replay: str = "") -> int:
    """Tells the user about an exception and returns the exit code.

    Args:
        replay: The command that repeats a failure of the bench; empty if there is no such command.
    """
    if isinstance(error, SystemExit):
        return _exit_code(error)
    if isinstance(error, KeyboardInterrupt):
        print(_describe_interrupt(error, replay), file=sys.stderr)
        return Exit.TERMINATED if _is_terminated(error) else Exit.INTERRUPTED
    if _broken_pipe(error):
        drop_output()
        return Exit.BROKEN_PIPE
    usage = usage_of(error)
    if usage is not None:
        print(with_pointer(f"kernbench: {usage}", usage), file=sys.stderr)
        return Exit.USAGE
    if is_internal(error):
        return _internal(error)
    text = describe(error)
    if replay:
        text += f"\nreplay: {replay}"
    print(with_pointer(text, error), file=sys.stderr)
    return Exit.FAILED


class Terminated(KeyboardInterrupt):
    """The process was asked to end, by SIGTERM."""


_asked = False
"""Whether this process was asked to end, whatever has become of the exception since."""


def terminated() -> bool:
    """Returns whether this process was asked to end since `end_at_terminate`."""
    return _asked


def end_at_terminate() -> None:
    """Handles SIGTERM from now on: what is under way in this process ends as after Ctrl-C.

    Processes that the program forks end at once, as Python's own do.
    """
    global _asked  # noqa: PLW0603 - a signal belongs to the process
    _asked = False
    signal.signal(signal.SIGTERM, _on_terminate)
    os.register_at_fork(after_in_child=_forget)


def _on_terminate(number: int, frame: FrameType | None) -> None:
    global _asked  # noqa: PLW0603
    _asked = True
    raise Terminated


def _forget() -> None:
    if signal.getsignal(signal.SIGTERM) is _on_terminate:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _is_terminated(error: BaseException) -> bool:
    return isinstance(error, Terminated) or isinstance(error.__cause__, Terminated)


def _describe_interrupt(error: KeyboardInterrupt, replay: str) -> str:
    text = "terminated" if _is_terminated(error) else "interrupted"
    if isinstance(error, SpawnInterrupted):
        text += f" {error}"
    else:
        site = call_site_of(error)
        text += "" if site is None else f" {site_fact(site)}"
    return f"{text}\nreplay: {replay}" if replay else text


def _broken_pipe(error: BaseException) -> bool:
    """Returns whether the reader of standard output, such as `head`, has closed it."""
    causes = error.errors.values() if isinstance(error, SpawnException) else [error]
    return any(isinstance(cause, BrokenPipeError) for cause in causes)


def drop_output() -> None:
    """Sends what is still to be printed nowhere, since nobody reads standard output any more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def report_of(error: BaseException) -> str:
    """Returns the text that `failed` prints of an exception, without the commands at its end."""
    if isinstance(error, KeyboardInterrupt):
        return _describe_interrupt(error, "")
    usage = usage_of(error)
    return describe(error) if usage is None else str(usage)


def end_process(error: KernbenchError, interrupt: BaseException | None = None) -> None:
    """Tells the user about an error and ends the process, while another thread cannot be stopped.

    Printed text is flushed if standard output accepts it; nothing else is written.

    Args:
        interrupt: What came from outside; None if the error is the program's.
    """
    flush = threading.Thread(target=sys.stdout.flush, daemon=True)
    flush.start()
    flush.join(_FLUSH_S)
    text = with_pointer(f"kernbench: {error}", error)
    os.write(2, f"{text}\n".encode(errors="replace"))
    if interrupt is None:
        os._exit(Exit.FAILED)
    os._exit(Exit.TERMINATED if _is_terminated(interrupt) else Exit.INTERRUPTED)


_FLUSH_S: Final = 1.0
"""Seconds to wait for standard output, on which the stopped thread may be blocked."""


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or Exit.OK
    print(error.code, file=sys.stderr)
    return Exit.FAILED


def _internal(error: BaseException) -> int:
    with tempfile.NamedTemporaryFile(
        "w", prefix="kernbench-", suffix=".txt", delete=False, encoding="utf-8"
    ) as report:
        report.writelines(traceback.format_exception(error))
        if isinstance(error, SpawnException):
            for cause in error.errors.values():
                report.writelines(traceback.format_exception(cause))
    print(
        f"kernbench: internal error: {error}\n"
        f"  this is a bug in kernbench; the details are in {Path(report.name)}",
        file=sys.stderr,
    )
    return Exit.INTERNAL
