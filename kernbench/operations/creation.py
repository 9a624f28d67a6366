"""Makes tensors of a shape: unwritten, of one value, of a range."""

import operator
from collections.abc import Callable, Sequence
from math import ceil, isfinite
from typing import Any, Final, Unpack

import numpy as np

from kernbench.errors import OperandError, call_site, site_fact
from kernbench.memory import Array, DType, dtypes
from kernbench.operations.elementwise import ComplexError, layout
from kernbench.operations.filling import number
from kernbench.operations.making import LIKE, How, Making, made
from kernbench.process.process import current_process
from kernbench.process.types import CPU, Device, DeviceLike
from kernbench.tensors.errors import TensorError, one_way
from kernbench.tensors.new import new_tensor
from kernbench.tensors.nodes import require
from kernbench.tensors.promotion import Scalar, scalar_type
from kernbench.tensors.running import find_device, plain, run
from kernbench.tensors.settings import default_complex, default_dtype
from kernbench.tensors.tensor import Tensor

__all__ = [
    "arange",
    "empty",
    "empty_like",
    "eye",
    "full",
    "full_like",
    "linspace",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]

_MOST_ELEMENTS: Final = 1 << 50


def shape_of(size: tuple[Any, ...]) -> tuple[int, ...]:
    """Returns the shape that `size` arguments mean: integers, or one sequence of them.

    Raises:
        OperandError: If an extent is no integer.
        TensorError: If an extent is negative, or the tensor would exceed any memory.
    """
    given = size[0] if len(size) == 1 and isinstance(size[0], Sequence) else size
    try:
        shape = tuple([operator.index(extent) for extent in given])
    except TypeError:
        raise OperandError(
            f"a size is made of integers; got {given!r}", [site_fact(call_site())]
        ) from None
    count = 1
    for extent in shape:
        if extent < 0:
            raise TensorError(
                f"Trying to create tensor with negative dimension {extent}: {list(shape)}",
                [site_fact(call_site())],
            )
        count *= extent
    if count > _MOST_ELEMENTS:
        raise TensorError(
            f"Storage size calculation overflowed with sizes={list(shape)}",
            [site_fact(call_site())],
        )
    return shape


def asked(tensor: Tensor, requires_grad: bool) -> Tensor:
    """Returns a new tensor, made a leaf that needs a gradient if `requires_grad` is True.

    Raises:
        TensorError: If the tensor's type has no gradients.
    """
    if requires_grad:
        require(tensor, True)
    return tensor


def sizes_of(size: tuple[Any, ...], sequence: Sequence[int] | None) -> tuple[int, ...]:
    """Returns the shape given as integers one by one or as `size=`.

    Raises:
        OperandError: If an extent is no integer.
        TensorError: If an extent is negative, or the tensor would exceed any memory.
    """
    return shape_of(one_way(size, sequence))


def check_pin(device: Device, pin_memory: bool) -> None:
    """Checks that memory which is to be pinned is host memory.

    Raises:
        TensorError: If `device` is not the host.
    """
    if pin_memory and device is not CPU:
        raise TensorError(
            "Only dense CPU tensors can be pinned", [site_fact(call_site()), f"got {device}"]
        )


