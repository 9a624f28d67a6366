"""Type promotion, against tables of what PyTorch 2.13 returns."""

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernbench.torch as torch
from kernbench.errors import KernbenchError
from kernbench.memory import DType, dtypes
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.tensors.promotion import promote_types, result_type

LETTERS: Final = {
    "d": "float64",
    "f": "float32",
    "h": "float16",
    "b": "bfloat16",
    "l": "int64",
    "i": "int32",
    "s": "int16",
    "c": "int8",
    "u": "uint8",
    "?": "bool",
}
TYPES: Final = [next(d for d in dtypes.ALL if d.name == name) for name in LETTERS.values()]
BY_LETTER: Final = dict(zip(LETTERS, TYPES, strict=True))


def _rows(text: str) -> list[list[DType]]:
    return [[BY_LETTER[letter] for letter in row] for row in text.split()]


# Row by row: torch.promote_types(row, column).
PROMOTE: Final = _rows("""
dddddddddd dfffffffff dfhfhhhhhh dffbbbbbbb dfhbllllll
dfhbliiiii dfhblissss dfhbliscsc dfhblissuu dfhbliscu?
""")
# torch.result_type(tensor with dimensions, single-value tensor).
WITH_SINGLE: Final = _rows("""
dddddddddd ffffffffff hhhhhhhhhh bbbbbbbbbb dfhbllllll
dfhbiiiiii dfhbssssss dfhbcccccc dfhbuuuuuu dfhbliscu?
""")
# torch.result_type(tensor, True), (tensor, 1), (tensor, 1.0); dimensions or not.
WITH_NUMBER: Final = _rows("ddd fff hhh bbb llf iif ssf ccf uuf ?lf")
# (row / column).dtype
DIVIDED: Final = _rows("""
dddddddddd dfffffffff dfhfhhhhhh dffbbbbbbb dfhbffffff
dfhbffffff dfhbffffff dfhbffffff dfhbffffff dfhbffffff
""")


def _cell(table: list[list[DType]], row: DType, column: DType) -> DType:
    return table[TYPES.index(row)][TYPES.index(column)]


PAIRS: Final = [(a, b) for a in TYPES for b in TYPES]


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_two_tensors_promote_as_in_pytorch(ctx: RuntimeContext, a: DType, b: DType) -> None:
    x, y = torch.ones(2, dtype=a), torch.ones(2, dtype=b)
    assert promote_types(a, b) is _cell(PROMOTE, a, b)
    assert (x * y).dtype is _cell(PROMOTE, a, b)
    assert (x / y).dtype is _cell(DIVIDED, a, b)
    assert torch.where(x == 1, x, y).dtype is _cell(PROMOTE, a, b)


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_single_values_have_a_say_only_by_category(ctx: RuntimeContext, a: DType, b: DType) -> None:
    x, single = torch.ones(2, dtype=a), torch.ones((), dtype=b)
    assert (x * single).dtype is _cell(WITH_SINGLE, a, b)
    assert (single * x).dtype is _cell(WITH_SINGLE, a, b)


@pytest.mark.parametrize("a", TYPES)
@pytest.mark.parametrize(("column", "number"), [(0, True), (1, 1), (2, 1.0)])
def test_numbers_have_a_say_only_by_category(
    ctx: RuntimeContext, a: DType, column: int, number: Any
) -> None:
    expected = WITH_NUMBER[TYPES.index(a)][column]
    assert (torch.ones(2, dtype=a) * number).dtype is expected
    assert (number * torch.ones((), dtype=a)).dtype is expected


@pytest.mark.parametrize("other", TYPES)
def test_8_bit_floats_promote_with_nothing_but_themselves(
    ctx: RuntimeContext, other: DType
) -> None:
    fp8 = dtypes.float8_e4m3fn
    assert promote_types(fp8, fp8) is fp8
    with pytest.raises(KernbenchError, match=r"promotion of torch\.float8_e4m3fn and"):
        promote_types(fp8, other)


def _category(dtype: DType) -> int:
    return 2 if dtype.is_floating_point else int(dtype is not dtypes.bool_)


OPERANDS: Final = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(TYPES), st.booleans()),
        st.sampled_from([True, 3, 2.5]),
    ),
    min_size=1,
    max_size=6,
)


@given(operands=OPERANDS)
def test_any_operands_follow_the_tables(operands: list[Any], topology: Any) -> None:
    numbers = {bool: dtypes.bool_, int: dtypes.int64, float: dtypes.float32}
    levels: list[list[DType]] = [[], [], []]
    with RuntimeContext(engine=GraphEngine(topology("sip8"))):
        values: list[Any] = []
        for operand in operands:
            if isinstance(operand, tuple):
                dtype, single = operand
                values.append(torch.ones(() if single else (1,), dtype=dtype))
                levels[1 if single else 0].append(dtype)
            else:
                values.append(operand)
                levels[2].append(numbers[type(operand)])
        found = result_type(values)
        assert result_type(values[::-1]) is found
    expected: DType | None = None
    for level in levels:
        strongest: DType | None = None
        for dtype in level:
            strongest = dtype if strongest is None else _cell(PROMOTE, strongest, dtype)
        if strongest is None:
            continue
        if expected is None or _category(strongest) > _category(expected):
            expected = strongest
    assert found is expected
