"""Triton's measurements of functions, in simulated time."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from kernbench.triton.devices import NOW

_TURNS: Final = 3
"""Runs that are timed: they take the same time, unless the function does something else each time.
"""


def times_of(
    function: Callable[[], Any], forget: Iterable[Any] = (), turns: int = _TURNS, calls: int = 1
) -> list[float]:
    """Runs a function some times for the time that it takes on the device.

    Args:
        forget: Tensors that shall have no gradient before each run.
        turns: How often it is run.
        calls: How often it is called in each run.

    Returns:
        The time of each run in milliseconds. As on a GPU, the host gets ahead while the cache is
        cleared, so that they are without its launches.
    """
    devices = NOW.here()
    torch = devices.interface()
    cleared, pairs = devices.cache(), []
    for _ in range(turns):
        for _ in range(calls):
            cleared.zero_()
        begin, end = (torch.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            for tensor in forget:
                tensor.grad = None
            function()
        end.record()
        pairs.append((begin, end))
    torch.synchronize()
    return [begin.elapsed_time(end) for begin, end in pairs]


def replayed(function: Callable[[], Any], forget: Iterable[Any] = ()) -> list[float]:
    """Runs a function for the time that it takes in a CUDA graph of very many calls of it.

    Args:
        forget: Tensors that shall have no gradient before each call.

    Returns:
        What a call more takes, in milliseconds, once. Events, and the start of the graph, are of no
        weight among many calls, and the cache is not cleared between them.
    """
    forget = list(forget)
    (one,) = times_of(function, forget, turns=1)
    (more,) = times_of(function, forget, turns=1, calls=1 + _TURNS)
    return [(more - one) / _TURNS]


def measured(
    function: Callable[[], Any], quantiles: Sequence[float] | None = None, **options: Any
) -> Any:
    """Measures a configuration of a kernel.

    Args:
        quantiles: Which quantiles of the times are asked for.
        options: How long a GPU is to warm up and to repeat it: times here are without noise.

    Returns:
        Milliseconds, once for each quantile.
    """
    del options
    (time,) = times_of(function, turns=1)
    return time if quantiles is None else [time] * len(quantiles)
