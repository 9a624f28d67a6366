"""What a case leaves behind: on its simulated machine, and in the process in which it ran."""

import gc
from collections.abc import Sequence
from typing import Final

from kernbench.distributed.comm_debug import EVERYWHERE
from kernbench.distributed.group_lifetime import LiveGroup, live_groups
from kernbench.errors import CallSite, site_fact
from kernbench.memory import Allocator
from kernbench.process.process import Process
from kernbench.ranks.ranges import folded
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.profiling import open_profiles
from kernbench.runtime_api.ranges import open_ranges
from kernbench.testing.holders import holders_of
from kernbench.testing.remnants import Remnants
from kernbench.units import format_bytes

_MOST_BLOCKS: Final = 8
"""Most blocks of memory that a report lists."""


class LeakError(AssertionError):
    """A case has left something behind."""


class LeftoverError(AssertionError):
    """A simulated run has left something behind, such as a waiting task."""


class LeakWarning(UserWarning):
    """A case has left something behind, with `KERNBENCH_LEAKS=warn`."""


def leftovers(ctx: RuntimeContext) -> list[str]:
    """Returns a text for each thing that is still under way in a context."""
    loop = ctx.engine.loop
    left = [f"task {task.name} waits for {task.waiting_for}" for task in loop.tasks()]
    left += [f"pending wait for {event.label}" for event in ctx.worker_waits]
    if not left and not loop.idle:
        left.append("queued events")
    if ctx.world.size:
        left.append("a spawn")
    if ctx.engine.network.claims:
        left.append("claimed links")
    return left


class Watch:
    """Looks, from the beginning of a run to its end, for what it leaves behind.

    Groups are looked at when ranks return: the run ends with its world, and all groups of that.
    """

    def __init__(self) -> None:
        self._groups: dict[str, tuple[LiveGroup, list[int]]] = {}
        self._modes = len(EVERYWHERE)
        self._remnants = Remnants()

    def returned(self, rank: int) -> None:
        """Called on a rank when its function has returned."""
        for group in live_groups():
            if group.site is not None:
                self._groups.setdefault(group.name, (group, []))[1].append(rank)

    def of_simulation(self, ctx: RuntimeContext) -> list[str]:
        """Returns a line for each thing that a run has left on its simulated machine.

        Memory does not count here, see `Memory`.

        Args:
            ctx: The context of the run, after it.
        """
        left = [
            f"process group {group.name}, held by {folded(sorted(ranks))}, " + _made(group.site)
            for group, ranks in self._groups.values()
        ]
        if len(EVERYWHERE) > self._modes:
            left.append(f"{len(EVERYWHERE) - self._modes} CommDebugMode entered and not left")
            del EVERYWHERE[self._modes :]
        if stacks := len(ctx.engine.loop.abandoned):
            left.append(f"{stacks} stacks of ranks that caught their abort; dropping one runs it")
        return left + leftovers(ctx)

    def of_process(self) -> list[str]:
        """Returns a line for each thread, descriptor and child process that is left."""
        return self._remnants.left()


def open_spans(ctx: RuntimeContext) -> list[str]:
    """Returns a line for each range and profiler that ranks have begun and not ended.

    Args:
        ctx: A context after a spawn whose ranks have all returned.
    """
    spans: dict[tuple[str, CallSite | None], list[int]] = {}
    for process in ctx.processes:
        for name, site in open_ranges(process):
            spans.setdefault((f"range {name!r}", site), []).append(process.rank)
        for site in open_profiles(process):
            spans.setdefault(("profiler", site), []).append(process.rank)
    return [
        f"{name} not ended by {folded(ranks)}, {site_fact(site, 'begun at')}"
        for (name, site), ranks in spans.items()
    ]


class Memory:
    """The device memory of a run, which nothing may hold once the run and its context are gone."""

    def __init__(self, ctx: RuntimeContext) -> None:
        self._memories = [device.hbm for device in ctx.engine.devices.values()]

    def held(self) -> list[str]:
        """Returns a line for each block that is in use, with who holds it."""
        if not self._used():
            return []
        gc.collect()  # what only refers to itself is not held
        lines = []
        for memory in self._used():
            blocks = memory.live()
            lines += [
                f"{format_bytes(block.nbytes)} of device memory on {memory.name}: "
                f"{block.label}, {_made(block.site)}{holders_of(block)}"
                for block in blocks[:_MOST_BLOCKS]
            ]
            if len(blocks) > _MOST_BLOCKS:
                lines.append(f"and {len(blocks) - _MOST_BLOCKS} more blocks on {memory.name}")
        return lines

    def _used(self) -> list[Allocator]:
        return [memory for memory in self._memories if memory.allocated]


def forget_ranks(ctx: RuntimeContext) -> None:
    """Drops what the ranks of a run hold by themselves, such as their random generators.

    Args:
        ctx: The context of the run, after it.
    """
    ranks: list[Process] = [*ctx.processes, ctx.main]
    for process in ranks:
        process.locals.clear()
        process.joined.clear()
        process.latest = None
        process.recent.clear()


def _made(site: CallSite | None) -> str:
    return site_fact(site, "made at")


def report_of_leaks(leaks: Sequence[str]) -> str:
    """Returns the report of a case that has passed and left something behind."""
    count = f"{len(leaks)} things" if len(leaks) > 1 else "one thing"
    return "\n  ".join([f"the case has passed, and left {count} behind:", *leaks])
