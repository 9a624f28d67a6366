"""Storages of PyTorch as memory of simulated devices and hosts.

PyTorch keeps all bytes in memory of this computer. `STORAGES` says which of its storages stand for
memory of a simulated device; every other one is memory of the host.
"""

import re
import weakref
from typing import Any, Final

import numpy as np
import torch

from kernbench.bridge.base.here import Rank
from kernbench.errors import call_site, not_simulated, site_fact
from kernbench.memory import (
    Buffer,
    DType,
    OutOfMemoryError,
    Storage,
    View,
    available_bytes,
    dtypes,
    no_room,
)
from kernbench.process.types import CPU, Device
from kernbench.sim_engine.command import Command, Stream
from kernbench.symmetric.regions import Block
from kernbench.tensors.memory import Label, Memory, SizedBlock
from kernbench.tensors.new import wrap
from kernbench.tensors.running import cuda_device
from kernbench.tensors.tensor import Tensor
from kernbench.units import format_bytes

DTYPES: Final[dict[torch.dtype, DType]] = {
    found: each for each in dtypes.ALL if (found := getattr(torch, each.name, None)) is not None
}
"""What this package calls the element types of PyTorch."""

PLAIN: Final = frozenset((torch.Tensor, torch.nn.Parameter))
"""The classes of most tensors, which `is_plain` knows, too."""

ADDRESS: Final = torch.UntypedStorage.data_ptr
"""PyTorch's own: what a program calls means that it may write there, see `unwritten`."""

_SMALL: Final = 1 << 20
"""Most bytes of a block that is kept for the next storage of its size."""

_MOST_SPARES: Final = 64
"""Blocks of one size that are kept."""


_MOST_WINDOWS: Final = 128
"""Windows of one storage that are kept."""

_NO_WINDOWS: Final[dict[Any, View]] = {}
"""Shared by storages without any; nobody adds to it."""


class Ref(weakref.ref[Any]):
    """A reference to a storage that knows the storage's address when the storage is gone."""

    __slots__ = ("key",)
    key: int


class Held(Memory):
    """The memory that a storage of PyTorch stands for; it is freed with the storage.

    Attributes:
        ref: Reference to the storage.
        on_device: Whether it is memory of a device.
        direct: Whether it is, and nothing about it needs a look at each operation: all of it is
            written, as far as is known.
        spares: Where it goes when the storage is gone, for the next storage of this size; None: to
            nowhere.
        lent: Refers to the bytes as an array, which lives as long as a command is to move them.
        watches: What forgets it when the storage is gone, so that its block is free then.
        wrote_at: While the rank has one stream, number of the last command that wrote it; 0: none.
        home: Stream that was current when it was made; None for the default one.
        shared: What it is to other devices, if it is symmetric memory.
        windows: What `window_of` has returned, which guards know again.
    """

    __slots__ = (
        *("direct", "home", "lent", "on_device", "ref", "shared", "spares", "watches", "windows"),
        "wrote_at",
    )

    def __init__(self, memory: Storage, rank: Rank, on_device: bool) -> None:
        super().__init__(memory, rank.process)
        self.on_device = self.direct = on_device
        self.spares: list[Held] | None = None
        self.watches: tuple[dict[Held, Any], ...] = ()
        self.lent: weakref.ref[Any] | None = None
        self.wrote_at = 0
        self.home: Stream | None = None
        self.shared: Block | None = None
        self.windows: dict[Any, View] = _NO_WINDOWS

    def window_of(self, tensor: torch.Tensor) -> View:
        """Returns a tensor on this memory as a window without bytes."""
        key = tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype
        window = self.windows.get(key)
        if window is None:
            if not 0 < len(self.windows) < _MOST_WINDOWS:
                self.windows = {}
            dtype = DTYPES.get(tensor.dtype)
            if dtype is None:
                window = self.whole()
            else:
                shape, strides, offset, _ = key
                window = View(self.buffer, dtype, tuple(shape), tuple(strides), offset)
            self.windows[key] = window
        return window

    def array_of(self, storage: Any) -> Any:
        """Returns the bytes as an array, in place.

        Args:
            storage: The `UntypedStorage` that this memory stands for.
        """
        array = None if self.lent is None else self.lent()
        if array is None:
            array = bytes_on(storage)
            self.lent = weakref.ref(array)
        return array

    @property
    def in_use(self) -> bool:
        """Whether a command under way has still to move the bytes."""
        return self.lent is not None and self.lent() is not None

    def become(self, memory: Storage, stream: Stream) -> None:
        """Becomes another block, as the storage has another size.

        Args:
            memory: The block.
            stream: Stream that copies what there was; who uses the block comes after it.
        """
        fresh = not self.storage.nbytes  # there was nothing to copy
        self.storage, self.buffer = memory, memory.buffer
        self.spares = None  # which are of the size before
        writes, self.writes, self.reads, self.windows = self.writes, [], [], {}
        if fresh:
            self.wrote_at = 0
        else:
            whole = self.whole()
            self.writes = [
                (line, number, whole, what) for line, number, _, what in writes if line is stream
            ]
        self.forgotten()

    def forgotten(self) -> None:
        """Forgets what was known of the bytes."""
        for watch in self.watches:
            watch.pop(self, None)
        self.direct = self.on_device and self.shared is None

    def share(self, block: Block) -> None:
        """Becomes symmetric memory, at which every operation is looked."""
        self.shared, self.spares = block, None
        self.forgotten()

    def has_commands(self) -> bool:
        """Returns whether collectives, messages or copies are among what touches it."""
        for accesses in (self.writes, self.reads):
            for access in accesses:
                if type(access[3]) is Command:
                    return True
        return False

    def trust(self) -> None:
        """Counts the collectives, messages and copies that touch it as waited for."""
        for accesses in (self.writes, self.reads):
            for at, (line, _, window, what) in enumerate(accesses):
                if isinstance(what, Command):
                    accesses[at] = line, 0, window, what  # as what precedes every command

    def stand_for(self, storage: Any) -> None:
        """Becomes the memory of a storage, until that is gone."""
        key = storage._cdata
        ref = self.ref = Ref(storage, _gone)
        ref.key = key
        STORAGES[key] = self


