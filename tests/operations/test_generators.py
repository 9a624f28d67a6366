"""Seeds and states of generators: which ranks draw the same numbers, and which do not."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.errors import KernbenchError, OptionError
from kernbench.process.access import OwnershipError
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.testing import Kernbench

RANKS = 3


def _drawn(kernbench: Kernbench, worker: Callable[[int], Any], **fields: Any) -> list[Any]:
    """Returns what the worker returns on each rank."""
    found: dict[int, Any] = {}

    def each(rank: int) -> None:
        found[rank] = worker(rank)

    kernbench.spawn(each, nprocs=RANKS, **fields)
    return [found[rank] for rank in range(RANKS)]


def _four(_: int) -> Any:
    return torch.rand(4).tolist()


def test_ranks_that_nobody_seeded_draw_different_numbers(kernbench: Kernbench) -> None:
    first = _drawn(kernbench, _four)
    assert len({tuple(values) for values in first}) == RANKS
    assert _drawn(kernbench, _four) == first, "a run can be repeated"
    assert _drawn(kernbench, _four, seed=1) != first
    seeds = _drawn(kernbench, lambda _: torch.initial_seed())
    assert len(set(seeds)) == RANKS


@pytest.mark.parametrize(
    "seed",
    [
        lambda: torch.manual_seed(5),
        lambda: torch.cuda.manual_seed(5),
        lambda: torch.cuda.manual_seed_all(5),
        lambda: torch.random.manual_seed(5),
    ],
)
def test_ranks_with_one_seed_draw_the_same(
    kernbench: Kernbench, seed: Callable[[], object]
) -> None:
    def worker(rank: int) -> Any:
        torch.rand(rank + 1)
        seed()
        return torch.initial_seed(), torch.rand(4).tolist(), torch.randn(2).tolist()

    found = _drawn(kernbench, worker)
    assert found[0][0] == 5
    assert found == [found[0]] * RANKS


def test_generators_of_their_own_are_alike_on_all_ranks(kernbench: Kernbench) -> None:
    def worker(rank: int) -> Any:
        generator = torch.Generator()
        return generator.initial_seed(), torch.rand(2, generator=generator).tolist()

    found = _drawn(kernbench, worker)
    assert found == [found[0]] * RANKS


def test_a_forgotten_broadcast_shows(kernbench: Kernbench) -> None:
    def worker(rank: int) -> Any:
        dist.init_process_group("nccl")
        weight = torch.randn(8)
        together = weight.clone()
        dist.broadcast(together, src=0)
        return torch.equal(weight, together)

    assert _drawn(kernbench, worker) == [True, False, False]


def test_main_starts_from_the_seed_of_the_run() -> None:
    with RuntimeContext(RunSpec(seed=11)):
        assert torch.initial_seed() == 11
        plain = torch.rand(2).tolist()
        torch.manual_seed(11)
        assert torch.rand(2).tolist() == plain


def test_states_are_places_in_the_stream(ctx: RuntimeContext) -> None:
    for get, put in (
        (torch.get_rng_state, torch.set_rng_state),
        (torch.cuda.get_rng_state, torch.cuda.set_rng_state),
        (torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all),
    ):
        torch.manual_seed(3)
        torch.randint(0, 5, (3,), dtype=torch.int32)
        state: Any = get()
        expected = torch.rand(5).tolist(), torch.randn(3).tolist()
        torch.manual_seed(8)
        put(state)
        assert torch.initial_seed() == 3
        assert (torch.rand(5).tolist(), torch.randn(3).tolist()) == expected
    assert torch.get_rng_state().dtype is torch.uint8
    assert torch.get_rng_state().is_cpu


def test_states_of_a_generator(ctx: RuntimeContext) -> None:
    generator = torch.Generator().manual_seed(4)
    torch.rand(3, generator=generator)
    copied = generator.clone_state()
    state = generator.get_state()
    expected = torch.rand(3, generator=generator).tolist()
    assert torch.rand(3, generator=copied).tolist() == expected
    assert torch.rand(3, generator=generator.set_state(state)).tolist() == expected


def test_a_forked_block_leaves_the_stream_where_it_was(ctx: RuntimeContext) -> None:
    torch.manual_seed(1)
    expected = torch.rand(4).tolist()
    torch.manual_seed(1)
    with torch.random.fork_rng():
        torch.manual_seed(9)
        torch.rand(100)
    assert torch.initial_seed() == 1
    assert torch.rand(4).tolist() == expected
    torch.manual_seed(1)
    with pytest.raises(OptionError), torch.random.fork_rng(devices=[0], device_type="cuda"):
        torch.manual_seed(1 << 64)
    assert torch.rand(4).tolist() == expected
    with torch.random.fork_rng(enabled=False):
        torch.manual_seed(9)
    assert torch.initial_seed() == 9
    with (
        pytest.raises(RuntimeError, match="no module of `xpu`"),
        torch.random.fork_rng(device_type="xpu"),
    ):
        pass


@pytest.mark.parametrize(
    ("devices", "kept"), [(None, True), ([1], True), (["cuda"], True), ([], False)]
)
def test_a_forked_block_keeps_the_generators_of_its_devices(
    kernbench: Kernbench, devices: Any, kept: bool
) -> None:
    def worker(rank: int) -> None:
        if rank != 1:
            return
        torch.manual_seed(3)
        with torch.random.fork_rng(devices):
            torch.manual_seed(9)
        assert torch.initial_seed() == 3
        assert torch.cuda.initial_seed() == (3 if kept else 9)

    kernbench.spawn(worker, nprocs=2, default_device="cpu")


def test_a_forked_block_of_other_devices_is_refused(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        with pytest.raises(OwnershipError), torch.random.fork_rng([1 - rank]):
            raise AssertionError
        with pytest.raises(KernbenchError, match="99"), torch.random.fork_rng([99]):
            raise AssertionError

    kernbench.spawn(worker, nprocs=2)


def test_new_seeds_follow_from_earlier_ones(ctx: RuntimeContext) -> None:
    torch.manual_seed(1)
    first, second = torch.seed(), torch.random.seed()
    assert len({1, first, second}) == 3
    assert torch.initial_seed() == second
    torch.manual_seed(1)
    assert (torch.seed(), torch.seed()) == (first, second)


def test_bad_seeds_and_states(ctx: RuntimeContext) -> None:
    for seed in (1 << 64, -(1 << 63) - 1):
        with pytest.raises(ValueError, match="expected a seed from"):
            torch.manual_seed(seed)
    assert torch.manual_seed(-1).initial_seed() == (1 << 64) - 1
    for state in (torch.zeros(3, dtype=torch.uint8), torch.zeros(120)):
        with pytest.raises(RuntimeError, match=r"RNG state must be a torch\.ByteTensor"):
            torch.set_rng_state(state)
    with pytest.raises(RuntimeError, match="got 0 states"):
        torch.cuda.set_rng_state_all([])
    with pytest.raises(TypeError):
        torch.set_rng_state(None)  # type: ignore[arg-type]


def test_states_with_data_off() -> None:
    with RuntimeContext(RunSpec(data=False)):
        torch.set_rng_state(torch.get_rng_state())
        with torch.random.fork_rng():
            torch.manual_seed(9)
        assert torch.initial_seed() == 0


# multinomial


def test_indices_are_drawn_by_their_weights(ctx: RuntimeContext) -> None:
    torch.manual_seed(0)
    weights = torch.tensor([[1.0, 0.0, 3.0], [0.0, 2.0, 0.0]])
    drawn = torch.multinomial(weights, 4000, replacement=True).numpy()
    assert drawn.dtype == np.int64
    assert drawn.shape == (2, 4000)
    counts = np.bincount(drawn[0], minlength=3)
    # 4000 draws with chance 1/4: the standard deviation is 27.
    assert counts[1] == 0
    assert abs(counts[0] - 1000) < 4 * 27
    assert (drawn[1] == 1).all()
    firsts = [int(weights[0].multinomial(1)) for _ in range(400)]
    assert abs(firsts.count(2) - 300) < 4 * 9
    assert 1 not in firsts


def test_without_replacement_no_index_comes_twice(ctx: RuntimeContext) -> None:
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0])
    for _ in range(20):
        assert sorted(torch.multinomial(weights, 4).tolist()) == [0, 1, 2, 3]
    generator = torch.Generator().manual_seed(1)
    again = torch.Generator().manual_seed(1)
    assert (
        torch.multinomial(weights, 2, generator=generator).tolist()
        == torch.multinomial(weights, 2, generator=again).tolist()
    )


@pytest.mark.parametrize(
    ("weights", "count", "replacement", "message"),
    [
        ([0.0, 0.0], 1, False, "sum of probabilities <= 0"),
        ([1.0, -1.0], 1, False, "either `inf`, `nan` or element < 0"),
        ([1.0, float("nan")], 1, True, "either `inf`, `nan` or element < 0"),
        ([[[1.0]]], 1, False, "prob_dist must be 1 or 2 dim"),
        ([1.0, 2.0], 0, False, "cannot sample n_sample <= 0 samples"),
        ([1.0, 2.0], 3, False, "n_sample > prob_dist"),
        ([], 1, True, "n_sample > prob_dist"),
        ([1, 2], 1, False, "only supports floating-point dtypes"),
    ],
)
def test_weights_that_do_not_fit(
    ctx: RuntimeContext, weights: Any, count: int, replacement: bool, message: str
) -> None:
    with pytest.raises(RuntimeError, match=message):
        torch.multinomial(torch.tensor(weights), count, replacement)


# torch.accelerator


def test_the_accelerator_is_the_rank_s_device(kernbench: Kernbench) -> None:
    def worker(rank: int) -> Any:
        x = torch.ones(1 << 10)
        with torch.accelerator.device_index(None):
            assert torch.accelerator.current_device_index() == rank
        torch.accelerator.set_device_index(rank)
        torch.accelerator.synchronize()
        stream = torch.accelerator.current_stream()
        torch.accelerator.set_stream(stream)
        torch.accelerator.empty_cache()
        assert torch.accelerator.memory_reserved() >= torch.accelerator.memory_allocated()
        torch.accelerator.reset_peak_memory_stats()
        assert torch.accelerator.max_memory_allocated() >= x.nbytes
        return torch.accelerator.is_available(), str(torch.accelerator.current_accelerator())

    assert _drawn(kernbench, worker) == [(True, "cuda")] * RANKS


def test_the_version_is_pytorchs(ctx: RuntimeContext) -> None:
    assert [int(part) for part in torch.__version__.split(".")[:2]] == [2, 13]
    assert ctx.__version__ == torch.__version__
    assert torch.__version__ >= (2, 13)
    assert torch.__version__ >= "2.9", "as a version, not letter by letter"
    assert "2.13.0" < torch.__version__ < "2.13.1.dev20260101"
    assert "2.13.0rc1" < torch.__version__ < "2.13.0.post1"
    assert torch.__version__ == "2.13+kernbench"
    assert torch.__version__ != (2, 13)
    assert torch.__version__ < "unknown"
