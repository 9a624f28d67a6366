"""Types and values of the kernel language, against rules of Triton written out by hand.

The oracle of every test is its own: numbers worked out from the definition of a format, or seen on
an H200 with Triton 3.6 (tf32, 8-bit floats, NaN, wrapping around, division by 0).
"""

import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tl_machine import Machine, place

from kernbench import tl
from kernbench.memory import DType, dtypes
from kernbench.tl.language import program
from kernbench.tl.launch import jit
from kernbench.tl.notices import KernelWarning
from kernbench.tl.operands import TileOperandError
from kernbench.topology import Topology
from kernbench.ttir.reports import OutOfBoundsError

NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="session")
def sip8(topology: Callable[[str], Topology]) -> Topology:
    return topology("sip8")


@pytest.fixture
def machine(sip8: Topology) -> Machine:
    return Machine(sip8)


def tile_of(machine: Machine, body: Callable[..., Any], **arguments: Any) -> tl.Tile:
    """Returns the tile that an expression of the language gives in a program of its own."""
    found: list[tl.Tile] = []

    @jit
    def kernel(x: Any = None, n: Any = None) -> None:
        found.append(body(x, n) if arguments else body())

    machine.launch(kernel, **arguments)
    return found[-1]


def values_of(machine: Machine, body: Callable[..., Any], **arguments: Any) -> Any:
    tile = tile_of(machine, body, **arguments)
    assert tile.values is not None
    return np.asarray(tile.values, np.float64).tolist()


def loaded(x: Any, count: int = 4) -> tl.Tile:
    return tl.load(x + tl.arange(0, count))


# Types


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (0, dtypes.int32),
        (-7, dtypes.int32),
        (2**31 - 1, dtypes.int32),
        (-(2**31), dtypes.int32),
        (2**31, dtypes.int64),
        (2**32, dtypes.int64),
        (2**63, dtypes.uint64),
        (0.5, dtypes.float32),
        (float("inf"), dtypes.float32),
        (True, dtypes.bool_),
        (np.int64(5), dtypes.int32),
    ],
)
def test_a_number_that_a_launch_passes_is_a_tile(
    machine: Machine, value: Any, dtype: DType
) -> None:
    found = []

    @jit
    def kernel(n: Any, pair: Any, constant: tl.constexpr, one: Any) -> None:
        found.extend([n, pair[0], constant, one])

    machine.launch(kernel, n=value, pair=(value, 1), constant=value, one=1)
    n, first, constant, one = found
    for tile in (n, first):
        assert isinstance(tile, tl.Tile)
        assert (tile.shape, tile.dtype) == ((), dtype)
        expected = dtype.numpy.type(value)
        assert tile.values == expected
    assert type(constant) is type(value)
    assert type(one) is int


