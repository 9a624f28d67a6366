"""Everything that is kept because it would come out the same again: one table of all of it.

What is kept here depends on nothing but its key. So it may be shared by all contexts, be dropped at
any time, and hold neither an engine nor a context. See ADR 0026.

A `cached_property` is a part of its object and goes with it: it is not listed here. Nor are limits
of what is no cache, such as how much of a report is shown.
"""

from collections.abc import Callable, Mapping
from functools import _lru_cache_wrapper, lru_cache
from itertools import count, islice
from threading import Lock
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_MACHINES: Final = 8

LIMITS: Final[Mapping[str, int]] = {
    # Small values by shapes, types and names: a program has hundreds.
    "attention.bands": 1024,
    "attention.masks": 64,  # up to 256 KiB each
    "isolation.distributions": 1 << 14,
    "isolation.installed": 1 << 14,
    "bridge.flex_bands": 256,  # by mask: a byte for each pair of blocks
    "nn.bucket_roles": 4096,  # a text for each bucket of a model
    "config.fields": 256,  # by class of a file's values
    "config.old_names": 256,  # by class of a file's values
    "config.shipped": 8,  # by name: `configs` and some more
    "cp.orders": 16,  # 8 bytes for each row of all ranks
    "cp.sights": 1024,
    "distributed.barriers": 64,  # by name of the call
    "distributed.coalesced": 1024,
    "distributed.even": 8192,  # of every call of the common collectives, so more
    "distributed.exchanges": 1024,
    "distributed.libraries": 64,  # by backend
    "distributed.lines": 64,  # a number for each rank, here and in the next two
    "distributed.neighbours": 64,
    "distributed.rows": 256,
    "distributed.new_groups": 8192,
    "distributed.objects": 1024,
    "distributed.on_hosts": 1024,
    "distributed.reducing": 8192,
    "distributed.signatures": 8192,
    "distributed.splits": 256,
    "extend.agreements": 1024,
    "errors.call_sites": 4096,  # a line of a program each, which keeps its code alive
    "kernels.names": 1024,
    "memory.functions": 1024,  # by name and type
    "memory.gaps": 4096,
    "memory.strides": 4096,
    "memory.freed_pages": 1,
    "operations.laid_out": 4096,
    "operations.left": 1024,
    "operations.matmul": 4096,
    "operations.order": 1024,
    "operations.strides": 1024,
    "operations.views": 4096,
    "parallel.ends": 64,
    "parallel.groups": 1024,
    "parallel.layouts": 64,
    "pp.plans": 256,  # some messages and passes for each microbatch of a stage
    "process.last_frames": 1024,  # a place of a program each, which keeps its code alive
    "ranks.fitting": 16,  # 16 bytes for each two ranks that exchange, and the numbers
    "routing.counts": 64,  # 8 bytes for each rank and expert
    "routing.workloads": 256,  # 16 bytes for each choice of a rank
    "runtime_api.names": 1,
    "runtime_api.pytorch_names": 1,
    "tensors.annotations": 4096,
    "tensors.devices": 1 << 16,  # as many as a machine may have
    "tensors.labels": 4096,
    "tensors.signatures": 2048,
    "tensors.unions": 4096,
    "topology.files": 64,  # by name of a shipped machine
    "triton.keys": 4,  # by folder of an installed Triton
    "tl.checked": 1024,
    "tl.elementwise": 1024,
    "tl.extremes": 64,
    "tl.extents": 4096,
    "tl.products": 256,
    "tl.shapes": 4096,
    "tl.types": 4096,
    "tl.sources": 256,  # the syntax tree of a kernel
    "scripts.versions": 16,  # of packages that are installed
    "triton.counters": 512,  # as kernels
    "triton.launches": 4096,  # some numbers for each
    "triton.machine_code": 4096,  # some numbers for each
    "triton.kernels": 512,  # by text: the steps of a kernel
    "ccl.rails": 256,  # walks of a group, and what they have of the links
    "ccl.entries": 1024,  # by function of an algorithm's module
    "ccl.files": 16,  # a `ccl.yaml` and its overrides, which every context reads
    # Of a machine: a few machines, since each has all that stands below.
    "ccl.choosers": _MACHINES,
    "ccl.cuts": _MACHINES,
    "ccl.estimators": _MACHINES,
    "ccl.machines": _MACHINES,
    "hw.machines": _MACHINES,
    "tl.machines": _MACHINES,
    "topology.machines": _MACHINES,
    "topology.alike": _MACHINES,
    # Of one machine.
    "ccl.alike": 1 << 16,  # as for paths
    "ccl.choices": 4096,
    "ccl.companies": 256,  # some numbers for each rank of some collectives
    "ccl.estimates": 4096,
    "ccl.mixtures": 1024,
    "ccl.pairs": 1024,
    "ccl.paths": 1 << 16,  # all pairs of a large ring would hold gigabytes
    "ccl.patterns": 1024,  # each has a time and a few numbers for each rank
    "ccl.shapes": 1024,  # each has plans and the ways of its messages
    "hw.attention": 4096,
    "hw.elementwise": 1 << 16,
    "hw.kernels": 256,
    "hw.priced": 1 << 14,
    "hw.matmul": 1 << 16,
    "hw.tiled": 1 << 16,
    "tl.recordings": 1024,  # up to 64 MiB of offsets each, most of them a few kilobytes
    "topology.routes": 1 << 16,  # as for paths
    # Of one path, collective or group.
    "ccl.hops": 1024,
    "ccl.piece_times": 1024,
    "distributed.prepared": 256,
    "hw.message_times": 1024,
    "hw.rates": 1024,  # of one network
    # By algorithm and setting.
    "ccl.collective_files": 32,  # each with its rounds, megabytes for thousands of steps
    "ccl.formulas": 256,  # a few numbers for each step
    "ccl.plans": 256,  # a large one has some megabytes
    "ccl.fits": 256,  # what does not fit of each plan, mostly nothing; keeps the plan
}
"""The most entries of every cache, by `room.what`; of several of one name, of each."""


