"""Names of PyTorch that are not simulated: each says so, and what to do instead."""

from collections.abc import Callable
from typing import Any, Final, NoReturn

from kernbench.errors import UnsupportedError, call_site, site_fact


def not_simulated(name: str, hint: str) -> UnsupportedError:
    """Returns the error about something that is not simulated.

    Args:
        name: Its name in PyTorch.
        hint: What to do instead.
    """
    return UnsupportedError(f"{name} is not simulated", [site_fact(call_site())], hint=hint)


def refused(name: str, hint: str) -> Callable[..., NoReturn]:
    """Returns a function that refuses every call.

    Args:
        name: Its name in PyTorch.
        hint: What to do instead.
    """

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise not_simulated(name, hint)

    refuse.__name__ = name.rpartition(".")[2]
    refuse.__doc__ = f"`{name}`, which is not simulated."
    return refuse


def refused_class(name: str, hint: str) -> type:
    """Returns a class of which no object can be made; programs may still ask for its objects.

    Args:
        name: Its name in PyTorch.
        hint: What to do instead.
    """

    def refuse(cls: type, *_: Any, **__: Any) -> NoReturn:
        del cls
        raise not_simulated(name, hint)

    made = type(name.rpartition(".")[2], (), {"__new__": refuse, "__doc__": refuse.__doc__})
    made.__module__ = name.rpartition(".")[0]
    return made


_ALLOCATOR: Final = "tensors take memory of the simulated HBM; there is one allocator"
_SENSORS: Final = "a simulated device has no sensors"
_GRAPHS: Final = "run the program without CUDA graphs; --set can lower the host's cost of a launch"

CUDA: Final[dict[str, Any]] = {
    name: (refused_class if name[0].isupper() else refused)(f"torch.cuda.{name}", hint)
    for hint, names in (
        (
            _GRAPHS,
            "CUDAGraph make_graphed_callables graph_pool_handle export_dot export_graph_data",
        ),
        ("make a stream with torch.cuda.Stream()", "ExternalStream get_stream_from_external"),
        (
            _ALLOCATOR,
            "MemPool CUDAPluggableAllocator change_current_allocator use_mem_pool "
            "caching_allocator_alloc caching_allocator_delete",
        ),
        (
            "torch.cuda.memory_summary() tells what is in use, and the error about a full memory "
            "the largest tensors",
            "memory_snapshot",
        ),
        (
            _SENSORS,
            "utilization memory_usage temperature power_draw clock_rate list_gpu_processes "
            "device_memory_used",
        ),
        ("", "current_blas_handle current_solver_handle GreenContext"),
    )
    for name in names.split()
} | {"graph": refused_class("torch.cuda.graph", _GRAPHS)}
"""What `torch.cuda` has and is not simulated, by name."""

MEMORY: Final = {
    name: refused(f"torch.cuda.memory.{name}", "--trace shows the memory of each device over time")
    for name in (
        "_record_memory_history",
        "_snapshot",
        "_dump_snapshot",
        "_save_segment_usage",
        "_save_memory_usage",
    )
}
"""What `torch.cuda.memory` has and is not simulated, by name."""
