"""Whatever needs values on the host: it waits for what they depend on, then copies them."""

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kernbench.errors import call_site, site_fact
from kernbench.runtime_api.copies import array_to
from kernbench.runtime_api.nodes import Output, edge_of
from kernbench.runtime_api.process import current_process
from kernbench.runtime_api.running import host_array
from kernbench.runtime_api.tensor_base import (
    Array,
    OperandError,
    OptionError,
    TensorBase,
    TensorError,
)
from kernbench.runtime_api.views import t

if TYPE_CHECKING:
    from kernbench.runtime_api.tensor import Tensor

__all__ = ["allclose", "equal", "is_nonzero", "nonzero", "unique"]


def numpy(self: "Tensor") -> Array:
    """Returns the values as an array: a fresh one, for a host tensor one that shares its memory.

    More than in PyTorch, tensors on a device and of types that numpy does not have are converted
    too, the latter to arrays of ml_dtypes.

    Raises:
        TensorError: If the tensor needs a gradient, as in PyTorch.
    """
    _check_plain(self)
    values = host_array(self, "numpy")
    return values.view() if self.is_cpu else values


def _check_plain(tensor: TensorBase) -> None:
    if edge_of(tensor) is not None:
        raise TensorError(
            "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.",
            [site_fact(call_site())],
        )


def as_array(self: "Tensor", dtype: Any = None, copy: bool | None = None) -> Array:
    """Returns the values for `numpy.asarray`.

    Raises:
        TensorError: If the tensor needs a gradient, as in PyTorch.
    """
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


def item(self: "Tensor") -> Any:
    """Returns the value of a tensor with one element as a Python number.

    Raises:
        TensorError: If it has more elements, or none.
    """
    return _single(self, "item")


def tolist(self: "Tensor") -> Any:
    """Returns the values as nested lists of Python numbers."""
    values = host_array(self, "tolist")
    if self.dtype.is_floating_point and self.dtype.itemsize < 4:
        values = values.astype(np.float32)
    return values.tolist()


def _single(tensor: TensorBase, what: str) -> Any:
    """Returns the value of a tensor with one element."""
    if tensor.window.numel != 1:
        raise TensorError(
            f"a Tensor with {tensor.window.numel} elements cannot be converted to Scalar",
            [site_fact(call_site())],
        )
    value = host_array(tensor, what).reshape(())[()]
    return float(value) if tensor.dtype.is_floating_point else value.item()


def equal(input: "Tensor", other: "Tensor") -> bool:
    """Returns whether two tensors have the same shape and elements, as `torch.equal`."""
    if input.window.shape != other.window.shape:
        return False
    return bool(np.array_equal(host_array(input, "equal"), host_array(other, "equal")))


def allclose(
    input: "Tensor",
    other: "Tensor",
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
) -> bool:
    """Returns whether all elements are close to those of another tensor, as `torch.allclose`."""
    if input.dtype is not other.dtype:
        raise TensorError(f"{input.dtype} did not match {other.dtype}", [site_fact(call_site())])
    a, b = host_array(input, "allclose"), host_array(other, "allclose")
    wide = np.float64 if input.dtype.is_floating_point else a.dtype
    return bool(np.allclose(a.astype(wide), b.astype(wide), rtol, atol, equal_nan))


def is_nonzero(input: "Tensor") -> bool:
    """Returns whether the one element is other than 0, as `torch.is_nonzero`."""
    return bool(_single(input, "is_nonzero"))


def nonzero(input: "Tensor", *, as_tuple: bool = False) -> "Any":
    """Returns the indices of elements other than 0, as `torch.nonzero`; the host waits for them."""
    values = host_array(input, "nonzero")
    found = np.nonzero(np.atleast_1d(values))
    process = current_process()
    if as_tuple:
        return tuple([array_to(process, index, input.device) for index in found])
    # A row per dimension, seen transposed: the layout that PyTorch gives.
    rows = np.stack(found) if values.ndim else np.empty((0, len(found[0])), np.int64)
    return t(array_to(process, rows, input.device))


def unique(input: "Tensor", return_inverse: bool = False, return_counts: bool = False) -> "Any":
    """Returns the distinct elements in order, as `torch.unique`; the host waits for them."""
    values = host_array(input, "unique")
    found = np.unique(values, return_inverse=True, return_counts=True)
    wanted = (True, return_inverse, return_counts)
    process = current_process()
    arrays = [found[0], found[1].reshape(values.shape), found[2]]
    results = [
        array_to(process, np.ascontiguousarray(array), input.device)
        for array, give in zip(arrays, wanted, strict=True)
        if give
    ]
    return results[0] if len(results) == 1 else tuple(results)


