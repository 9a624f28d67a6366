"""What a proof says, and the symbolic values that it computes with."""

from collections import Counter
from dataclasses import dataclass
from typing import Final

from kernbench.ccl.files.blocks import Blocks, Mode

SHOWN: Final = 8
"""Findings of each kind that a report names."""

Terms = tuple[tuple[int, int], ...]
"""Input chunks in a sum, ascending, each with how often it is in it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong that a proof found.

    Attributes:
        kind: `unwritten`, `race`, `result`, `deadlock` or `left`; of plans also `relaxed`, `early`
            and `late`.
        text: What, where, and what to do.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Verdict:
    """What a proof says.

    Attributes:
        findings: What is wrong, at most eight of each kind and mode; empty: proved.
        steps: Steps of all blocks.
        chunks: Chunks that were sent.
        accesses: Reads and writes of chunks that were compared.
        slots: Places of each connection for which it holds; 0 of a plan, which has none.
        least: Fewest places with which all blocks end; 0 if they do not with any.
        idle: Waits that order nothing that was not ordered without them.
        waits: All waits.
        modes: How often each mode was run.
    """

    findings: tuple[Finding, ...]
    steps: int
    chunks: int
    accesses: int
    slots: int
    least: int
    idle: tuple[str, ...]
    waits: int
    modes: tuple[Mode, ...]

    @property
    def proved(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


class Symbols:
    """Symbolic values as numbers, equal sums as equal numbers, whatever the order of additions."""

    def __init__(self) -> None:
        self._numbers: dict[Terms, int] = {}
        self._terms: list[Terms] = []
        self._known: dict[tuple[int, int], int] = {}

    def number(self, terms: Terms) -> int:
        """Returns the number of a sum."""
        found = self._numbers.get(terms)
        if found is None:
            found = self._numbers[terms] = len(self._terms)
            self._terms.append(terms)
        return found

    def add(self, left: int, right: int) -> int:
        """Returns the sum of two."""
        key = (left, right) if left < right else (right, left)
        found = self._known.get(key)
        if found is None:
            total = Counter(dict(self._terms[left]))
            for term, many in self._terms[right]:
                total[term] += many
            found = self._known[key] = self.number(tuple(sorted(total.items())))
        return found

    def sums(self, left: list[int], right: list[int]) -> list[int]:
        """Returns sums of pairs; -1 where one of a pair is none."""
        pairs = zip(left, right, strict=True)
        return [self.add(a, b) if a >= 0 and b >= 0 else -1 for a, b in pairs]

    def terms(self, number: int) -> Terms:
        """Returns what a number stands for."""
        return self._terms[number]


def terms_of(file: Blocks, rank: int, chunk: int) -> Terms:
    """Returns what a chunk of a rank's output must be a sum of."""
    share, chunks = file.share, file.chunks
    if file.operation == "all_reduce":
        terms = [(other, chunk) for other in range(file.ranks)]
    elif file.operation == "all_gather":
        terms = [(chunk // share, chunk % share)]
    elif file.operation == "all_to_all":
        terms = [(chunk // share, rank * share + chunk % share)]
    else:
        terms = [(other, rank * share + chunk) for other in range(file.ranks)]
    return tuple((r * chunks + c, 1) for r, c in terms)


def differs(
    symbols: Symbols, chunks: int, has: int, wanted: int, grain: int = 1, *, written: bool
) -> str:
    """Returns what one symbolic value misses of another, and has in its place.

    Args:
        symbols: What the numbers stand for.
        chunks: Parts of the whole buffer of the operation.
        grain: Parts of a chunk of the file.
        written: Whether some step wrote the value.
    """
    if has < 0:
        return "it depends on what nobody wrote" if written else "nobody wrote it"
    got, want = dict(symbols.terms(has)), dict(symbols.terms(wanted))

    def named(term: int, many: int) -> str:
        rank, part = divmod(term, chunks)
        inside = f" part {part % grain}" if grain > 1 else ""
        times = f" {many} times" if many > 1 else ""
        return f"rank {rank}'s chunk {part // grain}{inside}{times}"

    missing = [named(term, 1) for term in want if term not in got]
    surplus = [named(t, many) for t, many in got.items() if many != want.get(t)]
    parts = [f"misses {', '.join(missing[:4])}"] if missing else []
    parts += [f"has {', '.join(surplus[:4])}"] if surplus else []
    return "; ".join(parts)
