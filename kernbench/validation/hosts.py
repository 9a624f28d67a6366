"""What the host takes: single calls, layers, and the stack of `model` beside its host's time."""

import re
from collections.abc import Callable
from typing import Any, Final

from kernbench.calibration.lines import REPLAYS, known
from kernbench.errors import UnsupportedError
from kernbench.process.process import current_process
from kernbench.validation.beside import Stack
from kernbench.validation.collectives import batch
from kernbench.validation.sequences import zigzag
from kernbench.validation.table import (
    BESIDE,
    COUNT,
    MEASURED,
    NOTE,
    WORD,
    Row,
    Table,
    Times,
)
from kernbench.validation.timing import (
    FLUSH_BYTES,
    LEAD,
    Call,
    alone_us,
    eager_us,
    new,
    replayed_us,
)

_FUNCTIONS: Final = 8
"""Functions, views and all-reduces of the rows that name so many."""
_PAIR: Final = re.compile(r"event pair around (one|\d+) add_ \(GPU time\)")
_ADDED: Final = 200
"""Additions of the graph that a row replays."""
_SMALL: Final = 512
"""Elements of a tensor of bf16 of 1 KiB."""


def host_us(torch: Any, call: Call, calls: int = REPLAYS) -> float:
    """Returns the microseconds of the host for a call, the device busy meanwhile.

    Args:
        call: What is timed; called once before.
        calls: How often it is called; the time is of one.
    """
    flush = new(torch, FLUSH_BYTES, dtype="int8")
    call()
    torch.cuda.synchronize()
    for _ in range(LEAD):
        flush.zero_()
    host = current_process().host  # a clock that both torches have
    begin = host.clock
    for _ in range(calls):
        call()
    us = (host.clock - begin) / 1e6 / calls
    torch.cuda.synchronize()
    return us


def _functions(torch: Any, inner: Callable[[Any], object], count: int) -> Any:
    """Returns the output of functions of one's own in a row, whose gradients do something."""

    class Doing(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            inner(grad)
            return grad

    out = new(torch, _SMALL, grad=True)
    for _ in range(count):
        out = Doing.apply(out)
    return out


def _backward(torch: Any, out: Any) -> Call:
    grad = torch.ones_like(out)
    return lambda: out.backward(grad, retain_graph=True)


def _nothing(grad: Any) -> None:
    del grad


def _gradients(torch: Any, what: str) -> Call:
    """Returns one backward pass, as `backward, 8 Functions of all_reduce` names it."""
    dist = torch.distributed
    inner: dict[str, Callable[[Any], object]] = {
        "": _nothing,
        "10 views": lambda grad: [grad.view(-1) for _ in range(10)],
        "all_reduce": dist.all_reduce,
        "add_": lambda grad: grad.add_(1),
    }
    count, kind = what.removeprefix("backward, ").split(" ", 1)
    if kind in {"view", "views"}:
        out = new(torch, _SMALL, grad=True)
        for _ in range(int(count)):
            out = out.view(-1)
        return _backward(torch, out)
    name, _, doing = kind.partition(" of ")
    known({"Function": 1, "Functions": 1}, name, "what")
    return _backward(torch, _functions(torch, known(inner, doing, "what"), int(count)))


def _layers(torch: Any, tokens: int, times: int, *, reduced: bool) -> Call:
    up, down = new(torch, 1024, 1024), new(torch, 1024, 1024)
    x, functional = new(torch, tokens, 1024), torch.nn.functional

    def call() -> None:
        with torch.no_grad():
            for _ in range(times):
                out = functional.linear(functional.gelu(functional.linear(x, up)), down)
                if reduced:
                    torch.distributed.all_reduce(out)

    return call


def _alone(torch: Any) -> dict[str, Call]:
    """Returns the calls of one process."""
    x, square = new(torch, 32, dtype="fp32"), new(torch, 64, 64)
    event, main = torch.cuda.Event(enable_timing=True), torch.cuda.current_stream()
    event.record()
    there, graph = torch.zeros(32), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_ADDED):
            x.add_(1)

    def linear() -> None:
        with torch.no_grad():
            torch.nn.functional.linear(square, square)

    return {
        "x.add_(1)": lambda: x.add_(1),
        "torch.add(x, x)": lambda: torch.add(x, x),
        "x.t()": square.t,
        "F.linear 64 no_grad": linear,
        "event record timing": event.record,
        "event create": lambda: torch.cuda.Event(enable_timing=True),
        f"graph replay of {_ADDED} add_": graph.replay,
        "stream wait_event": lambda: main.wait_event(event),
        "x.copy_(cpu pageable) 128 bytes": lambda: x.copy_(there),
    }


