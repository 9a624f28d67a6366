"""One collective under way: its ranks come, its channels are timed, it completes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Final, Protocol

import numpy as np

from kernbench.ccl.channel import Channel, ChannelPlan
from kernbench.ccl.config import Chosen
from kernbench.ccl.costs import Span, StepCosts, pass_over
from kernbench.ccl.layout import Layout
from kernbench.ccl.operations import OPERATIONS, Operation
from kernbench.ccl.plan import Setting, plan_of
from kernbench.ccl.values import Array, Operands, Recipe, evaluate, recipe
from kernbench.errors import KernbenchError
from kernbench.hw.path import Path
from kernbench.hw.pe import PeCosts, later
from kernbench.hw.queue import QueueSpec
from kernbench.memory import Allocator, Buffer, DType, Space, View, contiguous_strides
from kernbench.sim_engine.command import Command
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import Record
from kernbench.tl.tile import Pointer


class Choose(Protocol):
    """Returns the algorithm of an operation; see `Choices.choose`."""

    def __call__(
        self, operation: str, nbytes: int, sips: tuple[int, ...], ranks: int | None = None
    ) -> Chosen:
        """See the class."""
        ...


@dataclass(frozen=True, slots=True)
class Reduction:
    """What a reduce operation does to values.

    Attributes:
        name: As users write it.
        combine: Name of the numpy ufunc between two values.
        average: Whether the sum is divided by the number of ranks afterwards.
        factor: What each input is multiplied by beforehand; None for nothing.
    """

    name: str
    combine: str
    average: bool = False
    factor: float | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """All that the timing of a collective depends on, besides when its ranks come.

    Attributes:
        chosen: The algorithm.
        operation: Name of the operation.
        sips: Device of each rank of the group.
        sizes: Elements of each block; see `Operation.sizes`.
        dtype: Element type.
        root: Rank inside the group.
    """

    chosen: Chosen
    operation: str
    sips: tuple[int, ...]
    sizes: tuple[Any, ...]
    dtype: DType
    root: int


class Prepared:
    """Everything about collectives of one shape that does not depend on time.

    Args:
        model: What all collectives of the engine share.
        shape: The shape.

    Attributes:
        shape: The shape.
        operation: What it does.
        channels: Its channels.
    """

    def __init__(self, model: "CollectiveModel", shape: Shape) -> None:
        chosen, n = shape.chosen, len(shape.sips)
        self.shape: Final = shape
        launch = chosen.queue.launch
        self._launch: Final = model.launch if launch is None else launch
        self.operation: Final[Operation] = OPERATIONS[shape.operation]
        self._blocks: Final = self.operation.sizes(shape.sizes, n)
        self._offsets: Final = np.cumsum(self._blocks, axis=1) - self._blocks
        algorithm = chosen.algorithm(shape.operation)
        costs = StepCosts(model.costs, chosen.queue, shape.dtype)
        largest = int(self._blocks.max(initial=0))
        share = -(-largest // chosen.channels)
        grid = model.engine.topology.grid(shape.sips)
        self._finals: dict[tuple[int, int], list[tuple[int, slice]]] = {}
        self.channels: Final[list[ChannelPlan]] = []
        for number in range(chosen.channels):
            setting = Setting(
                shape.operation,
                n,
                shape.root,
                grid,
                number,
                chosen.channels,
                max(1, -(-share // costs.piece)),
            )
            plan = plan_of(algorithm, setting)
            path = partial(self._path, model)
            self.channels.append(
                ChannelPlan(algorithm, setting, plan, self._blocks, chosen.align, costs, path)
            )

    def _path(self, model: "CollectiveModel", sender: int, receiver: int) -> Path:
        sips = self.shape.sips
        return model.path(sips[sender], sips[receiver], self.shape.chosen.queue)

    def start_up(self, rank: int) -> int:
        """Returns what passes before a rank's first exchange, in picoseconds.

        Its launch, and its pass over the share that it has in charge (see `QueueSpec`). Where in
        the collective this pass lies makes no difference to when the rank is done.
        """
        return self._launch + pass_over(self.shape.chosen.queue, self._own_bytes(rank))

    def _own_bytes(self, rank: int) -> int:
        """Returns the size of the share that a rank has in charge; 0 where only some have one."""
        n = len(self.shape.sips)
        if self.operation.rooted or n == 1:
            return 0
        row = self._blocks[rank if len(self._blocks) > 1 else 0]
        elements = -(-int(row[0]) // n) if self.operation.blocks == "one" else int(row[rank])
        return elements * self.shape.dtype.itemsize

    @property
    def planned(self) -> bool:
        """Whether what it does is known without a live run."""
        return all(channel.plan is not None for channel in self.channels)

    @cached_property
    def given(self) -> list[tuple[int, int]]:
        """By rank, the place in its buffer of what it gives, and how many elements that is."""
        root, n = self.shape.root, len(self.shape.sips)
        return [self._region(rank, self.operation.given(rank, n, root)) for rank in range(n)]

    @cached_property
    def taken(self) -> list[tuple[int, int]]:
        """By rank, the place in its buffer of what it takes, and how many elements that is."""
        root, n = self.shape.root, len(self.shape.sips)
        return [self._region(rank, self.operation.taken(rank, n, root)) for rank in range(n)]

    def finals(self, channel: int, rank: int) -> list[tuple[int, slice]]:
        """Returns the chunks that a rank takes through a channel, each with its place in them."""
        found = self._finals.get((channel, rank))
        if found is None:
            layout = self.channels[channel].layout
            n, first = len(self.shape.sips), self.taken[rank][0]
            blocks = self.operation.taken(rank, n, self.shape.root)
            found = self._finals[channel, rank] = []
            for chunk in range(blocks.start * layout.parts, blocks.stop * layout.parts):
                low, high = layout.extent(rank, chunk)
                if low < high:
                    found.append((chunk, slice(low - first, high - first)))
        return found

    def _region(self, rank: int, blocks: range) -> tuple[int, int]:
        row = rank if len(self._blocks) > 1 else 0
        if not blocks:
            return 0, 0
        begin = int(self._offsets[row, blocks.start])
        return begin, int(self._blocks[row, blocks.start : blocks.stop].sum())

    def kept(self, rank: int) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Returns the part of its buffer that a rank sends to itself and where it lands."""
        moved = self.operation.kept(rank, len(self.shape.sips))
        if moved is None:
            return None
        source, target = (self._region(rank, range(block, block + 1)) for block in moved)
        return source, target

    @cached_property
    def recipes(self) -> list[Recipe]:
        """What each channel computes; asked for only while data is on."""
        found = []
        n = len(self.shape.sips)
        for channel in self.channels:
            assert channel.plan is not None
            parts, scratch = channel.plan.parts, channel.plan.scratch
            chunks = (self.operation.count(n) + scratch) * parts
            kept = []
            for rank in range(n):
                moved = self.operation.kept(rank, n)
                kept += [
                    (rank, moved[0] * parts + part, moved[1] * parts + part)
                    for part in range(parts if moved is not None else 0)
                    if moved is not None
                ]
            found.append(recipe(channel.plan, chunks, kept))
        return found

    @cached_property
    def same_everywhere(self) -> bool:
        """Whether all ranks end with the very same values."""
        return (
            self.operation.takes == "all"
            and self.operation.blocks != "pairs"
            and all(bool((how.final == how.final[0]).all()) for how in self.recipes)
        )


