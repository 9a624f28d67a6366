"""Runs tests of PyTorch's own `distributed_test.py`, each in a fork and on a fresh machine.

    python -m tests.bridge.torch_distributed_test gloo 4 test_broadcast test_barrier

prints a line of JSON for each test: its name, `passes`, `skips` or `fails`, and why. Without names
it runs all tests; `--names` prints the names. PyTorch's tests read the backend and the number of
ranks when their module is imported, so each pair of these takes a process of its own.
"""

import contextlib
import importlib
import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
import unittest
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Any, Final

import torch
import torch.distributed as dist

import kernbench
from kernbench.bridge.base.here import HERE, this_rank
from kernbench.bridge.programs.cases import reasons_of_exit_codes
from kernbench.ranks.spawn_errors import SpawnException

LIMIT_S: Final = 300.0
"""Wall time of a test, after which its process is killed; most take 1 to 3 s of a free core."""
JOBS: Final = 4


@contextlib.contextmanager
def _machine_has_devices(nprocs: int) -> Iterator[None]:
    """Lets decorators that look at import see what the simulated machine has."""
    cuda: Any = torch.cuda
    answers = {
        (cuda, "is_available"): lambda: True,
        (cuda, "device_count"): lambda: nprocs,
        (cuda.nccl, "version"): lambda: (2, 28, 9),
        (dist, "is_nccl_available"): lambda: True,
    }
    before = {place: getattr(*place) for place in answers}
    for (owner, name), answer in answers.items():
        setattr(owner, name, answer)
    try:
        yield
    finally:
        for (owner, name), answer in before.items():
            setattr(owner, name, answer)


def load(backend: str, nprocs: int) -> tuple[ModuleType, type]:
    """Imports PyTorch's tests for a backend.

    Args:
        backend: `gloo` or `nccl`.

    Returns:
        The module, and the class that has its tests.
    """
    os.environ.update(BACKEND=backend, WORLD_SIZE=str(nprocs), TEMP_DIR=tempfile.gettempdir())
    common = importlib.import_module("torch.testing._internal.common_distributed")
    common.TEST_CUDA = True
    with _machine_has_devices(nprocs), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        name = "torch.testing._internal.distributed.distributed_test"
        module = importlib.import_module(name)
    module.Barrier.sync = classmethod(_barrier)

    class DistributedTests(module.TestDistBackend, module.DistributedTest._DistTestBase):
        """PyTorch's tests, as `test/distributed/test_distributed_spawn.py` puts them together."""

        world_size = nprocs

        def call_dist_op(self, *args: Any, **options: Any) -> None:
            """Leaves out that PyTorch's profiler has recorded the operation and its shapes."""
            super().call_dist_op(*args, **{**options, "expect_event": False})

    return module, DistributedTests


def _barrier(cls: Any, wait_for: int | None = None, timeout: float = 0) -> None:
    """Waits for the other ranks outside of any group; PyTorch's tests do so through files."""
    del cls, timeout
    rank = this_rank()
    store, _, nprocs = next(dist.distributed_c10d.rendezvous("env://"))
    count = _BARRIERS[rank.process.rank] = _BARRIERS.get(rank.process.rank, 0) + 1
    if store.add(f"barrier {count}", 1) == (wait_for or nprocs):
        store.set(f"barrier {count} is over", "")
    store.wait([f"barrier {count} is over"])


_BARRIERS: Final[dict[int, int]] = {}


def names_of(tests: type) -> list[str]:
    """Returns the names of the tests of a class."""
    return unittest.TestLoader().getTestCaseNames(tests)


def _in_rank(rank: int, tests: Any, name: str, backend: str) -> None:
    from torch.testing._internal import common_utils

    case = tests(name)
    case.rank = rank
    dist.init_process_group(backend, init_method="env://", rank=rank, world_size=tests.world_size)
    case._barrier()
    common_utils.set_rng_seed()
    getattr(case, name)()
    case._barrier()
    if dist.is_initialized():
        dist.destroy_process_group()


def outcome_of(module: ModuleType, tests: Any, name: str, backend: str) -> tuple[str, str]:
    """Runs a test in this process.

    Returns:
        `passes`, `skips` or `fails`, and why.
    """
    method = getattr(tests, name)
    if getattr(method, "__unittest_skip__", False):
        return "skips", method.__unittest_skip_why__
    common = importlib.import_module("torch.testing._internal.common_distributed")
    common.initialize_temp_directories()
    process_id = os.getpid()
    os.getpid = lambda: process_id + (this_rank().process.rank if HERE.rank else 0)
    warnings.simplefilter("ignore")
    torch.backends.cudnn.flags(enabled=True, allow_tf32=False).__enter__()
    try:
        kernbench.torchrun_spawn(
            _in_rank,
            nprocs=tests.world_size,
            args=(tests, name, backend),
            overrides=(f"system.sips.count={tests.world_size}",),
            watchdog_s=LIMIT_S,
        )
    except SpawnException as error:
        codes = reasons_of_exit_codes()
        for one in error.errors.values():
            if isinstance(one, unittest.SkipTest):
                return "skips", str(one)
            if isinstance(one, SystemExit) and one.code in codes:
                return "skips", codes[one.code]
        first = next(iter(error.errors.values()))
        frames = traceback.format_tb(first.__traceback__)[-6:]
        return "fails", f"{error}\n{''.join(frames)}"
    finally:
        common.cleanup_temp_dir()
    return "passes", ""


def _child(end: Connection, module: ModuleType, tests: Any, name: str, backend: str) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    if "KERNBENCH_SHOW" not in os.environ:
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
    try:
        end.send(outcome_of(module, tests, name, backend))
    except BaseException:
        end.send(("fails", traceback.format_exc()))
    os._exit(0)


def run(backend: str, nprocs: int, names: Sequence[str] = ()) -> Iterator[tuple[str, str, str]]:
    """Runs tests, each in a fork of this process.

    Args:
        backend: `gloo` or `nccl`.
        names: Names of the tests; none: all.

    Yields:
        Of each test, as it ends: its name, `passes`, `skips` or `fails`, and why.
    """
    module, tests = load(backend, nprocs)
    left = iter(names or names_of(tests))
    forks = multiprocessing.get_context("fork")
    running: dict[Connection, tuple[str, Any, float]] = {}
    while True:
        for name in itertools.islice(left, JOBS - len(running)):
            ours, theirs = forks.Pipe(duplex=False)
            process = forks.Process(target=_child, args=(theirs, module, tests, name, backend))
            process.start()
            theirs.close()
            running[ours] = name, process, time.monotonic() + LIMIT_S
        if not running:
            return
        now = time.monotonic()
        ended = wait(list(running), max(0.0, min(until for *_, until in running.values()) - now))
        late = [end for end, (*_, until) in running.items() if until <= now and end not in ended]
        for end in (*ended, *late):
            name, process, _ = running.pop(end)  # type: ignore[call-overload]
            found = ("fails", f"did not end within {LIMIT_S:g} s of wall time")
            if end in ended:
                try:
                    found = end.recv()  # type: ignore[union-attr]
                except EOFError:
                    process.join()
                    found = ("fails", f"the interpreter crashed: exit code {process.exitcode}")
            process.kill()
            process.join()
            yield (name, *found)


def main(backend: str, nprocs: str, *names: str) -> None:
    """Prints what becomes of tests, or with `--names` the names of all tests."""
    if names == ("--names",):
        print(json.dumps(names_of(load(backend, int(nprocs))[1])))
        return
    for line in run(backend, int(nprocs), names):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
