"""Reads the operations of a plan of MSCCL++, as its executor does them (`execution_kernel.hpp`)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from kernbench.ccl.files.json_text import Item
from kernbench.ccl.files.mscclpp_values import Values
from kernbench.ccl.files.one_sided import Buffer, Deed, Moving, Semaphore, Span
from kernbench.ccl.files.problems import Mark
from kernbench.config.problems import short

TURNS: Final = 3
"""Turns of a pipeline for each chunk: a first one, one in the middle and a last one."""

_LOCAL, _REMOTE, _SWITCH = "type", "buffer_id", "switch_channel_id"

_PAIRS: Final = {"put", "pws", "pwsf", "get", "ppkt", "copy", "cpkt", "upkt"}
"""Operations that move each source to the target of the same place."""

_SUMS: Final = {
    "re": (1, False, False),
    "res": (1, False, False),
    "rre": (1, True, False),
    "rres": (1, True, False),
    "repkt": (1, False, True),
    "respkt": (1, False, True),
    "recpkt": (2, False, True),
    "recspkt": (2, False, True),
}
"""Of sums: targets at home, whether further sources are remote, and whether they are packets."""

_SENDS: Final = {"res", "rres", "respkt", "recspkt"}
_SIGNALS: Final = {"signal", "wait", "rlxsignal", "rlxwait", "flush"}
_SWITCHES: Final = {"glres", "gstore", "gstorepkt"}
_SEMAPHORES: Final = {"sem_acquire", "sem_release"}
_OPERATIONS: Final = (
    *("nop", "barrier", *sorted(_PAIRS), "rppkt", *_SUMS, *sorted(_SIGNALS)),
    *(*sorted(_SWITCHES), *sorted(_SEMAPHORES), "pipeline"),
)


@dataclass(slots=True)
class Lists:
    """What a rank's blocks refer to: lists, by the kind of a channel."""

    channels: dict[str, list[Semaphore]]
    switches: list[tuple[Buffer, tuple[int, ...]]]
    buffers: list[tuple[int, Buffer]]
    semaphores: int


@dataclass(slots=True)
class Home:
    """A block's own lists."""

    rank: int
    where: str
    channels: dict[str, list[Semaphore]]
    switches: list[tuple[Buffer, tuple[int, ...]]]
    buffers: dict[str, list[tuple[int, Buffer]]]


