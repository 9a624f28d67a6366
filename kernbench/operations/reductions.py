"""Reductions over dimensions, and operations along a dimension."""

import builtins
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal, overload

import numpy as np

from kernbench.caches import cached
from kernbench.errors import OperandError, call_site, site_fact
from kernbench.kernels.names import kernel_name
from kernbench.kernels.prices import PRICES, of_sum
from kernbench.memory import Array, DType, dtypes
from kernbench.operations import host_reads, ranking
from kernbench.operations.copies import to
from kernbench.operations.elementwise import check_complex
from kernbench.operations.host_reads import *  # noqa: F403 - one namespace for users
from kernbench.operations.pointwise import maximum, minimum
from kernbench.operations.ranking import *  # noqa: F403 - one namespace for users
from kernbench.operations.ranking import along, wide_type
from kernbench.operations.twins import args_of
from kernbench.operations.views import dim_of
from kernbench.process.process import current_process
from kernbench.tensors import tape
from kernbench.tensors.errors import DimensionError, TensorError, refuse
from kernbench.tensors.new import new_tensor
from kernbench.tensors.promotion import FLOATS, category
from kernbench.tensors.return_types import ValuesAndIndices
from kernbench.tensors.running import run
from kernbench.tensors.tensor import Tensor

__all__ = [
    "all",
    "amax",
    "amin",
    "any",
    "argmax",
    "argmin",
    "count_nonzero",
    "cumsum",
    "log_softmax",
    "logsumexp",
    "max",
    "mean",
    "min",
    "norm",
    "prod",
    "softmax",
    "std",
    "sum",
    "var",
]
__all__ += host_reads.__all__
__all__ += ranking.__all__

Dims = int | Sequence[int] | None


def _axes(dim: Dims, rank: int) -> tuple[int, ...]:
    """Returns the dimensions to reduce; None or an empty list means all."""
    if dim is None or (not isinstance(dim, int) and not dim):
        return tuple(range(rank))
    axes = tuple([dim_of(each, rank) for each in ([dim] if isinstance(dim, int) else dim)])
    if len(set(axes)) != len(axes):
        raise TensorError(
            f"dim {dim} appears multiple times in the list of dims", [site_fact(call_site())]
        )
    return axes if rank else ()


@cached("operations.left")
def _left(shape: tuple[int, ...], axes: tuple[int, ...], keepdim: bool) -> tuple[int, ...]:
    if keepdim:
        return tuple([1 if d in axes else n for d, n in enumerate(shape)])
    return tuple([n for d, n in enumerate(shape) if d not in axes])


def _reduce(
    name: str,
    function: Callable[..., Any],
    input: Tensor,
    dim: Dims,
    keepdim: bool,
    *,
    result: DType,
    compute: DType,
    empty: bool = True,
    formula: str = "",
    found: tuple[Tensor, Callable[..., Any]] | None = None,
    **options: Any,
) -> Tensor:
    """Reduces dimensions with a numpy function.

    Args:
        name: Name in traces and errors.
        function: Takes an array and `axis=`, returns an array.
        dim: Dimensions to reduce; None: all.
        keepdim: Whether reduced dimensions stay, with extent 1.
        result: Type of the result.
        compute: Type to compute in; 16-bit floats are computed in float32 and rounded once.
        empty: Whether a reduction over no elements has a value.
        formula: Name of the formula of the gradient; empty for `name`.
        found: A tensor for where along its one dimension the kernel finds each result, and the
            numpy function that finds it.
        options: Values that the formula of the gradient needs besides `axes` and `keepdim`.
    """
    shape = input.window.shape
    if input.window.dtype.is_complex:
        _check_complex(name, input, compute)
    axes = _axes(dim, len(shape))
    if not empty and builtins.any(shape[axis] == 0 for axis in axes):
        if dim is None or dim == ():
            raise TensorError(
                f"{name}(): Expected reduction dim to be specified for input.numel() == 0.",
                [site_fact(call_site()), f"input of shape {list(shape)}"],
            )
        raise DimensionError(
            f"{name}(): Expected reduction dim {dim} to have non-zero size.",
            [site_fact(call_site()), f"input of shape {list(shape)}"],
        )
    process = current_process()
    site = process.site or call_site()
    out = new_tensor(process, _left(shape, axes, keepdim), result, input.device, site)
    source, target, wanted = input.window, out.window, wide_type(compute)

    def effect() -> None:
        values = function(source.read().astype(wanted, copy=False), axis=axes)
        values = np.asarray(values)
        target.adopt(values if values.shape == target.shape else values.reshape(target.shape))
        if found is not None:
            places, find = found[0].window, found[1]
            where = np.asarray(find(source.read(), axis=axes[0] if axes else None))
            places.adopt(where.reshape(places.shape))

    price = None if name in PRICES else of_sum(axes)
    also = () if found is None else found[:1]
    run(process, kernel_name(name), (input,), out, effect, also=also, price=price, site=site)
    if input.memory.tracked and category(result) >= FLOATS:
        options |= {"axes": axes, "keepdim": keepdim}
        # The formula may need what was found, as it is now.
        node = tape.begin(process, formula or name, (input,), options)
        if node is not None:
            tape.finish(node, out)
    return out


