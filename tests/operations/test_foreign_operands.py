"""Operators of a tensor with operands that are neither tensors nor numbers."""

import operator
from typing import Any

import pytest

import kernbench.torch as torch
from kernbench.runtime_api.context import RuntimeContext

STEMS = [
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
]
COMPARED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}


class Own:
    """Defines every operator; each returns its name."""

    __hash__ = None  # type: ignore[assignment]


for _name in [*STEMS, *(f"r{stem}" for stem in STEMS), *COMPARED]:
    setattr(Own, f"__{_name}__", lambda self, other, name=_name: name)


def _function(stem: str) -> Any:
    return getattr(operator, f"{stem}_" if stem in {"and", "or"} else stem)


@pytest.mark.parametrize("stem", STEMS)
def test_operators_are_left_to_the_other_operand(ctx: RuntimeContext, stem: str) -> None:
    x = torch.tensor([1, 2])
    assert _function(stem)(x, Own()) == f"r{stem}"
    assert _function(stem)(Own(), x) == stem
    assert getattr(operator, f"i{stem}")(x, Own()) == f"r{stem}"
    assert x.tolist() == [1, 2]


@pytest.mark.parametrize("name", COMPARED)
def test_comparisons_are_left_to_the_other_operand(ctx: RuntimeContext, name: str) -> None:
    assert getattr(operator, name)(torch.tensor([1]), Own()) == COMPARED[name]


@pytest.mark.parametrize("stem", STEMS)
@pytest.mark.parametrize("other", [[1, 2], "text", None, {1: 2}, (1,), {1}, b"x", ...])
def test_what_fits_nobody_is_a_type_error(ctx: RuntimeContext, stem: str, other: Any) -> None:
    x = torch.tensor([1, 2])
    with pytest.raises(TypeError):
        _function(stem)(x, other)
    with pytest.raises(TypeError):
        getattr(operator, f"i{stem}")(x, other)
    if not (stem == "mod" and isinstance(other, str | bytes)):
        with pytest.raises(TypeError):
            _function(stem)(other, x)
    assert x.tolist() == [1, 2]


def test_a_list_is_extended_by_a_tensor(ctx: RuntimeContext) -> None:
    losses: list[Any] = [0.0]
    losses += torch.tensor([1.0, 2.0])
    assert [float(each) for each in losses] == [0.0, 1.0, 2.0]
    with pytest.raises(TypeError, match="can only concatenate list"):
        operator.add([0.0], torch.tensor([1.0]))


def test_the_error_says_what_to_do(ctx: RuntimeContext) -> None:
    with pytest.raises(TypeError) as caught:
        operator.add(torch.tensor([1.0]), (1.0, 2.0))
    lines = str(caught.value).splitlines()
    assert lines[0] == "__add__ takes tensors and numbers; got tuple"
    assert "test_foreign_operands.py" in lines[1]
    assert lines[2] == "  hint: torch.tensor(data) makes a tensor of it"


def test_shifts_of_numbers_and_in_place(ctx: RuntimeContext) -> None:
    x: Any = torch.tensor([1, 2])
    assert (3 << x).tolist() == [6, 12]
    assert (12 >> x).tolist() == [6, 3]
    same = x
    x <<= 2
    assert same.tolist() == [4, 8]
    x >>= 1
    assert same.tolist() == [2, 4]


@pytest.mark.parametrize("other", ["text", None, [1.0], {}])
def test_only_tensors_and_numbers_are_looked_for(ctx: RuntimeContext, other: Any) -> None:
    x = torch.tensor([1.0, 2.0])
    with pytest.raises(RuntimeError, match="only supports Tensor or scalar"):
        _ = other in x
    assert 2.0 in x
    assert torch.tensor(1.0) in x
