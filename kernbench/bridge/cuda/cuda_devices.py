"""`torch.cuda`'s devices: how many there are, which is current, and what they are."""

import re
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import torch

from kernbench.bridge.base.here import HERE, Rank, this_rank
from kernbench.bridge.tensors.devices import on_device, wrong_device
from kernbench.kernels.grids import LANES
from kernbench.operations import cuda as simulated
from kernbench.process.process import current_process

_CAPABILITIES: Final = {"a100": (8, 0), "h100": (9, 0), "h200": (9, 0), "b200": (10, 0)}
"""Compute capability by the GPU after which a machine is named (NVIDIA's table of CUDA GPUs)."""

_USUAL: Final = (9, 0)


def check(device: Any) -> Rank:
    """Returns the rank whose code runs, if a device is its own.

    Args:
        device: An index, a name, a `torch.device`, or None for the current device.

    Raises:
        KernbenchError: If there is no such device.
        OwnershipError: If it is another one than the rank's (M14).
    """
    rank = this_rank()
    index = index_of(device)
    if index is not None and index != rank.local:
        raise wrong_device(rank, index)
    return rank


def asked(device: Any) -> int:
    """Returns the SIP of a device that a program asks about: any of its node, as with CUDA.

    Args:
        device: See `check`.

    Raises:
        AssertionError: If there is no such device, in PyTorch's words.
    """
    rank, index = this_rank(), index_of(device)
    if index is None or index == rank.local:
        return rank.sip
    if not 0 <= index < rank.local_devices:
        raise AssertionError("Invalid device id")
    found: int = rank.process.ctx.devices[max(rank.process.rank, 0) - rank.local + index]
    return found


def index_of(device: Any) -> int | None:
    """Returns the index that names a device; None if nothing does.

    Args:
        device: See `check`.
    """
    if device is None or isinstance(device, int | np.integer):
        return device if device is None else int(device)
    index: int | None = torch.device(device).index
    return index


def set_device(device: Any) -> None:
    """Makes a device of the node the current one; an index below 0 changes nothing.

    Raises:
        KernbenchError: If there is no such device, or it is one of another node.
    """
    rank, index = this_rank(), index_of(device)
    if index is None or index < 0:
        return
    if index >= rank.local_devices:
        raise wrong_device(rank, index)
    rank.current, rank.chosen = index, True


def _exchanged(device: int | None) -> int:
    """Makes a device the current one, and returns which it was, as PyTorch's guards do."""
    rank = this_rank()
    before, chosen = rank.current, rank.chosen
    set_device(device)
    rank.chosen = chosen
    return before


def is_initialized() -> bool:
    """Returns whether the program has used CUDA: if not, a `DeviceMesh` sets the device."""
    rank = this_rank()
    return rank.chosen or rank.process.engine.devices[rank.sip].hbm.count > 0


class device:  # noqa: N801 - PyTorch's name
    """`torch.cuda.device`: a block in which another device is the current one."""

    def __init__(self, device: Any) -> None:
        self.idx = index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _exchanged(self.idx)

    def __exit__(self, *_: object) -> None:
        this_rank().current = self.prev_idx


class device_of(device):  # noqa: N801 - PyTorch's name
    """`torch.cuda.device_of`: a block in which the device of a tensor is the current one."""

    def __init__(self, obj: Any) -> None:
        super().__init__(this_rank().local if on_device(obj) else None)


def device_count() -> int:
    """Returns the number of devices of the node."""
    rank = HERE.rank
    return len(current_process().ctx.devices) if rank is None else rank.local_devices


def _gpu(sip: int) -> str | None:
    found = re.match(r"[a-z]+\d+", simulated.get_device_name(sip))
    return found.group() if found is not None and found.group() in _CAPABILITIES else None


def get_device_name(device: Any = None) -> str:
    """Returns the name of the GPU after which the machine is named, or that of the machine."""
    sip = asked(device)
    gpu = _gpu(sip)
    return simulated.get_device_name(sip) if gpu is None else f"NVIDIA {gpu.upper()}"


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Returns the compute capability, as programs ask for before they choose a kernel."""
    return _CAPABILITIES.get(_gpu(asked(device)) or "", _USUAL)


def get_device_properties(device: Any = None) -> Any:
    """Returns what is known of a device."""
    sip = asked(device)
    major, minor = get_device_capability(device)
    limits = current_process().engine.devices[sip].library.sip.pe.programs
    known = asdict(simulated.get_device_properties(sip))
    known |= {"name": get_device_name(device), "shared_memory_per_multiprocessor": limits.shared}
    return SimpleNamespace(
        **(known | {"major": major, "minor": minor}),
        warp_size=LANES,
        max_threads_per_multi_processor=limits.warps * LANES,
        regs_per_multiprocessor=limits.registers,
        shared_memory_per_block=48 << 10,  # of every GPU of NVIDIA, unless a kernel asks for more
        shared_memory_per_block_optin=limits.shared - limits.reserved,
        is_integrated=False,
        is_multi_gpu_board=False,
    )


def _arch() -> list[str]:
    """Returns the architecture of the device."""
    major, minor = get_device_capability()
    return [f"sm_{major}{minor}"]


FUNCTIONS: Final[dict[str, Any]] = {
    "device": device,
    "device_of": device_of,
    "_DeviceGuard": device,
    "_exchange_device": _exchanged,
    "_maybe_exchange_device": _exchanged,
    "device_count": device_count,
    "is_available": lambda: True,
    "is_initialized": is_initialized,
    "set_device": set_device,
    "current_device": lambda: this_rank().current,
    "get_device_name": get_device_name,
    "get_device_capability": get_device_capability,
    "get_device_properties": get_device_properties,
    "get_arch_list": _arch,
    "can_device_access_peer": lambda device, peer_device: True,
}
"""What `torch.cuda` has of devices while ranks run, by name."""

EVERYWHERE: Final = frozenset(("is_available", "device_count"))
"""What a program may also ask before it starts its ranks."""
