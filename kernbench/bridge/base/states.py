"""What programs set of PyTorch for a whole process, or for a thread: one table of each.

What PyTorch keeps for a thread is a rank's own by itself; `THREAD` is put back when the rank ends,
as its thread goes on.
"""

import copy
import importlib
import logging
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import torch
import torch._tensor_str
import torch.distributed as dist

from kernbench.isolation.states import PYTHON, State, States
from kernbench.tensors.generators import FIRST_SEED

_C: Final = torch._C


def _switch(name: str) -> State:
    return State(name, getattr(_C, f"_get_{name}"), getattr(_C, f"_set_{name}"))


def _sdp(name: str) -> State:
    read = getattr(_C, f"_get_{name}_sdp_enabled")
    return State(f"{name} attention", read, getattr(_C, f"_set_sdp_use_{name}"))


def _of_several(name: str) -> State:
    """Returns a switch that is read as a tuple, and set by several arguments."""
    write: Callable[..., None] = getattr(_C, f"_set_{name}")
    return State(name, getattr(_C, f"_get_{name}"), lambda values: write(*values))


def _old(name: str) -> State:
    """Returns an old switch of precision, which cannot be read once a program uses the new ones."""
    read, write = getattr(_C, f"_get_{name}"), getattr(_C, f"_set_{name}")

    def read_if_told() -> Any:
        try:
            return read()
        except RuntimeError:
            return None

    return State(name, read_if_told, lambda value: None if value is None else write(value))


def _precision(*place: str) -> State:
    name = f"fp32_precision of {' '.join(place)}"
    read, write = _C._get_fp32_precision_getter, _C._set_fp32_precision_setter
    return State(name, partial(read, *place), partial(write, *place))


def _deterministic() -> tuple[bool, bool]:
    return _C._get_deterministic_algorithms(), _C._get_deterministic_algorithms_warn_only()


def _set_deterministic(mode: tuple[bool, bool]) -> None:
    _C._set_deterministic_algorithms(mode[0], warn_only=mode[1])


_PRINTING: Final = vars(torch._tensor_str.PRINT_OPTS)

PROCESS: Final[tuple[State, ...]] = (
    *map(_sdp, ("cudnn", "flash", "math", "mem_efficient", "overrideable")),
    _switch("math_sdp_allow_fp16_bf16_reduction"),
    _switch("sdp_priority_order"),
    # The old switches first: they set new ones, too.
    *map(_old, ("float32_matmul_precision", "cudnn_allow_tf32")),
    _precision("generic", "all"),
    *(
        _precision(backend, operation)
        for backend in ("cuda", "mkldnn")
        for operation in ("all", "matmul", "conv", "rnn")
    ),
    *map(
        _switch,
        (
            *("cublas_allow_fp16_accumulation", "cudnn_benchmark", "cudnn_deterministic"),
            *("cudnn_enabled", "deterministic_fill_uninitialized_memory", "mkldnn_deterministic"),
            *("mkldnn_enabled", "nnpack_enabled", "warnAlways"),
        ),
    ),
    *map(
        _of_several,
        (
            "cublas_allow_bf16_reduced_precision_reduction",
            "cublas_allow_fp16_reduced_precision_reduction",
        ),
    ),
    State("deterministic algorithms", _deterministic, _set_deterministic),
    State("default dtype", torch.get_default_dtype, torch.set_default_dtype),
    State("threads", torch.get_num_threads, torch.set_num_threads),
    State(
        "anomaly detection",
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda mode: torch.set_anomaly_enabled(*mode),
    ),
    State("debug level of c10d", dist.get_debug_level, dist.set_debug_level),
    State("how tensors are printed", lambda: dict(_PRINTING), _PRINTING.update),
    *PYTHON,
)


_KEPT_BY_THREADS: Final = "torch.distributed.tensor._dispatch"
"""A logger that C++ keeps for each thread and lets go at the thread's end without the lock of the
interpreter (pytorch#180081). It must not be the last to do so: the logger of a rank would be freed
then, which ends the interpreter. One made outside of ranks is every rank's, and is never freed."""

_NOISE: Final = ("Attempted to get default timeout for nccl backend",)
"""Beginnings of warnings of PyTorch about this computer that say nothing about the simulated one.
"""


def _generator(seed: int) -> State:
    """Returns the state of PyTorch's generator of the host, which ranks begin by the run's seed."""
    kept = torch.default_generator
    first = torch.Generator().manual_seed(FIRST_SEED + seed).get_state()
    return State("generator", kept.get_state, kept.set_state, alone=True, begin=lambda _: first)


def _hooks(place: str) -> State:
    """Returns the hooks of all modules, or of all optimizers, of a process."""
    space = vars(importlib.import_module(place))
    names = [name for name in space if name.startswith("_global_")]
    return State(
        f"hooks of {place}",
        lambda: {name: space[name] for name in names},
        space.update,
        alone=True,
        begin=lambda hooks: {name: copy.copy(value) for name, value in hooks.items()},
    )


def of_process(seed: int) -> States:
    """Returns what a process has, and a rank believes its own."""
    hooks = map(_hooks, ("torch.nn.modules.module", "torch.optim.optimizer"))
    return States(*PROCESS, _generator(seed), *hooks)


def settle() -> None:
    """Sets what main and all ranks begin with."""
    torch.set_num_threads(1)  # several only fight over the cores, and change the rounding
    for noise in _NOISE:
        warnings.filterwarnings("ignore", noise)
    logging.getLogger(_KEPT_BY_THREADS)


def _autocast(device: str) -> Iterator[State]:
    yield State(
        f"autocast of {device}",
        partial(torch.is_autocast_enabled, device),
        lambda on: torch.set_autocast_enabled(device, on),  # which is replaced while ranks run
    )
    yield State(
        f"type of autocast of {device}",
        partial(torch.get_autocast_dtype, device),
        partial(torch.set_autocast_dtype, device),
    )


def _default_device() -> Any:
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


THREAD: Final = States(
    State("default device", _default_device, torch.set_default_device),
    State("grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
    State(
        "threads of backward passes",
        _C._is_multithreading_enabled,
        torch.autograd.set_multithreading_enabled,
    ),
    *_autocast("cuda"),
    *_autocast("cpu"),
    State("cache of autocast", torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
)
"""What each thread has."""

LISTED: Final = (
    "torch.distributed._shard.sharded_tensor.api._sharded_tensor_current_id",
    "torch.distributed._shard.sharded_tensor.api._sharded_tensor_map",
    *(
        f"torch.distributed._symmetric_memory._{name}"
        for name in ("backend_streams", "group_name_to_store", "group_name_to_workspace_tensor")
    ),
    *(
        f"torch.distributed.checkpoint.planner.SavePlanner._cached_{name}"
        for name in ("all_plans", "final_save_plan", "global_plan", "metadata", "save_plan")
    ),
    "torch.distributed.fsdp._debug_utils.SimpleProfiler.profiling",
    "torch.distributed.fsdp._debug_utils.SimpleProfiler.results",
    "torch.distributed.tensor.DTensor._op_dispatcher._custom_op_handlers",
    "torch.distributed.tensor.experimental._context_parallel._attention._cp_options",
    "torch.distributed.tensor.experimental._context_parallel._attention._dispatch_mode",
    "torch.nn.functional.scaled_dot_product_attention",
)
"""State that modules of PyTorch itself hold, beside what is kept for each rank by name."""