def _adamw(torch: Any) -> Call:
    parameters = [torch.nn.Parameter(new(torch, 1024)) for _ in range(148)]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    step: Call = torch.optim.AdamW(parameters, foreach=True).step
    return step


def _together(torch: Any) -> dict[str, Call]:
    """Returns the calls of several ranks; collectives are of 1 KiB."""
    dist = torch.distributed
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x, y, z = (new(torch, _SMALL) for _ in range(3))
    part = new(torch, _SMALL // ranks)
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    peer = rank ^ 1
    mebibyte = 1 << 19

    def times(call: Call) -> Call:
        return lambda: [call() for _ in range(_FUNCTIONS)]

    return {
        "x.add_ (no collective)": lambda: x.add_(1),
        "all_reduce": lambda: dist.all_reduce(x),
        "all_reduce async_op then wait": lambda: dist.all_reduce(x, async_op=True).wait(),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(x, part),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(part, x),
        "all_to_all_single": lambda: dist.all_to_all_single(y, x),
        "broadcast": lambda: dist.broadcast(x, 0),
        "batch_isend_irecv ring (1 send, 1 recv)": batch(
            torch, [(dist.isend, x, after), (dist.irecv, y, before)]
        ),
        "batch_isend_irecv 2 sends, 2 recvs with one peer": batch(
            torch, [(dist.isend, x, peer)] * 2 + [(dist.irecv, y, peer), (dist.irecv, z, peer)]
        ),
        "batch_isend_irecv one way": batch(
            torch, [(dist.irecv, x, peer) if rank % 2 else (dist.isend, x, peer)]
        ),
        "all_reduce x8, main thread": times(lambda: dist.all_reduce(x)),
        "all_reduce of new 1 MiB x8": times(lambda: dist.all_reduce(new(torch, mebibyte))),
        "4 x (linear gelu linear)": _layers(torch, 64, 4, reduced=False),
        "4 x (linear gelu linear all_reduce)": _layers(torch, 64, 4, reduced=True),
        "backward without collective": _gradients(torch, "backward, 1 Function"),
        "all_reduce inside backward": _gradients(torch, "backward, 1 Function of all_reduce"),
    }


_NOT_TOLD: Final = {
    **dict.fromkeys(
        ("barrier", "synchronize, idle"),
        "it waits for the spin kernel of the measurement, whose length no table says",
    ),
    **dict.fromkeys(
        ("python thread, empty", "all_reduce x8, a python thread"),
        "ranks that are simulated have one thread",
    ),
    "ring step": "the table does not say which calls a piece of a ring step has",
}
"""Why rows of `host` have no program, by how they begin."""


def _host(torch: Any, row: Row) -> Times:
    what = row["what"]
    for begin, why in _NOT_TOLD.items():
        if what.startswith(begin):
            raise UnsupportedError(f"{what}: {why}")
    if what.startswith("backward, "):
        return {"us": host_us(torch, _gradients(torch, what), 5)}
    if what.startswith("AdamW foreach 148 "):
        return {"us": host_us(torch, _adamw(torch), 2)}
    if match := _PAIR.fullmatch(what):
        x, times = new(torch, 32, dtype="fp32"), 1 if match[1] == "one" else int(match[1])
        return {"us": times * alone_us(torch, lambda: x.add_(1), times)}
    calls = _alone(torch) if int(row["n"]) == 1 else _together(torch)
    return {"us": host_us(torch, known(calls, what, "what"), 5)}


_LAYERS: Final = 8


def _host_ranks(torch: Any, row: Row) -> Times | None:
    what, tokens = row["what"].removesuffix(", graph"), int(row["tokens"])
    reduced = {"layers": False, "layers + all_reduce": True}
    x = new(torch, tokens, 1024)
    call = (
        (lambda: [torch.distributed.all_reduce(x) for _ in range(_LAYERS)])
        if what == "all_reduce only"
        else _layers(torch, tokens, _LAYERS, reduced=known(reduced, what, "what"))
    )
    torch.distributed.barrier()
    if what != row["what"]:
        return {"gpu_us": replayed_us(torch, call) / _LAYERS}
    found = {
        "gpu_us": eager_us(torch, call) / _LAYERS,
        "host_us": host_us(torch, call, 3) / _LAYERS,
    }
    return found if row["rank"] == str(torch.distributed.get_rank()) else None


_HEADS, _WIDTH = 32, 128
"""Of the ring of `cp_attention`, which the rows with `zigzag_host` are of."""


def _zigzag_host(torch: Any, row: Row) -> Times:
    size = 1, _HEADS, int(row["s"]) // int(row["n"]), _WIDTH
    parts = new(torch, *size), new(torch, *size), new(torch, *size)
    exchange = row["collectives"] == "1"

    def ring() -> None:
        zigzag(torch, parts, exchange=exchange)

    return {"us": eager_us(torch, ring, 3), "host_us": host_us(torch, ring, 3)}


_SHAPES: Final = {"4096": {"heads": "32", "kv": "8", "ffn": "14336", "layers": "4"}}
"""What `host_tp` does not say: the stack of `model` has it."""


def _host_tp(torch: Any, row: Row) -> Times:
    if row["section"] == "zigzag_host":
        return _zigzag_host(torch, row)
    if row["section"] != "tp_host" or row["hidden"] not in _SHAPES:
        told = f"hidden {row['hidden']}" if row["hidden"] else row["section"]
        raise UnsupportedError(f"the table does not say the heads of {told}")
    shape = {**row, **_SHAPES[row["hidden"]]}
    stack = Stack(torch, shape, collectives=row["collectives"] == "1")
    return {
        "fwd_us": eager_us(torch, stack.inference, 3),
        "fwdbwd_us": eager_us(torch, stack.training, 3),
        "fwd_host_us": host_us(torch, stack.inference, 1),
        "fwdbwd_host_us": host_us(torch, stack.training, 1),
    }


_PIECES: Final = ("init", "exchange", "attend", "merge", "wait")
"""Of a step of the ring: the table does not say which calls each has."""

TABLES: Final = (
    Table(
        name="host",
        about="time of the host for a call, the device busy",
        columns={
            **dict.fromkeys(("what", "who"), WORD),
            "n": COUNT,
            "cpus": WORD,
            "us": MEASURED,
            **dict.fromkeys(
                ("free_us", "wall_us", "gpu_us", "min_us", "max_us", "inner_us"), BESIDE
            ),
        },
        program=_host,
        ranks=lambda row: int(row["n"]),
    ),
    Table(
        name="host_ranks",
        about="layers of four ranks: device and host, a layer",
        columns={
            "what": WORD,
            "tokens": COUNT,
            "cpus": WORD,
            "rank": WORD,
            "host_us": MEASURED,
            **dict.fromkeys(("host_min", "host_max"), BESIDE),
            "gpu_us": MEASURED,
            **dict.fromkeys(("gpu_min", "gpu_max"), BESIDE),
        },
        program=_host_ranks,
        ranks=lambda row: 4,
        part=lambda row, column: "graph" if row["rank"] == "all" else column.removesuffix("_us"),
    ),
    Table(
        name="host_tp",
        about="the stack of model with its collectives and without, and its host",
        columns={
            **dict.fromkeys(("section", "who"), WORD),
            "n": COUNT,
            **dict.fromkeys(("hidden", "seq", "s"), NOTE),
            "cpus": WORD,
            "collectives": COUNT,
            **dict.fromkeys(("fwd_us", "fwd_host_us", "fwdbwd_us", "fwdbwd_host_us"), MEASURED),
            "us": MEASURED,
            "host_us": MEASURED,
            **dict.fromkeys(_PIECES, BESIDE),
        },
        program=_host_tp,
        ranks=lambda row: int(row["n"]),
        part=lambda row, column: "host" if "host" in column else "",
    ),
)
