"""Convolutions, as cuDNN and PyTorch compute them.

Three kinds of kernels, each for the result and for both gradients:

- Products of matrices whose operands are found as they are multiplied (implicit GEMM). They want
  the channels closest: images that lie otherwise are changed before and after.
- Windows of one element: plain products, also of images that lie row after row, as long as a plane
  begins where the memory can be read in whole vectors.
- One channel a group (depthwise): the MATH engines add up each window.
"""

from math import prod
from typing import Final, Literal, NamedTuple

from kernbench.hw.library import Library
from kernbench.kernels import copies, pointwise, products, rows
from kernbench.kernels.operands import (
    Layout,
    Operand,
    bytes_of,
    channels_last,
    is_channels_last,
    numel,
    row_major,
    total_bytes,
)
from kernbench.kernels.products import Sizes
from kernbench.kernels.traffic import streamed_ps
from kernbench.topology.spec import KernelSpec

Direction = Literal["forward", "data", "weight"]

_VECTOR: Final = 8
"""Channels of a vector: fewer are padded to so many."""

_BLOCK: Final = 32
"""Channels that groups are multiplied in, several at once if they have fewer."""

_WHOLE: Final = 64
"""Elements of a window from which on no kernel divides the sum: gradients of gradients have windows
as large as images."""

_OF_VOLUMES: Final = 5
"""Dimensions of the weight of a convolution of volumes."""

_ALIGNED: Final = 16
"""Bytes at which planes begin that plain products read."""


class Convolution(NamedTuple):
    """A convolution, or the transposed one that computes its data gradient.

    Attributes:
        image: What the window goes over, `[batch, channels, *extents]`; of a transposed one, its
            result.
        weight: `[channels of the result, channels of a group, *window]`.
        result: What each window becomes; of a transposed one, its input.
        stride: Steps of the window.
        groups: Into how many groups the channels are divided.
        tf32: Whether float32 may be multiplied as TF32.
        transposed: Whether it is a transposed one.
    """

    image: Operand
    weight: Operand
    result: Operand
    stride: tuple[int, ...]
    groups: int
    tf32: bool
    transposed: bool = False

    @property
    def read(self) -> Operand:
        """Its input."""
        return self.result if self.transposed else self.image

    @property
    def written(self) -> Operand:
        """What it computes."""
        return self.image if self.transposed else self.result


def forward_ps(library: Library, given: Convolution, bias: Operand | None = None) -> int:
    """Returns the picoseconds of a convolution, with the copies that it makes, and the bias.

    Args:
        bias: Its bias, which another kernel adds.
    """
    found = _copied(library, given, (given.read, given.weight))
    found += _kernel_ps(library, given, "data" if given.transposed else "forward")
    if bias is not None:
        written = given.written
        steps = [0] * len(written.shape)
        steps[1] = 1
        row = Layout(tuple(written.shape), tuple(steps), bias.dtype)
        found += pointwise.duration_ps(library, "pointwise", [written, row], [written])
    return found


