"""Runs one collective on an engine, without the runtime."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from kernbench.ccl.collective import Collective
from kernbench.ccl.config import Chosen, choose, load_ccl
from kernbench.ccl.layout import Cuts, Layout
from kernbench.ccl.model import CollectiveModel
from kernbench.ccl.operations import Reduction
from kernbench.ccl.plan import Algorithm, Plan, Setting, plan_of
from kernbench.ccl.prepared import CollectiveShape
from kernbench.config import shipped
from kernbench.des import Event
from kernbench.errors import call_site
from kernbench.memory import DType, Storage, View, dtypes
from kernbench.sim_engine.command import Command, Stream
from kernbench.sim_engine.dials import Fidelity
from kernbench.sim_engine.engine import GraphEngine, Hold
from kernbench.sim_engine.host import Host
from kernbench.topology import Topology

SUM = Reduction("sum", "add")


def shipped_algorithm(name: str = "ring_allreduce_tcm", *overrides: str) -> Chosen:
    """Returns an algorithm of the shipped `ccl.yaml`, by default one with small slots."""
    path = shipped("configs") / "ccl.yaml"
    return choose(load_ccl(path, overrides), path, name)


def own_algorithm(algorithm: Algorithm, *overrides: str) -> Chosen:
    """Returns the queues of the shipped ring with another algorithm."""
    module = ModuleType("own")
    module.all_reduce = algorithm  # type: ignore[attr-defined]
    return replace(
        shipped_algorithm("ring_allreduce_tcm", *overrides),
        name="own",
        module=module,
        path=Path("x"),
    )


def planned(algorithm: Algorithm, ranks: int) -> Plan | None:
    """Returns the plan of an all-reduce."""
    return plan_of(algorithm, Setting("all_reduce", ranks, 0, (ranks,)))


def cut(count: int, parts: int, align: int = 1) -> Layout:
    """Returns a single block of `count` elements in `parts` chunks."""
    return Layout(np.array([[count]]), Cuts(parts), align)


def ring(**queue: Any) -> Chosen:
    """Returns the shipped ring with other queues, and chunks that begin anywhere."""
    chosen = shipped_algorithm()
    return replace(chosen, queue=replace(chosen.queue, **queue), align=1)


@dataclass
class Outcome:
    """What a collective left behind."""

    ends: list[int | None]
    outputs: list[np.ndarray[Any, Any]]
    inputs: list[np.ndarray[Any, Any]]
    engine: GraphEngine
    hosts: list[Host] = field(default_factory=list)

    def same(self, other: "Outcome") -> None:
        """Asserts that two runs agree in bytes and picoseconds."""
        assert self.ends == other.ends
        assert [o.tobytes() for o in self.outputs] == [o.tobytes() for o in other.outputs]


def values(dtype: DType, ranks: int, count: int, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Returns inputs whose sums round, or are exact for whole numbers."""
    rng = np.random.default_rng(seed)
    if dtype.is_floating_point:
        drawn = rng.standard_normal((ranks, count)) * 10.0 ** rng.integers(-3, 3, (ranks, 1))
    else:
        drawn = rng.integers(-1000, 1000, (ranks, count)).astype(np.float64)
    return list(drawn.astype(dtype.numpy))


def skewed(ranks: int, seed: int = 0, spread: int = 5_000_000) -> list[int]:
    """Returns unequal starts."""
    rng = random.Random(seed * 1009 + ranks)
    return [rng.randrange(spread) for _ in range(ranks)]


