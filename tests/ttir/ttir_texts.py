"""Texts of Triton's IR, written by hand, and what runs them on arrays."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernbench.ttir.executing import Executable
from kernbench.ttir.frames import Patience
from kernbench.ttir.memory import Allocation, Memory
from kernbench.ttir.reader import read
from kernbench.ttir.types import SCALARS

Array = np.ndarray[Any, Any]

FIRST = 1 << 20
"""Address of the first array; further ones lie as far apart."""


def kernel(signature: str, body: str) -> str:
    """Returns the text of a module with one kernel.

    Args:
        signature: Its arguments, such as `%x: !tt.ptr<f32>, %n: i32`.
        body: Its operations, a line each.
    """
    return f"module {{\n  tt.func public @kernel({signature}) {{\n{body}\n    tt.return\n  }}\n}}\n"


def run(
    text: str,
    arguments: Sequence[Array | int | float],
    grid: tuple[int, int, int] = (1, 1, 1),
    types: Mapping[int, str] | None = None,
    others: Sequence[Array] = (),
    *,
    races: bool = True,
    patience: Patience | None = None,
) -> list[str]:
    """Runs a kernel on arrays, which it changes, and returns what it prints.

    Args:
        arguments: Arrays, and numbers.
        types: Types of numbers by place; an int is an `i32` otherwise, a float an `f32`.
        others: Further arrays, which lie behind the arguments.
        races: Whether programs that touch the same elements are reported.
        patience: Tells whether a loop that may never end has run too long.
    """
    held: list[Array] = []
    allocations: dict[int, Allocation] = {}
    for place, argument in enumerate(arguments):
        if isinstance(argument, np.ndarray):
            allocations[place] = _allocation(place, argument)
            held.append(np.array([allocations[place].start], np.int64))
        else:
            default = "i32" if isinstance(argument, int) else "f32"
            kind = (types or {}).get(place, default)
            held.append(np.array([argument], SCALARS[kind]))
    said: list[str] = []
    behind = [_allocation(place, array) for place, array in enumerate(others, len(arguments))]
    memory = Memory(allocations, behind)
    ready = Executable(read(text))
    ready.run(grid, held, memory, said.append, races=races, patience=patience)
    return said


def _allocation(place: int, array: Array) -> Allocation:
    return Allocation(f"argument {place}", FIRST * (place + 1), array.reshape(-1).view(np.uint8))


def elementwise(
    operation: str, operands: Sequence[Array], given: Sequence[str], result: str
) -> Array:
    """Returns what one operation makes of arrays, in a kernel that loads and stores them.

    Args:
        operation: Its text, with `{0}`, `{1}` for the operands and `{shape}` for the tile's.
        given: Types of the operands' elements.
        result: Type of the result's elements.
    """
    count = len(operands[0])
    out = np.zeros(count, SCALARS[result])
    names = [f"%a{place}" for place in range(len(operands))]
    signature = ", ".join(
        f"%p{place}: !tt.ptr<{kind}>" for place, kind in enumerate((*given, result))
    )
    lines = [f"%o = tt.make_range {{end = {count} : i32, start = 0 : i32}} : tensor<{count}xi32>"]
    for place, kind in enumerate((*given, result)):
        pointers = f"tensor<{count}x!tt.ptr<{kind}>>"
        lines.append(f"%s{place} = tt.splat %p{place} : !tt.ptr<{kind}> -> {pointers}")
        lines.append(f"%q{place} = tt.addptr %s{place}, %o : {pointers}, tensor<{count}xi32>")
        if place < len(given):
            lines.append(f"%a{place} = tt.load %q{place} : {pointers}")
    lines.append("%r = " + operation.format(*names, shape=count))
    last = len(given)
    lines.append(f"tt.store %q{last}, %r : tensor<{count}x!tt.ptr<{result}>>")
    run(kernel(signature, "\n".join(f"    {line}" for line in lines)), [*operands, out])
    return out


def kept(name: str) -> str:
    """Returns a text that Triton 3.9 wrote for a GPU of compute capability 9.0.

    `rows` alone is for 10.0, which Triton wants for rows that are gathered.
    """
    return (Path(__file__).parent / "texts" / f"{name}.ttir").read_text(encoding="utf-8")
