"""A picture of a file: its blocks over the levels of their steps, as text or as SVG.

A step's level is the length of the longest chain of steps before it: along its block, its waits and
its data. With as many slots as one likes and equal steps, it is the time at which the step begins.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

from kernbench.ccl.files.blocks import NOBODY, Block, Blocks
from kernbench.ccl.files.one_sided_proof import Run
from kernbench.ccl.files.run import UNBOUNDED, Links, run

_LOOKS: Final = {
    "s": ("#4e79a7", "sends"),
    "r": ("#76b7b2", "receives"),
    "rcs": ("#59a14f", "receives, sends"),
    "rrs": ("#f28e2b", "receives, adds, sends"),
    "rrc": ("#edc948", "receives, adds"),
    "rrcs": ("#e15759", "receives, adds, keeps, sends"),
    "cpy": ("#bab0ac", "copies"),
    "re": ("#b07aa1", "adds"),
    "": ("#e0e0e0", "orders what follows"),
}
"""Of each kind of step its colour, and what it does; the last one is for operations of plans."""

_ALIKE: Final = {
    **dict.fromkeys(("put", "pws", "pwsf", "ppkt", "rppkt", "gstore", "gstorepkt"), "s"),
    **dict.fromkeys(("get", "upkt"), "r"),
    **dict.fromkeys(("rre", "repkt", "recpkt"), "rrc"),
    **dict.fromkeys(("res", "rres", "respkt", "recspkt", "glres"), "rrcs"),
    **dict.fromkeys(("copy", "cpkt"), "cpy"),
}
"""Steps whose colour operations of plans have."""

_DARK: Final = {"s", "re", "rrcs"}
"""Kinds whose names are white."""

_ROW: Final = 16
_BETWEEN: Final = 8
"""Space between the rows of two ranks."""

_STEP: Final = 34
_PLAN_STEP: Final = 58
"""Width of a step whose name has up to 11 letters."""

_LEFT: Final = 190
_TOP: Final = 50
_LEGEND: Final = 160
"""Width of an entry of the legend."""

_LETTER: Final = 5
"""Width of a letter of a sentence, on average."""


def levels(file: Blocks) -> list[list[int]]:
    """Returns the level of every step of every block that runs; a `nop` takes none."""
    links = Links(file)
    found: list[list[int]] = [[] for _ in file.every]
    ends: list[list[int]] = [[] for _ in file.every]
    queues: list[deque[int]] = [deque() for _ in links.connections]

    def watch(process: int, number: int) -> None:
        step = file.every[process].steps[number]
        begin = ends[process][-1] if ends[process] else 0
        for other, done in links.after[process][number]:
            begin = max(begin, ends[other][done])
        if step.kind.receives:
            begin = max(begin, queues[links.out[process]].popleft())
        end = begin + (step.name != "nop")
        if step.kind.sends:
            queues[links.into[process]].append(end)
        found[process].append(begin)
        ends[process].append(end)

    run(file, links, UNBOUNDED, watch)
    return found


class _Row(NamedTuple):
    """A block in a picture: what it is called, and of each step level, kind, line and words.

    The last field says at which step it waits for ever; it is empty for a block that ends.
    """

    rank: int
    name: str
    steps: list[tuple[int, str, int, str]]
    held: str


def _held(begun: int, steps: Sequence[str]) -> str:
    """Returns at which step a block waits for ever; empty if all have begun."""
    return f"waits for ever at step {begun}: {steps[begun]}" if begun < len(steps) else ""


def _rows(file: Blocks) -> list[_Row]:
    """Returns the blocks as the file has them; a `nop` takes no level, and is not shown."""
    if file.plan is not None:
        plan, run = file.plan, Run(file, file.plan)
        run.run()
        return [
            _Row(
                group.rank,
                str(group),
                [
                    (begin, deed.name, deed.line, plan.described(group, deed))
                    for begin, deed in zip(begins, group.deeds, strict=False)
                ],
                _held(len(begins), [plan.described(group, deed) for deed in group.deeds]),
            )
            for group, begins in zip(plan.groups, run.levels, strict=True)
        ]
    return [
        _Row(
            block.rank,
            _named(block),
            [
                (begin, step.name, step.line, str(step))
                for begin, step in zip(begins, block.steps, strict=False)
            ],
            _held(len(begins), [str(step) for step in block.steps]),
        )
        for block, begins in zip(file.every, levels(file), strict=True)
    ]


def _named(block: Block) -> str:
    to = "" if block.to == NOBODY else f" to {block.to}"
    source = "" if block.source == NOBODY else f" from {block.source}"
    return f"{block}{to}{source}, channel {block.channel}"


def as_text(file: Blocks, ranks: Sequence[int]) -> list[str]:
    """Returns a line for each block of some ranks: the kinds of its steps, level by level."""
    lines = []
    rows = [row for row in _rows(file) if row.rank in ranks]
    wide = max((len(name) for row in rows for _, name, _, _ in row.steps), default=4) + 1
    wide = max(wide, 5)
    for row in rows:
        cells = {begin: name for begin, name, _, _ in row.steps if name != "nop"}
        line = "".join(f"{cells.get(at, '.'):<{wide}}" for at in range(max(cells, default=-1) + 1))
        line += row.held
        lines.append(f"{row.name:<42} {line.rstrip()}".rstrip())
    return lines


def as_svg(file: Blocks, ranks: Sequence[int]) -> str:
    """Returns a picture with a row for each block of some ranks, and a box for each step.

    Ranks are apart. Above stand the levels, below what colours mean.
    """
    rows, boxes, last, top, widest = [], [], 0, _TOP, 0
    used: set[str] = set()
    shown = [row for row in _rows(file) if row.rank in ranks]
    wide = _STEP if file.plan is None else _PLAN_STEP
    for place, row in enumerate(shown):
        if place and row.rank != shown[place - 1].rank:
            top += _BETWEEN
        rows.append(f'<text x="4" y="{top + 11}">{escape(row.name)}</text>')
        for number, (begin, name, line, words) in enumerate(row.steps):
            if name == "nop":
                continue
            last = max(last, begin + 1)
            look = _ALIKE.get(name, name if name in _LOOKS else "")
            used.add(look)
            title = f"<title>{escape(f'step {number}, line {line}: {words}')}</title>"
            boxes.append(_box(_LEFT + begin * wide, top, wide - 2, look, name, title))
        if row.held:
            ended = max((begin + 1 for begin, _, _, _ in row.steps), default=0)
            left = _LEFT + ended * wide + 4
            boxes.append(f'<text x="{left}" y="{top + 11}">{escape(row.held)}</text>')
            widest = max(widest, left + len(row.held) * _LETTER)
        top += _ROW
    above = [
        f'<text x="{_LEFT + at * wide + 4}" y="{_TOP - 6}" fill="#666">{at}</text>'
        for at in range(last)
    ]
    width = max(_LEFT + last * wide, 4 + _LEGEND * 3, widest) + 8
    legend, across = [], (width - 8) // _LEGEND
    for place, look in enumerate(look for look in _LOOKS if look in used):
        x, y = 4 + place % across * _LEGEND, top + _BETWEEN + place // across * _ROW
        legend.append(_box(x, y, _ROW, look, "", ""))
        legend.append(f'<text x="{x + _ROW + 6}" y="{y + 10}">{_LOOKS[look][1]}</text>')
    height = top + _BETWEEN + -(-len(used) // across) * _ROW + 8
    title = f"{file.name}: {file.operation} of {file.ranks} ranks"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="9">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            f'<text x="4" y="20" font-size="13">{escape(title)}</text>',
            f'<text x="4" y="{_TOP - 6}" fill="#666">steps before, in the longest chain</text>',
            *above,
            *rows,
            *boxes,
            *legend,
            "</svg>",
            "",
        ]
    )


def _box(left: int, top: int, wide: int, look: str, name: str, title: str) -> str:
    ink = ' fill="white"' if look in _DARK else ""
    text = f'<text x="{left + 4}" y="{top + 10}"{ink}>{name}</text>' if name else ""
    return (
        f'<g>{title}<rect x="{left}" y="{top}" width="{wide}" height="{_ROW - 3}" rx="2" '
        f'fill="{_LOOKS[look][0]}"/>{text}</g>'
    )
