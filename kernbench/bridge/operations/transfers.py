"""Copies between host and device, and what the host reads of them."""

from typing import Any, Final

import torch

from kernbench.bridge.base.here import Rank
from kernbench.bridge.tensors.storages import (
    DTYPES,
    STORAGES,
    block_of,
    hold,
    is_on_device,
    is_pinned,
    let_go,
)
from kernbench.process.act import act
from kernbench.process.ordering import copy_rule
from kernbench.sim_engine.engine import Hold
from kernbench.sim_engine.host import Read

VALUE: Final = 8
"""Bytes of a value that the host reads."""

_MOST_COMPARED: Final = 4096
"""Bytes of a copy on the host that is compared with the one before."""

_BESIDE_READ: Final = 4
"""Operations, of those that take the long way, of a loop that does nothing but read a value."""


class Transfers:
    """Issues copies between the host and the device of a rank."""

    def __init__(self, rank: Rank) -> None:
        self._rank: Final = rank
        self._process: Final = rank.process
        self._engine: Final = rank.process.engine
        self._device: Final = rank.process.engine.devices[rank.sip]
        self._read_at = 0
        self._busy = False

    def copy(
        self, out: torch.Tensor, host: Any = None, *, to_device: bool, later: bool = False
    ) -> None:
        """Issues a copy between the host and the device; the host waits as `copy_rule` says.

        Args:
            out: The result.
            host: The tensor of the host; None if it is none of the program's.
            to_device: Which way.
            later: Whether the program asks that the host goes on before it has ended.
        """
        pinned = host is not None and is_pinned(host)
        rule = copy_rule(to_device=to_device, pinned=pinned, non_blocking=later)
        nbytes = out.numel() * out.element_size()
        lent = host if rule.lends else None
        if to_device:
            self._transfer("Memcpy HtoD", self._device.to_device, nbytes, lent, writes=False)
        else:
            self._transfer("Memcpy DtoH", self._device.to_host, nbytes, lent, writes=True)
            self._process.host.copies_read += rule.waits
        if rule.waits:
            self._process.wait_stream(self._process.current_stream(self._rank.sip))

    def _transfer(
        self, name: str, engine: Any, nbytes: int, host: torch.Tensor | None, *, writes: bool
    ) -> None:
        """Issues a copy; the host may not touch its tensor `host` before it has waited (C14, C15).

        Args:
            engine: What copies.
            host: A tensor of the host that the copy uses while the host goes on.
            writes: Whether the copy writes it.
        """
        device, process, rank = self._device, self._process, self._rank
        work = Hold(
            self._engine, engine, device.pcie_ps(nbytes), None, device.spec.host.pcie.latency
        )
        blocks: list[Any] = []
        if host is not None and host.dtype in DTYPES:
            blocks.append(block_of(rank, host, of_host=True))
        reads, writes_to = ((), blocks) if writes else (blocks, ())
        stream, told = process.current_stream(rank.sip), {"bytes": nbytes}
        act(process, name, "copy", stream, work, reads=reads, writes=writes_to, args=told)
        if blocks:
            rank.hazards.note_used(blocks)
            let_go(blocks)

    def copy_out(self, nbytes: int) -> None:
        """Issues a copy from the device to the host, for which the host waits."""
        self._transfer("Memcpy DtoH", self._device.to_host, nbytes, None, writes=True)
        self._process.host.copies_read += 1
        self._process.wait_stream(self._process.current_stream(self._rank.sip))

    def note_read(self, tensor: torch.Tensor, value: Any, operations: int) -> None:
        """Notes a value that the host has read; a loop that reads it for ever is reported (K6).

        Args:
            tensor: What it has read.
            value: A number, or a copy on the host.
            operations: How many operations took the long way so far.
        """
        process = self._process
        if process.host.copies_read and not is_on_device(tensor):
            return  # it may be a copy of what was read on the device
        # What the host itself computes is no command, but it does something then.
        self._busy = self._busy or operations - self._read_at > _BESIDE_READ
        self._read_at = operations
        process.have_read(lambda: self._read_of(tensor, value))

    def _read_of(self, tensor: torch.Tensor, value: Any) -> Read | None:
        busy, self._busy = self._busy, False
        if busy:
            return None
        if isinstance(value, torch.Tensor):
            if not self._rank.data or value.nbytes > _MOST_COMPARED:
                return None
            value = value.detach().contiguous().view(torch.uint8).numpy().tobytes()
        storage = tensor.untyped_storage()
        held = STORAGES.get(storage._cdata)
        if held is None:
            held = hold(self._rank, storage, on_device=False)
        version = hash(value) if value == value else 0  # noqa: PLR0124 - hashes of NaN differ
        return Read(held.buffer.allocation, version, tensor.storage_offset(), tuple(tensor.shape))
