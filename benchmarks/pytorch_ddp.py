"""A step of DDP on 8 ranks: simulated, in PyTorch's threaded group, and as gloo processes.

A step is `zero_grad`, forward, mean of squares, backward, `SGD.step`, in float32; a rank has one
thread. Ranks of one process never compute at the same time: beside the threaded group, which is
that of `MultiThreadedTestCase`, the figure is CPU time. Processes use all cores: beside those it is
wall time. All groups are warm. Three models: in `tiny` there is little but the work for each call;
in `small` (256 wide, a batch of 32) PyTorch computes about as long as it calls; in `large` (512,
64) numbers are most of it.
"""

import os
from collections.abc import Callable
from time import perf_counter, process_time  # not those of ranks, which show simulated time
from typing import Any, Final, NamedTuple

import _measure
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from kernbench.bridge import bridged
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology

RANKS: Final = 8
WARM: Final = 3
REPEATS: Final = 8
STEPS: Final = 3
TURNS: Final = 2
MOST_OF_THREADED: Final = 1.5
LEAST_OF_GLOO: Final = 4


class Model(NamedTuple):
    """A multilayer perceptron with ReLUs, and the batch of each rank."""

    widths: tuple[int, ...]
    batch: int


MODELS: Final = {
    "tiny": Model((64, 128, 128, 8), 16),
    "small": Model((256, 256, 256, 256), 32),
    "large": Model((512, 512, 512, 512), 64),
}


class Times(NamedTuple):
    """What a step of all ranks takes, in seconds."""

    cpu: float
    wall: float


Found = dict[str, Times]


def step_of(model: Model, device: str) -> Callable[[], None]:
    """Returns a function that is one step of a rank."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in zip(model.widths, model.widths[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    ddp = DistributedDataParallel(nn.Sequential(*layers[:-1]).to(device))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    x = torch.randn(model.batch, model.widths[0]).to(device)
    y = torch.randn(model.batch, model.widths[-1]).to(device)

    def step() -> None:
        optimizer.zero_grad()
        ((ddp(x) - y) ** 2).mean().backward()
        optimizer.step()

    return step


def measure(rank: int, device: str, found: Found) -> None:
    """Notes what a step takes, the best of several repeats, as seen by rank 0."""
    for name, model in MODELS.items():
        step = step_of(model, device)
        for _ in range(WARM):
            step()
        best = found.get(name, Times(float("inf"), float("inf")))
        for _ in range(REPEATS):
            dist.barrier()
            cpu, wall = process_time(), perf_counter()
            for _ in range(STEPS):
                step()
            dist.barrier()
            cpu, wall = process_time() - cpu, perf_counter() - wall
            best = Times(min(best.cpu, cpu / STEPS), min(best.wall, wall / STEPS))
        if rank == 0:
            found[name] = best


def simulated(found: Found) -> None:
    """Measures ranks on simulated devices."""

    def worker(rank: int) -> None:
        os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29500")
        dist.init_process_group("nccl", rank=rank, world_size=RANKS)
        torch.cuda.set_device(rank)
        measure(rank, "cuda", found)
        dist.destroy_process_group()

    topology = load_topology("h200x8").topology_obj
    engine = GraphEngine(topology, enable_data=False, moves_at_call=True)
    with RuntimeContext(engine=engine, quiet=True), bridged(data=True):
        torch.multiprocessing.spawn(worker, nprocs=RANKS)


def threaded(found: Found) -> None:
    """Measures ranks of PyTorch's threaded group."""
    import threading

    from torch.testing._internal.distributed import multi_threaded_pg

    isolate: Any = getattr(torch._C, "_distributed_c10d")._set_thread_isolation_mode  # noqa: B009
    isolate(True)
    multi_threaded_pg._install_threaded_pg()
    store = dist.HashStore()

    def worker(rank: int) -> None:
        dist.init_process_group("threaded", rank=rank, world_size=RANKS, store=store)
        measure(rank, "cpu", found)
        dist.destroy_process_group()

    threads = [threading.Thread(target=worker, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    multi_threaded_pg._uninstall_threaded_pg()
    isolate(False)


def _gloo_worker(rank: int, store: str, answers: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, RANKS), rank=rank, world_size=RANKS)
    found: Found = {}
    measure(rank, "cpu", found)
    if rank == 0:
        answers.put({name: tuple(times) for name, times in found.items()})
    dist.destroy_process_group()


def gloo(found: Found) -> None:
    """Measures ranks that are processes.

    They are forked, since PyTorch takes seconds to import, and from a server that has no threads:
    in what is forked from this process, whose threads have computed, oneDNN may wait for ever.
    """
    import tempfile

    context = torch.multiprocessing.get_context("forkserver")
    answers = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        workers = [
            context.Process(target=_gloo_worker, args=(rank, store, answers))
            for rank in range(RANKS)
        ]
        for worker in workers:
            worker.start()
        for name, times in answers.get().items():
            known = found.get(name, Times(float("inf"), float("inf")))
            found[name] = Times(*map(min, known, times))
        for worker in workers:
            worker.join()


def main() -> None:
    torch.set_num_threads(1)
    ways: dict[Callable[[Found], None], Found] = {gloo: {}, threaded: {}, simulated: {}}
    for _ in range(TURNS):
        for way, found in ways.items():
            way(found)
    rows = []
    for name, ours in ways[simulated].items():
        threads, processes = ways[threaded][name], ways[gloo][name]
        against, faster = ours.cpu / threads.cpu, processes.wall / ours.wall
        rows += [
            [
                f"{name}: CPU time, threaded group",
                f"{threads.cpu * 1e3:.1f}",
                f"{ours.cpu * 1e3:.1f}",
                f"{against:.2f}x",
                _measure.verdict(against, MOST_OF_THREADED, at_least=False),
            ],
            [
                f"{name}: wall time, gloo processes",
                f"{processes.wall * 1e3:.1f}",
                f"{ours.wall * 1e3:.1f}",
                f"{faster:.2f}x faster",
                _measure.verdict(faster, LEAST_OF_GLOO, at_least=True),
            ],
        ]
    title = f"A step of DDP on {RANKS} ranks, milliseconds for all ranks"
    _measure.show(title, ["", "PyTorch", "kernbench", "ratio", "target"], rows)


if __name__ == "__main__":
    main()
