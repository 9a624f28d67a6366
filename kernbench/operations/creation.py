"""Makes tensors of a shape: unwritten, of one value, of a range."""

import operator
from collections.abc import Callable, Sequence
from math import ceil, isfinite
from typing import Any, Final

import numpy as np

from kernbench.errors import OperandError, call_site, site_fact
from kernbench.memory import Array, DType, dtypes
from kernbench.operations.elementwise import ComplexError, layout
from kernbench.operations.filling import number
from kernbench.process.process import Process, current_process
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
    dtype: DType,
    device: DeviceLike | None,
    values: Callable[[], Array],
    *,
    requires_grad: bool,
    pin_memory: bool,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    """Returns a tensor of values that a kernel makes in place, without a copy from the host."""
    process = current_process()
    where = find_device(process, device)
    check_pin(where, pin_memory)
    site = process.call_site()
    out = new_tensor(process, shape, dtype, where, site, pinned=pin_memory, strides=strides)
    view = out.window
    run(process, f"aten::{name}", (), out, lambda: view.adopt(values()), site=site)
    return asked(out, requires_grad)


def empty(
    *sizes: int | Sequence[int],
    size: Sequence[int] | None = None,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Returns a tensor of unwritten elements, as `torch.empty`; reading one is an error (M5).

    Args:
        *sizes: Extents of the result, one by one or as one sequence.
        size: Extents of the result, instead of `sizes`.
        dtype: Element type; float32 by default.
        device: Device of the result; by default the host on main, a rank's device in a worker.
        requires_grad: Whether the result is a leaf that needs a gradient.
        pin_memory: Whether the result lies in pinned host memory.

    Raises:
        OutOfMemoryError: If the device has no room for the result (M7).
    """
    process = current_process()
    where = find_device(process, device)
    check_pin(where, pin_memory)
    out = _empty(process, sizes_of(sizes, size), dtype or default_dtype(), where, pinned=pin_memory)
    return asked(out, requires_grad)


def _empty(
    process: Process,
    shape: tuple[int, ...],
    dtype: DType,
    device: Device,
    *,
    pinned: bool = False,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    out = new_tensor(process, shape, dtype, device, pinned=pinned, strides=strides)
    if process.engine.enable_data:
        # At once, not in stream order: the block is new, so no pending command can touch it.
        out.window.buffer.poison(dtype)
    return out


def zeros(
    *sizes: int | Sequence[int],
    size: Sequence[int] | None = None,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Returns a tensor of zeros, as `torch.zeros`.

    Args:
        *sizes: Extents of the result, one by one or as one sequence.
        size: Extents of the result, instead of `sizes`.
        dtype: Element type; float32 by default.
        device: Device of the result; by default the host on main, a rank's device in a worker.
        requires_grad: Whether the result is a leaf that needs a gradient.
        pin_memory: Whether the result lies in pinned host memory.

    Raises:
        OutOfMemoryError: If the device has no room for the result (M7).
    """
    shape, dtype = sizes_of(sizes, size), dtype or default_dtype()
    held = dtype.numpy
    return _make(
        "zeros",
        shape,
        dtype,
        device,
        lambda: np.zeros(shape, held),
        requires_grad=requires_grad,
        pin_memory=pin_memory,
    )


def ones(
    *sizes: int | Sequence[int],
    size: Sequence[int] | None = None,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Returns a tensor of ones, as `torch.ones`.

    Args:
        *sizes: Extents of the result, one by one or as one sequence.
        size: Extents of the result, instead of `sizes`.
        dtype: Element type; float32 by default.
        device: Device of the result; by default the host on main, a rank's device in a worker.
        requires_grad: Whether the result is a leaf that needs a gradient.
        pin_memory: Whether the result lies in pinned host memory.

    Raises:
        OutOfMemoryError: If the device has no room for the result (M7).
    """
    return _filled(
        "ones",
        sizes_of(sizes, size),
        1,
        dtype=dtype or default_dtype(),
        device=device,
        requires_grad=requires_grad,
        pin_memory=pin_memory,
    )


def full(
    size: Sequence[int],
    fill_value: Scalar,
    *,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Returns a tensor of one value, as `torch.full`.

    Args:
        size: Extents of the result.
        fill_value: Value of every element.
        dtype: Element type; by default bool, int64, float32 or complex64, as the value requires.
        device: Device of the result; by default the host on main, a rank's device in a worker.
        requires_grad: Whether the result is a leaf that needs a gradient.
        pin_memory: Whether the result lies in pinned host memory.

    Raises:
        OutOfMemoryError: If the device has no room for the result (M7).
    """
    return _filled(
        "full",
        shape_of((size,)),
        plain(fill_value),
        dtype=dtype,
        device=device,
        requires_grad=requires_grad,
        pin_memory=pin_memory,
    )


def _filled(
    name: str,
    shape: tuple[int, ...],
    fill_value: Scalar,
    *,
    dtype: DType | None,
    device: DeviceLike | None,
    requires_grad: bool,
    pin_memory: bool,
) -> Tensor:
    dtype = dtype or scalar_type(fill_value)
    filler, held = number("full", fill_value, dtype), dtype.numpy
    return _make(
        name,
        shape,
        dtype,
        device,
        lambda: np.full(shape, filler, held),
        requires_grad=requires_grad,
        pin_memory=pin_memory,
    )


def empty_like(
    input: Tensor,
    *,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Returns an unwritten tensor of the shape of another one, as `torch.empty_like`.

    Args:
        input: Tensor that gives the shape.
        dtype: Element type; by default that of the other tensor.
        device: Device of the result; by default that of the other tensor.
        requires_grad: Whether the result is a leaf that needs a gradient.
        pin_memory: Whether the result lies in pinned host memory.
    """
    process = current_process()
    where = input.device if device is None else find_device(process, device)
    shape = input.window.shape
    check_pin(where, pin_memory)
    strides = layout(shape, (input,))
    out = _empty(process, shape, dtype or input.dtype, where, pinned=pin_memory, strides=strides)
    return asked(out, requires_grad)


def zeros_like(
    input: Tensor,
    *,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Returns a tensor of zeros of the shape of another one, as `torch.zeros_like`.

    Args:
        input: Tensor that gives the shape.
        dtype: Element type; by default that of the other tensor.
        device: Device of the result; by default that of the other tensor.
        requires_grad: Whether the result is a leaf that needs a gradient.
        pin_memory: Whether the result lies in pinned host memory.
    """
    return _filled_like("zeros_like", input, 0, dtype, device, requires_grad, pin_memory)


def ones_like(
    input: Tensor,
    *,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Returns a tensor of ones of the shape of another one, as `torch.ones_like`.

    Args:
        input: Tensor that gives the shape.
        dtype: Element type; by default that of the other tensor.
        device: Device of the result; by default that of the other tensor.
        requires_grad: Whether the result is a leaf that needs a gradient.
        pin_memory: Whether the result lies in pinned host memory.
    """
    return _filled_like("ones_like", input, 1, dtype, device, requires_grad, pin_memory)


def full_like(
    input: Tensor,
    fill_value: Scalar,
    *,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Returns a tensor of one value of the shape of another one, as `torch.full_like`.

    Args:
        input: Tensor that gives the shape.
        fill_value: Value of every element.
        dtype: Element type; by default that of the other tensor.
        device: Device of the result; by default that of the other tensor.
        requires_grad: Whether the result is a leaf that needs a gradient.
        pin_memory: Whether the result lies in pinned host memory.
    """
    return _filled_like("full_like", input, fill_value, dtype, device, requires_grad, pin_memory)


def _filled_like(
    name: str,
    input: Tensor,
    fill_value: Scalar,
    dtype: DType | None,
    device: DeviceLike | None,
    requires_grad: bool,
    pin_memory: bool,
) -> Tensor:
    shape, dtype = input.window.shape, dtype or input.dtype
    filler = number("full_like", fill_value, dtype)
    where = input.device if device is None else device
    strides = layout(shape, (input,))
    return _make(
        name,
        shape,
        dtype,
        where,
        lambda: filler,
        requires_grad=requires_grad,
        pin_memory=pin_memory,
        strides=strides,
    )


def scalar_tensor(value: Scalar, like: Tensor) -> Tensor:
    """Returns a tensor without dimensions that holds a number.

    Args:
        value: The number.
        like: Tensor that gives the type and the device.
    """
    return _filled(
        "scalar_tensor",
        (),
        value,
        dtype=like.dtype,
        device=like.device,
        requires_grad=False,
        pin_memory=False,
    )


def new_empty(
    self: Tensor,
    *sizes: int | Sequence[int],
    size: Sequence[int] | None = None,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Returns an unwritten tensor like this one, as `torch.Tensor.new_empty`.

    Args:
        self: The tensor.
        *sizes: Extents of the result, one by one or as one sequence.
        size: Extents of the result, instead of `sizes`.
        dtype: Element type; by default that of this tensor.
        device: Device of the result; by default that of this tensor.
        requires_grad: Whether the result is a leaf that needs a gradient.
        pin_memory: Whether the result lies in pinned host memory.
    """
    return empty(
        sizes_of(sizes, size),
        dtype=dtype or self.dtype,
        device=self.device if device is None else device,
        requires_grad=requires_grad,
        pin_memory=pin_memory,
    )


def new_zeros(
    self: Tensor,
    *sizes: int | Sequence[int],
    size: Sequence[int] | None = None,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Returns a tensor of zeros like this one, as `torch.Tensor.new_zeros`.

    Args:
        self: The tensor.
        *sizes: Extents of the result, one by one or as one sequence.
        size: Extents of the result, instead of `sizes`.
        dtype: Element type; by default that of this tensor.
        device: Device of the result; by default that of this tensor.
        requires_grad: Whether the result is a leaf that needs a gradient.
        pin_memory: Whether the result lies in pinned host memory.
    """
    return _filled(
        "new_zeros",
        sizes_of(sizes, size),
        0,
        dtype=dtype or self.dtype,
        device=self.device if device is None else device,
        requires_grad=requires_grad,
        pin_memory=pin_memory,
    )


def new_ones(
    self: Tensor,
    *sizes: int | Sequence[int],
    size: Sequence[int] | None = None,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Returns a tensor of ones like this one, as `torch.Tensor.new_ones`.

    Args:
        self: The tensor.
        *sizes: Extents of the result, one by one or as one sequence.
        size: Extents of the result, instead of `sizes`.
        dtype: Element type; by default that of this tensor.
        device: Device of the result; by default that of this tensor.
        requires_grad: Whether the result is a leaf that needs a gradient.
        pin_memory: Whether the result lies in pinned host memory.
    """
    return _filled(
        "new_ones",
        sizes_of(sizes, size),
        1,
        dtype=dtype or self.dtype,
        device=self.device if device is None else device,
        requires_grad=requires_grad,
        pin_memory=pin_memory,
    )


def new_full(
    self: Tensor,
    size: Sequence[int],
    fill_value: Scalar,
    *,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Returns a tensor of one value like this one, as `torch.Tensor.new_full`.

    Args:
        self: The tensor.
        size: Extents of the result.
        fill_value: Value of every element.
        dtype: Element type; by default that of this tensor.
        device: Device of the result; by default that of this tensor.
        requires_grad: Whether the result is a leaf that needs a gradient.
        pin_memory: Whether the result lies in pinned host memory.
    """
    return _filled(
        "new_full",
        shape_of((size,)),
        plain(fill_value),
        dtype=dtype or self.dtype,
        device=self.device if device is None else device,
        requires_grad=requires_grad,
        pin_memory=pin_memory,
    )


def arange(
    start: float | None = None,
    end: float | None = None,
    step: float = 1,
    *,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Returns a vector of the values from `start` up to `end`, without `end`, as `torch.arange`.

    Args:
        start: First value; the end of the range, from 0, if it is the only argument.
        end: Bound that the values do not reach.
        step: Difference of two values.
        dtype: Element type; by default int64 if all bounds are ints, else float32.
        device: Device of the result; by default the host on main, a rank's device in a worker.
        requires_grad: Whether the result is a leaf that needs a gradient.
        pin_memory: Whether the result lies in pinned host memory.

    Raises:
        OperandError: If no bound is given.
        TensorError: If `step` is 0 or leads away from `end`, an end is not finite, or for bools.
        ComplexError: For complex numbers.
    """
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
    dtype = dtype or (dtypes.int64 if whole else default_dtype())
    held, exact = dtype.numpy, dtype.numpy.kind in "iu"
    first, by = (int(start), int(step)) if exact else (start, step)
    if dtype is dtypes.int64:
        # As in PyTorch, only int64 counts from the bounds without their fractions.
        end, start, step, whole = int(end), first, by, True
        if not by:
            raise TensorError("arange: step must be nonzero", [site_fact(call_site())])
    count = -((start - end) // step) if whole else ceil((end - start) / step)
    shape = shape_of(((int(count),),))

    def values() -> Array:
        steps: Array = np.arange(count, dtype=np.int64 if exact or whole else np.float64)
        return (first + steps * by).astype(held, copy=False)

    return _make(
        "arange", shape, dtype, device, values, requires_grad=requires_grad, pin_memory=pin_memory
    )


def linspace(
    start: complex,
    end: complex,
    steps: int,
    *,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Returns `steps` values from `start` to `end`, both included, as `torch.linspace`.

    Args:
        start: First value.
        end: Last value.
        steps: Number of values.
        dtype: Element type; by default float32, or complex64 if an end is complex.
        device: Device of the result; by default the host on main, a rank's device in a worker.
        requires_grad: Whether the result is a leaf that needs a gradient.
        pin_memory: Whether the result lies in pinned host memory.

    Raises:
        TensorError: If an end is complex and `dtype` is not, or `dtype` cannot hold an end, or for
            bools.
    """
    shape, start, end = shape_of(((steps,),)), plain(start), plain(end)
    if complex in {type(start), type(end)}:
        dtype = dtype or default_complex()
        if not dtype.is_complex:
            raise TensorError(
                f"linspace(): complex ends cannot be converted to {dtype}",
                [site_fact(call_site())],
            )
    dtype = dtype or default_dtype()
    if dtype is dtypes.bool_:
        raise TensorError("linspace is not implemented for torch.bool", [site_fact(call_site())])
    held = dtype.numpy
    if held.kind in "iu":
        # As in PyTorch, the fractions of the ends are dropped first.
        start, end = number("linspace", start, dtype).item(), number("linspace", end, dtype).item()
    return _make(
        "linspace",
        shape,
        dtype,
        device,
        lambda: np.linspace(start, end, steps).astype(held),
        requires_grad=requires_grad,
        pin_memory=pin_memory,
    )


def eye(
    n: int,
    m: int | None = None,
    *,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Returns a matrix with ones on the diagonal and zeros elsewhere, as `torch.eye`.

    Args:
        n: Number of rows.
        m: Number of columns; `n` by default.
        dtype: Element type; float32 by default.
        device: Device of the result; by default the host on main, a rank's device in a worker.
        requires_grad: Whether the result is a leaf that needs a gradient.
        pin_memory: Whether the result lies in pinned host memory.
    """
    rows, columns = shape_of(((n, n if m is None else m),))
    dtype = dtype or default_dtype()
    held = dtype.numpy
    return _make(
        "eye",
        (rows, columns),
        dtype,
        device,
        lambda: np.eye(rows, columns).astype(held),
        requires_grad=requires_grad,
        pin_memory=pin_memory,
    )
