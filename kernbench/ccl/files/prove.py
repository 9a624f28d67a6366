"""Proves a collective right for every schedule, by one symbolic run with vector clocks.

If no two accesses to one chunk, of which one writes, are left unordered by program order, waits and
messages, then every schedule reads and writes the same values (see `run.run`), so the end of one
schedule is the end of all. Accesses are compared as FastTrack does (Flanagan and Freund, 2009): the
last write by its block and time, reads by the time of each block.
"""

from collections import deque
from typing import Any, Final

import numpy as np

from kernbench.ccl.files.blocks import Block, Blocks, Memory, Mode, Place, Step
from kernbench.ccl.files.one_sided_proof import prove_plan
from kernbench.ccl.files.run import UNBOUNDED, Links, Outcome, cycle_of, finished, least_slots, run
from kernbench.ccl.files.verdict import SHOWN, Finding, Symbols, Verdict, differs, terms_of

PLACES: Final = {"Simple": 2, "LL": 8, "LL128": 8}
"""Data of steps that a connection holds: `MSCCL_CHUNKSTEPS` is half of `NCCL_STEPS` in Simple."""


class _Proof:
    """The symbolic run of a file, in one mode.

    Args:
        file: The collective.
        links: How its blocks are wired.
        mode: Whether input and output are one buffer.
        sums: Symbolic values.
    """

    def __init__(self, file: Blocks, links: Links, mode: Mode, sums: Symbols) -> None:
        self.file: Final = file
        self.links: Final = links
        self.mode: Final = mode
        self.memory: Final = Memory(file, mode)
        self.found: dict[str, list[str]] = {}
        self.idle: list[str] = []
        self.chunks = 0
        self.accesses = 0
        self._sums: Final = sums
        self._every: Final = file.every
        count = len(self._every)
        self._clocks: Final = [np.zeros(count, np.int32) for _ in range(count)]
        self._published: Final[dict[tuple[int, int], Any]] = {}
        self._queues: Final[list[deque[Any]]] = [deque() for _ in links.connections]
        ranks, size = file.ranks, self.memory.size
        self._values: Final = [[-1] * size for _ in range(ranks)]
        self._written: Final[list[list[Any]]] = [[None] * size for _ in range(ranks)]
        self._reads: Final[list[list[Any]]] = [[None] * size for _ in range(ranks)]
        for rank in range(ranks):
            own = file.share if file.operation == "all_gather" else file.chunks
            first = self.memory.at(rank, Place("i", 0))
            for chunk in range(own):
                terms = ((rank * file.chunks + chunk, 1),)
                self._values[rank][first + chunk] = self._sums.number(terms)

    def _note(self, kind: str, text: str) -> None:
        texts = self.found.setdefault(kind, [])
        texts.append(text if len(texts) < SHOWN else "")

    def __call__(self, process: int, number: int) -> None:
        """See `Watcher`."""
        block, clock = self._every[process], self._clocks[process]
        step = block.steps[number]
        kind = step.kind
        for event in self.links.after[process][number]:
            before = self._published[event]
            if clock[event[0]] >= before[event[0]]:
                self.idle.append(self.file.where(block, number))
            np.maximum(clock, before, out=clock)
        self._check_apart(number, block, step)
        values = None
        if kind.receives:
            values, before = self._queues[self.links.out[process]].popleft()
            np.maximum(clock, before, out=clock)
        clock[process] += 1
        rank = block.rank
        if kind.reads:
            first = self.memory.at(rank, step.source)
            values = self._combine(values, self._read(process, number, first, step.count))
        if kind.adds:
            first = self.memory.at(rank, step.target)
            values = self._combine(values, self._read(process, number, first, step.count))
        if kind.stores and values is not None:
            self._write(process, number, self.memory.at(rank, step.target), values)
        if kind.sends:
            self._queues[self.links.into[process]].append((values, clock.copy()))
            self.chunks += step.count
        if step.publishes:
            self._published[process, number] = clock.copy()

    def _check_apart(self, number: int, block: Block, step: Step) -> None:
        """Notes a step that writes chunks which it also reads for others: its threads are many."""
        if step.count == 1 or not (step.kind.reads and step.kind.stores):
            return
        source = self.memory.at(block.rank, step.source)
        target = self.memory.at(block.rank, step.target)
        if 0 < abs(source - target) < step.count:
            chunk = self._chunk(block.rank, max(source, target))
            text = f"{self.file.where(block, number)} reads and writes {chunk}, in any order"
            self._note("race", f"{text}: its source and its target overlap")

    def _combine(self, values: list[int] | None, more: list[int]) -> list[int]:
        if values is None:
            return more
        return self._sums.sums(values, more)

    def _read(self, process: int, number: int, first: int, count: int) -> list[int]:
        rank = self._every[process].rank
        clock = self._clocks[process]
        now = int(clock[process])
        written, reads, values = self._written[rank], self._reads[rank], self._values[rank]
        self.accesses += count
        for at in range(first, first + count):
            last = written[at]
            if last is not None and last[0] != process and clock[last[0]] < last[1]:
                self._race(process, number, "reads", at, last[0], last[2], "writes")
            readers = reads[at]
            if readers is None:
                readers = reads[at] = {}
            readers[process] = (now, number)
            if values[at] < 0:
                where = self.file.where(self._every[process], number)
                self._note(
                    "unwritten", f"{where} reads {self._chunk(rank, at)}, which nobody wrote"
                )
        return values[first : first + count]

    def _write(self, process: int, number: int, first: int, values: list[int]) -> None:
        rank = self._every[process].rank
        clock = self._clocks[process]
        now = int(clock[process])
        written, reads = self._written[rank], self._reads[rank]
        self.accesses += len(values)
        for at in range(first, first + len(values)):
            last = written[at]
            if last is not None and last[0] != process and clock[last[0]] < last[1]:
                self._race(process, number, "writes", at, last[0], last[2], "writes")
            readers = reads[at]
            if readers:
                for other, (time, when) in readers.items():
                    if other != process and clock[other] < time:
                        self._race(process, number, "writes", at, other, when, "reads")
                reads[at] = None
            written[at] = (process, now, number)
        self._values[rank][first : first + len(values)] = values

    def _race(
        self, process: int, number: int, does: str, at: int, other: int, when: int, other_does: str
    ) -> None:
        one, two = self._every[process], self._every[other]
        chunk = self._chunk(one.rank, at)
        text = f"{self.file.where(one, number)} {does} {chunk}, which"
        text += f" {two} step {when} (line {two.steps[when].line}) {other_does}, in any order"
        self._note("race", text)

    def _chunk(self, rank: int, at: int) -> str:
        if at >= self.memory.scratch:
            return f"s[{at - self.memory.scratch}]"
        output = self.memory.at(rank, Place("o", 0))
        if self.mode == "in place":
            return f"io[{at}]"
        return f"o[{at - output}]" if at >= output else f"i[{at}]"

    def check_end(self) -> None:
        """Notes what the outputs have that the operation does not give."""
        file = self.file
        outputs = file.share if file.operation == "reduce_scatter" else file.chunks
        for rank in range(file.ranks):
            first = self.memory.at(rank, Place("o", 0))
            for chunk in range(outputs):
                wanted = self._sums.number(terms_of(file, rank, chunk))
                has = self._values[rank][first + chunk]
                if has != wanted:
                    last = self._last_write(rank, first + chunk)
                    self._note("result", self._differs(rank, chunk, has, wanted, last) + last)

    def _last_write(self, rank: int, at: int) -> str:
        """Returns which step wrote a chunk last; nothing if the chunk has what it began with."""
        last = self._written[rank][at]
        return f"; last written by {self.file.where(self._every[last[0]], last[2])}" if last else ""

    def _differs(self, rank: int, chunk: int, has: int, wanted: int, last: str) -> str:
        place = f"{self.file.path}: rank {rank} ends with a wrong o[{chunk}]: "
        return place + differs(self._sums, self.file.chunks, has, wanted, written=bool(last))