class _Bytes:
    """Gives NumPy the bytes of a storage, and keeps the storage as long as NumPy needs them.

    `Tensor.numpy` does so, too, but PyTorch then never again changes the size of the storage, as
    FSDP does.
    """

    __slots__ = ("__array_interface__", "_storage")

    def __init__(self, storage: Any) -> None:
        self._storage = storage
        self.__array_interface__ = {
            "data": (ADDRESS(storage), False),
            "shape": (storage.nbytes(),),
            "typestr": "|u1",
            "version": 3,
        }


def bytes_on(storage: Any) -> Any:
    """Returns the bytes of a storage as an array, in place."""
    return np.asarray(_Bytes(storage))


STORAGES: Final[dict[int, Held]] = {}
"""Memory of the storages that are known, by the address of the storage's object in C++."""


def _gone(ref: Ref) -> None:
    held = STORAGES.get(ref.key)
    if held is not None and held.ref is ref:
        del STORAGES[ref.key]
        if held.watches:
            held.forgotten()
        spares = held.spares
        if spares is not None and len(spares) < _MOST_SPARES and not held.has_commands():
            taken = held.buffer.allocation
            if not taken.freed:
                taken.memory.set_aside(taken)
                spares.append(held)


def held_by(tensor: torch.Tensor) -> Held | None:
    """Returns the memory of a tensor, if its storage is known.

    Args:
        tensor: A plain tensor, no `DTensor`.
    """
    return STORAGES.get(tensor.untyped_storage()._cdata)


PINNED: Final = "_kernbench_pinned"
"""Name by which a storage of the host says that it is pinned."""


def is_pinned(tensor: torch.Tensor) -> bool:
    """Returns whether a program has pinned the memory of a tensor of the host."""
    return bool(getattr(tensor.untyped_storage(), PINNED, False))


stands_for_another: Final = torch._C._functorch.is_functorch_wrapped_tensor
_what_it_stands_for: Final = torch._C._functorch.get_unwrapped
"""Of tensors inside of `vmap`, `grad` and the like."""


