"""What a tensor is: a window on memory of a device or the host, and who wrote it last."""

import os
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import numpy as np

from kernbench.errors import CallSite, KernbenchError, UnsupportedError, call_site, site_fact
from kernbench.memory import (
    Buffer,
    DType,
    OutOfMemoryError,
    Storage,
    View,
    contiguous_strides,
    dtypes,
)
from kernbench.runtime_api.called import called, issued
from kernbench.runtime_api.process import MAIN, Process
from kernbench.runtime_api.types import Device, Size
from kernbench.sim_engine.command import Command, Stream
from kernbench.units import format_bytes

if TYPE_CHECKING:
    from kernbench.runtime_api.nodes import Leaf, Origin, Output
    from kernbench.runtime_api.tensor import Tensor

Array = np.ndarray[Any, Any]


class OwnershipError(KernbenchError):
    """A rank used a tensor of another rank (M14)."""


class AccessError(KernbenchError):
    """Memory was touched while an asynchronous operation on it was under way (C14, C15, M10)."""


class TensorError(KernbenchError, RuntimeError):
    """An operation on tensors that PyTorch refuses with a RuntimeError."""


class DimensionError(KernbenchError, IndexError):
    """A dimension or an index that a tensor does not have."""


class OperandError(KernbenchError, TypeError):
    """An argument of a kind that an operation does not take."""


class OptionError(KernbenchError, ValueError):
    """An argument of the right kind with a value that an operation does not take."""


class Label(NamedTuple):
    """Names a tensor in reports; made into text only there."""

    dtype: DType
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"tensor {list(self.shape)} {self.dtype}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


_Pending = tuple[Command, View]

_MOST_PENDING: Final = 64
"""Accesses of one memory that are kept apart; beyond it they are merged stream by stream."""


class Memory:
    """The storage that a tensor and its views share, with who may still be touching it.

    Attributes:
        storage: Its block.
        owner: The process that made it.
        pinned: Whether it is host memory that devices access by themselves.
        version: Counts writes.
        writes: Commands that wrote it, each with what it wrote; those that later ones cover and
            those that the host has waited for are dropped at times.
        reads: Commands of other streams that read it, likewise.
        tracked: Whether a tensor on it has, or had, a part in autograd; while it is False, no
            further question need be asked.
    """

    __slots__ = ("owner", "pinned", "reads", "storage", "tracked", "version", "writes")

    def __init__(self, storage: Storage, owner: Process, *, pinned: bool = False) -> None:
        self.storage = storage
        self.owner = owner
        self.pinned = pinned
        self.version = 0
        self.tracked = False
        self.writes: list[_Pending] = []
        self.reads: list[_Pending] = []

    @property
    def buffer(self) -> Buffer:
        """The bytes."""
        return self.storage.buffer

    def _whole(self) -> View:
        return View(self.buffer, dtypes.uint8, (self.storage.nbytes,), (1,), 0)

    def wrote(self, command: Command, view: View, *, counts: bool = True) -> None:
        """Notes that a command writes a view.

        Args:
            command: The command.
            view: What it writes.
            counts: Whether that is a new version. Kernels in `tl` may write what they are given,
                and as with Triton's, autograd does not know about it.
        """
        self.version += counts
        writes = self.writes
        if not writes or (len(writes) == 1 and writes[0][1] is view):
            self.writes = [(command, view)]
        else:
            self.writes = self._with(writes, command, view)

    def read(self, command: Command, view: View) -> None:
        """Notes that a command reads a view, at a time when somebody may write it."""
        self.reads = self._with(self.reads, command, view)

    def _with(self, pending: list[_Pending], command: Command, view: View) -> list[_Pending]:
        low, high = view.extent() if is_contiguous(view) else (0, 0)
        seen = self.owner.seen
        kept = []
        for entry in pending:
            earlier, part = entry
            if seen.get(earlier.stream, 0) >= earlier.number:
                continue
            begin, end = part.extent()
            # Whoever waits for the later one has then waited for the earlier one, too.
            if not (low <= begin and end <= high and command.follows(earlier)):
                kept.append(entry)
        kept.append((command, view))
        if len(kept) > _MOST_PENDING:
            latest = {entry[0].stream: entry[0] for entry in kept}
            kept = [(last, self._whole()) for last in latest.values()]
        return kept


