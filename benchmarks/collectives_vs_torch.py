"""A hundred all-reduces with data, against PyTorch's in-process groups in the same run.

PyTorch's parts are its threaded process group (`MultiThreadedTestCase`'s, a thread a rank) and its
`LocalTensorMode`, which computes all ranks' values one after the other. Neither predicts a time.
Where torch is not installed (it is no dependency) the figures of another machine of two cores stand
in.
"""

import threading
from importlib import import_module
from importlib.util import find_spec

import _measure

from kernbench import torch
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.torch import distributed as dist

ITERATIONS = 100
REPEATS = 5
CASES = (
    # ranks, elements, (times of the threaded group, its seconds), (times of LocalTensorMode, its)
    (8, 1 << 10, (5.0, 0.086), (1.0, 0.026)),
    (64, 1 << 10, (5.0, 0.91), (1.0, 0.11)),
    (8, 1 << 20, (None, 0.0), (1.5, 1.4)),
)


def worker(rank: int, count: int) -> None:
    dist.init_process_group("nccl")
    x = torch.full((count,), 0.0, device="cuda")
    for _ in range(ITERATIONS):
        dist.all_reduce(x)
    assert x[count - 1].item() == 0
    dist.destroy_process_group()


def ours(ranks: int, count: int) -> float:
    spec = RunSpec(topology="ring1024", overrides=(f"system.sips.count={ranks}",))
    with RuntimeContext(spec) as ctx:

        def run() -> None:
            ctx.multiprocessing.spawn(worker, args=(count,), nprocs=ranks)

        run()
        return min(_measure.seconds(run) for _ in range(REPEATS))


def threaded(ranks: int, count: int) -> float:
    """Returns the seconds of the loop in PyTorch's threaded group, threads running already."""
    real, distributed = import_module("torch"), import_module("torch.distributed")
    threads = import_module("torch.testing._internal.distributed.multi_threaded_pg")
    threads._install_threaded_pg()
    isolate = real._C._distributed_c10d._set_thread_isolation_mode
    isolate(True)
    store = distributed.HashStore()
    ready, go, over = threading.Barrier(ranks + 1), threading.Barrier(ranks + 1), []

    def rank_main(rank: int) -> None:
        distributed.init_process_group("threaded", rank=rank, world_size=ranks, store=store)
        x = real.full((count,), 0.0)
        ready.wait()
        go.wait()
        for _ in range(ITERATIONS):
            distributed.all_reduce(x)
        over.append(float(x[count - 1]))

    workers = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(ranks)]
    for thread in workers:
        thread.start()
    ready.wait()

    def run() -> None:
        go.wait()
        for thread in workers:
            thread.join()

    try:
        seconds = _measure.seconds(run)
    finally:
        isolate(False)
        threads._uninstall_threaded_pg()
    assert over == [0.0] * ranks
    return seconds


def local_tensors(ranks: int, count: int) -> float:
    """Returns the seconds of the loop in PyTorch's `LocalTensorMode`."""
    real, distributed = import_module("torch"), import_module("torch.distributed")
    mode = import_module("torch.distributed._local_tensor").LocalTensorMode
    store = import_module("torch.testing._internal.distributed.fake_pg").FakeStore()
    distributed.init_process_group("fake", rank=0, world_size=ranks, store=store)

    def run() -> None:
        with mode(ranks) as everyone:
            x = everyone.rank_map(lambda _: real.full((count,), 0.0))
            for _ in range(ITERATIONS):
                distributed.all_reduce(x)
            assert x[count - 1].reconcile().item() == 0

    try:
        run()
        return min(_measure.seconds(run) for _ in range(REPEATS))
    finally:
        distributed.destroy_process_group()


def main() -> None:
    there = find_spec("torch") is not None
    rows: list[list[object]] = []
    for ranks, count, *peers in CASES:
        mine = ours(ranks, count)
        for (target, elsewhere), (name, peer) in zip(
            peers,
            (("threaded group", threaded), ("LocalTensorMode", local_tensors)),
            strict=True,
        ):
            if target is None:
                continue
            theirs = peer(ranks, count) if there else elsewhere
            rows.append(
                [
                    f"{ranks} ranks, {count} fp32, {name}",
                    f"{theirs * 1e3:.0f}" + ("" if there else " (elsewhere)"),
                    f"{mine * 1e3:.0f}",
                    f"{theirs / mine:.1f}x",
                    _measure.verdict(theirs / mine, target, at_least=True),
                ]
            )
    if not there:
        print("torch is not installed: its figures are another machine's")
    _measure.show(
        f"{ITERATIONS} all-reduces with data, ms",
        ["", "PyTorch", "kernbench", "ratio", "target"],
        rows,
    )


if __name__ == "__main__":
    main()
