"""Collectives and messages of several GPUs, one rank each; protocols in processes of their own.

NCCL reads `NCCL_ALGO` and `NCCL_PROTO` once, so that a forced one needs a process of its own: every
rank starts a copy of itself with them, and the copies form a job of their own.
"""

import contextlib
import functools
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rows import Group, Row, Table, Values
from tables_host import enqueued_us
from timing import Call, Timer

KIB, MIB = 1 << 10, 1 << 20
SIZES = [KIB << (2 * at) for at in range(11)]
FEWER = SIZES[::2]
GRAPHED = 4 * MIB
WORDS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight"}


@contextlib.contextmanager
def joined(rank: int, world: int, device: str) -> Iterator[Group]:
    """Joins the job of `torchrun`, with a group that waits without a GPU; leaves it at the end.

    Args:
        rank: Of this process.
        world: How many there are; one needs no job.
        device: Its GPU, or `cpu`.
    """
    if world == 1:
        yield Group()
        return
    gpu = device != "cpu"
    named: dict[str, Any] = {"device_id": torch.device(device)} if gpu else {}
    dist.init_process_group("nccl" if gpu else "gloo", **named)
    groups = {n: dist.new_group(list(range(n))) for n in Group(rank, world).sizes if n < world}
    try:
        yield Group(rank, world, {"host": dist.new_group(backend="gloo"), "groups": groups})
    finally:
        dist.destroy_process_group()