def test_an_argument_divides_as_in_c_and_adds_its_type(machine: Machine) -> None:
    x = machine.tensor(np.array([1, 2, 3, 4], np.int8))
    assert values_of(machine, lambda _x, n: n // 2, x=x, n=-7) == -3
    assert values_of(machine, lambda _x, n: n % 2, x=x, n=-7) == -1
    assert tile_of(machine, lambda x, n: loaded(x) + n, x=x, n=-7).dtype is dtypes.int32
    assert tile_of(machine, lambda x, _n: loaded(x) + 7, x=x, n=-7).dtype is dtypes.int8


def test_a_loop_counts_tiles(machine: Machine) -> None:
    found: list[tuple[Any, ...]] = []

    @jit
    def kernel(n: Any, block: tl.constexpr) -> None:
        for i in range(-3, n, block):
            found.append((i, i // 2, min(i, n), max(i, 7)))  # noqa: PERF401 - as kernels do
        found.append((min(block, 5),) * 4)

    machine.launch(kernel, n=4, block=3)
    *tiles, constant = found
    assert [[int(each) for each in row] for row in tiles] == [
        [-3, -1, -3, 7],
        [0, 0, 0, 7],
        [3, 1, 3, 7],
    ]
    assert all(each.dtype is dtypes.int32 for row in tiles for each in row)
    assert constant == (3,) * 4


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (dtypes.bfloat16, dtypes.bfloat16, dtypes.bfloat16),
        (dtypes.bfloat16, dtypes.float16, dtypes.float16),
        (dtypes.bfloat16, dtypes.int32, dtypes.float32),
        (dtypes.float16, dtypes.int64, dtypes.float16),
        (dtypes.float8_e4m3fn, dtypes.float8_e5m2, dtypes.float16),
        (dtypes.uint8, dtypes.int8, dtypes.uint8),
        (dtypes.uint8, dtypes.int16, dtypes.int16),
        (dtypes.bool_, dtypes.int8, dtypes.int8),
        (dtypes.bool_, dtypes.bool_, dtypes.bool_),
    ],
)
def test_sums_have_the_common_type(
    machine: Machine, left: DType, right: DType, expected: DType
) -> None:
    x, y = machine.tensor(np.ones(4), left), machine.tensor(np.ones(4), right)
    for a, b in ((x, y), (y, x)):
        found = tile_of(machine, lambda x, n: loaded(x) + loaded(n), x=a, n=b)
        assert found.dtype is expected


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float16])
def test_narrow_floats_are_divided_in_float32(machine: Machine, dtype: DType) -> None:
    x = machine.tensor(np.array([1.0, 2.0, 5.0, 10.0]), dtype)
    found = tile_of(machine, lambda x, _n: loaded(x) / 3, x=x, n=0)
    assert found.dtype is dtypes.float32
    assert found.values is not None
    np.testing.assert_array_equal(found.values, np.array([1, 2, 5, 10], np.float32) / np.float32(3))
    assert tile_of(machine, lambda x, _n: loaded(x) % 3, x=x, n=0).dtype is dtypes.float32


def test_where_takes_the_common_type(machine: Machine) -> None:
    x = machine.tensor(np.array([1, 2, 3, 4], np.int32))
    assert values_of(machine, lambda x, _n: tl.where(loaded(x) < 3, loaded(x), 0.5), x=x, n=0) == [
        1,
        2,
        0.5,
        0.5,
    ]


def test_unsigned_wins_over_signed_of_the_same_width(machine: Machine) -> None:
    x = machine.tensor(np.array([255, 1, 0, 7], np.uint8))
    y = machine.tensor(np.array([-1, -1, 5, -3], np.int8))
    assert values_of(machine, lambda x, n: loaded(x) > loaded(n), x=x, n=y) == [0, 0, 0, 0]
    assert values_of(machine, lambda x, n: loaded(x) + loaded(n), x=x, n=y) == [254, 0, 5, 4]


def test_numbers_of_one_bit_are_added_modulo_2(machine: Machine) -> None:
    x = machine.tensor(np.array([0, 0, 1, 1], np.bool_))
    y = machine.tensor(np.array([0, 1, 0, 1], np.bool_))
    for body, expected in (
        (lambda a, b: a + b, [0, 1, 1, 0]),
        (lambda a, b: a - b, [0, 1, 1, 0]),
        (lambda a, b: a * b, [0, 0, 0, 1]),
        (lambda a, b: -a, [0, 0, 1, 1]),
        (lambda a, b: ~a, [1, 1, 0, 0]),
    ):
        found = tile_of(machine, lambda x, n, f=body: f(loaded(x), loaded(n)), x=x, n=y)
        assert found.dtype is dtypes.bool_
        assert found.values is not None
        assert found.values.tolist() == expected
    count = tile_of(machine, lambda x, _n: tl.sum(loaded(x)), x=x, n=y)
    assert (count.dtype, int(count)) == (dtypes.uint32, 2)