def as_bool(self: "Tensor") -> bool:
    """Returns whether the one element is other than 0."""
    count = self.window.numel
    if count != 1:
        what = "more than one value" if count else "no values"
        raise TensorError(
            f"Boolean value of Tensor with {what} is ambiguous",
            [site_fact(call_site())],
            hint="use .any() or .all()",
        )
    return bool(_single(self, "__bool__"))


def _number(tensor: TensorBase, what: str) -> Any:
    if tensor.window.numel != 1:
        raise OptionError(
            "only one element tensors can be converted to Python scalars", [site_fact(call_site())]
        )
    return _single(tensor, what)


def as_float(self: "Tensor") -> float:
    """Returns the one element as a float."""
    return float(_number(self, "__float__"))


def as_int(self: "Tensor") -> int:
    """Returns the one element as an int, without its fraction."""
    return int(_number(self, "__int__"))


def as_index(self: "Tensor") -> int:
    """Returns the one element of an integer tensor."""
    if self.dtype.is_floating_point or self.window.numel != 1:
        raise OperandError(
            "only integer tensors of a single element can be converted to an index",
            [site_fact(call_site())],
        )
    return operator.index(_single(self, "__index__"))


def contains(self: "Tensor", element: Any) -> bool:
    """Returns whether some element equals a number or a single-value tensor."""
    value = _number(element, "__contains__") if isinstance(element, TensorBase) else element
    return bool((host_array(self, "__contains__") == value).any())


def text(self: "Tensor") -> str:
    """Returns what PyTorch would print: values, and type and device where they say something."""
    values = host_array(self, "__repr__")
    if self.dtype.is_floating_point:
        values = values.astype(np.float64)
    form = _floats_form(values) if self.dtype.is_floating_point else str
    width = max(map(len, map(form, _shown(values).flat)), default=0) if values.ndim else 0
    shown = np.array2string(
        values,
        max_line_width=80,
        separator=", ",
        prefix="tensor(",
        threshold=_MOST_SHOWN,
        edgeitems=_EDGE,
        formatter={"all": lambda value: form(value).rjust(width)},
    )
    shown = shown.replace(", ..., ", ",  ..., ")
    extra = "" if self.is_cpu else f", device='{self.device}'"
    if not values.size:
        shown = "[]"
        extra += f", size={tuple(values.shape)}" if values.ndim > 1 else ""
    plain = {"float32"} if not values.size else {"float32", "int64", "bool"}
    extra += "" if self.dtype.name in plain else f", dtype={self.dtype}"
    edge = edge_of(self)
    if edge is not None:
        made = isinstance(self.graph, Output)
        extra += f", grad_fn={edge[0]!r}" if made else ", requires_grad=True"
    return f"tensor({shown}{extra})"


_MOST_SHOWN: Final = 1000
"""Elements beyond which only those at the edges are printed."""
_EDGE: Final = 3


def _shown(values: Array) -> Array:
    """Returns the elements that are printed of a long tensor."""
    if values.size > _MOST_SHOWN:
        for axis, extent in enumerate(values.shape):
            if extent > 2 * _EDGE:
                edges = [*range(_EDGE), *range(extent - _EDGE, extent)]
                values = np.take(values, edges, axis)
    return values


def _floats_form(values: Array) -> Callable[[Any], str]:
    """Returns how to write floats: whole, with four decimals, or with an exponent."""
    size = np.abs(_shown(values))
    size = size[np.isfinite(size) & (size > 0)]
    high, low = (size.max(), size.min()) if size.size else (1.0, 1.0)
    whole = bool((size == np.ceil(size)).all())
    if high / low > 1000 or high > 1e8 or (low < 1e-4 and not whole):
        return lambda value: f"{value:.4e}"
    if whole:
        return lambda value: f"{value:.0f}." if np.isfinite(value) else str(value)
    return lambda value: f"{value:.4f}"


def formatted(self: "Tensor", spec: str) -> str:
    """Returns a single value formatted as a number, anything else as text."""
    if self.window.shape:
        return format(text(self), spec)
    value = _single(self, "__format__")
    return format(value, spec) if spec else str(value)
