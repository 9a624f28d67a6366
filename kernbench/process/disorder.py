"""Accesses to memory that nothing orders, in runs that go on after one (`PytorchRun.races`)."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from kernbench.errors import CallSite, KernbenchError, call_site, site_fact
from kernbench.process.process import Process, RankLocal
from kernbench.units import format_time


@dataclass(slots=True)
class Disorder:
    """An access of one line of the program that nothing orders behind an earlier one.

    Attributes:
        code: Code of the mistake, such as `M10`.
        what: What was done too early, without the rank.
        site: Where.
        earlier: Where the earlier access was issued.
        time_ps: Time of the first one.
        count: How often.
        ranks: The ranks that did it.
    """

    code: str
    what: str
    site: CallSite | None
    earlier: CallSite | None
    time_ps: int
    count: int = 0
    ranks: set[int] = field(default_factory=set)

    def as_json(self) -> dict[str, Any]:
        """Returns the same as plain values."""
        return {
            "code": self.code,
            "what": self.what,
            "at": site_fact(self.site),
            "issued": site_fact(self.earlier),
            "time_us": self.time_ps / 1e6,
            "count": self.count,
            "ranks": sorted(self.ranks),
        }


_Found = dict[tuple[Any, ...], Disorder]

_FOUND: Final[RankLocal[_Found]] = RankLocal("accesses in no order", lambda _: {}, outlives=True)


def refuse(process: Process, error: KernbenchError, what: str, earlier: CallSite | None) -> None:
    """Raises the error about an access that nothing orders, or notes it if the run is to go on.

    Args:
        process: The process that touches the memory.
        what: What it did too early.
        earlier: Where the earlier access was issued.

    Raises:
        KernbenchError: If the run is not to go on.
    """
    pytorch = process.ctx.spec.pytorch
    if pytorch is None or pytorch.races == "error":
        raise error
    found, site = _FOUND.of(process), call_site()
    key = error.code, what, site, earlier
    entry = found.get(key)
    if entry is None:
        time = process.host.clock
        entry = found[key] = Disorder(error.code, what, site, earlier, time)
        entry.ranks.add(process.rank)
    entry.count += 1


ORDER_STREAMS: Final = "order the streams with wait_stream(), an event, or synchronize()"
"""What a program may do about two streams that nothing orders."""


def hint(process: Process, text: str) -> str:
    """Returns what to try about an access that nothing orders.

    Args:
        process: The process that touches the memory.
        text: What its program may do.
    """
    if process.ctx.spec.pytorch is None:
        return text
    return f"{text}; if code of a library does it, --races warn goes on and lists it"


def disorders(processes: Iterable[Process]) -> list[Disorder]:
    """Returns what several processes have noted, the earliest first; equal ones are one."""
    merged: _Found = {}
    for process in processes:
        for key, entry in _FOUND.of(process).items():
            known = merged.setdefault(
                key, Disorder(entry.code, entry.what, entry.site, entry.earlier, entry.time_ps)
            )
            known.time_ps = min(known.time_ps, entry.time_ps)
            known.count += entry.count
            known.ranks |= entry.ranks
    return sorted(merged.values(), key=lambda entry: entry.time_ps)


def disorder_line(entry: dict[str, Any], ranks: str) -> str:
    """Returns one of `Disorder.as_json` as a line of the end of a run.

    Args:
        entry: The plain values.
        ranks: The words for its ranks.
    """
    times = f"{entry['count']} times, first " if entry["count"] > 1 else ""
    return (
        f"[{entry['code']}] {ranks} {entry['what']}: {times}at "
        f"{format_time(round(entry['time_us'] * 1e6))}, {entry['at']}; issued {entry['issued']}"
    )
