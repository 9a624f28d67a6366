"""What the programs of a kernel touch of memory that ranks share, and what they come after."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from kernbench.errors import Fact
from kernbench.process.process import Process
from kernbench.symmetric.orders import (
    Kind,
    Line,
    Order,
    Seen,
    Touch,
    Word,
    follow,
    joined,
    known_to,
)
from kernbench.symmetric.regions import Block
from kernbench.ttir.arithmetic import Array
from kernbench.ttir.memory import Allocation
from kernbench.ttir.module import Operation
from kernbench.ttir.races import Access, Spans, flat, several, spans_of
from kernbench.ttir.reports import asked, program_of
from kernbench.ttir.sums import Value, parts_of

_ACQUIRES: Final = frozenset(("acquire", "acq_rel"))
_RELEASES: Final = frozenset(("release", "acq_rel"))

_FEW: Final = 16
"""Most elements that a program stores at once so that others may poll them."""


class Programs:
    """The programs of one launch, one after the other or several at once.

    Args:
        process: The rank.
        blocks: Symmetric memory among what they may touch, by the address of its first byte.
        name: Name of the kernel.
        grid: Extents of the launch.
    """

    def __init__(
        self,
        process: Process,
        blocks: Mapping[int, Block],
        name: str,
        grid: tuple[int, int, int],
    ) -> None:
        self._process: Final = process
        self._blocks: Final = blocks
        self._name, self._grid = name, grid
        self._site: Final = process.call_site()
        self._sip: Final = process.ctx.devices[process.rank]
        stream = process.current_stream(self._sip)
        self._command: Final = stream, stream.count + 1
        self._before: Final = known_to(process, stream, stream.count)
        self._own: Final[dict[tuple[int, int], Word]] = {}
        self._learned: Seen = {}
        self._operations: Final[dict[Operation, int]] = {}
        self._open: dict[tuple[Order, Kind], list[Spans]] = {}
        self._weak: dict[Process, str] = {}
        self._line = Line(name, self._sip, self._command)

    def begin(self) -> None:
        """Notes that the next ones begin."""
        self._close()
        self._learned = joined(self._learned, self._line.seen)
        self._line, self._weak = Line(self._name, self._sip, self._command), {}

    def end(self) -> None:
        """Notes that all have ended: what comes next in the stream comes after all of them."""
        self.begin()
        follow(self._process, *self._command, self._learned)

    def accessed(
        self,
        by: Access,
        address: Value,
        shape: tuple[int, ...],
        size: int,
        mask: Array | None,
        count: int,
        *,
        writes: bool,
    ) -> None:
        """See `ttir.memory.Beside`."""
        low = high = 0
        for part in parts_of(address):
            low, high = low + int(part.min()), high + int(part.max())
        touched = [
            (start, block)
            for start, block in self._blocks.items()
            if start <= high and low < start + block.order.nbytes
        ]
        if not touched:
            return
        polls = by.operation.attributes.get("isVolatile") is True
        spans = spans_of(by, address, shape, size, mask, count, self._number(by.operation))
        for start, block in touched:
            inside = (spans.starts >= start) & (spans.starts < start + block.order.nbytes)
            mine = spans if inside.all() else spans.at(inside)
            if len(mine.starts):
                mine = mine._replace(starts=mine.starts - start, ends=mine.ends - start)
                self._note(block.order, "wrote" if writes else "polled" if polls else "read", mine)

    def turned(
        self,
        allocation: Allocation,
        offsets: Array,
        changed: Array,
        by: Access,
        *,
        looked: bool,
    ) -> None:
        """Notes an operation on words, as `ttir.memory.Beside`."""
        operation, block = by.operation, self._blocks.get(allocation.start)
        sem, scope = _order_of(operation)
        if not sem and len(offsets) > _FEW:
            return
        words = [self._words(allocation, block, offset) for offset in offsets.tolist()]
        if looked:
            self._close()
            for word in words:
                self._look(word, sem, scope, operation)
        if block is not None and operation.name.startswith("tt.atomic"):
            size = operation.results[0].type.dtype.itemsize
            first, last = by.programs[0], by.programs[-1]
            who = np.full(len(offsets), first if first == last else several(first, last))
            lines = np.full(len(offsets), self._number(operation), np.int32)
            kind: Kind = "atomic" if scope == "sys" else "narrow"
            self._note(block.order, kind, Spans(offsets, offsets + size, who, lines))
            self._close()
        self._tell([words[place] for place in np.flatnonzero(changed)], sem, scope, operation)

    def _words(self, allocation: Allocation, block: Block | None, offset: int) -> Word:
        if block is not None:
            return block.order.words.setdefault(offset, Word())
        return self._own.setdefault((allocation.start, offset), Word())

    def _look(self, word: Word, sem: str, scope: str, by: Operation) -> None:
        """Puts the program after what a word tells it."""
        whom = _SEEN_BY.get(scope, ())
        if sem in _ACQUIRES:
            for one in whom:
                self._line.learn(word.known.get(self._process if one else None, {}))
        if word.by is not None and word.by is not self._process:
            weak = word.weak or (by if sem not in _ACQUIRES or scope != "sys" else None)
            if weak is not None:
                self._weak[word.by] = _weakness(weak)

    def _tell(self, words: Sequence[Word], sem: str, scope: str, by: Operation) -> None:
        """Puts what the program has done before whoever sees words that it changes."""
        if not words:
            return
        tells = sem in _RELEASES and scope in _SEEN_BY
        for word in words:
            word.by = self._process
            word.weak = None if tells and scope == "sys" else by
            if not sem:  # no atomic operation, which would keep what is known of the word
                word.known.clear()
        if not tells:
            return
        self._close()
        line = self._line
        mine = joined(self._before, line.seen, {line: line.count})
        made: dict[int, Seen] = {}
        for word in words:
            for own in _SEEN_BY[scope]:
                whom = self._process if own else None
                old = word.known.get(whom, {})
                if id(old) not in made:  # words of a tile know the same
                    made[id(old)] = joined(old, mine) if old else mine
                word.known[whom] = made[id(old)]
        line.count += 1

    def _number(self, operation: Operation) -> int:
        return self._operations.setdefault(operation, len(self._operations))

    def _note(self, order: Order, kind: Kind, spans: Spans) -> None:
        self._open.setdefault((order, kind), []).append(spans)

    def _close(self) -> None:
        """Ends what the program has done since it last came after others, or told them."""
        opened, self._open = self._open, {}
        for (order, kind), parts in opened.items():
            line, (stream, number) = self._line, self._command
            spans = flat(Spans(*(np.concatenate(each) for each in zip(*parts, strict=True))))
            new = Touch(
                *(self._process, kind, spans, stream, number, line, line.count, self._site),
                partial(self._told, spans),
            )
            order.add(new, (line.seen, self._before), self._weak)

    def _told(self, spans: Spans, place: int) -> list[str | Fact]:
        program = int(spans.programs[place])
        which = "programs" if program < 0 else f"program {program_of(program, self._grid)}"
        operation = list(self._operations)[int(spans.lines[place])]
        first, *others = asked(operation)
        return [f"{self._process.name}, {which} of {self._name}: {first}", *others]


_SEEN_BY: Final[Mapping[str, tuple[bool, ...]]] = {"gpu": (True,), "sys": (True, False)}
"""By scope, who sees an operation: True stands for the rank's own programs, False for all ranks."""


def _order_of(operation: Operation) -> tuple[str, str]:
    """Returns `sem` and `scope` of an operation on words; a store of plain Triton has none.

    A volatile load counts as one that acquires: what a program loads later, where it depends on
    the loop that polls, comes later on all GPUs that there are.
    """
    if operation.name.startswith("tt.atomic"):
        sem, scope = operation.words[-2:]
        return sem, scope
    return ("acquire", "sys") if operation.name == "tt.load" else ("", "")


def _weakness(operation: Operation) -> str:
    """Returns what reports say of an operation that puts nothing in order."""
    sem, scope = _order_of(operation)
    why = f'it has sem="{sem}", scope="{scope}"' if sem else "it is not atomic"
    return f"{asked(operation)[0]} puts devices in no order: {why}"
