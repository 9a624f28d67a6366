"""Test cases of PyTorch in ranks."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, Final

import torch.distributed as dist

_CONSTANTS: Final = "torch.testing._internal.common_fsdp"
"""A module that looks for devices when it is imported."""


def run_test(rank: int, outside: Any, nprocs: int) -> None:
    """Runs the test of a case in a rank, with a case of the rank's own.

    Args:
        outside: The case outside of ranks.
    """
    name, shared = outside._testMethodName, type(outside)
    # Cases note what is of their process in their class.
    kind: Any = type(shared.__name__, (shared,), {"__module__": shared.__module__})
    if hasattr(kind, "_run_test_given_id"):
        _run_among_others(kind, rank, nprocs, name, outside.rdvz_file)
        return
    if hasattr(kind, "_run") and not hasattr(kind, "perThreadSetUp") and _has_own_run(kind):
        kind._run(rank, name, outside.file_name, None)
        return
    case = kind(name)
    case.rank = rank
    case.file_name = getattr(outside, "file_name", None)
    threaded = hasattr(case, "perThreadSetUp")
    if threaded:
        case.perThreadSetUp()
        dist.init_process_group(rank=rank, world_size=nprocs, init_method="env://")
    try:
        getattr(case, name)()
    finally:
        if threaded:
            case.perThreadTearDown()
    if dist.is_initialized():
        dist.destroy_process_group()


def _has_own_run(kind: Any) -> bool:
    """Returns whether a case says itself what a process does around a test, such as `FSDPTest`."""
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    return kind._run.__func__ is not MultiProcessTestCase._run.__func__


def _run_among_others(kind: Any, rank: int, nprocs: int, name: str, file: str) -> None:
    """Runs a test of a `MultiProcContinuousTest`, whose process has a group for all tests."""
    kind.rank, kind.world_size = rank, nprocs
    kind._init_pg(rank, nprocs, file)
    kind._run_test_given_id(f"{kind.__module__}.{kind.__name__}.{name}")
    if dist.is_initialized():
        dist.destroy_process_group()


@contextlib.contextmanager
def with_devices(count: int) -> Iterator[None]:
    """Lets PyTorch's constants of tests say in the block that there are devices."""
    constants: Any = sys.modules.get(_CONSTANTS)
    if constants is None:
        yield
        return
    wanted = {
        "TEST_CUDA": True,
        "DEVICE_TYPE": "cuda",
        "DISTRIBUTED_BACKEND": "nccl",
        "DEVICE_COUNT": count,
    }
    before = {name: getattr(constants, name) for name in wanted}
    vars(constants).update(wanted)
    try:
        yield
    finally:
        vars(constants).update(before)


def reasons_of_exit_codes() -> dict[int, str]:
    """Returns why a process of a test of PyTorch skips it, by exit code."""
    from torch.testing._internal.common_distributed import TEST_SKIPS

    return {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}
