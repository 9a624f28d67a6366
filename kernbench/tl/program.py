"""One tile program on one PE: the effect of its commands, and the times of its engines."""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

import numpy as np

from kernbench.des import Event, Fifo, Task
from kernbench.errors import CallSite, KernbenchError, UnsupportedError, call_site, site_fact
from kernbench.hw.pe import PeCosts, PeTimeline, later
from kernbench.hw.queue import Message, Queue, Sender
from kernbench.memory import Array, DType, OutOfMemoryError, Space, dtypes
from kernbench.memory.arithmetic import function_named
from kernbench.sim_engine.op_log import Category
from kernbench.tl import arithmetic, indices, symbols, types
from kernbench.tl.access import Region, Unknown, locate, read, write
from kernbench.tl.arithmetic import Function
from kernbench.tl.constants import constexpr, plain
from kernbench.tl.notices import Notice, notify
from kernbench.tl.operands import check_axis, check_mask, check_stored, common_shape, refusal
from kernbench.tl.races import Races
from kernbench.tl.recording import Recorder
from kernbench.tl.symbols import Affine, Symbol
from kernbench.tl.tile import Pointer, Tile
from kernbench.tl.types import Scalar
from kernbench.units import format_bytes


class MessageSizeError(KernbenchError):
    """A message is larger than a slot (K9)."""


class PeerError(KernbenchError):
    """A message to or from a program that does not exist (P9)."""


class Trace(Protocol):
    """Takes the activities of the engines of a PE, while the log keeps everything."""

    def __call__(
        self,
        name: str,
        category: Category,
        track: str,
        start: int,
        end: int,
        flow: int,
        args: Mapping[str, Any],
        /,
    ) -> None:
        """Takes one span, in picoseconds."""
        ...


PROGRAMS: Final = "the programs of this launch"
"""What the peers of a kernel's program are."""

_ACROSS: Final = "a kernel runs on one device: ranks exchange data through torch.distributed"


class Channels(Protocol):
    """The queues of a program.

    Attributes:
        peers: Number of programs that exchange messages; peers are numbered from 0.
        peers_are: What the numbers stand for, in reports.
    """

    peers: int

    @property
    def peers_are(self) -> str:
        """See above."""
        ...

    def outgoing(self, peer: int) -> Queue:
        """Returns the queue to a peer."""
        ...

    def incoming(self, peer: int) -> Queue:
        """Returns the queue from a peer."""
        ...


