"""`torch.cuda.nvtx`: ranges begun and ended by calls; see `torch.profiler.record_function`."""

from collections.abc import Iterator
from contextlib import contextmanager

from kernbench.process.process import current_process
from kernbench.runtime_api import ranges

__all__ = ["range", "range_pop", "range_push"]


def range_push(msg: str) -> int:
    """Begins a range named `msg` and returns its depth, from 0."""
    return ranges.enter(current_process(), msg)


def range_pop() -> int:
    """Ends the innermost range that `range_push` has begun, and returns its depth.

    Raises:
        RangeError: If no such range is open.
    """
    return ranges.leave(current_process())


@contextmanager
def range(msg: str, *args: object, **kwargs: object) -> Iterator[None]:
    """Names a `with` block.

    Args:
        msg: Name of the range, a template for `str.format`.
        *args: Values for the template.
        **kwargs: Named values for the template.
    """
    range_push(msg.format(*args, **kwargs))
    try:
        yield
    finally:
        range_pop()
