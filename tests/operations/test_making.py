"""The arguments that functions share which make tensors: their signatures, docstrings, errors."""

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

from kernbench import torch
from kernbench.errors import OperandError
from kernbench.operations.making import Drawing, Making
from kernbench.runtime_api.context import RuntimeContext

DRAWN = (torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal)
LIKE = (torch.zeros_like, torch.ones_like, torch.empty_like, torch.full_like)
NEW = (torch.Tensor.new_empty, torch.Tensor.new_zeros, torch.Tensor.new_ones, torch.Tensor.new_full)
FILLED = (torch.empty, torch.zeros, torch.ones, torch.full, torch.arange, torch.linspace, torch.eye)
ALL = (*DRAWN, torch.rand_like, torch.randn_like, *LIKE, *NEW, *FILLED)


@pytest.mark.parametrize("function", ALL, ids=lambda each: each.__name__)
def test_signature_and_docstring_have_each_shared_argument(function: Callable[..., Any]) -> None:
    drawn = "generator" in inspect.signature(function).parameters
    assert drawn is ("rand" in function.__name__ or function is torch.normal)
    parameters = inspect.signature(function).parameters
    entries = (function.__doc__ or "").partition("Args:\n")[2].partition("\n\n")[0].splitlines()
    described = [each.strip(" *").partition(":")[0] for each in entries if each[:5].strip()]
    for name, hint in get_type_hints(Drawing if drawn else Making).items():
        assert parameters[name].annotation == hint
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert described.count(name) == 1
    assert "how" not in parameters
    assert set(described) <= set(parameters)
    assert not any(line.endswith("; .") or "None." in line for line in entries)


def test_the_default_of_the_type_is_that_of_the_function() -> None:
    told = {each.__name__: each.__doc__ or "" for each in ALL}
    assert "dtype: Element type; int64 by default." in told["randint"]
    assert "dtype: Element type; by default that of the given tensor." in told["new_ones"]
    assert "device: Device of the result; by default that of the given tensor." in told["rand_like"]
    assert "device: Device of the result; by default the host on main" in told["eye"]
    assert "input: Tensor that gives the shape." in told["zeros_like"]


@pytest.mark.parametrize("function", [torch.zeros, torch.rand, torch.empty])
def test_an_unknown_argument_is_refused_with_the_call(
    ctx: RuntimeContext, function: Callable[..., Any]
) -> None:
    with pytest.raises(OperandError, match="unexpected keyword argument 'typed'") as caught:
        function(2, typed=torch.int64)
    assert "dtype=None, device=None, requires_grad=False, pin_memory=False)" in caught.value.hint


def test_a_tensor_gives_what_is_left_open_and_nothing_else(ctx: RuntimeContext) -> None:
    given = torch.ones(2, 3, dtype=torch.float64, device="cuda")
    made = torch.zeros_like(given, device="cpu", requires_grad=True)
    assert (made.dtype, made.is_cpu, made.requires_grad) == (torch.float64, True, True)
    drawn = torch.rand_like(given, dtype=torch.float32)
    assert (drawn.dtype, drawn.device, drawn.requires_grad) == (torch.float32, given.device, False)
    assert given.new_full((2,), 3).dtype is torch.float64


TWINS = [
    (torch.amin, torch.amax),
    (torch.min, torch.max),
    (torch.argmin, torch.argmax),
    (torch.any, torch.all),
    (torch.std, torch.var),
    (torch.log_softmax, torch.softmax),
    (torch.argsort, torch.sort),
    (torch.scatter, torch.Tensor.scatter_),
    (torch.logaddexp2, torch.logaddexp),
    (torch.accelerator.memory_reserved, torch.accelerator.memory_allocated),
]


@pytest.mark.parametrize(("function", "twin"), TWINS, ids=lambda each: each.__name__)
def test_functions_with_the_same_arguments_are_described_alike(
    function: Callable[..., Any], twin: Callable[..., Any]
) -> None:
    own, theirs = inspect.signature(function).parameters, inspect.signature(twin).parameters
    assert list(own)[1:] == list(theirs)[1:]
    summary, _, sections = (inspect.getdoc(function) or "").partition("\n\n")
    first, _, described = (inspect.getdoc(twin) or "").partition("\n\n")
    assert sections == described
    assert sections.startswith("Args:\n    ")
    assert function.__name__ in summary or summary.startswith("Returns the bytes")
    assert summary != first