def _make(
    name: str,
    shape: tuple[int, ...],
    values: Callable[["np.dtype[Any]"], Array],
    *,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    """Returns a tensor of values that a kernel makes in place, without a copy from the host."""
    process = current_process()
    where, dtype = find_device(process, device), dtype or default_dtype()
    check_pin(where, pin_memory)
    site = process.call_site()
    out = new_tensor(process, shape, dtype, where, site, pinned=pin_memory, strides=strides)
    view, held = out.window, dtype.numpy
    run(process, f"aten::{name}", (), out, lambda: view.adopt(values(held)), site=site)
    return asked(out, requires_grad)


def as_of(tensor: Tensor, how: How) -> How:
    """Returns `how` with the type and the device of a tensor where it leaves them open.

    Args:
        tensor: Gives the type and the device.
        how: A call's own arguments, which are changed.
    """
    if how.get("dtype") is None:
        how["dtype"] = tensor.window.dtype
    if how.get("device") is None:
        how["device"] = tensor.device
    return how


@made("float32 by default")
def empty(
    *sizes: int | Sequence[int], size: Sequence[int] | None = None, **how: Unpack[Making]
) -> Tensor:
    """Returns a tensor of unwritten elements, as `torch.empty`; reading one is an error (M5).

    Raises:
        OutOfMemoryError: If the device has no room for the result (M7).
    """
    return _unwritten(sizes_of(sizes, size), **how)


def _unwritten(
    shape: tuple[int, ...],
    *,
    like: Tensor | None = None,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    process = current_process()
    where = find_device(process, device) if like is None or device is not None else like.device
    dtype = dtype or (default_dtype() if like is None else like.window.dtype)
    check_pin(where, pin_memory)
    out = new_tensor(process, shape, dtype, where, pinned=pin_memory, strides=strides)
    if process.engine.enable_data:
        # At once, not in stream order: the block is new, so no pending command can touch it.
        out.window.buffer.poison(dtype)
    return asked(out, requires_grad) if requires_grad else out


@made("float32 by default")
def zeros(
    *sizes: int | Sequence[int], size: Sequence[int] | None = None, **how: Unpack[Making]
) -> Tensor:
    """Returns a tensor of zeros, as `torch.zeros`.

    Raises:
        OutOfMemoryError: If the device has no room for the result (M7).
    """
    shape = sizes_of(sizes, size)
    return _make("zeros", shape, lambda held: np.zeros(shape, held), **how)


@made("float32 by default")
def ones(
    *sizes: int | Sequence[int], size: Sequence[int] | None = None, **how: Unpack[Making]
) -> Tensor:
    """Returns a tensor of ones, as `torch.ones`.

    Raises:
        OutOfMemoryError: If the device has no room for the result (M7).
    """
    how["dtype"] = how.get("dtype") or default_dtype()
    return _filled("ones", sizes_of(sizes, size), 1, **how)


@made("by default bool, int64, float32 or complex64, as the value requires")
def full(size: Sequence[int], fill_value: Scalar, **how: Unpack[Making]) -> Tensor:
    """Returns a tensor of one value, as `torch.full`.

    Args:
        size: Extents of the result.
        fill_value: Value of every element.

    Raises:
        OutOfMemoryError: If the device has no room for the result (M7).
    """
    return _filled("full", shape_of((size,)), plain(fill_value), **how)


def _filled(name: str, shape: tuple[int, ...], fill_value: Scalar, **how: Unpack[Making]) -> Tensor:
    how["dtype"] = dtype = how.get("dtype") or scalar_type(fill_value)
    filler = number("full", fill_value, dtype)
    return _make(name, shape, lambda held: np.full(shape, filler, held), **how)


def scalar_tensor(value: Scalar, like: Tensor) -> Tensor:
    """Returns a tensor without dimensions that holds a number.

    Args:
        value: The number.
        like: Tensor that gives the type and the device.
    """
    return _filled("scalar_tensor", (), value, dtype=like.dtype, device=like.device)


@made(LIKE)
def empty_like(input: Tensor, **how: Unpack[Making]) -> Tensor:
    """Returns an unwritten tensor of the shape of another one, as `torch.empty_like`."""
    shape = input.window.shape
    return _unwritten(shape, like=input, strides=layout(shape, (input,)), **how)


@made(LIKE)
def zeros_like(input: Tensor, **how: Unpack[Making]) -> Tensor:
    """Returns a tensor of zeros of the shape of another one, as `torch.zeros_like`."""
    return _full_like("zeros_like", input, 0, **how)


@made(LIKE)
def ones_like(input: Tensor, **how: Unpack[Making]) -> Tensor:
    """Returns a tensor of ones of the shape of another one, as `torch.ones_like`."""
    return _full_like("ones_like", input, 1, **how)


@made(LIKE)
def full_like(input: Tensor, fill_value: Scalar, **how: Unpack[Making]) -> Tensor:
    """Returns a tensor of one value of the shape of another one, as `torch.full_like`.

    Args:
        input: Tensor that gives the shape.
        fill_value: Value of every element.
    """
    return _full_like("full_like", input, fill_value, **how)


def _full_like(
    name: str,
    input: Tensor,
    fill_value: Scalar,
    *,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    shape, dtype = input.window.shape, dtype or input.window.dtype
    filler = number("full_like", fill_value, dtype)
    return _make(
        name,
        shape,
        lambda held: filler,
        dtype=dtype,
        device=input.device if device is None else device,
        requires_grad=requires_grad,
        pin_memory=pin_memory,
        strides=layout(shape, (input,)),
    )


@made(LIKE)
def new_empty(
    self: Tensor,
    *sizes: int | Sequence[int],
    size: Sequence[int] | None = None,
    **how: Unpack[Making],
) -> Tensor:
    """Returns an unwritten tensor like this one, as `torch.Tensor.new_empty`."""
    return empty(sizes_of(sizes, size), **as_of(self, how))


@made(LIKE)
def new_zeros(
    self: Tensor,
    *sizes: int | Sequence[int],
    size: Sequence[int] | None = None,
    **how: Unpack[Making],
) -> Tensor:
    """Returns a tensor of zeros like this one, as `torch.Tensor.new_zeros`."""
    return _filled("new_zeros", sizes_of(sizes, size), 0, **as_of(self, how))


@made(LIKE)
def new_ones(
    self: Tensor,
    *sizes: int | Sequence[int],
    size: Sequence[int] | None = None,
    **how: Unpack[Making],
) -> Tensor:
    """Returns a tensor of ones like this one, as `torch.Tensor.new_ones`."""
    return _filled("new_ones", sizes_of(sizes, size), 1, **as_of(self, how))


@made(LIKE)
def new_full(
    self: Tensor, size: Sequence[int], fill_value: Scalar, **how: Unpack[Making]
) -> Tensor:
    """Returns a tensor of one value like this one, as `torch.Tensor.new_full`.

    Args:
        size: Extents of the result.
        fill_value: Value of every element.
    """
    return _filled("new_full", shape_of((size,)), plain(fill_value), **as_of(self, how))


@made("by default int64 if all bounds are ints, else float32")
def arange(
    start: float | None = None, end: float | None = None, step: float = 1, **how: Unpack[Making]
) -> Tensor:
    """Returns a vector of the values from `start` up to `end`, without `end`, as `torch.arange`.

    Args:
        start: First value; the end of the range, from 0, if it is the only argument.
        end: Bound that the values do not reach.
        step: Difference of two values.

    Raises:
        OperandError: If no bound is given.
        TensorError: If `step` is 0 or leads away from `end`, an end is not finite, or for bools.
        ComplexError: For complex numbers.
    """
    dtype = how.get("dtype")
    if end is None:
        start, end = 0, start
    elif start is None:
        start = 0
    start, end, step = plain(start), plain(end), plain(step)
    if end is None:
        raise OperandError("arange() needs an end", [site_fact(call_site())])
    if complex in {type(start), type(end), type(step)} or (dtype is not None and dtype.is_complex):
        raise ComplexError('"arange" not implemented for complex numbers', [site_fact(call_site())])
    if not (isfinite(start) and isfinite(end)):
        raise TensorError(f"arange: unsupported range: {start} -> {end}", [site_fact(call_site())])
    if step == 0 or (end - start) * (1 if step > 0 else -1) < 0:
        problem = (
            "step must be nonzero"
            if step == 0
            else ("upper bound and lower bound inconsistent with step sign")
        )
        raise TensorError(f"arange: {problem}", [site_fact(call_site())])
    if dtype is dtypes.bool_:
        raise TensorError("arange is not implemented for torch.bool", [site_fact(call_site())])
    whole = all(isinstance(value, int) for value in (start, end, step))
    how["dtype"] = dtype = dtype or (dtypes.int64 if whole else default_dtype())
    exact = dtype.numpy.kind in "iu"
    first, by = (int(start), int(step)) if exact else (start, step)
    if dtype is dtypes.int64:
        # As in PyTorch, only int64 counts from the bounds without their fractions.
        end, start, step, whole = int(end), first, by, True
        if not by:
            raise TensorError("arange: step must be nonzero", [site_fact(call_site())])
    count = -((start - end) // step) if whole else ceil((end - start) / step)
    shape = shape_of(((int(count),),))

    def values(held: "np.dtype[Any]") -> Array:
        steps: Array = np.arange(count, dtype=np.int64 if exact or whole else np.float64)
        return (first + steps * by).astype(held, copy=False)

    return _make("arange", shape, values, **how)


@made("by default float32, or complex64 if an end is complex")
def linspace(start: complex, end: complex, steps: int, **how: Unpack[Making]) -> Tensor:
    """Returns `steps` values from `start` to `end`, both included, as `torch.linspace`.

    Args:
        start: First value.
        end: Last value.
        steps: Number of values.

    Raises:
        TensorError: If an end is complex and `dtype` is not, or `dtype` cannot hold an end, or for
            bools.
    """
    shape, start, end, dtype = shape_of(((steps,),)), plain(start), plain(end), how.get("dtype")
    if complex in {type(start), type(end)}:
        dtype = dtype or default_complex()
        if not dtype.is_complex:
            raise TensorError(
                f"linspace(): complex ends cannot be converted to {dtype}",
                [site_fact(call_site())],
            )
    how["dtype"] = dtype = dtype or default_dtype()
    if dtype is dtypes.bool_:
        raise TensorError("linspace is not implemented for torch.bool", [site_fact(call_site())])
    if dtype.numpy.kind in "iu":
        # As in PyTorch, the fractions of the ends are dropped first.
        start, end = number("linspace", start, dtype).item(), number("linspace", end, dtype).item()
    return _make("linspace", shape, lambda held: np.linspace(start, end, steps).astype(held), **how)


@made("float32 by default")
def eye(n: int, m: int | None = None, **how: Unpack[Making]) -> Tensor:
    """Returns a matrix with ones on the diagonal and zeros elsewhere, as `torch.eye`.

    Args:
        n: Number of rows.
        m: Number of columns; `n` by default.
    """
    shape = rows, columns = shape_of(((n, n if m is None else m),))
    return _make("eye", shape, lambda held: np.eye(rows, columns).astype(held), **how)