class Program:
    """The state of one program while it runs. Methods are the commands of `kernbench.tl`.

    Args:
        task: Task that runs the program and waits for it.
        pe: Engines of the PE.
        costs: Durations of the PE.
        ids: Index of the program on each axis of the grid.
        grid: Extents of the grid.
        port: Port of the HBM, if other programs use the port too; None if they do not.
        channels: Queues of the program; None if it has no peers.
        sender: Sending engine for shared links; None if nobody else uses the links.
        data: Whether tiles hold values.
        bounded: Whether a tile must fit into the TCM of one PE. The program of a collective is not
            bounded, because it stands for programs of many PEs.
        trace: Takes spans; None to drop them.
        flows: Numbers messages, for spans.
        recorder: Takes computations in place of computing; `data` is off then.
        races: Takes loads and stores for a check of races; None for no check.
        notices: Takes warnings; None to give them at once.

    Attributes:
        communicated: Whether the program has sent or received a message.
        data_dependent: Whether control flow or a mask of the program looked at loaded values.
    """

    def __init__(
        self,
        task: Task,
        pe: PeTimeline[int],
        costs: PeCosts,
        *,
        ids: Sequence[int] = (0,),
        grid: Sequence[int] = (1,),
        port: Fifo | None = None,
        channels: Channels | None = None,
        sender: Sender | None = None,
        data: bool = True,
        bounded: bool = True,
        trace: Trace | None = None,
        flows: Callable[[], int] | None = None,
        recorder: Recorder | None = None,
        races: Races | None = None,
        notices: list[Notice] | None = None,
    ) -> None:
        self.task: Final = task
        self.pe: Final = pe
        self.costs: Final = costs
        self.ids: Final = tuple(ids)
        self.grid: Final = tuple(grid)
        self.data: Final = data
        self._bounded: Final = bounded
        self.communicated = False
        self.data_dependent = False
        self._port: Final = port
        self._channels: Final = channels
        self._sender: Final = sender
        self._trace: Final = trace
        self._sent: list[tuple[Message, list[str]]] = []
        self._flows: Final = flows
        self._recorder: Final = recorder
        self._races: Final = races
        self._notices: Final = notices
        self._hbm: Final = costs.memory(Space.HBM)

    # Index arithmetic

    def program_id(self, axis: int) -> Tile:
        """Returns this program's index on an axis of the grid."""
        return self._along(self.ids, axis, 0, "tl.program_id")

    def num_programs(self, axis: int) -> Tile:
        """Returns the extent of the grid on an axis."""
        return self._along(self.grid, axis, 1, "tl.num_programs")

    def _along(self, numbers: Sequence[int], axis: int, other: int, name: str) -> Tile:
        if axis not in (0, 1, 2):
            raise refusal(f"{name}({axis}): a grid has the axes 0, 1 and 2")
        value = numbers[axis] if axis < len(numbers) else other
        return self.number(value, dtypes.int32, f"{name}({axis})")

    def arange(self, start: int, end: int) -> Tile:
        """Returns the integers `start..end-1`."""
        return self._formula(symbols.arange(int(start), int(end)))

    def number(self, value: Scalar, dtype: DType, name: str = "") -> Tile:
        """Returns a number as a tile without axes.

        Args:
            value: The number.
            name: What the kernel calls it, for reports.

        Raises:
            TileOperandError: If the type does not have the number.
        """
        if dtype in (dtypes.int32, dtypes.int64) and isinstance(value, int):
            symbol = symbols.constant(value, dtype)
            if symbol is not None:
                return self._formula(symbol, name)
        return Tile(self, (), dtype, types.constant(value, dtype), None, name=name)

    def _formula(self, symbol: Symbol, name: str = "", wrapped: str = "") -> Tile:
        return Tile(self, symbol.shape, symbol.dtype, None, None, symbol, None, name, wrapped)

    def tile(self, value: Tile | Scalar) -> Tile:
        """Returns a tile as it is, and one of Python's numbers as a tile of its type in Triton."""
        if isinstance(value, Tile):
            return value
        given = plain(value)
        number: Scalar = given.item() if isinstance(given, np.generic) else given
        return self.number(number, types.type_of(number))

    def full(self, shape: Sequence[int], value: Scalar | Tile, dtype: DType) -> Tile:
        """Returns a tile that holds one value.

        Args:
            value: Value of every element.

        Raises:
            TileOperandError: If the type does not have the value, or the value has axes.
        """
        shape = tuple([int(extent) for extent in shape])
        value = plain(value)
        self._check_room("full", shape, dtype)
        if isinstance(value, Tile):
            if value.shape:
                raise refusal(f"tl.full takes one value; got a tile of shape {list(value.shape)}")
            one = self.cast(value, dtype)
            return self._result(shape, dtype, lambda v: np.broadcast_to(v, shape), [one], one.ready)
        number: Scalar = value.item() if isinstance(value, np.generic) else value
        values = np.broadcast_to(types.constant(number, dtype), shape)
        return Tile(self, shape, dtype, values, None)

    def expand(self, tile: Tile, key: tuple[Any, ...]) -> Tile:
        """Returns the tile with an axis of extent 1 for each None of a key."""
        if tile.symbol is not None and len(key) - key.count(None) <= len(tile.shape):
            return self._formula(tile.symbol.expand(key), wrapped=tile.wrapped)
        shape = np.empty(tile.shape, np.bool_)[key].shape
        return self._result(shape, tile.dtype, lambda values: values[key], [tile], tile.ready)

    def _result(
        self,
        shape: tuple[int, ...],
        dtype: DType,
        function: Function,
        operands: Sequence[Tile | Array],
        ready: int | None,
        wrapped: str = "",
    ) -> Tile:
        """Returns the tile that a function gives; it has values if all operands have values."""
        recorder = None if ready is None else self._recorder
        known, raw = recorder is None, []
        for each in operands:
            if isinstance(each, Tile):
                wrapped = wrapped or each.wrapped
                if known:
                    raw.append(each.values)
                    known = raw[-1] is not None
            else:
                raw.append(each)
        values = function(*raw) if known else None
        number = None if recorder is None else recorder.compute(self.ids, function, operands)
        return Tile(self, shape, dtype, values, ready, None, number, "", wrapped)

    def _check_room(self, verb: str, shape: tuple[int, ...], dtype: DType) -> None:
        nbytes, capacity = _count(shape) * dtype.itemsize, self.costs.pe.tcm.capacity
        if self._bounded and nbytes > capacity:
            raise OutOfMemoryError(
                f"tl.{verb}: a tile of shape {shape} does not fit into the TCM of its PE",
                [
                    site_fact(call_site()),
                    f"it takes {format_bytes(nbytes)} ({dtype}) of {format_bytes(capacity)}",
                ],
                hint="use smaller blocks",
                code="M8",
            )

    # Memory

    def load(
        self,
        pointer: Pointer,
        mask: Tile | bool | None = None,
        other: Tile | Scalar | None = None,
    ) -> Tile:
        """Starts loading a tile; the program goes on. See `kernbench.tl.load`.

        Args:
            pointer: The block of pointers.
            mask: Lanes to load; None for all.
            other: Value of masked lanes; None for the value of lanes that nobody defined.

        Raises:
            TileOperandError: If the mask or `other` does not fit the pointers.
        """
        self.pe.issue()
        dtype = pointer.dtype
        filler, computed = types.undefined(dtype), None
        if mask is not None:
            mask = self._mask("load", pointer, mask)
        elif other is not None:
            raise refusal("tl.load got other= without mask=", hint="leave other out")
        if other is not None:
            other = self.tile(other)
            if other.shape and not pointer.shape:
                raise refusal(f"tl.load of one element got an other of shape {list(other.shape)}")
            # Truth values are loaded as bytes, so that 0.5 is False, as in Triton.
            other = self.cast(other, dtypes.int8 if dtype is dtypes.bool_ else dtype)
            if other.ready is None and not other.shape and other.values is not None:
                filler = types.convert(other.values, dtype)[()]
            else:
                computed = self.cast(other, dtype)
        tile = self._load(pointer, mask, filler)
        return tile if computed is None or mask is None else self.where(mask, tile, computed)

    def _mask(self, verb: str, pointer: Pointer, mask: Tile | bool) -> Tile:
        mask = self.tile(mask)
        check_mask(verb, mask.dtype, mask.shape, pointer.shape)
        return mask

    def _load(self, pointer: Pointer, mask: Tile | None, other: Any) -> Tile:
        region = locate(pointer, mask, "load", self._describe, repeat=True)
        dtype = pointer.dtype
        if self._races is not None:
            self._races.load(self.ids, pointer.view, region)
        self._check_room("load", region.shape, dtype)
        values = number = None
        if self.data and not isinstance(region, Unknown):
            values = read(pointer.view, region, other, self._describe)
        elif self._recorder is not None:
            number = self._recorder.load(self.ids, pointer.view, region, other)
        nbytes = dtype.itemsize * self._active(region, mask)
        through = self._book_port(nbytes)
        dma = self.costs.dma(nbytes)
        ready = self.pe.load(through, dma, self._hbm.latency)
        if self._trace is not None:
            self._span("load", "copy", "dma.load", ready - dma - self._hbm.latency, ready)
        return Tile(self, region.shape, dtype, values, ready, None, number)

    def store(
        self, pointer: Pointer, value: Tile | Scalar, mask: Tile | bool | None = None
    ) -> None:
        """Starts storing a tile; the program goes on. See `kernbench.tl.store`.

        Args:
            pointer: The block of pointers.
            value: Tile or scalar that broadcasts to the pointers.
            mask: Lanes to store; None for all.
        """
        self.pe.issue()
        if mask is not None:
            mask = self._mask("store", pointer, mask)
        tile = self.tile(value)
        region = locate(pointer, mask, "store", self._describe, repeat=False)
        check_stored(tile.shape, region.shape)
        if tile.dtype is not pointer.dtype:
            types.check_cast(tile.dtype, pointer.dtype)
        if self._races is not None:
            self._races.store(self.ids, pointer.view, region, tile)
        if self.data and not isinstance(region, Unknown):
            assert tile.values is not None
            write(pointer.view, region, tile.values)
        elif self._recorder is not None:
            self._recorder.store(self.ids, pointer.view, region, tile)
        nbytes = pointer.dtype.itemsize * self._active(region, mask)
        through = self._book_port(nbytes)
        dma = self.costs.dma(nbytes)
        done = self.pe.store(tile.ready or 0, through, dma, self._hbm.latency)
        if self._trace is not None:
            self._span("store", "copy", "dma.store", done - dma - self._hbm.latency, done)

    def fence(self) -> None:
        """Waits, in local time, until all stores of this program are done."""
        self.pe.fence()

    def _book_port(self, nbytes: int) -> int:
        duration = self._hbm.bandwidth.duration_ps(nbytes)
        if self._port is None:
            return self.pe.book_port(duration)
        self.task.clock = self.pe.clock
        self.task.synchronize()
        return self._port.reserve(self.pe.clock, duration)

    def _active(self, region: Region, mask: Tile | None) -> int:
        if mask is not None and mask.ready is not None:
            # A mask of loaded values decides how many bytes move, so the time depends on data.
            self.data_dependent = True
        return region.count

    def _describe(self) -> str:
        return f"program {self.ids} of grid {self.grid}"

    # Arithmetic

    def elementwise(self, name: str, *operands: Tile | Scalar) -> Tile:
        """Applies a function element by element.

        The MATH engine computes it, unless all operands are index arithmetic.

        Args:
            name: See `arithmetic.elementwise`.
            operands: Tiles and Python's numbers.

        Raises:
            TileOperandError: If Triton does not compile the function for these operands.
        """
        each: Any
        tiles, wrapped = [], ""
        for each in operands:
            if isinstance(each, Tile):
                tiles.append(each)
                wrapped = wrapped or each.wrapped
            elif isinstance(each, constexpr):
                return self.elementwise(name, *map(plain, operands))
        try:
            symbol = indices.formula_of(name, operands)
        except ValueError:
            symbol = None  # `common_shape` reports shapes that do not fit
        if symbol is not None:
            return self._formula(symbol, "", wrapped)
        shape = common_shape(f"{name} of tiles", [tile.shape for tile in tiles])
        function, dtype, given = arithmetic.elementwise(name, operands)
        computed = [t for t in tiles if t.ready is not None]
        ready = self._math(name, computed, _count(shape)) if computed else None
        # A recording has no values of computed tiles, and neither has a run without data.
        beyond = None
        if not dtype.is_floating_point and (ready is None or self._recorder is None):
            beyond = arithmetic.exact_range(name, given, dtype)
        if beyond is not None:
            site, text = call_site(), indices.wrapped_text(name, operands, dtype, beyond)
            wrapped = f"{text}, {site_fact(site)}"
            if ready is None:
                self._warn(site, f"{text}. Convert an operand first, with .to(tl.int64).")
        return self._result(shape, dtype, function, given, ready, wrapped)

    def _warn(self, site: CallSite | None, text: str) -> None:
        if self._notices is None:
            notify(site, text)
        elif all(site != each for each, _ in self._notices):
            self._notices.append((site, text))

    def combine(self, name: str, present: Tile, arrived: Tile) -> Tile:
        """Combines tiles of a type, as collectives do: NaN stays, and truth values add up as `or`.

        Args:
            name: Name of a numpy ufunc.
            present: First operand.
            arrived: Second operand, of the shape and type of the first.
        """
        ufunc = function_named(name, present.dtype.numpy)
        ready = self._math(name, [present, arrived], present.numel)
        operands = [present, arrived]
        return self._result(
            present.shape, present.dtype, lambda a, b: np.asarray(ufunc(a, b)), operands, ready
        )

    def move(self, offsets: int | Tile, by: int | Tile) -> Tile:
        """Returns offsets of pointers, moved by further elements.

        Offsets are added as int64, of whatever type they are: an address has 64 bits.

        Args:
            offsets: Elements from the first of the tensor.
            by: Elements to add.

        Raises:
            TileOperandError: If an offset is no whole number, or shapes do not fit.
        """
        second = self.tile(by)
        b = second.symbol
        if isinstance(offsets, int) and not offsets and isinstance(b, Affine):
            return second
        first = self.tile(offsets)
        a = first.symbol
        if isinstance(a, Affine) and isinstance(b, Affine):
            try:
                symbol = symbols.moved(a, b)
            except ValueError:
                symbol = None  # `common_shape` reports shapes that do not fit
            if symbol is not None:
                return self._formula(symbol, "", first.wrapped or second.wrapped)
        for each in (first, second):
            if each.dtype.is_floating_point:
                raise refusal(
                    f"a pointer moves by whole numbers; got {each.dtype}",
                    hint="convert the offsets with .to(tl.int64)",
                )
        nowhere = isinstance(offsets, int) and not offsets
        if nowhere and (second.ready is None or second.dtype is dtypes.int64):
            return second
        return self.elementwise("add", self._widened(first), self._widened(second))

    def _widened(self, tile: Tile) -> Tile:
        if tile.ready is None or tile.dtype is dtypes.uint64:
            return self.cast(tile, dtypes.int64)
        # The addition converts the offsets on its way, in no time of its own.
        return tile

    def cast(self, tile: Tile, dtype: DType) -> Tile:
        """Returns the tile with elements of another type.

        Raises:
            TileOperandError: If Triton does not compile the conversion.
        """
        if dtype is tile.dtype:
            return tile
        if tile.dtype.saturates or dtype.saturates:
            types.check_cast(tile.dtype, dtype)
        if isinstance(tile.symbol, Affine):
            symbol = tile.symbol.to(dtype)
            if symbol is not None:
                return self._formula(symbol, tile.name, tile.wrapped)
        ready = None if tile.ready is None else self._math("cast", [tile], tile.numel)
        return self._result(tile.shape, dtype, arithmetic.cast(dtype), [tile], ready)

    def where(self, condition: Tile | bool, yes: Tile | Scalar, no: Tile | Scalar) -> Tile:
        """Returns `yes` where `condition` holds, else `no`.

        Args:
            condition: Tile of truth values.
            yes: Values where the condition holds.
            no: Values where the condition does not hold.

        Raises:
            TileOperandError: If shapes or types do not fit.
        """
        condition = self.tile(condition)
        types.check_cast(condition.dtype, dtypes.bool_)
        operands = [t for t in (condition, yes, no) if isinstance(t, Tile)]
        shape = common_shape("tl.where of tiles", [tile.shape for tile in operands])
        function, dtype, values = arithmetic.where(yes, no)
        computed = [t for t in operands if t.ready is not None]
        ready = self._math("where", computed, _count(shape)) if computed else None
        return self._result(shape, dtype, function, [condition, *values], ready)

    def reduce(
        self,
        name: str,
        tile: Tile,
        axis: int | None,
        *,
        keep_dims: bool = False,
        dtype: DType | None = None,
    ) -> Tile:
        """Reduces an axis, or all elements.

        Args:
            name: `add`, `maximum` or `minimum`.
            axis: Axis to reduce; None for all.
            keep_dims: Whether reduced axes stay, with an extent of 1.
            dtype: Type in which `add` adds; None for the usual one.
        """
        check_axis(name, axis, tile.shape)
        shape = () if axis is None else tile.shape[:axis] + tile.shape[axis:][1:]
        if dtype is not None:
            types.check_cast(tile.dtype, dtype)
        function, result = arithmetic.reduction(name, tile.dtype, axis, dtype)
        ready = None if tile.ready is None else self._math(name, [tile], tile.numel)
        reduced = self._result(shape, result, function, [tile], ready)
        if not keep_dims:
            return reduced
        kept = [1] * len(tile.shape)
        if axis is not None:
            kept = list(tile.shape)
            kept[axis] = 1
        return self.reshape(reduced, tuple(kept))

    def reshape(self, tile: Tile, shape: tuple[int, ...]) -> Tile:
        """Returns the elements in another shape, in row-major order.

        Raises:
            TileOperandError: If the shape has another number of elements.
        """
        if _count(shape) != tile.numel:
            raise refusal(
                f"tl.reshape of a tile of shape {list(tile.shape)} to {list(shape)}",
                f"{tile.numel} elements, {_count(shape)} wanted",
            )
        return self._result(shape, tile.dtype, lambda v: v.reshape(shape), [tile], tile.ready)

    def transpose(self, tile: Tile, axes: tuple[int, ...]) -> Tile:
        """Returns the tile with its axes in another order.

        Raises:
            TileOperandError: If `axes` is no order of the tile's axes.
        """
        if sorted(axes) != list(range(len(tile.shape))):
            raise refusal(
                f"tl.trans of a tile of shape {list(tile.shape)} to axes {list(axes)}",
                f"expected an order of 0..{len(tile.shape) - 1}",
            )
        shape = tuple([tile.shape[axis] for axis in axes])
        return self._result(shape, tile.dtype, lambda v: v.transpose(axes), [tile], tile.ready)

    def dot(
        self, a: Tile, b: Tile, acc: Tile | None, out_dtype: DType | None, precision: str
    ) -> Tile:
        """Multiplies two tiles on the GEMM engine. See `kernbench.tl.dot`.

        Args:
            a: Tile of shape `[m, k]`.
            b: Tile of shape `[k, n]`.
            acc: Tile to add; None for none.
            out_dtype: Type of the result; None for that of `acc`, or float32.
            precision: How float32 is multiplied, see `arithmetic.PRECISIONS`.
        """
        function, dtype = arithmetic.product(a, b, acc, out_dtype, precision)
        a, b = self._dense(a), self._dense(b)
        (m, k), n = a.shape, b.shape[1]
        self.pe.issue()
        operands = [a, b] if acc is None else [a, b, acc]
        name = a.dtype.machine_name
        if a.dtype is dtypes.float32 and precision != "ieee" and self.costs.multiplies("tf32"):
            name = "tf32"
        products = 3 if name == "tf32" and precision == "tf32x3" else 1
        duration = self.costs.gemm(name, m, n, products * k)
        done = self.pe.gemm(max([tile.ready or 0 for tile in operands]), duration)
        self._span("dot", "compute", "gemm", done - duration, done)
        return self._result((m, n), dtype, function, operands, done)

    def _dense(self, tile: Tile) -> Tile:
        """Copies a constant tile, which is one repeated element, into a layout that BLAS takes."""
        if tile.ready is not None or tile.values is None:
            return tile
        return Tile(self, tile.shape, tile.dtype, np.ascontiguousarray(tile.values), None)

    def _math(self, name: str, operands: Sequence[Tile], elements: int) -> int:
        self.pe.issue()
        duration = self.costs.math(elements)
        done = self.pe.math(max([tile.ready or 0 for tile in operands]), duration)
        self._span(name, "compute", "math", done - duration, done)
        return done

    # Messages

    def send(self, tile: Tile, to: int | Tile) -> None:
        """Sends a tile. Waits for a credit. See `kernbench.tl.send`.

        Raises:
            MessageSizeError: If the tile is larger than a slot.
        """
        tile, to = self.tile(tile), _whole("send", to)
        queue = self._talk("send", to).outgoing(to)
        nbytes = tile.numel * tile.dtype.itemsize
        if nbytes > queue.spec.slot_size:
            given = queue.spec.slot_size_at
            raise MessageSizeError(
                f"tl.send of {nbytes} B to {to}: a slot holds {queue.spec.slot_size} B",
                [
                    site_fact(call_site()),
                    f"tile of shape {tile.shape}, {tile.dtype}",
                    f"slot_size at {given}" if given else "slots between programs are of this size",
                ],
                hint="send smaller tiles" + (", or make the slots larger" if given else ""),
                code="K9",
            )
        self.pe.issue()
        while queue.credit is None:
            self._wait(queue.call_on_credit, f"a credit for the queue to {to}")
        queue.take_credit(self.pe)
        flow = self._flows() if self._flows is not None else 0
        message = Message(nbytes, tile.values, tile.dtype, tile.shape, flow)
        queue.post(self.pe, tile.ready or 0, message, self._sender)
        if self._trace is not None:
            # On shared links the time of leaving is known only later, so `drain` makes the span.
            self._sent.append((message, [link.name for link in queue.path.route]))

    def receive(self, source: int | Tile) -> Tile:
        """Receives a tile. Waits for the message. See `kernbench.tl.recv`."""
        source = _whole("recv", source)
        queue = self._talk("recv", source).incoming(source)
        self.pe.issue()
        while (arrival := queue.arrival) is None:
            self._wait(queue.call_on_message, f"a message from {source}")
        message = queue.messages.popleft()
        slot = self.costs.memory(queue.spec.space)
        copy = slot.bandwidth.duration_ps(message.nbytes)
        ready = self.pe.receive(arrival, copy, slot.latency)
        queue.release(ready)
        self._span("recv", "recv", "dma.recv", arrival, ready, message.flow)
        return Tile(self, message.shape, message.dtype, message.payload, ready)

    def drain(self) -> None:
        """Waits until every sent message has left."""
        sender = self._sender
        while sender is not None and not sender.idle:
            self._wait(sender.call_when_idle, "its messages to leave")
        for message, links in self._sent:
            args = {"bytes": message.nbytes, "links": links}
            begin, end = message.sent, message.injected
            self._span("send", "send", "dma.send", begin, end, message.flow, args)
        self._sent.clear()

    @property
    def end(self) -> int:
        """When the program is over, in picoseconds: all stores done, all messages sent."""
        return later(later(self.pe.clock, self.pe.stored), self.pe.send_free)

    def _talk(self, verb: str, peer: int) -> Channels:
        channels = self._channels
        peers = math.prod(self.grid) if channels is None else channels.peers
        if not 0 <= peer < peers:
            way = "to" if verb == "send" else "from"
            who = PROGRAMS if channels is None else channels.peers_are
            hint = "a remainder has the sign of the dividend, as in C: (i + n - 1) % n"
            if peer >= 0:
                hint = _ACROSS if who == PROGRAMS else ""
            raise PeerError(
                f"tl.{verb} {way} {peer}: there is no such program",
                [site_fact(call_site()), f"peers are {who}, 0..{peers - 1}"],
                hint=hint,
                code="P9",
            )
        if channels is None:
            raise UnsupportedError(
                "tl.send and tl.recv need a kernel whose programs have PEs of their own",
                [site_fact(call_site())],
                hint="launch at most as many programs as the device has PEs",
            )
        self.communicated = True
        if self._races is not None:
            self._races.refuse()
        if self._recorder is not None:
            self._recorder.refuse()
        return channels

    def _wait(self, subscribe: Callable[[Callable[[], None]], None], reason: str) -> None:
        event = Event(reason)
        subscribe(lambda: event.settle(self.task.loop.now))
        self.task.wait(event)

    def _span(
        self,
        name: str,
        category: Category,
        track: str,
        start: int,
        end: int,
        flow: int = 0,
        args: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        if self._trace is not None:
            self._trace(name, category, track, start, end, flow, args)


def _whole(verb: str, peer: int | Tile) -> int:
    """Returns the number of a peer."""
    given = plain(peer)
    whole = isinstance(given, int | np.integer) and not isinstance(given, bool)
    if isinstance(given, Tile):
        whole = given.dtype.name.startswith(("int", "uint"))
    if not whole:
        raise refusal(
            f"tl.{verb}: a peer is a whole number; got {given!r}",
            hint="number the peers as tl.program_id(0) does",
        )
    return int(given)


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count
