"""Lines of reports that tell which call of which rank an error is about."""

from collections.abc import Mapping
from typing import Protocol, cast

from kernbench.errors import CallSite, Fact, Involved, call_site, site_fact
from kernbench.process.process import Part, Process
from kernbench.sim_engine.command import Command
from kernbench.sim_engine.op_log import Category
from kernbench.units import format_time


class Issued(Protocol):
    """What has been issued to a stream: a command, or an operation of another library."""

    @property
    def name(self) -> str:
        """Name in reports."""
        ...

    @property
    def category(self) -> Category:
        """Kind of work."""
        ...

    @property
    def issued(self) -> int:
        """When it was issued, in picoseconds."""
        ...

    @property
    def site(self) -> CallSite | None:
        """The user's line that asked for it."""
        ...


class Numbered(Protocol):
    """A group that counts the calls of its ranks."""

    @property
    def name(self) -> str:
        """Name of the group in reports."""
        ...

    @property
    def messages(self) -> Mapping[int, int]:
        """Number of messages that a rank has sent and received, by global rank."""
        ...

    def __contains__(self, rank: object) -> bool: ...

    def number(self, rank: int) -> int:
        """Returns the sequence number of a rank's latest call."""
        ...


def called(
    process: Process,
    name: str,
    group: Numbered | None = None,
    *,
    message: bool = False,
    site: CallSite | None = None,
) -> Fact:
    """Returns the line of a report that tells when and where the refused call was made.

    Args:
        process: The calling rank, or main.
        name: Name of the function that the user called.
        group: Group whose counter of calls to show; None for a call that belongs to no group.
        message: Whether the call is a message; groups count messages apart from collectives.
        site: Where the user made the call; None: to be found.
    """
    rank, time = process.rank, process.host.clock
    site = site or call_site()
    which, sequence = "", None
    if group is not None and rank in group:
        done = group.messages.get(rank, 0) if message else group.number(rank)
        sequence = done + 1
        which = f"{'message' if message else 'call'} #{sequence} of group {group.name} "
    text = f"{which}at {format_time(time)}, {site_fact(site)}"
    return Fact(text, [Involved(rank, name, site, sequence, time)])


def issued(what: Issued, how: str = "was issued") -> Fact:
    """Returns the line of a report that tells when and where something was issued.

    Args:
        what: It; it is not complete.
        how: Verb of the line, such as `was issued`.
    """
    if isinstance(what, Command) and what.part is not None:
        return cast(Part, what.part).told(what, how)
    when = f"{how} at {format_time(what.issued)}, at"
    return Fact(site_fact(what.site, f"{what.name} {when}"), [])
