"""Proves a collective whose blocks access memory of other ranks, by one symbolic run.

What happens before what is kept as sets of deeds, in two orders: that of execution, and that of
memory, which only nops, barriers, and signals that are not relaxed make. Threads of a block meet at
nops and barriers alone, so deeds between two of them are in no order. A wait has one block, which
waits for a count: so blocks are deterministic, and one run stands for all (see `prove`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kernbench.ccl.files.blocks import Blocks, Memory, Place
from kernbench.ccl.files.one_sided import Deed, Group, Moving, OneSided, Semaphore, Span
from kernbench.ccl.files.verdict import SHOWN, Finding, Symbols, Verdict, differs, terms_of

NOBODY: Final = -1
"""A chunk's value before anybody has written it."""


@dataclass(slots=True)
class Cell:
    """A part of a chunk of a rank's memory.

    Attributes:
        value: A number of `Symbols`, or `NOBODY`.
        packet: Whether it was written with a flag.
        writer: The deed that wrote it last, by its number in the run; -1 for none.
        flow: Bits of the readings on which its value depends.
        readers: Deeds that read it since, each with the bit of that reading.
    """

    value: int = NOBODY
    packet: bool = False
    writer: int = -1
    flow: int = 0
    readers: list[tuple[int, int]] = field(default_factory=list)


