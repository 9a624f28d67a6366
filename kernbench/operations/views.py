"""Views: other windows on the same memory. They take no time and do not wait."""

import operator
from collections.abc import Sequence
from math import prod
from typing import Any, SupportsIndex

from kernbench.caches import cached
from kernbench.errors import OperandError, call_site, site_fact
from kernbench.memory import DType, View, contiguous_strides
from kernbench.memory.windows import has_no_gaps
from kernbench.operations.copies import contiguous
from kernbench.process.process import current_process
from kernbench.tensors import tape
from kernbench.tensors.errors import DimensionError, TensorError, one_way
from kernbench.tensors.new import wrap
from kernbench.tensors.operands import type_name
from kernbench.tensors.tensor import Tensor

__all__ = [
    "broadcast_to",
    "chunk",
    "diagonal",
    "flatten",
    "is_tensor",
    "movedim",
    "narrow",
    "numel",
    "permute",
    "reshape",
    "select",
    "split",
    "squeeze",
    "swapaxes",
    "t",
    "transpose",
    "unbind",
    "unflatten",
    "unsqueeze",
]


def dim_of(dim: SupportsIndex, rank: int, *, extra: int = 0) -> int:
    """Returns a dimension counted from 0.

    Args:
        dim: The dimension; negative numbers count from the end.
        rank: Number of dimensions; a tensor of rank 0 counts as having one.
        extra: Further places that are valid, such as 1 for a new dimension.

    Raises:
        DimensionError: If the dimension does not exist.
        OperandError: If `dim` is no int.
    """
    if not isinstance(dim, int):
        try:
            dim = operator.index(dim)  # such as an integer of numpy
        except TypeError:
            raise OperandError(
                f"a dimension is an int, not {type_name(dim)}", [site_fact(call_site())]
            ) from None
    if 0 <= dim < rank:
        return dim + 0  # of a bool, the number
    bound = max(rank, 1) + extra if rank or not extra else 1
    if not -bound <= dim < bound:
        raise DimensionError(
            f"Dimension out of range (expected to be in range of [{-bound}, {bound - 1}], "
            f"but got {dim})",
            [site_fact(call_site())],
        )
    return dim % bound


def ints_of(values: tuple[Any, ...]) -> tuple[int, ...]:
    """Returns integers that were given one by one or as a sequence.

    Raises:
        OperandError: If a value is no integer.
    """
    given: Sequence[Any] = values
    if len(values) == 1:
        first = values[0]
        # The abstract class is asked last: that takes as long as all the rest.
        if isinstance(first, tuple) or (type(first) is not int and isinstance(first, Sequence)):
            given = first
    try:
        return tuple([operator.index(value) for value in given])
    except TypeError:
        raise OperandError(f"expected integers; got {given!r}", [site_fact(call_site())]) from None


