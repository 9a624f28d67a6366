"""What is in use of a memory, as `torch.cuda` tells it."""

from typing import Any

from kernbench.memory.allocator import Allocator
from kernbench.units import format_bytes

_LARGEST = 10
"""Blocks that a summary lists."""


def statistics(memory: Allocator | None) -> dict[str, Any]:
    """Returns the bytes in use and their peak, under the names of `torch.cuda.memory_stats`.

    Args:
        memory: The memory; None for one of which nothing is in use.
    """
    now, peak, blocks, made = (
        (0,) * 4
        if memory is None
        else (memory.allocated, memory.peak, len(memory.live()), memory.count)
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


def nested(stats: dict[str, Any]) -> dict[str, Any]:
    """Returns statistics as dictionaries in each other.

    Args:
        stats: Numbers by names with points.
    """
    found: dict[str, Any] = {}
    for name, value in stats.items():
        *outer, last = name.split(".")
        inside = found
        for part in outer:
            inside = inside.setdefault(part, {})
        inside[last] = value
    return found


def summary(memory: Allocator, title: str, *, abbreviated: bool) -> str:
    """Returns a table of the bytes in use of a memory with a capacity.

    Args:
        title: The first line.
        abbreviated: Whether the largest blocks are left out.
    """
    assert memory.capacity is not None
    rows = [
        title,
        f"  in use   {format_bytes(memory.allocated)} ({memory.allocated} B) in "
        f"{len(memory.live())} blocks",
        f"  peak     {format_bytes(memory.peak)} ({memory.peak} B)",
        f"  free     {format_bytes(memory.capacity - memory.allocated)} of "
        f"{format_bytes(memory.capacity)}",
    ]
    if not abbreviated:
        largest = sorted(memory.live(), key=lambda block: (-block.nbytes, block.number))
        rows += [
            f"  {format_bytes(block.nbytes):>10}  {block.label}" for block in largest[:_LARGEST]
        ]
    return "\n".join(rows)
