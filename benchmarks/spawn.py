"""Spawning ranks: 8 of them with an all-reduce, against PyTorch; 1 000 empty ones; parked ones.

PyTorch's part is its in-process `LocalTensorMode`, which computes all ranks' values one after the
other and predicts no time; where torch is not installed (it is no dependency) a figure from
elsewhere stands in.
"""

import os
import statistics
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import _measure

from kernbench import torch
from kernbench.des import Event
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.torch import distributed as dist

RANKS = 8
COUNT = 1 << 20
MANY = 1000
REPEATS = 15
REFERENCE_MS = 18  # PyTorch 2.13's fastest of many, on another machine of 2 cores


def context(machine: str) -> RuntimeContext:
    return RuntimeContext(RunSpec(topology=machine))


def all_reduce(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.full((COUNT,), float(rank), device="cuda")
    dist.all_reduce(x)
    assert x[0].item() == sum(range(RANKS))
    dist.destroy_process_group()


def empty(rank: int) -> None:
    pass


def in_pytorch() -> Callable[[], object] | None:
    """Returns what does the same in PyTorch; None without it."""
    if find_spec("torch") is None:
        return None
    real, distributed = import_module("torch"), import_module("torch.distributed")
    mode = import_module("torch.distributed._local_tensor").LocalTensorMode
    store = import_module("torch.testing._internal.distributed.fake_pg").FakeStore()
    distributed.init_process_group("fake", rank=0, world_size=RANKS, store=store)

    def run() -> None:
        with mode(RANKS) as ranks:
            x = ranks.rank_map(lambda rank: real.full((COUNT,), float(rank)))
            distributed.all_reduce(x)
            assert x[0].reconcile().item() == sum(range(RANKS))

    return run


def resident() -> int:
    """Returns the bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def parked(ranks: int) -> float:
    """Returns KiB for each rank that waits for what the last one settles."""
    with context("ring1024") as ctx:
        arrived, sizes = Event("the last rank"), []

        def worker(rank: int) -> None:
            if rank < ranks - 1:
                ctx.wait(arrived)
            else:
                sizes.append(resident())
                arrived.settle(ctx.engine.loop.now)

        before = resident()
        ctx.multiprocessing.spawn(worker, nprocs=ranks)
        return (sizes[0] - before) / (ranks - 1) / 1024


def main() -> None:
    parked(RANKS)  # everything that is imported or cached at first use
    size = parked(MANY)

    peer = in_pytorch()
    theirs, ours = [], []
    with context("sip8") as ctx:
        ctx.multiprocessing.spawn(all_reduce, nprocs=RANKS)
        for _ in range(REPEATS):
            if peer is not None:
                theirs.append(_measure.seconds(peer) * 1e3)
            ours.append(
                _measure.seconds(lambda: ctx.multiprocessing.spawn(all_reduce, nprocs=RANKS)) * 1e3
            )
    first: list[float] = []
    again: list[float] = []
    for _ in range(5):
        with context("ring1024") as ctx:
            for times in (first, again):
                spawn = partial(ctx.multiprocessing.spawn, empty, nprocs=MANY)
                times.append(_measure.seconds(spawn) * 1e3)

    def at_most(name: str, value: float, limit: float) -> list[object]:
        verdict = _measure.verdict(value / limit, 1, at_least=False)
        return [name, f"{limit:g}", f"{value:.1f}", f"{value / limit:.2f}x", verdict]

    reference = f"PyTorch {REFERENCE_MS} (not installed)"
    rows = []
    for name, choose in (("min", min), ("median", statistics.median)):
        text = f"spawn of {RANKS}, all-reduce of 1 Mi fp32, {name} ms"
        limit = choose(theirs) if theirs else REFERENCE_MS
        row = at_most(text, choose(ours), limit)
        rows.append([text, f"PyTorch {limit:.1f}" if theirs else reference, *row[2:]])
    rows.append(at_most(f"spawn of {MANY} empty ranks, first, ms", min(first), 100))
    rows.append(at_most(f"spawn of {MANY} empty ranks, again, ms", min(again), 100))
    rows.append(at_most("resident memory of a parked rank, KiB", size, 16))
    _measure.show("Spawn", ["", "PyTorch or limit", "kernbench", "ratio", "target"], rows)


if __name__ == "__main__":
    main()