class TensorBase:
    """State and identity of a tensor; `Tensor` adds the operations.

    Attributes:
        memory: Shared with its views.
        window: Which elements; `view` is a method, as in PyTorch.
        device: Where they are.
        graph: What it is to autograd, see `nodes`; None while nobody has asked for a gradient.
        origin: If it is a view, what of and how; None for all others, and after `detach`.
    """

    __slots__ = ("device", "graph", "memory", "origin", "window")
    _tensor_class: ClassVar[type["TensorBase"]]

    def __init__(self, memory: Memory, window: View, device: Device) -> None:
        self.memory = memory
        self.window = window
        self.device = device
        self.graph: Leaf | Output | None = None
        self.origin: Origin | None = None

    @property
    def shape(self) -> Size:
        """Extents."""
        return Size(self.window.shape)

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.window.dtype

    @property
    def is_cuda(self) -> bool:
        """Whether it lives on a device."""
        return self.device.type == "cuda"

    @property
    def is_cpu(self) -> bool:
        """Whether it lives on the host."""
        return self.device.type == "cpu"


def wrap(memory: Memory, view: View, device: Device) -> "Tensor":
    """Returns a tensor."""
    tensor: Any = TensorBase._tensor_class(memory, view, device)
    return tensor  # type: ignore[no-any-return]


def new_tensor(
    process: Process,
    shape: tuple[int, ...],
    dtype: DType,
    device: Device,
    site: CallSite | None = None,
    *,
    pinned: bool = False,
    strides: tuple[int, ...] | None = None,
) -> "Tensor":
    """Returns a tensor without bytes, for an effect to fill.

    Args:
        process: Whose it is.
        shape: Extents.
        dtype: Element type.
        device: `cpu`, or `cuda` with an index.
        site: Where the user asked for it; None: to be found.
        pinned: Whether it is host memory that devices access by themselves.
        strides: In elements, without gaps; None: row-major.

    Raises:
        OutOfMemoryError: If the device has no room for it (M7).
    """
    sip = device.index
    allocator = process.memory if sip is None else process.engine.device(sip).hbm
    label, nbytes, plain = _plain(dtype, shape)
    site = site or process.call_site()
    storage = Storage(allocator, nbytes, label, site)
    if nbytes > _LARGE:
        _check_room(process, nbytes, label, device, site)
    view = View(storage.buffer, dtype, shape, strides or plain, 0)
    return wrap(Memory(storage, process, pinned=pinned), view, device)


@lru_cache(4096)
def _plain(dtype: DType, shape: tuple[int, ...]) -> tuple[Label, int, tuple[int, ...]]:
    """Returns the label of a tensor, its size in bytes, and its strides if it is row-major."""
    return Label(dtype, shape), prod(shape) * dtype.itemsize, contiguous_strides(shape)


_LARGE: Final = 1 << 32
"""Tensors up to this many bytes are made without asking whether this computer can hold them."""


def _check_room(
    process: Process, nbytes: int, label: Label, device: Device, site: CallSite | None
) -> None:
    """Refuses what the computer that simulates the machine could not hold."""
    room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if nbytes > room and process.engine.enable_data:
        raise OutOfMemoryError(
            f"{label} on {device} does not fit into the memory of this computer",
            [site_fact(site), f"it takes {format_bytes(nbytes)} of {format_bytes(room)}"],
            hint="run with --data off (enable_data=False)",
            code="M7",
        )


def alias(
    tensor: TensorBase, shape: Sequence[int], strides: Sequence[int], offset: int
) -> "Tensor":
    """Returns a view: another window on the same memory. Takes no time."""
    old = tensor.window
    view = View(old.buffer, old.dtype, tuple(shape), tuple(strides), offset)
    return wrap(tensor.memory, view, tensor.device)


def is_contiguous(view: View) -> bool:
    """Returns whether the elements lie in row-major order without gaps."""
    return has_no_gaps(view.shape, view.strides)


