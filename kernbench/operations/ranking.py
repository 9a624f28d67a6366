"""Operations along a dimension that keep it: what all of them share, and sorting."""

from collections.abc import Callable
from typing import Any

import numpy as np

from kernbench.errors import UnsupportedError, call_site, site_fact
from kernbench.memory import Array, DType, dtypes
from kernbench.operations.elementwise import check_complex, layout
from kernbench.operations.twins import args_of
from kernbench.operations.views import dim_of, whole
from kernbench.process.process import current_process
from kernbench.tensors import tape
from kernbench.tensors.errors import TensorError
from kernbench.tensors.new import new_tensor
from kernbench.tensors.promotion import FLOATS, category
from kernbench.tensors.return_types import ValuesAndIndices
from kernbench.tensors.running import run
from kernbench.tensors.tensor import Tensor

__all__ = ["argsort", "sort", "topk"]


def wide_type(dtype: DType) -> Any:
    """Returns the numpy dtype to compute in: float32 for 16-bit floats.

    Raises:
        UnsupportedError: For 8-bit floats.
    """
    if dtype.is_floating_point and dtype.itemsize == 1:
        raise UnsupportedError(
            f"reductions are not defined for {dtype}, as in PyTorch",
            [site_fact(call_site())],
            hint="convert to bfloat16 or float32 first",
        )
    return dtype.accumulator


def along(
    name: str,
    function: Callable[..., Any],
    input: Tensor,
    dim: int,
    result: DType,
    shape: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
    **options: Any,
) -> Tensor:
    """Applies a numpy function along a dimension, computing in the type of the result.

    Args:
        name: Name in traces and errors.
        function: Takes an array and an axis, returns an array.
        result: Type of the result.
        shape: Shape of the result; None: that of `input`.
        strides: Strides of the result; None: row-major.
        **options: Values that the formula of the gradient needs besides `dim`.
    """
    if input.dtype.is_complex and (name != "cumsum" or not result.is_complex):
        check_complex(name, input.dtype, frozenset())
    place = dim_of(dim, len(input.window.shape))
    process = current_process()
    site = process.call_site()
    shape = input.window.shape if shape is None else shape
    out = new_tensor(process, shape, result, input.device, site, strides=strides)
    source, target, wanted = input.window, out.window, wide_type(result)

    def effect() -> None:
        x = source.read().astype(wanted, copy=False)
        target.adopt(function(x, place) if x.ndim else function(x.reshape(1), 0).reshape(()))

    node = None
    if input.memory.tracked and category(result) >= FLOATS:
        node = tape.begin(process, name, (input,), {"dim": place, **options}, site=site)
    run(process, f"aten::{name}", (input,), out, effect, site=site)
    if node is not None:
        tape.finish(node, out)
    return out


def sort(
    input: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = False
) -> ValuesAndIndices:
    """Returns a dimension sorted, and the indices that sort it, as `torch.sort`.

    Args:
        dim: Dimension to sort.
        descending: Whether the largest element comes first.
        stable: Not needed: equal elements always keep their order.
    """
    del stable
    place = dim_of(dim, len(input.window.shape))
    extent = input.window.shape[place] if input.window.shape else 1
    return _ranked("sort", input, place, extent, descending)


@args_of(sort)
def argsort(
    input: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = False
) -> Tensor:
    """Returns the indices that sort a dimension, as `torch.argsort`."""
    return sort(input, dim, descending, stable=stable).indices


def topk(
    input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> ValuesAndIndices:
    """Returns the `k` largest elements of a dimension, and their indices, as `torch.topk`.

    Args:
        k: Number of elements.
        dim: Dimension to search.
        largest: Whether to return the largest elements, rather than the smallest.
        sorted: Not needed: the elements are always sorted.

    Raises:
        OperandError: If `k` is no integer.
        TensorError: If the dimension has fewer than `k` elements.
    """
    del sorted
    place, k = dim_of(dim, len(input.window.shape)), whole("topk(): argument 'k'", k)
    if not (most := input.window.shape[place] if input.window.shape else 1) >= k >= 0:
        raise TensorError(f"selected index k out of range: {k} of {most}", [site_fact(call_site())])
    if not k and not input.window.shape:
        raise TensorError("topk of no element of a 0-d tensor", [site_fact(call_site())])
    return _ranked("topk", input, place, k, largest)


def _ranked(name: str, input: Tensor, place: int, k: int, descending: bool) -> ValuesAndIndices:
    shape = input.window.shape
    shape = (*shape[:place], k, *shape[place + 1 :]) if shape else shape
    if input.dtype.is_complex:
        check_complex(name, input.dtype, frozenset())

    def order(x: Array, axis: int) -> Array:
        if descending:
            # Equal elements keep their order, and nan counts as the largest.
            back = np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
            ranks = x.shape[axis] - 1 - back
        else:
            ranks = np.argsort(x, axis=axis, kind="stable")
        return np.take(ranks, range(k), axis=axis)

    process = current_process()
    site = process.call_site()
    # Sorting keeps the order of dimensions; choosing does not.
    strides = layout(shape, (input,)) if name == "sort" else None
    values = new_tensor(process, shape, input.dtype, input.device, site, strides=strides)
    indices = new_tensor(process, shape, dtypes.int64, input.device, site, strides=strides)
    source, target, ranks = input.window, values.window, indices.window

    def effect() -> None:
        x = source.read()
        found = order(x, place) if x.ndim else np.zeros((), np.int64)
        ranks.adopt(found)
        target.adopt(np.take_along_axis(x, found, place) if x.ndim else x)

    run(process, f"aten::{name}", (input,), values, effect, also=(indices,), site=site)
    if input.memory.tracked and category(input.dtype) >= FLOATS:
        # The gradient needs the indices as they are now.
        node = tape.begin(process, name, (input,), {"dim": place, "chosen": indices}, site=site)
        if node is not None:
            tape.finish(node, values)
    return ValuesAndIndices(values, indices)