def run(
    topology: Topology,
    chosen: Chosen,
    starts: Sequence[int],
    count: int,
    *,
    fidelity: Fidelity = "kernel",
    dtype: DType = dtypes.float32,
    reduction: Reduction = SUM,
    sips: Sequence[int] | None = None,
    data: bool = True,
    seed: int = 0,
    late: Sequence[int] = (),
    out_of_place: bool = False,
    unwritten: Sequence[int] = (),
    after: Callable[[int, View], None] | None = None,
    record: bool = False,
) -> Outcome:
    """Runs an all-reduce whose ranks join in an order shuffled by `seed`.

    Args:
        chosen: The algorithm.
        starts: When each rank issues it.
        count: Elements.
        fidelity: `tile` runs it live.
        reduction: How values are combined.
        sips: Device of each rank; the first ones by default.
        data: Whether buffers hold bytes.
        seed: Of the order in which ranks join, and of the inputs.
        late: Ranks whose start becomes known only when the loop is there.
        out_of_place: Whether results go to buffers of their own.
        unwritten: Ranks that nobody has given an input.
        after: Changes a rank's result right behind the collective, in its stream.
        record: Whether the log keeps everything.
    """
    ranks = len(starts)
    engine = GraphEngine(topology, data, fidelity=fidelity, record="full" if record else "summary")
    places = range(ranks) if sips is None else sips
    shape = CollectiveShape(chosen, "all_reduce", tuple(places), (count,), dtype)
    model = CollectiveModel(engine)
    collective = Collective(model, model.prepare(shape), reduction)
    inputs = values(dtype, ranks, count, seed) if data else []
    hosts: dict[int, Host] = {}
    commands: dict[int, Command] = {}
    sources: dict[int, View] = {}
    targets: dict[int, View] = {}
    kept: list[Storage] = []

    def view(rank: int, label: str) -> View:
        nbytes = max(count * dtype.itemsize, 1)
        storage = Storage(engine.devices[places[rank]].hbm, nbytes, label, call_site())
        kept.append(storage)
        if data:
            storage.buffer.poison(dtypes.uint8)
        return View(storage.buffer, dtype, (count,), (1,), 0)

    order = list(range(ranks))
    random.Random(seed).shuffle(order)
    for rank in order:
        host = Host(
            engine.loop, rank, engine.rank_owner(rank), 0 if rank in late else starts[rank], 64
        )
        stream = Stream("s", places[rank])
        source = sources[rank] = view(rank, f"x{rank}")
        target = targets[rank] = view(rank, f"y{rank}") if out_of_place else source
        if data and rank not in unwritten:
            source.write()[...] = inputs[rank]
        if rank in late:
            gate = Event("gate")
            engine.loop.at(starts[rank], engine.rank_owner(rank), gate.settle, starts[rank])
            stream.waits.append(gate)
        command = Command(
            "all_reduce",
            "collective",
            host,
            stream,
            collective.join(rank, [source], [target]),
            site=call_site(),
        )
        hosts[rank], commands[rank] = host, command
        engine.submit(command)
        if after is not None:
            hold = Hold(engine, None, 1, partial(after, rank, target))
            engine.submit(Command("after", "compute", host, stream, hold))
    engine.loop.run()
    if data and out_of_place:
        for rank in set(range(ranks)) - set(unwritten):
            assert (sources[rank].array() == inputs[rank]).all()
    return Outcome(
        [commands[rank].done.time for rank in range(ranks)],
        [targets[rank].array().copy() for rank in range(ranks)] if data else [],
        inputs,
        engine,
        [hosts[rank] for rank in range(ranks)],
    )


def submit(
    engine: GraphEngine,
    chosen: Chosen,
    sips: Sequence[int],
    count: int,
    times: int,
    starts: Sequence[int],
) -> list[Command]:
    """Issues all-reduces of one group in a row, and returns their commands.

    Args:
        engine: Simulates them.
        chosen: Their algorithm.
        sips: Device of each rank.
        count: Elements of float32.
        times: How many.
        starts: When the host of each rank begins, in picoseconds.
    """
    model, commands = CollectiveModel(engine), []
    shape = CollectiveShape(chosen, "all_reduce", tuple(sips), (count,), dtypes.float32)
    hosts = [
        Host(engine.loop, sip, engine.rank_owner(sip), start, 64)
        for sip, start in zip(sips, starts, strict=True)
    ]
    streams = [Stream("s", sip) for sip in sips]
    for _ in range(times):
        group = Collective(model, model.prepare(shape), SUM)
        for rank, sip in enumerate(sips):
            memory = Storage(engine.devices[sip].hbm, 4 * count, "x", None)
            view = View(memory.buffer, dtypes.float32, (count,), (1,), 0)
            work = group.join(rank, [view], [view])
            commands.append(Command("x", "collective", hosts[rank], streams[rank], work))
            engine.submit(commands[-1])
    return commands


def ring_order_sum(inputs: Sequence[np.ndarray[Any, Any]], align: int = 1) -> np.ndarray[Any, Any]:
    """The sum as the ring makes it: chunk c from rank c on, every partial sum rounded."""
    ranks, count = len(inputs), len(inputs[0])
    even = -(-count // ranks)
    size = -(-even // align) * align
    out = np.empty_like(inputs[0])
    for chunk in range(ranks):
        part = slice(min(chunk * size, count), min((chunk + 1) * size, count))
        total = inputs[chunk][part]
        for step in range(1, ranks):
            total = (inputs[(chunk + step) % ranks][part] + total).astype(out.dtype)
        out[part] = total
    return out
