"""Accessors of parallel state that not every layout has, and options of Megatron's set-up."""

from typing import Any

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.errors import KernbenchError
from kernbench.parallel import parallel_state as ps
from kernbench.parallel.layout import Grid
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench

# An order in which no axis has neighbouring ranks by chance.
SHUFFLED: dict[str, Any] = {
    "tensor_model_parallel_size": 2,
    "context_parallel_size": 3,
    "order": "cp-dp-tp-ep-pp",
}


def run(kernbench: Kernbench, ranks: int, check: Any, **options: Any) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("cpu:gloo,cuda:nccl")
        ps.initialize_model_parallel(**options)
        check(rank)
        ps.destroy_model_parallel()
        assert [group.name for group in dist.live_groups()] == ["WORLD"]

    kernbench.spawn(worker, nprocs=ranks, topology="sip8" if ranks <= 8 else "fattree64")


def test_groups_for_the_host(kernbench: Kernbench) -> None:
    def check(rank: int) -> None:
        for group, like in (
            (ps.get_data_parallel_group_gloo(), ps.get_data_parallel_group()),
            (ps.get_data_parallel_group_gloo(True, True), ps.get_data_parallel_group(True)),
            (ps.get_expert_data_parallel_group_gloo(), ps.get_expert_data_parallel_group()),
        ):
            assert group is not like
            assert group.ranks == like.ranks
            assert dist.get_backend(group) == "gloo"
            x = torch.full((2,), float(rank), device="cpu")
            dist.all_reduce(x, group=group)
            assert x.tolist() == [sum(group.ranks)] * 2

    run(kernbench, 12, check, create_gloo_process_groups=True, **SHUFFLED)


def test_a_group_of_its_own_for_all_gathers(kernbench: Kernbench) -> None:
    def check(rank: int) -> None:
        assert ps.has_separate_all_gather_group()
        own = ps.get_data_parallel_group(True, independent_all_gather=True)
        whole = ps.get_data_parallel_group(True)
        assert own is not whole
        assert own.ranks == whole.ranks
        assert ps.get_data_parallel_group(True, True, True) is whole
        assert ps.get_data_parallel_group(False, False, True) is ps.get_data_parallel_group()

    run(kernbench, 12, check, create_all_gather_group=True, **SHUFFLED)


def test_hybrid_groups(kernbench: Kernbench) -> None:
    def check(rank: int) -> None:
        sizes = {"cp": 3, "dp": 4, "tp": 2}
        ranks = next(each for each in Grid(sizes).groups("cp-dp") if rank in each)
        place = ranks.index(rank)
        for size in (2, 4):
            group: Any = ps.get_hybrid_data_context_parallel_groups(group_size=size)
            first = place // size * size
            assert group.ranks == ranks[first : first + size]
        whole = ps.get_hybrid_data_context_parallel_groups(group_size=12)
        assert whole is ps.get_data_parallel_group(with_context_parallel=True)
        with pytest.raises(AssertionError, match=r"\(of 8 ranks\) group is not initialized"):
            ps.get_hybrid_data_context_parallel_groups(group_size=8)
        assert ps.get_hybrid_data_context_parallel_groups(False, 8) is None

    run(kernbench, 24, check, hybrid_context_parallel=True, **SHUFFLED)


