"""The blocks of a plan as blocks that send and receive, for its picture's rows, time and data.

Each access to another rank's memory becomes a message, and its other end a step of a block of that
rank. Steps of a rank wait for those whose chunks they touch, in the order of the run that proved
the plan: signals are not needed then, since messages carry what they order.
"""

from dataclasses import replace
from typing import Final, Literal

from kernbench.ccl.files.blocks import NOBODY, Block, Blocks, Event, Place, Step
from kernbench.ccl.files.one_sided import Moving, OneSided, Span
from kernbench.ccl.files.one_sided_proof import Run

Way = Literal["home", "put", "fetch"]

_Who = tuple[Way, int, int]
"""What a block does: what its block of the plan does at home, or the messages to or from a rank."""


class _Rows:
    """The blocks of a rank as they grow."""

    def __init__(self) -> None:
        self.numbers: Final[dict[tuple[_Who, bool], int]] = {}
        self.ends: Final[list[tuple[int, int, int]]] = []
        self.steps: Final[list[list[Step]]] = []
        self.writers: Final[dict[Place, Event]] = {}
        self.readers: Final[dict[Place, list[Event]]] = {}


class _Writer:
    def __init__(self, file: Blocks, plan: OneSided) -> None:
        self.file: Final = file
        self.plan: Final = plan
        self.rows: Final = [_Rows() for _ in range(file.ranks)]
        self.sums: Final = [0] * file.ranks
        self.run: Final = Run(file, plan, self.take)

    def blocks(self) -> Blocks:
        self.run.run()
        waited: list[set[Event]] = [
            {event for steps in rows.steps for step in steps for event in step.after}
            for rows in self.rows
        ]
        blocks = tuple(
            tuple(
                Block(
                    rank,
                    number,
                    *rows.ends[number],
                    tuple(
                        replace(step, publishes=Event(number, at) in waited[rank])
                        for at, step in enumerate(steps)
                    ),
                )
                for number, steps in enumerate(rows.steps)
            )
            for rank, rows in enumerate(self.rows)
        )
        # Packets lie behind other chunks of scratch, and sums that replace nothing behind these.
        extents = tuple(
            one._replace(s=2 * self.plan.scratch + more)
            for one, more in zip(self.file.buffers, self.sums, strict=True)
        )
        return replace(self.file, buffers=extents, blocks=blocks, plan=self.plan)

    def take(self, place: int, move: Moving) -> None:
        """Adds the steps of a moving; chunks that do not lie in a row take a step each."""
        count = move.reads[0].parts
        spans = (*move.reads, *move.writes)
        if count > 1 and not self._in_a_row(move):
            for part in range(count):

                def one(span: Span, part: int = part) -> Span:
                    return span._replace(first=span.first + part, parts=1)

                self._add(place, Moving(tuple(map(one, move.reads)), tuple(map(one, move.writes))))
            return
        assert all(span.parts == count for span in spans)
        self._add(place, move)

    def _in_a_row(self, move: Moving) -> bool:
        """Returns whether what is read came from chunks of the operation in a row."""
        run, chunks = self.run, self.file.chunks
        for span in move.reads:
            first = run.at(span)
            cells = run.cells[span.rank][first : first + span.parts]
            if any(cell.value < 0 for cell in cells):
                return False
            origins = [run.symbols.terms(cell.value)[0][0] % chunks for cell in cells]
            if origins != list(range(origins[0], origins[0] + span.parts)):
                return False
        return True

    def _place(self, span: Span) -> Place:
        behind = self.plan.scratch if span.packet and span.buffer == "s" else 0
        return Place(span.buffer, span.first + behind)

    def _add(self, place: int, move: Moving) -> None:
        group = self.plan.groups[place]
        rank, number = group.rank, group.number
        home = [span for span in move.writes if span.rank == rank]
        away = [span for span in move.writes if span.rank != rank]
        reads = list(move.reads)
        if not home and len(reads) == 1 and reads[0].rank == rank:
            result = self._place(reads[0])
        else:
            result = self._sum(rank, number, reads, [self._place(one) for one in home])
        count = reads[0].parts
        for span in home:
            target = self._place(span)
            if target != result:
                self._step(rank, ("home", number, 0), False, "cpy", result, target, count)
        for span in away:
            who: _Who = ("put", number, span.rank)
            self._step(rank, who, True, "s", result, result, count)
            target = self._place(span)
            there: _Who = ("put", number, rank)
            self._step(span.rank, there, False, "r", target, target, count)

    def _sum(self, rank: int, number: int, reads: list[Span], homes: list[Place]) -> Place:
        """Adds what is read, in order; returns where the sum lies."""
        places = [self._place(one) if one.rank == rank else None for one in reads]
        count = reads[0].parts
        target = homes[0] if homes else None
        if target is not None and len(places) == 2 and places[1] == target:
            reads, places = reads[::-1], places[::-1]  # a sum of two is the same the other way
        apart = target is None or (target in places[1:] and len(places) > 2)
        into = self._temporary(rank, count) if apart else target
        assert into is not None
        if places[0] != into:
            self._take_in(rank, number, reads[0], places[0], into, adds=False)
        for span, at in zip(reads[1:], places[1:], strict=True):
            self._take_in(rank, number, span, at, into, adds=True)
        return into

    def _temporary(self, rank: int, count: int) -> Place:
        first = 2 * self.plan.scratch + self.sums[rank]
        self.sums[rank] += count
        return Place("s", first)

    def _take_in(
        self, rank: int, number: int, span: Span, at: Place | None, into: Place, *, adds: bool
    ) -> None:
        count = span.parts
        if at is not None:
            name = "re" if adds else "cpy"
            self._step(rank, ("home", number, 0), False, name, at, into, count)
            return
        source = self._place(span)
        self._step(span.rank, ("fetch", number, rank), True, "s", source, source, count)
        name = "rrc" if adds else "r"
        self._step(rank, ("fetch", number, span.rank), False, name, into, into, count)

    def _step(
        self, rank: int, who: _Who, sends: bool, name: str, source: Place, target: Place, count: int
    ) -> None:
        rows = self.rows[rank]
        block = rows.numbers.get((who, sends))
        if block is None:
            block = rows.numbers[who, sends] = len(rows.steps)
            way, number, peer = who
            # The block of the plan, and which way its messages go, tell connections apart.
            channel = 0 if way == "home" else 2 * number + (way == "fetch")
            ends = (NOBODY, NOBODY) if way == "home" else (peer, NOBODY)
            rows.ends.append((*(ends if sends else ends[::-1]), channel))
            rows.steps.append([])
        step = Step(name, source, target, count)
        event = Event(block, len(rows.steps[block]))
        before: dict[int, int] = {}
        kind = step.kind

        def wait(one: Event | None) -> None:
            if one is not None and one.block != block:
                before[one.block] = max(before.get(one.block, 0), one.step)

        reads = [source] if kind.reads else []
        reads += [target] if kind.adds else []
        for first in reads:
            for at in (first._replace(chunk=first.chunk + part) for part in range(count)):
                known = self._known(rank, at)
                wait(rows.writers.get(known))
                rows.readers.setdefault(known, []).append(event)
        for part in range(count) if kind.stores else ():
            at = self._known(rank, target._replace(chunk=target.chunk + part))
            wait(rows.writers.get(at))
            for reader in rows.readers.pop(at, ()):
                wait(reader)
            rows.writers[at] = event
        after = tuple(Event(*one) for one in sorted(before.items()))
        rows.steps[block].append(replace(step, after=after))

    def _known(self, rank: int, at: Place) -> Place:
        """Returns a place by one name, as in place input and output are one."""
        return Place("s" if at.buffer == "s" else "i", self.run.number(rank, at))


def as_blocks(file: Blocks, plan: OneSided) -> Blocks:
    """Returns a plan's blocks as blocks that send and receive.

    Args:
        file: The collective, without blocks.
        plan: Its program.
    """
    return _Writer(file, plan).blocks()
