"""Chooses between elements, and sets elements."""

from math import isfinite
from typing import Any, Final, overload

import ml_dtypes
import numpy as np

from kernbench.errors import OperandError, call_site, site_fact
from kernbench.kernels.names import kernel_name
from kernbench.memory import Array, DType, View, dtypes
from kernbench.operations.copies import to
from kernbench.operations.elementwise import Operand, argument, elementwise
from kernbench.operations.host_reads import nonzero
from kernbench.process.process import Process, current_process
from kernbench.tensors import tape
from kernbench.tensors.errors import TensorError
from kernbench.tensors.operands import type_name
from kernbench.tensors.promotion import FLOATS, Scalar, category
from kernbench.tensors.running import plain, run
from kernbench.tensors.tensor import Tensor

__all__ = ["masked_fill", "where"]


@overload
def where(condition: Tensor) -> tuple[Tensor, ...]: ...
@overload
def where(condition: Tensor, input: Operand, other: Operand) -> Tensor: ...
def where(
    condition: Tensor, input: Operand | None = None, other: Operand | None = None
) -> Tensor | tuple[Tensor, ...]:
    """Returns `input` where `condition` is true, else `other`, as `torch.where`.

    Args:
        condition: Tensor of bools or uint8; all three shapes broadcast.
        input: A tensor or a number.
        other: A tensor or a number.

    Returns:
        A tensor; of a condition alone, the indices of its elements that are not 0, a vector for
        each dimension, for which the host waits.

    Raises:
        OperandError: If one of `input` and `other` is missing.
        TensorError: If the condition is of another type.
    """
    if input is None and other is None:
        indices: tuple[Tensor, ...] = nonzero(condition, as_tuple=True)
        return indices
    if input is None or other is None:
        raise OperandError(
            "where() takes a condition alone, or a condition, input and other",
            [site_fact(call_site())],
        )
    if isinstance(condition, Tensor) and condition.dtype is dtypes.uint8:
        condition = to(condition, dtypes.bool_)
    _check_mask("where", condition)
    return elementwise("aten::where", np.where, condition, input, other, keep=1)


def _check_mask(name: str, mask: Tensor) -> None:
    if not isinstance(mask, Tensor) or mask.window.dtype is not dtypes.bool_:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TensorError(f"{name} expected a bool tensor, got {got}", [site_fact(call_site())])


def masked_fill(input: Tensor, mask: Tensor, value: Operand) -> Tensor:
    """Returns `input` with `value` where `mask` is true, as `torch.masked_fill`.

    Args:
        mask: Tensor of bools; broadcasts with `input`.
        value: A number or a single-value tensor.
    """
    _check_mask("masked_fill", mask)
    compute = _fill_type(input, value)
    return elementwise("aten::masked_fill", np.where, mask, value, input, keep=1, compute=compute)


def _fill_type(tensor: Tensor, value: Operand) -> DType:
    dtype = tensor.window.dtype
    if isinstance(value, Tensor):
        if value.window.shape:
            raise TensorError(
                "masked_fill only supports a 0-dimensional value tensor, but got tensor with "
                f"{len(value.window.shape)} dimension(s).",
                [site_fact(call_site())],
            )
        _check_real("masked_fill", value, dtype)
    else:
        number("masked_fill", value, dtype)
    return dtype


def number(name: str, value: Scalar, dtype: DType) -> Array:
    """Returns a number as a single value of a type, as PyTorch converts it, see `fits`.

    Args:
        name: Name of the operation, for the error.
        value: The number, or a tensor with one element, for which the host waits.
        dtype: Type of the result.

    Raises:
        OperandError: If it is neither.
        TensorError: If the type cannot hold the number, or an imaginary part would be lost.
    """
    if type(value) not in _NUMBERS:
        value = _as_number(name, value)
    if not fits(value, dtype):
        raise _overflow(name, value, dtype)
    if isinstance(value, complex) and not dtype.is_complex and dtype is not dtypes.bool_:
        value = value.real
    if isinstance(value, complex) or dtype.numpy.kind not in "iu":
        return dtypes.cast(value, dtype)
    return np.asarray(int(value)).astype(dtype.numpy)