class Run:
    """One run of all blocks, with symbolic values.

    Args:
        file: The collective, without blocks.
        plan: Its program.
        watch: Called with each moving and its group before it happens.

    Attributes:
        findings: What is wrong.
        levels: For each block, the level of each of its deeds that ran, and that of its end.
        accesses: Reads and writes of parts that were compared.
        sent: Parts that went to another rank.
    """

    def __init__(
        self,
        file: Blocks,
        plan: OneSided,
        watch: Callable[[int, Moving], None] | None = None,
    ) -> None:
        self.file: Final = file
        self.plan: Final = plan
        self.findings: dict[str, list[str]] = {}
        self.levels: Final[list[list[int]]] = [[] for _ in plan.groups]
        self.accesses = self.sent = self._readings = 0
        self.symbols: Final = Symbols()
        self._watch: Final = watch
        self._memory: Final = Memory(file, file.modes[0])
        self._packets: Final = self._memory.size
        size = self._memory.size + plan.scratch
        self.cells: Final = [[Cell() for _ in range(size)] for _ in range(file.ranks)]
        ranks = file.ranks
        # The first deeds are the ranks' beginnings.
        self._who: Final[list[tuple[int, int]]] = [(NOBODY, rank) for rank in range(ranks)]
        self._runs: Final = [1 << rank for rank in range(ranks)]  # before it, and itself
        self._sees: Final = [1 << rank for rank in range(ranks)]
        groups = plan.groups
        self._at: Final = [0] * len(groups)
        self._base: Final = [(1 << group.rank, 1 << group.rank) for group in groups]
        self._since: Final[list[list[int]]] = [[] for _ in groups]
        self._ends: Final = [0] * len(groups)
        self._posts: Final[dict[Semaphore, list[int]]] = {}
        self._taken: Final[dict[Semaphore, int]] = {}
        self._proxies: Final[dict[Semaphore, list[tuple[int, int]]]] = {}  # deed, and what it does
        self._arrived: Final[dict[tuple[int, int], list[int]]] = {}
        self._level: Final[list[int]] = [0] * ranks
        posters: dict[Semaphore, set[int]] = {}
        self._all: Final[dict[Semaphore, int]] = {}
        for place, group in enumerate(groups):
            for deed in group.deeds:
                for one in deed.posts:
                    posters.setdefault(one, set()).add(place)
                    self._all[one] = self._all.get(one, 0) + 1
        self._mixed: Final = {one for one, who in posters.items() if len(who) > 1}
        for rank in range(ranks):
            own = file.share if file.operation == "all_gather" else file.chunks
            first = self._memory.at(rank, Place("i", 0))
            for chunk in range(own):
                cell = self.cells[rank][first + chunk]
                cell.value = self.symbols.number(((rank * file.chunks + chunk, 1),))
                cell.writer = rank

    # Order

    def _add(self, place: int, number: int, runs: int, sees: int, level: int) -> int:
        """Adds a deed that comes after others; returns its number in the run."""
        own = len(self._who)
        self._who.append((place, number))
        self._runs.append(runs | 1 << own)
        self._sees.append(sees | 1 << own)
        self._level.append(level)
        return own

    def run(self) -> bool:
        """Runs all blocks until none can go on; returns whether all have ended."""
        again = True
        while again:
            again = False
            for place, group in enumerate(self.plan.groups):
                while self._at[place] < len(group.deeds) and self._step(place, group):
                    again = True
        return all(
            at == len(group.deeds) for at, group in zip(self._at, self.plan.groups, strict=True)
        )

    def _step(self, place: int, group: Group) -> bool:
        number = self._at[place]
        deed = group.deeds[number]
        if not self._ready(deed):
            return False
        if deed.barrier is not None:
            return self._meet(place, group, deed)
        runs, sees = self._base[place]
        begin = self._ends[place]
        if deed.joins:
            for other in self._since[place]:
                runs |= self._runs[other]
                sees |= self._sees[other]
        for one in deed.awaits:
            for post in self._take(one):
                runs |= self._runs[post]
                sees |= 0 if deed.relaxed else self._sees[post]
                begin = max(begin, self._level[post])
        if not deed.moves and not deed.posts:
            for one in deed.flushes:
                runs, sees, begin = self._behind(one, runs, sees, begin)
        for move in deed.moves:
            for span in move.reads:
                for cell in self._of(span) if span.packet else ():
                    begin = max(begin, self._level[cell.writer])
        end = begin + (deed.name != "nop")
        own = self._add(place, number, runs, sees, end)
        self._do(place, number, deed, own, end)
        if deed.joins:
            self._base[place] = self._runs[own], self._sees[own]
            self._since[place] = []
        else:
            self._since[place].append(own)
        self._pass(place, begin, end)
        return True

    def _pass(self, place: int, begin: int, end: int) -> None:
        self.levels[place].append(begin)
        self._ends[place] = end
        self._at[place] += 1

    def _behind(self, port: Semaphore, runs: int, sees: int, begin: int) -> tuple[int, int, int]:
        """Adds what a port did before, for deeds that have surely come earlier."""
        earlier = runs
        for deed, done in self._proxies.get(port, ()):
            if earlier >> deed & 1:
                runs |= self._runs[done]
                sees |= self._sees[done]
                begin = max(begin, self._level[done])
        return runs, sees, begin

    def _ready(self, deed: Deed) -> bool:
        for one in deed.awaits:
            given = len(self._posts.get(one, ())) + self.plan.initial.get(one, 0)
            if given <= self._taken.get(one, 0):
                return False
        # A port reads packets in its own time, but only what a block has seen: `rppkt` waits.
        waits = deed.moves if not deed.ports or deed.name == "rppkt" else ()
        return all(
            cell.packet
            for move in waits
            for span in move.reads
            if span.packet
            for cell in self._of(span)
        )

    def _take(self, one: Semaphore) -> list[int]:
        """Counts a semaphore down; returns the posts that surely have come then."""
        taken = self._taken[one] = self._taken.get(one, 0) + 1
        needed = taken - self.plan.initial.get(one, 0)
        posts = self._posts.get(one, [])
        if one in self._mixed and needed < self._all[one]:
            return []  # any of the blocks that signal may have been the first
        return posts[: max(needed, 0)]

    def _meet(self, place: int, group: Group, deed: Deed) -> bool:
        assert deed.barrier is not None
        key = group.rank, deed.barrier[0]
        waiting = self._arrived.setdefault(key, [])
        if place not in waiting:
            waiting.append(place)
        if len(waiting) < deed.barrier[1]:
            return False
        runs = sees = begin = 0
        for each in waiting:
            runs |= self._base[each][0]
            sees |= self._base[each][1]
            begin = max(begin, self._ends[each])
            for other in self._since[each]:
                runs |= self._runs[other]
                sees |= self._sees[other]
        for each in waiting:
            own = self._add(each, self._at[each], runs, sees, begin + 1)
            self._base[each] = self._runs[own], self._sees[own]
            self._since[each] = []
            self._pass(each, begin, begin + 1)
        self._arrived[key] = []
        return True

    def _do(self, place: int, number: int, deed: Deed, own: int, end: int) -> None:
        """Moves and signals, by the block itself or by the proxies of its ports."""
        if not deed.ports:
            for move in deed.moves:
                self._move(place, own, move)
            for one in deed.posts:
                self._posts.setdefault(one, []).append(own)
            return
        for index, port in enumerate(deed.ports):
            runs, sees, _ = self._behind(port, self._runs[own], self._sees[own], 0)
            done = self._add(place, number, runs, sees, end)
            self._proxies.setdefault(port, []).append((own, done))
            if deed.moves:
                self._move(place, done, deed.moves[index])
            if deed.posts:
                self._posts.setdefault(deed.posts[index], []).append(done)
            if deed.flushes:
                self._runs[own] |= self._runs[done]
                self._sees[own] |= self._sees[done]

    # Memory

    def at(self, span: Span) -> int:
        """Returns where the first part of a span lies in its rank's cells."""
        if span.packet and span.buffer == "s":
            return self._packets + span.first
        return self._memory.at(span.rank, Place(span.buffer, span.first))

    def number(self, rank: int, place: Place) -> int:
        """Returns a number that is equal for places that are the same memory."""
        return place.chunk if place.buffer == "s" else self._memory.at(rank, place)

    def _of(self, span: Span) -> list[Cell]:
        first = self.at(span)
        return self.cells[span.rank][first : first + span.parts]

    def _move(self, place: int, own: int, move: Moving) -> None:
        if self._watch is not None:
            self._watch(place, move)
        values: list[int] | None = None
        count = move.reads[0].parts
        flows = [1 << self._readings + part for part in range(count)]
        for span in move.reads:
            cells = self._of(span)
            more = [self._read(own, span, part, cell) for part, cell in enumerate(cells)]
            flows = [flow | cell.flow for flow, cell in zip(flows, cells, strict=True)]
            values = more if values is None else self.symbols.sums(values, more)
        self._readings += count
        assert values is not None
        rank = self.plan.groups[place].rank
        for span in move.writes:
            self._check_apart(own, move, span)
            cells = self._of(span)
            for part, (cell, value, flow) in enumerate(zip(cells, values, flows, strict=True)):
                self._write(own, span, part, cell, flow)
                cell.value, cell.packet, cell.writer, cell.flow = value, span.packet, own, flow
        spans = (*move.reads, *move.writes)
        self.sent += sum(span.parts for span in spans if span.rank != rank)

    def _check_apart(self, own: int, move: Moving, written: Span) -> None:
        """Notes a write of parts that the same operation reads for others: its threads are many."""
        first = self.at(written)
        for span in move.reads:
            shift = first - self.at(span)
            if span.rank == written.rank and 0 < abs(shift) < written.parts:
                text = "which it reads, in any order: its source and its target overlap"
                self._note("race", own, written, max(-shift, 0), text, "writes")

    def _read(self, own: int, span: Span, part: int, cell: Cell) -> int:
        self.accesses += 1
        last = cell.writer
        if cell.value == NOBODY:
            self._note("unwritten", own, span, part, "which nobody wrote")
        elif span.packet:
            self._runs[own] |= self._runs[last]
        elif not self._sees[own] >> last & 1:
            self._unordered(own, span, part, "reads", last, "writes")
        cell.readers.append((own, self._readings + part))
        return cell.value

    def _write(self, own: int, span: Span, part: int, cell: Cell, flow: int) -> None:
        """Compares a write with the accesses before it.

        Args:
            flow: Readings on which the value depends: each of them has ended, whatever the order.
        """
        self.accesses += 1
        others = [(reader, "reads") for reader, bit in cell.readers if not flow >> bit & 1]
        if len(others) == len(cell.readers):  # else it depends on what the writer wrote
            others.append((cell.writer, "writes"))
        for other, does in others:
            if other not in {own, -1} and not self._sees[own] >> other & 1:
                self._unordered(own, span, part, "writes", other, does)
        rank = self.plan.groups[self._who[own][0]].rank
        if span.rank != rank and span.buffer != "s" and not self._runs[own] >> span.rank & 1:
            text = f"of rank {span.rank}, which may not have begun"
            self._note("early", own, span, part, text, "writes")
        cell.readers.clear()

    def _unordered(
        self, own: int, span: Span, part: int, does: str, other: int, other_does: str
    ) -> None:
        place, number = self._who[other]
        ordered = self._runs[own] >> other & 1
        if place == NOBODY:
            if does == "reads" and not ordered:
                text = f"of rank {span.rank}, which may not have begun"
                self._note("early", own, span, part, text, does)
            return
        group = self.plan.groups[place]
        text = f"which {group} step {number} ({group.deeds[number].name}) {other_does}, "
        text += "ordered by relaxed signals alone" if ordered else "in any order"
        self._note("relaxed" if ordered else "race", own, span, part, text, does)

    def _note(
        self, kind: str, own: int, span: Span, part: int, text: str, does: str = "reads"
    ) -> None:
        place, number = self._who[own]
        where = self.plan.where(self.plan.groups[place], number)
        one = self.plan.named(span._replace(first=span.first + part, parts=1))
        self._tell(kind, f"{where} {does} {one}, {text}")

    def _tell(self, kind: str, text: str) -> None:
        texts = self.findings.setdefault(kind, [])
        texts.append(text if len(texts) < SHOWN else "")

    # The end

    def check_end(self) -> None:
        """Notes outputs that are wrong, or that may come after their rank has ended."""
        file, plan = self.file, self.plan
        outputs = file.share if file.operation == "reduce_scatter" else file.chunks
        ends = [[0, 0] for _ in range(file.ranks)]
        # What ports do is no end of a block: a rank may end before it.
        proxied = {done for each in self._proxies.values() for _, done in each}
        for own, (place, _) in enumerate(self._who):
            if place != NOBODY and own not in proxied:
                end = ends[plan.groups[place].rank]
                end[0] |= self._runs[own]
                end[1] |= self._sees[own]
        for rank, (runs, sees) in enumerate(ends):
            first = self._memory.at(rank, Place("o", 0))
            inputs = self._memory.at(rank, Place("i", 0))
            own_inputs = file.share if file.operation == "all_gather" else file.chunks
            for chunk in range(outputs):
                cell = self.cells[rank][first + chunk]
                wanted = self.symbols.number(terms_of(file, rank, chunk))
                name = plan.named(Span(rank, "o", chunk, 1))
                place, number = self._who[cell.writer]
                if cell.value != wanted:
                    text = f"{file.path}: rank {rank} ends with a wrong {name}: "
                    written = cell.writer >= 0 and place != NOBODY
                    text += differs(
                        self.symbols, file.chunks, cell.value, wanted, plan.grain, written=written
                    )
                    if written:
                        text += f"; last written by {plan.where(plan.groups[place], number)}"
                    self._tell("result", text)
                elif not sees >> cell.writer & 1:
                    ordered = runs >> cell.writer & 1
                    text = f"{plan.where(plan.groups[place], number)} writes rank {rank}'s {name}, "
                    text += "which only relaxed signals" if ordered else "which nothing"
                    text += " order before the rank's end"
                    self._tell("relaxed" if ordered else "late", text)
            span = {*range(first, first + outputs), *range(inputs, inputs + own_inputs)}
            for at in sorted(span):
                for reader, _ in self.cells[rank][at].readers:
                    if not runs >> reader & 1:
                        place, number = self._who[reader]
                        text = plan.where(plan.groups[place], number)
                        text += f" reads rank {rank}'s memory, which nothing orders before the"
                        self._tell("late", f"{text} rank's end: what follows may write there")

    def deadlock(self) -> str:
        """Returns who waits for whom, from a block that cannot go on."""
        groups = self.plan.groups
        stuck = [p for p, group in enumerate(groups) if self._at[p] < len(group.deeds)]
        path: list[int] = []
        place: int | None = stuck[0]
        while place is not None and place not in path:
            path.append(place)
            place = self._waited_for(place)
        if place is not None:
            path = path[path.index(place) :]
        shown = [self.plan.where(groups[one], self._at[one]) for one in path[:SHOWN]]
        if place is None:
            shown.append("nobody: no block that can still run would end the wait")
        return f"{len(stuck)} blocks wait for ever\n    " + "\n    waits for ".join(shown)

    def _waited_for(self, place: int) -> int | None:
        """Returns a block that would end the wait of a block, if it went on."""
        groups = self.plan.groups
        group = groups[place]
        deed = group.deeds[self._at[place]]

        def ends_it(other: Deed, rank: int) -> bool:
            if deed.barrier is not None:
                return rank == group.rank and other.barrier == deed.barrier
            if set(other.posts) & set(deed.awaits):
                return True
            reads = [s for move in deed.moves for s in move.reads if s.packet]
            writes = [s for move in other.moves for s in move.writes if s.packet]
            return any(
                (r.rank, r.buffer) == (w.rank, w.buffer)
                and r.first < w.first + w.parts
                and w.first < r.first + r.parts
                for r in reads
                for w in writes
            )

        for other, each in enumerate(groups):
            if other != place and any(
                ends_it(later, each.rank) for later in each.deeds[self._at[other] :]
            ):
                waits = self._arrived.get((group.rank, deed.barrier[0])) if deed.barrier else None
                if waits is None or other not in waits:
                    return other
        return None


def prove_plan(file: Blocks, plan: OneSided) -> Verdict:
    """Proves a plan right for every schedule, or finds what is wrong.

    Args:
        file: The collective.
        plan: Its program.
    """
    run = Run(file, plan)
    findings = []
    if run.run():
        run.check_end()
    else:
        findings.append(Finding("deadlock", run.deadlock()))
    for kind, texts in run.findings.items():
        findings += [Finding(kind, f"{text} [{file.modes[0]}]") for text in texts[:SHOWN]]
        if len(texts) > SHOWN:
            findings.append(Finding(kind, f"and {len(texts) - SHOWN} more of this kind"))
    steps = sum(len(group.deeds) for group in plan.groups)
    # Nobody waits for places: a block writes where its plan says.
    return Verdict(tuple(findings), steps, run.sent, run.accesses, 0, 0, (), 0, file.modes)
