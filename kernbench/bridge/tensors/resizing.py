"""Storages that change their size: `resize_`, `set_`, and an `out=` that is too small.

The device's memory is taken before this computer's, and given back after it, as CUDA does: for a
moment both blocks are there.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from kernbench.bridge.base.here import Rank
from kernbench.bridge.tensors.no_numbers import shaped
from kernbench.bridge.tensors.operands import tensors_in
from kernbench.bridge.tensors.storages import STORAGES, Held, block
from kernbench.errors import call_site, not_simulated, site_fact
from kernbench.memory import Storage
from kernbench.tensors.errors import TensorError
from kernbench.tensors.memory import SizedBlock

_ATEN: Final = torch.ops.aten
_META: Final = torch.device("meta")

_SIZED: Final = frozenset((_ATEN.resize_, _ATEN._resize_output_, _ATEN.resize_as_))
_SET: Final = _ATEN.set_

_LARGE: Final = 1 << 26
"""Elements from which on it is found out first what is written to an `out=`."""


class Resizes:
    """What an operation does with the sizes of storages.

    Attributes:
        some: Whether it may change any.
    """

    __slots__ = ("_func", "_outs", "_packet", "_pointwise", "some")

    def __init__(self, func: Any) -> None:
        self._func: Final = func
        self._packet: Final = getattr(func, "_overloadpacket", None)
        arguments = func._schema.arguments
        self._outs: Final = tuple(one.name for one in arguments if one.is_out)
        self._pointwise: Final = bool(self._outs) and torch.Tag.pointwise in func.tags
        self.some: Final = bool(self._outs) or self._packet in _SIZED or self._packet is _SET

    def run(self, rank: Rank, call: Callable[[], Any], args: Sequence[Any], kwargs: Any) -> Any:
        """Runs the operation, and takes and gives back memory of the device.

        Args:
            call: Runs it.

        Raises:
            DeviceOutOfMemoryError: If the device has no room, before this computer gives any.
            AccessError: If a collective that nobody has waited for uses a storage (C14, C15).
            TensorError: If a tensor of a device is to have a storage of the host, or the other way
                round.
        """
        if self._pointwise and self._fits(args, kwargs):
            return call()
        if self._outs:
            written = list(tensors_in([(kwargs or {}).get(name) for name in self._outs]))
            needed = self._needed_by_outs(rank, written, args, kwargs or {})
        else:
            if self._packet is _SET:
                _check_set(rank, args)
            written = [args[0]]
            needed = [_needed(self._packet, args)]
        changes = [
            (tensor.untyped_storage(), nbytes)
            for tensor, nbytes in zip(written, needed, strict=False)
        ]
        if self._packet is _SET:
            changes = [(_storage_of(args[1]), needed[0])] if len(args) > 1 else []
        taken = [_grow(rank, storage, nbytes) for storage, nbytes in changes]
        result = call()
        for (storage, _), one in zip(changes, taken, strict=True):
            settle(rank, storage, one)
        for tensor in written[len(changes) :]:
            settle(rank, tensor.untyped_storage())
        return result

    def _fits(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        """Returns whether operands have the shape of the only `out=`, or are numbers."""
        out = kwargs.get(self._outs[0])
        if len(self._outs) > 1 or len(kwargs) > 1 or not isinstance(out, torch.Tensor):
            return False
        shape = out.shape
        for value in args:
            if isinstance(value, torch.Tensor):
                if value.shape != shape and value.dim():
                    return False
            elif not isinstance(value, int | float):
                return False
        return True

    def _needed_by_outs(
        self, rank: Rank, outs: list[torch.Tensor], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> list[int]:
        """Returns the bytes that `out=` will need; nothing if that need not be known early."""
        if all(one.numel() for one in outs) and _most_elements(args, kwargs) < _LARGE:
            return []
        given = {
            name: _blank(value) if name in self._outs else _shapes(value)
            for name, value in kwargs.items()
        }
        try:
            shaped(rank, self._func, [_shapes(value) for value in args], given)
        except (RuntimeError, TypeError, ValueError, IndexError):
            return []  # the operation itself tells what is wrong, or its size depends on values
        made = tensors_in([given.get(name) for name in self._outs])
        return [one.untyped_storage().nbytes() for one in made]


def _needed(packet: Any, args: Sequence[Any]) -> int:
    """Returns the bytes that the storage of a first argument will need; 0: as it has."""
    tensor: torch.Tensor = args[0]
    if packet is _SET:
        if len(args) < 4:
            return 0
        offset, size = args[2], args[3]
        strides = args[4] if len(args) > 4 else ()
    else:
        size = args[1].shape if isinstance(args[1], torch.Tensor) else args[1]
        offset, strides = tensor.storage_offset(), ()
    if not math.prod(size):
        return 0
    last = (
        sum((extent - 1) * stride for extent, stride in zip(size, strides, strict=True))
        if strides
        else math.prod(size) - 1
    )
    return int((offset + last + 1) * tensor.element_size())


def _storage_of(source: Any) -> Any:
    return source.untyped_storage() if isinstance(source, torch.Tensor) else source


def _check_set(rank: Rank, args: Sequence[Any]) -> None:
    """Checks that a tensor stays on its device."""
    if len(args) < 2:
        return
    mine = STORAGES.get(args[0].untyped_storage()._cdata)
    other = STORAGES.get(_storage_of(args[1])._cdata)
    here, there = (held is not None and held.sip >= 0 for held in (mine, other))
    # What PyTorch's own code makes to hold a storage, as `copy.deepcopy` does, has none yet.
    if here != there and (here or args[0].untyped_storage().nbytes()):
        places = [rank.device if on else torch.device("cpu") for on in (here, there)]
        raise TensorError(
            f'Attempted to set the storage of a tensor on device "{places[0]}" to a storage on '
            f'different device "{places[1]}". This is no longer allowed; the devices must match.',
            [site_fact(call_site())],
            hint=f"move the source with .to('{places[0]}')",
        )


def _most_elements(args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    """Returns a number of elements that no result of these arguments exceeds."""
    most = 1
    for value in (*args, *kwargs.values()):
        for tensor in tensors_in(value):
            most *= max(tensor.numel(), 1)
        if isinstance(value, int):
            most *= max(value, 1)
        elif isinstance(value, list | tuple):
            most *= math.prod(max(one, 1) for one in value if isinstance(one, int))
    return most


def _shapes(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_META)
    if isinstance(value, list | tuple):
        return type(value)(_shapes(one) for one in value)
    return _META if isinstance(value, torch.device) else value


def _blank(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty(0, dtype=value.dtype, device=_META)
    return [_blank(one) for one in value]


def _grow(rank: Rank, storage: Any, nbytes: int) -> Storage | None:
    """Takes the block for a storage that is about to grow; None if it does not."""
    if nbytes <= storage.nbytes():
        return None
    return before_resize(rank, storage, nbytes)


def before_resize(rank: Rank, storage: Any, nbytes: int) -> Storage | None:
    """Checks that a storage may change its size now, and takes its new block.

    Args:
        nbytes: The new size.

    Returns:
        The block, for `settle`; None if the storage is no memory of a device.

    Raises:
        DeviceOutOfMemoryError: If the device has no room for it.
        AccessError: If a collective that nobody has waited for uses the storage (C14, C15).
        UnsupportedError: If the bytes are still to be moved, though no order of streams tells so.
    """
    held = STORAGES.get(storage._cdata)
    if held is None:
        return None
    rank.hazards.check_resized(held)
    if held.in_use:
        raise not_simulated(
            "a change of the size of a storage that a collective still uses",
            "wait() for the collective first",
        )
    return _block(rank, held, nbytes) if held.sip >= 0 else None


def _block(rank: Rank, held: Held, nbytes: int) -> Storage:
    return block(rank, held.storage.buffer.allocation.memory, nbytes, SizedBlock(nbytes))


def settle(rank: Rank, storage: Any, taken: Storage | None = None) -> None:
    """Lets a storage that may have another size stand for a block of that size.

    Args:
        taken: Its block; None: it is taken now if the size is another.

    Raises:
        DeviceOutOfMemoryError: If the device has no room for it.
    """
    held = STORAGES.get(storage._cdata)
    if held is None or held.sip < 0:
        return
    before, nbytes = held.storage, storage.nbytes()
    if before.nbytes == nbytes:
        return
    if taken is None or taken.nbytes != nbytes:
        taken = _block(rank, held, nbytes)
    memory = before.buffer.allocation.memory
    if not before.buffer.allocation.freed:
        memory.free(before.buffer.allocation)
    held.become(taken, rank.process.current_stream(held.sip))
    if not nbytes:
        memory.free(taken.buffer.allocation)
