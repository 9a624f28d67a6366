"""Files are not opened for values that are not there: `torch.save`, `distributed.checkpoint`."""

import functools
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves

from kernbench.bridge.base.here import HERE
from kernbench.bridge.tensors.devices import on_device
from kernbench.bridge.tensors.tensor_methods import holds_device_memory, no_values_to_write
from kernbench.isolation.replaced import Patch, WhenImported

_BYTES: Final = "BYTE_IO"
"""Name of the `WriteItemType` of what is no tensor."""


def _refuse_storages(value: Any, pickle_module: Any) -> None:
    """Refuses an object that is to be saved and has memory of a device in it.

    Raises:
        NoDataError: If it has.
    """

    class Look(pickle_module.Pickler):
        def persistent_id(self, one: Any) -> str | None:
            """Takes storages out of the pickle."""
            storage = one._untyped_storage if isinstance(one, torch.storage.TypedStorage) else one
            if not torch.is_storage(storage):
                return None
            rank = HERE.rank
            if rank is not None and holds_device_memory(storage):
                raise no_values_to_write(rank)
            return "storage"

    Look(io.BytesIO(), protocol=2).dump(value)


def _save(real: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(real)
    def save(obj: Any, f: Any, *args: Any, **options: Any) -> None:
        rank = HERE.rank
        if rank is not None and not (rank.data or rank.fake):
            _refuse_storages(obj, args[0] if args else options.get("pickle_module", pickle))
        real(obj, f, *args, **options)

    return save


def _save_shards(real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def save(state_dict: Any, *args: Any, **options: Any) -> Any:
        rank = HERE.rank
        if rank is not None and not (rank.data or rank.fake):
            for value in tree_leaves(state_dict):
                if isinstance(value, torch.Tensor) and on_device(value):
                    raise no_values_to_write(rank)
        return real(state_dict, *args, **options)

    return save


def _write_data(real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def write_data(self: Any, plan: Any, planner: Any) -> Any:
        rank = HERE.rank
        find = getattr(planner, "lookup_object", None)  # a planner of the program may lack it
        if rank is not None and find is not None and not (rank.data or rank.fake):
            for item in plan.items:
                if item.type.name != _BYTES and on_device(find(item.index)):
                    raise no_values_to_write(rank)
        return real(self, plan, planner)

    return write_data


def _of_checkpoints(module: Any) -> Iterator[Patch]:
    save = _save_shards(module.save)
    yield Patch(module, "save", save)
    yield Patch(module.state_dict_saver, "save", save)


def _of_files(module: Any) -> Iterator[Patch]:
    # Objects that give their state themselves are seen here first.
    writer = module._FileSystemWriter
    yield Patch(writer, "write_data", _write_data(writer.write_data))


def patches() -> Iterator[Patch | WhenImported]:
    """Yields what is replaced of functions that write files."""
    save = _save(torch.save)
    yield Patch(torch, "save", save)
    yield Patch(torch.serialization, "save", save)
    yield WhenImported("torch.distributed.checkpoint", _of_checkpoints)
    yield WhenImported("torch.distributed.checkpoint.filesystem", _of_files)