class Operations:
    """Reads operations.

    Args:
        values: The file.
        grain: Parts of a chunk.

    Attributes:
        swapped: Places of `get` operations whose two ends have different chunks.
    """

    def __init__(self, values: Values, grain: int) -> None:
        self.values: Final = values
        self.grain: Final = grain
        self.swapped: list[str] = []

    def of(self, item: Item, home: Home, own: Lists) -> Iterable[Deed]:
        """Yields what an operation does: one deed, or those of all turns of a pipeline."""
        given = self.values.fields(item, "op", home.where)
        if not given:
            return
        name = self.values.one_of(given["name"], f"{home.where} name", _OPERATIONS)
        mark, where = item.mark, f"{home.where} {name}"
        if given.get("reduce_op") is not None and given["reduce_op"].value != "sum":
            text = f"expected sum; got {short(str(given['reduce_op'].value))!r}"
            self.values.add(given["reduce_op"], where, text, "F13")
        if name == "pipeline":
            yield from self._pipeline(given, home, own)
            return
        deed = Deed(name, line=mark.line, column=mark.column)
        if name == "nop":
            yield replace(deed, joins=True)
        elif name == "barrier":
            number = self.values.number(given.get("barrier_id"), f"{where} barrier_id")
            many = self.values.number(given.get("num_threadblocks"), f"{where} num_threadblocks", 1)
            yield replace(deed, joins=True, barrier=(number, many))
        elif name in _SEMAPHORES:
            picked = tuple(
                Semaphore(home.rank, home.rank, "device", self.values.number(one, where, 0, last))
                for last in (own.semaphores - 1,)
                for one in self.values.items(given, "semaphore_ids", where)
            )
            if name == "sem_acquire":
                yield replace(deed, awaits=picked)
            else:
                yield replace(deed, posts=picked)
        elif name in _SIGNALS:
            yield self._signal(deed, given, home)
        else:
            yield self._moving(deed, given, home, mark)

    def _picked_channels(self, given: dict[str, Item], home: Home, field: str) -> list[Semaphore]:
        kind = self.values.one_of(given.get("channel_type"), field, ("memory", "port"))
        known = home.channels[kind]
        return [
            found
            for one in self.values.items(given, "channel_ids", field)
            for found in self.values.pick(one, known, field, f"block's {kind} channels")
        ]

    def _signal(self, deed: Deed, given: dict[str, Item], home: Home) -> Deed:
        name, field = deed.name, f"{home.where} {deed.name}"
        channels = self._picked_channels(given, home, field)
        relaxed = name.startswith("rlx")
        if name == "flush":
            return replace(deed, flushes=tuple(one for one in channels if one.kind == "port"))
        if name.endswith("wait"):
            return replace(deed, awaits=tuple(channels), relaxed=relaxed)
        posts = tuple(_other_end(one) for one in channels)
        ports = tuple(channels) if any(one.kind == "port" for one in channels) else ()
        return replace(deed, posts=posts, relaxed=relaxed and not ports, ports=ports)

    def _moving(self, deed: Deed, given: dict[str, Item], home: Home, mark: Mark) -> Deed:
        name, field = deed.name, f"{home.where} {deed.name}"
        kind = "none"
        if "channel_type" in given:
            kinds = ("memory", "port", "switch", "none")
            kind = self.values.one_of(given["channel_type"], field, kinds)
        share = (0, 1)
        if "tbg_info" in given:
            info = self.values.fields(given["tbg_info"], "", field)
            size = self.values.number(info.get("tbg_size"), field, 1)
            share = self.values.number(info.get("tb_id"), field, 0, size - 1), size

        def spans(key: str, packets: Callable[[int], bool]) -> list[list[Span]]:
            return [
                self._span(one, home, kind, share, f"{field} {key}", packets(place))
                for place, one in enumerate(self.values.items(given, key, field))
            ]

        moves, sources, targets = _shapes(name, kind)
        reads = spans("src_buff", sources)
        writes = spans("dst_buff", targets)
        if not all(reads) or not all(writes):
            return deed  # a problem was added
        told = self._shape_problem(name, kind, reads, writes, home.rank)
        if told:
            self.values.problems.add(mark, "F12", field, told)
            return deed
        counts = {one.parts for each in (*reads, *writes) for one in each}
        if len(counts) > 1 and not moves:
            text = f"expected as many chunks of each; got {sorted(c // self.grain for c in counts)}"
            self.values.problems.add(mark, "F12", field, text)
            return deed
        if moves:
            for read, write in zip(reads, writes, strict=True):
                if read[0].parts != write[0].parts:
                    self.values.problems.add(mark, "F12", field, "source and target differ in size")
                if name == "get" and read[0].first != write[0].first:
                    self.swapped.append(f"{self.values.problems.path}:{mark.line}:{mark.column}")
            done = tuple(Moving(tuple(r), tuple(w)) for r, w in zip(reads, writes, strict=True))
        elif name == "rppkt":
            done = tuple(Moving(tuple(reads[0]), tuple(write)) for write in writes)
        else:
            flat = [one for each in reads for one in each]
            if name in _SUMS and _SUMS[name][2]:
                flat = [*flat[1:], flat[0]]  # the kernel adds packets first
            done = (Moving(tuple(flat), tuple(one for each in writes for one in each)),)
        if kind != "port":
            return replace(deed, moves=done)
        channels = self._picked_channels(given, home, field)
        peers = [next(s.rank for s in move.writes if s.rank != home.rank) for move in done]
        if [one.peer for one in channels] != peers:
            text = f"expected channels to ranks {peers}, as the targets are; got"
            self.values.problems.add(mark, "F12", field, f"{text} {[one.peer for one in channels]}")
            return deed
        posts = tuple(_other_end(one) for one in channels) if name in {"pws", "pwsf"} else ()
        flushes = tuple(channels) if name == "pwsf" else ()
        return replace(deed, moves=done, posts=posts, ports=tuple(channels), flushes=flushes)

    def _span(
        self,
        item: Item,
        home: Home,
        kind: str,
        share: tuple[int, int],
        field: str,
        packet: bool,
    ) -> list[Span]:
        """Returns the parts that an entry names: one span, or one for each member of a switch.

        In which order a switch adds is not known. Here this rank's own comes first, then those of
        the ranks after it: no two ranks then read from the same one at a time.
        """
        given = self.values.fields(item, "buffer", field)
        named = [key for key in (_LOCAL, _REMOTE, _SWITCH) if key in given]
        if len(named) != 1:
            self.values.add(item, field, "expected one of type, buffer_id and switch_channel_id")
            return []
        first = self.values.number(given.get("index"), f"{field} index")
        size = self.values.number(given.get("size"), f"{field} size", 1)
        count = size * self.grain // share[1]
        first = first * self.grain + share[0] * count
        key = given[named[0]]
        if named[0] == _LOCAL:
            buffer: Any = self.values.one_of(key, f"{field} type", "ios")
            own = self.values.number(given["rank"], field) if "rank" in given else home.rank
            if own != home.rank:
                self.values.add(given["rank"], field, f"expected this rank, {home.rank}; got {own}")
            return [Span(home.rank, buffer, first, count, packet)]
        if named[0] == _REMOTE:
            known = home.buffers.get(kind, [])
            return [
                Span(rank, buffer, first, count, packet)
                for rank, buffer in self.values.pick(key, known, field, "block's remote buffers")
            ]
        return [
            Span(rank, buffer, first, count, packet)
            for buffer, ranks in self.values.pick(
                key, home.switches, field, "block's switch channels"
            )
            for rank in sorted(ranks, key=lambda rank: (rank < home.rank, rank))
        ]

    @staticmethod
    def _shape_problem(
        name: str, kind: str, reads: list[list[Span]], writes: list[list[Span]], rank: int
    ) -> str:
        """Returns what is wrong with the number and the places of sources and targets, or ''."""
        if not reads or not writes:
            return "expected src_buff and dst_buff"
        if kind == "port" and name not in {"put", "pws", "pwsf", "ppkt", "rppkt"}:
            return "expected a memory channel"
        if kind != "port" and name in {"pws", "pwsf"}:
            return "expected a port channel: the executor's memory channels do not signal with it"
        if name in _SWITCHES:
            return ""
        at_home = [[one.rank == rank for one in each] == [True] for each in (*reads, *writes)]
        mine, theirs = at_home[: len(reads)], at_home[len(reads) :]
        if name in _PAIRS:
            wanted = (name != "get", name in {"get", "copy", "cpkt", "upkt"})
            if len(reads) != len(writes):
                return f"expected as many targets as sources; got {len(writes)} and {len(reads)}"
            if set(mine) != {wanted[0]} or set(theirs) != {wanted[1]}:
                return "expected a buffer of this rank at one end, and of another at the other"
            return ""
        if name == "rppkt":
            return "" if mine == [True] and not any(theirs) else "expected one source, of this rank"
        home, remote, _ = _SUMS[name]
        most = None if name in _SENDS else home
        if len(reads) < 2 or mine[0] is not True or set(mine[1:]) != {not remote}:
            return "expected two sources or more, " + (
                "the first of this rank, the others of others" if remote else "all of this rank"
            )
        if len(theirs) < home or not all(theirs[:home]) or any(theirs[home:]):
            return f"expected {home} targets of this rank, and then others'"
        return "" if most is None or len(theirs) == most else f"expected {most} targets"

    def _pipeline(self, given: dict[str, Item], home: Home, own: Lists) -> Iterable[Deed]:
        where = f"{home.where} pipeline"
        if "iter_context" not in given:
            self.values.add(given["name"], where, "expected a key iter_context", "F1")
            return
        context = self.values.fields(given["iter_context"], "", where)
        chunks = self.values.number(context.get("num_chunks"), f"{where} num_chunks", 1, 1 << 12)
        self.values.number(context.get("unit_size"), f"{where} unit_size", 1)
        inner: list[Deed] = []
        for item in self.values.items(given, "ops", where):
            if isinstance(item.value, dict) and "tbg_info" in item.value:
                self.values.add(item, where, "expected no group of blocks inside a pipeline", "F13")
                continue
            inner += self.of(item, home, own)
        turns = chunks * TURNS
        each = self.grain // TURNS
        for deed in inner:
            counts = {s.parts for move in deed.moves for s in (*move.reads, *move.writes)}
            if counts - {chunks * self.grain}:
                text = f"expected operations on num_chunks chunks, {chunks}"
                self.values.problems.add(Mark(deed.line, deed.column), "F12", where, text)
                return
        for turn in range(turns):

            def part(span: Span, turn: int = turn) -> Span:
                return span._replace(first=span.first + turn * each, parts=each)

            for deed in inner:
                moves = tuple(
                    Moving(tuple(map(part, move.reads)), tuple(map(part, move.writes)))
                    for move in deed.moves
                )
                yield replace(deed, moves=moves)


def _other_end(channel: Semaphore) -> Semaphore:
    return channel._replace(rank=channel.peer, peer=channel.rank)


def _shapes(name: str, kind: str) -> tuple[bool, Callable[[int], bool], Callable[[int], bool]]:
    """Returns whether sources go to targets in pairs, and which of both are packets, by place."""

    def never(_: int) -> bool:
        return False

    def always(_: int) -> bool:
        return True

    if name in _SUMS:
        home, _, packets = _SUMS[name]
        if not packets:
            return False, never, never
        return False, lambda place: place > 0, lambda place: place > 0 or home == 0
    sources = {"upkt": always, "rppkt": always, "gstorepkt": always}.get(name, never)
    targets = {"ppkt": always, "rppkt": always, "cpkt": always, "gstorepkt": always}.get(name)
    if name == "ppkt" and kind == "port":
        sources = always  # `handlePutPackets`: a port sends what is in packets already
    return name in _PAIRS, sources, targets or never