def test_hybrid_groups_of_an_odd_number_are_refused(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        with pytest.raises(AssertionError, match="requires an even number of ranks"):
            ps.initialize_model_parallel(2, hybrid_context_parallel=True)
        assert [group.name for group in dist.live_groups()] == ["WORLD"]

    kernbench.spawn(worker, nprocs=6)


def test_groups_that_were_not_asked_for(kernbench: Kernbench) -> None:
    def check(rank: int) -> None:
        assert not ps.has_separate_all_gather_group()
        for ask, words in (
            (ps.get_data_parallel_group_gloo, "data parallel gloo"),
            (ps.get_expert_data_parallel_group_gloo, "expert data parallel gloo"),
            (lambda: ps.get_data_parallel_group(True, False, True), "all-gather"),
            (ps.get_inter_distributed_optimizer_instance_group, "inter distributed optimizer"),
        ):
            with pytest.raises(AssertionError, match=f"{words}.* group is not initialized"):
                ask()
        assert ps.get_inter_distributed_optimizer_instance_group(False) is None
        for partial in (ps.get_data_parallel_group, ps.get_data_parallel_group_gloo):
            with pytest.raises(AssertionError, match="Partial DP for Optimizer needs to include"):
                partial(partial_data_parallel=True)

    run(kernbench, 2, check)


def test_one_instance_of_a_distributed_optimizer_is_all(kernbench: Kernbench) -> None:
    def check(rank: int) -> None:
        whole = ps.get_data_parallel_group(True)
        assert ps.get_data_parallel_group(True, partial_data_parallel=True) is whole
        assert ps.get_data_parallel_rank(True, True) == whole.rank()
        assert ps.get_data_parallel_world_size(True, True) == whole.size()
        experts = ps.get_expert_data_parallel_group()
        assert ps.get_expert_data_parallel_group(True, True) is experts
        assert ps.get_expert_data_parallel_rank(True) == experts.rank()
        with pytest.warns(DeprecationWarning, match="use get_expert_data_parallel_group"):
            assert ps.get_data_modulo_expert_parallel_group() is experts
        with pytest.warns(DeprecationWarning, match="use is_initialized"):
            assert not ps.is_unitialized()

    run(kernbench, 12, check, **SHUFFLED)


def test_all_places_of_a_rank(kernbench: Kernbench) -> None:
    def check(rank: int) -> None:
        place = {"cp": rank % 3, "dp": rank // 3 % 2, "tp": rank // 6}
        assert ps.get_all_ranks() == f"{place['tp']}_{place['dp']}_{place['cp']}_0_0"
        ps.set_data_parallel_rank(7)
        assert ps.get_data_parallel_rank() == ps.get_data_parallel_rank(True) == 7
        assert ps.get_all_ranks() == f"{place['tp']}_7_{place['cp']}_0_0"
        ps.set_data_parallel_rank(None)
        assert ps.get_data_parallel_rank() == place["dp"]

    run(kernbench, 12, check, **SHUFFLED)


@pytest.mark.parametrize("axis", ["expert_model", "expert_tensor"])
@pytest.mark.parametrize("what", ["rank", "world_size"])
def test_places_among_experts_may_be_set(kernbench: Kernbench, axis: str, what: str) -> None:
    name = f"{axis}_parallel_{what}"

    def check(rank: int) -> None:
        get, put = getattr(ps, f"get_{name}"), getattr(ps, f"set_{name}")
        before = get()
        put(0)
        assert get() == 0
        put(40 + rank)
        assert get() == 40 + rank
        put(None)
        assert get() == before

    run(kernbench, 6, check, expert_model_parallel_size=3, expert_tensor_parallel_size=2)


def test_embeddings_at_a_virtual_stage(kernbench: Kernbench) -> None:
    def check(rank: int) -> None:
        found = [
            ps.is_rank_in_embedding_group(ignore_virtual=False, vp_stage=stage)
            for stage in range(2)
        ]
        assert found == [[True, False], [False, False], [False, True]][rank]
        assert ps.is_rank_in_embedding_group() == (rank != 1)
        if rank != 1:
            with pytest.raises(AssertionError, match="vp_stage must be passed"):
                ps.is_rank_in_embedding_group(ignore_virtual=False)

    run(
        kernbench,
        3,
        check,
        pipeline_model_parallel_size=3,
        virtual_pipeline_model_parallel_size=2,
    )


def test_memory_that_is_used_again(kernbench: Kernbench) -> None:
    def check(rank: int) -> None:
        memory = ps.get_global_memory_buffer()
        before = torch.cuda.memory_allocated()
        large = memory.get_tensor((4, 1024), torch.float32, "mpu")
        size = torch.cuda.memory_allocated() - before
        assert size >= 4 * 4096
        small = memory.get_tensor([2, 3], torch.float32, "mpu")
        assert torch.cuda.memory_allocated() - before == size
        assert small.data_ptr() == large.data_ptr()
        assert memory.get_tensor((2,), torch.float32, "b").data_ptr() != large.data_ptr()
        with pytest.raises(NotImplementedError, match="symmetric memory is not simulated"):
            ps.get_global_symmetric_memory_buffer()
        ps.destroy_global_memory_buffer()
        with pytest.raises(AssertionError, match="global memory buffer is not initialized"):
            ps.get_global_memory_buffer()

    run(kernbench, 2, check)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("pipeline_model_parallel_comm_backend", "ucc"),
        ("use_sharp", True),
        ("num_distributed_optimizer_instances", 2),
        ("nccl_communicator_config_path", "nccl.yaml"),
        ("high_priority_stream_groups", ["dp_cp"]),
        ("sharp_enabled_group", "dp"),
    ],
)
def test_what_is_not_simulated_is_refused_by_name(
    kernbench: Kernbench, option: str, value: object
) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        options: dict[str, Any] = {option: value}
        with pytest.raises(
            NotImplementedError, match=rf"{option}=\.\.\.\) is not simulated"
        ) as caught:
            ps.initialize_model_parallel(**options)
        assert isinstance(caught.value, KernbenchError)
        assert f"leave {option} out" in str(caught.value)
        assert not ps.is_initialized()

    kernbench.spawn(worker, nprocs=2)


def test_ranks_that_differ_in_what_they_make(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        ps.initialize_model_parallel(create_all_gather_group=rank == 1)

    with pytest.raises(SpawnException, match="differ in create_all_gather_group"):
        kernbench.spawn(worker, nprocs=2)


def test_a_generator_of_ranks() -> None:
    """Megatron-Core's own example: 3 x 4 x 2 ranks, groups along the last axis."""
    found = ps.RankGenerator(tp=2, ep=1, dp=4, pp=1, cp=3, order="CP-dp-tp", rank_offset=100)
    assert found.order == "cp-dp-tp-pp-ep"
    assert found.world_size == 24
    assert found.get_ranks("tp") == [[100 + i, 112 + i] for i in range(12)]
    assert found.get_ranks("cp-tp")[1] == [103, 104, 105, 115, 116, 117]
    with pytest.raises(AssertionError, match="an expert or a context axis"):
        ps.RankGenerator(1, 2, 1, 1, 2, "tp-cp-ep-dp-pp")
    assert ps.default_embedding_ranks([3, 5, 9]) == [3, 9]
    assert ps.default_embedding_ranks([3]) == [3]
    assert ps.default_position_embedding_ranks([3, 5]) == [3]