def collective(timer: Timer, op: str, n: int, rank: int, size: int, group: Any) -> Call:
    """Returns a collective of bfloat16, `size` bytes of the larger buffer.

    Args:
        timer: Of the device.
        op: As the column of that name.
        n: Ranks of the group.
        rank: This process's.
        size: Bytes of the larger buffer.
        group: The ranks.
    """
    whole = torch.zeros(size // 2, device=timer.device, dtype=torch.bfloat16)
    part = torch.zeros(size // 2 // n, device=timer.device, dtype=torch.bfloat16)
    if op == "ring_exchange":
        into = torch.zeros_like(whole)

        def exchange() -> None:
            pair = [
                dist.P2POp(dist.isend, whole, (rank + 1) % n, group),
                dist.P2POp(dist.irecv, into, (rank - 1) % n, group),
            ]
            for work in dist.batch_isend_irecv(pair):
                work.wait()

        return exchange
    calls: dict[str, Call] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(whole[: n * len(part)], part, group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(
            part, whole[: n * len(part)], group=group
        ),
        "broadcast": lambda: dist.broadcast(whole, 0, group=group),
        "all_to_all": lambda: dist.all_to_all_single(
            torch.empty_like(whole[: n * len(part)]), whole[: n * len(part)], group=group
        ),
    }
    return calls[op]


def averaged(group: Group, n: int, values: Values) -> Values:
    """Returns the mean of the first `n` ranks' values."""
    found: list[Any] = [None] * group.world
    dist.all_gather_object(found, dict(values), group=group.extra["host"])
    return {key: statistics.fmean(each[key] for each in found[:n]) for key in found[0]}


def timed(timer: Timer, group: Group, n: int, call: Call, *, graphed: bool) -> Values:
    """Returns median and least time of a collective of the first `n` ranks, mean over them."""
    values: Values = {"us": 0.0, "min_us": 0.0}
    dist.barrier(group.extra["host"])
    if group.rank < n:
        for _ in range(3):
            call()
        timer.wait()
        if graphed and timer.gpu:
            us, least = timer.graph(call)
        else:
            runs = [timer.eager(call, 10) for _ in range(1 if timer.quick else 3)]
            us, least = statistics.median(runs), min(runs)
        values = {"us": us, "min_us": least}
    return averaged(group, n, values)


OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "ring_exchange")


def collectives(timer: Timer, group: Group) -> Iterator[Row]:
    """Collectives as the library chooses to run them."""

    def measure(op: str, n: int, size: int, graphed: bool) -> Values:
        inside = group.extra["groups"].get(n)
        call = collective(timer, op, n, group.rank, size, inside)
        return timed(timer, group, n, call, graphed=graphed)

    for op in OPS:
        for n in group.sizes:
            for size in SIZES[:1] if timer.quick else SIZES:
                graphed = size <= GRAPHED
                key = (op, "default", n, size, "bfloat16", int(graphed))
                yield Row(key, functools.partial(measure, op, n, size, graphed))


ALGORITHMS = ("ring", "tree")
PROTOCOLS = ("LL", "LL128", "Simple")


def protocols(timer: Timer, group: Group) -> Iterator[Row]:
    """Collectives with the algorithm and the protocol forced."""
    if not timer.gpu:
        return
    for algorithm in ALGORITHMS:
        for protocol in PROTOCOLS:
            known: dict[tuple[object, ...], Values] = {}
            ops = ("all_reduce", "all_gather") if algorithm == "ring" else ("all_reduce",)
            for op in ops:
                for n in group.sizes:
                    for size in SIZES[:1] if timer.quick else SIZES:
                        key = (op, algorithm, protocol, n, size)
                        measure = functools.partial(_forced, timer, group, known, key)
                        yield Row(key, measure)


def _forced(
    timer: Timer, group: Group, known: dict[tuple[object, ...], Values], key: tuple[Any, ...]
) -> Values:
    """Returns a line that copies of all ranks measured, with all others of the same protocol."""
    if not known:
        _, algorithm, protocol, _, _ = key
        number = ALGORITHMS.index(algorithm) * len(PROTOCOLS) + PROTOCOLS.index(protocol)
        env = {
            **os.environ,
            "NCCL_ALGO": algorithm,
            "NCCL_PROTO": protocol,
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "MASTER_PORT": str(int(os.environ["MASTER_PORT"]) + 1 + number),
        }
        command = [sys.executable, str(Path(__file__).resolve())]
        said = subprocess.run(
            [*command, "--quick"] if timer.quick else command,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        if said.returncode:
            raise RuntimeError(f"{algorithm} {protocol}: {said.stderr.strip().splitlines()[-1:]}")
        for line in said.stdout.splitlines():
            op, n, size, us = line.split(",")
            known[op, algorithm, protocol, int(n), int(size)] = {"us": float(us)}
    return known.get(key, {})


def child() -> None:
    """Measures one protocol in a process of its own, and prints its lines."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = f"cuda:{os.environ['LOCAL_RANK']}"
    torch.cuda.set_device(device)
    with joined(rank, world, device) as group:
        timer = Timer(device, quick="--quick" in sys.argv)
        tree = os.environ["NCCL_ALGO"] == "tree"
        for op in ("all_reduce",) if tree else ("all_reduce", "all_gather"):
            for n in group.sizes:
                for size in SIZES[:1] if timer.quick else SIZES:
                    call = collective(timer, op, n, rank, size, group.extra["groups"].get(n))
                    found = timed(timer, group, n, call, graphed=size <= GRAPHED)
                    print(f"{op},{n},{size},{found['us']:.3f}", flush=True)


def p2p(timer: Timer, group: Group) -> Iterator[Row]:
    """Messages from one rank to another, and from all to one."""
    if group.world < 2:
        return
    last = group.world - 1

    def measure(size: int, incast: bool) -> Values:
        data = torch.zeros(size, dtype=torch.uint8, device=timer.device)
        into = [torch.zeros_like(data) for _ in range(last if incast else 1)]

        def send() -> None:
            dist.send(data, 1) if group.rank == 0 else dist.recv(into[0], 0)

        def all_to_one() -> None:
            if group.rank:
                pairs = [dist.P2POp(dist.isend, data, 0)]
            else:
                pairs = [dist.P2POp(dist.irecv, each, at + 1) for at, each in enumerate(into)]
            for work in dist.batch_isend_irecv(pairs):
                work.wait()

        n = group.world if incast else 2
        return timed(timer, group, n, all_to_one if incast else send, graphed=False)

    for size in SIZES[:1] if timer.quick else SIZES:
        what = "send 0->1 (mean over all ranks)"
        yield Row((what, size), functools.partial(measure, size, False))
        if last > 1:
            yield Row((f"incast {last}->0", size), functools.partial(measure, size, True))


def overlap(timer: Timer, group: Group) -> Iterator[Row]:
    """Computation on one stream and collectives on another: each alone, and beside the other."""
    n = group.world
    if n < 2 or not timer.gpu:
        return

    def product(size: int) -> Call:
        a, b = (
            torch.randn(size, size, device=timer.device, dtype=torch.bfloat16) for _ in range(2)
        )
        return lambda: a @ b

    def flash(s: int, causal: bool) -> Call:
        shape = (1, 32, s, 128)
        q, k, v = (torch.randn(*shape, device=timer.device).bfloat16() for _ in range(3))
        attention = torch.nn.functional.scaled_dot_product_attention
        return lambda: attention(q, k, v, is_causal=causal)

    computes: dict[tuple[str, int], Any] = {
        ("gemm 4096^3 bf16", 12): functools.partial(product, 4096),
        ("gemm 8192^3 bf16", 2): functools.partial(product, 8192),
        ("flash2 h32 s4096 d128 full", 4): functools.partial(flash, 4096, False),
        ("flash2 h32 s8192 d128 causal", 2): functools.partial(flash, 8192, True),
    }

    def measure(make: Any, calls: int, op: str, size: int, comm_calls: int) -> Values:
        compute, comm = make(), collective(timer, op, n, group.rank, size, None)
        side, main = torch.cuda.Stream(timer.device), torch.cuda.current_stream()

        def spans(with_compute: bool, with_comm: bool) -> tuple[float, float]:
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
            dist.barrier(group.extra["host"])
            timer.wait()
            timer.spin(3000)
            marks[0].record()
            side.wait_stream(main)
            with torch.cuda.stream(side):
                for _ in range(comm_calls if with_comm else 0):
                    comm()
                marks[2].record()
            for _ in range(calls if with_compute else 0):
                compute()
            marks[1].record()
            timer.wait()
            return tuple(1e3 * marks[0].elapsed_time(mark) for mark in marks[1:])

        found: dict[str, list[float]] = {}
        for _ in range(3):
            spans(True, True)
        for _ in range(2 if timer.quick else 9):
            ours, theirs = spans(True, True)
            for name, value in (
                ("compute_us", spans(True, False)[0]),
                ("comm_us", spans(False, True)[1]),
                ("compute_beside_us", ours),
                ("comm_beside_us", theirs),
                ("both_us", max(ours, theirs)),
            ):
                found.setdefault(name, []).append(value)
        return averaged(group, n, {key: statistics.median(each) for key, each in found.items()})

    for (compute, calls), make in computes.items():
        exchanged = ("ring_exchange",)
        ops = exchanged if "flash" in compute else ("all_reduce", "reduce_scatter", "all_gather")
        for op in ops:
            for size, comm_calls in ((16 * MIB, 16), (64 * MIB, 4), (256 * MIB, 1)):
                key = (compute, calls, op, n, size, comm_calls)
                yield Row(key, functools.partial(measure, make, calls, op, size, comm_calls))


def host_ranks(timer: Timer, group: Group) -> Iterator[Row]:
    """What the host takes to enqueue a collective of 1 KiB among all ranks."""
    n = group.world
    if n < 2:
        return
    who = f"all {WORDS.get(n, n)}"
    x = torch.zeros(512, device=timer.device, dtype=torch.bfloat16)
    out = torch.zeros(512 * n, device=timer.device, dtype=torch.bfloat16)
    exchange = collective(timer, "ring_exchange", n, group.rank, KIB, None)

    def waited() -> None:
        dist.all_reduce(x, async_op=True).wait()

    calls: dict[str, Call] = {
        "x.add_ (no collective)": lambda: x.add_(1),
        "all_reduce": lambda: dist.all_reduce(x),
        "all_reduce async_op then wait": waited,
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(out, x),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(x, out),
        "broadcast": lambda: dist.broadcast(x, 0),
        "batch_isend_irecv ring (1 send, 1 recv)": exchange,
    }

    first, second = (torch.randn(64, 64, device=timer.device).bfloat16() for _ in range(2))
    linear, gelu = torch.nn.functional.linear, torch.nn.functional.gelu

    def layers(reduced: bool) -> None:
        for _ in range(4):
            out = linear(gelu(linear(first, second)), second)
            if reduced:
                dist.all_reduce(out)

    calls["4 x (linear gelu linear)"] = lambda: layers(False)
    calls["4 x (linear gelu linear all_reduce)"] = lambda: layers(True)

    def measure(call: Call) -> Values:
        dist.barrier(group.extra["host"])
        us, free, wall = enqueued_us(timer, call, 50)
        return averaged(group, n, {"us": us, "free_us": free, "wall_us": wall})

    for what, call in calls.items():
        yield Row((what, who, n, "free"), functools.partial(measure, call))


HOST = ("us", "free_us", "wall_us", "gpu_us", "min_us", "max_us", "inner_us")
OVERLAP = ("compute_us", "comm_us", "compute_beside_us", "comm_beside_us", "both_us")
TABLES = (
    Table(
        "collectives",
        ("op", "algo", "n", "bytes", "dtype", "graph"),
        ("us", "min_us"),
        collectives,
        where="all",
    ),
    Table("protocols", ("op", "algo", "proto", "n", "bytes"), ("us",), protocols, where="all"),
    Table("p2p", ("pattern", "bytes"), ("us",), p2p, where="all"),
    Table(
        "overlap2",
        ("compute", "compute_calls", "comm", "n", "bytes", "comm_calls"),
        OVERLAP,
        overlap,
        where="all",
    ),
    Table(
        "host_collectives",
        ("what", "who", "n", "cpus"),
        HOST,
        host_ranks,
        where="all",
        file="host",
    ),
)

if __name__ == "__main__":
    child()
