"""The bytes of one collective: inputs of its ranks, outputs, and their delivery."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from kernbench.ccl.layout import Layout
from kernbench.ccl.operations import Reduction, average
from kernbench.ccl.prepared import Prepared
from kernbench.ccl.values import Array, Operands, evaluate
from kernbench.errors import KernbenchError
from kernbench.memory import Allocator, Space, Storage, View, contiguous_strides
from kernbench.memory.arithmetic import Function, function_named
from kernbench.tl.tile import Pointer

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Taker(Protocol):
    """A rank of a collective: what it gives, and where what it takes goes."""

    @property
    def rank(self) -> int:
        """Rank inside the group."""
        ...

    @property
    def sources(self) -> Sequence[View]:
        """What it gives, in order."""
        ...

    @property
    def targets(self) -> Sequence[View]:
        """Where what it takes goes, in order."""
        ...


class Delivery:
    """The bytes of one collective.

    The outputs of all ranks are computed when the first rank completes after all have arrived. The
    bytes of each rank change at its own completion.

    Args:
        prepared: Everything known of the collective before its ranks arrive.
        reduction: How values are combined; None if the operation combines none.
        parts: Work of each rank that has arrived, by rank.
        enabled: Whether tensors hold bytes.
        live: Whether each rank runs the algorithm itself, in a buffer of its own.

    Attributes:
        faults: Errors of ranks whose input was never written, by rank.
    """

    def __init__(
        self,
        prepared: Prepared,
        reduction: Reduction | None,
        parts: Mapping[int, Taker],
        *,
        enabled: bool,
        live: bool,
    ) -> None:
        self._prepared: Final = prepared
        self._reduction: Final = reduction
        self._parts: Final = parts
        self._enabled: Final = enabled
        self._live: Final = live
        self.faults: Final[dict[int, KernbenchError]] = {}
        self._workspaces: dict[int, Pointer] = {}
        self._storages: list[Storage] = []
        self._ranks: Final = len(prepared.shape.sips)
        self._factor, self._divides = (
            (None, False)
            if reduction is None
            else reduction.scaling(prepared.shape.dtype, self._ranks)
        )
        # Copies of the inputs of ranks that completed before every rank had arrived.
        self._copies: dict[int, Array] = {}
        # The output of each rank, or a single output that all ranks take.
        self._outputs: list[Bytes] = []

    def check(self, rank: int, view: View) -> None:
        """Notes a fault if an input was never written; the rank fails at its completion.

        Args:
            rank: Rank inside the group.
            view: A part of the rank's input; of several faults the first one counts.
        """
        try:
            view.read()
        except KernbenchError as error:
            self.faults.setdefault(rank, error)

    def deliver(self, part: Taker) -> None:
        """Writes the output of a rank to its targets.

        Args:
            part: Part of the rank.

        Raises:
            KernbenchError: If the rank's input was never written.
        """
        if self.faults and part.rank in self.faults:
            raise self.faults[part.rank]
        if self._live:
            self._deliver_live(part)
            return
        if not self._outputs:
            if len(self._parts) < self._ranks:
                # Ranks still to come may need this rank's input, which the user may change now.
                (taken,) = self._evaluate((part.rank,))
                self._copies[part.rank] = self.given(part.rank).copy()
                _scatter(part.targets, taken)
                return
            same = self._prepared.same_everywhere
            self._outputs = self._evaluate(range(1 if same else self._ranks))
        same = len(self._outputs) < self._ranks
        data, targets = self._outputs[0 if same else part.rank], part.targets
        _scatter(targets, data, lent=same)

    def workspace(self, rank: int, layout: Layout) -> Pointer:
        """Returns a rank's buffer in a live run, with the rank's input in place.

        Args:
            rank: Rank inside the group.
            layout: Cuts of the buffer.

        Raises:
            KernbenchError: If the rank's input was never written.
        """
        if rank in self.faults:
            raise self.faults[rank]
        found = self._workspaces.get(rank)
        if found is None:
            prepared = self._prepared
            dtype, total = prepared.shape.dtype, layout.total(rank)
            # The device's own memory is not used: runs of plans allocate no such buffer either.
            memory = Allocator(Space.HBM, prepared.shape.sips[rank], 0, None)
            storage = Storage(memory, total * dtype.itemsize, "buffer of a collective", None)
            self._storages.append(storage)
            buffer = storage.buffer
            view = View(buffer, dtype, (total,), (1,), 0)
            if self._enabled:
                buffer.poison(dtype)
                begin, count = prepared.given[rank]
                if count:
                    _part_of(view, begin, count).write()[...] = self.given(rank)
                kept = prepared.kept(rank)
                if kept is not None:
                    source, target = (_part_of(view, *place) for place in kept)
                    target.write()[...] = source.array()
            found = self._workspaces[rank] = Pointer(view, 0)
        return found

    def _deliver_live(self, part: Taker) -> None:
        begin, count = self._prepared.taken[part.rank]
        if count:
            values = _part_of(self._workspaces[part.rank].view, begin, count).read().copy()
            self._average(values)
            _scatter(part.targets, values.view(np.uint8))

    def given(self, rank: int) -> Array:
        """Returns the input of a rank, flat, scaled if the reduction says so."""
        copied = self._copies.get(rank)
        if copied is not None:
            return copied
        sources = self._parts[rank].sources
        if len(sources) == 1:
            flat = sources[0].array().reshape(-1)
        else:
            arrays = [view.array().reshape(-1) for view in sources]
            flat = np.concatenate([np.empty(0, self._prepared.shape.dtype.numpy), *arrays])
        if self._factor is not None:
            flat = self._function("multiply")(flat, flat.dtype.type(self._factor))
        return flat

    def _function(self, name: str) -> Function:
        return function_named(name, self._prepared.shape.dtype.numpy)

    @np.errstate(all="ignore")  # a sum may be infinite, of which no device tells
    def _evaluate(self, ranks: Sequence[int]) -> list[Bytes]:
        """Computes the outputs of some ranks from the inputs of all ranks that have arrived."""
        prepared = self._prepared
        dtype = prepared.shape.dtype.numpy
        outputs = [np.empty(prepared.taken[rank][1], dtype) for rank in ranks]
        flat = self._inputs()
        combine = None if self._reduction is None else self._function(self._reduction.combine)
        for number, channel in enumerate(prepared.channels):
            runs = [
                (rank, chunks, output[where])
                for rank, output in zip(ranks, outputs, strict=True)
                for chunks, where in prepared.runs(number, rank)
            ]
            if runs:
                operands = Operands(channel.layout, flat, prepared.begins)
                rows = None if combine is None else prepared.rows(number)
                if combine is not None and rows is not None:
                    rows.evaluate(operands, combine, runs)
                else:
                    evaluate(prepared.recipes[number], operands, combine, runs)
        for output in outputs:
            self._average(output)
        return [output.view(np.uint8) for output in outputs]

    def _inputs(self) -> list[Array | None]:
        """Returns the input of each rank; ranks that give the same bytes share one array."""
        found: list[Array | None] = []
        data: Bytes | None = None
        where: tuple[Any, ...] = ()
        flat: Array | None = None
        parts, copied = self._parts, bool(self._copies)
        for rank in range(self._ranks):
            part = parts.get(rank)
            if part is None or copied or len(part.sources) != 1:
                found.append(None if part is None else self.given(rank))
                continue
            view = part.sources[0]
            place = view.offset, view.shape, view.strides
            if view.buffer.data is not data or place != where:
                data, where, flat = view.buffer.data, place, self.given(rank)
            found.append(flat)
        return found

    def _average(self, values: Array) -> None:
        if self._divides:
            average(values, self._ranks)


def _part_of(view: View, begin: int, count: int) -> View:
    return View(view.buffer, view.dtype, (count,), (1,), begin)


def _scatter(targets: Sequence[View], data: Bytes, *, lent: bool = False) -> None:
    """Writes flat bytes to views, one view after another; fills a whole block without a copy.

    Args:
        targets: Views to write.
        data: Exactly the bytes of all views; nobody writes to them afterwards.
        lent: Whether other ranks get the same bytes object.
    """
    begin, several = 0, len(targets) > 1
    for target in targets:
        part, buffer = data, target.buffer
        if several:
            part = data[begin : begin + target.nbytes]
            begin += len(part)
        whole = len(part) == buffer.allocation.nbytes
        if not (whole and target.strides == contiguous_strides(target.shape)):
            target.write()[...] = part.view(target.dtype.numpy).reshape(target.shape)
        elif lent:
            buffer.borrow(part)
        else:
            buffer.adopt(part)
