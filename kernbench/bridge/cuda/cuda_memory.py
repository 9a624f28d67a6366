"""`torch.cuda.memory` over the simulated HBM, which frees at once and caches nothing."""

import contextlib
from typing import Any, Final

from kernbench.bridge.base.here import this_rank
from kernbench.bridge.cuda.cuda_devices import asked, check
from kernbench.errors import not_simulated
from kernbench.operations import cuda as simulated
from kernbench.units import format_bytes


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
    hbm, mine = this_rank().hbm, asked(device) == this_rank().sip
    now, peak, blocks, made = (
        (hbm.allocated, hbm.peak, len(hbm.live()), hbm.count) if mine else (0,) * 4
    )
    stats: dict[str, Any] = {}
    for kind in ("active_bytes", "allocated_bytes", "requested_bytes", "reserved_bytes"):
        stats[f"{kind}.all.current"], stats[f"{kind}.all.peak"] = now, peak
    stats |= {"active.all.current": blocks, "allocation.all.current": blocks}
    stats |= {"allocation.all.allocated": made, "allocation.all.freed": made - blocks}
    # Nothing is cached, so nothing is lost between blocks, and no allocation is tried twice.
    for kind in ("inactive_split_bytes", "inactive_split"):
        stats[f"{kind}.all.current"] = stats[f"{kind}.all.peak"] = 0
    return stats | {"num_ooms": 0, "num_alloc_retries": 0}


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """Returns what `memory_stats` does, as dictionaries in each other."""
    nested: dict[str, Any] = {}
    for name, value in memory_stats(device).items():
        *outer, last = name.split(".")
        inside = nested
        for part in outer:
            inside = inside.setdefault(part, {})
        inside[last] = value
    return nested


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Returns a table of the bytes in use, and without `abbreviated` the largest tensors."""
    rank = check(device)
    hbm = rank.process.engine.devices[rank.sip].hbm
    assert hbm.capacity is not None
    rows = [
        f"memory of {rank.device} of {rank.process.name} (simulated)",
        f"  in use   {format_bytes(hbm.allocated)} ({hbm.allocated} B) in {len(hbm.live())} blocks",
        f"  peak     {format_bytes(hbm.peak)} ({hbm.peak} B)",
        f"  free     {format_bytes(hbm.capacity - hbm.allocated)} of {format_bytes(hbm.capacity)}",
    ]
    if not abbreviated:
        largest = sorted(hbm.live(), key=lambda block: (-block.nbytes, block.number))[:10]
        rows += [f"  {format_bytes(block.nbytes):>10}  {block.label}" for block in largest]
    return "\n".join(rows)


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
    "memory_stats_as_nested_dict": memory_stats_as_nested_dict,
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