class CollectiveModel:
    """Runs collectives of one engine; keeps what does not depend on time, and a memo of times.

    Args:
        engine: The engine.
        choose: Returns the algorithm of an operation on so many bytes between some SIPs.
    """

    def __init__(self, engine: GraphEngine, choose: Choose | None = None) -> None:
        self.engine: Final = engine
        self._choose: Final = choose
        system = engine.topology.machine.system
        self.costs: Final = PeCosts(system.sip.pe, system.sip.cube)
        self.launch: Final = system.sip.collective_launch
        self.memo: Final[dict[Any, tuple[list[int], list[Span]]]] = {}
        self._paths: dict[tuple[int, int, int, int], Path] = {}
        self._prepared: dict[Shape, Prepared] = {}

    def path(self, source: int, destination: int, queue: QueueSpec) -> Path:
        """Returns the path from the first PE of a SIP to that of another."""
        feed = queue.feed(self.costs.pe.dma)
        key = (source, destination, queue.vc_chunk_size, feed.per_second)
        path = self._paths.get(key)
        if path is None:
            topology = self.engine.topology
            path = self._paths[key] = self.engine.network.path(
                topology.cube_node(source),
                topology.cube_node(destination),
                feed,
                queue.vc_chunk_size,
            )
        return path

    def choose(
        self, operation: str, nbytes: int, sips: tuple[int, ...], ranks: int | None = None
    ) -> Chosen:
        """Returns the algorithm of an operation.

        Args:
            operation: A key of `OPERATIONS`.
            nbytes: Size of its data, as nccl-tests counts it.
            sips: Device of each rank that takes part.
            ranks: See `Choices.choose`.

        Raises:
            UsageError: If no algorithm implements it.
        """
        assert self._choose is not None, "made without a way to choose"
        return self._choose(operation, nbytes, sips, ranks)

    def prepare(self, shape: Shape) -> Prepared:
        """Returns what is known of collectives of a shape, from memory if it can be."""
        found = self._prepared.get(shape)
        if found is None:
            found = self._prepared[shape] = Prepared(self, shape)
        return found