def whole(argument: str, value: Any) -> int:
    """Returns an integer argument.

    Args:
        argument: Its name in the report, such as `topk(): argument 'k'`.
        value: What was given.

    Raises:
        OperandError: If it is no integer.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise OperandError(
            f"{argument} must be int, not {type_name(value)}", [site_fact(call_site())]
        ) from None


# Facts


def numel(input: Tensor) -> int:
    """Returns the number of elements."""
    return input.window.numel


def is_tensor(obj: object) -> bool:
    """Returns whether `obj` is a tensor."""
    return isinstance(obj, Tensor)


def size(self: Tensor, dim: int | None = None) -> Any:
    """Returns the shape, or the extent of one dimension."""
    return self.shape if dim is None else self.window.shape[dim_of(dim, len(self.window.shape))]


def stride(self: Tensor, dim: int | None = None) -> Any:
    """Returns the strides in elements, or the stride of one dimension."""
    strides = self.window.strides
    return strides if dim is None else strides[dim_of(dim, len(strides))]


# Views


def _resolved(shape: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape `wanted` for a tensor of `shape`, with its -1, if any, replaced."""
    count = prod(shape)
    free = [place for place, extent in enumerate(wanted) if extent == -1]
    known = 1
    for extent in wanted:
        if extent < -1:
            raise TensorError(
                f"invalid shape dimension {extent}: {list(wanted)}", [site_fact(call_site())]
            )
        known *= 1 if extent == -1 else extent
    if len(free) > 1:
        raise TensorError("only one dimension can be inferred", [site_fact(call_site())])
    if free and known and count % known == 0:
        return tuple([count // known if extent == -1 else extent for extent in wanted])
    if free or known != count:
        raise TensorError(
            f"shape '{list(wanted)}' is invalid for input of size {count}",
            [site_fact(call_site()), f"input of shape {list(shape)}"],
        )
    return wanted


_Shown = tuple[tuple[int, ...], tuple[int, ...] | None]


@cached("operations.views")
def _shown(old: tuple[int, ...], steps: tuple[int, ...], wanted: tuple[int, ...]) -> _Shown:
    """Returns the shape `wanted`, its -1 replaced, and the strides of a view in that shape.

    The tensor has shape `old` and strides `steps`. The strides are None if no view exists.
    """
    shape = _resolved(old, wanted)
    if has_no_gaps(old, steps) or not old:
        return shape, contiguous_strides(shape)
    strides = [0] * len(shape)
    place = len(shape) - 1
    base, count = steps[-1], 1
    for dim in range(len(old) - 1, -1, -1):
        count *= old[dim]
        if dim and (old[dim - 1] == 1 or steps[dim - 1] == count * base):
            continue
        # A run of dimensions without gaps between them ends here: divide it into new dimensions.
        taken = 1
        while place >= 0 and (taken < count or shape[place] == 1):
            strides[place] = taken * base
            taken *= shape[place]
            place -= 1
        if taken != count:
            return shape, None
        if dim:
            base, count = steps[dim - 1], 1
    return shape, tuple(strides)


def view(
    self: Tensor,
    *shape: int | Sequence[int] | DType,
    size: Sequence[int] | None = None,
    dtype: DType | None = None,
) -> Tensor:
    """Returns the same memory in another shape or, given a dtype, as another type.

    Args:
        *shape: Extents, one by one or as one sequence, -1 for one that follows from the others; or
            a dtype.
        size: Extents, instead of `shape`.
        dtype: Type as which to show the bytes.

    Raises:
        TensorError: If no strides show the memory in that shape.
    """
    if size is not None or dtype is not None:
        shape = one_way(shape, size) if dtype is None else (dtype,)
    if len(shape) == 1 and isinstance(shape[0], DType):
        return _reinterpreted(self, shape[0])
    wanted, strides = _shown(self.window.shape, self.window.strides, ints_of(shape))
    if strides is None:
        raise TensorError(
            "view size is not compatible with input tensor's size and stride (at least one "
            "dimension spans across two contiguous subspaces). Use .reshape(...) instead.",
            [
                site_fact(call_site()),
                f"shape {list(self.window.shape)}, strides {list(self.window.strides)}, "
                f"wanted {list(wanted)}",
            ],
        )
    return tape.view(self, wanted, strides, self.window.offset, "view", (view, wanted))


def _reinterpreted(tensor: Tensor, dtype: DType) -> Tensor:
    old = tensor.window
    shape, strides, offset = old.shape, old.strides, old.offset
    here, there = old.dtype.itemsize, dtype.itemsize
    if here != there:
        if (
            not shape
            or strides[-1] != 1
            or shape[-1] * here % there
            or any(step * here % there for step in (offset, *strides[:-1]))
        ):
            raise TensorError(
                f"a tensor of {old.dtype} with shape {list(shape)} and strides {list(strides)} "
                f"cannot be viewed as {dtype}",
                [site_fact(call_site())],
            )
        shape = (*shape[:-1], shape[-1] * here // there)
        strides = (*(step * here // there for step in strides[:-1]), 1)
        offset = offset * here // there
    seen = wrap(tensor.memory, View(old.buffer, dtype, shape, strides, offset), tensor.device)
    if tensor.memory.tracked and (dtype.is_floating_point or dtype.is_complex):
        node = tape.begin(current_process(), "view_dtype", (tensor,))
        if node is not None:
            tape.finish(node, seen)
    return seen


def view_as(self: Tensor, other: Tensor) -> Tensor:
    """Returns the same memory in the shape of another tensor."""
    return view(self, other.window.shape)


def reshape(
    input: Tensor, *sizes: int | Sequence[int], shape: Sequence[int] | None = None
) -> Tensor:
    """Returns the elements in another shape: a view if one exists, else a copy.

    Args:
        *sizes: Extents, one by one or as one sequence; -1 for one that follows from the others.
        shape: Extents, instead of `sizes`.
    """
    sizes = one_way(sizes, shape)
    wanted, strides = _shown(input.window.shape, input.window.strides, ints_of(sizes))
    if strides is None:
        return view(contiguous(input), wanted)
    return tape.view(input, wanted, strides, input.window.offset, "view", (view, wanted))


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Returns the tensor with a range of dimensions joined into one, as `torch.flatten`.

    Args:
        start_dim: First dimension of the range.
        end_dim: Last dimension of the range.

    Raises:
        TensorError: If the range ends before it starts.
    """
    shape = input.window.shape
    first, last = dim_of(start_dim, len(shape)), dim_of(end_dim, len(shape))
    if first > last:
        raise TensorError(
            "flatten() has invalid args: start_dim cannot come after end_dim",
            [site_fact(call_site())],
        )
    if not shape:
        return reshape(input, 1)
    count = 1
    for extent in shape[first : last + 1]:
        count *= extent
    return reshape(input, *shape[:first], count, *shape[last + 1 :])


def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Returns the tensor with a dimension divided into several, as `torch.unflatten`.

    Args:
        sizes: Extents of the new dimensions; -1 for one that follows from the others.

    Raises:
        TensorError: If `sizes` is empty, or does not make up the extent of the dimension.
    """
    shape = input.window.shape
    place = dim_of(dim, len(shape))
    if not sizes:
        raise TensorError("unflatten: sizes must be non-empty", [site_fact(call_site())])
    inner = _resolved(shape[place : place + 1], tuple(sizes))
    return view(input, *shape[:place], *inner, *shape[place + 1 :])


def squeeze(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Returns a view without dimensions of extent 1: all of them, or those in `dim`.

    Raises:
        TensorError: If a dimension is named twice.
    """
    old = input.window
    rank = len(old.shape)
    if dim is None:
        places = set(range(rank))
    else:
        named = [dim] if isinstance(dim, int) else dim
        places = {dim_of(each, rank) for each in named}
        if len(places) < len(named):
            raise TensorError(
                f"squeeze: a dim appears multiple times in the list of dims {list(named)}",
                [site_fact(call_site())],
            )
    kept = [place for place in range(rank) if place not in places or old.shape[place] != 1]
    return _picked(input, kept)


def _picked(input: Tensor, dims: Sequence[int]) -> Tensor:
    """Returns a view with these dimensions, in this order; others must have extent 1."""
    old = input.window
    shape, strides = [old.shape[dim] for dim in dims], [old.strides[dim] for dim in dims]
    return tape.view(input, shape, strides, old.offset, "permute", (_picked, tuple(dims)))


def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """Returns a view with a new dimension of extent 1 at place `dim`."""
    old = input.window
    place = dim_of(dim, len(old.shape) + 1)
    step = old.shape[place] * old.strides[place] if place < len(old.shape) else 1
    shape = (*old.shape[:place], 1, *old.shape[place:])
    strides = (*old.strides[:place], step, *old.strides[place:])
    return tape.view(input, shape, strides, old.offset, "unsqueeze", (unsqueeze, place))


def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Returns a view with two dimensions exchanged, as `torch.transpose`.

    Args:
        dim1: The other dimension.
    """
    rank = len(input.window.shape)
    a, b = dim_of(dim0, rank), dim_of(dim1, rank)
    dims = list(range(rank))
    if rank:
        dims[a], dims[b] = b, a
    return _picked(input, dims)


def swapaxes(input: Tensor, axis0: int, axis1: int) -> Tensor:
    """Returns a view with two dimensions exchanged, as `torch.swapaxes`.

    Args:
        axis1: The other dimension.
    """
    return transpose(input, axis0, axis1)


def t(input: Tensor) -> Tensor:
    """Returns the transpose of a matrix; a tensor with fewer dimensions is returned unchanged.

    Raises:
        TensorError: If the tensor has more than two dimensions.
    """
    rank = len(input.window.shape)
    if rank > 2:
        raise TensorError(
            f"t() expects a tensor with <= 2 dimensions, but self is {rank}D",
            [site_fact(call_site())],
        )
    return turned(input)


def turned(self: Tensor) -> Tensor:
    """Returns a view with the dimensions in reverse order."""
    return _picked(self, range(len(self.window.shape))[::-1])


def matrix_transpose(self: Tensor) -> Tensor:
    """Returns a view with the last two dimensions exchanged.

    Raises:
        TensorError: If the tensor has fewer than two dimensions.
    """
    if len(self.window.shape) < 2:
        raise TensorError(
            "tensor.mT is only supported on matrices or batches of matrices. "
            f"Got {len(self.window.shape)}-D tensor.",
            [site_fact(call_site())],
        )
    return transpose(self, -2, -1)


def permute(
    input: Tensor, *order: int | Sequence[int], dims: Sequence[int] | None = None
) -> Tensor:
    """Returns a view with the dimensions in another order, as `torch.permute`.

    Args:
        *order: All dimensions in their new order, one by one or as one sequence.
        dims: The order, instead of `order`.
    """
    order = one_way(order, dims)
    return _picked(input, _order(len(input.window.shape), ints_of(order)))


@cached("operations.order")
def _order(rank: int, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Returns an order of dimensions with negative numbers replaced."""
    places = tuple([dim_of(dim, rank) for dim in dims])
    if len(places) != rank:
        raise TensorError(
            f"permute(): {rank} dimensions need an order of {rank}, got {len(places)}",
            [site_fact(call_site())],
        )
    if len(set(places)) != rank:
        raise TensorError("permute(): duplicate dims are not allowed.", [site_fact(call_site())])
    return places


def movedim(input: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Returns a view with dimensions moved to other places, as `torch.movedim`.

    Args:
        source: The dimension, or several.
        destination: Its place in the view; as many places as dimensions.

    Raises:
        TensorError: If there are not as many places as dimensions, or one is named twice.
    """
    rank = len(input.window.shape)
    origins, places = (
        [dim_of(each, rank) for each in ([dims] if isinstance(dims, int) else dims)]
        for dims in (source, destination)
    )
    if len(origins) != len(places) or any(len(set(d)) < len(d) for d in (origins, places)):
        raise TensorError(
            "movedim: expected as many places as dimensions, and none of them twice; got "
            f"source {source} and destination {destination}",
            [site_fact(call_site())],
        )
    moves = sorted(zip(places, origins, strict=True)) if rank else []
    dims = [dim for dim in range(rank) if dim not in origins]
    for place, origin in moves:
        dims.insert(place, origin)
    return _picked(input, dims)


def expand(self: Tensor, *sizes: int | Sequence[int], size: Sequence[int] | None = None) -> Tensor:
    """Returns a view in which dimensions of extent 1 are repeated without a copy.

    Args:
        *sizes: Extents of the view, one by one or as one sequence; -1 keeps an extent.
        size: Extents, instead of `sizes`.

    Raises:
        TensorError: If an extent other than 1 would change, or there are too few extents.
    """
    old, wanted = self.window, ints_of(one_way(sizes, size))
    missing = len(wanted) - len(old.shape)
    if missing < 0:
        raise TensorError(
            f"expand: the number of sizes provided ({len(wanted)}) must be greater or equal to "
            f"the number of dimensions in the tensor ({len(old.shape)})",
            [site_fact(call_site())],
        )
    shape, strides = [], []
    for place, extent in enumerate(wanted):
        n, step = (
            (1, 0)
            if place < missing
            else (old.shape[place - missing], old.strides[place - missing])
        )
        length = n if extent == -1 and place >= missing else extent
        if length < 0:
            raise TensorError(
                f"The expanded size of the tensor ({length}) isn't allowed in a leading, "
                f"non-existing dimension {place}",
                [site_fact(call_site())],
            )
        if n not in {1, length}:
            raise TensorError(
                f"The expanded size of the tensor ({length}) must match the existing size ({n}) at "
                f"non-singleton dimension {place}.",
                [
                    site_fact(call_site()),
                    f"Target sizes: {list(wanted)}.  Tensor sizes: {list(old.shape)}",
                ],
            )
        shape.append(length)
        strides.append(step if n == length else 0)
    return tape.view(self, shape, strides, old.offset, "expand", (expand, tuple(shape)))


def expand_as(self: Tensor, other: Tensor) -> Tensor:
    """Returns a view expanded to the shape of another tensor."""
    return expand(self, other.window.shape)


def broadcast_to(input: Tensor, size: Sequence[int]) -> Tensor:
    """Returns a view expanded to a shape."""
    return expand(input, size)


def _check_dimensioned(name: str, tensor: Tensor) -> None:
    if not tensor.window.shape:
        raise TensorError(
            f"{name}() cannot be applied to a 0-dim tensor.", [site_fact(call_site())]
        )


def narrow(input: Tensor, dim: int, start: int, length: int) -> Tensor:
    """Returns a view of a range of a dimension, as `torch.narrow`.

    Args:
        start: First index of the range; negative numbers count from the end.
        length: Extent of the range.

    Raises:
        TensorError: If the range exceeds the dimension, or the tensor has no dimension.
    """
    old = input.window
    _check_dimensioned("narrow", input)
    place = dim_of(dim, len(old.shape))
    extent = old.shape[place]
    begin = start + extent if start < 0 else start
    if length < 0 or not 0 <= begin <= extent or begin + length > extent:
        raise TensorError(
            f"start ({start}) + length ({length}) exceeds dimension size ({extent}).",
            [site_fact(call_site())],
        )
    shape = (*old.shape[:place], length, *old.shape[place + 1 :])
    first = old.offset + begin * old.strides[place]
    return tape.view(input, shape, old.strides, first, "slice", (narrow, place, begin, length))


def select(input: Tensor, dim: int, index: int) -> Tensor:
    """Returns a view at one index of a dimension, without that dimension, as `torch.select`.

    Args:
        index: The index; negative numbers count from the end.

    Raises:
        DimensionError: If the index is out of range, or the tensor has no dimension.
    """
    old = input.window
    if not old.shape:
        raise DimensionError(
            "select() cannot be applied to a 0-dim tensor.", [site_fact(call_site())]
        )
    place = dim_of(dim, len(old.shape))
    extent = old.shape[place]
    if not -extent <= index < extent:
        raise DimensionError(
            f"select(): index {index} out of range for tensor of size {list(old.shape)} at "
            f"dimension {place}",
            [site_fact(call_site())],
        )
    shape = old.shape[:place] + old.shape[place + 1 :]
    strides = old.strides[:place] + old.strides[place + 1 :]
    first = old.offset + index % extent * old.strides[place]
    return tape.view(input, shape, strides, first, "select", (select, place, index))


def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Returns a view for each index of a dimension, without that dimension.

    Raises:
        DimensionError: If there is no such dimension, as in a 0-d tensor.
    """
    place = dim_of(dim, len(input.window.shape))
    if not input.window.shape:
        raise DimensionError(
            f"Dimension specified as {place} but tensor has no dimensions", [site_fact(call_site())]
        )
    old = input.window
    shape = old.shape[:place] + old.shape[place + 1 :]
    strides = old.strides[:place] + old.strides[place + 1 :]
    rows = [
        (shape, strides, old.offset + index * old.strides[place], (select, place, index))
        for index in range(old.shape[place])
    ]
    return tape.views(input, rows, "unbind", {"dim": place})


def split(
    tensor: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0
) -> tuple[Tensor, ...]:
    """Returns views of the pieces of a dimension, as `torch.split`.

    Args:
        split_size_or_sections: Extent of each piece, the last of which may be smaller; or a list of
            all extents.

    Raises:
        TensorError: If the extents do not add up to that of the dimension, or are not valid, or the
            tensor has no dimension.
    """
    _check_dimensioned("split", tensor)
    place = dim_of(dim, len(tensor.window.shape))
    extent = tensor.window.shape[place]
    if isinstance(split_size_or_sections, int):
        step = split_size_or_sections
        if step < 0 or (step == 0 and extent):
            raise TensorError(
                f"split_size can only be 0 if dimension size is 0, but got {step} for a dimension "
                f"of {extent}",
                [site_fact(call_site())],
            )
        sizes = [min(step, extent - start) for start in range(0, extent, step or 1)] or [0]
    else:
        sizes = list(split_size_or_sections)
        if sum(sizes) != extent or min(sizes, default=0) < 0:
            raise TensorError(
                f"split_with_sizes expects split_sizes to sum exactly to {extent} (input tensor's "
                f"size at dimension {place}), but got split_sizes={sizes}",
                [site_fact(call_site())],
            )
    name = "split" if isinstance(split_size_or_sections, int) else "split_with_sizes"
    old, pieces, start = tensor.window, [], 0
    for length in sizes:
        shape = (*old.shape[:place], length, *old.shape[place + 1 :])
        first = old.offset + start * old.strides[place]
        pieces.append((shape, old.strides, first, (narrow, place, start, length)))
        start += length
    return tape.views(tensor, pieces, name, {"dim": place, "sizes": tuple(sizes)})


def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Returns at most `chunks` views of equal pieces of a dimension, as `torch.chunk`.

    Args:
        chunks: Largest number of pieces; the last piece may be smaller.

    Raises:
        TensorError: If `chunks` is not positive, or the tensor has no dimension.
    """
    _check_dimensioned("chunk", input)
    if chunks <= 0:
        raise TensorError(
            f"chunk expects `chunks` to be greater than 0, got: {chunks}", [site_fact(call_site())]
        )
    place = dim_of(dim, len(input.window.shape))
    extent = input.window.shape[place]
    return split(input, -(-extent // chunks) if extent else [0] * chunks, place)


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Returns a view of a diagonal, which becomes the last dimension, as `torch.diagonal`.

    Args:
        offset: Distance of the diagonal from the main one; above it if positive.
        dim1: Dimension of the rows.
        dim2: Dimension of the columns.

    Raises:
        TensorError: If both dimensions are the same.
    """
    old = input.window
    a, b = dim_of(dim1, len(old.shape)), dim_of(dim2, len(old.shape))
    if a == b:
        raise TensorError("diagonal dimensions cannot be identical", [site_fact(call_site())])
    length = max(min(old.shape[a] + min(offset, 0), old.shape[b] - max(offset, 0)), 0)
    begin = max(-offset, 0) * old.strides[a] + max(offset, 0) * old.strides[b] if length else 0
    rest = [dim for dim in range(len(old.shape)) if dim not in {a, b}]
    shape = [*(old.shape[dim] for dim in rest), length]
    strides = [*(old.strides[dim] for dim in rest), old.strides[a] + old.strides[b]]
    step = (diagonal, offset, a, b)
    return tape.view(input, shape, strides, old.offset + begin, "diagonal", step)
