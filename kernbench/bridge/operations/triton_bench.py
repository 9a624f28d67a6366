"""`triton.testing.do_bench` on simulated devices: it measures simulated time."""

import functools
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

import torch

from kernbench.bridge.base.here import HERE
from kernbench.isolation.replaced import Patch, WhenImported

_CACHE: Final = 256 << 20
"""Bytes that Triton clears before each run, so that no input is in the cache."""

_TURNS: Final = 3
"""Runs that are timed: they take the same time, unless the function does something else each time.
"""


def cache() -> torch.Tensor:
    """Returns what is cleared before each run."""
    return torch.empty(_CACHE // 4, dtype=torch.int32, device="cuda")


def do_bench(function: Callable[[], Any], to_none: Any = None) -> list[float]:
    """Runs a function once, and then some times for the time that it takes on the device.

    Args:
        to_none: Tensors that shall have no gradient before each run.

    Returns:
        The time of each run in milliseconds. As on a GPU, the host gets ahead while the cache is
        cleared, so that they are without its launches.
    """
    function()
    torch.cuda.synchronize()
    cleared, turns = cache(), []
    for _ in range(_TURNS):
        for tensor in to_none or ():
            tensor.grad = None
        cleared.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        turns.append((begin, end))
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in turns]


def _benched(module: ModuleType) -> Iterator[Patch]:
    real = module.do_bench
    signature = inspect.signature(real)

    @functools.wraps(real)
    def bench(*args: Any, **options: Any) -> Any:
        if HERE.rank is None:
            return real(*args, **options)
        bound = signature.bind(*args, **options)
        bound.apply_defaults()
        given = bound.arguments
        # Durations of warming up and repeating are for noise, of which there is none.
        times = do_bench(given["fn"], given.get("grad_to_none"))
        return module._summarize_statistics(times, given["quantiles"], given["return_mode"])

    yield Patch(module, "do_bench", bench)


def patches() -> Iterator[WhenImported]:
    """Yields what lets Triton measure simulated time."""
    yield WhenImported("triton.testing", _benched)