class Statistic(NamedTuple):
    """What is kept under a name now, and how it has served.

    Attributes:
        name: A key of `LIMITS`.
        caches: How many caches have the name: one, or one of each machine, path and so on.
        entries: How many there are in all of them.
        limit: The most that there may be in each.
        hits: Look-ups that found something; None where they are not counted.
        misses: Look-ups that found nothing, after which it was made.
    """

    name: str
    caches: int
    entries: int
    limit: int
    hits: int | None
    misses: int


class Table(dict[K, V]):
    """A dict of a bounded number of entries; for look-ups that are too special for `cached`.

    Look up with `get`, add with `keep`.

    Args:
        name: A key of `LIMITS`.

    Attributes:
        name: The same.
        limit: The most entries.
        kept: How many were ever added.
    """

    __slots__ = ("__weakref__", "kept", "limit", "name")

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.limit: Final = LIMITS[name]
        self.kept = 0
        _tables[next(_numbers)] = self

    def keep(self, key: K, value: V) -> V:
        """Adds an entry, in place of the oldest ones of a full table, and returns the value."""
        with _LOCK:
            if len(self) >= self.limit:
                # Several of a large table at once: a dict looks for its first entry through the
                # places of all that were taken out before it.
                for oldest in list(islice(self, max(1, self.limit // _AT_ONCE))):
                    del self[oldest]
            self.kept += 1
            self[key] = value
        return value


_AT_ONCE: Final = 1024
"""Of a full table, the oldest of so many parts makes room."""

_LOCK: Final = Lock()
"""Held while an entry is added: several threads may use a table."""

_numbers: Final = count()
_tables: Final[WeakValueDictionary[int, Table[Any, Any]]] = WeakValueDictionary()
_functions: Final[dict[str, WeakValueDictionary[int, "_lru_cache_wrapper[Any]"]]] = {}


def cached(name: str) -> "Callable[[Callable[..., T]], _lru_cache_wrapper[T]]":
    """Returns a decorator that keeps the last results of a function: `functools.lru_cache`.

    Args:
        name: A key of `LIMITS`. Several functions may have it, such as a method of each object.
    """
    limit = LIMITS[name]

    def decorate(function: Callable[..., T]) -> "_lru_cache_wrapper[T]":
        wrapper = lru_cache(limit)(function)
        _functions.setdefault(name, WeakValueDictionary())[next(_numbers)] = wrapper
        return wrapper

    return decorate


def statistics() -> list[Statistic]:
    """Returns a line for each name of which there is a cache now, in order."""
    found = [
        Statistic(name, 1, info.currsize, LIMITS[name], info.hits, info.misses)
        for name, wrappers in list(_functions.items())
        for info in [wrapper.cache_info() for wrapper in list(wrappers.values())]
    ]
    found += [
        Statistic(table.name, 1, len(table), table.limit, None, table.kept)
        for table in list(_tables.values())
    ]
    lines: dict[str, Statistic] = {}
    for one in found:
        line = lines.get(one.name)
        lines[one.name] = one if line is None else _both(line, one)
    return [lines[name] for name in sorted(lines)]


def _both(a: Statistic, b: Statistic) -> Statistic:
    return a._replace(
        caches=a.caches + b.caches,
        entries=a.entries + b.entries,
        hits=None if a.hits is None or b.hits is None else a.hits + b.hits,
        misses=a.misses + b.misses,
    )


def clear() -> None:
    """Empties every cache; for tests and measurements. What is in use stays with its user."""
    for table in list(_tables.values()):
        table.clear()
    for wrappers in list(_functions.values()):
        for wrapper in list(wrappers.values()):
            wrapper.cache_clear()