def prove(file: Blocks, slots: int | None = None) -> Verdict:
    """Proves a collective right for every schedule, or finds what is wrong.

    Args:
        file: A file whose structure has been checked.
        slots: Places of each connection; None for as many as its protocol has. A plan has none.
    """
    if file.plan is not None:
        return prove_plan(file, file.plan)
    slots = PLACES[file.protocol] if slots is None else slots
    links, sums = Links(file), Symbols()
    findings: list[Finding] = []
    chunks = accesses = least = 0
    idle: tuple[str, ...] = ()
    for mode in file.modes:
        proof = _Proof(file, links, mode, sums)
        outcome = run(file, links, UNBOUNDED, proof)
        chunks, accesses, idle = proof.chunks, accesses + proof.accesses, tuple(proof.idle)
        if not finished(file.every, outcome):
            findings.append(Finding("deadlock", _deadlock(file, links, outcome, "any number of")))
            break
        proof.check_end()
        left = [
            f"{file.path}: {connection}: {many} data are sent and never received"
            for connection, many in zip(links.connections, outcome.filled, strict=True)
            if many
        ]
        for kind, texts in (*proof.found.items(), ("left", left)):
            findings += [Finding(kind, f"{text} [{mode}]") for text in texts[:SHOWN]]
            if len(texts) > SHOWN:
                findings.append(Finding(kind, f"and {len(texts) - SHOWN} more of this kind"))
        if not least:
            least = least_slots(file, links, max(outcome.most, 1))
    if 0 < slots < least:
        outcome = run(file, links, slots)
        text = _deadlock(file, links, outcome, str(slots))
        findings.append(Finding("deadlock", f"{text}\n    they end with {least} slots"))
    return Verdict(
        tuple(findings),
        sum(len(block.steps) for block in file.every),
        chunks,
        accesses,
        slots,
        least,
        idle,
        sum(len(step.after) for _, _, step in file.steps),
        file.modes,
    )


def _deadlock(file: Blocks, links: Links, outcome: Outcome, slots: str) -> str:
    every = file.every
    stuck = sum(at < len(block.steps) for at, block in zip(outcome.at, every, strict=True))
    cycle = cycle_of(file, links, outcome)
    shown = [
        file.where(every[one], outcome.at[one])
        if outcome.at[one] < len(every[one].steps)
        else f"{every[one]}, which has ended"
        for one in cycle
    ]
    waits = "\n    waits for ".join([*shown[:SHOWN], *(["..."] if len(shown) > SHOWN else [])])
    return f"{stuck} blocks wait for ever with {slots} slots a connection\n    {waits}"