_NUMBERS: Final = frozenset({bool, int, float, complex})


def _as_number(name: str, value: Any) -> Scalar:
    value = plain(value)
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, int | float | complex):
        raise OperandError(
            f"{name}: expected a number, got {type_name(value)}", [site_fact(call_site())]
        )
    return value


def fits(value: Scalar, dtype: DType) -> bool:
    """Returns whether PyTorch converts a number to a type.

    A type without signs takes negative integers down to minus its largest number, modulo its range.
    A fraction is dropped; infinities and nan stay in floating-point types.

    Args:
        value: The number.
    """
    if dtype is dtypes.bool_ or dtype.is_complex:
        return True
    if isinstance(value, complex):
        if value.imag:
            return False
        value = value.real
    if dtype.is_floating_point:
        return not isfinite(value) or abs(value) <= _LARGEST[dtype]
    limits = np.iinfo(dtype.numpy)
    if isinstance(value, float):
        return isfinite(value) and limits.min <= value and int(value) <= limits.max
    lowest = limits.min if dtype.is_signed else -limits.max
    return lowest <= value <= limits.max


_LARGEST: Final = {
    dtype: float(ml_dtypes.finfo(dtype.numpy).max)  # type: ignore[no-untyped-call]
    for dtype in dtypes.ALL
    if dtype.is_floating_point
}


def _overflow(name: str, value: object, dtype: DType) -> TensorError:
    return TensorError(
        f"{name}: value {value} cannot be converted to type {dtype} without overflow",
        [site_fact(call_site())],
    )


def _check_real(name: str, value: Tensor, dtype: DType) -> None:
    if value.window.dtype.is_complex and not dtype.is_complex:
        raise TensorError(
            f"{name}: a value of {value.dtype} cannot be converted to type {dtype}",
            [site_fact(call_site())],
            hint="give its real part: value.real",
        )


def masked_fill_(self: Tensor, mask: Tensor, value: Operand) -> Tensor:
    """Sets the elements where `mask` is true to `value`, as `torch.Tensor.masked_fill_`."""
    _check_mask("masked_fill_", mask)
    compute = _fill_type(self, value)
    return elementwise(
        "aten::masked_fill_", np.where, mask, value, self, keep=1, compute=compute, out=self
    )


def fill_(self: Tensor, value: Operand) -> Tensor:
    """Sets every element to a number or a single-value tensor."""
    return _written(self, value, "fill_")


def _written(self: Tensor, value: Operand, name: str) -> Tensor:
    process = current_process()
    node = None
    tracked = self.memory.tracked or (isinstance(value, Tensor) and value.memory.tracked)
    if tracked and category(self.dtype) >= FLOATS:
        node = tape.begin(process, "aten::fill", (self, value), out=self)
    _fill(process, self, value, kernel_name(name))
    if node is not None:
        tape.finish(node, self)
    return self


def _fill(process: Process, self: Tensor, value: Operand, name: str) -> None:
    target = self.window
    if isinstance(value, Tensor):
        if value.window.shape:
            raise TensorError(
                "fill_ only supports 0-dimension value tensor but got tensor with "
                f"{len(value.window.shape)} dimensions",
                [site_fact(call_site())],
            )
        _check_real("fill_", value, target.dtype)
        if self.device != value.device:
            values = argument(process, value, target.dtype.numpy)
            run(process, name, (), self, lambda: _spread(target, values))
        else:
            source = value.window
            run(process, name, (value,), self, lambda: _spread(target, source.read()))
        return
    filler = number("fill_", value, target.dtype)
    run(process, name, (), self, lambda: _spread(target, filler))


def _spread(target: View, value: Array) -> None:
    target.store(value)


def zero_(self: Tensor) -> Tensor:
    """Sets every element to 0."""
    return _written(self, 0, "zero_")
