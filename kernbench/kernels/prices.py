"""What a kernel costs by its name: which family it is of."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final, NamedTuple

from kernbench.hw.library import Library
from kernbench.kernels import copies, indexing, losses, norms, pointwise, rows
from kernbench.kernels.names import FILLS
from kernbench.kernels.operands import Layout, Operand, numel, row_major
from kernbench.kernels.several import SEVERAL
from kernbench.kernels.traffic import streamed_ps

Operands = Sequence[Operand]


class Price(NamedTuple):
    """Which family a kernel is of, and what the family has to know beside the operands.

    Two prices that are equal say the same of equal operands, so that answers can be kept.

    Attributes:
        family: Returns the picoseconds, from the library of a device, what the kernel reads and
            writes there, and `detail`.
        detail: Name of the kernel, dimensions, or bytes.
    """

    family: Callable[[Library, Sequence[Operand], Sequence[Operand], Any], int]
    detail: Any = None


def of_bytes(nbytes: int) -> Price:
    """Returns the price of a kernel whose traffic is known.

    Args:
        nbytes: Bytes that it reads and writes.
    """
    return Price(_bytes, nbytes)


def of_sum(axes: Sequence[int]) -> Price:
    """Returns the price of a reduction.

    Args:
        axes: Dimensions that are reduced; empty for all.
    """
    return Price(_sum, tuple(axes))


def of_scatter(name: str, shape: Sequence[int]) -> Price:
    """Returns the price of writing elements of a tensor in place.

    Args:
        name: Name of the operator, such as `scatter_add_`.
        shape: Shape of what is written.
    """
    return Price(_scatter, (indexing.kernel_of(name), prod(shape)))


def of_part(shape: Sequence[int], strides: Sequence[int]) -> Price:
    """Returns the price of writing a tensor into a part of zeros.

    Args:
        shape: Shape of the part.
        strides: Its steps in the whole.
    """
    return Price(_part, (tuple(shape), tuple(strides)))


def of_added(name: str) -> Price:
    """Returns the price of adding a gradient to places of zeros.

    Args:
        name: Name of the operator that adds, such as `index_add`.
    """
    return Price(_sorted_sum) if "index_put" in name else Price(_added, indexing.kernel_of(name))


def of_roll(shifts: Sequence[int]) -> Price:
    """Returns the price of shifting elements cyclically.

    Args:
        shifts: How far, one for each dimension.
    """
    return Price(_roll, len(shifts))


def of_interleaved(dim: int | None) -> Price:
    """Returns the price of `repeat_interleave` with a number.

    Args:
        dim: The dimension; None for all elements.
    """
    return Price(_interleaved, dim)


def of_look_up(name: str) -> Price:
    """Returns the price of reading elements whose places other operands give.

    Args:
        name: Name of the operator, such as `index_select`.
    """
    return Price(_select if name == "index_select" else _gather)


def _pointwise(library: Library, reads: Operands, writes: Operands, kernel: str) -> int:
    return pointwise.duration_ps(library, kernel, reads, writes)


def _in_turn(library: Library, reads: Operands, writes: Operands, kernels: tuple[int, ...]) -> int:
    return sum(
        [pointwise.duration_ps(library, "pointwise", reads[-count:], writes) for count in kernels]
    )


def _leading(library: Library, reads: Operands, writes: Operands, count: int) -> int:
    """The kernels for a CPU have a buffer besides, which those of CUDA do not touch."""
    return pointwise.duration_ps(library, "pointwise", reads[:count], writes[:1])


def _loss(library: Library, reads: Operands, writes: Operands, kernels: tuple[int, ...]) -> int:
    return losses.loss_ps(library, reads, writes, (*kernels, *[2] * (len(reads) - 2)))


def _repeat(library: Library, reads: Operands, writes: Operands, _: None) -> int:
    return copies.repeated_ps(library, reads[0], writes[0])


def _interleaved(library: Library, reads: Operands, writes: Operands, dim: int | None) -> int:
    return copies.interleaved_ps(library, reads[0], writes[0], dim)


def _roll(library: Library, reads: Operands, writes: Operands, times: int) -> int:
    return copies.rolled_ps(library, reads[0], writes[0], times)


def _pad(library: Library, reads: Operands, writes: Operands, _: None) -> int:
    return copies.padded_ps(library, reads[0], writes[0])


def _part(library: Library, reads: Operands, writes: Operands, lies: tuple[Any, Any]) -> int:
    part = Layout(*lies, writes[0].dtype)
    return copies.placed_ps(library, reads[0], part, writes[0])


def _safe_softmax(library: Library, reads: Operands, writes: Operands, _: None) -> int:
    return rows.safe_softmax_ps(library, reads[0], writes[0])


def _sorted_sum(library: Library, reads: Operands, writes: Operands, _: None) -> int:
    return indexing.accumulate_ps(library, writes[0], reads[1:], reads[0])


def _rows(library: Library, reads: Operands, writes: Operands, kernel: str) -> int:
    return rows.duration_ps(library, kernel, reads, writes)


def _layer_norm(library: Library, reads: Operands, writes: Operands, _: None) -> int:
    return norms.layer_norm_ps(library, (*reads, *writes), reads[0], reads[0].shape[-1])


def _layer_norm_backward(library: Library, reads: Operands, writes: Operands, _: None) -> int:
    columns = reads[1].shape[-1]
    moved, weights = (*reads, *writes), len(writes) > 1
    return norms.layer_norm_backward_ps(library, moved, reads[1], columns, weights=weights)


def _ungrouped(given: Operand) -> Layout:
    """Returns an image `[batch, groups, channels of a group, *extents]` without its groups."""
    batch, groups, channels, *extents = given.shape
    shape = (batch, groups * channels, *extents)
    return row_major(Layout(shape, shape, given.dtype))


def _group_norm(library: Library, reads: Operands, writes: Operands, _: None) -> int:
    del writes
    return norms.group_norm_ps(library, _ungrouped(reads[0]), reads[0].shape[1])


def _group_norm_backward(library: Library, reads: Operands, writes: Operands, _: None) -> int:
    given = _ungrouped(reads[1])
    return norms.group_norm_backward_ps(library, given, weights=len(writes) > 1)


def _batch_norm(library: Library, reads: Operands, writes: Operands, training: bool) -> int:
    del writes
    return norms.batch_norm_ps(library, reads[0], training=training)


def _batch_norm_backward(library: Library, reads: Operands, writes: Operands, _: None) -> int:
    del writes
    return norms.batch_norm_backward_ps(library, reads[1])


def _bytes(library: Library, reads: Operands, writes: Operands, nbytes: int) -> int:
    del reads
    operations = sum(map(numel, writes))
    return streamed_ps(library, library.kernel("pointwise"), nbytes, operations)


def _sum(library: Library, reads: Operands, writes: Operands, axes: tuple[int, ...]) -> int:
    return rows.sum_ps(library, reads[0], axes, writes)


def _fill(library: Library, reads: Operands, writes: Operands, kernel: str) -> int:
    del reads
    return pointwise.fill_ps(library, kernel, writes)


def _copy(library: Library, reads: Operands, writes: Operands, _: None) -> int:
    return copies.duration_ps(library, reads[0], writes[0])


def _pieces(library: Library, reads: Operands, writes: Operands, kernel: str) -> int:
    return copies.streamed_copy_ps(library, kernel, reads, writes)


def _sort(library: Library, reads: Operands, writes: Operands, _: None) -> int:
    return indexing.sort_ps(library, reads[0], writes)


def _top(library: Library, reads: Operands, writes: Operands, _: None) -> int:
    return indexing.top_ps(library, reads[0], writes)


def _gather(library: Library, reads: Operands, writes: Operands, _: None) -> int:
    return indexing.gather_ps(library, reads[1:], writes)


def _embedding(library: Library, reads: Operands, writes: Operands, _: None) -> int:
    return indexing.embedding_ps(library, reads[-1], writes[0])


def _embedding_backward(library: Library, reads: Operands, writes: Operands, _: None) -> int:
    return indexing.embedding_backward_ps(library, reads[0], reads[1], writes[0])


def _select(library: Library, reads: Operands, writes: Operands, _: None) -> int:
    return indexing.select_ps(library, reads[1], writes[0])


def _scatter(library: Library, reads: Operands, writes: Operands, what: tuple[str, int]) -> int:
    kernel, count = what
    return indexing.scatter_ps(library, writes[0], reads, count=count, kernel=kernel)


def _added(library: Library, reads: Operands, writes: Operands, kernel: str) -> int:
    return indexing.scatter_ps(library, writes[0], reads, kernel=kernel)


def _nll(library: Library, reads: Operands, writes: Operands, _: None) -> int:
    del writes
    return rows.nll_ps(library, reads[0], reads[1])


def _nll_backward(library: Library, reads: Operands, writes: Operands, _: None) -> int:
    return indexing.nll_backward_ps(library, reads[-1], writes[0])


POINTWISE: Final = Price(_pointwise, "pointwise")

WITH_STATISTICS: Final = Price(_batch_norm, False)
"""A batch norm with the statistics that it is given."""

PLACES_FOUND: Final = ("argmax", "argmin", "max", "min", "median", "mode")
"""Operators that find where a value is."""

ROWS: Final = {
    "_softmax": "softmax",
    "_softmax_backward_data": "softmax_backward",
    "_log_softmax": "log_softmax",
    "_log_softmax_backward_data": "log_softmax_backward",
    "_fused_rms_norm": "rms_norm",
    "_fused_rms_norm_backward": "rms_norm_backward",
    "batch_norm_elemt": "batch_norm_elements",
    "batch_norm_backward_reduce": "batch_norm_elements",
    "batch_norm_backward_elemt": "batch_norm_elements",
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"), "scan"),
    **dict.fromkeys(PLACES_FOUND, "arg_extreme"),
}
"""Operators that go through rows, with the kernel of machines' files."""

