"""One tile program on one PE: what its commands mean, and when its engines do them."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

import numpy as np

from kernbench.des import Event, Fifo, Task
from kernbench.errors import KernbenchError, UnsupportedError, call_site, site_fact
from kernbench.hw.pe import PeCosts, PeTimeline, later
from kernbench.hw.queue import Message, Queue, Sender
from kernbench.memory import (
    DType,
    OutOfMemoryError,
    Space,
    UninitialisedReadError,
    View,
    dtypes,
)
from kernbench.sim_engine.op_log import Category
from kernbench.tl.tile import Pointer, Scalar, Tile
from kernbench.units import format_bytes


class OutOfBoundsError(KernbenchError):
    """A kernel touched what is not in the tensor that it was given (M1, M2)."""


class MessageSizeError(KernbenchError):
    """A message is larger than a slot (K9)."""


class PeerError(KernbenchError):
    """A message to or from a program that does not exist (P9)."""


class TileOperandError(KernbenchError):
    """Operands that no engine takes (K2)."""


class Trace(Protocol):
    """Takes what the engines of a PE do, while the log keeps everything."""

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


class Channels(Protocol):
    """Where a program's messages go.

    Attributes:
        peers: How many programs there are to talk to, numbered from 0.
    """

    peers: int

    def outgoing(self, peer: int) -> Queue:
        """Returns the queue to a peer."""
        ...

    def incoming(self, peer: int) -> Queue:
        """Returns the queue from a peer."""
        ...


class Program:
    """The state of one program while it runs. Methods are the commands of `kernbench.tl`.

    Args:
        task: What runs it; it may wait.
        pe: Its engines.
        costs: Durations.
        ids: Its index on each axis of the grid.
        grid: Extents of the grid.
        ports: The port of the HBM it uses, if other programs use it too.
        channels: Its queues; None if it has nobody to talk to.
        sender: Its sending engine when its links are shared.
        data: Whether tiles hold values.
        bounded: Whether a tile must fit into the TCM of one PE; not where the program stands for
            those of many PEs, as that of a collective does.
        trace: Takes spans; None to drop them.

    Attributes:
        communicated: Whether it has sent or received.
        data_dependent: Whether its control flow or a mask looked at loaded values.
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
        self._hbm: Final = costs.memory(Space.HBM)

    # Index arithmetic

    def program_id(self, axis: int) -> Tile:
        """Returns this program's index on an axis of the grid."""
        return self._constant(self.ids[axis] if axis < len(self.ids) else 0)

    def num_programs(self, axis: int) -> Tile:
        """Returns the extent of the grid on an axis."""
        return self._constant(self.grid[axis] if axis < len(self.grid) else 1)

    def arange(self, start: int, end: int) -> Tile:
        """Returns the integers from `start` to `end`, without it."""
        values = np.arange(start, end)
        return Tile(self, values.shape, dtypes.int64, values, None)

    def _constant(self, value: Scalar) -> Tile:
        dtype = dtypes.float32 if isinstance(value, float) else dtypes.int64
        dtype = dtypes.bool_ if isinstance(value, bool) else dtype
        return Tile(self, (), dtype, np.array(value, dtype.numpy), None)

    def full(self, shape: Sequence[int], value: Scalar, dtype: DType) -> Tile:
        """Returns a tile that holds one value."""
        self._check_room("full", tuple(shape), dtype)
        values = np.full(shape, value, dtype.numpy)
        return Tile(self, values.shape, dtype, values, None)

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

    def load(self, pointer: Pointer, mask: Tile | None = None, other: Scalar = 0) -> Tile:
        """Starts loading a tile; the program goes on. See `kernbench.tl.load`."""
        self.pe.issue()
        shape, index = self._elements(pointer, mask, "load")
        dtype = pointer.dtype
        self._check_room("load", shape, dtype)
        values = self._gather(pointer, index, mask, shape, other) if self.data else None
        nbytes = dtype.itemsize * self._active(shape, mask)
        through = self._book_port(nbytes)
        dma = self.costs.dma(nbytes)
        ready = self.pe.load(through, dma, self._hbm.latency)
        self._span("load", "copy", "dma.load", ready - dma - self._hbm.latency, ready)
        return Tile(self, shape, dtype, values, ready)

    def store(self, pointer: Pointer, value: Tile | Scalar, mask: Tile | None = None) -> None:
        """Starts storing a tile; the program goes on. See `kernbench.tl.store`."""
        self.pe.issue()
        tile = value if isinstance(value, Tile) else self._constant(value)
        shape, index = self._elements(pointer, mask, "store")
        if self.data:
            self._scatter(pointer, index, mask, shape, tile)
        nbytes = pointer.dtype.itemsize * self._active(shape, mask)
        through = self._book_port(nbytes)
        dma = self.costs.dma(nbytes)
        done = self.pe.store(tile.ready or 0, through, dma, self._hbm.latency)
        self._span("store", "copy", "dma.store", done - dma - self._hbm.latency, done)

    def fence(self) -> None:
        """Waits, in local time, until every store of this program is done."""
        self.pe.fence()

    def _book_port(self, nbytes: int) -> int:
        duration = self._hbm.bandwidth.duration_ps(nbytes)
        if self._port is None:
            return self.pe.book_port(duration)
        self.task.clock = self.pe.clock
        self.task.synchronize()
        return self._port.reserve(self.pe.clock, duration)

    def _active(self, shape: tuple[int, ...], mask: Tile | None) -> int:
        if mask is None:
            return _count(shape)
        # A mask of loaded values decides how many bytes move, so the time depends on data.
        self.data_dependent = self.data_dependent or mask.ready is not None
        if mask.values is None:
            return _count(shape)
        return int(np.broadcast_to(mask.values, shape).sum())

    def _elements(
        self, pointer: Pointer, mask: Tile | None, verb: str
    ) -> tuple[tuple[int, ...], Any]:
        view, offsets = pointer.view, pointer.offsets
        bound = _extent(view)
        if isinstance(offsets, range):
            if offsets and (offsets[0] < 0 or offsets[-1] >= bound):
                raise self._out_of_bounds(view, np.asarray(offsets), bound, verb)
            begin = view.offset + offsets.start
            return (len(offsets),), slice(begin, begin + len(offsets))
        if isinstance(offsets, Tile) and offsets.values is None:
            # Data is off and the offsets were loaded: only their number is known.
            shapes = [offsets.shape] if mask is None else [offsets.shape, mask.shape]
            return np.broadcast_shapes(*shapes), None
        index = np.asarray(offsets if isinstance(offsets, int) else offsets.values)
        if mask is not None and mask.values is not None:
            index, _ = np.broadcast_arrays(index, mask.values)
            active = index[mask.values]
        else:
            active = index
        if active.size and (active.min() < 0 or active.max() >= bound):
            raise self._out_of_bounds(view, active, bound, verb)
        return index.shape, index + view.offset

    def _out_of_bounds(
        self, view: View, offsets: np.ndarray[Any, Any], bound: int, verb: str
    ) -> OutOfBoundsError:
        flat = offsets.reshape(-1)
        bad = flat[(flat < 0) | (flat >= bound)]
        block = view.buffer.allocation
        address = block.address + int(view.offset + bad[0]) * view.dtype.itemsize
        return OutOfBoundsError(
            f"tl.{verb} out of bounds of {block.label}",
            [
                site_fact(call_site()),
                f"program {self.ids} of grid {self.grid}",
                f"shape {view.shape}, strides {view.strides}: valid offsets 0..{bound - 1}",
                f"first bad offset {int(bad[0])} ({address}); {bad.size} of {flat.size} lanes",
                site_fact(block.site, "allocated at"),
            ],
            hint="mask the lanes beyond the end: tl.load(ptr + offs, mask=offs < n)",
            code="M1" if verb == "load" else "M2",
        )

    def _gather(
        self, pointer: Pointer, index: Any, mask: Tile | None, shape: tuple[int, ...], other: Scalar
    ) -> np.ndarray[Any, Any]:
        view = pointer.view
        flat = _flat(view)
        if mask is not None and mask.values is not None:
            lanes = np.broadcast_to(mask.values, shape)
            values = np.full(shape, other, view.dtype.numpy)
            self._check_written(view, index[lanes])
            values[lanes] = flat[index[lanes]]
            return values
        self._check_written(view, index)
        return np.array(flat[index])

    def _check_written(self, view: View, index: Any) -> None:
        unwritten = view.buffer.unwritten
        if unwritten is None:
            return
        bad = unwritten[:: view.dtype.itemsize][index]
        if bad.any():
            block = view.buffer.allocation
            raise UninitialisedReadError(
                f"tl.load read {int(bad.sum())} of {bad.size} elements of {block.label} "
                "that were never written",
                [
                    site_fact(call_site()),
                    f"program {self.ids} of grid {self.grid}",
                    site_fact(block.site, "allocated at"),
                ],
                hint="write them first, mask them, or make the tensor with zeros()",
                code="M5",
            )

    def _scatter(
        self, pointer: Pointer, index: Any, mask: Tile | None, shape: tuple[int, ...], tile: Tile
    ) -> None:
        view = pointer.view
        assert tile.values is not None
        values = np.broadcast_to(tile.values.astype(view.dtype.numpy, copy=False), shape)
        if mask is not None and mask.values is not None:
            lanes = np.broadcast_to(mask.values, shape)
            index, values = index[lanes], values[lanes]
        view.buffer.own()
        _flat(view)[index] = values
        unwritten = view.buffer.unwritten
        if unwritten is not None:
            unwritten.reshape(-1, view.dtype.itemsize)[index] = False

    # Arithmetic

    def elementwise(self, name: str, *operands: Tile | Scalar) -> Tile:
        """Applies a numpy ufunc; on the MATH engine unless all operands are index arithmetic."""
        tiles = operands
        shape = np.broadcast_shapes(*(t.shape for t in tiles if isinstance(t, Tile)))
        computed = [t for t in tiles if isinstance(t, Tile) and t.ready is not None]
        known = all(not isinstance(t, Tile) or t.values is not None for t in tiles)
        function: Any = getattr(np, name)
        raw = [t.values if isinstance(t, Tile) else t for t in tiles]
        if known:
            values = np.asarray(function(*_promoted(tiles, raw, name)))
            dtype = _dtype_of(values)
        else:
            samples = [
                np.ones((0,) if t.shape else (), t.dtype.numpy) if isinstance(t, Tile) else t
                for t in tiles
            ]
            values = None
            dtype = _dtype_of(np.asarray(function(*_promoted(tiles, samples, name))))
        if not computed:
            return Tile(self, shape, dtype, values, None)
        return Tile(self, shape, dtype, values, self._math(name, computed, _count(shape)))

    def cast(self, tile: Tile, dtype: DType) -> Tile:
        """Returns the tile with elements of another type."""
        values = None if tile.values is None else tile.values.astype(dtype.numpy)
        ready = None if tile.ready is None else self._math("cast", [tile], tile.numel)
        return Tile(self, tile.shape, dtype, values, ready)

    def where(self, condition: Tile, yes: Tile | Scalar, no: Tile | Scalar) -> Tile:
        """Returns `yes` where `condition` holds, else `no`."""
        operands = [t for t in (condition, yes, no) if isinstance(t, Tile)]
        shape = np.broadcast_shapes(*(t.shape for t in operands))
        yes, no = (t if isinstance(t, Tile) else self._constant(t) for t in (yes, no))
        dtype = yes.dtype if yes.ready is not None or no.ready is None else no.dtype
        values = None
        if condition.values is not None and yes.values is not None and no.values is not None:
            values = np.where(condition.values, yes.values, no.values).astype(dtype.numpy)
        computed = [t for t in operands if t.ready is not None]
        ready = self._math("where", computed, _count(shape)) if computed else None
        return Tile(self, shape, dtype, values, ready)

    def reduce(self, name: str, tile: Tile, axis: int | None) -> Tile:
        """Reduces an axis, or everything, with a numpy ufunc's `reduce`."""
        shape = () if axis is None else tuple(np.delete(tile.shape, axis).tolist())
        dtype, wide = tile.dtype, tile.dtype.numpy
        if name == "add":
            if not dtype.is_floating_point and dtype.itemsize < 4:
                dtype = dtypes.int32
            wide = dtype.accumulator
        values = None
        if tile.values is not None:
            function: Any = getattr(np, name)
            values = np.asarray(function.reduce(tile.values.astype(wide, copy=False), axis=axis))
            values = values.astype(dtype.numpy, copy=False)
        ready = None if tile.ready is None else self._math(name, [tile], tile.numel)
        return Tile(self, shape, dtype, values, ready)

    def dot(self, a: Tile, b: Tile, acc: Tile | None, out_dtype: DType) -> Tile:
        """Multiplies two tiles on the GEMM engine. See `kernbench.tl.dot`."""
        if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[0]:
            raise TileOperandError(
                f"tl.dot takes [m, k] and [k, n]; got {list(a.shape)} and {list(b.shape)}",
                [site_fact(call_site())],
                code="K2",
            )
        if a.dtype is not b.dtype or (not a.dtype.is_floating_point and a.dtype is not dtypes.int8):
            raise TileOperandError(
                f"tl.dot takes two tiles of one floating-point type or int8; "
                f"got {a.dtype} and {b.dtype}",
                [site_fact(call_site())],
                hint="convert one of them with .to(dtype)",
                code="K2",
            )
        if a.dtype is dtypes.int8:
            out_dtype = dtypes.int32
        (m, k), n = a.shape, b.shape[1]
        values = None
        if a.values is not None and b.values is not None:
            wide = np.int32 if a.dtype is dtypes.int8 else a.dtype.accumulator
            product = a.values.astype(wide, copy=False) @ b.values.astype(wide, copy=False)
            if acc is not None:
                assert acc.values is not None
                product = acc.values + product
            values = product.astype(out_dtype.numpy, copy=False)
        self.pe.issue()
        operands = [a, b] if acc is None else [a, b, acc]
        duration = self.costs.gemm(a.dtype.machine_name, m, n, k)
        done = self.pe.gemm(max(t.ready or 0 for t in operands), duration)
        self._span("dot", "compute", "gemm", done - duration, done)
        return Tile(self, (m, n), out_dtype, values, done)

    def _math(self, name: str, operands: Sequence[Tile], elements: int) -> int:
        self.pe.issue()
        duration = self.costs.math(elements)
        done = self.pe.math(max(tile.ready or 0 for tile in operands), duration)
        self._span(name, "compute", "math", done - duration, done)
        return done

    # Messages

    def send(self, tile: Tile, to: int | Tile) -> None:
        """Sends a tile. Waits for a credit. See `kernbench.tl.send`."""
        to = int(to)
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
            # When it leaves is known only later if others use the links too.
            self._sent.append((message, [link.name for link in queue.path.route]))

    def receive(self, source: int | Tile) -> Tile:
        """Receives a tile. Waits for it. See `kernbench.tl.recv`."""
        source = int(source)
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
        """Waits until everything that was sent has left."""
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
        """When the program is over, in picoseconds: its stores done, its messages gone."""
        return later(later(self.pe.clock, self.pe.stored), self.pe.send_free)

    def _talk(self, verb: str, peer: int) -> Channels:
        if self._channels is None:
            raise UnsupportedError(
                "tl.send and tl.recv need a kernel whose programs have PEs of their own",
                [site_fact(call_site())],
                hint="launch at most as many programs as the device has PEs",
            )
        if not 0 <= peer < self._channels.peers:
            way = "to" if verb == "send" else "from"
            raise PeerError(
                f"tl.{verb} {way} {peer}: there is no such program",
                [site_fact(call_site()), f"expected 0..{self._channels.peers - 1}"],
                code="P9",
            )
        self.communicated = True
        return self._channels

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


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def _extent(view: View) -> int:
    if 0 in view.shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(view.shape, view.strides, strict=True))


