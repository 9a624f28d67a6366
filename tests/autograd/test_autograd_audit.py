"""Every public operation has a gradient, has none by nature, or says that it is missing."""

import ast
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from test_autograd_operations import CASES, POSITIVE, _values

import kernbench
import kernbench.torch as torch
import kernbench.torch.nn.functional as F
from kernbench.errors import UnsupportedError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.tensors import tape
from kernbench.tensors.tape import is_differentiable

_NO_NUMBERS: Final = """
all allclose any argmax argmin argsort bincount histc bitwise_and bitwise_and_ bitwise_left_shift
bitwise_not
bitwise_or bitwise_or_ bitwise_right_shift bitwise_xor bitwise_xor_ count_nonzero eq equal ge gt
is_nonzero is_tensor isclose isfinite isinf isnan le logical_and logical_and_ logical_not
logical_or logical_or_ logical_xor lt ne nonzero numel nelement promote_types unique bool byte
char int long short
size stride is_pinned dim element_size storage_offset data_ptr untyped_storage is_contiguous
is_floating_point is_complex get_device
numpy item tolist
multinomial seed get_rng_state set_rng_state
bernoulli empty empty_like eye from_numpy full full_like linspace manual_seed initial_seed
get_rng_state set_rng_state
normal ones ones_like rand rand_like randint randn randn_like randperm zeros zeros_like arange
as_tensor tensor new_empty new_zeros new_ones new_full normal_ uniform_
backward detach detach_ register_hook register_post_accumulate_grad_hook requires_grad_
are_deterministic_algorithms_enabled is_deterministic_algorithms_warn_only_enabled
use_deterministic_algorithms get_default_dtype set_default_dtype get_float32_matmul_precision
set_float32_matmul_precision get_num_threads set_num_threads load save typename one_hot
retain_grad record_stream is_grad_enabled is_inference_mode_enabled is_inference get_default_device
set_default_device
"""
NO_NUMBERS: Final = set(_NO_NUMBERS.split())
"""Bools and integers; facts; values for the host; draws and new tensors; autograd itself."""
REFUSED: Final = {"floor_divide", "floor_divide_"}
COMPLEX: Final = {
    *("cdouble", "cfloat", "complex", "conj", "imag", "real", "view_as_complex", "view_as_real")
}
"""Refused where a gradient is asked for, when they are called: see `test_complex.py`."""

SAME: Final = {
    # Other names of what is checked, or calls of it.
    "concat": "cat",
    "divide": "div",
    "true_divide": "div",
    "multiply": "mul",
    "swapaxes": "transpose",
    "clip": "clamp",
    "t": "T",
    "view_as": "view",
    "reshape_as": "reshape",
    "expand_as": "expand",
    "double": "to",
    "float": "to",
    "half": "to",
    "bfloat16": "to",
    "cuda": "to",
    "cpu": "to",
    "type": "to",
    "type_as": "to",
    "pin_memory": "to",
    "scatter_": "scatter",
    "fmod_": "fmod",
    "remainder_": "remainder",
    "nll_loss": "cross_entropy",
    "dropout": "native_dropout",
}


def _public() -> dict[str, list[Any]]:
    """Returns every public operation by its name: functions of `torch`, of `F`, and methods."""
    found: dict[str, list[Any]] = {}
    for holder in (torch, F, torch.Tensor):
        for name, shown in vars(holder).items():
            value = inspect.unwrap(shown) if inspect.isfunction(shown) else shown
            ours = inspect.isfunction(value) and value.__module__.startswith("kernbench.")
            if not name.startswith("_") and ours and name != "not_simulated":
                found.setdefault(name, []).append(value)
    return found


