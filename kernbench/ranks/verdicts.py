"""Reports of deadlocks, for ranks that wait for something that can never happen."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kernbench.des import DeadlockError, Task
from kernbench.errors import Fact, Involved, KernbenchError, site_fact, site_in
from kernbench.hw.queue import MOST_SLOTS
from kernbench.process.process import Process
from kernbench.ranks.departures import departure
from kernbench.ranks.gathering import Gathering
from kernbench.ranks.meeting import Call, Meeting
from kernbench.ranks.polls import Poll
from kernbench.ranks.ranges import folded
from kernbench.ranks.transfers import Transfer
from kernbench.ranks.waiting import Head, WaitGraph
from kernbench.ranks.world import World
from kernbench.tl.program import Program
from kernbench.units import format_bytes, format_time

if TYPE_CHECKING:
    from kernbench.ccl.jams import Jam

_MOST_PLACES: Final = 8
"""Most places that a report lists."""


class RankDeadlockError(KernbenchError, RuntimeError):
    """Ranks wait for something that can never happen (C10, P1-P4, K7).

    Attributes:
        view: Line that says what this error's own rank waits for; empty if there is none.
    """

    view: str = ""

    def involved(self) -> list[Involved]:
        """Returns the calls that the facts and the view name, by rank, then by time."""
        mine = self.view.involved if isinstance(self.view, Fact) else ()
        return sorted({*super().involved(), *mine}, key=lambda call: (call.rank, call.time_ps or 0))

    def __str__(self) -> str:
        if not self.view:
            return self.shared()
        mine = self.view.involved if isinstance(self.view, Fact) else ()
        # A fact about this rank's call alone would say the same again.
        others = [
            fact for fact in self.facts if not (isinstance(fact, Fact) and fact.involved == mine)
        ]
        return self._told([self.view, *others])

    def shared(self) -> str:
        """Returns the text without `view`, so that it is the same for all ranks."""
        return super().__str__()

    def as_json(self) -> dict[str, object]:
        """Returns the same content as plain values."""
        return {**super().as_json(), "view": self.view}


@dataclass(slots=True)
class Verdict:
    """One deadlock: the report that all its ranks share, and one line for each rank.

    Attributes:
        code: Code of the mistake, such as `P4`.
        summary: One sentence that says what happened.
        hint: What the user may try.
        views: The line that says what a rank waits for, by rank.
        facts: Further lines of the report for all ranks.
        error: Class of the errors that ranks get.
    """

    code: str
    summary: str
    hint: str
    views: dict[int, str] = field(default_factory=dict)
    facts: list[str] = field(default_factory=list)
    error: type[RankDeadlockError] = RankDeadlockError

    def errors(self) -> Iterator[tuple[int, RankDeadlockError]]:
        """Yields each rank with its error."""
        for rank, view in sorted(self.views.items()):
            error = self.error(self.summary, self.facts, hint=self.hint, code=self.code)
            error.view = view
            yield rank, error

    def pronounce(self, world: World, running: int | None = None) -> None:
        """Blames each rank with its error.

        Args:
            running: The rank that runs, in which its error is raised; None if none does.
        """
        for rank, error in self.errors():
            world.blame([rank], error)
        for rank, error in self.errors():
            if rank == running:
                raise error


def gatherings(world: World) -> list[Gathering[Any]]:
    """Returns all groups, and all places where ranks meet to make groups."""
    for place in world.creations.values():
        place.tell_apart()
    return [*world.groups.values(), *world.creations.values()]


def missed(world: World, graph: WaitGraph) -> Iterator[tuple[Sequence[int], KernbenchError]]:
    """Yields waiting ranks and error of each collective that a returned rank never joins."""
    for gathering in gatherings(world):
        for meeting in gathering.open.values():
            absent = meeting.absent()
            if any(rank in world.exited for rank in absent):
                others = [rank for rank in absent if rank not in world.exited]
                places = {rank: site for rank in others if (site := graph.place(rank)) is not None}
                known = world.whereabouts(_stuck(graph, others), places)
                yield sorted(meeting.calls), gathering.missing(meeting, known)


def _stuck(graph: WaitGraph, ranks: Sequence[int]) -> dict[int, str]:
    """Returns, for each of some ranks that can never go on, what reports say of its wait."""
    heads = [head for rank in ranks for head in graph.held(rank)]
    dead = graph.dead(heads)
    found: dict[int, str] = {}
    for head in heads:
        if head in dead and head.rank not in found:
            view = head.meeting.view(head.meeting.calls[head.rank])
            found[head.rank] = view.removeprefix(f"rank {head.rank} ")
    return found


def abandoned(world: World) -> Iterator[Verdict]:
    """Yields verdicts on messages whose other side has returned (P1-P3), earliest call first."""
    exited = world.exited
    transfers = [
        transfer
        for box in world.mailboxes.values()
        for transfer in box.open()
        if all(rank in exited for rank in transfer.absent())
        and not (transfer.held_back or (transfer.source is None and box.sends))
    ]
    for transfer in sorted(transfers, key=lambda found: _call(found).time):
        call = _call(transfer)
        others = near_misses(world, transfer)
        if others is not None:
            yield tags_differ(*others)
            continue
        absent = transfer.absent()
        returned = [_returned(world, rank) for rank in absent[:_MOST_PLACES]]
        view = transfer.view(call)
        if is_receive(transfer):
            verdict = Verdict(
                "P1",
                f"rank {call.rank} waits for a message from rank {transfer.source}, "
                f"which {_have(absent)} returned"
                if transfer.source is not None
                else f"rank {call.rank} waits for a message from any rank, and {folded(absent)} "
                f"{_have(absent)} returned",
                "every recv needs a send with the same group and tag",
            )
            verdict.facts += [*returned, *_unmatched(world, absent)]
        else:
            text = transfer.sides[call.rank].text
            verdict = Verdict(
                "P2",
                f"rank {call.rank} sends {text} to rank {absent[0]} with tag {transfer.box.tag}, "
                "which returned without receiving it",
                "every send needs a recv with the same group and tag",
            )
            verdict.facts += returned
        verdict.views[call.rank] = view
        yield verdict


def near_misses(
    world: World, transfer: Transfer
) -> tuple[Sequence[Transfer], Sequence[Transfer]] | None:
    """Returns sends and receives that match except for their tags; None if there are none.

    One of the two lists has a single entry; nobody can know which entry of the other list was meant
    to match it.
    """
    others = _of_other_tags(world, transfer)
    if not others:
        return None
    if is_receive(transfer):
        return others, [transfer]
    if len(others) > 1:
        return [transfer], others
    return _of_other_tags(world, others[0]), others


def _of_other_tags(world: World, transfer: Transfer) -> list[Transfer]:
    """Returns, for each other tag and rank, the earliest message that differs in the tag only."""
    found = []
    for box in world.mailboxes_of[transfer.box.group.name, transfer.destination]:
        if box is transfer.box or box.group is not transfer.box.group:
            continue
        if not is_receive(transfer):
            assert transfer.source is not None
            line = box.receives.get(transfer.source) or box.receives.get(None)
            lines = [line] if line else []
        elif transfer.source is not None:
            line = box.sends.get(transfer.source)
            lines = [line] if line else []
        else:
            lines = list(box.sends.values())
        found += [line[0] for line in lines]
    return sorted(found, key=lambda other: (_call(other).rank, other.box.tag))


def blame_faults(world: World, processes: Iterable[Process]) -> bool:
    """Blames ranks for faults of their devices that the ranks have not raised yet.

    A rank that waits for others raises its own fault only after the wait, and the fault may be why
    the wait never ends. So a fault outranks a deadlock.

    Returns:
        Whether there was a fault.
    """
    faulty = [process for process in processes if process.host.faults]
    for process in faulty:
        world.blame([process.rank], process.host.faults[0])
    return bool(faulty)


def jammed(heads: Iterable[Head], deadlock: DeadlockError) -> Iterator[Verdict]:
    """Yields verdicts on collectives that do not end although all ranks have arrived (K7)."""
    programs = [
        _waiting(task, reason)
        for task, reason in deadlock.waits
        if isinstance(task.subject, Program)
    ]
    for meeting in dict.fromkeys(head.meeting for head in heads):
        if meeting.missing():
            continue
        jam = None if meeting.joint is None else meeting.joint.jam()
        name = "" if jam is None else f" {jam.chosen.name}"
        verdict = Verdict(
            "K7",
            f"{meeting.title}: every rank has come, and the algorithm{name} waits for itself",
            "every send needs a receive, and no more than n_slots messages fit in a queue",
            {rank: meeting.view(call) for rank, call in meeting.calls.items()},
            [*programs],
        )
        if jam is not None:
            _tell_queues(verdict, meeting, jam)
            if not programs:  # it was recorded before
                verdict.hint += "; fidelity tile names the lines of the algorithm"
        yield verdict


def _tell_queues(verdict: Verdict, meeting: Meeting, jam: "Jam") -> None:
    """Adds which queues are full, where their length is set, and which length would be enough."""
    chosen, full, least = jam
    n_slots, size = chosen.queue.n_slots, format_bytes(chosen.queue.slot_size)
    for number, sender, receiver in full[:_MOST_PLACES]:
        one, other = meeting.members[sender], meeting.members[receiver]
        several = chosen.channels > 1 or any(number for number, _, _ in full)
        channel = f" of channel {number}" if several else ""
        verdict.facts.append(
            f"rank {one} send blocked: queue {one}->{other}{channel} full {n_slots}/{n_slots}"
        )
    if len(full) > _MOST_PLACES:
        verdict.facts.append(f"and {len(full) - _MOST_PLACES} more full queues")
    place = f", n_slots at {chosen.slots_at}" if chosen.slots_at else ""
    verdict.facts.append(f"queues have {n_slots} slots of {size}{place}")
    if least:
        verdict.hint += f"; n_slots={least} is the least that completes"
    elif least is None:
        verdict.hint += f"; no n_slots up to {MOST_SLOTS} that fits into memory completes"


def _waiting(task: Task, reason: object) -> str:
    """Returns what a task waits for, and at which line of the user, if it is in the user's code."""
    site = site_in(task.frame)
    where = "" if site is None else f", {site_fact(site)}"
    return f"{task.name} waits for {reason} since {format_time(task.clock)}{where}"


