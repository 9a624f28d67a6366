"""What a program sets for a process or a thread: each rank's own, and as before at the end."""

import functools
import logging
import sys
import warnings
from typing import Any

import pytest

import kernbench

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")


def other(name: str, value: Any) -> Any:
    """Returns a value that differs from what is set."""
    if name.startswith("fp32_precision"):
        kind = "bf16" if "mkldnn" in name else "tf32"
        return "ieee" if value == kind else kind
    if isinstance(value, bool):
        return not value
    if isinstance(value, tuple):
        return tuple(not each for each in value)
    if isinstance(value, dict):
        return {**value, "precision": value["precision"] + 1}
    if callable(value):
        return functools.partial(value)
    if isinstance(value, torch.dtype):
        return torch.float16 if value is torch.bfloat16 else torch.bfloat16
    if name == "default device":
        return torch.device("cuda")
    if name == "debug level of c10d":
        levels: Any = type(value)
        return levels.INFO if value != levels.INFO else levels.DETAIL
    if name == "float32_matmul_precision":
        return "high"
    if isinstance(value, list):
        return value[1:] + value[:1] if value and isinstance(value[0], int) else [*value, ONE]
    return value + 1


OLD = ("float32_matmul_precision", "cudnn_allow_tf32")
"""Switches that PyTorch refuses to read once a program has set newer ones, too."""

ONE = ("ignore", None, Warning, "nowhere", 0)


def test_the_table_knows_no_state_twice() -> None:
    from kernbench.bridge.base.states import PROCESS, THREAD

    names = [state.name for state in (*PROCESS, *THREAD)]
    assert len(set(names)) == len(names) > 40


def test_what_a_rank_sets_is_its_own_and_ends_with_it() -> None:
    from kernbench.bridge.base.states import PROCESS, THREAD

    tables = (*PROCESS, *THREAD)

    def worker(rank: int) -> list[str]:
        import torch.distributed as dist

        torch.cuda.set_device(rank)
        dist.init_process_group()
        wrong = []
        for state in tables:
            before = state.read()
            wanted = other(state.name, before) if rank else before
            if rank:
                state.write(wanted)
            dist.barrier()
            if state.read() != wanted:
                wrong.append(f"{state.name} of {rank}: {state.read()}, expected {wanted}")
            dist.barrier()
            if rank:
                state.write(before)
        for state in tables:  # and are left so
            state.write(other(state.name, state.read()))
        dist.destroy_process_group()
        return wrong

    before = [state.read() for state in tables]
    for _ in range(2):
        assert kernbench.torchrun_spawn(worker, nprocs=2).returned == [[], []]
        assert [state.read() for state in tables] == before


def test_ranks_begin_without_what_the_main_program_has_set() -> None:
    from kernbench.bridge import bridged
    from kernbench.bridge.base.states import PROCESS, THREAD
    from kernbench.runtime_api.context import RuntimeContext
    from kernbench.sim_engine.engine import GraphEngine
    from kernbench.topology import load_topology

    tables, found = (*PROCESS, *THREAD), []
    engine = GraphEngine(
        load_topology("h200x8").topology_obj, enable_data=False, moves_at_call=True
    )

    def worker(_: int) -> None:
        found.append([state.read() for state in tables])

    before = [state.read() for state in tables]
    with RuntimeContext(engine=engine, quiet=True), bridged(data=True) as run, run.main():
        begun = [state.read() for state in tables]
        for state in tables:
            if state.name not in OLD:
                state.write(other(state.name, state.read()))
        main = [state.read() for state in tables]
        torch.multiprocessing.spawn(worker, nprocs=1)
        after = [state.read() for state in tables]
    pairs = zip(tables, main, after, strict=True)
    assert all(was == now for state, was, now in pairs if state.name not in OLD)
    assert found == [begun]
    assert [state.read() for state in tables] == before


def test_programs_set_it_by_pytorchs_own_functions() -> None:
    """What the table reads is what the public functions set."""

    def worker(rank: int) -> list[Any]:
        import torch.distributed as dist

        torch.cuda.set_device(rank)
        dist.init_process_group()
        if rank:
            torch.use_deterministic_algorithms(True, warn_only=True)
            torch.set_default_device("cuda")
            torch.backends.cuda.matmul.fp32_precision = "tf32"
            torch.backends.cudnn.benchmark = True
            torch.set_warn_always(True)
            torch.set_printoptions(precision=2)
            torch.set_grad_enabled(False)
            logging.disable(logging.ERROR)
            sys.setrecursionlimit(sys.getrecursionlimit() + 7)
            dist.set_debug_level(dist.DebugLevel.DETAIL)
            warnings.simplefilter("error")
        dist.barrier()
        assert torch.ones(2, 2, device="cuda").mm(torch.ones(2, 2, device="cuda")).is_cuda
        found = [
            torch.are_deterministic_algorithms_enabled(),
            str(torch.get_default_device()),
            torch.backends.cuda.matmul.fp32_precision,
            torch.backends.cudnn.benchmark,
            torch.is_warn_always_enabled(),
            repr(torch.tensor(0.125, device="cpu")),
            torch.is_grad_enabled(),
            logging.root.manager.disable,
            sys.getrecursionlimit(),
            dist.get_debug_level() == dist.DebugLevel.DETAIL,
            warnings.filters[0][0] == "error",
        ]
        dist.barrier()
        warnings.simplefilter("default")
        dist.destroy_process_group()
        return found

    limit, precision = sys.getrecursionlimit(), torch.backends.cuda.matmul.fp32_precision
    plain, changed = kernbench.torchrun_spawn(worker, nprocs=2).returned
    text = "tensor(0.1250)"
    assert plain[:7] == [False, "cpu", precision, False, False, text, True]
    assert plain[7:9] == [logging.root.manager.disable, limit]
    assert not plain[9]
    text = "tensor(0.12)"
    assert changed[:7] == [True, "cuda:1", "tf32", True, True, text, False]
    assert changed[7:] == [logging.ERROR, limit + 7, True, True]