def _flat(view: View) -> np.ndarray[Any, Any]:
    data = view.buffer.data
    assert data is not None
    return data.view(view.dtype.numpy)


def _dtype_of(values: np.ndarray[Any, Any]) -> DType:
    dtype = dtypes.from_numpy(values.dtype)
    assert dtype is not None, values.dtype
    return dtype


def _promoted(tiles: Sequence[Tile | Scalar], raw: Sequence[Any], name: str) -> Sequence[Any]:
    """Gives whole numbers and Python's scalars the float type beside them, as Triton does."""
    floats = [t.dtype for t in tiles if isinstance(t, Tile) and t.dtype.is_floating_point]
    if floats:
        wanted = max(floats, key=lambda dtype: dtype.itemsize).numpy
    elif name in _OF_FLOATS or any(isinstance(t, float) for t in tiles):
        wanted = np.dtype(np.float32)
    else:
        return raw
    return [
        v if isinstance(t, Tile) and t.dtype.is_floating_point else np.asarray(v, wanted)
        for t, v in zip(tiles, raw, strict=True)
    ]


_OF_FLOATS: Final = {"divide", "exp", "log", "sqrt"}
"""Functions whose results are no whole numbers."""

NUMPY_NAMES: Final[Mapping[str, str]] = {"max": "maximum", "min": "minimum", "sum": "add"}
"""The ufunc behind each reduction of the language."""
