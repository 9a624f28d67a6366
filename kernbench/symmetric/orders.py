"""Accesses of several ranks to memory that they share, and what puts them in order (M10).

What a stream comes after is in its `seen`, as for the streams of one rank; meetings, signals and
words that kernels poll carry it from rank to rank. The programs of a kernel that runs beside others
come after different things: each is a `Line` of its own, whose parts end where it tells others.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from kernbench.errors import CallSite, Fact, site_fact
from kernbench.memory import View
from kernbench.process.access import AccessError
from kernbench.process.called import called
from kernbench.process.disorder import hint, refuse
from kernbench.process.process import Process
from kernbench.ranks.meeting import Exchange
from kernbench.sim_engine.command import Command, Stream
from kernbench.ttir.module import Operation
from kernbench.ttir.races import Spans, flat

Seen = Mapping[Stream, int]
"""The last command of each stream, or part of each program, that comes before something."""

Kind = Literal["read", "polled", "wrote", "told", "atomic", "narrow"]
"""What is done: `polled` is a volatile load, `told` a write of few bytes by a command, `narrow` an
operation that is atomic on its own device alone."""

_VERBS: Final[Mapping[Kind, str]] = {
    "read": "read",
    "polled": "polled",
    "wrote": "wrote",
    "told": "wrote",
    "atomic": "changed",
    "narrow": "changed",
}

FLAGS: Final = 4096
"""Most bytes that an operation writes so that kernels may poll them; more are no flags."""

_MET: Final = 64
"""Meetings of a stream that are kept; who comes after an earlier one of them alone is not known."""

_MOST: Final = 8192
"""Accesses of a block that are kept; if there are more, the older half is forgotten."""

_MEET: Final = (
    "let the ranks meet in between: handle.barrier(), or words that are changed with "
    'sem="release" and looked at with sem="acquire", both with scope="sys"'
)
_ORDER: Final = 'say sem="acq_rel", scope="sys" there, or let the ranks meet: handle.barrier()'
_WIDEN: Final = 'say scope="sys": by default, an operation is atomic on its own device alone'


class Line(Stream):
    """A program of a running kernel, as a stream whose commands are its parts.

    Args:
        name: See `Stream`, as for `sip`.
        command: Stream and number of the kernel's command.

    Attributes:
        of: Stream of the kernel's command.
        number: Number of that command.
        touches: How many accesses of it are kept.
    """

    __slots__ = ("number", "of", "touches")

    def __init__(self, name: str, sip: int, command: tuple[Stream, int]) -> None:
        super().__init__(name, sip)
        self.of, self.number = command
        self.touches, self.count = 0, 1


def joined(*known: Seen) -> dict[Stream, int]:
    """Returns what comes before, of several; without programs of which nothing is kept."""
    found: dict[Stream, int] = {}
    for seen in known:
        for stream, number in seen.items():
            if number > found.get(stream, 0):
                found[stream] = number
    return {
        each: number
        for each, number in found.items()
        if not isinstance(each, Line) or (each.touches and found.get(each.of, 0) < each.number)
    }


def known_to(process: Process, stream: Stream, number: int) -> dict[Stream, int]:
    """Returns what happens before anything ordered after the command.

    Args:
        process: The rank that issues the command.
        stream: Where it issues the command.
        number: Place of the command there, from 1.
    """
    near = joined(process.seen, stream.seen, {stream: number})
    found: list[Seen] = [near]
    for line, last in near.items():
        if line.met:
            found += [before for begin, before in line.met if begin <= last][-1:]
    return joined(*found)


def follow(process: Process, stream: Stream, number: int, known: Seen) -> None:
    """Notes that a command comes after something of other ranks.

    Args:
        process: The rank that issues the command.
        stream: Where it issues the command.
        number: Place of the command there, from 1.
        known: What else comes before it.
    """
    stream.met = stream.met[-_MET:]
    stream.met.append((number, joined(known_to(process, stream, number), known)))


def watch(process: Process) -> None:
    """Lets what all ranks of a process's spawn do together put their streams in order."""
    for each in process.ctx.main.ranks:
        each.meets = meet


