"""`torch.distributed._symmetric_memory`: what stands for the C++ class of handles (ADR 0064)."""

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import Any, Final

import numpy as np
import torch
import torch.distributed.distributed_c10d as c10d

from kernbench.bridge.base.here import Rank, this_rank
from kernbench.bridge.distributed.works import unseen
from kernbench.bridge.tensors.storages import STORAGES, Held, hold
from kernbench.distributed.barriers import meet
from kernbench.errors import call_site, not_simulated, site_fact
from kernbench.isolation.replaced import Patch, WhenImported
from kernbench.process.process import Process
from kernbench.symmetric.handles import Handle, check_words
from kernbench.symmetric.names import WRITES, WRITTEN_IN_PYTHON, way_out
from kernbench.symmetric.regions import Block, Part, Region, SymmetricMemoryError, share
from kernbench.symmetric.shots import KINDS, Shot, Used
from kernbench.tensors.memory import SizedBlock

_MODULE: Final = "torch.distributed._symmetric_memory"

_UNWRITTEN: Final = 0xFF
"""Every byte of new memory: NaN as a number of any type, so who reads too early sees it."""


def _bytes(rank: Rank, array: Any, nbytes: int) -> torch.Tensor:
    """Returns all bytes of a block as a tensor with a storage of its own."""
    with unseen():
        if rank.data:
            return torch.from_numpy(array)
        return torch.empty(nbytes, dtype=torch.uint8, device="meta")


def _made(rank: Rank, nbytes: int, group: str | None) -> torch.Tensor:
    """Returns all bytes of a new block of the rank's device."""
    array = np.full(nbytes, _UNWRITTEN, np.uint8) if rank.data else None
    whole = _bytes(rank, array, nbytes)
    held = hold(rank, whole.untyped_storage(), on_device=True, label=SizedBlock(nbytes))
    held.share(Block(rank.sip, array, group))
    rank.hazards.watch_shared()
    return whole


def _alias(rank: Rank, part: Part, label: str) -> torch.Tensor:
    """Returns all bytes of a block, of any rank, as memory that the rank may touch."""
    mine = _bytes(rank, part.block.array, part.nbytes)
    held = Held(part.memory, rank, on_device=True)
    held.share(part.block.twin(label))
    held.stand_for(mine.untyped_storage())
    return mine


def _part(tensor: torch.Tensor) -> Part:
    held = STORAGES[tensor.untyped_storage()._cdata]
    assert held.shared is not None
    return Part(held.storage, tensor.untyped_storage().nbytes(), held.shared)


