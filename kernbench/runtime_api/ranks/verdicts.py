"""What ranks are told when they wait for what can never happen."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from kernbench.des import DeadlockError
from kernbench.errors import KernbenchError, site_fact
from kernbench.runtime_api.comm.rendezvous import Call, Gathering, Meeting, folded
from kernbench.runtime_api.comm.transfers import Transfer
from kernbench.runtime_api.comm.world import World
from kernbench.runtime_api.process import Process
from kernbench.runtime_api.ranks.waiting import Head
from kernbench.tl.program import Program
from kernbench.units import format_bytes, format_time

_MOST_PLACES: Final = 8
"""Places that a report lists."""


class RankDeadlockError(KernbenchError):
    """Ranks wait for what can never happen (C10, P1-P4, K7).

    Attributes:
        view: What the rank waits for that this error is raised in; a line of its text.
    """

    view: str = ""

    def __str__(self) -> str:
        if not self.view:
            return self.shared()
        head, newline, rest = self.shared().partition("\n")
        return f"{head}\n  {self.view}{newline}{rest}"

    def shared(self) -> str:
        """Returns the text without the line that is only this rank's."""
        return super().__str__()

    def as_json(self) -> dict[str, object]:
        """Returns the same content as plain values."""
        return {**super().as_json(), "view": self.view}


@dataclass(slots=True)
class Verdict:
    """One deadlock: what all of its ranks are told, and each of them.

    Attributes:
        code: Of the mistake.
        summary: One sentence.
        hint: What to try.
        views: By rank, what it waits for.
        facts: Further lines for all.
        error: Class of what ranks get.
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

    def pronounce(self, world: World) -> None:
        """Blames each rank with its error."""
        for rank, error in self.errors():
            world.blame([rank], error)


def gatherings(world: World) -> list[Gathering]:
    """Returns all in which ranks meet for collectives or to make groups."""
    return [*world.groups.values(), *world.creations.values()]


def missed(world: World) -> Iterator[tuple[Sequence[int], KernbenchError]]:
    """Yields collectives that ranks wait in for one that has returned: who waits, and why."""
    for gathering in gatherings(world):
        for meeting in gathering.open.values():
            if any(rank in world.exited for rank in meeting.absent()):
                yield sorted(meeting.calls), gathering.missing(meeting, world.exited)


def abandoned(world: World) -> Iterator[Verdict]:
    """Yields messages whose other side has returned (P1, P2, P3), the earliest calls first."""
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
        other = near_miss(world, transfer)
        if other is not None:
            yield tags_differ(*sorted((transfer, other), key=is_receive))
            continue
        absent = transfer.absent()
        returned = [_returned(world, rank) for rank in absent[:_MOST_PLACES]]
        view = view_of(call, transfer)
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


def near_miss(world: World, transfer: Transfer) -> Transfer | None:
    """Returns a message that would match but for its tag."""
    for box in world.mailboxes.values():
        if box.group is not transfer.box.group or box.destination != transfer.destination:
            continue
        if box is transfer.box:
            continue
        if not is_receive(transfer):
            assert transfer.source is not None
            found = box.receives.get(transfer.source) or box.receives.get(None)
        elif transfer.source is not None:
            found = box.sends.get(transfer.source)
        else:
            found = next(iter(box.sends.values()), None)
        if found:
            return found[0]
    return None


def jammed(heads: Iterable[Head], deadlock: DeadlockError) -> Iterator[Verdict]:
    """Yields collectives that all ranks have come to, and that do not end all the same (K7)."""
    programs = [
        f"{task.name} waits for {reason} since {format_time(task.clock)}"
        for task, reason in deadlock.waits
        if isinstance(task.subject, Program)
    ]
    for meeting in dict.fromkeys(head.meeting for head in heads):
        chosen = getattr(meeting.shared, "chosen", None)
        name = "" if chosen is None else f" {chosen.name}"
        verdict = Verdict(
            "K7",
            f"{meeting.title}: every rank has come, and the algorithm{name} waits for itself",
            "every send needs a receive, and no more than n_slots messages fit in a queue",
            {rank: view_of(call, meeting) for rank, call in meeting.calls.items()},
            programs,
        )
        if chosen is not None:
            queue = chosen.queue
            slots = f"{queue.n_slots} slots of {format_bytes(queue.slot_size)}"
            verdict.facts = [*programs, f"queues have {slots}"]
        yield verdict


def unexplained(deadlock: DeadlockError) -> Verdict:
    """Returns what is left to say of a deadlock that no collective or message explains."""
    verdict = Verdict("", "ranks wait for what can never happen", "")
    for task, reason in deadlock.waits:
        verdict.facts.append(f"{task.name} waits for {reason} since {format_time(task.clock)}")
        if isinstance(task.subject, Process):
            verdict.views[task.subject.rank] = ""
    verdict.views = verdict.views or {0: ""}
    return verdict


def tags_differ(send: Transfer, receive: Transfer) -> Verdict:
    """Returns what a sender and a receiver are told whose tags differ (P3)."""
    sent, asked = _call(send), _call(receive)
    verdict = Verdict(
        "P3",
        f"rank {asked.rank} holds a message from {sent.rank} with tag {send.box.tag}; "
        f"{asked.operation} asks for tag {receive.box.tag}",
        "a message is received with the tag that it was sent with",
        {
            sent.rank: f"rank {sent.rank} is the sender",
            asked.rank: f"rank {asked.rank} is the receiver",
        },
    )
    verdict.facts = [call.fact(f"rank {call.rank}") for call in (sent, asked)]
    return verdict


def view_of(call: Call, meeting: Meeting) -> str:
    """Returns a line that says what a rank waits in."""
    fact = call.fact("" if isinstance(meeting, Transfer) else meeting.title)
    return f"rank {call.rank} waits in {fact.removeprefix(': ')}"


def _unmatched(world: World, ranks: Sequence[int]) -> list[str]:
    """Returns what ranks have sent, and nobody received."""
    calls = [
        _call(transfer)
        for box in world.mailboxes.values()
        for transfer in box.open()
        if not is_receive(transfer) and transfer.source in ranks
    ]
    if not calls:
        return [f"{folded(ranks)} sent nothing that is not received"]
    return [call.fact(f"not received, of rank {call.rank}") for call in calls[:_MOST_PLACES]]


def _returned(world: World, rank: int) -> str:
    site = world.exit_sites.get(rank)
    return f"rank {rank} returned" + ("" if site is None else f" {site_fact(site)}")


def _have(ranks: Sequence[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _call(transfer: Transfer) -> Call:
    """Returns the only call of a transfer that lacks a side."""
    (call,) = transfer.calls.values()
    return call


def is_receive(transfer: Transfer) -> bool:
    """Returns whether the receiver has called a transfer; the sender may be missing."""
    return transfer.destination in transfer.calls