def meet(exchange: Exchange, process: Process, command: Command) -> None:
    """Notes that a rank meets others; once all have come, each comes after what all knew.

    Also where a collective orders fewer: a broadcast of NCCL lets its root go on.
    """
    stream, number = command.stream, command.number
    known = exchange.known = exchange.known or []
    known.append((process, stream, number, known_to(process, stream, number)))
    if exchange.absent() or len(known) < len(exchange.calls):
        return
    everything = joined(*(each[-1] for each in known))
    for rank, line, last, _ in known:
        follow(rank, line, last, everything)


@dataclass(eq=False, slots=True)
class Touch:
    """An access, or those of one part of a program.

    Attributes:
        process: The rank.
        does: What it does.
        spans: The bytes of the block, in order and apart.
        low: The first byte.
        high: The one after the last.
        stream: Stream of its command.
        number: Number of its command.
        line: The program; None of a command that is no kernel beside others.
        part: Part of the program.
        site: Where the user asked for it.
        told: Returns what reports say of a span, by its place.
    """

    process: Process
    does: Kind
    spans: Spans
    stream: Stream
    number: int
    line: Line | None
    part: int
    site: CallSite | None
    told: Callable[[int], Sequence[str | Fact]]
    low: int = 0
    high: int = 0

    def __post_init__(self) -> None:
        self.low, self.high = int(self.spans.starts[0]), int(self.spans.ends[-1])

    def after(self, other: "Touch", known: Sequence[Seen]) -> bool:
        """Returns whether it comes after another one.

        Args:
            known: What it comes after.
        """
        if self.stream is other.stream and (
            other.number < self.number or other.line is self.line is not None
        ):
            return True
        line, part = other.line, other.part
        return any(seen.get(other.stream, 0) >= other.number for seen in known) or (
            line is not None and any(seen.get(line, 0) >= part for seen in known)
        )

    def collides(self, other: "Touch") -> bool:
        """Returns whether one of both must come after the other one."""
        if self.process is other.process:
            return False  # which others look at: the guards of its storages, `ttir.races`
        kinds = {self.does, other.does}
        words = kinds <= {"polled", "atomic", "told"} and kinds != {"told"}
        return not (kinds <= {"read", "polled"} or words)

    def covers(self, other: "Touch") -> bool:
        """Returns whether who races with an earlier one races with this one, too."""
        alike = self.does in {"wrote", "narrow", other.does}
        inside = self.low <= other.low and other.high <= self.high
        return alike and inside and (len(self.spans.ends) == 1 or other.spans.within(self.spans))


class Word:
    """A word of memory that kernels poll: what comes before whoever sees it.

    Attributes:
        known: The same by who may see it: None stands for all ranks, a process for its programs.
        by: The rank that has changed it last.
        weak: The operation that did, if it puts nothing before those who see it on other devices.
    """

    __slots__ = ("by", "known", "weak")

    def __init__(self) -> None:
        self.known: dict[Process | None, Seen] = {}
        self.by: Process | None = None
        self.weak: Operation | None = None