def test_every_operation_is_checked_or_has_no_gradient(
    ctx: RuntimeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = _public()
    called: set[str] = set()
    names: dict[Any, list[str]] = {}
    for name, functions in public.items():
        for function in functions:
            names.setdefault(function, []).append(name)

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def noted(*args: Any, **kwargs: Any) -> Any:
            called.add(name)
            return function(*args, **kwargs)

        return noted

    for holder in (torch, F, torch.Tensor):
        for name, value in list(vars(holder).items()):
            if not name.startswith("_") and inspect.isfunction(value):
                monkeypatch.setattr(holder, name, noting(name, value))
    for function, shapes in (*CASES.values(), *POSITIVE.values()):
        called.update(names.get(inspect.unwrap(function), []))
        inputs = [
            torch.tensor(value, dtype=torch.float64, requires_grad=True)
            for value in _values(shapes, True)
        ]
        function(*inputs)
    for name in SAME:
        if SAME[name] in called or is_differentiable(SAME[name]) or SAME[name] == "T":
            called.add(name)
    silent = sorted(name for name in public if name not in called | NO_NUMBERS | REFUSED | COMPLEX)
    # In-place forms, once checked by name, share the path of those without underscore.
    silent = [n for n in silent if not (n.endswith("_") and n[:-1] in called)]
    assert silent == []
    assert not NO_NUMBERS - set(public), "a name that is gone"


def test_operations_without_a_derivative_raise_by_name(ctx: RuntimeContext) -> None:
    x = torch.tensor([3.0, 4.0], requires_grad=True)
    cases: list[tuple[Callable[[Any], Any], str]] = [
        (lambda a: a // 2, "floor_divide"),
        (lambda a: 7 // a, "floor_divide"),
        (lambda a: (a * 1).floor_divide_(2), "floor_divide"),
        (lambda a: a.view(torch.float16), "view_dtype"),
    ]
    for operation, name in cases:
        y = operation(x)
        assert y.requires_grad
        with pytest.raises(UnsupportedError) as caught:
            y.sum().backward()
        lines = str(caught.value).splitlines()
        assert lines[0] == f"derivative for aten::{name} is not implemented"
        assert lines[1].startswith("  at ")
        assert lines[2].startswith("  it was called at ")
        assert "test_autograd_audit.py" in lines[2]
        assert lines[3] == "  hint: detach() its operands if no gradient should go through it"
    twice: Any = torch.einsum("ii->i", torch.ones((2, 2), requires_grad=True))
    with pytest.raises(UnsupportedError, match="where one operand names a subscript twice"):
        twice.sum().backward()


def test_results_without_numbers_need_no_gradient(ctx: RuntimeContext) -> None:
    x = torch.tensor([3.0, 4.0], requires_grad=True)
    results: list[torch.Tensor] = [
        x > 1, x.argmax(), x.isnan(), x.all(), x.long(), x.count_nonzero(), torch.zeros_like(x),
        x.detach(), x.data, x.sort().indices, torch.isclose(x, x), x.new_ones(2),
    ]  # fmt: skip
    assert not any(result.requires_grad for result in results)


PAST_THE_TAPE: Final = {
    "creation._make": "nothing goes in",
    "copies._transfer": "its callers record",
    "filling._fill": "its caller records",
    "random.bernoulli": "draws",
    "sampling.multinomial": "indices",
    "running.run": "the definition",
    "clipping._scale": "gradients need no gradients",
    "optimizer._update": "the step of an optimiser is not recorded",
    "hooks.call_with_hooks": "runs a module",
}


def test_no_operation_is_issued_past_the_tape() -> None:
    """Whoever runs an operation records it, or is in the list above."""
    issuing = set()
    rooms = ("tensors", "operations", "autograd", "nn", "optim", "data_parallel")
    package = Path(kernbench.__file__).parent
    for file in [file for room in rooms for file in (package / room).glob("*.py")]:
        for function in ast.walk(ast.parse(file.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            calls = [each.func for each in ast.walk(function) if isinstance(each, ast.Call)]
            runs = any(isinstance(c, ast.Name) and c.id in {"run", "run_on_lists"} for c in calls)
            begins = any(isinstance(c, ast.Attribute) and c.attr == "begin" for c in calls)
            if runs and not begins:
                issuing.add(f"{file.stem}.{function.name}")
    assert issuing == set(PAST_THE_TAPE) - {"running.run"}


def test_what_is_recorded_is_in_the_table(ctx: RuntimeContext, monkeypatch: Any) -> None:
    """Every name that an operation is recorded under has a formula, but for those refused."""
    missing = set()
    begin = tape.begin

    def noting(process: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        stem = name.removeprefix("aten::")
        if not is_differentiable(stem) and not is_differentiable(stem.removesuffix("_")):
            missing.add(stem)
        return begin(process, name, *args, **kwargs)

    monkeypatch.setattr(tape, "begin", noting)
    for function, shapes in CASES.values():
        function(*[
            torch.tensor(value, dtype=torch.float64, requires_grad=True)
            for value in _values(shapes, True)
        ])  # fmt: skip
    assert missing == set()