def test_shifts_keep_or_drop_the_sign(machine: Machine) -> None:
    signed = machine.tensor(np.array([-128, 127, -1, 4], np.int8))
    unsigned = machine.tensor(np.array([128, 127, 255, 4], np.uint8))
    for x, right in ((signed, [-32, 31, -1, 1]), (unsigned, [32, 31, 63, 1])):
        assert values_of(machine, lambda x, _n: loaded(x) >> 2, x=x, n=0) == right
    assert values_of(machine, lambda x, _n: loaded(x) << 1, x=signed, n=0) == [0, -2, -2, 8]
    assert values_of(machine, lambda x, _n: 1 << loaded(x), x=unsigned, n=0) == [0, 0, 0, 16]


# Refusals (K2)


@pytest.mark.parametrize(
    ("dtype", "body", "summary"),
    [
        (
            dtypes.float32,
            lambda x: x & 1,
            "'&' takes whole numbers; the common type is torch.float32",
        ),
        (dtypes.float32, lambda x: ~x, "'~' takes whole numbers; the common type is torch.float32"),
        (
            dtypes.float16,
            lambda x: x // 2,
            "'//' takes whole numbers; the common type is torch.float32",
        ),
        (dtypes.int32, tl.exp, "tl.exp takes float32 or float64; got torch.int32"),
        (dtypes.bfloat16, tl.sigmoid, "tl.sigmoid takes float32 or float64; got torch.bfloat16"),
        (dtypes.int8, lambda x: x + 200, "200 is not a number of type torch.int8"),
        (dtypes.uint8, lambda x: x * -1, "-1 is not a number of type torch.uint8"),
        (dtypes.int32, lambda x: x + 2**40, f"{2**40} is not a number of type torch.int32"),
        (dtypes.int32, lambda x: x // 0, "a whole number is divided by 0"),
        (dtypes.int32, lambda x: x % 0, "a whole number is divided by 0"),
        (
            dtypes.uint8,
            lambda x: x // tl.arange(0, 4),
            "torch.uint8 and torch.int32 are not divided by each other: one has a sign, one has "
            "none",
        ),
        (
            dtypes.float8_e5m2,
            lambda x: x + tl.arange(0, 4),
            "torch.float8_e5m2 and torch.int32 have no common type",
        ),
        (
            dtypes.float8_e5m2,
            lambda x: x.to(tl.int32),
            "torch.float8_e5m2 is not converted to torch.int32 at once",
        ),
        (
            dtypes.int32,
            lambda x: tl.full((4,), 0.5, tl.int32),
            "0.5 is not a number of type torch.int32",
        ),
        (
            dtypes.int32,
            lambda x: tl.full((4,), x, tl.int32),
            "tl.full takes one value; got a tile of shape [4]",
        ),
        (
            dtypes.int32,
            lambda x: tl.program_id(3),
            "tl.program_id(3): a grid has the axes 0, 1 and 2",
        ),
        (
            dtypes.int32,
            lambda x: tl.range(0, tl.full((), 1.5)),
            "the bounds of range are whole numbers; got torch.float32",
        ),
        (
            dtypes.int32,
            lambda x: x + 2**70,
            f"{2**70} is too large for a kernel: no type of whole numbers has it",
        ),
    ],
)
@pytest.mark.parametrize("data", [True, False])
def test_k2_what_triton_does_not_compile(
    sip8: Topology, data: bool, dtype: DType, body: Callable[[Any], Any], summary: str
) -> None:
    machine = Machine(sip8, data=data)
    x = machine.tensor(np.ones(4), dtype)

    @jit
    def kernel(x: Any) -> None:
        body(loaded(x))

    with pytest.raises(TileOperandError) as caught:
        machine.launch(kernel, x=x)
    assert str(caught.value).splitlines()[0] == f"[K2] {summary}"
    assert "test_tl_types.py" in str(caught.value).splitlines()[1]


@pytest.mark.parametrize(
    ("body", "summary"),
    [
        (lambda x: tl.load(x, other=0), "tl.load got other= without mask="),
        (
            lambda x: tl.load(x + tl.arange(0, 4), mask=tl.arange(0, 4)),
            "tl.load takes a mask of truth values; got torch.int32",
        ),
        (
            lambda x: tl.store(x + tl.arange(0, 4), 1, mask=tl.arange(0, 4)),
            "tl.store takes a mask of truth values; got torch.int32",
        ),
        (
            lambda x: tl.load(x, mask=tl.arange(0, 4) < 2),
            "tl.load of one element got a mask of shape [4]",
        ),
        (
            lambda x: tl.store(x + tl.arange(0, 4), 1, mask=tl.arange(0, 4)[:, None] < 2),
            "tl.store to pointers of shape [4] got a mask of shape [4, 1]",
        ),
        (lambda x: x + 0.5, "a pointer moves by whole numbers; got 0.5"),
        (lambda x: x + tl.zeros((4,)), "a pointer moves by whole numbers; got torch.float32"),
        (
            lambda x: tl.dot(tl.zeros((4, 4)), tl.zeros((4, 4)), input_precision="bf16x3"),
            "tl.dot: input_precision='bf16x3'",
        ),
        (
            lambda x: tl.dot(tl.zeros((4, 4)), tl.zeros((4, 4)), out_dtype=tl.bfloat16),
            "tl.dot gives no bfloat16",
        ),
        (
            lambda x: tl.dot(
                tl.zeros((4, 4)), tl.zeros((4, 4)), input_precision="ieee", allow_tf32=True
            ),
            "tl.dot takes input_precision or allow_tf32, not both",
        ),
        (
            lambda x: tl.dot(tl.zeros((4, 4)), tl.zeros((4, 4)), tl.zeros((4, 4), tl.float16)),
            "tl.dot gives torch.float32 of shape [4, 4]; got an acc of torch.float16 of shape "
            "[4, 4]",
        ),
    ],
)
def test_k2_loads_stores_and_products(
    machine: Machine, body: Callable[[Any], Any], summary: str
) -> None:
    x = machine.tensor(np.ones(4, np.float32))
    with pytest.raises(TileOperandError) as caught:
        machine.launch(jit(lambda x: body(x)), x=x)  # noqa: PLW0108 - a body takes any name
    assert str(caught.value).splitlines()[0] == f"[K2] {summary}"


# NaN


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16, dtypes.float16, dtypes.float64])
@pytest.mark.parametrize("recorded", [True, False])
def test_the_largest_and_the_smallest_leave_nan_out(
    sip8: Topology, dtype: DType, recorded: bool
) -> None:
    machine = Machine(sip8, recorded=recorded)
    x = machine.tensor(np.array([1, NAN, -2, 5]), dtype)
    y = machine.tensor(np.full(4, NAN), dtype)
    out, two = machine.tensor(np.zeros(3)), machine.tensor(np.zeros(4))

    @jit
    def kernel(x: Any, y: Any, out: Any, two: Any) -> None:
        a, b = loaded(x), loaded(y)
        tl.store(out + 0, tl.max(a, 0))
        tl.store(out + 1, tl.min(a, 0))
        tl.store(out + 2, tl.max(b))
        tl.store(two + tl.arange(0, 4), tl.maximum(tl.minimum(a, 4), b))

    machine.launch(kernel, x=x, y=y, out=out, two=two)
    np.testing.assert_array_equal(out.read(), [5, -2, NAN])
    np.testing.assert_array_equal(two.read(), [1, 4, -2, 4])


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float16, dtypes.int8, dtypes.bool_])
def test_the_largest_of_narrow_types_is_wide(machine: Machine, dtype: DType) -> None:
    x = machine.tensor(np.ones(4), dtype)
    wide = dtypes.float32 if dtype.is_floating_point else dtypes.int32
    for body in (lambda x, _n: tl.max(loaded(x)), lambda x, _n: tl.min(loaded(x), 0)):
        assert tile_of(machine, body, x=x, n=0).dtype is wide


