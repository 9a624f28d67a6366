"""What a call gave, and whether two libraries agree on it."""

import warnings
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from differential_cases import Case, Side

from kernbench.errors import KernbenchError
from kernbench.sim_engine.data_executor import EffectError

_RELATIVE: Final = {
    "float64": 1e-11,
    "float32": 5e-6,
    "float16": 2e-3,
    "bfloat16": 1.6e-2,
    "complex64": 5e-6,
    "complex128": 1e-11,
}


@dataclass
class Seen:
    """A tensor of a result.

    Attributes:
        shape: Extents.
        dtype: Name of the element type.
        values: The values; None if they do not count.
        strides: Strides of the dimensions that have some; empty without elements.
        needs_gradient: Whether gradients go through it.
    """

    shape: tuple[int, ...]
    dtype: str
    values: Any
    strides: tuple[int, ...]
    needs_gradient: bool


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _array(tensor: Any) -> Any:
    plain = tensor.detach()
    if plain.is_complex() and hasattr(plain, "resolve_conj"):
        plain = plain.resolve_conj()
    if _name(plain.dtype) == "bfloat16":
        plain = plain.float()
    return plain.cpu().numpy()


def _seen(value: Any, side: Side, case: Case) -> Any:
    """Returns a result in terms that do not belong to a library."""
    if isinstance(value, side.lib.Tensor):
        shape = tuple(value.shape)
        used = 0 not in shape and not case.shapes_only
        strides = tuple(s for n, s in zip(shape, value.stride(), strict=True) if n > 1)
        values = None if case.shapes_only else _array(value)
        return Seen(shape, _name(value.dtype), values, strides if used else (), value.requires_grad)
    if isinstance(value, side.lib.dtype):
        return _name(value)
    if isinstance(value, list | tuple):
        return [_seen(each, side, case) for each in value]
    return value


def _outputs(value: Any, side: Side) -> list[Any]:
    if isinstance(value, side.lib.Tensor):
        return [value] if value.requires_grad else []
    if isinstance(value, list | tuple):
        return [each for entry in value for each in _outputs(entry, side)]
    return []


def _gradients(side: Side, result: Any, leaves: list[Any]) -> list[Any]:
    """Returns the gradients of the leaves for a made-up gradient of each output."""
    outputs = _outputs(result, side)
    if not outputs or not leaves:
        return []
    weights = []
    for output in outputs:
        count = int(np.prod(tuple(output.shape)))
        values = (1 + np.arange(count) % 5 / 4).reshape(tuple(output.shape)).astype(np.float32)
        weights.append(side.lib.tensor(values, device=side.device).to(output.dtype))
    return list(side.lib.autograd.grad(outputs, leaves, weights, allow_unused=True))


@dataclass
class Outcome:
    """What a call gave.

    Attributes:
        result: The result, see `_seen`; None if the call raised.
        gradients: Gradients of the operands that need some.
        error: What the call raised.
        gradient_error: What the backward pass raised.
    """

    result: Any = None
    gradients: Any = None
    error: Exception | None = None
    gradient_error: Exception | None = None


def outcome(side: Side, case: Case) -> Outcome:
    """Makes a call, goes back through it, and reads everything."""
    found = Outcome()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result, leaves = side.call(case)
            found.result = [_seen(result, side, case)]
        except Exception as error:
            found.error = error
            return found
        try:
            if not case.shapes_only:
                found.gradients = [
                    None if each is None else _seen(each, side, case)
                    for each in _gradients(side, result, leaves)
                ]
        except Exception as error:
            found.gradient_error = error
    return found


def compare(ours: Outcome, theirs: Outcome, case: Case) -> str | None:
    """Returns how two outcomes differ, in words; None if they do not."""
    problem = _errors("", ours.error, theirs.error)
    if problem is not None or theirs.error is not None:
        return problem
    problem = _unlike(ours.result, theirs.result, case, "result")
    if problem is not None:
        return problem
    problem = _errors("backward: ", ours.gradient_error, theirs.gradient_error)
    if problem is not None or theirs.gradient_error is not None:
        return problem
    return _unlike(ours.gradients, theirs.gradients, case, "gradient")


def _errors(prefix: str, ours: Exception | None, theirs: Exception | None) -> str | None:
    if ours is None and theirs is None:
        return None
    if ours is None:
        return f"{prefix}accepted; PyTorch raises {_told(theirs)}"
    if theirs is None:
        return f"{prefix}raises {_told(ours)}"
    if isinstance(ours, EffectError):
        return f"{prefix}raises late: {_told(ours)}"
    if isinstance(ours, KernbenchError) or type(ours) is type(theirs):
        return None
    return f"{prefix}raises as its own error {_told(ours)}; PyTorch raises {_told(theirs)}"


def _told(error: Exception | None) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _unlike(ours: Any, theirs: Any, case: Case, what: str) -> str | None:
    if isinstance(theirs, Seen) and isinstance(ours, Seen):
        return _unlike_tensors(ours, theirs, case, what)
    if isinstance(theirs, list) and isinstance(ours, list):
        if len(ours) != len(theirs):
            return f"{what}: {len(ours)} entries, expected {len(theirs)}"
        pairs = zip(ours, theirs, strict=True)
        found = (_unlike(a, b, case, f"{what}[{i}]") for i, (a, b) in enumerate(pairs))
        return next((each for each in found if each is not None), None)
    if isinstance(theirs, float | complex) and type(ours) is type(theirs):
        return (
            None
            if np.isclose(ours, theirs, 1e-5, 1e-6, equal_nan=True)
            else _other(what, ours, theirs)
        )
    same = type(ours) is type(theirs) and bool(ours == theirs)
    return None if same else _other(what, ours, theirs)


def _other(what: str, ours: Any, theirs: Any) -> str:
    return f"{what}: {ours!r}, expected {theirs!r}"


def _unlike_tensors(ours: Seen, theirs: Seen, case: Case, what: str) -> str | None:
    for field in ("shape", "dtype", "needs_gradient"):
        a, b = getattr(ours, field), getattr(theirs, field)
        if a != b:
            return f"{what}: {field} {a}, expected {b}"
    if theirs.values is not None:
        a, b = np.asarray(ours.values), np.asarray(theirs.values)
        relative = _RELATIVE.get(theirs.dtype)
        if relative is None:
            same = bool((a == b).all())
        else:
            finite = np.abs(b[np.isfinite(b)])
            largest = float(finite.max()) if finite.size else 0.0
            if case.loose or what.startswith("gradient"):
                relative *= 8
            absolute = relative * max(largest, 0.1 if case.loose else 1e-3)
            same = bool(np.isclose(a, b, relative, absolute, equal_nan=True).all())
        if not same:
            return f"{what}: values {a.tolist()}, expected {b.tolist()}"
    if ours.strides != theirs.strides and not what.startswith("gradient"):
        return f"{what}: strides {ours.strides}, expected {theirs.strides}"
    return None