@dataclass(slots=True, eq=False)
class _Part:
    """One rank of a collective."""

    command: Command
    start: int
    sources: Sequence[View]
    targets: Sequence[View]
    ends: dict[int, int]
    attempt: int = 0
    done: bool = False
    fault: KernbenchError | None = None
    flat: Array | None = None
    workspace: Pointer | None = None


class Collective:
    """One collective of one group.

    Args:
        model: What all collectives of the engine share.
        chosen: The algorithm.
        operation: What it does, a key of `OPERATIONS`.
        sips: Device of each rank of the group.
        sizes: Elements of each block; of `all_to_all`, a row for each rank of what it sends.
        dtype: Element type.
        reduction: How values are combined, where they are.
        root: Rank inside the group, where one plays a part of its own.
        line: What the group's collectives have in common: they come one after the other.

    Attributes:
        chosen: The algorithm.
        ranks: How many ranks take part.
        arrived: Ranks, inside the group, whose stream has come to it.
    """

    def __init__(
        self,
        model: CollectiveModel,
        chosen: Chosen,
        operation: str,
        sips: Sequence[int],
        sizes: Sequence[Any],
        dtype: DType,
        reduction: Reduction | None = None,
        root: int = 0,
        line: object = None,
    ) -> None:
        if operation == "all_to_all":
            sizes = [tuple(row) for row in sizes]
        shape = Shape(chosen, operation, tuple(sips), tuple(sizes), dtype, root)
        self.chosen: Final = chosen
        self.ranks: Final = len(sips)
        self.arrived: Final[set[int]] = set()
        self._model = model
        self._engine = model.engine
        self._prepared = model.prepare(shape)
        self._reduction = reduction
        self._parts: dict[int, _Part] = {}
        self._outputs: list[Array] | None = None
        self._live = self._engine.fidelity == "tile" or not self._prepared.planned
        self._timed = self._engine.timed or self._live
        combine = "add" if reduction is None else reduction.combine
        self._channels = [
            Channel(
                model,
                channel,
                chosen.queue,
                combine,
                self,
                shape.sips if line is None else line,
                live=self._live,
            )
            for channel in self._prepared.channels
        ]
        self._done = 0
        self._faulty = False

    def starved(self) -> list[tuple[int, int, int]]:
        """Returns the queues whose sender waits for a credit: channel, sender, receiver."""
        return [
            (number, *pair)
            for number, channel in enumerate(self._channels)
            for pair in channel.starved()
        ]

    @property
    def messages(self) -> int:
        """About how many messages its ranks send, for who wonders whether to run it again."""
        setting = self._prepared.channels[0].setting
        return self.ranks * max(self.ranks, setting.messages) * setting.channels

    def again(self, engine: GraphEngine, n_slots: int) -> "Collective":
        """Returns the same collective on an engine of its own, over queues of other lengths."""
        shape = self._prepared.shape
        queue = replace(self.chosen.queue, n_slots=n_slots)
        return Collective(
            CollectiveModel(engine),
            replace(self.chosen, queue=queue),
            shape.operation,
            shape.sips,
            shape.sizes,
            shape.dtype,
            self._reduction,
            shape.root,
        )

    @property
    def engine(self) -> GraphEngine:
        """What runs it."""
        return self._engine

    def needs(self, rank: int) -> Sequence[int]:
        """Returns the ranks whose values a rank ends with: it cannot be over without them.

        Of an operation whose blocks are of the same size on all ranks.

        Args:
            rank: Inside the group, as are those returned.
        """
        shape, operation = self._prepared.shape, self._prepared.operation
        taken = operation.taken(rank, self.ranks, shape.root)
        if not any(shape.sizes[block] for block in taken):
            return ()
        return (shape.root,) if operation.gives == "root" else range(self.ranks)

    def join(self, rank: int, sources: Sequence[View], targets: Sequence[View]) -> "Joining":
        """Returns the work of one rank of the group.

        Args:
            rank: Inside the group.
            sources: What it gives, in order: all its blocks at once, or in any parts.
            targets: Where what it takes goes, likewise; may be the sources.
        """
        return Joining(self, rank, sources, targets)

    def arrive(
        self,
        rank: int,
        command: Command,
        start: int,
        sources: Sequence[View],
        targets: Sequence[View],
    ) -> None:
        """Takes a rank whose stream has come to the collective."""
        part = self._parts[rank] = _Part(command, start, sources, targets, {})
        self.arrived.add(rank)
        if self._engine.enable_data:
            try:
                for view in sources:
                    view.read()
            except KernbenchError as error:
                part.fault = error
                self._faulty = True
        if self._timed:
            begin = start + (self._prepared.start_up(rank) if self._engine.timed else 0)
            for channel in self._channels:
                channel.arrive(rank, begin)
        elif len(self._parts) == self.ranks:
            end = max(part.start for part in self._parts.values())
            for member in range(self.ranks):
                for number in range(len(self._channels)):
                    self.timed(member, number, end)

    # What channels ask for

    def command(self, rank: int) -> Command:
        """See `Ranks`."""
        return self._parts[rank].command

    def timed(self, rank: int, channel: int, end: int | None) -> None:
        """See `Ranks`."""
        part, loop = self._parts[rank], self._engine.loop
        if part.done:
            return
        part.attempt += 1
        if end is None:
            part.ends.pop(channel, None)
            return
        part.ends[channel] = end
        if len(part.ends) == len(self._channels):
            end = max(part.ends.values())
            owner = self._engine.command_owner(part.command.host.rank)
            loop.at(later(end, loop.now), owner, self._finish, rank, end, part.attempt)

    def workspace(self, rank: int, layout: Layout) -> Pointer:
        """See `Ranks`."""
        part = self._parts[rank]
        if part.fault is not None:
            raise part.fault
        if part.workspace is None:
            dtype, total = self._prepared.shape.dtype, layout.total(rank)
            # Not of the device's own memory: plans have no buffer of the kind either.
            memory = Allocator(Space.HBM, self._prepared.shape.sips[rank], 0, None)
            block = memory.allocate(total * dtype.itemsize, "buffer of a collective", None)
            buffer = Buffer(block)
            view = View(buffer, dtype, (total,), (1,), 0)
            if self._engine.enable_data:
                buffer.poison(dtype)
                begin, count = self._prepared.given[rank]
                if count:
                    _part_of(view, begin, count).write()[...] = self._input(rank)
                kept = self._prepared.kept(rank)
                if kept is not None:
                    source, target = (_part_of(view, *place) for place in kept)
                    target.write()[...] = source.array()
            part.workspace = Pointer(view, 0)
        return part.workspace

    # Completion

    def _finish(self, rank: int, end: int, attempt: int) -> None:
        part = self._parts[rank]
        if part.attempt != attempt or part.done:
            return
        if self._faulty and part.fault is None:
            # What came out is worth nothing; this rank is aborted where it waits for it.
            return
        part.done = True
        self._done += 1
        for channel in self._channels:
            channel.done()
        if self._done == self.ranks and self._engine.op_log.full:
            for channel in self._channels:
                self._log_spans(channel)
        self._engine.complete(part.command, part.start, end, partial(self._apply, rank))

    def _apply(self, rank: int) -> None:
        part = self._parts[rank]
        if part.fault is not None:
            raise part.fault
        begin, count = self._prepared.taken[rank]
        if self._live:
            if count:
                assert part.workspace is not None
                values = _part_of(part.workspace.view, begin, count).read().copy()
                self._average(values)
                _scatter(part.targets, values)
            return
        same = self._prepared.same_everywhere
        if self._outputs is None and len(self._parts) == self.ranks:
            self._outputs = self._evaluate(range(1 if same else self.ranks))
        if self._outputs is not None:
            values = self._outputs[0 if same else rank]
        else:
            # Others are still to come and may need what this rank gave, which it may now change.
            same, values = False, self._evaluate(range(rank, rank + 1))[0]
            part.flat = self._input(rank).copy()
        _scatter(part.targets, values, lent=same)

    def _input(self, rank: int) -> Array:
        """Returns what a rank gives, flat."""
        part = self._parts[rank]
        if part.flat is not None:
            return part.flat
        if len(part.sources) == 1:
            flat = part.sources[0].array().reshape(-1)
        else:
            arrays = [view.array().reshape(-1) for view in part.sources]
            flat = np.concatenate([np.empty(0, self._prepared.shape.dtype.numpy), *arrays])
        if self._reduction is not None and self._reduction.factor is not None:
            flat = flat * flat.dtype.type(self._reduction.factor)
        return flat

    def _evaluate(self, ranks: Sequence[int]) -> list[Array]:
        """Computes what some ranks take, from the inputs of those that have come."""
        prepared = self._prepared
        dtype = prepared.shape.dtype.numpy
        outputs = [np.empty(prepared.taken[rank][1], dtype) for rank in ranks]
        flat = [self._input(rank) if rank in self._parts else None for rank in range(self.ranks)]
        begins = [begin for begin, _ in prepared.given]
        combine = None if self._reduction is None else getattr(np, self._reduction.combine)
        for number, channel in enumerate(prepared.channels):
            places, parts = [], []
            for rank, output in zip(ranks, outputs, strict=True):
                for chunk, where in prepared.finals(number, rank):
                    places.append((rank, chunk))
                    parts.append(output[where])
            if places:
                operands = Operands(channel.layout, flat, begins)
                evaluate(prepared.recipes[number], operands, combine, places, parts)
        for output in outputs:
            self._average(output)
        return outputs

    def _average(self, values: Array) -> None:
        if self._reduction is not None and self._reduction.average:
            np.divide(values, values.dtype.type(self.ranks), out=values)

    def _log_spans(self, channel: Channel) -> None:
        log, itemsize = self._engine.op_log, self._prepared.shape.dtype.itemsize
        spans, shift = channel.spans()
        for span in spans:
            sender = self._parts[span.sender].command
            receiver = self._parts[span.receiver].command
            flow = log.new_flow()
            nbytes = span.elements * itemsize
            links = [link.name for link in channel.path(span.sender, span.receiver).route]
            to, number = receiver.host.rank, channel.track
            log.add(
                Record(
                    f"send to {to}",
                    "send",
                    sender.host.rank,
                    f"dma{number}.send",
                    sender.issued,
                    span.sent + shift,
                    span.injected + shift,
                    sender.site,
                    {"bytes": nbytes, "links": links},
                    flow,
                    sender.ranges,
                )
            )
            log.add(
                Record(
                    f"recv from {sender.host.rank}",
                    "recv",
                    to,
                    f"dma{number}.recv",
                    receiver.issued,
                    span.arrived + shift,
                    span.received + shift,
                    receiver.site,
                    {"bytes": nbytes},
                    flow,
                    receiver.ranges,
                )
            )


