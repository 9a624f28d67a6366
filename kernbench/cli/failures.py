"""Turns an exception into a text for the user, and into an exit code."""

import os
import sys
import tempfile
import threading
import traceback
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from kernbench.config.shipped import shipped
from kernbench.errors import (
    KernbenchError,
    UsageError,
    call_site_of,
    explained_by,
    is_ours,
    site_fact,
)
from kernbench.ranks.meeting import folded
from kernbench.ranks.spawn_errors import SpawnInterrupted, error_as_json
from kernbench.runtime_api.multiprocessing import SpawnException


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
        error: The exception.
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
    usage = _usage(error)
    if usage is not None:
        print(_with_pointer(f"kernbench: {usage}", usage), file=sys.stderr)
        return Exit.USAGE
    if _is_internal(error):
        return _internal(error)
    text = _describe(error)
    if replay:
        text += f"\nreplay: {replay}"
    print(_with_pointer(text, error), file=sys.stderr)
    return Exit.FAILED


class Terminated(KeyboardInterrupt):
    """The process was asked to end, by SIGTERM."""


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
    """Returns whether whoever reads standard output, such as `head`, has gone."""
    causes = error.errors.values() if isinstance(error, SpawnException) else [error]
    return any(isinstance(cause, BrokenPipeError) for cause in causes)


def drop_output() -> None:
    """Sends what is still to be printed nowhere, since nobody reads standard output any more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _with_pointer(text: str, error: BaseException) -> str:
    """Returns a report; if the error has codes, a last line says where they are explained."""
    codes = error.codes if isinstance(error, KernbenchError | SpawnException) else ()
    return f"{text}\n{explained_by(codes)}" if codes else text


def end_process(error: KernbenchError) -> None:
    """Tells the user about an error and ends the process, while another thread cannot be stopped.

    Printed text is flushed if standard output accepts it; nothing else is written.
    """
    flush = threading.Thread(target=sys.stdout.flush, daemon=True)
    flush.start()
    flush.join(_FLUSH_S)
    text = _with_pointer(f"kernbench: {error}", error)
    os.write(2, f"{text}\n".encode(errors="replace"))
    os._exit(Exit.FAILED)


_FLUSH_S: Final = 1.0
"""Seconds to wait for standard output, on which the stopped thread may be blocked."""


def _usage(error: BaseException) -> UsageError | None:
    """Returns the error about a wrong file or flag behind an error, also if ranks raised it."""
    causes = error.errors.values() if isinstance(error, SpawnException) else [error]
    return next((cause for cause in causes if isinstance(cause, UsageError)), None)


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or Exit.OK
    print(error.code, file=sys.stderr)
    return Exit.FAILED


def as_json(error: BaseException) -> dict[str, Any]:
    """Returns the content of `failed`'s text as plain values; for a spawn, every rank's error."""
    return error_as_json(error)


def _describe(error: BaseException) -> str:
    if isinstance(error, SpawnException):
        return _describe_spawn(error)
    if isinstance(error, KernbenchError):
        last = f"{type(error).__name__}: {error}"
    else:
        last = "".join(traceback.format_exception_only(error)).rstrip()
    return "\n".join([*user_frames(error), last])


def _describe_spawn(error: SpawnException) -> str:
    lines = []
    for ranks, cause, text in error.alike():
        if isinstance(cause, KernbenchError):
            said = [*user_frames(cause), f"{type(cause).__name__}: {text}"]
        else:
            said = [_describe(cause)]
        when = error.failed_at(cause, ranks).removesuffix(", ")
        lines += [f"{folded(ranks)} failed {when}".rstrip() + ":", *said]
    return "\n".join([*lines, *error.aborted_lines()])


def user_frames(error: BaseException) -> list[str]:
    """Returns the traceback as text, without frames that are not the user's.

    Shipped benches are not the user's code either. But if a shipped bench fails with an error that
    is not this package's, its frames stay, since they are all that there is to look at.
    """
    frames = [frame for frame in _walk(error.__traceback__) if not _hidden(frame)]
    if isinstance(error, SystemExit):
        # How argparse comes to its end is not what a user looks for.
        while len(frames) > 1 and _of_python(frames[-1]):
            frames.pop()
    if isinstance(error, KernbenchError):
        benches = shipped("benches")
        frames = [frame for frame in frames if benches not in _file(frame).parents]
    summary = traceback.StackSummary.extract(
        ((frame.tb_frame, frame.tb_lineno) for frame in frames), lookup_lines=True
    )
    lines = "".join(summary.format()).splitlines()
    return ["Traceback of your code (most recent call last):", *lines] if lines else []


def _of_python(entry: TracebackType) -> bool:
    root = str(entry.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
    return root in sys.stdlib_module_names and root != "__main__"


def _walk(entry: TracebackType | None) -> list[TracebackType]:
    entries = []
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    return entries


def _hidden(entry: TracebackType) -> bool:
    name: str = entry.tb_frame.f_globals.get("__name__", "")
    return is_ours(entry.tb_frame) or name.partition(".")[0] in {"importlib", "_frozen_importlib"}


def _file(entry: TracebackType) -> Path:
    return Path(entry.tb_frame.f_code.co_filename)


def _is_internal(error: BaseException) -> bool:
    """Returns whether an assertion of this package failed: a bug of the package, not the user."""
    if isinstance(error, SpawnException):
        return any(_is_internal(cause) for cause in error.errors.values())
    if isinstance(error, KernbenchError) or not isinstance(error, AssertionError):
        return False
    entries = _walk(error.__traceback__)
    return bool(entries) and entries[-1].tb_frame.f_globals.get("__name__", "").startswith(
        "kernbench."
    )


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
