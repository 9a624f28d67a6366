"""Pools of images, and images of another size."""

from math import isqrt, prod
from typing import Final

from kernbench.hw.library import Library
from kernbench.kernels import copies, pointwise
from kernbench.kernels.operands import Operand, bytes_of, is_channels_last, numel, total_bytes
from kernbench.kernels.traffic import streamed_ps

_WIDE: Final = 4
"""Bytes of a number that CUDA adds to memory in one operation of its own."""

_LANES: Final = 32
"""Threads of a warp."""

_MOST_AT_ONCE: Final = 192
"""Warps that come to one place, of which more take no longer. Measured: h200_spatial.csv."""

_NEAR: Final = 64
"""Bytes that the memory moves for an element of an image that becomes smaller: two sectors."""


def pool_ps(library: Library, kernel: str, given: Operand, out: Operand, window: int) -> int:
    """Returns the picoseconds of a pool: a thread for each element of the result.

    Args:
        kernel: `max_pool` or `avg_pool`.
        given: Its input.
        out: Its result.
        window: Elements of a window.
    """
    price = library.kernel(f"{kernel}_last" if is_channels_last(given) else kernel)
    work = numel(out) * (price.element * window + price.row)
    return streamed_ps(library, price, total_bytes((given, out)), work)


def pool_backward_ps(
    library: Library, kernel: str, grad: Operand, out: Operand, window: int
) -> int:
    """Returns the picoseconds of a pool's gradient: a thread for each element of the input.

    It looks at all windows that hold its element.

    Args:
        kernel: `max_pool` or `avg_pool`.
        grad: Gradient of the result.
        out: Gradient of the input.
        window: Elements of a window.
    """
    kernel = f"{kernel}_last" if is_channels_last(grad) else kernel
    price = library.kernel(f"{kernel}_backward")
    found = pointwise.fill_ps(library, "fill", [out]) if kernel.startswith("max") else 0
    work = numel(grad) * price.element * window + numel(out) * price.row
    return found + streamed_ps(library, price, total_bytes((grad, out)), work)


def adaptive_ps(library: Library, kernel: str, image: Operand, small: Operand) -> int:
    """Returns the picoseconds of an adaptive average, or of its gradient: a block a plane.

    Args:
        kernel: `adaptive_pool` or `adaptive_pool_backward`.
        image: The larger image.
        small: The smaller image.
    """
    price, work = library.kernel(kernel), 0
    if not is_channels_last(image):
        work = price.row * prod(image.shape[:2])
    work = max(price.element * numel(image), work)
    return streamed_ps(library, price, total_bytes((image, small)), work)


def resized_ps(library: Library, kernel: str, image: Operand, other: Operand) -> int:
    """Returns the picoseconds of an image of another size, or of its gradient.

    Args:
        kernel: `nearest` or `bilinear`, with `_backward` for the gradient.
        image: What is read.
        other: What is written.
    """
    last = is_channels_last(image)
    if not last and image.shape == other.shape:
        return copies.duration_ps(library, image, other)
    if not last and kernel.endswith("_backward"):
        return _gathered_ps(library, kernel, image, other)
    if last:
        kernel = kernel.replace("_backward", "") + "_last" + "_backward" * ("_back" in kernel)
    price = library.kernel(kernel)
    larger = image if kernel.endswith("_backward") else other
    work = max(price.element * numel(larger), price.row * prod(larger.shape[:2]))
    read = min(bytes_of(image), _NEAR * numel(other))
    return streamed_ps(library, price, read + bytes_of(other), work)


def _gathered_ps(library: Library, kernel: str, grad: Operand, out: Operand) -> int:
    """Returns the picoseconds of the gradient of an image of another size, plane after plane.

    `nearest`: a thread adds all that an element of the smaller image has become, image after image,
    each a wait for memory (`row`). `bilinear`: zeros, to which each element of the larger image is
    added at four places, `element` operations, or `row` for each element that comes to the same
    place: the lanes of a warp wait for each other, and warps beside them less. Additions of 16 bits
    try again (`upsample_*2d_backward_out_frame` in PyTorch's aten/src/ATen/native/cuda).
    """
    times = max(1, numel(grad) // max(1, numel(out)))
    if kernel == "nearest_backward":
        price = library.kernel(kernel)
        work = max(price.element * numel(grad), price.row * grad.shape[0] * times)
        return streamed_ps(library, price, total_bytes((grad, out)), work)
    price = library.kernel(f"{kernel}_narrow" if grad.dtype.itemsize < _WIDE else kernel)
    together = times if times <= _LANES**2 else _LANES * min(isqrt(times), _MOST_AT_ONCE)
    work = max(price.element, price.row * together) * numel(grad)
    zeros = pointwise.fill_ps(library, "fill", [out])
    return zeros + streamed_ps(library, price, total_bytes((grad, out)), work)