def _part_of(view: View, begin: int, count: int) -> View:
    return View(view.buffer, view.dtype, (count,), (1,), begin)


def _scatter(targets: Sequence[View], values: Array, *, lent: bool = False) -> None:
    """Writes flat values to views, one after the other.

    Args:
        targets: Where they go.
        values: As many as the targets take; nobody writes them afterwards.
        lent: Whether other ranks get the very same array.
    """
    begin = 0
    for target in targets:
        _fill(target, values[begin : begin + target.numel], lent=lent)
        begin += target.numel


def _fill(target: View, values: Array, *, lent: bool) -> None:
    """Writes a whole view; where that is a whole block, the values become its bytes uncopied."""
    buffer = target.buffer
    whole = values.nbytes == buffer.allocation.nbytes
    if whole and target.strides == contiguous_strides(target.shape):
        if lent:
            buffer.borrow(values)
        else:
            buffer.adopt(values)
    else:
        target.write()[...] = values.reshape(target.shape)


class Joining:
    """The work of one rank: it comes to the collective and leaves when its part is done.

    Attributes:
        collective: What it comes to.
    """

    __slots__ = ("_rank", "_sources", "_targets", "collective")

    def __init__(
        self, collective: Collective, rank: int, sources: Sequence[View], targets: Sequence[View]
    ) -> None:
        self.collective = collective
        self._rank = rank
        self._sources = sources
        self._targets = targets

    def begin(self, command: Command, start: int) -> None:
        """See `Work`."""
        self.collective.arrive(self._rank, command, start, self._sources, self._targets)
