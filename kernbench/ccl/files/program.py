"""A lowered file as an algorithm of a collective: what each rank exchanges."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from kernbench.caches import cached
from kernbench.ccl.files.load import load
from kernbench.ccl.files.lower import lower
from kernbench.ccl.files.rounds import Lowered, Move, Round, Transfer
from kernbench.ccl.plan import NOTHING, Comm
from kernbench.ccl.profiles import Scope
from kernbench.errors import UsageError


class _Exchange(NamedTuple):
    """Arguments of `Comm.exchange`; `adds` for `combine`."""

    send: int
    to: int
    receive: int
    source: int
    adds: bool
    span: int

    @property
    def chunks(self) -> tuple[int, int, int]:
        """What is sent, what is received, and how many chunks."""
        return self.send, self.receive, self.span


_PARTS = 4
"""Parts of a full message that are still worth a message of their own."""

_Matching = tuple[int, list[Transfer]]
"""A matching of one turn."""


class _Turn(NamedTuple):
    """A round of one turn."""

    turn: int
    round: Round


@dataclass(frozen=True)
class Program:
    """The algorithm of a file, for groups of as many ranks as it is for.

    One program of a rank stands for all of its blocks, and a kernel's blocks wait for each other
    only where the file says so. So what leaves in a round leaves before anything is waited for, as
    far as the slots reach. Where rounds are uneven, or transfers wait in slots while others go on,
    the file is repeated for parts of chunks that are at most a message each, as a library's kernel
    repeats it for parts of a buffer (`gridOffset` in msccl's `interpreter.h`). A block begins its
    next repetition when it has ended one, so that blocks are in different ones: if rounds are
    uneven, each round here goes together with the earlier rounds of the later repetitions.

    Attributes:
        lowered: The file as rounds.
        slots: Messages that may be under way between two ranks.
        units: How many times `n_elem` elements a message holds.
        shared: Whether channels share each chunk: the file is then repeated in any case if chunks
            are longer than a message, so that messages to all peers leave at once.
        linked: Whether each pair of ranks that exchange messages has a link of its own.
    """

    lowered: Lowered
    slots: int = 1
    units: int = 1 << 30
    shared: bool = False
    linked: bool = False

    def fit(self, slots: int, units: int, *, shared: bool, linked: bool) -> "Program":
        """Returns the algorithm for some queues; see the attributes."""
        return replace(self, slots=slots, units=units, shared=shared, linked=linked)

    def __call__(self, comm: Comm) -> None:
        """Exchanges what the file says.

        Raises:
            UsageError: If the group has another number of ranks (F12).
        """
        file = self.lowered.file
        if comm.world_size != file.ranks:
            raise UsageError(
                f"{file.path} is for {file.ranks} ranks; the group has {comm.world_size}",
                hint="name another algorithm for this group",
                code="F12",
            )
        lowered, turns = self.lowered.coarse, 1
        uneven = lowered.uneven(links=self.linked)
        if lowered.buffered or uneven or self.shared:
            turns = -(-comm.messages // lowered.parts)
        if uneven:
            # The first and the last waves are half empty: they take no longer than the others.
            most = _PARTS * (comm.messages // lowered.parts)
            turns = max(turns, min(len(lowered.rounds), most))
        together = lowered.together
        comm.cut(lowered.parts * turns, lowered.scratch, turns=turns, together=together)
        # Parts of groups in a row do not lie in a row, nor do shares.
        apart = turns > 1 or self.shared
        for turn, one in self._of(lowered, comm, turns, overlap=uneven, apart=apart):
            for send, receive, span in _in_groups(one, together) if apart else [one.chunks]:
                comm.exchange(
                    send=_part(send, together, turns, turn),
                    to=one.to,
                    receive=_part(receive, together, turns, turn),
                    source=one.source,
                    combine="reduce" if one.adds else "copy",
                    span=span,
                )

    def _of(
        self, lowered: Lowered, comm: Comm, turns: int, *, overlap: bool, apart: bool
    ) -> Iterator[tuple[int, _Exchange]]:
        """Yields the exchanges of a rank, each with its turn.

        Args:
            lowered: The rounds.
            comm: The collective.
            turns: How often the file is repeated.
            overlap: Whether rounds of different turns go together.
            apart: Whether each group of chunks is a message, or several, of its own.
        """
        rank, rounds = comm.rank, lowered.rounds
        parts, together = lowered.parts * turns, lowered.together

        def messages(span: int) -> int:
            groups, each = (span // together, together) if apart else (1, span)
            return groups * self._messages(comm.messages, parts, together, each)

        # A matching has the same messages in every turn.
        counts = {
            id(matching): {(one.sender, one.receiver): messages(one.span) for one in matching}
            for each in rounds
            for matching in each.matchings
        }
        for wave in _overlapping(rounds, turns) if overlap else _plain(rounds, turns):
            for turn, each in wave:
                yield from ((turn, one) for one in _before(each, rank))
            matchings = [(turn, one) for turn, each in wave for one in each.matchings]
            if self.linked and not overlap:
                matchings = _peers_in_turn(matchings, comm.world_size)
            # They depend on nothing of each other: each channel begins with another, so that as
            # many as a rank sends to keep a link to each of these busy all the time.
            begin = comm.channel % max(len(matchings), 1)
            for group in self._groups([*matchings[begin:], *matchings[:begin]], counts):
                if len(group) == 1:
                    ((turn, matching),) = group
                    yield from ((turn, one) for one in _both(matching, rank))
                    continue
                pairs = [(turn, one) for turn, matching in group for one in matching]
                yield from ((turn, _leaving(one)) for turn, one in pairs if one.sender == rank)
                yield from ((turn, _arriving(one)) for turn, one in pairs if one.receiver == rank)
            for turn, each in wave:
                yield from ((turn, _leaving(one)) for one in each.sent if one.sender == rank)

    def _messages(self, whole: int, parts: int, together: int, span: int) -> int:
        """Returns how many messages some chunks in a row take, at most.

        Args:
            whole: Full messages of the largest block.
            parts: Chunks of a block.
            together: Chunks of a group, which is cut from a block before its chunks are.
            span: Chunks in a row.
        """
        one = -(-whole // parts)
        if span == 1 or (span == together and whole * span <= parts):
            return one
        # Each chunk may be longer than its share by less than `n_elem` elements.
        rows = -(-(span * (whole * self.units + parts)) // (parts * self.units))
        return min(span * one, rows)

    def _groups(
        self, matchings: list[_Matching], counts: dict[int, dict[tuple[int, int], int]]
    ) -> Iterator[list[_Matching]]:
        """Yields matchings that may all leave before any is waited for.

        Between two ranks, they have no more messages than slots: nobody waits for ever.

        Args:
            matchings: What goes together.
            counts: Of each matching, by its identity, the messages from rank to rank.
        """
        group: list[_Matching] = []
        held: Counter[tuple[int, int]] = Counter()
        for matching in matchings:
            new = counts[id(matching[1])]
            if any(held[pair] + count > self.slots for pair, count in new.items()) and group:
                yield group
                group, held = [], Counter()
            group.append(matching)
            held.update(new)
        if group:
            yield group


def _before(each: Round, rank: int) -> Iterator[_Exchange]:
    """Yields the moves of a rank before the matchings of a round, and what arrives then."""
    for one in (*each.first, *each.copies):
        if isinstance(one, Move):
            if one.rank == rank:
                yield _Exchange(one.source, rank, one.target, rank, one.adds, one.span)
        elif one.receiver == rank:
            yield _arriving(one)


def _plain(rounds: Sequence[Round], turns: int) -> Iterator[list[_Turn]]:
    """Yields what goes together: each round, turn after turn."""
    for turn in range(turns):
        for each in rounds:
            yield [_Turn(turn, each)]


def _overlapping(rounds: Sequence[Round], turns: int) -> Iterator[list[_Turn]]:
    """Yields what goes together: a round, and earlier rounds of later turns."""
    for wave in range(turns + len(rounds) - 1):
        yield [
            _Turn(wave - number, each)
            for number, each in enumerate(rounds)
            if 0 <= wave - number < turns
        ]


def _peers_in_turn(matchings: Sequence[_Matching], ranks: int) -> list[_Matching]:
    """Returns matchings with the first to each peer first, then the second to each, and so on.

    Slots are for messages to one peer: as many as have room leave over all links.
    """
    before: Counter[int] = Counter()
    places = []
    for place, (_, matching) in enumerate(matchings):
        shift = (matching[0].receiver - matching[0].sender) % ranks
        places.append((before[shift], shift, place))
        before[shift] += 1
    return [matchings[place] for _, _, place in sorted(places)]


def _leaving(one: Transfer) -> _Exchange:
    return _Exchange(one.source, one.receiver, NOTHING, one.receiver, adds=False, span=one.span)


def _arriving(one: Transfer) -> _Exchange:
    return _Exchange(NOTHING, one.sender, one.target, one.sender, one.adds, one.span)


def _both(matching: list[Transfer], rank: int) -> Iterator[_Exchange]:
    """Yields what a rank sends and receives in a matching, as one exchange if both are as wide."""
    out = next((one for one in matching if one.sender == rank), None)
    into = next((one for one in matching if one.receiver == rank), None)
    if out is not None and into is not None and out.span == into.span:
        yield _Exchange(out.source, out.receiver, into.target, into.sender, into.adds, out.span)
        return
    if out is not None:
        yield _leaving(out)
    if into is not None:
        yield _arriving(into)


def _in_groups(one: _Exchange, together: int) -> Iterator[tuple[int, int, int]]:
    """Yields what an exchange sends, what it receives, and how many chunks, group by group."""
    first, done = max(one.send, one.receive), 0  # one of them may be `NOTHING`
    while done < one.span:
        span = min(together - (first + done) % together, one.span - done)
        send, receive = (
            chunk if chunk == NOTHING else chunk + done for chunk in (one.send, one.receive)
        )
        yield send, receive, span
        done += span


def _part(chunk: int, together: int, turns: int, turn: int) -> int:
    """Returns the number that a chunk has in a turn."""
    if chunk == NOTHING:
        return NOTHING
    group, place = divmod(chunk, together)
    return (group * turns + turn) * together + place


def module_of(path: Path, *, relaxed: bool = False) -> ModuleType:
    """Returns what stands for an algorithm's module: it has the one operation of a file.

    Args:
        path: The file; it is read again when it has changed.
        relaxed: See `lower`.

    Raises:
        ConfigError: If it is no file of a collective.
        UnsupportedError: If it is wrong, or cannot be run.
    """
    try:
        content = path.read_bytes()
    except OSError:
        content = b""  # what is wrong with it is reported when it is read as XML
    return _module(path, content, relaxed)


def scope_of(module: ModuleType) -> Scope:
    """Returns what the file is for that a module of `module_of` stands for."""
    scope: Scope = module.scope
    return scope


@cached("ccl.collective_files")
def _module(path: Path, _content: bytes, relaxed: bool) -> ModuleType:
    lowered = lower(load(path), relaxed=relaxed)
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    file = lowered.file
    program = Program(lowered)
    setattr(module, file.operation, program)
    uneven = lowered.uneven(links=False)
    scope = Scope(file.ranks, *file.sizes, lowered.ways, lowered.pairs, uneven, program.fit)
    module.scope = scope  # type: ignore[attr-defined]
    return module