PRICES: Final[dict[str, Price]] = {
    **{
        name: Price(_pointwise, name) for name in ("gelu", "gelu_backward", "silu", "silu_backward")
    },
    **{name: Price(_in_turn, kernels) for name, kernels in SEVERAL.items()},
    "native_dropout": Price(_pointwise, "dropout"),
    "log_sigmoid_forward": Price(_leading, 1),
    "log_sigmoid_backward": Price(_leading, 2),
    **dict.fromkeys(
        ("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"), Price(_loss, (2,))
    ),
    "soft_margin_loss": Price(_loss, (1, 2, 1, 1)),
    "binary_cross_entropy_with_logits": Price(_loss, (1, 1, 2, 2)),
    "_safe_softmax": Price(_safe_softmax),
    **{
        f"{kind}_pad{rank}d{way}": Price(_pointwise, "reflected")
        for kind in ("reflection", "replication")
        for rank in (1, 2, 3)
        for way in ("", "_backward")
    },
    "repeat": Price(_repeat),
    "roll": Price(_roll, 1),
    **dict.fromkeys(("_prelu_kernel", "_prelu_kernel_backward"), Price(_pointwise, "prelu")),
    "constant_pad_nd": Price(_pad),
    **{name: Price(_fill, kernel) for name, kernel in FILLS.items()},
    "randperm": Price(_fill, "uniform"),
    **dict.fromkeys(("copy_", "clone", "to", "contiguous", "_to_copy"), Price(_copy)),
    **dict.fromkeys(("cat", "stack"), Price(_pieces, "cat")),
    **{name: Price(_rows, kernel) for name, kernel in ROWS.items()},
    "native_layer_norm": Price(_layer_norm),
    "native_layer_norm_backward": Price(_layer_norm_backward),
    "native_group_norm": Price(_group_norm),
    "native_group_norm_backward": Price(_group_norm_backward),
    "native_batch_norm": Price(_batch_norm, True),
    "native_batch_norm_backward": Price(_batch_norm_backward),
    **dict.fromkeys(("sort", "argsort"), Price(_sort)),
    "topk": Price(_top),
    "index": Price(_gather),
    "embedding": Price(_embedding),
    "embedding_dense_backward": Price(_embedding_backward),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), Price(_nll)),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), Price(_nll_backward)),
}
"""Prices by the name of the kernel, without `aten::` and, in place, without `_`; all others are
elementwise."""


def priced(
    library: Library,
    name: str,
    price: Price | None,
    reads: Sequence[Operand],
    writes: Sequence[Operand],
) -> int:
    """Returns the picoseconds of an operation; answers are kept.

    Args:
        name: Name of the kernel, such as `aten::mul`.
        price: Its price; None for that of its name.
        reads: What it reads on the device.
        writes: What it writes.
    """
    key: list[Any] = [name if price is None else price]
    for operand in reads:
        key += (operand.shape, operand.strides, operand.dtype)
    for operand in writes:
        key += (operand.shape, operand.strides, operand.dtype)
    signature = tuple(key)
    found = library.priced.get(signature)
    if found is None:
        operator = name.rpartition("::")[2]
        named = PRICES.get(operator) or PRICES.get(operator.removesuffix("_"), POINTWISE)
        family, detail = price or named
        found = library.priced.keep(signature, family(library, reads, writes, detail))
    return found