def unexplained(deadlock: DeadlockError) -> Verdict:
    """Returns the verdict on a deadlock that no collective or message explains."""
    polls = [reason for _, reason in deadlock.waits if isinstance(reason, Poll)]
    if polls:
        return _polling(polls, deadlock)
    verdict = Verdict("", "ranks wait for what can never happen", "")
    for task, reason in deadlock.waits:
        verdict.facts.append(_waiting(task, reason))
        if isinstance(task.subject, Process):
            verdict.views[task.subject.rank] = ""
    verdict.views = verdict.views or {0: ""}
    return verdict


def _polling(polls: Sequence[Poll], deadlock: DeadlockError) -> Verdict:
    """Returns the verdict on kernels that poll what nobody is left to write (K7)."""
    ranks = sorted({poll.rank for poll in polls})
    verdict = Verdict(
        "K7",
        f"{_kernels(ranks)} memory that nobody is left to write",
        "every rank launches the kernel, with as many programs, and signals all whom it waits for",
    )
    for poll in polls:
        verdict.facts += [f"rank {poll.rank}: {poll.told[0]}", *poll.told[1:]]
        verdict.views[poll.rank] = ""
    for task, reason in deadlock.waits:
        if not isinstance(reason, Poll):
            verdict.facts.append(_waiting(task, reason))
            if isinstance(task.subject, Process):
                verdict.views[task.subject.rank] = ""
    return verdict


