"""Test cases of PyTorch in ranks."""

from typing import Any

import torch.distributed as dist


def run_test(rank: int, outside: Any, nprocs: int) -> None:
    """Runs the test of a case in a rank, with a case of the rank's own.

    Args:
        rank: The rank.
        outside: The case outside of ranks.
        nprocs: Number of ranks.
    """
    name = outside._testMethodName
    case = type(outside)(name)
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


def reasons_of_exit_codes() -> dict[int, str]:
    """Returns why a process of a test of PyTorch skips it, by exit code."""
    from torch.testing._internal.common_distributed import TEST_SKIPS

    return {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}
