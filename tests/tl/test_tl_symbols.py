"""Formulas of index tiles have the values that numpy computes, element by element."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.memory import dtypes
from kernbench.tl import symbols
from kernbench.tl.symbols import Affine, Box

FUNCTIONS = ["add", "subtract", "multiply", "floor_divide", "remainder"]
COMPARISONS = ["less", "less_equal", "greater", "greater_equal"]
extents = st.integers(0, 5)
numbers = st.integers(-7, 7)


@st.composite
def blocks(draw: st.DrawFn) -> Affine:
    """Draws a constant, a run, a column, a row or a sum of two of them."""
    run = symbols.arange(start := draw(numbers), start + draw(extents))
    scaled = symbols.combine("multiply", run, Affine(draw(numbers), (), ()))
    assert isinstance(scaled, Affine)
    kind = draw(st.sampled_from(["constant", "run", "column", "row", "matrix"]))
    if kind == "constant":
        return Affine(draw(numbers), (), ())
    if kind == "run":
        return scaled
    column = scaled.expand((slice(None), None))
    if kind == "column":
        return column
    other = symbols.arange(0, draw(extents)).expand((None, slice(None)))
    if kind == "row":
        return other
    total = symbols.combine("add", column, other)
    assert isinstance(total, Affine)
    return total


def fits(a: Affine | Box, b: Affine | Box) -> bool:
    try:
        np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        return False
    return True


def numpys(name: str) -> Any:
    """Returns the function that a name stands for; division is C's."""
    if name == "floor_divide":
        return lambda a, b: np.trunc(a / b).astype(np.int32)
    return np.fmod if name == "remainder" else getattr(np, name)


def check(symbol: Affine | Box, expected: np.ndarray[Any, Any]) -> None:
    values = symbol.values()
    assert values.dtype == symbol.dtype.numpy == expected.dtype
    assert symbol.shape == expected.shape
    np.testing.assert_array_equal(values, expected)


@given(blocks(), blocks(), st.sampled_from(FUNCTIONS + COMPARISONS))
def test_arithmetic(a: Affine, b: Affine, name: str) -> None:
    if not fits(a, b) or (name in {"floor_divide", "remainder"} and not b.values().all()):
        return
    found = symbols.combine(name, a, b)
    if found is not None:
        check(found, np.asarray(numpys(name)(a.values(), b.values())))


@pytest.mark.parametrize("name", ["floor_divide", "remainder"])
def test_single_numbers_divide_as_in_c(name: str) -> None:
    for a, b in product(range(-7, 8), repeat=2):
        if b:
            found = symbols.combine(name, Affine(a, (), ()), Affine(b, (), ()))
            assert found is not None
            check(found, np.asarray(numpys(name)(np.int32(a), np.int32(b))))


@given(blocks(), blocks(), numbers, numbers, st.sampled_from(COMPARISONS))
def test_bounds_cut_boxes_out_of_boxes(
    a: Affine, b: Affine, low: int, high: int, name: str
) -> None:
    first = symbols.combine(name, a, Affine(low, (), ()))
    second = symbols.combine("less", Affine(high, (), ()), b)
    for found, block, expected in (
        (first, a, getattr(np, name)(a.values(), low)),
        (second, b, high < b.values()),
    ):
        if sum(stride != 0 for stride in block.strides) == 1:
            assert isinstance(found, Box)
        if found is not None:
            check(found, np.asarray(expected))
    if isinstance(first, Box) and isinstance(second, Box) and fits(first, second):
        check(symbols.intersection(first, second), first.values() & second.values())


@given(blocks())
def test_an_axis_more(a: Affine) -> None:
    for key in ((None,), (None, slice(None)), (slice(None), None)):
        if len(key) - key.count(None) <= len(a.shape):
            check(a.expand(key), a.values()[key])


def test_what_stays_a_formula() -> None:
    rows = symbols.arange(8, 16).expand((slice(None), None))
    columns = symbols.arange(0, 4).expand((None, slice(None)))
    scaled = symbols.combine("multiply", rows, Affine(100, (), ()))
    assert isinstance(scaled, Affine)
    assert symbols.combine("add", scaled, columns) == Affine(800, (8, 4), (100, 1))
    assert symbols.combine("less", rows, Affine(11, (), ())) == Box((8, 1), ((0, 3), (0, 1)))
    assert symbols.combine("multiply", rows, columns) is None
    assert symbols.combine("less", rows, columns) is None


def test_numbers_beyond_the_type_have_no_formula() -> None:
    large = symbols.constant(1 << 30)
    assert large is not None
    assert symbols.combine("multiply", large, large) is None
    assert symbols.combine("add", large, large) is None
    assert symbols.combine("subtract", Affine(-2, (), ()), Affine((1 << 31) - 1, (), ())) is None
    assert symbols.constant(1 << 31) is None
    wide = large.to(dtypes.int64)
    assert wide is not None
    assert symbols.combine("add", wide, large) == Affine(1 << 31, (), (), dtypes.int64)
    assert symbols.combine("multiply", wide, large) is None
    assert Affine(1 << 31, (), (), dtypes.int64).to(dtypes.int32) is None
    assert symbols.constant(1 << 40, dtypes.int64) is None


def test_a_block_has_no_formula_if_one_element_wraps_around() -> None:
    run = symbols.arange(0, 1 << 16)
    assert symbols.combine("multiply", run, Affine(1 << 15, (), ())) is not None
    assert symbols.combine("multiply", run, Affine((1 << 15) + 1, (), ())) is None
    assert symbols.combine("multiply", run, Affine(-(1 << 15) - 1, (), ())) is None
