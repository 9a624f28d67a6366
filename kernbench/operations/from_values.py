"""Makes tensors from numbers, arrays and other tensors."""

from functools import reduce
from typing import Any

import numpy as np

from kernbench.errors import OperandError, OptionError, call_site, site_fact
from kernbench.memory import Array, DType, dtypes
from kernbench.operations.copies import array_to, as_host_tensor, clone, detach, to
from kernbench.operations.creation import asked, check_pin
from kernbench.operations.elementwise import NUMBERS
from kernbench.operations.filling import fits
from kernbench.process.process import current_process
from kernbench.process.types import DeviceLike
from kernbench.tensors.errors import TensorError
from kernbench.tensors.operands import type_name
from kernbench.tensors.promotion import promote_types, scalar_type
from kernbench.tensors.running import find_device
from kernbench.tensors.settings import default_dtype
from kernbench.tensors.tensor import Tensor

__all__ = ["as_tensor", "from_numpy", "tensor"]


def tensor(
    data: Any,
    *,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Returns a tensor with a copy of numbers, nested sequences of numbers, or an array.

    On a device the call copies from host to device, and the host waits for the copy.

    Args:
        data: The values.
        dtype: Element type; by default that of an array or tensor, else bool, int64, float32 or
            complex64, as the numbers require.
        device: Device of the result; by default the host on main, a rank's device in a worker.
        requires_grad: Whether the result is a leaf that needs a gradient.
        pin_memory: Whether the result lies in pinned host memory.

    Raises:
        OperandError: If `data` is no regular array of numbers.
        OptionError: If nested sequences differ in length.
        TensorError: If a value does not fit into `dtype`.
    """
    process = current_process()
    if isinstance(data, Tensor):
        device = process.default_device if device is None else device
        where = data.device if device is None else find_device(process, device)
        copied = clone(detach(data))
        return asked(to(copied, where, dtype or data.dtype), requires_grad)
    where = find_device(process, device)
    check_pin(where, pin_memory)
    array = _array(data, dtype)
    return asked(array_to(process, array, where, pinned=pin_memory), requires_grad)


def _array(data: Any, dtype: DType | None) -> Array:
    """Returns a new contiguous array of the data given to `torch.tensor`."""
    whole = isinstance(data, np.ndarray | np.generic)
    values = data if whole else _nested(data)
    try:
        array = np.array(values, order="C")
    except ValueError:
        raise OptionError(
            "expected sequences of the same length", [site_fact(call_site())]
        ) from None
    if array.dtype.kind not in "biufcV" or (whole and dtypes.from_numpy(array.dtype) is None):
        refusal = OperandError if array.dtype.kind == "U" else TensorError
        raise refusal(
            f"no tensor can be made of {type(data).__name__} with elements of {array.dtype}",
            [site_fact(call_site())],
        )
    dtype = dtype or (dtypes.from_numpy(array.dtype) if whole else inferred(data))
    assert dtype is not None
    if not isinstance(data, np.ndarray):
        _check_fits(array, dtype)
    return dtypes.cast(array, dtype)


def inferred(data: Any) -> DType:
    """Returns the type that `torch.tensor` gives to numbers: the promotion of all their types.

    Args:
        data: A number, or nested sequences of numbers, arrays and tensors.

    Raises:
        OperandError: If something in it is no number.
    """
    if isinstance(data, Tensor):
        return data.dtype
    if isinstance(data, list | tuple):
        kinds = set(map(type, data))
        found = [scalar_type(kind()) for kind in kinds & NUMBERS]
        if kinds - NUMBERS:
            found += [inferred(entry) for entry in data if type(entry) not in NUMBERS]
        return reduce(promote_types, found) if found else default_dtype()
    if isinstance(data, np.ndarray | np.generic):
        dtype = dtypes.from_numpy(data.dtype)
        if dtype is not None:
            return dtype
    elif isinstance(data, int | float | complex):
        return scalar_type(data)
    raise OperandError(
        f"no tensor can be made of {type_name(data)}", [site_fact(call_site()), f"got {data!r}"]
    )


def _check_fits(array: Array, dtype: DType) -> None:
    """Refuses numbers that an integer type does not hold, and imaginary parts."""
    lost = ""
    if array.dtype.kind == "c" and not dtype.is_complex and array.imag.any():
        lost = "it has an imaginary part"
    elif array.dtype.kind in "iuf" and array.size and dtype.numpy.kind in "iu":
        # The least and the greatest are nan if one element is.
        extremes = (array.min().item(), array.max().item())
        if not all(fits(value, dtype) for value in extremes):
            lost = f"the values go from {extremes[0]} to {extremes[1]}"
    if lost:
        raise TensorError(
            f"value cannot be converted to type {dtype} without overflow",
            [site_fact(call_site()), lost],
        )


def _nested(data: Any) -> Any:
    """Replaces tensors inside of sequences by their values."""
    if isinstance(data, Tensor):
        return data.tolist()
    if isinstance(data, list | tuple) and not set(map(type, data)) <= NUMBERS:
        return [_nested(entry) for entry in data]
    return data


def as_tensor(data: Any, dtype: DType | None = None, device: DeviceLike | None = None) -> Tensor:
    """Returns `data` as a tensor, as `torch.as_tensor`; copies only if type or device require it.

    Args:
        data: A tensor, an array, numbers, or nested sequences of numbers.
        dtype: Element type; by default as for `tensor`.
        device: Device of the result; by default that of a tensor and the host for an array, unless
            the program has set a default device, else as for `tensor`.
    """
    process = current_process()
    if isinstance(data, np.ndarray):
        data = from_numpy(data)
    if isinstance(data, Tensor):
        device = process.default_device if device is None else device
        where = data.device if device is None else find_device(process, device)
        return to(data, where, dtype or data.dtype)
    return tensor(data, dtype=dtype, device=device)


def from_numpy(ndarray: Array) -> Tensor:
    """Returns a host tensor that shares the memory of an array.

    Raises:
        OperandError: If `ndarray` is no array, or has a type that tensors do not have.
        OptionError: If a stride of the array is negative.
    """
    if not isinstance(ndarray, np.ndarray):
        raise OperandError(
            f"expected np.ndarray (got {type(ndarray).__name__})", [site_fact(call_site())]
        )
    dtype = dtypes.from_numpy(ndarray.dtype)
    if dtype is None:
        raise OperandError(
            f"can't convert np.ndarray of type {ndarray.dtype}",
            [site_fact(call_site())],
            hint=f"supported are {', '.join(each.name for each in dtypes.ALL)}",
        )
    if any(step < 0 or step % ndarray.itemsize for step in ndarray.strides):
        raise OptionError(
            "the array has negative strides, which tensors do not have",
            [site_fact(call_site()), f"strides {ndarray.strides}"],
            hint="copy it first: array.copy()",
        )
    return as_host_tensor(current_process(), ndarray, dtype)
