"""`torch.cuda.memory` over the simulated HBM, which frees at once and caches nothing."""

import contextlib
from typing import Any, Final

from kernbench.bridge.base.here import this_rank
from kernbench.bridge.cuda.cuda_devices import asked, check
from kernbench.errors import not_simulated
from kernbench.memory.in_use import nested, statistics, summary
from kernbench.operations import cuda as simulated


def _read(name: str) -> Any:
    def read(device: Any = None) -> Any:
        # A process has nothing on the devices of other ranks.
        return getattr(simulated, name)() if asked(device) == this_rank().sip else 0

    read.__name__, read.__doc__ = name, f"`torch.cuda.{name}`, of the simulated HBM."
    return read


def _reset(device: Any = None) -> None:
    """`torch.cuda.reset_peak_memory_stats`: the peak of a process is what it uses now."""
    if asked(device) == this_rank().sip:
        simulated.reset_peak_memory_stats()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Returns the free and the total bytes of a device of the node."""
    return simulated.mem_get_info(asked(device))


def memory_stats(device: Any = None) -> dict[str, Any]:
    """Returns the bytes in use and their peak, under PyTorch's names."""
    rank = this_rank()
    return statistics(rank.hbm if asked(device) == rank.sip else None)


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Returns a table of the bytes in use, and without `abbreviated` the largest tensors."""
    rank = check(device)
    title = f"memory of {rank.device} of {rank.process.name} (simulated)"
    return summary(rank.hbm, title, abbreviated=abbreviated)


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Takes 1.0: a process has all of its device.

    Raises:
        UnsupportedError: For a part of the memory.
    """
    check(device)
    if fraction != 1:
        raise not_simulated(
            f"torch.cuda.set_per_process_memory_fraction({fraction})",
            "--set system.sip.cube.hbm.capacity=BYTES gives devices less memory",
        )


def _fraction(device: Any = None) -> float:
    """Returns 1.0: a process has all of its device."""
    check(device)
    return 1.0


def nothing(*_: Any, **__: Any) -> None:
    """Does nothing: the simulated device needs none of it."""


FUNCTIONS: Final[dict[str, Any]] = {
    "memory_allocated": _read("memory_allocated"),
    "max_memory_allocated": _read("max_memory_allocated"),
    "memory_reserved": _read("memory_reserved"),
    "max_memory_reserved": _read("max_memory_allocated"),
    "memory_cached": _read("memory_allocated"),
    "max_memory_cached": _read("max_memory_allocated"),
    "reset_peak_memory_stats": _reset,
    "reset_max_memory_allocated": _reset,
    "reset_max_memory_cached": _reset,
    "reset_accumulated_memory_stats": nothing,
    "mem_get_info": mem_get_info,
    "memory_stats": memory_stats,
    "memory_stats_as_nested_dict": lambda device=None: nested(memory_stats(device)),
    "memory_summary": memory_summary,
    "host_memory_stats": dict,
    "host_memory_stats_as_nested_dict": dict,
    "reset_accumulated_host_memory_stats": nothing,
    "reset_peak_host_memory_stats": nothing,
    "set_per_process_memory_fraction": set_per_process_memory_fraction,
    "get_per_process_memory_fraction": _fraction,
    "get_allocator_backend": lambda: "native",
    "caching_allocator_enable": nothing,
    "caching_allocator_disabled": contextlib.nullcontext,
    "empty_cache": nothing,
    "ipc_collect": nothing,
}
"""What `torch.cuda` has of memory while ranks run, by name."""