@lru_cache(4096)
def has_no_gaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Returns whether strides are those of a row-major tensor."""
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1:
            if stride != step:
                return 0 in shape
            step *= extent
    return True


def numel(shape: Sequence[int]) -> int:
    """Returns the number of elements."""
    return prod(shape)


# Access


def check_access(process: Process, tensor: TensorBase, stream: Stream | None, verb: str) -> None:
    """Checks that a process may touch a tensor now, in a stream (None: from the host).

    Args:
        process: Who touches it.
        tensor: What is touched; other parts of the same memory do not matter.
        stream: Where.
        verb: `read` or `wrote`.

    Raises:
        OwnershipError: If it belongs to another rank.
        AccessError: If an operation on it is under way that nobody has waited for.
    """
    memory = tensor.memory
    if memory.owner is not process and process.rank != MAIN and tensor.is_cuda:
        raise _not_owned(process, tensor)
    for pending in memory.writes:
        if pending[0].stream is not stream:
            _check_order(process, tensor, stream, verb, pending, "write")
    if memory.reads and verb == "wrote":
        for pending in memory.reads:
            if pending[0].stream is not stream:
                _check_order(process, tensor, stream, verb, pending, "read")


def check_owner(process: Process, tensor: TensorBase) -> None:
    """Checks that a process may touch a tensor at all.

    Raises:
        OwnershipError: If it belongs to another rank.
    """
    if tensor.memory.owner is not process and process.rank != MAIN and tensor.is_cuda:
        raise _not_owned(process, tensor)


_NO_STREAM: Final = Stream("host", -1)


def _check_order(
    process: Process,
    tensor: TensorBase,
    stream: Stream | None,
    verb: str,
    pending: _Pending,
    earlier: str,
) -> None:
    command, part = pending
    if process.ordered(stream or _NO_STREAM, command) or not part.overlaps(tensor.window):
        return
    collective = command.category == "collective"
    low, high = part.extent()
    mine_low, mine_high = tensor.window.extent()
    raise AccessError(
        f"{process.name} {verb} a tensor before {command.name} on it was waited for",
        [
            called(process, verb),
            issued(command),
            f"it runs on {_in_words(command.stream)}",
            f"{part.buffer.allocation.label}, bytes {max(low, mine_low)}..{min(high, mine_high)}: "
            f"{'read' if verb == 'read' else 'write'} after {earlier}",
        ],
        hint="call work.wait() first"
        if collective
        else "order the streams with wait_stream(), an event, or synchronize()",
        code=("C14" if verb == "wrote" else "C15") if collective or stream is None else "M10",
    )


def _in_words(stream: Stream) -> str:
    """Returns what a user calls a stream; the same on all ranks for what they have alike."""
    kind, _, rest = stream.name.partition(f" {stream.sip}")
    if kind == "communication":
        return "the communication stream" + (f" of{rest}" if rest else "")
    if kind == "stream":
        return stream.name if rest else "the default stream"
    return f"the stream of {stream.name}"


def one_way(several: tuple[Any, ...], sequence: Sequence[int] | None) -> tuple[Any, ...]:
    """Returns integers that were given one by one, or as a sequence by keyword.

    Raises:
        OperandError: If they were given both ways.
    """
    if sequence is None:
        return several
    if several:
        raise OperandError(
            f"got {sequence!r} by keyword, and {several!r} by position", [site_fact(call_site())]
        )
    return (sequence,)


def refuse(name: str, **options: object) -> None:
    """Refuses options that are not None: those that PyTorch has and that are not simulated.

    Raises:
        UnsupportedError: Naming the first of them.
    """
    for option, value in options.items():
        if value is not None:
            raise UnsupportedError(f"{name}({option}=) is not simulated", [site_fact(call_site())])


def _not_owned(process: Process, tensor: TensorBase) -> OwnershipError:
    block = tensor.memory.buffer.allocation
    return OwnershipError(
        f"{process.name} used a tensor of {tensor.memory.owner.name}",
        [
            site_fact(call_site()),
            f"{block.label} on {tensor.device}",
            site_fact(block.site, "allocated at"),
        ],
        hint="ranks exchange data through torch.distributed",
        code="M14",
    )