class Order:
    """The accesses of all ranks to one block, as long as others may come in no order with them.

    Attributes:
        label: Name of the block in reports.
        nbytes: Its size.
        words: What whoever sees a word comes after, by its first byte.
    """

    def __init__(self, nbytes: int) -> None:
        self.label = "symmetric memory"
        self.nbytes: Final = nbytes
        self.words: dict[int, Word] = {}
        self._touches: list[Touch] = []

    def forget(self) -> None:
        """Forgets all accesses."""
        self._touches.clear()

    def add(
        self,
        new: Touch,
        known: Sequence[Seen],
        weak: Mapping[Process, str],
        *,
        checks: bool = True,
    ) -> None:
        """Looks at an access, and keeps it.

        Args:
            known: What it comes after.
            weak: By rank, which operation on a word might have put it after that rank's accesses,
                and does not.
            checks: Whether nothing puts it after others but what is known.

        Raises:
            AccessError: If nothing puts it after one of another rank (M10).
        """
        kept: list[Touch] = []
        low, high = new.low, new.high
        for old in self._touches:
            if old.low < high and low < old.high:
                if new.after(old, known):
                    if new.covers(old):
                        if old.line is not None:
                            old.line.touches -= 1
                        continue
                elif checks and new.collides(old):
                    places = new.spans.first_in(old.spans)
                    if places is not None:
                        self._refuse(new, old, places, weak.get(old.process))
            kept.append(old)
        if new.line is not None:
            new.line.touches += 1
        self._touches = kept[len(kept) // 2 :] if len(kept) > _MOST else kept
        self._touches.append(new)

    def tell(self, flags: Iterable[int], process: Process, stream: Stream) -> None:
        """Puts what a stream has done before whoever sees words that its last command has written.

        Args:
            flags: First bytes of the words.
            process: The rank.
        """
        known = known_to(process, stream, stream.count)
        for flag in flags:
            word = self.words[flag] = Word()
            word.known, word.by = {None: known}, process

    def _refuse(self, new: Touch, old: Touch, places: tuple[int, int], weak: str | None) -> None:
        mine, theirs = new.process, old.process
        what = (
            f"{_VERBS[new.does]} symmetric memory that {theirs.name} {_VERBS[old.does]}, "
            "in no order"
        )
        (here, there), ends = places, (new.spans.ends, old.spans.ends)
        low = max(new.spans.starts[here], old.spans.starts[there])
        high = min(ends[0][here], ends[1][there])
        facts = [
            *new.told(here),
            *old.told(there),
            f"{self.label}, bytes {low}..{high} of {self.nbytes}",
        ]
        if weak is not None:
            facts.append(weak)
        if old.line is not None:
            facts.append(site_fact(old.site, f"{theirs.name} launched its kernel at"))
        way = _MEET if weak is None else _ORDER
        if "narrow" in {new.does, old.does}:
            way = _WIDEN
        error = AccessError(f"{mine.name} {what}", facts, hint=hint(mine, way), code="M10")
        refuse(mine, error, what, old.site)

    def touch(
        self,
        process: Process,
        stream: Stream,
        view: View,
        name: str,
        *,
        writes: bool,
        meets: bool = False,
    ) -> None:
        """Looks at what the next command of a stream does, and keeps it.

        Args:
            process: The rank.
            view: The elements.
            name: Name of the command.
            meets: Whether it is a collective, which writes what it has got of all ranks.

        Raises:
            AccessError: If nothing puts it after an access of another rank (M10).
        """
        spans = bytes_of(view)
        if not len(spans.starts):
            return
        few = int(spans.ends[-1] - spans.starts[0]) <= FLAGS
        does: Kind = "read" if not writes else "told" if few else "wrote"
        site, number = process.call_site(), stream.count + 1
        told = called(process, name, site=site)
        fact = Fact(f"{process.name}: {name} {told}", told.involved)
        new = Touch(process, does, spans, stream, number, None, 0, site, lambda _: [fact])
        known = known_to(process, stream, stream.count)
        self.add(new, (known,), {}, checks=not (writes and meets))


def bytes_of(view: View) -> Spans:
    """Returns the bytes of a window, of a type of whole bytes, from the begin of its memory on."""
    size, run = view.dtype.itemsize, 1
    dims = sorted(
        (stride, extent)
        for extent, stride in zip(view.shape, view.strides, strict=True)
        if extent != 1 and stride
    )
    while dims and dims[0][0] == run:
        run *= dims.pop(0)[1]
    starts = np.full(1 if 0 not in view.shape else 0, view.offset, np.int64)
    for stride, extent in dims:
        starts = (np.arange(extent, dtype=np.int64)[:, None] * stride + starts).reshape(-1)
    nobody = np.zeros(len(starts), np.int32)
    return flat(Spans(starts * size, (starts + run) * size, nobody, nobody))