def test_collectives_combine_as_torch_does(machine: Machine) -> None:
    """NaN stays in the largest value, and truth values add up as `or`: no rules of Triton."""
    x = machine.tensor(np.array([1, NAN, -2, NAN], np.float32))
    y = machine.tensor(np.array([NAN, 2, 5, NAN], np.float32))
    b = machine.tensor(np.array([0, 1, 0, 1], np.bool_))
    found = values_of(
        machine, lambda x, n: program().combine("maximum", loaded(x), loaded(n)), x=x, n=y
    )
    np.testing.assert_array_equal(found, [NAN, NAN, 5, NAN])
    assert values_of(
        machine, lambda x, n: program().combine("add", loaded(x), loaded(n)), x=b, n=b
    ) == [0, 1, 0, 1]


# 8-bit floats


@pytest.mark.parametrize(
    ("dtype", "largest"), [(dtypes.float8_e4m3fn, 448.0), (dtypes.float8_e5m2, 57344.0)]
)
@pytest.mark.parametrize("source", [dtypes.float32, dtypes.float16, dtypes.bfloat16])
def test_8_bit_floats_end_at_their_largest_number(
    sip8: Topology, dtype: DType, largest: float, source: DType
) -> None:
    values = np.array([1.0, 65000.0, -INF, NAN])
    for recorded in (True, False):
        machine = Machine(sip8, recorded=recorded)
        x, out = machine.tensor(values, source), machine.tensor(np.zeros(8), dtype)

        @jit
        def kernel(x: Any, out: Any) -> None:
            tl.store(out + tl.arange(0, 4), loaded(x).to(out.dtype))
            tl.store(out + 4 + tl.arange(0, 4), loaded(x))  # converted by the store

        machine.launch(kernel, x=x, out=out)
        expected = [1.0, largest, -largest, NAN] * 2
        np.testing.assert_array_equal(out.read().astype(np.float64), expected)


