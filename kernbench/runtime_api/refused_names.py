"""What `kernbench torchrun` refuses by name, and what to do instead: read without PyTorch.

The bridge lets ranks call none of these, `kernbench check --torchrun` lists them, and what is said
of a name that `kernbench.torch` lacks tells them from names that the bridge runs.
"""

from collections.abc import Mapping
from typing import Final

_GRAPHS: Final = "use torch.cuda.CUDAGraph and torch.cuda.graph"
_NODES: Final = "--trace shows the commands of a replay"
_ALLOCATOR: Final = "tensors take memory of the simulated HBM; there is one allocator"
_STREAM: Final = "make a stream with torch.cuda.Stream()"
_SENSORS: Final = "a simulated device has no sensors"
_COLLECTIVES: Final = "use collectives, or send and recv, of torch.distributed"
_ONE_DEVICE: Final = "a rank has one device; use torch.nn.parallel.DistributedDataParallel"

_GROUPS: Final = (
    ("torch.cuda torch.cuda.graphs", "export_dot export_graph_data", _NODES),
    ("torch.accelerator torch.accelerator.graphs", "Graph", _GRAPHS),
    ("torch.cuda torch.cuda.streams", "ExternalStream", _STREAM),
    ("torch.cuda", "get_stream_from_external", _STREAM),
    (
        "torch.cuda torch.cuda.memory",
        "MemPool CUDAPluggableAllocator change_current_allocator use_mem_pool "
        "caching_allocator_alloc caching_allocator_delete",
        _ALLOCATOR,
    ),
    (
        "torch.cuda torch.cuda.memory",
        "memory_snapshot",
        "torch.cuda.memory_summary() tells what is in use, and the error about a full memory the "
        "largest tensors",
    ),
    (
        "torch.cuda.memory",
        "_record_memory_history _snapshot _dump_snapshot _save_segment_usage _save_memory_usage",
        "--trace shows the memory of each device over time",
    ),
    (
        "torch.cuda",
        "utilization memory_usage temperature power_draw clock_rate device_memory_used",
        _SENSORS,
    ),
    ("torch.cuda torch.cuda.memory", "list_gpu_processes", _SENSORS),
    ("torch.cuda", "current_blas_handle current_solver_handle", ""),
    ("torch.cuda torch.cuda.green_contexts", "GreenContext", ""),
    (
        "torch.cuda.gds",
        "GdsFile gds_register_buffer gds_deregister_buffer",
        "read and write files by the host",
    ),
    (
        "torch.cuda.jiterator",
        "_create_jit_fn _create_multi_output_jit_fn",
        "use operations of PyTorch, or a kernel of Triton",
    ),
    ("torch.cuda.nccl", "all_reduce reduce broadcast all_gather reduce_scatter", _COLLECTIVES),
    (
        "torch.cuda.tunable",
        "enable is_enabled tuning_enable tuning_is_enabled tune_gemm_in_file",
        "products take the time of the kernel that cuBLAS would choose",
    ),
    (
        "torch.nn.parallel.comm torch.cuda.comm",
        "broadcast broadcast_coalesced reduce_add reduce_add_coalesced scatter gather",
        _COLLECTIVES,
    ),
    ("torch.nn torch.nn.parallel", "DataParallel", _ONE_DEVICE),
    ("torch.nn.parallel", "data_parallel replicate", _ONE_DEVICE),
    ("torch.autograd.profiler", "emit_nvtx", "--trace names every operation"),
    (
        "torch.multiprocessing",
        "Pool",
        "ranks are started by torch.multiprocessing.spawn or kernbench torchrun",
    ),
    (
        "torch.distributed.rpc",
        "rpc_sync rpc_async remote RRef method_factory new_method",
        _COLLECTIVES,
    ),
    ("torch", "cond", "use Python's `if`"),
)
"""Modules, their names, and what to do instead."""

REFUSED: Final[Mapping[str, str]] = {
    f"{module}.{name}": hint
    for modules, names, hint in _GROUPS
    for module in modules.split()
    for name in names.split()
}
"""What to do instead of each name, by its whole name; empty if nothing can be said."""


def refused_by_module() -> dict[str, dict[str, str]]:
    """Returns what to do instead of each name, by module and name."""
    found: dict[str, dict[str, str]] = {}
    for path, hint in REFUSED.items():
        module, _, name = path.rpartition(".")
        found.setdefault(module, {})[name] = hint
    return found


def refusal(path: str) -> str | None:
    """Returns what is said of a name that is refused; None if it is not.

    Args:
        path: The whole name, or that of something in it, such as `torch.cuda.CUDAGraph.replay`.
    """
    while path:
        if path in REFUSED:
            hint = REFUSED[path]
            return f"{path} is not simulated" + (f"; {hint}" if hint else "")
        path = path.rpartition(".")[0]
    return None
