"""Which call of which rank an error is about, when it is raised in that call."""

from typing import TYPE_CHECKING, cast

from kernbench.errors import CallSite, Fact, Involved, call_site, site_fact
from kernbench.runtime_api.process import Process
from kernbench.units import format_time

if TYPE_CHECKING:
    from kernbench.runtime_api.comm.rendezvous import Meeting, ProcessGroup
    from kernbench.sim_engine.command import Command


def called(
    process: Process,
    name: str,
    group: "ProcessGroup | None" = None,
    *,
    message: bool = False,
    site: CallSite | None = None,
) -> Fact:
    """Returns a fact that says when and where a rank called what is refused.

    Args:
        process: Who calls.
        name: Of the function.
        group: Which group it would be the rank's next call of; None if of none.
        message: Whether it would be its next message instead.
        site: Where; None: to be found.
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


def issued(command: "Command", how: str = "was issued") -> str:
    """Returns a fact that says when and where a command was issued that is not over.

    Args:
        command: Which one.
        how: What reports say of it.
    """
    meeting = cast("Meeting | None", command.part)
    if meeting is None:
        when = f"{how} at {format_time(command.issued)}, at"
        return site_fact(command.site, f"{command.name} {when}")
    call = meeting.calls[command.host.rank]
    group = (command.args or {}).get("group", "")
    title = f"{command.name} #{call.number} of group {group}"
    return Fact(
        f"{title} {how} at {format_time(call.time)}, {site_fact(call.site)}", [call.involved()]
    )