def backward_ps(
    library: Library,
    given: Convolution,
    *,
    data: bool = True,
    weight: bool = True,
    bias: Operand | None = None,
) -> int:
    """Returns the picoseconds of a convolution's gradients.

    Args:
        data: Whether the gradient of its input is wanted.
        weight: Whether the gradient of its weight is wanted.
        bias: Gradient of its bias; None if nobody wants it.
    """
    grad, found = given.written, 0
    if data or weight:
        wanted = [grad, *([given.weight] if data else []), *([given.read] if weight else [])]
        found += _copied(library, given, wanted)
    if data:
        found += _kernel_ps(library, given, "forward" if given.transposed else "data")
    if weight:
        found += _kernel_ps(library, given, "weight")
    if bias is not None:
        if is_channels_last(grad):
            places = (numel(grad) // max(1, grad.shape[1]), grad.shape[1])
            grad = row_major(Layout(places, places, grad.dtype))
        axes = [axis for axis in range(len(grad.shape)) if axis != 1]
        found += rows.sum_ps(library, grad, axes, [bias])
    return found


def _lies_last(given: Convolution) -> bool:
    return is_channels_last(given.read) or is_channels_last(given.weight)


def _copied(
    library: Library, given: Convolution, reads: tuple[Operand, ...] | list[Operand]
) -> int:
    """Returns the picoseconds of bringing operands into the format of the convolution."""
    last, found = _lies_last(given), 0
    for operand in reads:
        wanted = channels_last(operand) if last else row_major(operand)
        if _steps(operand) != _steps(wanted):
            found += copies.duration_ps(library, operand, wanted)
    return found


def _steps(operand: Operand) -> list[int]:
    pairs = zip(operand.shape, operand.strides, strict=True)
    return [stride for size, stride in pairs if size > 1]


def _kernel_ps(library: Library, given: Convolution, direction: Direction) -> int:
    image, weight, result = given.image, given.weight, given.result
    if not (numel(image) and numel(weight) and numel(result)):
        return library.elementwise(0, 0)
    if given.groups > 1 and given.groups == image.shape[1]:
        return _depthwise(library, given, direction)
    name = _type(library, given)
    if not library.multiplies(name):
        return products.duration_ps(library, None, _sizes(given, direction), _moved(given))
    found = _multiplied(library, given, direction, name)
    if direction == "forward" and prod(weight.shape[2:]) >= _WHOLE:
        price, summed = library.kernel("convolution_undivided"), _sizes(given, direction).k
        found = max(found, library.elementwise(0, price.alone * library.num_pes * summed))
    return found


def _type(library: Library, given: Convolution) -> str:
    name = given.image.dtype.machine_name
    return "tf32" if given.tf32 and name == "fp32" and library.multiplies("tf32") else name


def _moved(given: Convolution) -> int:
    return total_bytes((given.image, given.weight, given.result))


def _sizes(given: Convolution, direction: Direction, *, least: int = 1, block: int = 1) -> Sizes:
    """Returns what is multiplied.

    Args:
        direction: Its result, or which gradient.
        least: Channels to which fewer are padded.
        block: Channels in which groups of fewer are multiplied together.
    """
    image, weight, result, groups = given.image, given.weight, given.result, given.groups
    taps = prod(weight.shape[2:])
    channels, outs = image.shape[1] // groups, result.shape[1] // groups
    together = max(1, min(groups, block // max(1, channels)))
    batch, channels, outs = -(-groups // together), channels * together, outs * together
    channels, outs = max(channels, least), max(outs, least)
    places = numel(result) // result.shape[1]
    if direction == "forward":
        return Sizes(batch, places, outs, channels * taps)
    if direction == "weight":
        return Sizes(batch, outs, channels * taps, places)
    pixels = numel(image) // image.shape[1]
    return Sizes(batch, pixels, channels, -(-outs * taps // prod(given.stride)))


def _multiplied(library: Library, given: Convolution, direction: Direction, name: str) -> int:
    image, weight, result = given.image, given.weight, given.result
    window, last = prod(weight.shape[2:]), _lies_last(given)
    changes = library.has("convolution_layout") and name not in {"fp32", "fp64"}
    if not changes:
        return _product(library, given, direction, name, library.kernel(_kernel(given, direction)))
    if given.groups > 1:
        of_weight = direction == "weight"
        price = library.kernel("convolution_grouped_weight" if of_weight else "convolution_grouped")
        sizes = _sizes(given, direction, block=_BLOCK)
    elif min(image.shape[1], result.shape[1]) < _VECTOR:
        return _few(library, given, direction, name, last=last)
    elif window == 1 and prod(given.stride) == 1:
        kernel = _point(image, direction, name, last=last)
        if kernel:
            price = library.kernel(kernel)
            found = _product(library, given, direction, name, price)
            return found + library.elementwise(0, 0) if direction == "weight" else found
        price, sizes = library.kernel(_kernel(given, direction)), _sizes(given, direction)
    else:
        of_tf32 = direction == "weight" and name == "tf32"
        kernel = "convolution_weight_tf32" if of_tf32 else _kernel(given, direction)
        if len(weight.shape) == _OF_VOLUMES:
            kernel = kernel.replace("convolution", "convolution_volume").replace("strided_", "")
        price, sizes = library.kernel(kernel), _sizes(given, direction)
    found = _product(library, given, direction, name, price, sizes)
    return found if last else found + _changed(library, given)


def _kernel(given: Convolution, direction: Direction) -> str:
    if direction == "data" and prod(given.stride) > 1:
        return "convolution_strided_data"
    return "convolution" if direction == "forward" else f"convolution_{direction}"


def _point(image: Operand, direction: Direction, name: str, *, last: bool) -> str:
    """Returns the kernel of windows of one element; nothing if it is that of larger ones."""
    plane = prod(image.shape[2:]) * image.dtype.itemsize
    if name == "tf32":
        return "convolution_point_tf32" if last or plane % (_ALIGNED // 2) == 0 else ""
    if last or plane % _ALIGNED == 0:
        return "convolution_point"
    return "convolution_point_odd" if direction != "weight" and plane % 4 == 0 else ""


def _product(
    library: Library,
    given: Convolution,
    direction: Direction,
    name: str,
    price: KernelSpec,
    sizes: Sizes | None = None,
) -> int:
    engines = library.tiled(name, *(sizes or _sizes(given, direction)), price)
    traffic = streamed_ps(library, library.kernel("convolution_traffic"), _moved(given))
    launch: int = library.elementwise(0, 0)
    return launch * max(1, price.launches) + max(engines, traffic - launch)


def _changed(library: Library, given: Convolution) -> int:
    """Returns the picoseconds of changing how image, result and weight lie."""
    price = library.kernel("convolution_layout")
    found = sum(
        streamed_ps(library, price, 2 * bytes_of(each)) for each in (given.image, given.result)
    )
    if prod(given.weight.shape[2:]) == 1:
        return found
    price = library.kernel("convolution_weight_layout")
    return found + streamed_ps(library, price, 2 * bytes_of(given.weight))


def _few(
    library: Library, given: Convolution, direction: Direction, name: str, *, last: bool
) -> int:
    """Few channels are padded, or the MATH engines multiply them, whichever is faster."""
    price = library.kernel("convolution_few_tf32" if name == "tf32" else "convolution_few")
    sizes = _sizes(given, direction, least=_VECTOR)
    found = _product(library, given, direction, name, price, sizes)
    for each in (given.image, given.result):
        few = each.shape[1] < _VECTOR
        padded = bytes_of(each) * _VECTOR // each.shape[1] if few else bytes_of(each)
        if few or not last:
            kernel = "convolution_padding" if few and not last else "convolution_layout"
            found += streamed_ps(library, library.kernel(kernel), bytes_of(each) + padded)
    direct = library.kernel("convolution_direct")
    plain = _sizes(given, "forward")
    work = direct.element * plain.m * plain.n * plain.k
    return min(found, streamed_ps(library, direct, _moved(given), work))


def _depthwise(library: Library, given: Convolution, direction: Direction) -> int:
    """Each result element adds its window: `element` operations for each place of it, and `row`.

    The weight's gradient of images row after row is a block for each channel and place of the
    window, which reads whole planes: `row` for the block, and planes of less than `beyond`
    elements take as long as larger ones (PyTorch's conv_depthwise2d_grad_weight_kernel).
    """
    last = _lies_last(given)
    kernel = "depthwise_last" if last else "depthwise"
    kernel = kernel if direction == "forward" else f"{kernel}_{direction}"
    wide = last and given.image.dtype.itemsize > 2
    price = library.kernel(f"{kernel}_float32" if wide else kernel)
    taps = prod(given.weight.shape[2:])
    if direction == "weight" and not last:
        planes = given.result.shape[0] * given.result.shape[1]
        plane = max(prod(given.result.shape[2:]), price.beyond)
        work = taps * (price.element * planes * plane + price.row * given.result.shape[1])
    else:
        count = numel(given.image if direction == "data" else given.result)
        work = count * (price.element * taps + price.row)
    return streamed_ps(library, price, _moved(given), work)