# Rounding


def test_numbers_beyond_a_type_become_its_ends(machine: Machine) -> None:
    """As PTX's `cvt.rzi` has it, which saturates, and makes 0 of NaN."""
    x = machine.tensor(np.array([3e9, -3e9, NAN, -1.5], np.float32))
    for dtype, expected in (
        (dtypes.int32, [2**31 - 1, -(2**31), 0, -1]),
        (dtypes.uint32, [3e9, 0, 0, 0]),
        (dtypes.int8, [127, -128, 0, -1]),
    ):
        assert values_of(machine, lambda x, n: loaded(x).to(n), x=x, n=dtype) == expected


def test_a_lane_that_was_left_out_is_the_largest_whole_number(machine: Machine) -> None:
    x = machine.tensor(np.array([3, NAN, 5, 6], np.float32))

    def body(x: Any, n: Any) -> Any:
        lanes = tl.arange(0, 4)
        return tl.load(x + lanes, lanes < 2).to(n)

    assert values_of(machine, body, x=x, n=dtypes.int16) == [3, 0, 2**15 - 1, 2**15 - 1]


def test_each_sum_of_two_narrow_floats_is_rounded(machine: Machine) -> None:
    # float16 has every second number from 2048 on: 2048 + 1 is 2048, and 2051 would be 2052.
    x = machine.tensor(np.array([2048, 1, 1, 1], np.float16))
    assert values_of(machine, lambda x, n: tl.sum(loaded(x), 0), x=x, n=0) == 2050


# Products


