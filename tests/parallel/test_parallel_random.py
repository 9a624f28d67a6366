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


# Megatron-Core's names


def test_its_seeds_under_megatrons_name(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        ps.initialize_model_parallel(2, expert_model_parallel_size=3, order="dp-ep-tp-cp-pp")
        tp, ep = ps.get_tensor_model_parallel_rank(), ps.get_expert_model_parallel_rank()
        etp = ps.get_expert_tensor_parallel_rank()
        streams.model_parallel_cuda_manual_seed(11)
        tracker = streams.get_cuda_rng_tracker()
        assert tracker.is_initialized()
        seeds = (11, 11 + 2718 + tp, 11 + 1024 + 100 * ep + etp)
        for name, seed in zip(NAMES, seeds, strict=True):
            with tracker.fork(name):
                assert draw() == numbers(seed)
        streams.model_parallel_cuda_manual_seed(7, tp_rank=5, force_reset_rng=True)
        assert streams.get_cuda_rng_tracker() is not tracker
        with streams.get_cuda_rng_tracker().fork():
            assert draw() == numbers(7 + 2718 + 5)
        ps.destroy_model_parallel()

    kernbench.spawn(worker, nprocs=6)


def test_states_are_kept_and_set(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        tracker = streams.get_cuda_rng_tracker()
        assert tracker.get_states() == {}
        assert not tracker.is_initialized()
        tracker.add("a", 10 + rank)
        # Two numbers of 32 bits are one of the generator's: a state holds the half that is left.
        with tracker.fork("a"):
            first = draw(3)
        kept = tracker.get_states()
        with tracker.fork("a"):
            rest = draw(5)
        assert first + rest == numbers(10 + rank, 8)
        tracker.add("b", 99)
        tracker.set_states(kept)
        assert list(tracker.get_states()) == ["a"]
        with tracker.fork("a"):
            assert draw(5) == rest
        other = streams.CudaRNGStatesTracker()
        other.set_states(kept)
        assert other.is_initialized()
        with other.fork("a"):
            assert draw(5) == rest
        assert streams.get_all_rng_states().keys() == {"a"}
        tracker.reset()
        assert tracker.get_states() == {}
        assert not tracker.is_initialized()

    kernbench.spawn(worker, nprocs=3)


def test_a_state_is_that_of_the_generator(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        tracker = streams.CudaRNGStatesTracker()
        tracker.add("a", 5)
        torch.manual_seed(5)
        assert torch.equal(tracker.get_states()["a"], torch.cuda.get_rng_state())
        state = torch.get_rng_state()
        found = draw(3)
        torch.cuda.set_rng_state(state)
        assert draw(3) == found
        assert torch.initial_seed() == 5
        with pytest.raises(RuntimeError, match=r"RNG state must be a torch\.ByteTensor"):
            torch.set_rng_state(torch.zeros(3))
        tracker = streams.get_cuda_rng_tracker()
        tracker.add("b", 1)
        with pytest.raises(RuntimeError, match=r"RNG state must be a torch\.ByteTensor"):
            tracker.set_states({"c": torch.zeros(3)})
        assert list(tracker.get_states()) == ["b"]

    kernbench.spawn(worker, nprocs=1)


def test_what_is_not_simulated_is_refused_by_name(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        for option, words in (
            ("use_te_rng_tracker", "Transformer Engine"),
            ("inference_rng_tracker", "not tracked"),
            ("use_cudagraphable_rng", "graphs of device commands"),
        ):
            for function in (streams.get_cuda_rng_tracker, streams.initialize_rng_tracker):
                with pytest.raises(NotImplementedError, match=words):
                    function(**{option: True})
            seeding = option.removeprefix("use_") if "te" in option else option
            with pytest.raises(NotImplementedError, match=words):
                streams.model_parallel_cuda_manual_seed(1, **{seeding: True})

    kernbench.spawn(worker, nprocs=1)


def test_states_without_data(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        torch.set_rng_state(torch.get_rng_state())
        tracker = streams.get_cuda_rng_tracker()
        tracker.add("a", 1)
        tracker.set_states(tracker.get_states())

    kernbench.spawn(worker, nprocs=1, data=False)
