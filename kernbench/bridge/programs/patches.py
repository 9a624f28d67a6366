"""Every name of PyTorch that is replaced while ranks run."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, Final

import torch
import torch.autograd.graph
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
import torch.multiprocessing as mp
from torch._C._distributed_c10d import _set_thread_isolation_mode
from torch.utils._device import _device_constructors

from kernbench.bridge.base.here import HERE
from kernbench.bridge.base.private import PRIVATE, check_private_names
from kernbench.bridge.base.replaced import LIKE, seen_once, takes_tensors
from kernbench.bridge.cuda import accelerator, autocast, cuda, randomness
from kernbench.bridge.distributed import (
    futures,
    objects,
    opened_stores,
    pipelines,
    rpc,
    splitting,
    symmetric,
)
from kernbench.bridge.distributed.comm_hooks import registering
from kernbench.bridge.distributed.ddp_check import checker
from kernbench.bridge.distributed.works import unseen
from kernbench.bridge.distributed.world import (
    Distributed,
    RankWorld,
    Reducers,
    end_of_backward,
    warn_not_in_group,
)
from kernbench.bridge.operations import as_cuda, dispatch_rules, eager, flex, graphs, triton_kernels
from kernbench.bridge.programs import loading, passed, profiling, saving, scripts
from kernbench.bridge.tensors import device_type, devices, tensor_methods
from kernbench.bridge.tensors.hazards import giving_bytes
from kernbench.bridge.tensors.unwritten import noting_blank
from kernbench.isolation import children, clocks, endings, operators, processes
from kernbench.isolation import threads as rank_threads
from kernbench.isolation.replaced import Patch, WhenImported
from kernbench.isolation.replacing import Replacing
from kernbench.libraries import megatron, optimizers

FACTORIES: Final = [
    *("arange", "empty", "empty_permuted", "empty_strided", "eye", "full", "linspace", "logspace"),
    *("ones", "rand", "randint", "randn", "randperm", "range", "tensor", "as_tensor", "asarray"),
    *("zeros", "scalar_tensor", "hamming_window", "hann_window", "bartlett_window"),
    *("blackman_window", "kaiser_window", "tril_indices", "triu_indices"),
]
SPARSE: Final = [f"sparse_{kind}_tensor" for kind in ("coo", "csr", "csc", "bsr", "bsc")]
SPARSE.append("sparse_compressed_tensor")
METHODS: Final = [
    *("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros"),
]


def patches(spawn: Callable[..., Any]) -> Iterator[Patch | WhenImported]:
    """Yields all that is replaced.

    Args:
        spawn: Stands for `torch.multiprocessing.spawn`.
    """
    tensor = torch.Tensor
    yield Patch(tensor, "device", property(devices.device_of))
    yield Patch(tensor, "is_cuda", property(lambda t: devices.device_of(t).type == "cuda"))
    yield Patch(tensor, "is_cpu", property(lambda t: devices.device_of(t).type == "cpu"))
    yield Patch(tensor, "is_meta", property(lambda t: devices.device_of(t).type == "meta"))
    yield Patch(tensor, "get_device", _get_device)
    for name in ("to", "cuda", "cpu"):
        yield Patch(tensor, name, getattr(devices, name))
    yield Patch(tensor, "data_ptr", giving_bytes(tensor_methods.address, writes=True))
    for name in FACTORIES:
        if hasattr(torch, name):
            yield _maker(torch, name, like=False)
    for name in SPARSE:
        yield Patch(torch, name, devices.sparse_factory(getattr(torch, name)))
    for name in LIKE:
        yield _maker(torch, name, like=True)
    for name in METHODS:
        yield _maker(tensor, name, like=True)
    yield from cuda.patches()
    yield from accelerator.patches()
    yield Patch(torch._C._nn, "_parse_to", _numbered(torch._C._nn._parse_to))
    yield Patch(torch, "device", device_type.DEVICE)
    yield from autocast.patches()
    yield from pipelines.patches()
    yield from megatron.patches(lambda: HERE.rank)
    yield from optimizers.patches(lambda: HERE.rank)
    yield from tensor_methods.patches()
    yield from randomness.patches()
    for owner, name, value in as_cuda.replacements():
        yield Patch(owner, name, value)
    yield from flex.patches()
    yield from graphs.patches()
    yield from loading.patches()
    yield from passed.patches()
    yield from profiling.patches()
    yield from triton_kernels.patches()
    yield from saving.patches()
    yield from processes.patches(spawn, mp)
    yield from clocks.patches()
    yield from endings.patches()
    yield from children.patches()
    yield from rank_threads.patches()
    yield from operators.patches(torch)
    yield from _distributed()
    yield from dispatch_rules.patches()
    autograd = torch.autograd.graph
    saved = autograd.saved_tensors_hooks
    yield Patch(saved, "__init__", eager.hooks(saved.__init__))
    backward = end_of_backward(autograd._engine_run_backward)
    yield Patch(autograd, "_engine_run_backward", backward)
    yield Patch(torch.autograd, "_engine_run_backward", backward)
    yield Patch(mp, "spawn", spawn)
    yield Patch(mp, "start_processes", spawn)


def _numbered(real: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what reads the arguments of `Module.to`, to which a number names a device."""

    def parse(*args: Any, **options: Any) -> Any:
        if HERE.rank is not None and args and type(args[0]) is int:
            args = (torch.device("cuda", args[0]), *args[1:])
        if HERE.rank is not None and type(options.get("device")) is int:
            options["device"] = torch.device("cuda", options["device"])
        return real(*args, **options)

    return parse


