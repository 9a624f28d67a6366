"""On which devices the operands of an operation are, and whether they may be."""

import sys
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any, Final

import torch
from torch.utils._pytree import tree_map_only

from kernbench.bridge.base.here import Rank
from kernbench.bridge.tensors.storages import STORAGES, hold, is_on_device
from kernbench.errors import UnsupportedError, is_ours, not_simulated
from kernbench.kernels.names import kernel_name
from kernbench.process.access import OwnershipError, tensor_of_another
from kernbench.process.process import Process
from kernbench.tensors.errors import TensorError
from kernbench.tensors.running import on_several_devices

_ATEN: Final = torch.ops.aten

DEVICE: Final = 1
HOST: Final = 2
BOTH: Final = DEVICE | HOST
OTHER: Final = 4

_ANYWHERE: Final = frozenset(
    (
        *(_ATEN.copy_, _ATEN._copy_from, _ATEN._copy_from_and_resize, _ATEN._foreach_copy_),
        *(_ATEN.set_, _ATEN.set_data, _ATEN.is_same_size, _ATEN._pack_padded_sequence),
        *(_ATEN._pad_packed_sequence, _ATEN.ctc_loss, _ATEN._ctc_loss, _ATEN._ctc_loss_backward),
        *(_ATEN.tensor_split, _ATEN.lift_fresh),
    )
)
"""Operations whose operands may be on several devices."""

_INDEXED: Final = frozenset((_ATEN.index, _ATEN._unsafe_index))
_PUT: Final = frozenset((_ATEN.index_put, _ATEN.index_put_, _ATEN._index_put_impl_))
_FROM_NOTHING: Final = "_kernbench_from_nothing"


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors of a value: of lists and tuples, those of their items.

    Args:
        value: A tensor, a list, a tuple, a mapping, or something without tensors.
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_in(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors_in(one)


def names_device(kwargs: dict[str, Any]) -> bool:
    """Returns whether arguments of an operation name a simulated device, which PyTorch lacks."""
    device = kwargs.get("device")
    return device is not None and device.type == "cuda"


def operands_on(values: Iterable[Any], process: Process) -> int:
    """Returns where operands are: `DEVICE`, `HOST`, `OTHER`, several of them, or 0 for no tensor.

    A single value of the host counts as no tensor: it fits every device.

    Args:
        values: Arguments of an operation; lists of tensors count, too.
        process: The process that runs the operation; memory of others' devices is `OTHER`.
    """
    where = 0
    for value in values:
        if isinstance(value, torch.Tensor):
            held = STORAGES.get(value.untyped_storage()._cdata)
            if held is not None and held.sip >= 0:
                where |= DEVICE if held.owner is process else OTHER
            elif value.dim():
                where |= HOST
        elif isinstance(value, list | tuple):
            where |= operands_on(value, process)
    return where


def note_from_nothing(out: Any) -> None:
    """Notes that C++ code has made a tensor, whose device nobody has named.

    PyTorch's own C++ code makes tensors where its operands are, which is the host for all that it
    sees. The first operation with operands of the device tells that it is meant to be there.
    """
    if isinstance(out, torch.Tensor) and not is_sparse(out):
        setattr(out.untyped_storage(), _FROM_NOTHING, _instruction())


def _settle(rank: Rank, to: torch.Tensor, given: torch.Tensor) -> None:
    """Settles where a tensor is that nobody has named a device for, by a copy from or to it."""
    storage = (to if is_on_device(given) else given).untyped_storage()
    made = getattr(storage, _FROM_NOTHING, None)
    if made is None:
        return
    if not is_on_device(given):
        delattr(storage, _FROM_NOTHING)  # what is copied to a device is not there
    elif made == _instruction():  # one call makes and fills it
        hold(rank, storage, on_device=True)


def _instruction() -> tuple[CodeType, int]:
    """Returns which call of Python, outside of kernbench, runs an operation."""
    frame = sys._getframe(1)
    while is_ours(frame):
        assert frame.f_back is not None
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def is_from_nothing(values: Iterable[Any]) -> bool:
    """Returns whether `note_from_nothing` has noted one of the operands.

    Args:
        values: Arguments of an operation.
    """
    return any(
        isinstance(value, torch.Tensor) and hasattr(value.untyped_storage(), _FROM_NOTHING)
        for value in values
    )


def is_sparse(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor has no storage of its own, but parts that have."""
    return tensor.layout is not torch.strided


def sparse_on_device(name: str) -> UnsupportedError:
    """Returns the error about an operation that needs a sparse tensor on a device."""
    return not_simulated(
        f"{name}: a sparse tensor on a device",
        "keep all operands on the CPU, or use dense tensors: tensor.to_dense(), sparse=False",
    )


def of_the_host(func: Any, args: Any, kwargs: Any) -> Any:
    """Runs an operation of which an operand is sparse, which only tensors of the host are.

    Raises:
        UnsupportedError: If another operand is on a device.
    """
    if any(map(is_on_device, tensors_in((args, kwargs)))):
        raise sparse_on_device(kernel_name(func._overloadpacket.__name__, func.namespace))
    return func(*args, **(kwargs or {}))


def checked(rank: Rank, func: Any, args: Any, kwargs: Any = None) -> Any:
    """Checks operands that are not all on the rank's device, or all on the host; returns them.

    Raises:
        TensorError: If the operation does not take them, as in PyTorch.
        OwnershipError: If one is on the device of another rank (M14).
    """
    given = args if not kwargs else (*args, *kwargs.values())
    if operands_on(given, rank.process) & OTHER:
        raise _of_another(rank, func, given)
    packet = func._overloadpacket
    if packet is _ATEN.copy_:
        _settle(rank, *args[:2])
    if packet in _ANYWHERE or func.namespace in {"c10d", "_c10d_functional", "profiler"}:
        return args

    def adopted(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if not hasattr(storage, _FROM_NOTHING) or is_on_device(tensor):
            return tensor
        if not rank.data:
            tensor = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"
            )
            storage = tensor.untyped_storage()
        hold(rank, storage, on_device=True)
        return tensor

    args = tree_map_only(torch.Tensor, adopted, args)
    matter = args
    if packet in _INDEXED:
        matter = args if not is_on_device(args[0]) else args[:1]
    elif packet in _PUT:
        matter = args if not is_on_device(args[0]) else (args[0], args[2])
    if kwargs and "out" in kwargs:
        matter = (*matter, kwargs["out"])
    if operands_on(matter, rank.process) == BOTH:
        raise _mixed(rank, func, matter)
    return args


def _of_another(rank: Rank, func: Any, args: Any) -> OwnershipError:
    process = rank.process
    for tensor in tensors_in(args):
        held = STORAGES.get(tensor.untyped_storage()._cdata)
        if held is not None and held.on_device and held.owner is not process:
            break
    assert held is not None
    used = f"{_told(tensor)} by {func._overloadpacket.__name__}; its device is {rank.device}"
    return tensor_of_another(process.name, held.owner.name, [used])


def _mixed(rank: Rank, func: Any, args: Any) -> TensorError:
    tensors = list(tensors_in(args))
    there = next(one for one in tensors if is_on_device(one))
    here = next(one for one in tensors if not is_on_device(one) and one.dim())
    name = f"{func._overloadpacket.__name__} of {rank.process.name}"
    return on_several_devices(name, [(str(rank.device), _told(there)), ("cpu", _told(here))])


def _told(tensor: torch.Tensor) -> str:
    return f"tensor {list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