def truncated(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns float32 without the last 13 bits, number by number."""
    kept = [np.frexp(float(value)) for value in values.ravel()]
    numbers = [np.ldexp(np.trunc(m * 2**11) / 2**11, e) for m, e in kept]
    return np.array(numbers).reshape(values.shape)


def product_of(
    machine: Machine, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], **options: Any
) -> tuple[np.ndarray[Any, Any], int]:
    """Returns a product of two square matrices, and how long the launch took."""
    n = len(a)
    x, y, out = machine.tensor(a), machine.tensor(b), machine.tensor(np.zeros((n, n), np.float32))

    @jit
    def kernel(x: Any, y: Any, out: Any) -> None:
        lanes = tl.arange(0, n)
        block = lanes[:, None] * n + lanes[None, :]
        tl.store(out + block, tl.dot(tl.load(x + block), tl.load(y + block), **options))

    took = machine.launch(kernel, x=x, y=y, out=out)
    return out.read(), took


@pytest.mark.parametrize("recorded", [True, False])
def test_float32_is_multiplied_as_tf32(sip8: Topology, recorded: bool) -> None:
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal((16, 16)).astype(np.float32) for _ in range(2))
    found = product_of(Machine(sip8, recorded=recorded), a, b)[0]
    np.testing.assert_allclose(found, truncated(a) @ truncated(b), rtol=0, atol=2e-6)
    assert np.abs(found - a @ b).max() > 1e-4
    same = product_of(Machine(sip8, recorded=recorded), a, b, allow_tf32=True)[0]
    np.testing.assert_array_equal(found, same)
    for options in ({"input_precision": "ieee"}, {"allow_tf32": False}):
        found = product_of(Machine(sip8, recorded=recorded), a, b, **options)[0]
        np.testing.assert_array_equal(found, a @ b)
    found = product_of(Machine(sip8, recorded=recorded), a, b, input_precision="tf32x3")[0]
    np.testing.assert_array_equal(found, a @ b)


def test_tf32_takes_the_time_of_its_rate(topology: Callable[[str], Topology]) -> None:
    a = np.ones((128, 128), np.float32)
    took = {
        p: product_of(Machine(topology("h200x8")), a, a, input_precision=p)[1]
        for p in ("tf32", "tf32x3", "ieee")
    }
    flops = 2 * 128**3
    one = round(flops / 3.1)  # picoseconds at 3.1 TFLOP/s
    assert took["tf32x3"] - took["tf32"] == pytest.approx(2 * one, rel=1e-3)
    assert took["ieee"] - took["tf32"] == pytest.approx(flops / 0.39 - one, rel=1e-3)


def test_tf32_takes_the_time_of_float32_where_the_machine_gives_no_rate(sip8: Topology) -> None:
    a = np.ones((64, 64), np.float32)
    times = {product_of(Machine(sip8), a, a, input_precision=p)[1] for p in ("tf32", "ieee")}
    assert len(times) == 1


def test_two_8_bit_floats_may_differ_in_a_product(machine: Machine) -> None:
    a = np.full((16, 16), 1.5, ml_dtypes.float8_e4m3fn)
    b = np.full((16, 16), 2.0, ml_dtypes.float8_e5m2)
    assert (product_of(machine, a, b)[0] == 48).all()


# Division by 0


@jit
def quotients(x: Any, by: Any, out: Any, n: tl.constexpr) -> None:
    lanes = tl.arange(0, 4)
    a, b = tl.load(x + lanes), tl.load(by + lanes, mask=lanes < n, other=0)
    tl.store(out + lanes, a // b)
    tl.store(out + 4 + lanes, a % b)


@pytest.mark.parametrize("recorded", [True, False])
def test_lanes_divided_by_0_are_reported_and_undefined(sip8: Topology, recorded: bool) -> None:
    machine = Machine(sip8, recorded=recorded)
    x, by = (machine.tensor(np.array(v, np.int32)) for v in ([7, 8, 9, 10], [2, 3, 4, 5]))
    out = machine.tensor(np.zeros(8, np.int32))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            machine.launch(quotients, x=x, by=by, out=out, n=3)
    largest = 2**31 - 1
    assert out.read().tolist() == [3, 2, 2, largest, 1, 2, 1, largest]
    lines = [
        int(place(__file__, text).split(":")[1])
        for text in ("tl.store(out + lanes, a // b)", "tl.store(out + 4 + lanes, a % b)")
    ]
    assert [(each.category, each.lineno) for each in caught] == [
        (KernelWarning, line) for line in lines
    ]
    assert "divides whole numbers by 0 in some lanes" in str(caught[0].message)


# Index arithmetic that wraps around


@jit
def scaled_rows(x: Any, rows: int, stride: int, wide: tl.constexpr) -> None:
    row = tl.program_id(0) + rows
    if wide:
        row = row.to(tl.int64)
    offsets = row * stride + tl.arange(0, 4)
    tl.store(x + offsets, 1.0)


def test_an_address_that_wrapped_around_is_out_of_bounds_by_name(sip8: Topology) -> None:
    for recorded in (True, False):
        machine = Machine(sip8, recorded=recorded)
        x = machine.tensor(np.zeros(8, np.float32))
        with pytest.raises(OutOfBoundsError) as caught:
            machine.launch(scaled_rows, x=x, rows=70_001, stride=70_000, wide=False)
        lines = str(caught.value).splitlines()
        line = "offsets = row * stride + tl.arange(0, 4)"
        assert lines[0] == "[M2] tl.store out of bounds of x"
        assert lines[3] == (
            "  offsets: 70001 * stride (= 70000) is int32 and wraps around: it "
            f"reaches 4900070000, beyond int32, at {place(__file__, line).replace(':5:', ':15:')}"
        )
        # 4900070000 - 2**32, as on an H200.
        assert "first bad offset 605102704 " in str(caught.value)
        hint = "hint: convert an operand before the offsets wrap around: x.to(tl.int64)"
        assert hint in str(caught.value)


def test_wide_addresses_do_not_wrap_around(machine: Machine) -> None:
    x = machine.tensor(np.zeros(8, np.float32))
    with pytest.raises(OutOfBoundsError) as caught:
        machine.launch(scaled_rows, x=x, rows=70_001, stride=70_000, wide=True)
    assert "first bad offset 4900070000 " in str(caught.value)
    assert "wrap" not in str(caught.value)


@jit
def hashed(out: Any, prime: int) -> None:
    for i in range(2):
        lanes = (tl.program_id(0) * 2 + i) * 64 + tl.arange(0, 64)
        tl.store(out + lanes, lanes * prime)


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("data", [True, False])
def test_a_value_that_wraps_around_is_reported_once_a_line(
    sip8: Topology, recorded: bool, data: bool
) -> None:
    machine = Machine(sip8, recorded=recorded, data=data)
    out = machine.tensor(np.zeros(256, np.int32))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            machine.launch(hashed, (2,), out=out, prime=2**30 + 1)
    assert [each.category for each in caught] == [KernelWarning]
    assert str(caught[0].message) == (
        "(0..63) * prime (= 1073741825) is int32 and wraps around: it reaches 67645734975, beyond "
        "int32. Convert an operand first, with .to(tl.int64)."
    )
    if data:
        expected = np.arange(256, dtype=np.int64) * (2**30 + 1) % 2**32
        np.testing.assert_array_equal(out.read().view(np.uint32), expected)


@jit
def gathered(x: Any, rows: Any, out: Any, stride: int) -> None:
    row = tl.load(rows)
    tl.store(out, tl.load(x + row * stride))


def test_a_loaded_index_that_wraps_around_is_named_only_if_it_is_out_of_bounds(
    machine: Machine,
) -> None:
    x, out = machine.tensor(np.zeros(8, np.float32)), machine.tensor(np.zeros(1, np.float32))
    rows = machine.tensor(np.array([70_001], np.int32))
    with pytest.raises(OutOfBoundsError) as caught:
        machine.launch(gathered, x=x, rows=rows, out=out, stride=70_000)
    assert "70001 * stride (= 70000) is int32 and wraps around" in str(caught.value)
    rows = machine.tensor(np.array([1 << 30], np.int32))
    machine.launch(gathered, x=x, rows=rows, out=out, stride=4)  # wraps around to 0


def test_addresses_are_added_in_64_bits(machine: Machine) -> None:
    x = machine.tensor(np.array([5.0], np.float32))
    found = values_of(machine, lambda x, n: tl.load(((x + n) + n) + n - n - n - n), x=x, n=2**30)
    assert found == 5.0
