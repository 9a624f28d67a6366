"""`torch.accelerator`, versions and flags: a program finds CUDA in a rank."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from kernbench.bridge.base.here import HERE, this_rank
from kernbench.bridge.cuda import cuda, cuda_devices, cuda_memory
from kernbench.isolation.replaced import Patch

_CUDA: Final = "12.8"
_NCCL: Final = (2, 27, 5)
_CUDNN: Final = 91002
"""Versions that programs compare: they are those of PyTorch's wheels for an H200."""

_DEVICE: Final = torch.device("cuda")


def get_device_module(device: Any = None) -> Any:
    """`torch.get_device_module`: `torch.cuda` unless another device is named."""
    if device is None and HERE.rank is not None:
        return torch.cuda
    return _REAL_MODULE(device)


_REAL_MODULE: Final = torch.get_device_module


def _get_accelerator(*args: Any) -> torch.device:
    """Returns CUDA in a rank: `fully_shard` without a mesh makes one of such devices."""
    return _REAL_ACCELERATOR(*args) if HERE.rank is None else _DEVICE


_REAL_ACCELERATOR: Final = torch._C._get_accelerator


def _capability(device: Any = None) -> dict[str, Any]:
    """Returns the element types that a device works on: all."""
    cuda_devices.asked(device)
    return {"supported_dtypes": {one for one in vars(torch).values() if type(one) is torch.dtype}}


FUNCTIONS: Final[dict[str, Any]] = {
    "is_available": lambda: True,
    "current_accelerator": lambda check_available=False: _DEVICE,
    "device_count": cuda_devices.device_count,
    "current_device_index": lambda: this_rank().current,
    "current_device_idx": lambda: this_rank().current,
    "set_device_index": cuda_devices.set_device,
    "set_device_idx": cuda_devices.set_device,
    "device_index": cuda_devices.device,
    "get_device_capability": _capability,
    "current_stream": cuda.current_stream,
    "set_stream": cuda.set_stream,
    "synchronize": cuda.synchronize,
    "empty_cache": cuda_memory.nothing,
    "empty_host_cache": cuda_memory.nothing,
    "get_memory_info": cuda_memory.FUNCTIONS["mem_get_info"],
    **{
        name: cuda_memory.FUNCTIONS[name]
        for name in (
            *("memory_stats", "memory_allocated", "max_memory_allocated", "memory_reserved"),
            *("max_memory_reserved", "reset_accumulated_memory_stats", "reset_peak_memory_stats"),
        )
    },
}
"""What `torch.accelerator` has while ranks run, by name."""


def patches() -> Iterator[Patch]:
    """Yields what lets programs find CUDA."""
    for name, ours in FUNCTIONS.items():
        real = getattr(torch.accelerator, name, None)
        yield Patch(torch.accelerator, name, cuda.facade(name, ours, real))
    yield Patch(torch, "get_device_module", get_device_module)
    # What meshes and groups ask for the kind of device that they are for, if nobody says it.
    yield Patch(torch._C, "_get_accelerator", _get_accelerator)
    yield Patch(torch.version, "cuda", torch.version.cuda or _CUDA)
    yield Patch(torch.cuda.nccl, "version", lambda: _NCCL)
    yield Patch(torch.backends.cuda, "is_built", lambda: True)
    yield Patch(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
    yield Patch(type(torch.backends.cudnn), "is_available", staticmethod(lambda: True))
    yield Patch(type(torch.backends.cudnn), "version", staticmethod(lambda: _CUDNN))
    for owner in (dist, c10d):
        yield Patch(owner, "is_nccl_available", lambda: True)
    yield Patch(c10d, "default_pg_nccl_timeout", timedelta(minutes=10))
