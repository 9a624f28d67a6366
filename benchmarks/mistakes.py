"""What finding mistakes costs: the checks of a program that has none, and the report of a deadlock.

The run without checks compares no calls, asks nobody whether a tensor may be touched, follows no
waits and captures no call sites: the functions that do so are replaced in this process.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import _measure

from kernbench import torch
from kernbench.distributed import posting
from kernbench.process import access
from kernbench.process.process import Process
from kernbench.ranks import gathering, reviewing
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.torch import distributed as dist

RANKS = 64
ITERATIONS = 50
REPEATS = 7
MANY = 1024


def context(ranks: int) -> RuntimeContext:
    overrides = (f"system.sips.count={ranks}",)
    return RuntimeContext(RunSpec(topology="ring1024", overrides=overrides))


def asynchronous(rank: int) -> None:
    dist.init_process_group("nccl")
    x, y = (torch.ones(1 << 10, device="cuda") for _ in range(2))
    for _ in range(ITERATIONS):
        work = dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True)
        y += 1
        work.wait()
        dist.all_reduce(y, op=dist.ReduceOp.MAX)
    assert x[rank].item() == 1
    dist.destroy_process_group()


def ping_pong(rank: int) -> None:
    dist.init_process_group("nccl")
    x, other = torch.ones(1 << 10, device="cuda"), rank ^ 1
    for turn in range(ITERATIONS):
        if turn % 2 == rank % 2:
            dist.send(x, other)
        else:
            dist.recv(x, other)
    torch.cuda.synchronize()
    dist.destroy_process_group()


@contextmanager
def unchecked() -> Iterator[None]:
    """Takes the checks out of the way."""
    replaced: list[tuple[Any, str, Any]] = [
        (access.Guard, "check", lambda *_: None),
        (Process, "call_site", lambda _: None),
        (posting, "call_site", lambda: None),
        (gathering.Gathering, "_compare", lambda *_: None),
        (reviewing, "waits_for", lambda _: False),
    ]
    kept = [(holder, name, getattr(holder, name)) for holder, name, _ in replaced]
    for holder, name, value in replaced:
        setattr(holder, name, value)
    try:
        yield
    finally:
        for holder, name, value in kept:
            setattr(holder, name, value)


def cost(worker: Callable[[int], None]) -> list[object]:
    checked, bare = [], []
    with context(RANKS) as ctx:

        def run() -> None:
            ctx.multiprocessing.spawn(worker, nprocs=RANKS)

        run()
        for _ in range(REPEATS):
            checked.append(_measure.seconds(run))
            with unchecked():
                bare.append(_measure.seconds(run))
    ratio = min(checked) / min(bare)
    return [
        f"checks, {RANKS} ranks, {worker.__name__}",
        f"{min(bare) * 1e3:.0f} ms without",
        f"{min(checked) * 1e3:.0f} ms",
        f"{ratio:.2f}x",
        _measure.verdict(ratio, 1.3, at_least=False),
    ]


def circle(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.ones(4, device="cuda")
    dist.recv(x, (rank + 1) % MANY)
    x.tolist()


def one_missing(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.ones(4, device="cuda")
    if rank != 77:
        dist.all_reduce(x)
    x.tolist()


def report(worker: Callable[[int], None]) -> list[object]:
    """Returns how long a run that cannot end takes, until its whole text is there."""
    texts: list[str] = []

    def run() -> None:
        try:
            ctx.multiprocessing.spawn(worker, nprocs=MANY)
        except SpawnException as failed:
            texts.append(str(failed))

    with context(MANY) as ctx:
        seconds = min(_measure.seconds(run) for _ in range(3))
    assert len(texts) == 3
    return [
        f"run and report, {MANY} ranks, {worker.__name__}",
        "0.5 s",
        f"{seconds:.2f} s",
        f"{seconds / 0.5:.2f}x",
        _measure.verdict(seconds / 0.5, 1, at_least=False),
    ]


def main() -> None:
    rows = [cost(asynchronous), cost(ping_pong), report(circle), report(one_missing)]
    _measure.show("Mistakes", ["", "limit", "kernbench", "ratio", "target"], rows)


if __name__ == "__main__":
    main()
