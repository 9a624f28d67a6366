"""An exception as a text for the user, and as plain values."""

import traceback
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from kernbench.config.shipped import shipped
from kernbench.errors import (
    KernbenchError,
    UsageError,
    explained_by,
    is_of_python,
    is_ours,
    is_passed_over,
)
from kernbench.ranks.ranges import folded
from kernbench.ranks.spawn_errors import SpawnException, error_as_json, text_of
from kernbench.run_spec import RunSpec, schedule_text


def usage_of(error: BaseException) -> UsageError | None:
    """Returns the error about a wrong file or flag behind an error, also if ranks raised it."""
    causes = error.errors.values() if isinstance(error, SpawnException) else [error]
    return next((cause for cause in causes if isinstance(cause, UsageError)), None)


def as_json(error: BaseException) -> dict[str, Any]:
    """Returns the content of a report as plain values; for a spawn, every rank's error."""
    return error_as_json(error)


def failure_of(error: BaseException, spec: RunSpec, *more: str) -> dict[str, Any]:
    """Returns the failure of a run as plain values, with what repeats the run.

    Args:
        error: What the run failed with.
        more: Further options of the command, such as `--explore`, `5`.
    """
    return {**as_json(error), "replay": replay(repeated(spec, error), *more)}


def replay(spec: RunSpec, *more: str) -> dict[str, Any]:
    """Returns what repeats a run, as plain values; see `failure_of`."""
    schedule = schedule_text(spec.schedule)
    return {"command": spec.command(*more), "seed": spec.seed, "schedule": schedule}


def repeated(spec: RunSpec, error: BaseException) -> RunSpec:
    """Returns the specification that repeats a run that failed, with the schedule that it took."""
    if isinstance(error, SpawnException):
        return replace(spec, schedule=error.spec.schedule)
    return spec


def report(error: BaseException) -> str:
    """Returns the report of a failure, with a last line that says where its codes are explained.

    Args:
        error: Any exception.
    """
    usage = usage_of(error)
    if usage is not None:
        return with_pointer(f"kernbench: {usage}", usage)
    if isinstance(error, SystemExit):
        coded = error.code is None or isinstance(error.code, int)
        return ended_with(error.code) if coded else str(error.code)
    if is_internal(error):
        return "".join(["internal error of kernbench\n", *traceback.format_exception(error)])
    return with_pointer(describe(error), error)


def ended_with(code: object) -> str:
    """Returns the sentence about a program that has asked for an exit code of its own."""
    return f"the program has ended with exit code {code}"


def with_pointer(text: str, error: BaseException) -> str:
    """Returns a report; if the error has codes, a last line says where they are explained."""
    codes = error.codes if isinstance(error, KernbenchError | SpawnException) else ()
    return f"{text}\n{explained_by(codes)}" if codes else text


def describe(error: BaseException) -> str:
    """Returns a report of an exception: the user's frames, and the text; of a spawn, each rank's.

    Args:
        error: Any exception that is not about a wrong file or flag, see `usage_of`.
    """
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
        elif text == text_of(cause):
            said = [describe(cause)]
        else:
            said = [*user_frames(cause), f"{name_of(type(cause))}: {text}"]
        when = error.failed_at(cause, ranks).removesuffix(", ")
        lines += [f"{folded(ranks)} failed {when}".rstrip() + ":", *said]
    return "\n".join([*lines, *error.aborted_lines()])


def name_of(kind: type[BaseException]) -> str:
    """Returns the name of a class as a traceback shows it."""
    plain = kind.__module__ in {"builtins", "__main__"}
    return kind.__qualname__ if plain else f"{kind.__module__}.{kind.__qualname__}"


def user_frames(error: BaseException) -> list[str]:
    """Returns the traceback as text, without frames that are not the user's.

    Shipped benches are not the user's code either. But if one fails by itself with an error that is
    not this package's, its frames stay, since they are all that there is to look at.
    """
    frames = [frame for frame in _walk(error.__traceback__) if not _hidden(frame)]
    own = [frame for frame in frames if not is_passed_over(frame.tb_frame)]
    frames = own or frames[:1]
    if isinstance(error, SystemExit):
        # How argparse comes to its end is not what a user looks for.
        while len(frames) > 1 and is_of_python(frames[-1].tb_frame):
            frames.pop()
    benches = shipped("benches")
    written = [frame for frame in frames if not is_of_python(frame.tb_frame)]
    broken = bool(written) and benches in _file(written[-1]).parents
    if isinstance(error, KernbenchError) or not broken:
        frames = [frame for frame in frames if benches not in _file(frame).parents]
    summary = traceback.StackSummary.extract(
        ((frame.tb_frame, frame.tb_lineno) for frame in frames), lookup_lines=True
    )
    lines = "".join(summary.format()).splitlines()
    return ["Traceback of your code (most recent call last):", *lines] if lines else []


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


def is_internal(error: BaseException) -> bool:
    """Returns whether an assertion of this package failed: a bug of the package, not the user."""
    if isinstance(error, SpawnException):
        return any(is_internal(cause) for cause in error.errors.values())
    if isinstance(error, KernbenchError) or not isinstance(error, AssertionError):
        return False
    entries = _walk(error.__traceback__)
    return bool(entries) and entries[-1].tb_frame.f_globals.get("__name__", "").startswith(
        "kernbench."
    )
