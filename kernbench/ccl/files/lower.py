"""Lowers a file to rounds of transfers and moves, which the plan of a collective is made of.

Blocks of a rank become one sequence of exchanges. What leaves and arrives in a round is one
exchange where a rank does both, as a ring needs whose chunks are longer than its slots.
"""

from collections.abc import Iterator
from dataclasses import replace

from kernbench.ccl.files.blocks import Blocks, Memory, Mode
from kernbench.ccl.files.placing import Chunks, Origins, Sums
from kernbench.ccl.files.prove import prove
from kernbench.ccl.files.rounds import Lowered, Move, Round, Transfer
from kernbench.ccl.files.schedule import Event, Scheduler
from kernbench.errors import UnsupportedError


def lower(file: Blocks, *, relaxed: bool = False) -> Lowered:
    """Returns a file as rounds of exchanges.

    Args:
        file: The collective.
        relaxed: Whether signals that order no memory will do: to time a plan, the order of
            execution is enough.

    Raises:
        UnsupportedError: If a proof finds it wrong, or its channels pass each other.
    """
    found = [each for each in prove(file).findings if not (relaxed and each.kind == "relaxed")]
    if found:
        raise UnsupportedError(
            f"{file.path} is not run: it is wrong",
            [f"{finding.kind}: {finding.text}" for finding in found[:3]],
            hint=f"kernbench collective check {file.path} tells all",
        )
    mode = _mode(file)
    memory = Memory(file, mode)
    log = Scheduler(file, memory).rounds()
    chunks = Chunks(file, mode, Origins(file, memory, log))
    kept = Sums(file, memory, log).kept
    rounds = [_round(file, chunks, events, kept) for events in log]
    ending = chunks.ending()
    if ending:
        rounds.append(Round(list(ending)))
    return Lowered(file, file.share, chunks.scratch, tuple(rounds))


def _mode(file: Blocks) -> Mode:
    """Returns how the file's input and output lie: in place where that is right, too."""
    if file.operation == "all_to_all":
        if "out of place" not in file.modes:
            raise UnsupportedError(
                f"{file.path}: an all_to_all in place is not run; here it has two buffers",
                hint="write it out of place",
            )
        return "out of place"
    if "in place" in file.modes:
        return "in place"
    if file.plan is not None:
        return "out of place"
    return "in place" if prove(replace(file, modes=("in place",))).proved else "out of place"


def _round(
    file: Blocks,
    chunks: Chunks,
    events: list[Event],
    kept: set[tuple[int, int]],
) -> Round:
    found = Round()
    meeting: list[Transfer] = []
    for event in events:
        if event.what == "move":
            block = file.every[event.process]
            step = block.steps[event.step]
            if step.kind.reads:
                source = chunks.at(event.process, event.step, source=True)
                target = chunks.at(event.process, event.step, source=False)
                if source != target or step.kind.adds:
                    move = Move(block.rank, source, target, step.count, step.kind.adds)
                    found.first.append(move)
            continue
        other = file.every[event.sender]
        leaving = other.steps[event.sent]
        source = (
            _summed(chunks, event.sender, event.sent, kept)
            if leaving.name == "rrs"
            else chunks.at(event.sender, event.sent, source=not leaving.kind.stores)
        )
        one = Transfer(other.rank, other.to, source, source, leaving.count, adds=False)
        if event.what == "hold":
            found.sent.append(one)
            continue
        block = file.every[event.process]
        step = block.steps[event.step]
        target = (
            chunks.at(event.process, event.step, source=False)
            if step.kind.stores
            else _summed(chunks, event.process, event.step, kept)
        )
        if step.kind.reads:
            own = chunks.at(event.process, event.step, source=True)
            if own != target:
                copies = found.copies if event.what == "meet" else found.first
                copies.append(Move(block.rank, own, target, step.count, adds=False))
        one = one._replace(target=target, adds=step.kind.reads)
        (meeting if event.what == "meet" else found.first).append(one)
    found.first[:] = _joined_moves(found.first)
    found.matchings.extend(_matchings(_joined(meeting), file.ranks))
    return found


def _joined(transfers: list[Transfer]) -> list[Transfer]:
    """Returns transfers of one round with those in one that are side by side at both ends.

    Blocks of a rank run side by side; several that carry parts of one message are one message here.
    """
    found: list[Transfer] = []
    for one in sorted(transfers):
        last = found[-1] if found else None
        if last is not None and one == last._replace(
            source=last.source + last.span, target=last.target + last.span, span=one.span
        ):
            found[-1] = last._replace(span=last.span + one.span)
        else:
            found.append(one)
    return found


def _joined_moves(moves: list[Move | Transfer]) -> list[Move | Transfer]:
    """Returns moves with those in one that are side by side, where no other comes between them."""
    found: list[Move | Transfer] = []
    for one in moves:
        at = _goes_on(one, found) if isinstance(one, Move) else None
        if at is None:
            found.append(one)
        else:
            found[at] = found[at]._replace(span=found[at].span + one.span)
    return found


def _goes_on(one: Move, before: list[Move | Transfer]) -> int | None:
    """Returns which earlier move a move goes on with, if it may come as early; else None."""
    for at in range(len(before) - 1, -1, -1):
        other = before[at]
        if not isinstance(other, Move) or _meet(one, other):
            return None
        next_to = other._replace(
            source=other.source + other.span, target=other.target + other.span, span=one.span
        )
        if one == next_to:
            return at
    return None


def _meet(one: Move, other: Move) -> bool:
    """Returns whether one of two moves writes chunks that the other touches."""

    def overlap(first: int, second: int) -> bool:
        return first < second + other.span and second < first + one.span

    return one.rank == other.rank and (
        overlap(one.target, other.target)
        or overlap(one.target, other.source)
        or overlap(one.source, other.target)
    )


def _summed(chunks: Chunks, process: int, number: int, kept: set[tuple[int, int]]) -> int:
    """Returns where the sum of an `rrs` lies until it is sent."""
    if (process, number) in kept:
        return chunks.temporary(process, number)
    return chunks.at(process, number, source=True)


def _matchings(transfers: list[Transfer], ranks: int) -> list[list[Transfer]]:
    """Returns transfers in groups, in each of which a rank sends and receives at most one.

    Shifts come together: all that go to the next rank, to the one after it, and so on. Those of a
    group are equally long, so that a rank that sends and receives does both as one exchange:
    ranks that first send all of theirs would wait for each other with full slots.
    """
    found: list[tuple[set[int], set[int], list[Transfer]]] = []
    for one in sorted(transfers, key=lambda each: (each.receiver - each.sender) % ranks):
        for senders, receivers, group in found:  # noqa: B007 - used after the loop
            if one.sender not in senders and one.receiver not in receivers:
                break
        else:
            senders, receivers, group = set(), set(), []
            found.append((senders, receivers, group))
        senders.add(one.sender)
        receivers.add(one.receiver)
        group.append(one)
    return [part for _, _, group in found for part in _equally_long(group)]


def _equally_long(group: list[Transfer]) -> Iterator[list[Transfer]]:
    """Yields transfers cut into parts, in each list parts of the same length."""
    while group:
        least = min(one.span for one in group)
        yield [one._replace(span=least) for one in group]
        group = [
            one._replace(
                source=one.source + least, target=one.target + least, span=one.span - least
            )
            for one in group
            if one.span > least
        ]
