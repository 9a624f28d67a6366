"""A picture of a file: its blocks over the levels of their steps, as text or as SVG.

A step's level is the length of the longest chain of steps before it: along its block, its waits and
its data. With as many slots as one likes and equal steps, it is the time at which the step begins.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

from kernbench.ccl.files.blocks import NOBODY, Block, Blocks
from kernbench.ccl.files.run import UNBOUNDED, Links, run

_COLOURS: Final = {
    "s": "#4e79a7",
    "r": "#76b7b2",
    "rcs": "#59a14f",
    "rrs": "#f28e2b",
    "rrc": "#edc948",
    "rrcs": "#e15759",
    "cpy": "#bab0ac",
    "re": "#b07aa1",
}
_ROW: Final = 16
_STEP: Final = 34
_LEFT: Final = 190
_TOP: Final = 40


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


def _named(block: Block) -> str:
    to = "" if block.to == NOBODY else f" to {block.to}"
    source = "" if block.source == NOBODY else f" from {block.source}"
    return f"rank {block.rank} block {block.number}{to}{source}, channel {block.channel}"


def as_text(file: Blocks, ranks: Sequence[int]) -> list[str]:
    """Returns a line for each block of some ranks: the kinds of its steps, level by level."""
    lines = []
    for block, begins in zip(file.every, levels(file), strict=True):
        if block.rank not in ranks:
            continue
        cells = {
            begin: step.name
            for begin, step in zip(begins, block.steps, strict=False)
            if step.name != "nop"
        }
        row = "".join(f"{cells.get(level, '.'):<5}" for level in range(max(cells, default=-1) + 1))
        lines.append(f"{_named(block):<42} {row.rstrip()}".rstrip())
    return lines


def as_svg(file: Blocks, ranks: Sequence[int]) -> str:
    """Returns a picture with a row for each block of some ranks, and a box for each step."""
    rows, boxes, last = [], [], 0
    shown = [
        (block, begins)
        for block, begins in zip(file.every, levels(file), strict=True)
        if block.rank in ranks
    ]
    for row, (block, begins) in enumerate(shown):
        top = _TOP + row * _ROW
        rows.append(f'<text x="4" y="{top + 11}">{escape(_named(block))}</text>')
        for number, (begin, step) in enumerate(zip(begins, block.steps, strict=False)):
            if step.name == "nop":
                continue
            last = max(last, begin + 1)
            left = _LEFT + begin * _STEP
            boxes.append(
                f"<g><title>{escape(f'step {number}, line {step.line}: {step}')}</title>"
                f'<rect x="{left}" y="{top}" width="{_STEP - 2}" height="{_ROW - 3}" rx="2" '
                f'fill="{_COLOURS[step.name]}"/>'
                f'<text x="{left + 4}" y="{top + 10}">{step.name}</text></g>'
            )
    width, height = _LEFT + last * _STEP + 8, _TOP + len(shown) * _ROW + 8
    title = f"{file.name}: {file.operation} of {file.ranks} ranks; steps by level"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="9">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            f'<text x="4" y="20" font-size="13">{escape(title)}</text>',
            *rows,
            *boxes,
            "</svg>",
            "",
        ]
    )
