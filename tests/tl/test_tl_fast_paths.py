"""Windows and recordings do what lists of offsets and running programs do, to the byte."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tl_machine import Machine

from kernbench import tl
from kernbench.errors import KernbenchError
from kernbench.memory import View, dtypes
from kernbench.tl.launch import Kernel, jit
from kernbench.topology import Topology


@pytest.fixture(scope="session")
def sip8(topology: Callable[[str], Topology]) -> Topology:
    return topology("sip8")


# Blocks of pointers: windows against lists of offsets


@jit
def move(
    x: Any,
    y: Any,
    base: int,
    shape: tuple[int, int],
    strides: tuple[int, int],
    low: int,
    high: int,
    masked: tl.constexpr,
    listed: tl.constexpr,
) -> None:
    """Loads a block and stores it elsewhere, through formulas or through lists of offsets."""
    rows, columns = tl.arange(0, shape[0])[:, None], tl.arange(0, shape[1])[None, :]
    offsets = base + rows * strides[0] + columns * strides[1]
    mask = None
    if masked:
        mask = (rows >= low) & (columns < high)
    if listed:
        always = tl.full((), 1, tl.int1)
        offsets = tl.where(always, offsets, offsets)
        mask = mask if mask is None else tl.where(always, mask, mask)
    tl.store(y + offsets, tl.load(x + offsets, mask, other=-1) * 2, mask)


def outcome(machine: Machine, kernel: Kernel, grid: tuple[int, ...], **arguments: Any) -> list[Any]:
    """Returns everything that can be seen of a launch."""
    found: list[Any] = []
    try:
        found.append(machine.launch(kernel, grid, **arguments))
    except KernbenchError as error:
        found.append((type(error), str(error)))
    for value in arguments.values():
        if isinstance(value, View) and machine.engine.enable_data:
            buffer = value.buffer
            assert buffer.data is not None
            unwritten = buffer.unwritten
            found.append(buffer.data.tobytes())
            found.append(None if unwritten is None or not unwritten.any() else unwritten.tobytes())
    for record in machine.engine.op_log.records:
        spot = record.track, record.start, record.end, record.issued
        found.append((record.name, record.category, *spot, record.args, record.flow))
    return found


@given(
    base=st.integers(-2, 40),
    shape=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    strides=st.tuples(st.integers(-9, 9), st.integers(-9, 9)),
    low=st.integers(-1, 6),
    high=st.integers(-1, 6),
    masked=st.booleans(),
    written=st.integers(30, 60),
    offset=st.integers(0, 3),
    data=st.booleans(),
    recorded=st.booleans(),
)
def test_a_block_of_pointers_is_the_list_of_its_offsets(
    sip8: Topology,
    base: int,
    shape: tuple[int, int],
    strides: tuple[int, int],
    low: int,
    high: int,
    masked: bool,
    written: int,
    offset: int,
    data: bool,
    recorded: bool,
) -> None:
    found = []
    for listed in (False, True):
        machine = Machine(sip8, data=data, recorded=recorded)
        x = machine.empty((60,), dtypes.float32)
        if data:
            part = View(x.buffer, x.dtype, (written,), (1,), 0)
            part.write()[...] = np.arange(written)
        y = machine.empty((60,), dtypes.float32, "y")
        x, y = (View(each.buffer, each.dtype, (50,), (1,), offset) for each in (x, y))
        found.append(
            outcome(
                machine, move, (1,), x=x, y=y, base=base, shape=shape, strides=strides,
                low=low, high=high, masked=masked, listed=listed,
            )
        )  # fmt: skip
    assert found[0] == found[1]


# Launches: recorded and played against run


@jit
def gemm(a: Any, b: Any, c: Any, sizes: tuple[int, int, int], block: tl.constexpr) -> None:
    m, n, k = sizes
    rows = tl.program_id(0) * block + tl.arange(0, block)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    acc = tl.zeros((block, block))
    for start in range(0, k, block):
        inner = start + tl.arange(0, block)
        left = (rows[:, None] < m) & (inner[None, :] < k)
        right = (inner[:, None] < k) & (columns[None, :] < n)
        x = tl.load(a + rows[:, None] * k + inner[None, :], left, 0)
        acc = tl.dot(x, tl.load(b + inner[:, None] + columns[None, :] * k, right, 0), acc)
    mask = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * n + columns[None, :], acc, mask)


@jit
def gram(a: Any, b: Any, c: Any, block: tl.constexpr) -> None:
    """Multiplies a matrix with its own transpose."""
    rows = tl.program_id(0) * block + tl.arange(0, block)
    columns = tl.arange(0, block)
    x = tl.load(a + rows[:, None] * block + columns[None, :])
    y = tl.load(a + columns[:, None] + rows[None, :] * block)
    tl.store(c + rows[:, None] * block + columns[None, :], tl.dot(x, y) + tl.load(b))


@jit
def turn_over(a: Any, b: Any, c: Any, block: tl.constexpr) -> None:
    """Uses a tile after other values were stored where it came from."""
    rows, columns = tl.arange(0, block)[:, None], tl.arange(0, block)[None, :]
    here = c + rows * block + columns
    old = tl.load(here)
    tl.store(here, tl.load(a + rows * block + columns))
    tl.store(here + block * block, old + tl.load(b))


@jit
def softmax(a: Any, b: Any, c: Any, columns: int, block: tl.constexpr) -> None:
    row, lanes = tl.program_id(0), tl.arange(0, block)
    mask = lanes < columns
    values = tl.load(a + row * columns + lanes, mask=mask, other=-float("inf"))
    power = tl.exp(values - tl.max(values, axis=0))
    scale = tl.load(b + row).to(tl.float32)
    tl.store(c + row * columns + lanes, scale * power / tl.sum(power, axis=0), mask=mask)


@jit
def pass_on(a: Any, b: Any, c: Any, block: tl.constexpr) -> None:
    """If a is c, each program reads what the next one may have written already."""
    lanes = tl.program_id(0) * block + tl.arange(0, block)
    kept = tl.load(a + lanes + block)
    tl.store(c + lanes, kept + tl.load(b + lanes))


@jit
def everybody(a: Any, b: Any, c: Any, block: tl.constexpr) -> None:
    """All programs write the same elements, those of long lists last; a race if there are two."""
    lanes = tl.arange(0, block)
    value = tl.load(a + lanes + tl.program_id(0))
    for _ in range(7 - int(tl.program_id(0))):
        value = value + tl.load(b + lanes)
    tl.store(c + lanes, value)


@jit
def gather(a: Any, b: Any, c: Any, block: tl.constexpr) -> None:
    lanes = tl.arange(0, block)
    even = tl.where(lanes % 3 == 0, lanes, 2 * block - lanes)
    tl.store(c + even, tl.load(a + (lanes * lanes) % 50) + tl.load(b + even, lanes != 2, 9))


@jit
def undefined(a: Any, b: Any, c: Any, columns: int, block: tl.constexpr) -> None:
    """Reduces and stores lanes that a mask left out."""
    row, lanes = tl.program_id(0), tl.arange(0, block)
    mask = lanes < columns
    values = tl.load(a + row * columns + lanes, mask)
    offsets = row * block + lanes
    tl.store(c + offsets, values + tl.load(b + lanes) * tl.max(values, axis=0))


@jit
def signs(a: Any, b: Any, c: Any, block: tl.constexpr) -> None:
    """Divides whole numbers of both signs, loaded ones and indices."""
    lanes = tl.program_id(0) * block + tl.arange(0, block)
    whole = (tl.load(a + lanes) * 9).to(tl.int32)
    by = tl.program_id(0) * 4 - 3
    value = whole // by + (lanes - 20) % by + (tl.program_id(0) - 7) // by
    tl.store(c + lanes, value + (tl.load(b + lanes) * 9) % 2.5)


LAUNCHES: list[tuple[Kernel, tuple[int, ...], dict[str, Any]]] = [
    (gemm, (3, 2), {"sizes": (20, 13, 19), "block": 8}),
    (gemm, (2, 2), {"sizes": (16, 16, 16), "block": 8}),
    (gram, (1,), {"block": 20}),
    (turn_over, (1,), {"block": 13}),
    (softmax, (5,), {"columns": 37, "block": 64}),
    (pass_on, (6,), {"block": 8}),
    (everybody, (7,), {"block": 16}),
    (everybody, (1,), {"block": 16}),
    (undefined, (3,), {"columns": 13, "block": 16}),
    (signs, (3,), {"block": 16}),
    (gather, (1,), {"block": 20}),
]


@pytest.mark.parametrize(("kernel", "grid", "options"), LAUNCHES)
@pytest.mark.parametrize("wiring", ["apart", "a is c", "b is c", "a is b", "one memory"])
@pytest.mark.parametrize("output", ["written", "empty", "in part"])
def test_a_recording_does_what_the_programs_do(
    sip8: Topology,
    kernel: Kernel,
    grid: tuple[int, ...],
    options: dict[str, Any],
    wiring: str,
    output: str,
) -> None:
    found = []
    for recorded in (True, False):
        machine = Machine(sip8, recorded=recorded)
        for turn in range(3):  # the first is recorded, the others have other values and places
            rng = np.random.default_rng(turn)
            base = machine.tensor(rng.standard_normal(900).astype(np.float32))
            b = machine.tensor(rng.standard_normal(400).astype(np.float32))
            a, c = (
                View(base.buffer, base.dtype, (400,), (1,), at) for at in (turn, 450 + 2 * turn)
            )
            if wiring != "one memory":
                a = machine.tensor(rng.standard_normal(400).astype(np.float32))
                c = machine.tensor(rng.standard_normal(400).astype(np.float32))
                if output != "written":
                    c = machine.empty((400,), dtypes.float32)
                if output == "in part":
                    View(c.buffer, c.dtype, (200,), (1,), 0).write()[...] = 3
            a = c if wiring == "a is c" else a
            b = {"b is c": c, "a is b": a}.get(wiring, b)
            found.append((recorded, turn, outcome(machine, kernel, grid, a=a, b=b, c=c, **options)))
    played, run = found[:3], found[3:]
    assert [each[2] for each in played] == [each[2] for each in run]


def test_what_was_noted_is_played(sip8: Topology) -> None:
    machine = Machine(sip8)
    x = machine.tensor(np.arange(60, dtype=np.float32))
    y = machine.tensor(np.zeros(60, np.float32))
    machine.launch(gather, (1,), a=x, b=x, c=y, block=20)
    (recording,) = machine.memo.values()
    assert recording.calls is not None
    assert recording.loads == frozenset({"a", "b"})
    assert recording.stores == frozenset({"c"})


def test_with_and_without_data_there_are_the_same_records(sip8: Topology) -> None:
    found = []
    for data in (True, False):
        machine = Machine(sip8, data=data)
        for _ in range(2):
            x = machine.tensor(np.zeros((5, 37), np.float32))
            scale = machine.tensor(np.zeros(5, np.float32))
            y = machine.tensor(np.zeros((5, 37), np.float32))
            machine.launch(softmax, (5,), a=x, b=scale, c=y, columns=37, block=64)
        found.append([(r.name, r.track, r.start, r.end) for r in machine.engine.op_log.records])
    assert found[0] == found[1]
    assert len({track for _, track, _, _ in found[0]}) > 1


def without_bytes(machine: Machine, *shape: int) -> View:
    """Returns a tensor as one is that was made for the launch."""
    view = machine.empty(shape, dtypes.float32)
    view.buffer.data = view.buffer.unwritten = None
    return view


def test_an_output_without_bytes_gets_them(sip8: Topology) -> None:
    def launched(recorded: bool, block: int) -> View:
        machine = Machine(sip8, recorded=recorded)
        a, b = (machine.tensor(np.ones(256, np.float32)) for _ in range(2))
        c = without_bytes(machine, 16, 16)
        machine.launch(gemm, (2, 2), a=a, b=b, c=c, sizes=(16, 16, block), block=8)
        return c

    for recorded in (True, False):
        np.testing.assert_array_equal(launched(recorded, 16).read(), np.full((16, 16), 16))


def test_part_of_an_output_without_bytes_stays_unwritten(sip8: Topology) -> None:
    for recorded in (True, False):
        machine = Machine(sip8, recorded=recorded)
        x = machine.tensor(np.ones(60, np.float32))
        y = without_bytes(machine, 60)
        machine.launch(everybody, (1,), a=x, b=x, c=y, block=16)
        assert y.buffer.unwritten is not None
        assert y.buffer.unwritten.sum() == (60 - 16) * 4
