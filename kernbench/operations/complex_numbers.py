"""Complex numbers: their parts, and views between them and pairs of real numbers."""

from typing import Final

import numpy as np

from kernbench.errors import UnsupportedError, call_site, site_fact
from kernbench.memory import Array, DType, View, dtypes
from kernbench.operations.elementwise import elementwise
from kernbench.process.process import current_process
from kernbench.tensors import tape
from kernbench.tensors.errors import TensorError
from kernbench.tensors.new import wrap
from kernbench.tensors.tensor import Tensor

__all__ = [
    "angle",
    "complex",
    "conj",
    "imag",
    "is_complex",
    "real",
    "view_as_complex",
    "view_as_real",
]


_OF_PARTS: Final = (dtypes.float32, dtypes.float64)
"""Types that the parts of complex numbers may have."""


def is_complex(input: Tensor) -> bool:
    """Returns whether the elements are complex numbers."""
    return input.window.dtype.is_complex


def complex(real: Tensor, imag: Tensor) -> Tensor:
    """Returns complex numbers made of real and imaginary parts, as `torch.complex`.

    Args:
        real: Real parts, float32 or float64.
        imag: Imaginary parts, of the type of `real`.

    Raises:
        TensorError: If the types differ, or are neither float32 nor float64.
        UnsupportedError: For float16.
    """
    dtype = real.window.dtype
    if dtype is not imag.window.dtype or dtype not in _OF_PARTS:
        if dtype is imag.window.dtype is dtypes.float16:
            raise UnsupportedError(
                "complex(): complex numbers of float16 (torch.complex32) are not simulated",
                [site_fact(call_site())],
            )
        raise TensorError(
            "complex(): expected both inputs to be float32 or both float64, got "
            f"{dtype} and {imag.window.dtype}",
            [site_fact(call_site())],
        )
    result = dtypes.complex_type(dtype)
    assert result is not None
    held = result.numpy

    def joined(a: Array, b: Array) -> Array:
        values: Array = np.empty(np.broadcast_shapes(a.shape, b.shape), held)
        values.real, values.imag = a, b
        return values

    return elementwise("aten::complex", joined, real, imag, result=result)


def real(input: Tensor) -> Tensor:
    """Returns a view of the real parts; a real tensor is returned unchanged."""
    return _part("real", input, 0) if input.window.dtype.is_complex else input


def imag(input: Tensor) -> Tensor:
    """Returns a view of the imaginary parts.

    Raises:
        TensorError: For a real tensor, as in PyTorch.
    """
    if not input.window.dtype.is_complex:
        raise TensorError(
            "imag is not implemented for tensors with non-complex dtypes.",
            [site_fact(call_site()), f"got {input.dtype}"],
        )
    return _part("imag", input, 1)


def _part(name: str, input: Tensor, place: int) -> Tensor:
    old = input.window
    strides = tuple([2 * step for step in old.strides])
    part = dtypes.real_type(old.dtype)
    return _seen(name, input, part, old.shape, strides, 2 * old.offset + place)


def view_as_real(input: Tensor) -> Tensor:
    """Returns a view with a further dimension of two: real and imaginary part.

    Raises:
        TensorError: For a real tensor.
    """
    old = input.window
    if not old.dtype.is_complex:
        raise TensorError(
            "view_as_real is only supported for complex tensors",
            [site_fact(call_site()), f"got {input.dtype}"],
        )
    strides = (*[2 * step for step in old.strides], 1)
    part = dtypes.real_type(old.dtype)
    return _seen("view_as_real", input, part, (*old.shape, 2), strides, 2 * old.offset)


def view_as_complex(input: Tensor) -> Tensor:
    """Returns a view in which the last dimension, of extent two, is a complex number.

    Raises:
        TensorError: If the last dimension does not hold pairs of adjacent elements, or the type is
            neither float32 nor float64.
    """
    old = input.window
    dtype = dtypes.complex_type(old.dtype) if old.dtype in _OF_PARTS else None
    problem = ""
    if dtype is None:
        problem = f"is only supported for float32 and float64 tensors, but got {old.dtype}"
    elif not old.shape or old.shape[-1] != 2:
        problem = "needs a last dimension of size 2"
    elif old.strides[-1] != 1:
        problem = "needs a last dimension of stride 1"
    elif any(step % 2 for step in old.strides[:-1]):
        problem = "needs strides, but for that of the last dimension, that are divisible by 2"
    elif old.offset % 2:
        problem = "needs a storage offset that is divisible by 2"
    if dtype is None or problem:
        raise TensorError(
            f"view_as_complex {problem}",
            [
                site_fact(call_site()),
                f"shape {list(old.shape)}, strides {list(old.strides)}, offset {old.offset}",
            ],
        )
    strides = tuple([step // 2 for step in old.strides[:-1]])
    return _seen("view_as_complex", input, dtype, old.shape[:-1], strides, old.offset // 2)


def _seen(
    name: str,
    input: Tensor,
    dtype: DType,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
) -> Tensor:
    """Returns a view of another type; autograd refuses to record the view."""
    node = None
    if input.memory.tracked:
        node = tape.begin(current_process(), name, (input,))
    view = View(input.window.buffer, dtype, shape, strides, offset)
    seen = wrap(input.memory, view, input.device)
    if node is not None:
        tape.finish(node, seen)
    return seen


def conj(input: Tensor) -> Tensor:
    """Returns the complex conjugate of each element; a real tensor is returned unchanged.

    The result is a copy that takes a kernel; PyTorch only marks the tensor and computes later.
    """
    if not input.window.dtype.is_complex:
        return input
    return elementwise("aten::conj", np.conjugate, input)


def angle(input: Tensor) -> Tensor:
    """Returns the angle of each element in radians, as `torch.angle`; integers give float32."""
    dtype = input.window.dtype
    if dtype.is_complex:
        return elementwise("aten::angle", np.angle, input, result=dtypes.real_type(dtype))
    compute = dtype if dtype.is_floating_point else dtypes.float32
    return elementwise("aten::angle", _angle, input, compute=compute)


def _angle(x: Array) -> Array:
    turned = np.where(x < 0, x.dtype.type(np.pi), x.dtype.type(0))
    return np.where(np.isnan(x), x, turned)
