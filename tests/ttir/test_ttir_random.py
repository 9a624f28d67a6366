"""Kernels that are drawn, whose programs part at branches and loops, against numpy."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from ttir_texts import Array, kernel, run

PROGRAMS, ROWS, COLUMNS = 3, 4, 8
TILE = f"tensor<{ROWS}x{COLUMNS}xi32>"
COUNT = ROWS * COLUMNS
TWO: dict[str, Callable[[Any, Any], Any]] = {
    "addi": np.add,
    "subi": np.subtract,
    "muli": np.multiply,
    "andi": np.bitwise_and,
    "ori": np.bitwise_or,
    "xori": np.bitwise_xor,
    "maxsi": np.maximum,
    "minsi": np.minimum,
}
HEAD = f"""
%i = tt.get_program_id x : i32
%c0 = arith.constant 0 : i32
%c1 = arith.constant 1 : i32
%size = arith.constant {COUNT} : i32
%b = arith.muli %i, %size : i32
%l = tt.make_range {{end = {COUNT} : i32, start = 0 : i32}} : tensor<{COUNT}xi32>
%t = tt.reshape %l : tensor<{COUNT}xi32> -> {TILE}
%bs = tt.splat %b : i32 -> {TILE}
%o = arith.addi %bs, %t : {TILE}
%xs = tt.splat %x : !tt.ptr<i32> -> tensor<{ROWS}x{COLUMNS}x!tt.ptr<i32>>
%p = tt.addptr %xs, %o : tensor<{ROWS}x{COLUMNS}x!tt.ptr<i32>>, {TILE}
%v0 = tt.load %p : tensor<{ROWS}x{COLUMNS}x!tt.ptr<i32>>
%r = tt.make_range {{end = {ROWS} : i32, start = 0 : i32}} : tensor<{ROWS}xi32>
%r1 = tt.expand_dims %r {{axis = 1 : i32}} : tensor<{ROWS}xi32> -> tensor<{ROWS}x1xi32>
%v1 = tt.broadcast %r1 : tensor<{ROWS}x1xi32> -> {TILE}
%v2 = tt.splat %i : i32 -> {TILE}
%v3 = arith.constant dense<-7> : {TILE}
"""


class Drawn:
    """A kernel under way: its text, and what each value holds in all programs.

    Args:
        draw: Draws from a strategy.
        x: What the kernel loads.
    """

    def __init__(self, draw: Any, x: Array) -> None:
        self.draw = draw
        self.names = 0
        programs = np.arange(PROGRAMS, dtype=np.int32).reshape(-1, 1, 1)
        rows = np.arange(ROWS, dtype=np.int32).reshape(1, -1, 1)
        shape = (PROGRAMS, ROWS, COLUMNS)
        self.values: list[tuple[str, Array]] = [
            ("%v0", x.reshape(shape).copy()),
            ("%v1", np.broadcast_to(rows, shape)),
            ("%v2", np.broadcast_to(programs, shape)),
            ("%v3", np.full(shape, -7, np.int32)),
        ]

    def name(self) -> str:
        """Returns a new name."""
        self.names += 1
        return f"%n{self.names}"

    def chosen(self) -> tuple[str, Array]:
        """Returns a value that is there."""
        found: tuple[str, Array] = self.draw(st.sampled_from(self.values))
        return found

    def grown(self, depth: int) -> list[str]:
        """Adds a value; returns its lines."""
        kinds = ["two", "two", "choice", "turned", "sum", "scan"] + ["branch", "loop"] * (depth < 2)
        made, name = getattr(self, self.draw(st.sampled_from(kinds)))(depth)
        lines: list[str] = made
        self.values.append(name)
        return lines

    def two(self, depth: int) -> tuple[list[str], tuple[str, Array]]:
        """Combines two tiles."""
        del depth
        operation = self.draw(st.sampled_from(sorted(TWO)))
        (a, first), (b, second), name = self.chosen(), self.chosen(), self.name()
        return [f"{name} = arith.{operation} {a}, {b} : {TILE}"], (
            name,
            TWO[operation](first, second),
        )

    def choice(self, depth: int) -> tuple[list[str], tuple[str, Array]]:
        """Chooses elements by a comparison."""
        del depth
        (a, first), (b, second), (c, third) = self.chosen(), self.chosen(), self.chosen()
        name = self.name()
        bits = f"tensor<{ROWS}x{COLUMNS}xi1>"
        lines = [
            f"{name}c = arith.cmpi slt, {a}, {b} : {TILE}",
            f"{name} = arith.select {name}c, {c}, {a} : {bits}, {TILE}",
        ]
        return lines, (name, np.where(first < second, third, first))

    def turned(self, depth: int) -> tuple[list[str], tuple[str, Array]]:
        """Turns rows into columns, and the elements back into rows."""
        del depth
        (a, held), name = self.chosen(), self.name()
        other = f"tensor<{COLUMNS}x{ROWS}xi32>"
        lines = [
            f"{name}t = tt.trans {a} {{order = array<i32: 1, 0>}} : {TILE} -> {other}",
            f"{name} = tt.reshape {name}t : {other} -> {TILE}",
        ]
        return lines, (name, held.transpose(0, 2, 1).reshape(held.shape))

    def sum(self, depth: int) -> tuple[list[str], tuple[str, Array]]:
        """Sums columns, and gives every row the sums."""
        del depth
        (a, held), name = self.chosen(), self.name()
        lines = [
            *_combined("reduce", f"{name}s", a, f"tensor<{COLUMNS}xi32>"),
            f"{name}e = tt.expand_dims {name}s {{axis = 0 : i32}} : tensor<{COLUMNS}xi32> -> "
            f"tensor<1x{COLUMNS}xi32>",
            f"{name} = tt.broadcast {name}e : tensor<1x{COLUMNS}xi32> -> {TILE}",
        ]
        total = held.sum(axis=1, keepdims=True, dtype=np.int32)
        return lines, (name, np.broadcast_to(total, held.shape))

    def scan(self, depth: int) -> tuple[list[str], tuple[str, Array]]:
        """Sums columns, row after row."""
        del depth
        (a, held), name = self.chosen(), self.name()
        return _combined("scan", name, a, TILE), (name, held.cumsum(axis=1, dtype=np.int32))

    def branch(self, depth: int) -> tuple[list[str], tuple[str, Array]]:
        """Makes a value in one of two ways, by the number of the program."""
        name, before = self.name(), len(self.values)
        limit = self.draw(st.integers(0, PROGRAMS))
        sides = []
        for _ in range(2):
            lines = self.grown(depth + 1)
            sides.append((lines, self.values[-1]))
            del self.values[before:]
        (yes, (first, one)), (no, (second, other)) = sides
        lines = [
            f"{name}l = arith.constant {limit} : i32",
            f"{name}c = arith.cmpi slt, %i, {name}l : i32",
            f"{name} = scf.if {name}c -> ({TILE}) {{",
            *yes,
            f"scf.yield {first} : {TILE}",
            "} else {",
            *no,
            f"scf.yield {second} : {TILE}",
            "}",
        ]
        chosen = (np.arange(PROGRAMS) < limit).reshape(-1, 1, 1)
        return lines, (name, np.where(chosen, one, other))

    def loop(self, depth: int) -> tuple[list[str], tuple[str, Array]]:
        """Adds a value again and again, as many times as the number of the program says."""
        (a, held), name, before = self.chosen(), self.name(), len(self.values)
        inner = self.grown(depth + 1)
        step, added = self.values[-1]
        del self.values[before:]
        lines = [
            f"{name} = scf.for {name}k = %c0 to %i step %c1 iter_args({name}a = {a}) -> ({TILE})"
            "  : i32 {",
            *inner,
            f"{name}b = arith.addi {name}a, {step} : {TILE}",
            f"scf.yield {name}b : {TILE}",
            "}",
        ]
        turns = np.arange(PROGRAMS, dtype=np.int32).reshape(-1, 1, 1)
        return lines, (name, held + turns * added)


def _combined(kind: str, name: str, source: str, result: str) -> list[str]:
    return [
        f'{name} = "tt.{kind}"({source}) <{{axis = 0 : i32, reverse = false}}> ({{',
        f"^bb0({name}x: i32, {name}y: i32):",
        f"{name}z = arith.addi {name}x, {name}y : i32",
        f"tt.{kind}.return {name}z : i32",
        f"}}) : ({TILE}) -> {result}",
    ]


@settings(max_examples=100)
@given(st.data(), st.integers(1, 10), st.integers(0, 1 << 32))
def test_kernels_that_are_drawn(data: Any, operations: int, seed: int) -> None:
    whole = np.iinfo(np.int32)
    x = np.random.default_rng(seed).integers(whole.min, whole.max, PROGRAMS * COUNT, np.int32)
    drawn = Drawn(data.draw, x)
    lines = [line for _ in range(operations) for line in drawn.grown(0)]
    name, expected = drawn.values[-1]
    store = f"tt.store %q, {name} : tensor<{ROWS}x{COLUMNS}x!tt.ptr<i32>>"
    point = HEAD[HEAD.index("%xs") : HEAD.index("%v0")]
    to_out = point.replace("%xs", "%ys").replace("%x ", "%y ").replace("%p =", "%q =")
    out = np.zeros_like(x)

    text = kernel("%x: !tt.ptr<i32>, %y: !tt.ptr<i32>", "\n".join([HEAD, to_out, *lines, store]))
    run(text, [x, out], (PROGRAMS, 1, 1))

    assert out.tolist() == expected.reshape(-1).tolist()
