"""One collective under way: its ranks come, the cheapest exact tier times it, it completes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, Final

import numpy as np

from kernbench.ccl.config import Chosen
from kernbench.ccl.costs import Span, StepCosts
from kernbench.ccl.lanes import vectorised
from kernbench.ccl.live import LiveComm
from kernbench.ccl.plan import Algorithm, Chunks, Plan, record
from kernbench.ccl.replay import Replay
from kernbench.ccl.values import Recipe, evaluate, recipe
from kernbench.des import Task
from kernbench.errors import KernbenchError
from kernbench.hw.path import Path
from kernbench.hw.pe import PeCosts, PeTimeline, Timeless, later
from kernbench.hw.queue import Queue, Sender
from kernbench.memory import DType, View
from kernbench.sim_engine.command import Command
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import Category, Record
from kernbench.tl.program import Program, Trace
from kernbench.tl.tile import Pointer


@dataclass(frozen=True, eq=False)
class Prepared:
    """Everything about a plan that depends on neither time nor sizes."""

    plan: Plan

    @cached_property
    def recipe(self) -> Recipe:
        """What it computes; asked for only while data is on."""
        return recipe(self.plan)


@lru_cache(256)
def prepare(algorithm: Algorithm, world_size: int) -> Prepared | None:
    """Returns the plan of an algorithm; None if it must run live."""
    plan = record(algorithm, world_size)
    return None if plan is None else Prepared(plan)


@dataclass(frozen=True, slots=True)
class Reduction:
    """What a reduce operation does to values.

    Attributes:
        name: As users write it.
        combine: Name of the numpy ufunc between two values.
        average: Whether the sum is divided by the number of ranks afterwards.
    """

    name: str
    combine: str
    average: bool = False


class CollectiveModel:
    """Runs collectives of one engine; keeps the paths and the memo of their times.

    Args:
        engine: The engine.
    """

    def __init__(self, engine: GraphEngine) -> None:
        self.engine: Final = engine
        system = engine.topology.machine.system
        self.costs: Final = PeCosts(system.sip.pe, system.sip.cube)
        self.launch: Final = system.sip.collective_launch if engine.timed else 0
        self.memo: Final[dict[Any, tuple[list[int], list[Span]]]] = {}
        self._paths: dict[tuple[int, int, int], Path] = {}

    def path(self, source: int, destination: int, vc_chunk: int) -> Path:
        """Returns the path from the first PE of a SIP to that of another."""
        key = (source, destination, vc_chunk)
        path = self._paths.get(key)
        if path is None:
            topology = self.engine.topology
            path = self._paths[key] = self.engine.network.path(
                topology.cube_node(source),
                topology.cube_node(destination),
                self.costs.pe.dma,
                vc_chunk,
            )
        return path


@dataclass(slots=True, eq=False)
class _Part:
    """One rank of a collective."""

    command: Command
    start: int
    source: View
    target: View
    fault: KernbenchError | None = None


class Collective:
    """One collective of one group.

    Args:
        model: What all collectives of the engine share.
        chosen: The algorithm.
        operation: What it does, such as `all_reduce`.
        sips: Device of each rank of the group.
        count: Elements of the buffer.
        dtype: Element type.
        reduction: How values are combined.
    """

    def __init__(
        self,
        model: CollectiveModel,
        chosen: Chosen,
        operation: str,
        sips: Sequence[int],
        count: int,
        dtype: DType,
        reduction: Reduction,
    ) -> None:
        self._model = model
        self._engine = model.engine
        self._chosen = chosen
        self._algorithm = chosen.algorithm(operation)
        self._sips = tuple(sips)
        self._chunks = Chunks(count, len(sips), chosen.align)
        self._dtype = dtype
        self._reduction = reduction
        self._parts: dict[int, _Part] = {}
        self._outputs: list[np.ndarray[Any, Any]] | None = None
        self._prepared = prepare(self._algorithm, len(sips))
        self._live = (
            self._prepared is None
            or self._engine.fidelity == "tile"
            # A plan completes once all ranks are in, so none may be done before that.
            or (self._engine.timed and not (count and self._prepared.plan.gathers))
        )
        self._replay: Replay | None = None
        self._queues: dict[tuple[int, int], Queue] = {}
        self._claimed: list[Path] = []
        self._alone = True
        self._done = 0

    def join(self, rank: int, source: View, target: View) -> "Joining":
        """Returns the work of one rank of the group.

        Args:
            rank: Inside the group.
            source: Its input, contiguous.
            target: Its output, contiguous; may be the input.
        """
        return Joining(self, rank, source, target)

    def arrive(self, rank: int, command: Command, start: int, source: View, target: View) -> None:
        """Takes a rank whose stream has come to the collective."""
        part = _Part(command, start + self._model.launch, source, target)
        if self._engine.enable_data:
            try:
                source.read()
            except KernbenchError as error:
                part.fault = error
        self._parts[rank] = part
        if self._live:
            self._start_live(rank)
        elif self._engine.timed:
            self._start_planned(rank)
        elif len(self._parts) == len(self._sips):
            end = max(part.start for part in self._parts.values())
            for member in range(len(self._sips)):
                self._finish_at(member, end)

    # Plans

    def _start_planned(self, rank: int) -> None:
        assert self._prepared is not None
        plan, loop = self._prepared.plan, self._engine.loop
        if len(self._parts) == 1:
            self._claim(plan.pairs)
            if not (self._alone and plan.in_step):
                self._replay = Replay(
                    plan,
                    self._chunks,
                    self._costs(),
                    {pair: self._queue(*pair) for pair in plan.pairs},
                    None if self._alone else self._sender,
                    self._finish_at,
                    trace=self._engine.op_log.full,
                )
        if self._replay is not None:
            # Shared links are used in simulated-time order, so a rank begins when it is there.
            start = self._parts[rank].start
            loop.at(start, self._owner(rank), self._replay.start, rank, start)
        elif len(self._parts) == len(self._sips):
            self._start_vectorised(self._prepared)

    def _start_vectorised(self, prepared: Prepared) -> None:
        starts = [self._parts[rank].start for rank in range(len(self._sips))]
        plan, queue, first = prepared.plan, self._chosen.queue, min(starts)
        key = (prepared, queue, self._sips, self._chunks, self._dtype, *(t - first for t in starts))
        known = self._model.memo.get(key)
        if known is None:
            paths = [
                self._model.path(self._sips[rank], self._sips[to], queue.vc_chunk_size)
                for rank, to in enumerate(plan.to[0])
            ]
            known = self._model.memo[key] = vectorised(
                plan,
                self._chunks,
                self._costs(),
                paths,
                [start - first for start in starts],
                trace=self._engine.op_log.full,
            )
        ends, spans = known
        for rank, end in enumerate(ends):
            self._finish_at(rank, first + end)
        self._log_spans(spans, first)

    def _costs(self) -> StepCosts:
        return StepCosts(self._model.costs, self._chosen.queue, self._dtype)

    def _claim(self, pairs: Sequence[tuple[int, int]]) -> None:
        vc_chunk = self._chosen.queue.vc_chunk_size
        self._claimed = [
            self._model.path(self._sips[source], self._sips[to], vc_chunk) for source, to in pairs
        ]
        self._alone = self._engine.network.claim(self._claimed)

    def _owner(self, rank: int) -> Any:
        return self._engine.command_owner(self._parts[rank].command.host.rank)

    def _queue(self, sender: int, receiver: int) -> Queue:
        queue = self._queues.get((sender, receiver))
        if queue is None:
            model, spec = self._model, self._chosen.queue
            path = model.path(self._sips[sender], self._sips[receiver], spec.vc_chunk_size)
            queue = self._queues[sender, receiver] = Queue(
                path, spec, model.costs.pe.poll_interval, model.costs.memory(spec.space).latency
            )
        return queue

    def _sender(self, rank: int, pe: PeTimeline[int]) -> Sender:
        return Sender(self._engine.network, pe, self._owner(rank))

    # Live

    def _start_live(self, rank: int) -> None:
        part = self._parts[rank]
        if len(self._parts) == 1:
            # What a live algorithm will send is not known beforehand: its links may be shared,
            # unless a plan of it shows that they are not.
            if self._prepared is None:
                self._alone = False
            else:
                self._claim(self._prepared.plan.pairs)
        owner = self._owner(rank)
        self._engine.loop.start(
            self._run_live,
            rank,
            owner=owner,
            clock=part.start,
            name=f"{self._chosen.name} on rank {part.command.host.rank}",
        )

    def _run_live(self, rank: int) -> None:
        engine, part = self._engine, self._parts[rank]
        task = engine.loop.current
        assert task is not None
        timeline = PeTimeline[int] if engine.timed else Timeless
        pe = timeline(part.start, self._model.costs.pe.issue, later)
        try:
            end = self._run_algorithm(rank, task, pe)
        except BaseException as error:
            engine.fail(part.command, error)
            end = pe.clock
        self._finish_at(rank, end)

    def _run_algorithm(self, rank: int, task: Task, pe: PeTimeline[int]) -> int:
        engine, part = self._engine, self._parts[rank]
        if part.fault is not None:
            raise part.fault
        if engine.enable_data and part.source is not part.target:
            _fill(part.target, part.source.array())
        full = engine.op_log.full
        program = Program(
            task,
            pe,
            self._model.costs,
            channels=_Channels(self._queue, rank, len(self._sips)),
            sender=self._sender(rank, pe) if engine.timed and not self._alone else None,
            data=engine.enable_data,
            trace=self._tracer(part.command) if full else None,
            flows=engine.op_log.new_flow if full else None,
        )
        task.subject = program
        comm = LiveComm(
            program,
            rank,
            Pointer(part.target, 0),
            self._chunks,
            self._reduction.combine,
            self._chosen.queue,
        )
        self._algorithm(comm)
        program.drain()
        return program.end

    def _tracer(self, command: Command) -> Trace:
        log = self._engine.op_log

        def trace(
            name: str,
            category: Category,
            track: str,
            start: int,
            end: int,
            flow: int,
            args: Mapping[str, Any],
        ) -> None:
            log.add(
                Record(
                    name,
                    category,
                    command.host.rank,
                    f"pe0.{track}",
                    command.issued,
                    start,
                    end,
                    command.site,
                    args,
                    flow,
                )
            )

        return trace

    # Completion

    def _finish_at(self, rank: int, end: int) -> None:
        loop = self._engine.loop
        loop.at(later(end, loop.now), self._owner(rank), self._finish, rank, end)

    def _finish(self, rank: int, end: int) -> None:
        part = self._parts[rank]
        if part.fault is None and any(other.fault for other in self._parts.values()):
            # What came out is worth nothing; this rank is aborted where it waits for it.
            return
        self._done += 1
        if self._done == len(self._sips):
            self._engine.network.release(self._claimed, alone=self._alone)
            if self._replay is not None:
                self._log_spans(self._replay.spans(), 0)
        self._engine.complete(
            part.command, part.start - self._model.launch, end, partial(self._apply, rank)
        )

    def _apply(self, rank: int) -> None:
        part = self._parts[rank]
        if self._live:
            if self._reduction.average:
                self._average(part.target.write())
            return
        if part.fault is not None:
            raise part.fault
        if self._outputs is None:
            assert self._prepared is not None
            self._outputs = self._evaluate(self._prepared.recipe)
        mine = self._outputs[rank if len(self._outputs) > 1 else 0]
        _fill(part.target, mine.reshape(part.target.shape))

    def _evaluate(self, how: Recipe) -> list[np.ndarray[Any, Any]]:
        """Computes all outputs once, when the first rank completes: all inputs are settled then."""
        inputs = [self._parts[rank].source.array().reshape(-1) for rank in range(len(self._sips))]
        copies = 1 if how.same_everywhere else len(inputs)
        outputs = [np.empty(self._chunks.count, self._dtype.numpy) for _ in range(copies)]
        evaluate(how, self._chunks, inputs, getattr(np, self._reduction.combine), outputs)
        if self._reduction.average:
            for output in outputs:
                self._average(output)
        return outputs

    def _average(self, values: np.ndarray[Any, Any]) -> None:
        np.divide(values, self._dtype.numpy.type(len(self._sips)), out=values)

    def _log_spans(self, spans: Sequence[Span], shift: int) -> None:
        log, itemsize = self._engine.op_log, self._dtype.itemsize
        for span in spans:
            sender = self._parts[span.sender].command
            receiver = self._parts[span.receiver].command
            path = self._model.path(
                self._sips[span.sender],
                self._sips[span.receiver],
                self._chosen.queue.vc_chunk_size,
            )
            flow = log.new_flow()
            nbytes = span.elements * itemsize
            links = [link.name for link in path.route]
            to = receiver.host.rank
            log.add(
                Record(
                    f"send to {to}",
                    "send",
                    sender.host.rank,
                    "dma.send",
                    sender.issued,
                    span.sent + shift,
                    span.injected + shift,
                    sender.site,
                    {"bytes": nbytes, "links": links},
                    flow,
                )
            )
            log.add(
                Record(
                    f"recv from {sender.host.rank}",
                    "recv",
                    to,
                    "dma.recv",
                    receiver.issued,
                    span.arrived + shift,
                    span.received + shift,
                    receiver.site,
                    {"bytes": nbytes},
                    flow,
                )
            )


def _fill(target: View, values: np.ndarray[Any, Any]) -> None:
    """Writes a whole view; a tensor that is new has no bytes before."""
    if target.buffer.data is None:
        target.buffer.adopt(np.array(values))
    else:
        target.write()[...] = values


class Joining:
    """The work of one rank: it comes to the collective and leaves when its part is done."""

    __slots__ = ("_collective", "_rank", "_source", "_target")

    def __init__(self, collective: Collective, rank: int, source: View, target: View) -> None:
        self._collective = collective
        self._rank = rank
        self._source = source
        self._target = target

    def begin(self, command: Command, start: int) -> None:
        """See `Work`."""
        self._collective.arrive(self._rank, command, start, self._source, self._target)


class _Channels:
    """The queues of one rank, by its peer's rank in the group."""

    def __init__(self, queue: Callable[[int, int], Queue], rank: int, peers: int) -> None:
        self.peers = peers
        self._queue = queue
        self._rank = rank

    def outgoing(self, peer: int) -> Queue:
        return self._queue(self._rank, peer)

    def incoming(self, peer: int) -> Queue:
        return self._queue(peer, self._rank)
