"""Operations that need values on the host: they wait until the values are computed, then copy."""

import operator
from typing import Any

import numpy as np

from kernbench.errors import OperandError, OptionError, call_site, site_fact
from kernbench.memory import Array
from kernbench.operations.copies import array_to
from kernbench.operations.elementwise import OPERANDS, broadcast, check_complex
from kernbench.operations.views import t
from kernbench.process.process import current_process
from kernbench.tensors.errors import TensorError, no_array, refuse
from kernbench.tensors.nodes import grad_state_of, needs_gradient
from kernbench.tensors.running import check_one_device, host_array, same_device
from kernbench.tensors.tensor import Tensor

__all__ = ["allclose", "equal", "is_nonzero", "nonzero", "unique"]


def numpy(self: Tensor, *, force: bool = False) -> Array:
    """Returns the values as an array; the host waits for them.

    The array of a host tensor shares the tensor's memory; otherwise the array is new. More than in
    PyTorch, types that numpy lacks become arrays of ml_dtypes; and unless the run's default device
    is `cpu`, tensors on a device are copied.

    Args:
        force: Whether a tensor that needs a gradient, or is on a device, is allowed.

    Raises:
        OperandError: If the tensor is on a device, the run's default device is `cpu`, and `force`
            is False, as in PyTorch.
        TensorError: If the tensor needs a gradient and `force` is False, as in PyTorch.
    """
    if not force:
        _check_on_host(self)
        _check_plain(self)
    values = host_array(self, "numpy")
    if not self.is_cpu:
        return values
    self.memory.buffer.fixed = True  # the array is to show what is written later
    return values.view()


def _check_on_host(tensor: Tensor) -> None:
    if tensor.is_cuda and current_process().strict:
        raise no_array(tensor.device)


def _check_plain(tensor: Tensor) -> None:
    if needs_gradient(tensor) and grad_state_of(current_process()).enabled:
        raise TensorError(
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.",
            [site_fact(call_site())],
        )


def as_array(self: Tensor, dtype: Any = None, copy: bool | None = None) -> Array:
    """Returns the values for `numpy.asarray`; the host waits for them.

    Args:
        dtype: The numpy type of the result; None for the tensor's own.
        copy: Whether to copy; None: only if necessary.

    Raises:
        OperandError: If the tensor is on a device, and the run's default device is `cpu`.
        TensorError: If the tensor needs a gradient, as in PyTorch.
        OptionError: If `copy` is False and the type requires a copy.
    """
    _check_on_host(self)
    _check_plain(self)
    values = host_array(self, "__array__")
    if dtype is not None and values.dtype != dtype:
        if copy is False:
            raise OptionError(
                f"an array of {dtype} cannot share the memory of {self.dtype}",
                [site_fact(call_site())],
            )
        return values.astype(dtype)
    return values.copy() if copy else values.view()


def item(self: Tensor) -> Any:
    """Returns the value of a tensor with one element as a Python number; the host waits for it.

    Raises:
        TensorError: If the tensor does not have exactly one element.
    """
    return single(self, "item")


def tolist(self: Tensor) -> Any:
    """Returns the values as nested lists of Python numbers; the host waits for them."""
    values = host_array(self, "tolist")
    if self.dtype.is_floating_point and self.dtype.itemsize < 4:
        values = values.astype(np.float32)
    return values.tolist()


def single(tensor: Tensor, what: str) -> Any:
    """Returns the value of a tensor with one element; the host waits for it.

    Args:
        what: Name of the method that reads the value.

    Raises:
        TensorError: If the tensor does not have exactly one element.
    """
    if tensor.window.numel != 1:
        raise TensorError(
            f"a Tensor with {tensor.window.numel} elements cannot be converted to Scalar",
            [site_fact(call_site())],
        )
    value = host_array(tensor, what).reshape(())[()]
    return float(value) if tensor.dtype.is_floating_point else value.item()


def equal(input: Tensor, other: Tensor) -> bool:
    """Returns whether two tensors have the same shape and elements, as `torch.equal`.

    The host waits for the elements.

    Raises:
        TensorError: If the run's default device is `cpu`, and the tensors are on several devices.
    """
    if current_process().strict:
        check_one_device("equal", (input, other))
    if input.window.shape != other.window.shape:
        return False
    return bool(np.array_equal(host_array(input, "equal"), host_array(other, "equal")))


def allclose(
    input: Tensor,
    other: Tensor,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
) -> bool:
    """Returns whether all elements are close to those of another tensor, as `torch.allclose`.

    The host waits for the elements.

    Args:
        other: A tensor of the same type; shapes broadcast.
        rtol: Tolerance relative to `other`.
        atol: Absolute tolerance.
        equal_nan: Whether nan is close to nan.

    Raises:
        TensorError: If the types differ, or the shapes do not broadcast; or if the run's default
            device is `cpu`, and the tensors are on several devices.
    """
    if current_process().strict:
        same_device("allclose", (input, other))
    if input.dtype is not other.dtype:
        raise TensorError(f"{input.dtype} did not match {other.dtype}", [site_fact(call_site())])
    broadcast("allclose", [input.window.shape, other.window.shape])
    a, b = host_array(input, "allclose"), host_array(other, "allclose")
    wide = np.float64 if input.dtype.is_floating_point else a.dtype
    return bool(np.allclose(a.astype(wide), b.astype(wide), rtol, atol, equal_nan))


