"""Kernels compute what numpy computes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tl_machine import Machine

from kernbench import tl
from kernbench.memory import DType, View, dtypes
from kernbench.tl.launch import Kernel, jit
from kernbench.topology import Topology


@pytest.fixture(scope="session")
def sip8(topology: Callable[[str], Topology]) -> Topology:
    return topology("sip8")


@pytest.fixture
def machine(sip8: Topology) -> Machine:
    return Machine(sip8)


@jit
def add(x: Any, y: Any, out: Any, n: int, block: tl.constexpr) -> None:
    offsets = tl.program_id(0) * block + tl.arange(0, block)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask), mask=mask)


@given(st.integers(1, 200), st.sampled_from([1, 16, 48, 64]))
def test_vector_add_writes_the_elements_of_the_mask_and_no_others(
    sip8: Topology, n: int, block: int
) -> None:
    machine = Machine(sip8)
    rng = np.random.default_rng(n)
    a, b = (rng.standard_normal(n).astype(np.float32) for _ in range(2))
    x, y = machine.tensor(a), machine.tensor(b)
    out = machine.tensor(np.full(n + block, 7, np.float32))
    machine.launch(add, (tl.cdiv(n, block),), x=x, y=y, out=out, n=n, block=block)
    np.testing.assert_array_equal(out.read()[:n], a + b)
    assert (out.read()[n:] == 7).all()


@jit
def matmul(a: Any, b: Any, c: Any, k: int, n: int, tile: tl.constexpr) -> None:
    rows = tl.program_id(0) * tile + tl.arange(0, tile)
    columns = tl.program_id(1) * tile + tl.arange(0, tile)
    acc = tl.zeros((tile, tile))
    for start in range(0, k, tile):
        inner = start + tl.arange(0, tile)
        left = tl.load(a + rows[:, None] * k + inner[None, :])
        right = tl.load(b + inner[:, None] * n + columns[None, :])
        acc = tl.dot(left, right, acc)
    tl.store(c + rows[:, None] * n + columns[None, :], acc)


def run_matmul(machine: Machine, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> View:
    (m, k), n, tile = a.shape, b.shape[1], 8
    x, y, z = machine.tensor(a), machine.tensor(b), machine.empty((m, n), dtypes.float32)
    machine.launch(matmul, (m // tile, n // tile), a=x, b=y, c=z, k=k, n=n, tile=tile)
    return z


def test_a_matmul_of_small_whole_numbers_is_exact(machine: Machine) -> None:
    rng = np.random.default_rng(1)
    a = rng.integers(-9, 9, (24, 40)).astype(np.float32)
    b = rng.integers(-9, 9, (40, 16)).astype(np.float32)
    np.testing.assert_array_equal(run_matmul(machine, a, b).read(), a @ b)


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float16, dtypes.float8_e4m3fn])
def test_narrow_floats_are_added_in_float32(machine: Machine, dtype: DType) -> None:
    rng = np.random.default_rng(2)
    a = rng.standard_normal((8, 24)).astype(dtype.numpy)
    b = rng.standard_normal((24, 8)).astype(dtype.numpy)
    wide_a, wide_b = a.astype(np.float32), b.astype(np.float32)
    expected = np.zeros((8, 8), np.float32)
    for start in range(0, 24, 8):
        expected = expected + wide_a[:, start : start + 8] @ wide_b[start : start + 8]
    found = run_matmul(machine, a, b).read()
    np.testing.assert_array_equal(found, expected)
    narrow = np.zeros((8, 8), dtype.numpy)
    for inner in range(24):  # rounding every sum to the narrow type gives something else
        narrow = narrow + np.outer(a[:, inner], b[inner]).astype(dtype.numpy)
    assert (narrow.astype(np.float32) != found).any()


@jit
def softmax(x: Any, out: Any, columns: int, block: tl.constexpr) -> None:
    row, lanes = tl.program_id(0), tl.arange(0, block)
    mask = lanes < columns
    values = tl.load(x + row * columns + lanes, mask=mask, other=-float("inf"))
    numerator = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + lanes, numerator / tl.sum(numerator, axis=0), mask=mask)


def test_softmax(machine: Machine) -> None:
    values = np.random.default_rng(3).standard_normal((5, 37)).astype(np.float32) * 9
    x, out = machine.tensor(values), machine.empty((5, 37), dtypes.float32)
    machine.launch(softmax, (5,), x=x, out=out, columns=37, block=64)
    wide = np.exp(values.astype(np.float64) - values.max(axis=1, keepdims=True))
    np.testing.assert_allclose(out.read(), wide / wide.sum(axis=1, keepdims=True), rtol=2e-5)


@jit
def ring(x: Any, out: Any, block: tl.constexpr) -> None:
    rank, count = tl.program_id(0), tl.num_programs(0)
    mine = tl.load(x + rank * block + tl.arange(0, block))
    total = mine
    for _ in range(count - 1):
        tl.send(mine, (rank + 1) % count)
        mine = tl.recv((rank + count - 1) % count)
        total = total + mine
    tl.store(out + rank * block + tl.arange(0, block), total)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 11])  # 11: over two cubes
def test_a_ring_of_programs_adds_everything_everywhere(machine: Machine, count: int) -> None:
    values = np.random.default_rng(count).integers(0, 99, (count, 16)).astype(np.int32)
    x, out = machine.tensor(values), machine.empty((count, 16), dtypes.int32)
    machine.launch(ring, (count,), x=x, out=out, block=16)
    assert (out.read() == values.sum(axis=0)).all()


@jit
def twice(x: Any) -> None:
    i = tl.program_id(0) + tl.num_programs(0) * (
        tl.program_id(1) + tl.num_programs(1) * tl.program_id(2)
    )
    tl.store(x + i, tl.load(x + i) * 2)


def test_a_grid_has_three_axes_the_first_the_fastest_and_more_programs_than_pes(
    machine: Machine,
) -> None:
    x = machine.tensor(np.arange(7 * 3 * 4, dtype=np.int64))  # 84 programs on 32 PEs
    machine.launch(twice, (7, 3, 4), x=x)
    np.testing.assert_array_equal(x.read(), np.arange(84) * 2)


def values_of(machine: Machine, body: Callable[[], tl.Tile]) -> np.ndarray[Any, Any]:
    """Runs an expression of the language in a program of its own."""
    found: list[tl.Tile] = []
    kernel: Kernel = jit(lambda: found.append(body()))
    machine.launch(kernel)
    (tile,) = found
    assert tile.values is not None
    assert tile.values.dtype == tile.dtype.numpy
    assert tile.shape == tile.values.shape
    return tile.values


A, B = np.arange(-3, 5, dtype=np.int32), np.arange(8, 0, -1).astype(np.int32)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda a, b: a + b, A + B),
        (lambda a, b: 3 - a, 3 - A),
        (lambda a, b: -a * b, -A * B),
        (lambda a, b: a // b, np.trunc(A / B).astype(np.int32)),
        (lambda a, b: a % 3, np.fmod(A, 3)),
        (lambda a, b: (a > 0) & (b > 4), (A > 0) & (B > 4)),
        (lambda a, b: (a == 1) | (b != 4), (A == 1) | (B != 4)),
        (lambda a, b: (a <= 1) ^ (b >= 4), (A <= 1) ^ (B >= 4)),
        (tl.maximum, np.maximum(A, B)),
        (lambda a, b: tl.minimum(a, 2), np.minimum(A, 2)),
        (lambda a, b: tl.abs(a), np.abs(A)),
        (lambda a, b: tl.where(a < b, a, 9), np.where(A < B, A, 9)),
        (lambda a, b: tl.where(a < b, 9, a), np.where(A < B, 9, A)),
        (lambda a, b: tl.sum(a), np.sum(A, dtype=np.int32)),
        (lambda a, b: tl.min(a, axis=0), np.min(A)),
        (
            lambda a, b: tl.sum(a[:, None] + b[None, :], axis=1),
            (A[:, None] + B).sum(1, dtype=np.int32),
        ),
        (lambda a, b: tl.max(a[:, None] * b, axis=0), (A[:, None] * B).max(0)),
        (lambda a, b: a.to(tl.float32) / 3, A.astype(np.float32) / np.float32(3)),
        (lambda a, b: a / b, A.astype(np.float32) / B.astype(np.float32)),
        (lambda a, b: 1 / b, np.float32(1) / B.astype(np.float32)),
        (lambda a, b: tl.sqrt(b.to(tl.float32)), np.sqrt(B.astype(np.float32))),
        (lambda a, b: tl.log(b.to(tl.float64)), np.log(B.astype(np.float64))),
        (lambda a, b: tl.full((2, 3), 1.5) + tl.zeros((3,)), np.full((2, 3), 1.5, np.float32)),
        (lambda a, b: tl.full((4,), 7, tl.int8), np.full(4, 7, np.int8)),
        (lambda a, b: tl.arange(2, 7), np.arange(2, 7, dtype=np.int32)),
    ],
)
def test_expressions(machine: Machine, body: Any, expected: np.ndarray[Any, Any]) -> None:
    x, y = machine.tensor(A), machine.tensor(B)

    def run() -> tl.Tile:
        lanes = tl.arange(0, 8)
        found = body(tl.load(tl.Pointer(x, 0) + lanes), tl.load(tl.Pointer(y, 0) + lanes))
        assert isinstance(found, tl.Tile)
        return found

    values = values_of(machine, run)
    np.testing.assert_array_equal(values, expected)
    assert values.dtype == np.asarray(expected).dtype


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float16, dtypes.float32, dtypes.float64])
def test_whole_numbers_beside_floats_become_floats_of_that_type(
    machine: Machine, dtype: DType
) -> None:
    x = machine.tensor(np.full(4, 1.5), dtype)

    def scaled(by: Callable[[], Any]) -> np.ndarray[Any, Any]:
        return values_of(machine, lambda: tl.load(tl.Pointer(x, 0) + tl.arange(0, 4)) * by())

    numbers: list[Callable[[], Any]] = [lambda: 2, lambda: 2.0]
    cases: list[tuple[Callable[[], Any], Any]] = [
        *[(by, 3.0) for by in numbers],
        (lambda: tl.num_programs(0), 1.5),
        (lambda: tl.arange(0, 4), [0.0, 1.5, 3.0, 4.5]),
        (lambda: tl.arange(0, 4) > 1, [0.0, 0.0, 1.5, 1.5]),
    ]
    for by, expected in cases:
        values = scaled(by)
        # bfloat16 with a tile of another type is float32, as in Triton.
        tile = dtype is dtypes.bfloat16 and by not in numbers
        assert values.dtype == (np.float32 if tile else dtype.numpy)
        np.testing.assert_array_equal(values.astype(np.float64), np.broadcast_to(expected, 4))


def test_a_python_float_beside_whole_numbers_makes_float32(machine: Machine) -> None:
    assert values_of(machine, lambda: tl.arange(0, 4) * 0.5).dtype == np.float32
    assert values_of(machine, lambda: tl.exp(tl.arange(0, 4) * 1.0)).dtype == np.float32


def test_small_whole_numbers_are_added_up_in_32_bits(machine: Machine) -> None:
    x = machine.tensor(np.full((4, 4), 100, np.int8))
    lanes = np.arange(4)

    def tile() -> tl.Tile:
        index = tl.arange(0, 4)
        return tl.load(tl.Pointer(x, 0) + index[:, None] * 4 + index[None, :])

    total = values_of(machine, lambda: tl.sum(tile()))
    product = values_of(machine, lambda: tl.dot(tile(), tile()))
    count = values_of(machine, lambda: tl.sum(tile() > 5, axis=0))
    assert (total.dtype, int(total)) == (np.int32, 1600)
    assert product.dtype == np.int32
    assert (product == 40_000).all()
    np.testing.assert_array_equal(count, np.full(len(lanes), 4))


def test_a_constant_tile_multiplies_as_a_loaded_one(machine: Machine) -> None:
    rng = np.random.default_rng(1)
    found = rng.standard_normal((64, 64)).astype(np.float32)
    x, y = machine.tensor(found), machine.tensor(np.full((64, 64), 0.1, np.float32))
    index = np.arange(64)

    def loaded(view: View) -> tl.Tile:
        lanes = tl.arange(0, len(index))
        return tl.load(tl.Pointer(view, 0) + lanes[:, None] * 64 + lanes[None, :])

    expected = values_of(machine, lambda: tl.dot(loaded(y), loaded(x)))
    constant = values_of(machine, lambda: tl.dot(tl.full((64, 64), 0.1), loaded(x)))
    np.testing.assert_array_equal(constant, expected)


def test_masked_lanes_read_other_and_are_neither_checked_nor_counted(machine: Machine) -> None:
    x = machine.empty((8,), dtypes.float32)
    View(x.buffer, x.dtype, (3,), (1,), 0).write()[...] = [1, 2, 3]

    def run() -> tl.Tile:
        lanes = tl.arange(0, 1000)
        return tl.load(tl.Pointer(x, 0) + lanes, mask=lanes < 3, other=-1)[None, :]

    values = values_of(machine, run)
    np.testing.assert_array_equal(values[0, :4], [1, 2, 3, -1])
    assert values.shape == (1, 1000)


def test_a_gather_by_loaded_indices(sip8: Topology) -> None:
    @jit
    def gather(x: Any, index: Any, out: Any) -> None:
        lanes = tl.arange(0, 6)
        tl.store(out + lanes, tl.load(x + tl.load(index + lanes)))

    times = []
    for data in (True, False):
        machine = Machine(sip8, data=data)
        x, out = machine.tensor(np.arange(10.0)), machine.empty((6,), dtypes.float64)
        index = machine.tensor(np.array([3, 3, 9, 0, 1, 7]))
        times.append(machine.launch(gather, x=x, index=index, out=out))
        if data:
            np.testing.assert_array_equal(out.read(), [3, 3, 9, 0, 1, 7])
    assert times[0] == times[1]


def test_a_view_with_an_offset_and_strides_is_where_the_pointer_begins(machine: Machine) -> None:
    base = machine.tensor(np.arange(24, dtype=np.float32).reshape(4, 6))
    column = View(base.buffer, base.dtype, (4,), (6,), 2)

    def run() -> tl.Tile:
        return tl.load(tl.Pointer(column, 0) + tl.arange(0, 4) * 6)

    np.testing.assert_array_equal(values_of(machine, run), [2, 8, 14, 20])


def test_control_flow_may_look_at_program_ids_and_at_loaded_values(machine: Machine) -> None:
    @jit
    def branch(x: Any, out: Any) -> None:
        value = tl.load(x + tl.program_id(0))
        if tl.program_id(0) == 1 or value > 10:
            tl.store(out + tl.program_id(0), float(value))

    x, out = machine.tensor(np.array([1.0, 2.0, 30.0])), machine.tensor(np.zeros(3))
    machine.launch(branch, (3,), x=x, out=out)
    np.testing.assert_array_equal(out.read(), [0, 2, 30])
