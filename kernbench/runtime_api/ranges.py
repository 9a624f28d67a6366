"""Ranges of a program, by name: which commands belong to them, and when they began and ended.

A command belongs to the ranges that its rank is in when the host issues it. A command of the
backward pass belongs to the ranges in which its forward operation was called, so that a layer's
range holds both of its directions.
"""

from typing import Any, Final, NamedTuple

from kernbench.errors import CallSite, KernbenchError, call_site, site_fact
from kernbench.process.process import Process, RankLocal
from kernbench.report.steps import STEP
from kernbench.sim_engine.op_log import Record
from kernbench.tensors.nodes import grad_state_of


class RangeError(KernbenchError, RuntimeError):
    """A range was ended, but none was open."""


class _Range(NamedTuple):
    """A range that has not ended.

    Attributes:
        owner: The object that ends the range; None: the next call that ends one.
        name: Name of the range.
        detail: Further text for traces.
        start: When the range began, by the host's clock in picoseconds.
        site: Where the user began the range.
        outside: Names of the ranges around this one.
    """

    owner: object
    name: str
    detail: str | None
    start: int
    site: CallSite | None
    outside: tuple[str, ...]


_OPEN: Final[RankLocal[list[_Range]]] = RankLocal("open ranges", lambda _: [], outlives=True)


_STEPS: Final[RankLocal[int]] = RankLocal("steps", lambda _: 0, outlives=True)


def steps_of(process: Process) -> int:
    """Returns how many steps of optimizers a process has ended."""
    steps: int = process.locals.get(_STEPS, 0)
    return steps


def enter(process: Process, name: str, owner: object = None, detail: str | None = None) -> int:
    """Begins a range and returns its depth, from 0; takes no simulated time.

    Args:
        process: The rank, or main, whose commands belong to the range.
        name: Name of the range in traces and breakdowns.
        owner: The object that ends the range with `leave`; None: the next `leave` without an owner.
        detail: Further text for traces.
    """
    site = call_site()
    if process.host.tape is not None:
        process.host.tape.did(_enter_again, name, detail, site, shown=(name, detail))
    return _enter(process, name, owner, detail, site)


def _enter(
    process: Process, name: str, owner: object, detail: str | None, site: CallSite | None
) -> int:
    ranges = _OPEN.of(process)
    outside = process.ranges
    ranges.append(_Range(owner, name, detail, process.host.clock, site, outside))
    _move(process, (*outside, name))
    return len(ranges) - 1


def _enter_again(follower: Any, name: str, detail: str | None, site: CallSite | None) -> None:
    """Begins a range in a rank that repeats what another one does."""
    _enter(follower.process, name, None, detail, site)


def _leave_again(follower: Any, count: int) -> None:
    """Ends the innermost ranges of a rank that repeats what another one does."""
    for _ in range(count):
        leave(follower.process)


def leave(process: Process, owner: object = None) -> int:
    """Ends the innermost range of an owner and all ranges inside it; returns its depth.

    Args:
        process: The rank, or main, that began the range.
        owner: The object that began the range; None for a range without an owner.

    Raises:
        RangeError: If the owner has no open range.
    """
    ranges = _OPEN.of(process)
    depth = len(ranges) - 1
    while depth >= 0 and ranges[depth].owner is not owner:
        depth -= 1
    if depth < 0:
        raise RangeError(
            f"{process.name} ended a range, and none is open",
            [site_fact(call_site())],
            hint="call torch.cuda.nvtx.range_push before range_pop, as often",
        )
    if process.host.tape is not None:
        process.host.tape.did(_leave_again, len(ranges) - depth, shown=len(ranges) - depth)
    log = process.engine.op_log
    while len(ranges) > depth:
        ended = ranges.pop()
        if ended.name.startswith(STEP):
            _STEPS.set(process, _STEPS.of(process) + 1)
        if log.full:
            args = {} if ended.detail is None else {"args": ended.detail}
            start, end = ended.start, process.host.clock
            log.add(
                Record(
                    ended.name, "range", process.rank, "host", start, start, end, ended.site, args,
                    ranges=ended.outside,
                )
            )  # fmt: skip
        _move(process, ended.outside)
    return depth


def open_ranges(process: Process) -> list[tuple[str, CallSite | None]]:
    """Returns the ranges that a process has not ended, the outermost first: names and places."""
    return [(each.name, each.site) for each in process.locals.get(_OPEN, ())]


def _move(process: Process, ranges: tuple[str, ...]) -> None:
    process.ranges = grad_state_of(process).ranges = ranges
