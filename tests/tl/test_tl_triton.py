"""Where the language does what Triton does rather than Python, and what it takes of its names."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tl_machine import Machine

from kernbench import tl
from kernbench.memory import DType, dtypes
from kernbench.tl import launch
from kernbench.tl.launch import Kernel, LaunchError, jit
from kernbench.topology import Topology


@pytest.fixture(scope="session")
def sip8(topology: Callable[[str], Topology]) -> Topology:
    return topology("sip8")


# Whole numbers


@jit
def divide(x: Any, by: Any, out: Any) -> None:
    """Divides a loaded number, and the same one made of indices."""
    a, b = tl.load(x), tl.load(by)
    tl.store(out + 0, a // b)
    tl.store(out + 1, a % b)
    zero = tl.program_id(0)
    index = zero + int(a)
    tl.store(out + 2, index // (zero + int(b)))
    tl.store(out + 3, index % (zero + int(b)))
    lanes = tl.arange(0, 2)
    tl.store(out + 4 + lanes, (lanes * 0 + index) // b)
    tl.store(out + 6 + lanes, (lanes * 0 + index) % b)


def truncated(a: int, b: int) -> tuple[int, int]:
    quotient = int(Fraction(a, b))
    return quotient, a - b * quotient


@given(
    a=st.integers(-(1 << 31), (1 << 31) - 1),
    b=st.integers(-100, 100).filter(bool),
    dtype=st.sampled_from([dtypes.int32, dtypes.int64]),
)
def test_division_rounds_towards_zero_and_the_remainder_keeps_the_sign(
    sip8: Topology, a: int, b: int, dtype: DType
) -> None:
    if dtype is dtypes.int32 and (a, b) == (-(1 << 31), -1):
        b = 1  # the quotient has no such type, in C as here
    machine = Machine(sip8)
    out = machine.tensor(np.zeros(8, np.int64))
    x, by = (machine.tensor(np.array([value]), dtype) for value in (a, b))
    machine.launch(divide, x=x, by=by, out=out)
    quotient, rest = truncated(a, b)
    assert out.read().tolist() == [quotient, rest] * 2 + [quotient] * 2 + [rest] * 2


def test_constants_divide_as_python_does(sip8: Topology) -> None:
    found = []

    @jit
    def constants(n: tl.constexpr) -> None:
        found.append((n // 2, n % 4, -7 // 2, tl.cdiv(n, 3)))

    Machine(sip8).launch(constants, n=-7)
    assert found == [(-4, 1, -4, -2)]


@pytest.mark.parametrize("n", [1, 7, 8, 9])
def test_cdiv_rounds_up_numbers_and_tiles(sip8: Topology, n: int) -> None:
    found = []

    @jit
    def up() -> None:
        found.append((tl.cdiv(n, 4), int(tl.cdiv(tl.program_id(0) + n, 4))))

    Machine(sip8).launch(up)
    assert found == [(-(-n // 4),) * 2]


def test_the_remainder_of_floats_keeps_the_sign_too(sip8: Topology) -> None:
    machine = Machine(sip8)
    x = machine.tensor(np.array([-5.5, 5.5, -3.0], np.float32))
    kept = []

    @jit
    def rest() -> None:
        kept.append((tl.load(tl.Pointer(x, 0) + tl.arange(0, 3)) % 2.0).values)

    machine.launch(rest)
    np.testing.assert_array_equal(kept[0], [-1.5, 1.5, -1.0])


# Lanes that a mask leaves out


@jit
def maximum(x: Any, out: Any, n: int, filler: tl.constexpr) -> None:
    lanes = tl.arange(0, 8)
    mask = lanes < n
    if filler is None:
        values = tl.load(x + lanes, mask=mask)
    else:
        values = tl.load(x + lanes, mask=mask, other=filler)
    tl.store(out + 0, tl.max(values, axis=0))
    tl.store(out + 1 + lanes, tl.where(mask, values, 0), mask=mask)


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize(
    ("dtype", "undefined"),
    [
        (dtypes.float32, np.nan),
        (dtypes.bfloat16, np.nan),
        (dtypes.float16, np.nan),
        (dtypes.int32, 2**31 - 1),
        (dtypes.int8, 127),
    ],
)
def test_lanes_that_are_not_loaded_are_undefined(
    sip8: Topology, dtype: DType, undefined: float, recorded: bool
) -> None:
    def launched(n: int, filler: int | None) -> list[float]:
        machine = Machine(sip8, recorded=recorded)
        x, out = machine.tensor(np.arange(-8, 0), dtype), machine.tensor(np.zeros(9), dtype)
        machine.launch(maximum, x=x, out=out, n=n, filler=filler)
        found: list[float] = out.read().astype(np.float64).tolist()
        return found

    loaded = [-8.0, -7, -6, -5, -4]
    np.testing.assert_array_equal(launched(5, None), [undefined, *loaded, 0, 0, 0])
    np.testing.assert_array_equal(launched(5, -9), [-4, *loaded, 0, 0, 0])
    np.testing.assert_array_equal(launched(8, None), [-1, *range(-8, 0)])


# Names


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64])
def test_functions_of_floats_keep_their_type(sip8: Topology, dtype: DType) -> None:
    machine = Machine(sip8)
    values = np.array([0.25, 1, 4, 60])
    x = machine.tensor(values, dtype)
    found = []

    @jit
    def functions() -> None:
        a = tl.load(tl.Pointer(x, 0) + tl.arange(0, 4))
        found.extend([tl.rsqrt(a), tl.sigmoid(a), tl.sigmoid(-a * 8)])

    machine.launch(functions)
    expected = [1 / np.sqrt(values), 1 / (1 + np.exp(-values)), 1 / (1 + np.exp(values * 8))]
    for tile, wanted in zip(found, expected, strict=True):
        assert tile.dtype is dtype
        assert tile.values is not None
        assert tile.values.dtype == dtype.numpy
        np.testing.assert_allclose(tile.values, wanted, rtol=1e-6, atol=1e-6)


@jit
def turn(x: Any, out: Any, rows: tl.constexpr, columns: tl.constexpr) -> None:
    lanes = tl.arange(0, rows * columns)
    tile = tl.reshape(tl.load(x + lanes), (rows, columns))
    turned = tl.trans(tile)
    tl.store(out + lanes, tl.reshape(turned, rows * columns))


@pytest.mark.parametrize("recorded", [True, False])
def test_reshape_and_trans(sip8: Topology, recorded: bool) -> None:
    machine = Machine(sip8, recorded=recorded)
    values = np.arange(24, dtype=np.float32)
    for _ in range(2):
        x, out = machine.tensor(values), machine.tensor(np.zeros(24, np.float32))
        machine.launch(turn, x=x, out=out, rows=4, columns=6)
        np.testing.assert_array_equal(out.read(), values.reshape(4, 6).T.reshape(-1))
        values = values[::-1].copy()


def test_trans_takes_an_order_of_axes(sip8: Topology) -> None:
    shapes = []

    @jit
    def orders() -> None:
        tile = tl.zeros((2, 3, 4))
        shapes.extend([tl.trans(tile).shape, tl.trans(tile, 2, 0, 1).shape])
        shapes.append(tl.trans(tile, (1, 0, 2)).shape)

    Machine(sip8).launch(orders)
    assert shapes == [(2, 4, 3), (4, 2, 3), (3, 2, 4)]


def test_ranges_count_as_pythons_do(sip8: Topology) -> None:
    found: list[list[int]] = []

    @jit
    def count(n: int) -> None:
        one = tl.num_programs(0)
        found.append([int(i) for i in tl.range(n, num_stages=3)])
        found.append([int(i) for i in tl.range(one, n + one, 2)])
        found.append(list(tl.static_range(0, n, 3)))
        tl.static_assert(n == 7)

    Machine(sip8).launch(count, n=7)
    assert found == [list(range(7)), [1, 3, 5, 7], [0, 3, 6]]


def test_static_assert_raises_its_message(sip8: Topology) -> None:
    @jit
    def check(block: tl.constexpr) -> None:
        tl.static_assert(block % 16 == 0, "block is a multiple of 16")

    with pytest.raises(AssertionError, match=r"tl\.static_assert: block is a multiple of 16"):
        Machine(sip8).launch(check, block=8)


@pytest.mark.parametrize("name", ["atomic_add", "cumsum", "device_print", "make_block_ptr"])
def test_other_names_are_not_simulated(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"^tl\.{name} is not simulated$"):
        getattr(tl, name)


@jit
def squared(x: Any) -> Any:
    return x * x


@jit
def squares(x: Any, block: tl.constexpr) -> None:
    lanes = tl.arange(0, block)
    tl.store(x + lanes, squared(tl.load(x + lanes)))


def test_a_kernel_calls_another_one_as_a_part_of_it(sip8: Topology) -> None:
    machine = Machine(sip8)
    for turn_ in range(2):
        x = machine.tensor(np.arange(8, dtype=np.float32) + turn_)
        machine.launch(squares, x=x, block=8)
        np.testing.assert_array_equal(x.read(), (np.arange(8) + turn_) ** 2)


# Options of a launch


class Launches:
    """Keeps what was launched."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def launch(self, _kernel: Kernel, _grid: tuple[int, ...], arguments: dict[str, Any]) -> None:
        self.seen.append(arguments)


@jit
def takes_stages(x: Any, num_stages: tl.constexpr) -> None:
    """Does nothing."""


def test_options_of_a_gpu_have_no_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = Launches()
    monkeypatch.setattr(launch, "find_launcher", lambda: launches)
    squares[(1,)]("x", block=4, num_warps=8, num_stages=2, num_ctas=1)
    takes_stages[(1,)]("x", num_stages=3, num_warps=4)
    assert launches.seen == [{"x": "x", "block": 4}, {"x": "x", "num_stages": 3}]


@pytest.mark.parametrize("value", [0, -1, 2.0, "4", True, None])
def test_options_of_a_gpu_are_positive_numbers(value: Any) -> None:
    with pytest.raises(LaunchError, match=r"\[K3\] kernel squares: num_warps is a positive number"):
        squares[(1,)]("x", block=4, num_warps=value)
