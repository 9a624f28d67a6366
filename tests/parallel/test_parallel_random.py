"""Named streams of random numbers: which ranks share them, and who draws from which."""

from contextlib import suppress

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.parallel import parallel_state as ps
from kernbench.parallel import random as streams
from kernbench.runtime_api.context import RuntimeContext
from kernbench.testing import Kernbench

NAMES = (streams.DATA_PARALLEL, streams.MODEL_PARALLEL, streams.EXPERT_PARALLEL)


def draw(count: int = 4) -> list[float]:
    found: list[float] = torch.rand(count).tolist()
    return found


def numbers(seed: int, count: int = 4) -> list[float]:
    """The first numbers of a seed."""
    found: list[float] = torch.rand(count, generator=torch.Generator().manual_seed(seed)).tolist()
    return found


def test_the_seeds_of_the_streams(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        ps.initialize_model_parallel(4, expert_model_parallel_size=2, expert_tensor_parallel_size=2)
        streams.model_parallel_manual_seed(50)
        tp, ep, etp = rank % 4, rank // 2 % 2, rank % 2
        assert torch.initial_seed() == 50
        seeds = (50, 50 + 2718 + tp, 50 + 1024 + 100 * ep + etp)
        for name, seed in zip(NAMES, seeds, strict=True):
            with streams.get_rng_tracker().fork(name):
                assert torch.initial_seed() == seed
                assert draw() == numbers(seed)
        assert draw() == numbers(50)
        ps.destroy_model_parallel()

    kernbench.spawn(worker)


def test_ranks_may_be_given(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        streams.model_parallel_manual_seed(7, tp_rank=3, ep_rank=2, etp_rank=1)
        tracker = streams.get_rng_tracker()
        with tracker.fork():
            assert torch.initial_seed() == 7 + 2718 + 3
        with tracker.fork(streams.EXPERT_PARALLEL):
            assert torch.initial_seed() == 7 + 1024 + 200 + 1
        with pytest.raises(AssertionError, match="is not initialized"):
            streams.model_parallel_manual_seed(7)
        # What was seeded is still there.
        with tracker.fork():
            assert draw() == numbers(7 + 2718 + 3)

    kernbench.spawn(worker, nprocs=2)


def test_a_stream_goes_on_and_the_default_one_too(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        tracker = streams.get_rng_tracker()
        tracker.add("a", 1)
        tracker.add("b", 2)
        torch.manual_seed(3)
        first = draw(2)
        with tracker.fork("a"):
            inside = draw(2)
            with tracker.fork("b"):
                assert draw() == numbers(2)
            inside += draw(2)
        with suppress(ValueError), tracker.fork("a"):
            inside += draw(2)
            raise ValueError
        with tracker.fork("a"):
            inside += draw(2)
        assert first + draw(2) == numbers(3)
        assert inside == numbers(1, 8)

    kernbench.spawn(worker, nprocs=2)


def test_ranks_that_take_turns_inside_of_fork_draw_from_their_own(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        streams.model_parallel_manual_seed(0, rank, 0, 0)
        if rank % 2:
            with streams.get_rng_tracker().fork():
                found = draw(2)
                dist.barrier()  # the others run now, outside of theirs
                found += draw(2)
            assert found == numbers(2718 + rank)
        else:
            found = draw(2)
            dist.barrier()
            found += draw(2)
            assert found == numbers(0)
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=4)


def test_refused(kernbench: Kernbench) -> None:
    trackers: list[streams.RngTracker] = []

    def worker(rank: int) -> None:
        tracker = streams.get_rng_tracker()
        trackers.append(tracker)
        with pytest.raises(RuntimeError, match=r"'a' does not exist\n.*\n  there are none"):
            tracker.fork("a").__enter__()
        tracker.add("a", 1)
        with pytest.raises(RuntimeError, match="random stream 'a' already exists"):
            tracker.add("a", 2)
        with pytest.raises(RuntimeError, match="seed 1 of random stream 'b' is already that of"):
            tracker.add("b", 1)
        with pytest.raises(RuntimeError, match="there are 'a'"):
            tracker.fork("b").__enter__()
        with tracker.fork("a"):
            pass
        if rank:
            with pytest.raises(RuntimeError, match=r"rank 1 draws from .* another rank"):
                trackers[0].fork("a").__enter__()
        tracker.reset()
        tracker.add("b", 1)

    kernbench.spawn(worker, nprocs=2)


def test_outside_of_a_worker(ctx: RuntimeContext) -> None:
    with pytest.raises(RuntimeError, match=r"get_rng_tracker\(\) was called outside of a worker"):
        streams.get_rng_tracker()
    with pytest.raises(RuntimeError, match=r"model_parallel_manual_seed\(\) was called outside"):
        streams.model_parallel_manual_seed(0)
