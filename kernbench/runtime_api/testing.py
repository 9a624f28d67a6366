"""`torch.testing`: comparing tensors, with a tolerance for each type."""

from typing import Any, Final

import numpy as np

from kernbench.errors import KernbenchError, OptionError, call_site, site_fact
from kernbench.memory import Array, DType, dtypes
from kernbench.operations.from_values import as_tensor
from kernbench.tensors.errors import refuse
from kernbench.tensors.running import host_array
from kernbench.tensors.tensor import Tensor

__all__ = ["assert_close"]

_TOLERANCES: Final = {
    dtypes.float16: (1e-3, 1e-5),
    dtypes.bfloat16: (1.6e-2, 1e-5),
    dtypes.float32: (1.3e-6, 1e-5),
    dtypes.float64: (1e-7, 1e-7),
    dtypes.complex64: (1.3e-6, 1e-5),
    dtypes.complex128: (1e-7, 1e-7),
}
"""PyTorch's relative and absolute tolerance by type; other types are compared exactly."""


class NotCloseError(KernbenchError, AssertionError):
    """Two values that should be close are not."""


def assert_close(
    actual: Any,
    expected: Any,
    *,
    allow_subclasses: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_device: bool = True,
    check_dtype: bool = True,
    check_layout: bool = True,
    check_stride: bool = False,
    msg: str | None = None,
) -> None:
    """Checks that two tensors, numbers, or sequences or mappings of them are close.

    The call reads the values on the host, so it waits for the tensors to be computed.

    Args:
        actual: The value to test.
        expected: The value to compare with.
        allow_subclasses: Must be True.
        rtol: Relative tolerance; by default the larger one of both types, as in PyTorch.
        atol: Absolute tolerance; must be given together with `rtol`.
        equal_nan: Whether nan equals nan.
        check_device: Whether both must be on the same device.
        check_dtype: Whether both must have the same type.
        check_layout: Whether both must have the same layout; all tensors here have the same.
        check_stride: Whether both must have the same strides.
        msg: Text of the error, in place of the description of the difference.

    Raises:
        NotCloseError: If the values are not close; also an `AssertionError`.
        OptionError: If only one of the tolerances is given.
        UnsupportedError: For `allow_subclasses=False`.
    """
    if (rtol is None) != (atol is None):
        raise OptionError(
            "rtol and atol must both be specified or both be unspecified",
            [site_fact(call_site())],
        )
    del check_layout
    refuse("assert_close", allow_subclasses=None if allow_subclasses else False)
    checks = {"device": check_device, "dtype": check_dtype, "stride": check_stride}
    problem = _compare(actual, expected, rtol, atol, equal_nan, checks)
    if problem is not None:
        raise NotCloseError(msg or problem)


def _compare(
    actual: Any,
    expected: Any,
    rtol: float | None,
    atol: float | None,
    equal_nan: bool,
    checks: dict[str, bool],
    place: str = "",
) -> str | None:
    """Returns a description of the difference; None if there is none."""
    if isinstance(actual, dict) and isinstance(expected, dict):
        if actual.keys() != expected.keys():
            return f"The keys of the mappings do not match{place}: {[*actual]} and {[*expected]}"
        pairs = {f"[{key!r}]": (actual[key], expected[key]) for key in actual}
    elif isinstance(actual, list | tuple) and isinstance(expected, list | tuple):
        if len(actual) != len(expected):
            return (
                f"The length of the sequences do not match{place}: {len(actual)} != {len(expected)}"
            )
        both = zip(actual, expected, strict=True)
        pairs = {f"[{index}]": pair for index, pair in enumerate(both)}
    else:
        return _compare_values(actual, expected, rtol, atol, equal_nan, checks, place)
    for key, (a, b) in pairs.items():
        inner = f"{place or ' (item '}{key}"
        problem = _compare(a, b, rtol, atol, equal_nan, checks, inner)
        if problem is not None:
            return problem
    return None


def _compare_values(
    actual: Any,
    expected: Any,
    rtol: float | None,
    atol: float | None,
    equal_nan: bool,
    checks: dict[str, bool],
    place: str,
) -> str | None:
    what = "Tensor-likes"
    if isinstance(actual, int | float | complex) and isinstance(expected, int | float | complex):
        what = "Scalars"
        checks = {**checks, "dtype": checks["dtype"] and type(actual) is not type(expected)}
        actual, expected = (_number(value) for value in (actual, expected))
        if actual.dtype != expected.dtype and not checks["dtype"]:
            checks["dtype"] = False
    a, b = (
        value if isinstance(value, Tensor) else as_tensor(value, device="cpu")
        for value in (actual, expected)
    )
    where = f"{place})" if place else ""
    if a.window.shape != b.window.shape:
        return f"The values for attribute 'shape' do not match{where}: {a.shape} != {b.shape}."
    for name, mine, other in (
        ("device", a.device, b.device),
        ("dtype", a.dtype, b.dtype),
        ("stride()", a.window.strides, b.window.strides),
    ):
        if checks[name.removesuffix("()")] and mine != other:
            return f"The values for attribute '{name}' do not match{where}: {mine} != {other}."
    defaults = [_TOLERANCES.get(tensor.dtype, (0.0, 0.0)) for tensor in (a, b)]
    relative = max(pair[0] for pair in defaults) if rtol is None else rtol
    absolute = max(pair[1] for pair in defaults) if atol is None else atol
    x, y = (_wide(host_array(t, "assert_close"), t.dtype) for t in (a, b))
    return _differences(what, where, x, y, relative, absolute, equal_nan)


def _number(value: complex) -> Array:
    return np.asarray(value)


def _wide(values: Array, dtype: DType) -> Array:
    if dtype.is_complex:
        return values.astype(np.complex128)
    return values.astype(np.float64) if dtype.is_floating_point else values.astype(np.int64)


def _differences(
    what: str, where: str, x: Array, y: Array, rtol: float, atol: float, equal_nan: bool
) -> str | None:
    with np.errstate(all="ignore"):
        gap = np.abs(x - y)
        close = (x == y) | (np.isfinite(x) & np.isfinite(y) & (gap <= atol + rtol * np.abs(y)))
        if equal_nan:
            close |= np.isnan(x) & np.isnan(y)
        if close.all():
            return None
        ratio = np.where(close, 0, gap / np.abs(y))
        gap = np.where(close, 0, gap)
    exact = rtol == atol == 0

    def allowed(tolerance: float) -> str:
        return "" if exact else f" (up to {tolerance} allowed)"

    lines = [f"{what} are not {'equal' if exact else 'close'}!{where}", ""]
    if not x.shape:
        lines[0] = lines[0].rstrip()
        return "\n".join(
            [
                *lines,
                f"Expected {y[()]} but got {x[()]}.",
                f"Absolute difference: {gap[()]}{allowed(atol)}",
                f"Relative difference: {ratio[()]}{allowed(rtol)}",
            ]
        )
    wrong = int((~close).sum())
    lines.append(f"Mismatched elements: {wrong} / {close.size} ({100 * wrong / close.size:.1f}%)")
    for name, values, tolerance in (("absolute", gap, atol), ("relative", ratio, rtol)):
        flat = int(np.nanargmax(np.where(np.isnan(values), np.inf, values)))
        place = tuple(int(n) for n in np.unravel_index(flat, values.shape))
        lines.append(
            f"Greatest {name} difference: {values.flat[flat]} at index {place}{allowed(tolerance)}"
        )
    return "\n".join(lines)