_COMPLEX: Final = frozenset({"all", "any", "count_nonzero", "mean", "prod", "sum"})
"""Reductions that are defined for complex numbers."""


def _check_complex(name: str, input: Tensor, compute: DType) -> None:
    check_complex(name, input.dtype, _COMPLEX)
    if not compute.is_complex:
        raise TensorError(
            f"{name}(): the imaginary part is lost in {compute}",
            [site_fact(call_site()), f"input of {input.dtype}"],
            hint="reduce the real part: input.real",
        )


def _check_one(name: str, dim: int | None) -> None:
    if dim is not None and (not isinstance(dim, int) or isinstance(dim, bool)):
        raise OperandError(
            f"{name}(): argument 'dim' must be int, not {type(dim).__name__}",
            [site_fact(call_site())],
        )


def _sum_type(input: Tensor, dtype: DType | None) -> DType:
    if dtype is not None:
        return dtype
    own = input.window.dtype
    return own if own.is_floating_point or own.is_complex else dtypes.int64


def sum(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """Returns the sum over dimensions, as `torch.sum`.

    Args:
        dim: Dimensions to reduce, negative ones from the end; all by default.
        keepdim: Whether reduced dimensions stay, with extent 1.
        dtype: Type of the sum; by default int64 for integers and bools, else the tensor's own.
    """
    kind = _sum_type(input, dtype)
    return _reduce("sum", np.sum, input, dim, keepdim, result=kind, compute=kind)


def prod(
    input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """Returns the product over a dimension or all, as `torch.prod`.

    Args:
        dim: Dimension to reduce; all by default.
        keepdim: Whether reduced dimensions stay, with extent 1.
        dtype: Type of the product; by default int64 for integers and bools, else the tensor's own.
    """
    kind = _sum_type(input, dtype)
    _check_one("prod", dim)
    return _reduce("prod", np.prod, input, dim, keepdim, result=kind, compute=kind)


def mean(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """Returns the mean over dimensions, as `torch.mean`.

    Args:
        dim: Dimensions to reduce, negative ones from the end; all by default.
        keepdim: Whether reduced dimensions stay, with extent 1.
        dtype: Type of the mean; the tensor's own by default.

    Raises:
        TensorError: For integers, unless a floating-point `dtype` is given.
    """
    kind = dtype or input.dtype
    if not kind.is_complex:
        kind = _floats("mean", kind)
    return _reduce("mean", _mean, input, dim, keepdim, result=kind, compute=kind)


def _mean(x: Array, axis: tuple[int, ...]) -> Any:
    count = 1
    for each in axis:
        count *= x.shape[each]
    return np.sum(x, axis=axis) / x.dtype.type(count)


def _floats(name: str, dtype: DType) -> DType:
    if dtype.is_complex:
        check_complex(name, dtype, _COMPLEX)
    if not dtype.is_floating_point:
        raise TensorError(
            f"{name}(): could not infer output dtype. Input dtype must be a floating point dtype. "
            f"Got: {dtype}",
            [site_fact(call_site())],
        )
    return dtype


def amax(input: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    """Returns the largest values over dimensions, as `torch.amax`.

    Args:
        dim: Dimensions to reduce, negative ones from the end; all by default.
        keepdim: Whether reduced dimensions stay, with extent 1.
    """
    kind = input.dtype
    return _reduce("amax", np.max, input, dim, keepdim, result=kind, compute=kind, empty=False)


@args_of(amax)
def amin(input: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    """Returns the smallest values over dimensions, as `torch.amin`."""
    kind = input.dtype
    return _reduce("amin", np.min, input, dim, keepdim, result=kind, compute=kind, empty=False)


@overload
def max(input: Tensor) -> Tensor: ...
@overload
def max(input: Tensor, dim: int, keepdim: bool = False) -> ValuesAndIndices: ...
@overload
def max(input: Tensor, dim: Tensor) -> Tensor: ...
@overload
def max(input: Tensor, *, other: Tensor) -> Tensor: ...
def max(
    input: Tensor,
    dim: "int | Tensor | None" = None,
    keepdim: bool = False,
    *,
    other: Tensor | None = None,
) -> Tensor | ValuesAndIndices:
    """Returns the largest elements of a tensor, a dimension, or two tensors, as `torch.max`.

    Args:
        dim: Dimension to reduce, which also gives indices; or the second tensor. None: all
            elements.
        keepdim: Whether reduced dimensions stay, with extent 1.
        other: A second tensor, to choose from each pair of elements; not together with `dim`.

    Returns:
        A tensor; with `dim`, a pair of values and indices.
    """
    return _extreme("max", np.max, np.argmax, maximum, input, dim, keepdim, other)


@overload
def min(input: Tensor) -> Tensor: ...
@overload
def min(input: Tensor, dim: int, keepdim: bool = False) -> ValuesAndIndices: ...
@overload
def min(input: Tensor, dim: Tensor) -> Tensor: ...
@overload
def min(input: Tensor, *, other: Tensor) -> Tensor: ...
@args_of(max)
def min(
    input: Tensor,
    dim: "int | Tensor | None" = None,
    keepdim: bool = False,
    *,
    other: Tensor | None = None,
) -> Tensor | ValuesAndIndices:
    """Returns the smallest elements of a tensor, a dimension, or two tensors, as `torch.min`."""
    return _extreme("min", np.min, np.argmin, minimum, input, dim, keepdim, other)


def _extreme(
    name: str,
    value: Callable[..., Any],
    place: Callable[..., Any],
    pair: Callable[[Tensor, Tensor], Tensor],
    input: Tensor,
    dim: "int | Tensor | None",
    keepdim: bool,
    other: Tensor | None,
) -> Tensor | ValuesAndIndices:
    if isinstance(dim, Tensor):
        other, dim = dim, None
    if other is not None:
        if dim is not None or keepdim:
            raise OperandError(
                f"{name}() of two tensors takes neither dim nor keepdim", [site_fact(call_site())]
            )
        return pair(input, other)
    kind, shape = input.dtype, input.window.shape
    reduce = partial(_reduce, name, value, input, result=kind, compute=kind, empty=False)
    if dim is None:
        return reduce(None, False, formula=f"{name}.1")
    _check_one(name, dim)
    left = _left(shape, _axes(dim, len(shape)), keepdim)
    chosen = new_tensor(current_process(), left, dtypes.int64, input.device)
    values = reduce(dim, keepdim, found=(chosen, place), chosen=chosen)
    return ValuesAndIndices(values, chosen)


def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Returns the index of the largest element, the first one of equals, as `torch.argmax`.

    Args:
        dim: Dimension to search; None: all elements, counted in row-major order.
        keepdim: Whether reduced dimensions stay, with extent 1.
    """
    _check_find("argmax", input, dim)
    return _find("argmax", np.argmax, input, dim, keepdim)


@args_of(argmax)
def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Returns the index of the smallest element, the first one of equals, as `torch.argmin`."""
    _check_find("argmin", input, dim)
    return _find("argmin", np.argmin, input, dim, keepdim)


def _check_find(name: str, input: Tensor, dim: int | None) -> None:
    _check_one(name, dim)
    if input.dtype is dtypes.bool_ or input.dtype.is_complex:
        kind = "bool" if input.dtype is dtypes.bool_ else "complex"
        raise TensorError(f"{name}(): does not support {kind} input", [site_fact(call_site())])
    if dim is None and not input.window.numel:
        raise DimensionError(
            f"{name}(): Expected reduction dim to be specified for input.numel() == 0.",
            [site_fact(call_site())],
        )


def _find(
    name: str, function: Callable[..., Any], input: Tensor, dim: int | None, keepdim: bool
) -> Tensor:
    def find(x: Array, axis: tuple[int, ...]) -> Any:
        return function(x, axis=None if dim is None or not axis else axis[0])

    return _reduce(
        name, find, input, dim, keepdim, result=dtypes.int64, compute=input.dtype, empty=False
    )


def all(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Returns whether all elements over dimensions are not 0, as `torch.all`.

    Args:
        dim: Dimensions to reduce, negative ones from the end; all by default.
        keepdim: Whether reduced dimensions stay, with extent 1.
    """
    return _test("all", np.all, input, dim, keepdim)


@args_of(all)
def any(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Returns whether an element over dimensions is not 0, as `torch.any`."""
    return _test("any", np.any, input, dim, keepdim)


def _test(
    name: str, function: Callable[..., Any], input: Tensor, dim: Dims, keepdim: bool
) -> Tensor:
    kind = dtypes.uint8 if input.dtype is dtypes.uint8 else dtypes.bool_
    if dim is not None and not isinstance(dim, int) and not dim:
        # Unlike in other reductions, an empty list means no dimension.
        return (input != 0).to(kind)
    return _reduce(name, function, input, dim, keepdim, result=kind, compute=input.dtype)


def count_nonzero(input: Tensor, dim: Dims = None) -> Tensor:
    """Returns the number of elements that are not 0, as `torch.count_nonzero`; int64."""
    return _reduce(
        "count_nonzero",
        np.count_nonzero,
        input,
        dim,
        False,
        result=dtypes.int64,
        compute=input.dtype,
    )


def var(
    input: Tensor,
    dim: Dims | bool = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: int | None = None,
) -> Tensor:
    """Returns the variance over dimensions, as `torch.var`.

    Args:
        dim: Dimensions to reduce; None: all. A bool stands for `unbiased`, over all dimensions.
        unbiased: Whether to divide by the number of values less 1, rather than by their number.
        keepdim: Whether reduced dimensions stay, with extent 1.
        correction: Number to subtract from the number of values in the divisor, instead of
            `unbiased`.
    """
    return _spread("var", np.var, input, dim, unbiased, keepdim, correction)


@args_of(var)
def std(
    input: Tensor,
    dim: Dims | bool = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: int | None = None,
) -> Tensor:
    """Returns the standard deviation over dimensions, as `torch.std`."""
    return _spread("std", np.std, input, dim, unbiased, keepdim, correction)


def _spread(
    name: str,
    function: Callable[..., Any],
    input: Tensor,
    dim: Dims | bool,
    unbiased: bool,
    keepdim: bool,
    correction: int | None,
) -> Tensor:
    if isinstance(dim, bool):
        dims: Dims = None
        unbiased = dim
    else:
        dims = dim
    if correction is None:
        correction = int(unbiased)
    elif not unbiased:
        raise OperandError(
            f"{name}() takes unbiased or correction, not both", [site_fact(call_site())]
        )
    kind = _floats(name, input.dtype)

    def spread(x: Array, axis: tuple[int, ...]) -> Any:
        count = int(np.prod([x.shape[each] for each in axis]))
        if count <= correction:
            # numpy would give the same values with a warning.
            return np.full(_left(x.shape, axis, False), np.nan, x.dtype)
        return function(x, axis=axis, ddof=correction)

    return _reduce(
        name, spread, input, dims, keepdim, result=kind, compute=kind, correction=correction
    )


def norm(
    input: Tensor,
    p: float | Literal["fro"] = "fro",
    dim: Dims = None,
    keepdim: bool = False,
    out: None = None,
    dtype: DType | None = None,
) -> Tensor:
    """Returns the p-norm of the elements over dimensions, as `torch.norm`.

    Args:
        p: Order of the norm; `fro` is the Euclidean norm.
        dim: Dimensions to reduce, negative ones from the end; all by default.
        keepdim: Whether reduced dimensions stay, with extent 1.
        out: Must be None.
        dtype: Type of the computation and the result; the tensor's own by default.

    Raises:
        UnsupportedError: For `out`.
    """
    refuse("norm", out=out)
    _floats("norm", input.dtype)
    kind = _floats("norm", dtype or input.dtype)
    order = 2.0 if p == "fro" else float(p)

    def length(x: Array, axis: tuple[int, ...]) -> Any:
        size = np.abs(x)
        if order == 2:
            return np.sqrt(np.sum(np.square(size), axis=axis))
        if order == float("inf"):
            return np.max(size, axis=axis)
        if order == -float("inf"):
            return np.min(size, axis=axis)
        if order == 0:
            return np.count_nonzero(size, axis=axis)
        return np.sum(size**order, axis=axis) ** (1 / order)

    empty = abs(order) != float("inf")
    return _reduce(
        "norm", length, input, dim, keepdim, result=kind, compute=kind, empty=empty, order=order
    )


def logsumexp(input: Tensor, dim: int | Sequence[int], keepdim: bool = False) -> Tensor:
    """Returns the logarithm of the sum of exponentials, as `torch.logsumexp`.

    Args:
        dim: Dimensions to reduce.
        keepdim: Whether reduced dimensions stay, with extent 1.
    """
    kind = input.dtype if input.dtype.is_floating_point else dtypes.float32

    def total(x: Array, axis: tuple[int, ...]) -> Any:
        peak = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
        shift = np.where(np.isfinite(peak), peak, 0)
        return np.squeeze(shift, axis) + np.log(np.sum(np.exp(x - shift), axis=axis))

    return _reduce("logsumexp", total, input, dim, keepdim, result=kind, compute=kind)


# Along one dimension


def cumsum(input: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """Returns the running sums along a dimension, as `torch.cumsum`.

    Args:
        dtype: Type of the sums; by default int64 for integers and bools, else the tensor's own.
    """
    return along("cumsum", np.cumsum, input, dim, _sum_type(input, dtype))


def softmax(input: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    """Returns the softmax along a dimension, as `torch.softmax`.

    Args:
        dtype: Type of the computation and the result; the tensor's own by default.
    """
    kind = _floats("softmax", dtype or input.dtype)
    return along("softmax", _softmax, _converted(input, kind), dim, kind)


def _converted(input: Tensor, kind: DType) -> Tensor:
    """Returns what a softmax reads: float16 as it is to become float32, all else in its type."""
    as_it_is = input.dtype is dtypes.float16 and kind is dtypes.float32
    return input if as_it_is else to(input, kind)


def _softmax(x: Array, axis: int) -> Array:
    powers: Array = np.exp(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))
    powers /= np.sum(powers, axis=axis, keepdims=True)
    return powers


@args_of(softmax)
def log_softmax(input: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    """Returns the logarithm of the softmax along a dimension, as `torch.log_softmax`."""
    kind = _floats("log_softmax", dtype or input.dtype)
    return along("log_softmax", _log_softmax, _converted(input, kind), dim, kind)


def _log_softmax(x: Array, axis: int) -> Array:
    low: Array = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    low -= np.log(np.sum(np.exp(low), axis=axis, keepdims=True))
    return low
