"""A context that was interrupted inside of kernbench says so at its next use, at any bytecode."""

import gc
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

import pytest
from shooting import shots

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.des import InterruptedContextError, core
from kernbench.memory import allocator, storage
from kernbench.process import act, process
from kernbench.ranks import meeting, spawning
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine import command, engine, host
from kernbench.testing import Kernbench

MODULES = (core, allocator, storage, act, process, meeting, spawning, command, engine, host)


def _worker(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.full((64,), float(rank), device="cuda")
    dist.all_reduce(x)
    assert x[0].item() == 1.0


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Lets no context of a test live on: the only one there is would be the current one."""
    yield
    gc.collect()


class LateError(Exception):
    """What a handler of a signal raises."""


@contextmanager
def _timer(call: Callable[[], None]) -> Iterator[None]:
    """Lets SIGUSR2 call a function, from a handler in Python."""

    def handler(number: int, frame: FrameType | None) -> None:
        call()

    before = signal.signal(signal.SIGUSR2, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR2, before)


def _late() -> None:
    raise LateError


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "step",
    [199, pytest.param(25, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.at_length)],
)
def test_after_an_interrupt_a_context_is_right_or_refused(kernbench: Kernbench, step: int) -> None:
    ctx = kernbench.context()
    ctx.multiprocessing.spawn(_worker, nprocs=2)
    begun = ctx.engine.loop.now
    ctx.multiprocessing.spawn(_worker, nprocs=2)
    right = ctx.engine.loop.now - begun
    contexts: list[RuntimeContext] = []

    def fresh() -> Callable[[], None]:
        contexts.append(RuntimeContext(quiet=True))
        return lambda: contexts[-1].multiprocessing.spawn(_worker, nprocs=2)

    refused = 0
    for _ in shots(fresh, MODULES, step):
        shot = contexts.pop()
        before = shot.engine.loop.now
        try:
            shot.multiprocessing.spawn(_worker, nprocs=2)
        except InterruptedContextError:
            refused += 1
            with pytest.raises(InterruptedContextError):  # for good
                shot.multiprocessing.spawn(_worker, nprocs=2)
        else:
            assert shot.engine.loop.now - before == right
    assert refused


@pytest.mark.greenlets_only("handlers of signals run in the main thread, which is not a rank's")
@pytest.mark.parametrize("raises", [KeyboardInterrupt, LateError])
def test_an_interrupt_in_the_users_own_code_leaves_a_context_whole(
    kernbench: Kernbench, raises: type[BaseException]
) -> None:
    def worker(rank: int) -> None:
        torch.ones(1, device="cuda").item()
        if rank == 1:
            signal.raise_signal(signal.SIGUSR2)

    def interrupt() -> None:
        raise raises

    ctx = kernbench.context()
    with _timer(interrupt), pytest.raises((KeyboardInterrupt, SpawnException)):
        ctx.multiprocessing.spawn(worker, nprocs=2)
    ctx.multiprocessing.spawn(_worker, nprocs=2)


def test_an_error_of_a_signals_handler_inside_of_kernbench_is_noticed(
    kernbench: Kernbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = kernbench.context()
    with _timer(_late), monkeypatch.context() as patched:
        # The signal comes while the loop itself runs.
        patched.setattr(core, "get_ident", partial(signal.raise_signal, signal.SIGUSR2))
        with pytest.raises(LateError):
            ctx.multiprocessing.spawn(_worker, nprocs=2)
    with pytest.raises(InterruptedContextError, match="make a new context"):
        ctx.multiprocessing.spawn(_worker, nprocs=2)