def is_nonzero(input: Tensor) -> bool:
    """Returns whether the one element is not 0, as `torch.is_nonzero`; the host waits for it."""
    return bool(single(input, "is_nonzero"))


def nonzero(input: Tensor, *, as_tuple: bool = False) -> "Any":
    """Returns the indices of elements that are not 0, as `torch.nonzero`; the host waits."""
    values = host_array(input, "nonzero")
    found = np.nonzero(np.atleast_1d(values))
    process = current_process()
    if as_tuple:
        return tuple([array_to(process, index, input.device) for index in found])
    # PyTorch's layout: memory holds a row per dimension, and the result is its transpose.
    rows = np.stack(found) if values.ndim else np.empty((0, len(found[0])), np.int64)
    return t(array_to(process, rows, input.device))


def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> "Any":
    """Returns the distinct elements in ascending order, as `torch.unique`; the host waits for them.

    Args:
        sorted: Not needed: the result is always sorted.
        return_inverse: Whether to return the place of each input element in the result too.
        return_counts: Whether to return how often each element occurs too.
        dim: Must be None.

    Returns:
        The elements; a tuple if more was asked for.

    Raises:
        UnsupportedError: For `dim`.
    """
    del sorted
    refuse("unique", dim=dim)
    if input.dtype.is_complex:
        check_complex("unique", input.dtype, frozenset())
    values = host_array(input, "unique")
    found = np.unique(values, return_inverse=True, return_counts=True)
    wanted = (True, return_inverse, return_counts)
    process = current_process()
    arrays = [found[0], found[1].reshape(values.shape), found[2]]
    results = [
        array_to(process, np.array(array, order="C"), input.device)
        for array, give in zip(arrays, wanted, strict=True)
        if give
    ]
    return results[0] if len(results) == 1 else tuple(results)


def as_bool(self: Tensor) -> bool:
    """Returns whether the one element is not 0; the host waits for it.

    Raises:
        TensorError: If the tensor does not have exactly one element.
    """
    count = self.window.numel
    if count != 1:
        what = "more than one value" if count else "no values"
        raise TensorError(
            f"Boolean value of Tensor with {what} is ambiguous",
            [site_fact(call_site())],
            hint="use .any() or .all()",
        )
    return bool(single(self, "__bool__"))


def _number(tensor: Tensor, what: str) -> Any:
    if tensor.window.numel != 1:
        raise OptionError(
            "only one element tensors can be converted to Python scalars", [site_fact(call_site())]
        )
    return single(tensor, what)


def as_float(self: Tensor) -> float:
    """Returns the one element as a float; the host waits for it.

    Raises:
        TensorError: If the element has an imaginary part.
    """
    return float(_real_number(self, "__float__", "double"))


def as_int(self: Tensor) -> int:
    """Returns the one element as an int, without its fraction; the host waits for it.

    Raises:
        TensorError: If the element has an imaginary part.
    """
    return int(_real_number(self, "__int__", "int64_t"))


def as_complex(self: Tensor) -> complex:
    """Returns the one element as a complex number; the host waits for it."""
    return complex(_number(self, "__complex__"))


def _real_number(tensor: Tensor, what: str, kind: str) -> Any:
    value = _number(tensor, what)
    if isinstance(value, complex):
        if value.imag:
            raise TensorError(
                f"value cannot be converted to type {kind} without overflow",
                [site_fact(call_site()), f"it is {value}"],
            )
        return value.real
    return value


def as_index(self: Tensor) -> int:
    """Returns the one element of an integer tensor; the host waits for it.

    Raises:
        OperandError: If the tensor is not of integers, or does not have exactly one element.
    """
    if self.dtype.is_floating_point or self.dtype.is_complex or self.window.numel != 1:
        raise OperandError(
            "only integer tensors of a single element can be converted to an index",
            [site_fact(call_site())],
        )
    return operator.index(single(self, "__index__"))


def contains(self: Tensor, element: Any) -> bool:
    """Returns whether an element equals a number or a single-value tensor; the host waits.

    Raises:
        TensorError: For anything else, or if the tensors are on different devices.
    """
    if not isinstance(element, OPERANDS):
        raise TensorError(
            "Tensor.__contains__ only supports Tensor or scalar, but you passed in a "
            f"{type(element)}.",
            [site_fact(call_site())],
        )
    if isinstance(element, Tensor):
        same_device("__contains__", (self, element))
    value = _number(element, "__contains__") if isinstance(element, Tensor) else element
    return bool((host_array(self, "__contains__") == value).any())
