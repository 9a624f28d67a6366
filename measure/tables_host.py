"""What the host costs: enqueueing one call, copies to a device and back.

Run while nothing else is.
"""

import functools
import statistics
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from rows import Group, Row, Table, Values
from tables_kernels import launch
from timing import Call, Timer, seconds

MIB = 1 << 20


def enqueued_us(timer: Timer, call: Call, calls: int = 200) -> tuple[float, float, float]:
    """Returns what a call takes the host: the device busy, the device free, its end awaited.

    Args:
        timer: Of the device.
        call: Enqueues a kernel at most.
        calls: How many are timed together.
    """
    calls = 3 if timer.quick else calls
    found = []
    for spin_us, awaited in ((200.0 * calls, False), (0.0, False), (0.0, True)):
        times = []
        for _ in range(1 if timer.quick else 7):
            timer.wait()
            if spin_us:
                timer.spin(min(spin_us, 50_000))
            begin = seconds()
            for _ in range(calls):
                call()
            if awaited:
                timer.wait()
            times.append(1e6 * (seconds() - begin) / calls)
            timer.wait()
        found.append(statistics.median(times))
    return found[0], found[1], found[2]


def host_row(timer: Timer, what: str, who: str, n: int, call: Call, calls: int = 200) -> Row:
    """Returns a line of host.csv."""

    def measure() -> Values:
        us, free, wall = enqueued_us(timer, call, calls)
        return {"us": us, "free_us": free, "wall_us": wall}

    return Row((what, who, n, "free"), measure)


def host(timer: Timer, group: Group) -> Iterator[Row]:
    """Calls of one process."""
    del group
    x = torch.zeros(32, device=timer.device)
    wide, weight = (torch.randn(64, 64, device=timer.device) for _ in range(2))
    small = torch.zeros(16)
    one = ("one process", 1)
    yield host_row(timer, "x.add_(1)", *one, lambda: x.add_(1))
    yield host_row(timer, "torch.add(x, x)", *one, lambda: torch.add(x, x))
    yield host_row(timer, "x.t()", *one, wide.t)
    yield host_row(timer, "F.linear 64 no_grad", *one, lambda: F.linear(wide, weight))
    sixteen = x[:16]
    yield host_row(timer, "x.copy_(cpu pageable) 128 bytes", *one, lambda: sixteen.copy_(small), 50)
    if timer.gpu:
        yield from _gpu_alone(timer, x, one)
    params = [torch.zeros(1024, device=timer.device, requires_grad=True) for _ in range(148)]
    for each in params:
        each.grad = torch.zeros_like(each)
    step = torch.optim.AdamW(params, foreach=True).step
    yield host_row(timer, "AdamW foreach 148 tensors of 1024", *one, step, 3)
    yield from _backward(timer)


def _gpu_alone(timer: Timer, x: torch.Tensor, one: tuple[str, int]) -> Iterator[Row]:
    event, stream = torch.cuda.Event(enable_timing=True), torch.cuda.current_stream()
    event.record()
    new = functools.partial(torch.cuda.Event, enable_timing=True)
    yield host_row(timer, "event record timing", *one, event.record)
    yield host_row(timer, "event create", *one, new)
    yield host_row(timer, "stream wait_event", *one, lambda: stream.wait_event(event))
    yield host_row(timer, "synchronize, idle", *one, timer.wait, 20)

    def several(count: int) -> Values:
        calls = [lambda: x.add_(1)] * count
        return {"us": timer.us(lambda: [call() for call in calls], flush=False)}

    for count, name in ((1, "one add_"), (11, "11 add_")):
        what = f"event pair around {name} (GPU time)"
        yield Row((what, *one, "free"), functools.partial(several, count))

    def replay() -> Values:
        graph = torch.cuda.CUDAGraph()
        x.add_(1)
        timer.wait()
        with torch.cuda.graph(graph):
            for _ in range(200):
                x.add_(1)
        us, _, wall = enqueued_us(timer, graph.replay, 5)
        return {"us": us, "wall_us": wall, "gpu_us": timer.us(graph.replay, flush=False)}

    yield Row(("graph replay of 200 add_", *one, "free"), replay)


def _backward(timer: Timer) -> Iterator[Row]:
    """Backward passes, by wall clock: what the thread of autograd adds."""
    x = torch.zeros(32, device=timer.device, requires_grad=True)

    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
            return given.view_as(given)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad

    def measure(call: Any, count: int) -> Values:
        times = []
        for _ in range(3 if timer.quick else 200):
            out = x
            for _ in range(count):
                out = call(out)
            grad = torch.zeros_like(out)
            timer.wait()
            begin = seconds()
            torch.autograd.backward(out, grad)
            times.append(1e6 * (seconds() - begin))
        return {"us": statistics.median(times)}

    for what, call, count in (
        ("backward, 1 view", lambda out: out.view(-1), 1),
        ("backward, 8 views", lambda out: out.view(-1), 8),
        ("backward, 1 Function", Same.apply, 1),
        ("backward, 8 Functions", Same.apply, 8),
    ):
        yield Row((what, "one process", 1, "free"), functools.partial(measure, call, count))


def pcie(timer: Timer, group: Group) -> Iterator[Row]:
    """Copies between pinned memory of the host and the device."""
    del group

    def measure(way: str, size: int) -> Values:
        here = torch.zeros(size, dtype=torch.uint8, pin_memory=timer.gpu)
        there = torch.zeros(size, dtype=torch.uint8, device=timer.device)
        into, source = (there, here) if way == "h2d" else (here, there)
        return {"us": timer.us(lambda: into.copy_(source, non_blocking=True), flush=False)}

    sizes = [4096, 65536, MIB, 16 * MIB, 256 * MIB]
    for size in sizes[:1] if timer.quick else sizes:
        for way in ("h2d", "d2h"):
            yield Row((way, size), functools.partial(measure, way, size))


HOST = ("us", "free_us", "wall_us", "gpu_us", "min_us", "max_us", "inner_us")
TABLES = (
    Table("launch", ("what",), ("us",), launch, where="alone"),
    Table("host", ("what", "who", "n", "cpus"), HOST, host, where="alone"),
    Table("pcie", ("dir", "bytes"), ("us",), pcie, where="alone"),
)