def _kernels(ranks: Sequence[int]) -> str:
    named = folded(ranks)
    return f"a kernel of {named} polls" if len(ranks) == 1 else f"kernels of {named} poll"


def tags_differ(sends: Sequence[Transfer], receives: Sequence[Transfer]) -> Verdict:
    """Returns the verdict on sends and receives whose tags differ (P3); see `near_misses`."""
    sends, receives = sends[:_MOST_PLACES], receives[:_MOST_PLACES]
    sent, asked = [_call(send) for send in sends], [_call(receive) for receive in receives]
    held = [f"from {send.source} with tag {send.box.tag}" for send in sends]
    asks = [
        f"{call.operation} asks for tag {receive.box.tag}"
        for call, receive in zip(asked, receives, strict=True)
    ]
    messages = "a message" if len(held) == 1 else "messages"
    verdict = Verdict(
        "P3",
        f"rank {asked[0].rank} holds {messages} {_and(held)}; {_and(asks)}",
        "a message is received with the tag that it was sent with",
    )
    for call in sent:
        role = "the sender" if len({other.rank for other in sent}) == 1 else "one of the senders"
        verdict.views[call.rank] = f"rank {call.rank} is {role}"
    verdict.views[asked[0].rank] = f"rank {asked[0].rank} is the receiver"
    verdict.facts = [
        call.fact(f"rank {call.rank}, {transfer.numbered(call)}")
        for transfer, call in zip((*sends, *receives), (*sent, *asked), strict=True)
    ]
    return verdict


def _and(parts: Sequence[str]) -> str:
    """Returns `a`, `a and b`, or `a, b and c`."""
    *some, last = parts
    return f"{', '.join(some)} and {last}" if some else last


def _unmatched(world: World, ranks: Sequence[int]) -> list[str]:
    """Returns lines about messages that ranks have sent and nobody has received."""
    sends = [
        transfer
        for box in world.mailboxes.values()
        for transfer in box.open()
        if not is_receive(transfer) and transfer.source in ranks
    ]
    if not sends:
        return [f"{folded(ranks)} sent nothing that is not received"]
    return [
        call.fact(f"not received, of rank {call.rank}, {send.numbered(call)}")
        for send in sends[:_MOST_PLACES]
        for call in send.calls.values()
    ]


def _returned(world: World, rank: int) -> str:
    return f"rank {rank} {departure(world.exit_sites.get(rank), world.departed().get(rank))}"


def _have(ranks: Sequence[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _call(transfer: Transfer) -> Call:
    """Returns the only call of a transfer that lacks a side."""
    (call,) = transfer.calls.values()
    return call


def is_receive(transfer: Transfer) -> bool:
    """Returns whether the receiver has called a transfer; the sender may be missing."""
    return transfer.destination in transfer.calls
