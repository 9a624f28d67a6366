"""What programs set of PyTorch and of Python for a whole process, or for a thread: one table.

Each rank has its own, which begins as it was when the run began, as in a new process; at the end
all is as before. `PROCESS` is swapped when another rank goes on. What PyTorch keeps for a thread is
a rank's own by itself; `THREAD` is put back when the rank ends, as its thread goes on.
"""

import contextlib
import copy
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import torch
import torch._tensor_str
import torch.distributed as dist

_C: Final = torch._C


class State(NamedTuple):
    """Something that a program may set.

    Attributes:
        name: What it is.
        read: Returns it.
        write: Sets it.
        alone: Whether equal values are still another rank's.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    alone: bool = False


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


def _set_anomaly(mode: tuple[bool, bool]) -> None:
    torch.set_anomaly_enabled(*mode)


def _set_filters(filters: list[Any]) -> None:
    # Without `_filters_mutated`, which lets each warning be shown again: see `warned`.
    warnings.filters = filters


def _set_recursion(limit: int) -> None:
    with contextlib.suppress(RecursionError):  # the thread that swaps is deeper than that already
        sys.setrecursionlimit(limit)


def _set_disabled(level: int) -> None:
    logging.root.manager.disable = level


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
            "cublas_allow_fp16_accumulation",
            "cudnn_benchmark",
            "cudnn_deterministic",
            "cudnn_enabled",
            "deterministic_fill_uninitialized_memory",
            "mkldnn_deterministic",
            "mkldnn_enabled",
            "nnpack_enabled",
            "warnAlways",
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
        _set_anomaly,
    ),
    State("debug level of c10d", dist.get_debug_level, dist.set_debug_level),
    State("how tensors are printed", lambda: dict(_PRINTING), _PRINTING.update),
    State("recursion limit", sys.getrecursionlimit, _set_recursion),
    State("logging.disable", lambda: logging.root.manager.disable, _set_disabled),
    *(
        State(
            f"{module.__name__}.{name}",
            partial(getattr, module, name),
            partial(setattr, module, name),
        )
        # `init_process_group` replaces the first by one that names the rank.
        for module, name in (
            (sys, "excepthook"),
            (sys, "unraisablehook"),
            (threading, "excepthook"),
            (warnings, "showwarning"),
            (warnings, "_showwarnmsg_impl"),
        )
    ),
    State("filters of warnings", lambda: warnings.filters, _set_filters, alone=True),
)
"""What a process has, and a rank believes its own."""

_ALONE: Final = tuple(state for state in PROCESS if state.alone)
assert PROCESS[-len(_ALONE) :] == _ALONE, "they are the last"


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


THREAD: Final[tuple[State, ...]] = (
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


def values(table: tuple[State, ...] = PROCESS) -> list[Any]:
    """Returns what there is now.

    Args:
        table: Of what.
    """
    return [state.read() for state in table]


def put(wanted: list[Any], table: tuple[State, ...] = PROCESS) -> None:
    """Sets what is to be.

    Args:
        wanted: As `values` returns it.
        table: What is set.
    """
    for state, value in zip(table, wanted, strict=True):
        now = state.read()
        if now is not value and (state.alone or now != value):
            state.write(value)


def swap(now: list[Any], wanted: list[Any]) -> None:
    """Does what `put` does for `PROCESS`, without reading it again if nothing else is wanted.

    Args:
        now: What there is, as `values` has just returned it.
        wanted: What is to be.
    """
    if all(map(_is_same, PROCESS, now, wanted)):
        for state, value in zip(_ALONE, wanted[-len(_ALONE) :], strict=True):
            state.write(value)
    else:
        put(wanted)


def _is_same(state: State, one: Any, other: Any) -> bool:
    return one is other or state.alone or bool(one == other)


def copied(begun: list[Any]) -> list[Any]:
    """Returns values of `PROCESS` for one more rank, which may change them in place.

    Args:
        begun: What there was when the run began.
    """
    return [copy.copy(value) if isinstance(value, list | dict) else value for value in begun]


@contextlib.contextmanager
def kept(table: tuple[State, ...]) -> Iterator[None]:
    """Puts back at the end of the block what was there at its beginning.

    Args:
        table: What is put back.
    """
    before = values(table)
    try:
        yield
    finally:
        put(before, table)