def _maker(owner: Any, name: str, *, like: bool) -> Patch:
    """Returns what stands for a function that makes tensors."""
    make = devices.factory(getattr(owner, name), like=like)
    return Patch(owner, name, noting_blank(make) if "empty" in name else make)


def _method(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a plain function, which a class binds to its objects; a bound method it does not."""
    return lambda self: function(self)  # noqa: PLW0108


def _get_device(tensor: torch.Tensor) -> int:
    index = devices.device_of(tensor).index
    return -1 if index is None else index


def _distributed() -> Iterator[Patch | WhenImported]:
    ours = Distributed()
    yield Patch(c10d, "_world", RankWorld(c10d._world))
    yield Patch(c10d, "_new_process_group_helper", ours.new_group_helper)
    for owner in (c10d, dist):
        yield Patch(owner, "rendezvous", ours.rendezvous)
    check = checker(dist._verify_params_across_processes, lambda: ours.store)
    yield Patch(dist, "_verify_params_across_processes", check)
    yield Patch(dist, "_register_comm_hook", registering(dist._register_comm_hook))
    yield Patch(c10d, "_warn_not_in_group", warn_not_in_group(c10d._warn_not_in_group))
    for name, function in objects.functions():
        for owner in (c10d, dist):
            yield Patch(owner, name, function)
    yield from futures.patches()
    yield from splitting.patches()
    yield from opened_stores.patches()
    yield from rpc.patches()
    yield from symmetric.patches()
    reducers = Reducers(dist.Reducer)
    yield Patch(dist.Reducer, "_rebuild_buckets", _method(reducers.rebuild))
    yield Patch(dist, "Reducer", reducers.make)
    for name in ("init_process_group", "destroy_process_group", "batch_isend_irecv"):
        for owner in (c10d, dist):
            yield Patch(owner, name, getattr(ours, name))


@contextlib.contextmanager
def patched(
    spawn: Callable[..., Any],
    more: Iterable[Patch | WhenImported],
    importing: Callable[[ModuleType], AbstractContextManager[None]],
) -> Iterator[None]:
    """Replaces names of PyTorch until the end of the block.

    Args:
        spawn: Stands for `torch.multiprocessing.spawn`.
        more: Further names, of other modules.
        importing: Takes a module of PyTorch, and gives a block inside of which it is imported.

    Raises:
        UsageError: If this PyTorch lacks a name that is needed.
    """
    check_private_names(each for each in PRIVATE if each in sys.modules)
    _device_constructors()  # it lists the functions that are there when it is called first
    replacing = Replacing(
        ("torch", "triton"), lambda module: check_private_names((module,)), importing, unseen
    )
    try:
        for patch in [*patches(spawn), *more]:
            if isinstance(patch, Patch) and takes_tensors(patch):
                replacing.add(seen_once(patch))
            else:
                replacing.add(patch)
        jit = scripts.script(torch.jit.script, replacing.undone, replacing.real_of)
        replacing.add(Patch(torch.jit, "script", jit))
        _set_thread_isolation_mode(True)
        sys.meta_path.insert(0, replacing)
        with dispatch_rules.whole():
            yield
    finally:
        if replacing in sys.meta_path:
            sys.meta_path.remove(replacing)
        _set_thread_isolation_mode(False)
        autocast.withdraw()
        replacing.undo()
    assert HERE.rank is None, "ranks have ended"