def is_plain(kind: Any) -> bool:
    """Returns whether operations see tensors of a class as they are, unlike a DTensor's parts."""
    return kind in PLAIN or kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def is_on_device(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is memory of a simulated device.

    Args:
        tensor: A plain tensor, no `DTensor`: `devices.on_device` takes any.
    """
    try:
        held = STORAGES.get(tensor.untyped_storage()._cdata)
    except NotImplementedError:  # a sparse tensor has no storage; it is of the host
        if stands_for_another(tensor):
            return is_on_device(_what_it_stands_for(tensor))
        return False
    return held is not None and held.sip >= 0


class DeviceOutOfMemoryError(torch.OutOfMemoryError, OutOfMemoryError):
    """The simulated HBM is full: `torch.cuda.OutOfMemoryError` with this package's report."""


def hold(
    rank: Rank,
    storage: Any,
    *,
    on_device: bool,
    label: object = None,
    of: torch.Tensor | None = None,
) -> Held:
    """Lets a storage stand for memory of the rank's device, or of its host, from now on.

    Args:
        rank: The rank that has made the storage.
        on_device: Whether it stands for memory of the device.
        label: What the memory is for, in reports.
        of: The tensor for which it was made, which names it if no label does.

    Raises:
        DeviceOutOfMemoryError: If the device has no room for it.
    """
    memory = rank.hbm if on_device else rank.process.memory
    nbytes = storage.nbytes()
    spares = None
    if on_device and nbytes <= _SMALL:
        # Most storages are small and soon gone: like CUDA's caching allocator, keep their blocks.
        spares = rank.spares.get(nbytes)
        if spares is None:
            spares = rank.spares[nbytes] = []
        while spares and label is None:
            held: Held = spares.pop()
            if memory.take_back(held.buffer.allocation):
                held.stand_for(storage)
                held.wrote_at = 0
                if rank.races is not None:
                    rank.races.reused(held)
                return held
    if label is None:
        label = _name_of(nbytes, of)
    held = Held(block(rank, memory, nbytes, label), rank, on_device)
    held.spares = spares
    held.stand_for(storage)
    if rank.races is not None and on_device:
        held.home = rank.process.current_stream(rank.sip)
    return held


def hold_new(rank: Rank, storage: Any, key: int, of: torch.Tensor) -> Held:
    """Lets the storage of an operation's result stand for memory of the rank's device, as `hold`.

    Args:
        rank: The rank that has made the storage.
        key: Its address.
        of: The tensor for which it was made.

    Returns:
        The memory.

    Raises:
        DeviceOutOfMemoryError: If the device has no room for it.
    """
    spares = rank.spares.get(storage.nbytes())
    if spares:  # nearly always
        held: Held = spares.pop()
        if rank.hbm.take_back(held.buffer.allocation):
            held.ref = ref = Ref(storage, _gone)
            ref.key = key
            STORAGES[key] = held
            held.wrote_at = 0
            if rank.races is not None:
                rank.races.reused(held)
            return held
    return hold(rank, storage, on_device=True, of=of)


_NAMED: Final = 1 << 20
"""Bytes from which on the report about a full memory can tell where a block was made."""


def _name_of(nbytes: int, of: torch.Tensor | None) -> object:
    if nbytes < _NAMED or of is None or of.dtype not in DTYPES:
        return SizedBlock(nbytes)
    return Label(DTYPES[of.dtype], tuple(of.shape))


def block(rank: Rank, memory: Any, nbytes: int, label: object) -> Storage:
    """Takes a block of a memory.

    Args:
        label: What it is for, in reports.

    Raises:
        DeviceOutOfMemoryError: If the memory has no room for it.
    """
    try:
        return Storage(memory, nbytes, label, call_site() if nbytes >= _NAMED else None)
    except OutOfMemoryError as error:
        facts = list(error.facts)
        if nbytes < _NAMED:
            facts[0] = site_fact(call_site())
        raise DeviceOutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {format_bytes(nbytes)} on {rank.device} of "
            f"{rank.process.name}",
            facts,
            hint=error.hint,
            code=error.code,
        ) from None


_REFUSED: Final = re.compile(r"can't allocate memory: you tried to allocate (\d+) bytes")


def no_memory(rank: Rank, error: RuntimeError, *, on_device: bool) -> Exception:
    """Returns what a program sees when PyTorch gets no memory from this computer.

    Args:
        error: PyTorch's error.
        on_device: Whether the memory was to stand for memory of the device.

    Returns:
        The error about the full device if the device would have been full, too; the one about this
        computer (M7) otherwise; `error` itself if it is about something else.
    """
    found = _REFUSED.search(str(error))
    if found is None:
        return error
    nbytes = int(found.group(1))
    if on_device:
        try:
            block(rank, rank.process.engine.devices[rank.sip].hbm, nbytes, SizedBlock(nbytes))
        except DeviceOutOfMemoryError as full:
            return full
    return no_room(SizedBlock(nbytes), call_site(), nbytes, available_bytes() or 0)


def block_of(rank: Rank, tensor: torch.Tensor, *, of_host: bool = False) -> Tensor:
    """Returns a tensor of this package over the same memory and the same bytes.

    Its window refers to the bytes, and so keeps them, until `let_go` is called with it.

    Args:
        rank: The rank that has the tensor.
        of_host: Whether it is known to be on the host. Otherwise, what C++ code has made in a
            backward pass is on the device.

    Raises:
        UnsupportedError: If simulated devices do not have its type.
    """
    tensor = tensor.detach()
    storage, dtype = tensor.untyped_storage(), DTYPES.get(tensor.dtype)
    if dtype is None:
        name = f"a collective or message of {tensor.dtype}"
        raise not_simulated(name, "send its bytes: tensor.view(torch.uint8)")
    if rank.numbers is not None:
        rank.numbers.forget(tensor)  # who takes the block may write it
    held = STORAGES.get(storage._cdata)
    if held is None:
        label = Label(dtype, tuple(tensor.shape))
        on_device = rank.ambient and rank.data and not of_host
        held = hold(rank, storage, on_device=on_device, label=label)
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    return window_on(rank, held, storage, dtype, shape, strides, tensor.storage_offset())


def window_on(
    rank: Rank, held: Held, storage: Any, dtype: DType, shape: Any, strides: Any, offset: int
) -> Tensor:
    """Returns a tensor of this package over a part of a storage, as `block_of`."""
    if rank.races is not None:
        rank.races.told(held)
    buffer = Buffer(held.buffer.allocation)
    if rank.data or held.sip < 0:
        buffer.data = held.array_of(storage)
    buffer.fixed = True
    window = View(buffer, dtype, shape, strides, offset)
    device: Device = cuda_device(held.sip) if held.sip >= 0 else CPU
    return wrap(held, window, device)


def let_go(blocks: list[Tensor]) -> None:
    """Lets blocks forget their bytes, which have moved.

    Guards remember the windows of commands under way; they must not keep the storage alive.

    Args:
        blocks: What `block_of` has returned.
    """
    for block in blocks:
        block.window.let_go()
    blocks.clear()  # who asked for them may be part of a cycle, and would keep their memory
