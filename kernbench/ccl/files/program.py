"""A lowered file as an algorithm of a collective: what each rank exchanges."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from kernbench.caches import cached
from kernbench.ccl.files.load import load
from kernbench.ccl.files.lower import lower
from kernbench.ccl.files.rounds import Lowered, Move, Transfer
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


class Program:
    """The algorithm of a file, for groups of as many ranks as it is for.

    Where each transfer is a single message, what leaves in a round leaves before anything is waited
    for. Where transfers wait in slots while others go on, the file is repeated for parts of chunks
    that are a message each, as a library's kernel loops over its slots.

    Args:
        lowered: The file as rounds.
        over_links: Whether channels share each chunk, and send over a link each: the file is then
            repeated in any case, so that messages to all peers leave at once.
    """

    def __init__(self, lowered: Lowered, *, over_links: bool = False) -> None:
        self.lowered = lowered
        self.over_links = over_links

    def __call__(self, comm: Comm) -> None:
        """Exchanges what the file says.

        Raises:
            UsageError: If the group has another number of ranks (F12).
        """
        lowered, file = self.lowered, self.lowered.file
        if comm.world_size != file.ranks:
            raise UsageError(
                f"{file.path} is for {file.ranks} ranks; the group has {comm.world_size}",
                hint="name another algorithm for this group",
                code="F12",
            )
        looped = lowered.buffered or self.over_links
        turns = -(-comm.messages // lowered.parts) if looped else 1
        single = comm.messages * lowered.widest <= lowered.parts * turns
        comm.cut(lowered.parts * turns, lowered.scratch)
        exchanges = list(self._of(comm.rank, comm.channel, at_once=single))
        for turn in range(turns):
            for one in exchanges:
                self._exchange(comm, one, turns, turn)

    def _exchange(self, comm: Comm, one: _Exchange, turns: int, turn: int) -> None:
        # Parts of chunks in a row do not lie in a row, nor do shares.
        apart = turns > 1 or self.over_links
        for chunk in range(one.span if apart else 1):
            comm.exchange(
                send=_part(one.send, chunk, turns, turn),
                to=one.to,
                receive=_part(one.receive, chunk, turns, turn),
                source=one.source,
                combine="reduce" if one.adds else "copy",
                span=1 if apart else one.span,
            )

    def _of(self, rank: Any, channel: int, *, at_once: bool) -> Iterator[_Exchange]:
        """Yields the exchanges of a rank.

        Args:
            channel: Number of the channel.
            at_once: Whether each transfer is a single message.
        """
        for each in self.lowered.rounds:
            for one in (*each.first, *each.copies):
                if isinstance(one, Move):
                    if one.rank == rank:
                        yield _Exchange(one.source, rank, one.target, rank, one.adds, one.span)
                elif one.receiver == rank:
                    yield _arriving(one)
            # They depend on nothing of each other: each channel begins with another, so that as
            # many as a rank sends to keep a link to each of these busy all the time.
            begin = channel % max(len(each.matchings), 1)
            matchings = [*each.matchings[begin:], *each.matchings[:begin]]
            for group in _groups(matchings) if at_once else [[m] for m in matchings]:
                if len(group) == 1:
                    yield from _both(group[0], rank)
                    continue
                transfers = [one for matching in group for one in matching]
                yield from (_leaving(one) for one in transfers if one.sender == rank)
                yield from (_arriving(one) for one in transfers if one.receiver == rank)
            yield from (_leaving(one) for one in each.sent if one.sender == rank)


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


def _groups(matchings: list[list[Transfer]]) -> Iterator[list[list[Transfer]]]:
    """Yields matchings that may all leave before any is waited for.

    They have one message for each pair of ranks, which always finds a slot: nobody waits for ever.
    """
    group: list[list[Transfer]] = []
    pairs: set[tuple[int, int]] = set()
    for matching in matchings:
        new = {(one.sender, one.receiver) for one in matching}
        if pairs & new:
            yield group
            group, pairs = [], set()
        group.append(matching)
        pairs |= new
    if group:
        yield group


def _part(chunk: int, further: int, turns: int, turn: int) -> int:
    return NOTHING if chunk == NOTHING else (chunk + further) * turns + turn


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
    setattr(module, file.operation, Program(lowered))
    over_links = Program(lowered, over_links=True)
    scope = Scope(file.ranks, *file.sizes, lowered.ways, lowered.pairs, over_links)
    module.scope = scope  # type: ignore[attr-defined]
    return module
