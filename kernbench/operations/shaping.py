"""Operations that move elements; with `views`, all of PyTorch's shaping operations."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernbench.errors import KernbenchError, OperandError, OptionError, call_site, site_fact
from kernbench.kernels.prices import Price, of_interleaved, of_look_up, of_roll, of_scatter
from kernbench.memory import Array, DType, View, dtypes
from kernbench.operations import views
from kernbench.operations.copies import clone
from kernbench.operations.elementwise import check_distinct, check_out, layout
from kernbench.operations.fused import kernel
from kernbench.operations.twins import args_of
from kernbench.operations.views import *  # noqa: F403 - one namespace for users
from kernbench.operations.views import dim_of, ints_of, whole
from kernbench.process.process import current_process
from kernbench.process.types import Device
from kernbench.tensors import tape
from kernbench.tensors.errors import DimensionError, TensorError, one_way, refuse
from kernbench.tensors.new import new_tensor
from kernbench.tensors.promotion import FLOATS, Scalar, category, promote_types
from kernbench.tensors.running import run, same_device
from kernbench.tensors.tensor import Tensor

__all__ = [
    "cat",
    "concat",
    "flip",
    "gather",
    "hstack",
    "index_select",
    "repeat_interleave",
    "roll",
    "scatter",
    "scatter_add",
    "stack",
    "tril",
    "triu",
    "vstack",
]
__all__ += views.__all__


class IndexOutOfBoundsError(KernbenchError, IndexError, RuntimeError):
    """An index tensor holds an index that is out of range (M1 for reads, M2 for writes)."""


def cat(tensors: Sequence[Tensor], dim: int = 0, *, out: Tensor | None = None) -> Tensor:
    """Returns tensors one after the other along a dimension, as `torch.cat`.

    Args:
        tensors: Tensors whose shapes differ at most in `dim`.
        out: Tensor to write the result to; None for a new one.

    Raises:
        OptionError: If there is no tensor.
        TensorError: If shapes differ in another dimension, or the first tensor has no dimension.
    """
    return _concatenated(list(tensors), dim, out, "aten::cat")


concat = cat


def _concatenated(parts: list[Tensor], dim: int, out: Tensor | None, kernel: str) -> Tensor:
    if not parts:
        raise OptionError(
            "torch.cat(): expected a non-empty list of Tensors", [site_fact(call_site())]
        )
    # PyTorch accepts empty vectors among tensors of any shape, and ignores them.
    used = [part for part in parts if part.window.shape != (0,)] or parts[:1]
    first = used[0].window.shape
    if not first:
        raise TensorError(
            "zero-dimensional tensor (at position 0) cannot be concatenated",
            [site_fact(call_site())],
        )
    place = dim_of(dim, len(first))
    for index, part in enumerate(used):
        shape = part.window.shape
        if shape != first and (
            len(shape) != len(first)
            or shape[:place] != first[:place]
            or shape[place + 1 :] != first[place + 1 :]
        ):
            raise TensorError(
                f"Sizes of tensors must match except in dimension {place}: tensor 0 has "
                f"{list(first)}, tensor {index} has {list(shape)}",
                [site_fact(call_site())],
            )
    dtype = parts[0].dtype
    for part in parts[1:]:
        dtype = promote_types(dtype, part.dtype)
    shape = (*first[:place], sum(part.window.shape[place] for part in used), *first[place + 1 :])
    device = same_device("cat", parts)
    return _joined(kernel, used, shape, dtype, device, place, out)


def _joined(
    kernel: str,
    parts: Sequence[Tensor],
    shape: tuple[int, ...],
    dtype: DType,
    device: Device,
    place: int,
    out: Tensor | None,
) -> Tensor:
    process = current_process()
    if out is not None:
        check_out("cat", out, shape, dtype)
    result = new_tensor(process, shape, dtype, device) if out is None else out
    sources, target, held = [part.window for part in parts], result.window, dtype.numpy

    def effect() -> None:
        arrays = [source.read().astype(held, copy=False) for source in sources]
        values = np.concatenate(arrays, axis=place)
        if out is None:
            target.adopt(values)
        else:
            target.store(values)

    node = None
    if any(part.memory.tracked for part in (*parts, result)) and category(dtype) >= FLOATS:
        node = tape.begin(process, "aten::cat", parts, _places(parts, place), out)
    run(process, kernel, parts, result, effect)
    if node is not None:
        tape.finish(node, result)
    return result


def _places(parts: Sequence[Tensor], place: int) -> dict[str, Any]:
    """Returns the first index of each part, for the derivative."""
    starts, start = [], 0
    for part in parts:
        starts.append(start)
        start += part.window.shape[place]
    return {"dim": place, "starts": starts}


def stack(tensors: Sequence[Tensor], dim: int = 0, *, out: Tensor | None = None) -> Tensor:
    """Returns tensors one after the other along a new dimension, as `torch.stack`.

    Args:
        tensors: Tensors of one shape.
        dim: Place of the new dimension.
        out: Tensor to write the result to; None for a new one.

    Raises:
        TensorError: If there is no tensor, or shapes differ.
    """
    parts = list(tensors)
    if not parts:
        raise TensorError("stack expects a non-empty TensorList", [site_fact(call_site())])
    first = parts[0].window.shape
    for index, part in enumerate(parts):
        if part.window.shape != first:
            raise TensorError(
                f"stack expects each tensor to be equal size, but got {list(first)} at entry 0 and "
                f"{list(part.window.shape)} at entry {index}",
                [site_fact(call_site())],
            )
    place = dim_of(dim, len(first) + 1)
    return _concatenated(
        [views.unsqueeze(part, place) for part in parts], place, out, "aten::stack"
    )


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Returns tensors joined along the second dimension, vectors along the first.

    This is `torch.hstack`.
    """
    parts = _at_least_1d(tensors)
    return cat(parts, 0 if parts and len(parts[0].window.shape) == 1 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Returns tensors joined along the first dimension; a vector is a row, as in `torch.vstack`."""
    rows = _at_least_1d(tensors)
    return cat([views.unsqueeze(row, 0) if len(row.window.shape) == 1 else row for row in rows], 0)


def _at_least_1d(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [each if each.window.shape else views.unsqueeze(each, 0) for each in tensors]


def moved(
    name: str,
    input: Tensor,
    shape: tuple[int, ...],
    function: Callable[[Array], Array],
    others: Sequence[Tensor] = (),
    strides: tuple[int, ...] | None = None,
    price: Price | None = None,
    **options: Any,
) -> Tensor:
    """Returns a tensor of elements of `input` that a numpy function rearranges.

    Args:
        name: Name in traces and errors.
        input: Tensor that holds the elements.
        shape: Shape of the result.
        function: Takes an array, returns a new one or a view.
        others: Further tensors that the function reads.
        strides: Strides of the result; None: row-major.
        price: What the kernel costs; None: as its name says.
        **options: Values that the formula of the gradient needs.
    """
    process = current_process()
    device, site = same_device(name, [input, *others]), process.call_site()
    out = new_tensor(process, shape, input.dtype, device, site, strides=strides)
    source, target = input.window, out.window
    node = None
    if input.memory.tracked and category(input.dtype) >= FLOATS:
        node = tape.begin(process, name, (input,), options, site=site)
    run(
        process,
        f"aten::{name}",
        [input, *others],
        out,
        lambda: target.adopt(function(source.read())),
        price=of_look_up(name) if others else price,
        site=site,
    )
    if node is not None:
        tape.finish(node, out)
    return out


def repeat(
    self: Tensor, *counts: int | Sequence[int], repeats: Sequence[int] | None = None
) -> Tensor:
    """Returns the tensor repeated along each dimension, as `torch.Tensor.repeat`.

    Args:
        *counts: Number of repetitions for each dimension, one by one or as one sequence.
        repeats: Numbers of repetitions, instead of `counts`.

    Raises:
        TensorError: If there are fewer numbers than dimensions, or one is negative.
    """
    times, old = ints_of(one_way(counts, repeats)), self.window.shape
    missing = len(times) - len(old)
    if missing < 0:
        raise TensorError(
            "Number of dimensions of repeat dims can not be smaller than number of dimensions of "
            "tensor",
            [site_fact(call_site())],
        )
    if min(times, default=0) < 0:
        raise TensorError(
            f"Trying to create tensor with negative dimension: repeats {list(times)}",
            [site_fact(call_site())],
        )
    shape = tuple([n * k for n, k in zip((1,) * missing + old, times, strict=True)])
    return moved("repeat", self, shape, lambda x: np.tile(x, times), repeats=times)


def repeat_interleave(
    input: Tensor, repeats: int | Tensor, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    """Returns each element, or each slice of a dimension, several times in a row.

    Args:
        repeats: Number of repetitions; a vector has one for each, and without `output_size` the
            host waits for their sum.
        dim: The dimension; None for all elements in row-major order, as a vector.
        output_size: Expected extent of the result along the dimension; None for any.

    Raises:
        OperandError: If `repeats` is no integer.
        TensorError: If the result has another extent than `output_size`, or `repeats` is negative.
    """
    if isinstance(repeats, Tensor):
        if dim is None:
            input, dim = input.reshape(-1), 0
        return index_select(input, dim, _repeated(repeats, input.shape[dim], output_size))
    repeats = whole("repeat_interleave(): argument 'repeats'", repeats)
    if repeats < 0:
        raise TensorError("Repeats must be non-negative", [site_fact(call_site())])
    if not input.window.shape:
        if dim is not None:
            dim_of(dim, 0)
        dim = None
    if dim is None:
        shape: tuple[int, ...] = (input.window.numel * repeats,)
    else:
        dim, old = dim_of(dim, len(input.window.shape)), input.window.shape
        shape = (*old[:dim], old[dim] * repeats, *old[dim + 1 :])
    extent = shape[dim or 0]
    if output_size is not None and output_size != extent:
        raise TensorError(
            f"repeat_interleave: Invalid output_size {output_size}",
            [site_fact(call_site())],
            hint=f"the result has {extent}",
        )
    return moved(
        "repeat_interleave",
        input,
        shape,
        lambda x: np.repeat(x, repeats, dim),
        price=of_interleaved(dim),
        repeats=repeats,
        dim=dim,
    )


def _repeated(repeats: Tensor, extent: int, size: int | None) -> Tensor:
    """Returns each place of a dimension as often as a vector of integers says."""
    check_index("repeat_interleave", repeats)
    total = int(repeats.sum()) if size is None else size

    def places(counts: Array) -> Array:
        found = np.repeat(np.arange(extent), counts)
        if found.size != total:
            raise TensorError(f"repeat_interleave: expected {total} in all, got {found.size}")
        return found

    return kernel("repeat_interleave", places, [repeats], (total,), dtypes.int64)


def flip(input: Tensor, *axes: int | Sequence[int], dims: Sequence[int] | None = None) -> Tensor:
    """Returns a copy with the order of some dimensions reversed, as `torch.flip`.

    Args:
        *axes: Dimensions to reverse, one by one or as one sequence.
        dims: Dimensions to reverse, instead of `axes`.

    Raises:
        TensorError: If a dimension is named twice.
    """
    wanted, shape = ints_of(one_way(axes, dims)), input.window.shape
    places = tuple([dim_of(dim, len(shape)) for dim in wanted])
    if len(set(places)) < len(places):
        raise TensorError(
            f"flip: a dim appears multiple times in the list of dims {list(wanted)}",
            [site_fact(call_site())],
        )
    places = places if shape else ()
    return moved(
        "flip",
        input,
        shape,
        lambda x: np.flip(x, places),
        strides=layout(shape, (input,)),
        dims=places,
    )


def roll(
    input: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] | None = ()
) -> Tensor:
    """Returns a copy whose elements are shifted cyclically, as `torch.roll`.

    Args:
        shifts: How far to shift, for each of `dims`.
        dims: Dimensions to shift; without any, all elements are shifted in row-major order.

    Raises:
        OperandError: If a shift is no integer.
        TensorError: If there are not as many shifts as dimensions.
        DimensionError: If dimensions are given for a 0-d tensor.
    """
    steps = ints_of((shifts,))
    if dims is None or dims == ():
        axes = None
        if len(steps) != 1:
            raise TensorError(
                "shifts and dimensions must align; without dims there is one shift",
                [site_fact(call_site())],
            )
        shape = input.window.shape
        return moved("roll", input, shape, lambda x: np.roll(x, steps[0]), shifts=steps, dims=None)
    shape = input.window.shape
    axes = [dim_of(dim, len(shape)) for dim in ([dims] if isinstance(dims, int) else dims)]
    if len(axes) != len(steps):
        raise TensorError(
            f"shifts and dimensions must align. shifts: {len(steps)}, dims:{len(axes)}",
            [site_fact(call_site())],
        )
    if not shape:
        raise DimensionError(
            f"roll: Dimension specified as {axes[0]} but tensor has no dimensions",
            [site_fact(call_site())],
        )
    options: Any = {"shifts": steps, "dims": axes, "price": of_roll(steps)}
    return moved("roll", input, shape, lambda x: np.roll(x, steps, axes), **options)


def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """Returns the lower triangle of matrices, with 0 elsewhere, as `torch.tril`."""
    _check_matrix("tril", input)
    shape = input.window.shape
    return moved("tril", input, shape, lambda x: np.tril(x, diagonal), diagonal=diagonal)


def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """Returns the upper triangle of matrices, with 0 elsewhere, as `torch.triu`."""
    _check_matrix("triu", input)
    shape = input.window.shape
    return moved("triu", input, shape, lambda x: np.triu(x, diagonal), diagonal=diagonal)


def _check_matrix(name: str, input: Tensor) -> None:
    if len(input.window.shape) < 2:
        raise TensorError(
            f"{name}: input tensor must have at least 2 dimensions", [site_fact(call_site())]
        )


# By index tensors


def check_index(name: str, index: Tensor) -> None:
    """Checks that a tensor may be an index.

    Raises:
        OperandError: If the tensor is not of int64 or int32.
    """
    if not isinstance(index, Tensor) or index.dtype not in {dtypes.int64, dtypes.int32}:
        got = index.dtype if isinstance(index, Tensor) else type(index).__name__
        raise OperandError(
            f"{name}: expected an index tensor of int64 or int32, got {got}",
            [site_fact(call_site())],
        )


def checked(
    name: str, index: Array, extent: int, dim: int, *, code: str, negative: bool = False
) -> Array:
    """Returns indices of a dimension, all of them counted from its start.

    Args:
        name: Name of the operation, for the error.
        index: The indices.
        extent: Extent of the dimension.
        dim: Number of the dimension, for the error.
        code: Code of the error: `M1` for a read, `M2` for a write.
        negative: Whether negative indices count from the end.

    Raises:
        IndexOutOfBoundsError: If an index is out of range.
    """
    lowest = -extent if negative else 0
    bad = (index < lowest) | (index >= extent)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise IndexOutOfBoundsError(
            f"{name}: index {index.flat[first]} is out of bounds for dimension {dim} with size "
            f"{extent}",
            [
                f"valid indices {lowest}..{extent - 1}; {int(bad.sum())} of {bad.size} are bad, "
                f"the first is number {first}"
            ],
            code=code,
        )
    return index


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Returns the slices of a dimension whose indices a vector holds, as `torch.index_select`.

    Args:
        index: Indices, a vector of int64 or int32.

    Raises:
        DimensionError: If `index` is no vector.
        TensorError: If `input` is 0-d, and `index` has more values than one.
        IndexOutOfBoundsError: If an index is out of range (M1); found when the kernel runs.
    """
    check_index("index_select", index)
    old, chosen = input.window.shape, index.window
    place = dim_of(dim, len(old))
    if len(chosen.shape) > 1:
        raise DimensionError(
            "index_select(): Index is supposed to be a vector", [site_fact(call_site())]
        )
    if not old and chosen.numel != 1:
        raise TensorError(
            f"index_select(): Index to scalar can have only 1 value, got {chosen.numel} value(s)",
            [site_fact(call_site())],
        )
    shape = (*old[:place], chosen.numel, *old[place + 1 :]) if old else ()
    extent = old[place] if old else 1

    def pick(x: Array) -> Array:
        rows = checked("index_select", chosen.read(), extent, place, code="M1")
        return np.take(x, rows.reshape(-1), axis=place) if old else x

    return moved("index_select", input, shape, pick, (index,), dim=place, chosen=index)


def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """Returns elements chosen along a dimension, as `torch.gather`.

    Args:
        index: Index along `dim` of each element of the result, int64 or int32.
        sparse_grad: Must be False.

    Raises:
        UnsupportedError: For `sparse_grad`.
        IndexOutOfBoundsError: If an index is out of range (M1); found when the kernel runs.
    """
    refuse("gather", sparse_grad=sparse_grad or None)
    if not input.window.shape and isinstance(index, Tensor):
        return gather(input.reshape(1), dim, _as_vector(index)).reshape(index.window.shape)
    place = _check_gather("gather", input, dim, index)
    chosen, extent = index.window, input.window.shape[place]
    within = tuple([slice(n) for n in chosen.shape])

    def pick(x: Array) -> Array:
        rows = checked("gather", chosen.read(), extent, place, code="M1")
        part = x[tuple(slice(None) if d == place else s for d, s in enumerate(within))]
        return np.take_along_axis(part, rows.astype(np.int64), place)

    return moved("gather", input, chosen.shape, pick, (index,), dim=place, chosen=index)


def _as_vector(tensor: Tensor) -> Tensor:
    """Returns a 0-d tensor as a vector of one element, and any other tensor as it is."""
    return tensor if tensor.window.shape else tensor.reshape(1)


def _check_gather(name: str, input: Tensor, dim: int, index: Tensor) -> int:
    check_index(name, index)
    shape, wanted = input.window.shape, index.window.shape
    place = dim_of(dim, len(shape))
    if len(shape) != len(wanted) or any(
        m > n for d, (n, m) in enumerate(zip(shape, wanted, strict=True)) if d != place
    ):
        raise TensorError(
            f"{name}: index of shape {list(wanted)} does not fit input of shape {list(shape)} "
            f"apart from dimension {place}",
            [site_fact(call_site())],
        )
    return place


def key_along(rows: Array, dim: int) -> tuple[Any, ...]:
    """Returns numpy's key for elements that are chosen along one dimension.

    Args:
        rows: Index along `dim` of each chosen element.
    """
    key = list(np.ogrid[tuple(slice(n) for n in rows.shape)])
    key[dim] = rows
    return tuple(key)


def scatter_(
    self: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor | Scalar | None = None,
    *,
    value: Scalar | None = None,
    reduce: str | None = None,
) -> Tensor:
    """Replaces elements along a dimension, as `torch.Tensor.scatter_`.

    Args:
        index: Index along `dim` where each element of `src` goes, int64 or int32.
        src: Tensor of the new elements, at least as large as `index` and of this tensor's type; or
            a number.
        value: A number, instead of `src`.
        reduce: Must be None.

    Raises:
        OperandError: If neither `src` nor `value` is given, or both.
        UnsupportedError: For `reduce`.
        IndexOutOfBoundsError: If an index is out of range (M2); found when the kernel runs.
    """
    return _scattered(
        "scatter_", self, dim, index, _source_of("scatter_", src, value, reduce), None
    )


def _source_of(
    name: str, src: Tensor | Scalar | None, value: Scalar | None, reduce: str | None
) -> Tensor | Scalar:
    refuse(name, reduce=reduce)
    if (src is None) == (value is None):
        raise OperandError(f"{name}() takes either src or value", [site_fact(call_site())])
    given = value if src is None else src
    assert given is not None
    return given


@args_of(scatter_)
def scatter(
    input: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor | Scalar | None = None,
    *,
    value: Scalar | None = None,
    reduce: str | None = None,
) -> Tensor:
    """Returns a copy with elements along a dimension replaced, as `torch.scatter`."""
    given = _source_of("scatter", src, value, reduce)
    return _scattered("scatter", clone(input), dim, index, given, None)


def scatter_add_(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Adds to elements along a dimension, as `torch.Tensor.scatter_add_`.

    Args:
        index: Index along `dim` where each element of `src` is added, int64 or int32.
        src: Tensor to add, at least as large as `index` and of this tensor's type.

    Raises:
        IndexOutOfBoundsError: If an index is out of range (M2); found when the kernel runs.
    """
    return _scattered("scatter_add_", self, dim, index, src, np.add)


@args_of(scatter_add_)
def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Returns a copy to which elements along a dimension were added, as `torch.scatter_add`."""
    return _scattered("scatter_add", clone(input), dim, index, src, np.add)


def _scattered(
    name: str,
    self: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor | Scalar,
    ufunc: np.ufunc | None,
) -> Tensor:
    if not self.window.shape and isinstance(index, Tensor):
        values = _as_vector(src) if isinstance(src, Tensor) else src
        _scattered(name, self.reshape(1), dim, _as_vector(index), values, ufunc)
        return self
    place = _check_gather(name, self, dim, index)
    check_distinct(name, self)
    tensors = [index] if not isinstance(src, Tensor) else [index, src]
    if isinstance(src, Tensor) and src.dtype is not self.dtype:
        raise TensorError(
            f"{name}: expected self.dtype to be equal to src.dtype, got {self.dtype} and "
            f"{src.dtype}",
            [site_fact(call_site())],
        )
    same_device(name, [self, *tensors])
    chosen, target = index.window, self.window
    extent = target.shape[place]
    # A view, not the tensor: its memory may be dropped while the command waits.
    source = src.window if isinstance(src, Tensor) else src

    def effect() -> None:
        rows = checked(name, chosen.read(), extent, place, code="M2")
        where = key_along(rows, place)
        within = tuple(slice(n) for n in rows.shape)
        values = source.read()[within] if isinstance(source, View) else source
        if ufunc is None:
            target.put(where, values)
        else:
            ufunc.at(target.read(), where, values)

    process, node = current_process(), None
    if self.memory.tracked or (isinstance(src, Tensor) and src.memory.tracked):
        options = {"dim": place, "chosen": index}
        node = tape.begin(process, name.removesuffix("_"), (self, src), options, self)
    run(process, f"aten::{name}", tensors, self, effect, price=of_scatter(name, chosen.shape))
    if node is not None:
        tape.finish(node, self)
    return self
