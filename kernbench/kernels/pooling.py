"""Pools of images, and images of another size."""

from math import prod

from kernbench.hw.library import Library
from kernbench.kernels import pointwise
from kernbench.kernels.operands import Operand, is_channels_last, numel, total_bytes
from kernbench.kernels.traffic import streamed_ps


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
    if is_channels_last(image):
        kernel = kernel.replace("_backward", "") + "_last" + "_backward" * ("_back" in kernel)
    price = library.kernel(kernel)
    large = max(image, other, key=numel)
    work = max(price.element * numel(large), price.row * prod(large.shape[:2]))
    return streamed_ps(library, price, total_bytes((image, other)), work)
