"""The flight recorder: each rank's last calls, where the rank waits, what its streams hold."""

from collections.abc import Iterable
from typing import Any, Final

from kernbench.process.process import Process
from kernbench.process.recent_calls import as_json, frozen
from kernbench.sim_engine.command import Command, Stream

SCHEMA_VERSION: Final = 1


def record(processes: Iterable[Process], now: int) -> dict[str, Any]:
    """Returns the last calls of ranks, as plain values for JSON; `RuntimeContext` has the method.

    Args:
        processes: The ranks.
        now: Simulated time in picoseconds.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "time_ps": now,
        "ranks": [_rank(process, now) for process in processes],
    }


def _rank(process: Process, now: int) -> dict[str, Any]:
    where = process.stopped or _where(process)
    return {
        "rank": process.rank,
        "time_ps": process.host.clock,
        "alive": process.alive,
        **where,
        "calls": [as_json(call, now) for call in process.recent],
    }


def _where(process: Process) -> dict[str, Any]:
    """Returns what a host waits for, and the first open command of each busy stream."""
    task = process.task
    heads = {stream.name: _head(stream) for stream in process.streams()}
    return {
        "waits_for": str(task.waiting_for) if task is not None and task.parked else None,
        "streams": {name: head for name, head in heads.items() if head is not None},
    }


def _head(stream: Stream) -> dict[str, Any] | None:
    """Returns the first command of a stream that is not complete."""
    tail = stream.tail
    if tail is None or tail.time is not None or not isinstance(tail.label, Command):
        return None
    command = tail.label
    while True:
        before = [event.label for event in command.after if event.time is None]
        own = [c for c in before if isinstance(c, Command) and c.stream is stream]
        if not own:
            break
        command = own[0]
    return {
        "command": command.name,
        "number": command.number,
        "site": None if command.site is None else str(command.site),
        "state": "started" if command.begun else "queued",
    }


def stop(process: Process) -> None:
    """Keeps the place of a rank that is about to be aborted, unless a place is kept already."""
    if process.alive:
        process.stopped = process.stopped or _where(process)


def freeze(process: Process, now: int) -> None:
    """Keeps the record of a rank that has ended, and drops its commands."""
    stop(process)
    calls = [frozen(call, now) for call in process.recent]
    process.recent.clear()
    process.recent.extend(calls)
    process.joined.clear()
    process.latest = None