class SymmetricMemory(Handle):
    """A handle of symmetric memory.

    Args:
        rank: The rank whose code runs.
        region: The blocks of all ranks; each has given its block and its signal pad.
    """

    word = torch.uint32
    signal_pad_size = torch._C._distributed_c10d._SymmetricMemory.signal_pad_size

    def __init__(self, rank: Rank, region: Region) -> None:
        given = region.take()
        super().__init__(rank.process, region, given[0][0].nbytes, given[0][1].nbytes)
        self.device: Final = rank.device
        self._wholes: Final = {
            of: [
                _alias(rank, parts[at], f"the {of} of rank {member} in {region.name}")
                for member, parts in zip(region.group.ranks, given, strict=True)
            ]
            for at, of in enumerate(("block", "signal pad"))
        }
        blocks, pads = self._wholes.values()
        self.buffer_ptrs: Final = [one.data_ptr() for one in blocks]
        self.signal_pad_ptrs: Final = [one.data_ptr() for one in pads]
        self._tables: Final = [
            torch.tensor(pointers, device=rank.device)
            for pointers in (self.buffer_ptrs, self.signal_pad_ptrs)
        ]
        self.buffer_ptrs_dev, self.signal_pad_ptrs_dev = (one.data_ptr() for one in self._tables)
        rank.hazards.tables.update((self.buffer_ptrs_dev, self.signal_pad_ptrs_dev))

    @staticmethod
    def is_symm_mem_tensor(tensor: torch.Tensor) -> bool:
        """Returns whether a tensor was made by `empty_strided_p2p`."""
        held = STORAGES.get(tensor.untyped_storage()._cdata)
        return held is not None and held.shared is not None

    @staticmethod
    def empty_strided_p2p(
        size: Sequence[int],
        stride: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        group_name: str | None = None,
        alloc_id: int | None = None,
    ) -> torch.Tensor:
        """Returns a tensor that `rendezvous` takes.

        Args:
            group_name: The group that `rendezvous` takes if it is given none.
            alloc_id: Must be None.

        Raises:
            UnsupportedError: If it is not, or the device is the host.
        """
        if alloc_id is not None:
            raise not_simulated("empty_strided_p2p(alloc_id=...)", "leave alloc_id out")
        if torch.device(device).type != "cuda":
            raise not_simulated(f"symmetric memory on {device}", 'pass device="cuda"')
        last = sum((one - 1) * step for one, step in zip(size, stride, strict=True))
        elements = 1 + last if all(size) else 0
        whole = _made(this_rank(), elements * dtype.itemsize, group_name)
        with unseen():
            return whole.view(dtype).as_strided(size, stride)

    @staticmethod
    def rendezvous(tensor: torch.Tensor, group_name: str | None = None) -> Any:
        """Shares the memory of a tensor with all ranks of a group, each of which calls it.

        Raises:
            SymmetricMemoryError: If the tensor was not made by `empty`, or sizes differ.
        """
        rank = _ready("rendezvous()")
        held = STORAGES.get(tensor.untyped_storage()._cdata)
        block = None if held is None else held.shared
        if block is None or block.sip != rank.sip:
            # PyTorch's own functions take None for an answer.
            if sys._getframe(2).f_globals.get("__name__") == _MODULE:
                return None
            raise SymmetricMemoryError(
                "rendezvous() of a tensor that is no symmetric memory of this rank",
                [site_fact(call_site())],
                hint="make it with torch.distributed._symmetric_memory.empty()",
            )
        name = group_name or block.group or c10d._get_default_group().group_name
        if name not in block.handles:
            group = c10d._resolve_process_group(name).simulated
            given = _part(tensor), _part(_made(rank, SymmetricMemory.signal_pad_size, name).zero_())
            region = share(rank.process, group, *given, lambda: meet("rendezvous", group))
            block.handles[name] = SymmetricMemory(rank, region)
        found: SymmetricMemory = block.handles[name]
        return found

    def _part(self, rank: int, of: str, begin: int, sizes: Sequence[int], dtype: Any) -> Any:
        with unseen():
            rest = self._wholes[of][rank][begin:]
            whole = rest[: rest.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
            return whole[: torch.Size(sizes).numel()].view(*sizes)

    def _ready(self, call: str) -> Process:
        return _ready(f"{call} of symmetric memory").process

    @staticmethod
    def memset32(tensor: torch.Tensor, offset: int, val: int, count: int = 1) -> torch.Tensor:
        """Writes a word `count` times, from a word of a tensor on.

        Raises:
            SymmetricMemoryError: If they are not inside of it (M1).
        """
        check_words(tensor, offset, val, count)
        tensor[offset : offset + count].fill_(val)
        return tensor

    stream_write_value32 = memset32


def _ready(name: str) -> Rank:
    rank = this_rank()
    if rank.capture is not None or rank.process.host.tape is not None:
        raise not_simulated(f"{name} in a CUDA graph", "call it outside of the graph")
    return rank


def of_symmetric_memory(name: str) -> Callable[..., Any]:
    """Returns what does an operation of `torch.ops.symm_mem`, by name."""

    def run(rank: Rank, *args: Any, **options: Any) -> Any:
        if name in KINDS:
            return _shot(rank, Shot(name, *args))
        if name in WRITES:
            return SymmetricMemory.memset32(*args)
        if name not in WRITTEN_IN_PYTHON:
            raise not_simulated(f"torch.ops.symm_mem.{name}", way_out(name))
        return getattr(importlib.import_module(_MODULE), WRITTEN_IN_PYTHON[name])(*args, **options)

    return run


def _shot(rank: Rank, shot: Shot) -> torch.Tensor:
    if shot.makes is not None:
        shot.out = torch.empty_like(shot.makes)
    handle = SymmetricMemory.rendezvous(shot.given, shot.group)
    with unseen():
        shot.run(rank.process, handle, partial(_add, rank))
    out: torch.Tensor = shot.out
    return out


def _add(rank: Rank, name: str, into: torch.Tensor, parts: Sequence[torch.Tensor]) -> Used:
    """See `shots.Add`."""
    moves, written, hazards = [], [], rank.hazards

    def compute(func: Any, *args: torch.Tensor) -> Any:
        operands = rank.mode.known(func).operands
        hazards.look(operands, name, args, {})
        found = hazards.shared.take()
        moves.extend(found[0])
        written.extend(found[1])
        if rank.races is None:
            line = rank.process.default_stream(rank.sip)
            operands.note_written(args, {}, line.count + 1)
        return func(*args)

    total = parts[0]
    for part in parts[1:]:
        total = compute(torch.ops.aten.add.Tensor, total, part)
    compute(torch.ops.aten.copy_.default, into, total)
    return moves, written


def begun(out: torch.Tensor, work: Any) -> torch.Tensor:
    """Notes the work that `wait_tensor` waits for; returns the tensor."""
    this_rank().begun[out.untyped_storage()._cdata] = work
    return out


def patches() -> Iterator[Patch | WhenImported]:
    """Yields what stands for the class, and for where its memory comes from."""
    yield Patch(torch._C._distributed_c10d, "_SymmetricMemory", SymmetricMemory)
    yield Patch(torch._C._distributed_c10d, "_register_work", begun)
    # Programs set it.
    yield Patch(SymmetricMemory, "signal_pad_size", SymmetricMemory.signal_pad_size)
    yield WhenImported(_MODULE, _of_module)


def _of_module(module: ModuleType) -> Iterator[Patch]:
    yield Patch(module, "_SymmetricMemory", SymmetricMemory)
    # Pools of memory are refused; without one, the same function asks the class itself.
    yield Patch(module, "_should_use_implicit_mempool", lambda: False)
