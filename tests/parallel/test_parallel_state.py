"""Parallel state: layouts, what each rank is told, what is refused, what is left behind."""

import inspect
import math
import re
from collections.abc import Callable
from functools import cache
from itertools import permutations
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.errors import KernbenchError
from kernbench.parallel import accessors, held, layout, stages
from kernbench.parallel import parallel_state as ps
from kernbench.parallel.layout import Grid
from kernbench.process.process import current_process
from kernbench.ranks.group_creation import GroupMismatchError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench

AXES = ("tp", "cp", "ep", "dp", "pp")

GETTERS: dict[str, tuple[str, str]] = {
    "get_tensor_model_parallel_group": ("dense", "tp"),
    "get_pipeline_model_parallel_group": ("dense", "pp"),
    "get_context_parallel_group": ("dense", "cp"),
    "get_model_parallel_group": ("dense", "tp-pp"),
    "get_tensor_and_context_parallel_group": ("dense", "tp-cp"),
    "get_expert_model_parallel_group": ("expert", "ep"),
    "get_expert_tensor_parallel_group": ("expert", "tp"),
    "get_expert_data_parallel_group": ("expert", "dp"),
    "get_expert_tensor_and_model_parallel_group": ("expert", "tp-ep"),
    "get_expert_tensor_model_pipeline_parallel_group": ("expert", "tp-ep-pp"),
    "get_intra_distributed_optimizer_instance_group": ("expert", "tp-ep-dp-pp"),
}
CHECKED = [*GETTERS, "get_embedding_group", "get_position_embedding_group"]
CHECKED += ["get_hierarchical_context_parallel_groups"]
SETTABLE = [
    f"{axis}_parallel_{what}"
    for axis in ("tensor_model", "pipeline_model")
    for what in ("rank", "world_size")
]
PLAIN = [
    f"get_{axis}_parallel_{what}"
    for axis in (
        "context",
        "expert_model",
        "expert_tensor",
        "data",
        "expert_data",
        "tensor_and_context",
        "expert_tensor_and_model",
    )
    for what in ("rank", "world_size")
]
NEEDS_GROUPS = [
    *CHECKED,
    *(f"get_{name}" for name in SETTABLE),
    "get_data_parallel_group",
    "get_tensor_and_data_parallel_group",
    "get_context_parallel_global_ranks",
    "get_tensor_model_parallel_src_rank",
    "get_expert_model_parallel_src_rank",
    "get_all_ranks",
    "get_data_parallel_group_gloo",
    "get_expert_data_parallel_group_gloo",
    "get_hybrid_data_context_parallel_groups",
    "get_inter_distributed_optimizer_instance_group",
    "get_amax_reduction_group",
    "get_model_parallel_src_rank",
    "get_data_parallel_src_rank",
    "get_pipeline_model_parallel_first_rank",
    "get_pipeline_model_parallel_last_rank",
    "get_pipeline_model_parallel_next_rank",
    "get_pipeline_model_parallel_prev_rank",
    "is_pipeline_first_stage",
    "is_pipeline_last_stage",
]
FORGIVING: dict[str, object] = {
    "has_separate_all_gather_group": False,
    "is_rank_in_embedding_group": False,
    "is_rank_in_position_embedding_group": False,
    "get_virtual_pipeline_model_parallel_rank": None,
    "get_virtual_pipeline_model_parallel_world_size": None,
    "destroy_model_parallel": None,
}


def call(name: str, *args: Any, **options: Any) -> Any:
    return getattr(ps, name)(*args, **options)


def world(
    kernbench: Kernbench, ranks: int, check: Callable[[int], None], **options: Any
) -> RuntimeContext:
    """Runs a check on every rank of a layout, and looks that nothing is left of it."""

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        ps.initialize_model_parallel(**options)
        check(rank)
        ps.destroy_model_parallel()
        assert [group.name for group in dist.live_groups()] == ["WORLD"]
        assert not ps.is_initialized()
        ps.destroy_model_parallel()

    topology = "sip8" if ranks <= 8 else "fattree64"
    return kernbench.spawn(worker, nprocs=ranks, topology=topology)


def partition(kernbench: Kernbench, ranks: int, getter: str, **options: Any) -> list[list[int]]:
    """Returns all groups that ranks are told of, each once."""
    told: set[tuple[int, ...]] = set()

    def check(rank: int) -> None:
        group = call(getter)
        assert group.ranks[group.rank()] == rank
        told.add(group.ranks)

    world(kernbench, ranks, check, **options)
    return [list(group) for group in sorted(told)]


# Layouts


def test_tensor_pipeline_data(kernbench: Kernbench) -> None:
    def groups(axis: str) -> list[list[int]]:
        return partition(
            kernbench,
            16,
            f"get_{axis}_parallel_group",
            tensor_model_parallel_size=2,
            pipeline_model_parallel_size=4,
        )

    assert groups("tensor_model") == [[rank, rank + 1] for rank in range(0, 16, 2)]
    data = [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]
    assert groups("data") == data
    assert groups("pipeline_model") == [[rank, rank + 4, rank + 8, rank + 12] for rank in range(4)]


def test_tensor_context(kernbench: Kernbench) -> None:
    found = partition(
        kernbench,
        8,
        "get_context_parallel_group",
        tensor_model_parallel_size=4,
        context_parallel_size=2,
    )
    assert found == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_pipeline_before_data(kernbench: Kernbench) -> None:
    found = partition(
        kernbench,
        8,
        "get_data_parallel_group",
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=2,
        order="tp-pp-dp",
    )
    assert found == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_hierarchical_context_parallelism(kernbench: Kernbench) -> None:
    told: dict[int, list[list[int]]] = {}

    def check(rank: int) -> None:
        groups = ps.get_hierarchical_context_parallel_groups()
        assert groups is not None
        told[rank] = [list(group.ranks) for group in groups]
        assert ps.get_context_parallel_global_ranks() == [rank // 4 * 4 + i for i in range(4)]

    world(
        kernbench,
        8,
        check,
        context_parallel_size=4,
        hierarchical_context_parallel_sizes=[2, 2],
    )
    assert told[0] == [[0, 1], [0, 2]]
    assert told[1] == [[0, 1], [1, 3]]
    assert told[7] == [[6, 7], [5, 7]]


def test_three_levels_of_context_parallelism_beside_tensor_parallelism(
    kernbench: Kernbench,
) -> None:
    def check(rank: int) -> None:
        groups = ps.get_hierarchical_context_parallel_groups()
        assert groups is not None
        place, shard = rank // 2, rank % 2
        levels = [
            [place - place % 2 + i for i in range(2)],
            [place // 6 * 6 + place % 2 + 2 * i for i in range(3)],
            [place % 6 + 6 * i for i in range(2)],
        ]
        assert [list(group.ranks) for group in groups] == [
            [2 * member + shard for member in level] for level in levels
        ]

    world(
        kernbench,
        24,
        check,
        tensor_model_parallel_size=2,
        context_parallel_size=12,
        hierarchical_context_parallel_sizes=(2, 3, 2),
    )


def coordinates(rank: int, sizes: dict[str, int]) -> dict[str, int]:
    """The formula that defines an order: `rank = i1 + n1*(i2 + n2*(i3 + ...))`."""
    found = {}
    for axis, size in sizes.items():
        found[axis], rank = rank % size, rank // size
    return found


@cache
def everybody(sizes: tuple[tuple[str, int], ...]) -> list[dict[str, int]]:
    """The coordinates of all ranks."""
    ranks = math.prod(size for _, size in sizes)
    return [coordinates(rank, dict(sizes)) for rank in range(ranks)]


def mates(rank: int, sizes: dict[str, int], axes: str) -> list[int]:
    """All ranks that differ from one only in some axes."""
    ranks = everybody(tuple(sizes.items()))
    fixed = [axis for axis in sizes if axis not in axes.split("-")]
    mine = [ranks[rank][axis] for axis in fixed]
    return [at for at, other in enumerate(ranks) if [other[axis] for axis in fixed] == mine]


orders = st.sampled_from([list(order) for order in permutations(AXES)])


@given(
    order=orders,
    sizes=st.tuples(*[st.integers(1, 3)] * 5),
    axes=st.sets(st.sampled_from(AXES), min_size=1),
    offset=st.integers(0, 5),
)
def test_a_grid_has_the_groups_of_the_formula(
    order: list[str], sizes: tuple[int, ...], axes: set[str], offset: int
) -> None:
    grid = dict(zip(order, sizes, strict=True))
    token = "-".join(sorted(axes))
    found = Grid(grid, offset).groups(token)
    firsts = [group[0] for group in found]
    assert firsts == sorted(firsts)
    assert sorted(rank for group in found for rank in group) == [
        offset + rank for rank in range(math.prod(sizes))
    ]
    for group in found:
        expected = [offset + rank for rank in mates(group[0] - offset, grid, token)]
        assert list(group) == expected


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, list[str], dict[str, int]]:
    """A world of up to 64 ranks, an order, and sizes for which there is a layout."""
    small = st.sampled_from([1, 1, 2, 3, 4])
    sizes = {name: draw(small) for name in ("tp", "cp", "pp", "ep", "etp")}
    dense = sizes["tp"] * sizes["cp"] * sizes["pp"]
    expert = sizes["etp"] * sizes["ep"] * sizes["pp"]
    ranks = math.lcm(dense, expert) * draw(st.integers(1, 3))
    assume(ranks <= 64)
    order = draw(orders)
    same = dense == expert and order.index("pp") in {0, 4}
    if not same and sizes["pp"] > 1:
        order = [*(axis for axis in order if axis != "pp"), "pp"]
    return ranks, order, sizes


@pytest.mark.parametrize("examples", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_every_rank_is_told_its_groups(examples: int) -> None:
    settings(max_examples=examples)(given(layout=layouts())(check_groups))()


def check_groups(layout: tuple[int, list[str], dict[str, int]]) -> None:
    ranks, order, n = layout
    dense = {"tp": n["tp"], "cp": n["cp"], "ep": 1, "pp": n["pp"]}
    expert = {"tp": n["etp"], "cp": 1, "ep": n["ep"], "pp": n["pp"]}
    grids = {}
    for name, sizes in (("dense", dense), ("expert", expert)):
        sizes["dp"] = ranks // math.prod(sizes.values())
        grids[name] = {axis: sizes[axis] for axis in order}

    def check(rank: int) -> None:
        def mine(grid: str, axes: str) -> list[int]:
            return mates(rank, grids[grid], axes)

        for getter, (grid, axes) in GETTERS.items():
            group = call(getter)
            assert list(group.ranks) == mine(grid, axes), getter
            words = getter.removeprefix("get_").upper()
            assert group.desc == words
        for with_cp, axes in ((False, "dp"), (True, "dp-cp")):
            data = mine("dense", axes)
            assert list(ps.get_data_parallel_group(with_cp).ranks) == data
            both = ps.get_tensor_and_data_parallel_group(with_context_parallel=with_cp)
            assert list(both.ranks) == mine("dense", f"tp-{axes}")
            assert ps.get_data_parallel_src_rank(with_cp) == data[0]
            assert ps.get_data_parallel_rank(with_cp) == data.index(rank)
            assert ps.get_data_parallel_world_size(with_cp) == len(data)
        for axis, grid, token in (
            ("tensor_model", "dense", "tp"),
            ("pipeline_model", "dense", "pp"),
            ("context", "dense", "cp"),
            ("expert_model", "expert", "ep"),
            ("expert_tensor", "expert", "tp"),
            ("expert_data", "expert", "dp"),
            ("tensor_and_context", "dense", "tp-cp"),
            ("expert_tensor_and_model", "expert", "tp-ep"),
        ):
            members = mine(grid, token)
            assert call(f"get_{axis}_parallel_rank") == members.index(rank)
            assert call(f"get_{axis}_parallel_world_size") == len(members)
        assert ps.get_context_parallel_global_ranks() == mine("dense", "cp")
        assert ps.get_tensor_model_parallel_src_rank() == mine("dense", "tp")[0]
        assert ps.get_model_parallel_src_rank() == mine("dense", "tp-pp")[0]
        assert ps.get_expert_model_parallel_src_rank() == mine("expert", "ep")[0]
        for with_cp, only, axes in (
            (True, False, "tp-dp-cp"),
            (True, True, "tp-cp"),
            (False, False, "tp-dp"),
            (False, True, "tp"),
        ):
            assert list(ps.get_amax_reduction_group(with_cp, only).ranks) == mine("dense", axes)
        pipeline = mine("dense", "pp")
        assert pipeline == mine("expert", "pp")
        stage = pipeline.index(rank)
        assert ps.get_pipeline_model_parallel_first_rank() == pipeline[0]
        assert ps.get_pipeline_model_parallel_last_rank() == pipeline[-1]
        assert ps.get_pipeline_model_parallel_prev_rank() == pipeline[stage - 1]
        following = pipeline[(stage + 1) % len(pipeline)]
        assert ps.get_pipeline_model_parallel_next_rank() == following
        first, last = stage == 0, stage == len(pipeline) - 1
        assert (ps.is_pipeline_first_stage(), ps.is_pipeline_last_stage()) == (first, last)
        assert ps.is_rank_in_embedding_group() == (first or last)
        assert ps.is_rank_in_position_embedding_group() == first
        ends = ps.get_embedding_group(check_initialized=False)
        assert (ends is None) == (not first and not last)
        if ends is not None:
            assert list(ends.ranks) == sorted({pipeline[0], pipeline[-1]})

    harness = Kernbench()
    world(
        harness,
        ranks,
        check,
        tensor_model_parallel_size=n["tp"],
        pipeline_model_parallel_size=n["pp"],
        context_parallel_size=n["cp"],
        expert_model_parallel_size=n["ep"],
        expert_tensor_parallel_size=n["etp"],
        order="-".join(order),
    )
    harness.check_nothing_left()


def test_the_groups_work_and_take_no_time_to_make(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        host = current_process().host
        before = host.clock
        ps.initialize_model_parallel(4, 4, expert_model_parallel_size=2, order="TP-CP-EP-DP-PP")
        assert host.clock == before
        stage = rank // 16
        kinds = 15 + (stage in {0, 3}) + (stage == 0)
        assert len(dist.live_groups()) == 1 + kinds
        for name in GETTERS:
            group = call(name)
            x = torch.full((1,), float(rank), device="cuda")
            dist.all_reduce(x, group=group)
            assert x.item() == sum(group.ranks), name
        ps.destroy_model_parallel()
        with pytest.raises(RuntimeError, match="which it has destroyed"):
            dist.get_backend(group)

    kernbench.spawn(worker, nprocs=64, topology="fattree64")


def test_axes_of_size_1_may_be_left_out(kernbench: Kernbench) -> None:
    found = partition(
        kernbench, 4, "get_data_parallel_group", tensor_model_parallel_size=2, order="dp-tp"
    )
    assert found == [[0, 1], [2, 3]]


def test_experts_are_laid_out_by_themselves(kernbench: Kernbench) -> None:
    def groups(what: str) -> list[list[int]]:
        return partition(
            kernbench,
            8,
            f"get_expert_{what}_parallel_group",
            tensor_model_parallel_size=2,
            context_parallel_size=2,
            expert_model_parallel_size=4,
            expert_tensor_parallel_size=1,
        )

    assert groups("model") == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert groups("tensor") == [[rank] for rank in range(8)]
    assert groups("data") == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_embeddings_may_be_held_elsewhere(kernbench: Kernbench) -> None:
    def check(rank: int) -> None:
        stage = rank // 2
        assert ps.is_rank_in_embedding_group() == (stage in {1, 2})
        assert ps.is_rank_in_position_embedding_group() == (stage == 3)
        if stage == 3:
            assert ps.get_position_embedding_group().ranks == (rank,)
            with pytest.raises(AssertionError, match="embedding group is not initialized") as error:
                ps.get_embedding_group()
            assert f"rank {rank} is in no embedding group of this layout" in str(error.value)

    world(
        kernbench,
        8,
        check,
        pipeline_model_parallel_size=4,
        get_embedding_ranks=lambda ranks: ranks[1:3],
        get_position_embedding_ranks=lambda ranks: ranks[-1:],
    )


def test_a_layout_of_some_ranks(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        ps.initialize_model_parallel(2, rank_offset=2, local_world_size=4)
        inside = 2 <= rank < 6
        assert ps.is_initialized() == inside
        if inside:
            assert ps.get_tensor_model_parallel_src_rank() == rank // 2 * 2
            assert ps.get_data_parallel_group().ranks == (2 + rank % 2, 4 + rank % 2)
        else:
            assert ps.get_tensor_model_parallel_group(check_initialized=False) is None
            with pytest.raises(AssertionError, match="is in no tensor model parallel group"):
                ps.get_tensor_model_parallel_group()
        with pytest.raises(AssertionError, match="already initialized"):
            ps.initialize_model_parallel()
        ps.destroy_model_parallel()
        ps.initialize_model_parallel(rank_offset=1)
        assert ps.is_initialized() == (rank > 0)
        assert ps.get_data_parallel_world_size() == 7 if rank else True
        ps.destroy_model_parallel()

    kernbench.spawn(worker, nprocs=8)


# What a rank is told


def test_before_anything_is_initialized(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        with pytest.raises(AssertionError, match="distributed is not initialized"):
            ps.initialize_model_parallel()
        for name in PLAIN:
            assert call(name) == 0, name
        for started in (False, True):
            if started:
                dist.init_process_group("nccl")
            assert not ps.is_initialized()
            assert not ps.model_parallel_is_initialized()
            for name, value in FORGIVING.items():
                assert call(name) == value, name
            for name in (*NEEDS_GROUPS, *(PLAIN if started else ())):
                with pytest.raises(AssertionError, match="group is not initialized"):
                    call(name)
            for name in CHECKED:
                assert call(name, check_initialized=False) is None
                assert call(name, False) is None

    kernbench.spawn(worker, nprocs=2)


@pytest.mark.parametrize(
    "name",
    [
        *NEEDS_GROUPS,
        *PLAIN,
        *FORGIVING,
        "initialize_model_parallel",
        *(f"set_{name}" for name in SETTABLE),
    ],
)
def test_outside_of_a_worker(ctx: RuntimeContext, name: str) -> None:
    args = [0] if name.startswith("set_") else []
    with pytest.raises(RuntimeError, match=rf"{name}\(\) was called outside of a worker") as error:
        call(name, *args)
    assert isinstance(error.value, KernbenchError)
    assert "must run inside a worker" in str(error.value)
    assert "test_parallel_state.py" in str(error.value)
    assert not ps.is_initialized()


def test_without_any_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernbench.process.process._latest", None)
    with pytest.raises(RuntimeError, match=r"get_model_parallel_group\(\) was called outside"):
        ps.get_model_parallel_group()
    assert not ps.is_initialized()


@pytest.mark.parametrize("name", SETTABLE)
def test_what_is_set_wins(kernbench: Kernbench, name: str) -> None:
    def worker(rank: int) -> None:
        call(f"set_{name}", 40 + rank)
        assert call(f"get_{name}") == 40 + rank
        dist.init_process_group("nccl")
        ps.initialize_model_parallel(2, 2)
        assert call(f"get_{name}") == 40 + rank
        call(f"set_{name}", 0)
        assert call(f"get_{name}") == 0
        call(f"set_{name}", None)
        call(f"set_{name}", None)
        group = call(f"get_{name.rpartition('_parallel_')[0]}_parallel_group")
        assert call(f"get_{name}") == (group.rank() if name.endswith("rank") else 2)
        call(f"set_{name}", 7)
        ps.destroy_model_parallel()
        with pytest.raises(AssertionError, match="is not initialized"):
            call(f"get_{name}")

    kernbench.spawn(worker, nprocs=4)


def test_a_rank_that_is_set_stands_elsewhere_in_the_pipeline(kernbench: Kernbench) -> None:
    def check(rank: int) -> None:
        ps.set_pipeline_model_parallel_rank(3)
        assert ps.is_pipeline_last_stage()
        assert ps.get_pipeline_model_parallel_next_rank() == 0
        assert ps.get_pipeline_model_parallel_prev_rank() == 2
        ps.set_pipeline_model_parallel_world_size(5)
        assert not ps.is_pipeline_last_stage()

    world(kernbench, 4, check, pipeline_model_parallel_size=4)


def test_virtual_stages(kernbench: Kernbench) -> None:
    def check(rank: int) -> None:
        assert ps.get_virtual_pipeline_model_parallel_rank() == 0
        assert ps.get_virtual_pipeline_model_parallel_world_size() == 3
        ps.set_virtual_pipeline_model_parallel_rank(2)
        assert ps.get_virtual_pipeline_model_parallel_rank() == 2
        for piece in range(3):
            first = ps.is_pipeline_first_stage(ignore_virtual=False, vp_stage=piece)
            assert first == (rank == 0 and piece == 0)
            last = ps.is_pipeline_last_stage(ignore_virtual=False, vp_stage=piece)
            assert last == (rank == 1 and piece == 2)
        assert ps.is_pipeline_first_stage() == (rank == 0)
        assert ps.is_pipeline_last_stage() == (rank == 1)
        for ask in (ps.is_pipeline_first_stage, ps.is_pipeline_last_stage):
            with pytest.raises(AssertionError, match="vp_stage must be passed"):
                ask(ignore_virtual=False)
        ps.set_virtual_pipeline_model_parallel_world_size(None)
        assert ps.get_virtual_pipeline_model_parallel_world_size() is None
        assert ps.is_pipeline_first_stage(ignore_virtual=False) == (rank == 0)

    world(
        kernbench,
        2,
        check,
        pipeline_model_parallel_size=2,
        virtual_pipeline_model_parallel_size=3,
    )


# Refused


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"tensor_model_parallel_size": 3, "context_parallel_size": 2},
            RuntimeError,
            "world_size (8) is not divisible by 6\n",
        ),
        (
            {"expert_model_parallel_size": 3, "tensor_model_parallel_size": 2},
            RuntimeError,
            "world_size (8) is not divisible by 6\n",
        ),
        (
            {"expert_tensor_parallel_size": 5},
            RuntimeError,
            "world_size (8) is not divisible by 5\n",
        ),
        (
            {"virtual_pipeline_model_parallel_size": 2},
            RuntimeError,
            "pipeline_model_parallel_size should be greater than 1 with virtual stages",
        ),
        (
            {"context_parallel_size": 4, "hierarchical_context_parallel_sizes": [2, 3]},
            AssertionError,
            "hierarchical_context_parallel_sizes=[2, 3] is not context_parallel_size=4",
        ),
        (
            {"context_parallel_size": 4, "hierarchical_context_parallel_sizes": [-2, -2]},
            AssertionError,
            "hierarchical_context_parallel_sizes=[-2, -2] is not",
        ),
        (
            {"context_parallel_size": 2, "order": "tp-dp-pp"},
            RuntimeError,
            "the size of cp is 2, but order='tp-dp-pp' does not say",
        ),
        ({"order": "tp-pp"}, RuntimeError, "the size of dp is 8, but order='tp-pp'"),
        ({"order": "tp-dp-tp"}, RuntimeError, "order='tp-dp-tp'"),
        ({"order": "tp-dp-xp"}, RuntimeError, "order='tp-dp-xp'"),
        (
            {
                "pipeline_model_parallel_size": 2,
                "expert_model_parallel_size": 2,
                "order": "tp-ep-pp-dp",
            },
            RuntimeError,
            "need the same data parallel size; they have 4 and 2",
        ),
        (
            {
                "tensor_model_parallel_size": 2,
                "expert_tensor_parallel_size": 1,
                "expert_model_parallel_size": 2,
                "pipeline_model_parallel_size": 2,
                "order": "tp-pp-ep-dp",
            },
            AssertionError,
            "pipeline parallel groups of dense and expert layers differ",
        ),
        ({"tensor_model_parallel_size": 0}, RuntimeError, "expected at least 1"),
        *[
            ({argument: value}, RuntimeError, f"{argument}={value!r}: expected")
            for argument in (
                "tensor_model_parallel_size",
                "pipeline_model_parallel_size",
                "context_parallel_size",
                "expert_model_parallel_size",
                "expert_tensor_parallel_size",
                "virtual_pipeline_model_parallel_size",
                "rank_offset",
                "local_world_size",
            )
            for value in (2.0, "2")
        ],
        (
            {"context_parallel_size": 4, "hierarchical_context_parallel_sizes": [2.0, 2]},
            AssertionError,
            "hierarchical_context_parallel_sizes=[2.0, 2] is not context_parallel_size=4",
        ),
        ({"rank_offset": 5, "local_world_size": 4}, RuntimeError, "expected some of ranks 0..7"),
        ({"rank_offset": -1}, RuntimeError, "expected some of ranks 0..7"),
        ({"rank_offset": 8}, RuntimeError, "expected some of ranks 0..7"),
        (
            {"get_embedding_ranks": lambda ranks: [ranks[0] + 1]},
            RuntimeError,
            "get_embedding_ranks([0]) returned [1]",
        ),
        (
            {"get_position_embedding_ranks": lambda _: []},
            RuntimeError,
            "get_position_embedding_ranks([0]) returned []",
        ),
    ],
)
def test_a_layout_that_is_refused_leaves_nothing(
    kernbench: Kernbench, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        with pytest.raises(kind, match=re.escape(message)) as error:
            ps.initialize_model_parallel(**options)
        assert "test_parallel_state.py" in str(error.value)
        assert [group.name for group in dist.live_groups()] == ["WORLD"]
        assert not ps.is_initialized()
        ps.initialize_model_parallel(2, 2)
        ps.destroy_model_parallel()

    kernbench.spawn(worker)


def test_twice(kernbench: Kernbench) -> None:
    def check(rank: int) -> None:
        group = ps.get_tensor_model_parallel_group()
        with pytest.raises(AssertionError, match="is already initialized"):
            ps.initialize_model_parallel(2)
        assert ps.get_tensor_model_parallel_group() is group

    world(kernbench, 4, check, tensor_model_parallel_size=2)


def test_ranks_that_disagree(kernbench: Kernbench) -> None:
    left: dict[int, list[str]] = {}

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        try:
            ps.initialize_model_parallel(2, order="tp-dp-pp" if rank else "dp-tp-pp")
            dist.barrier()
        except GroupMismatchError:
            left[rank] = [group.name for group in dist.live_groups()]
            raise

    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=4)
    assert "[C9]" in str(caught.value)
    assert "initialize_model_parallel #1 of the world: ranks 0-3 differ in order" in str(
        caught.value
    )
    assert left == {rank: ["WORLD"] for rank in (1, 2, 3)}


@pytest.mark.parametrize(
    ("argument", "mine", "others"),
    [
        ("virtual_pipeline_model_parallel_size", 2, 3),
        ("virtual_pipeline_model_parallel_size", None, 2),
        ("hierarchical_context_parallel_sizes", [1], None),
        ("order", "tp-cp-ep-dp-pp", "cp-tp-ep-dp-pp"),
    ],
)
def test_arguments_that_differ_and_change_no_group(
    kernbench: Kernbench, argument: str, mine: object, others: object
) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        options: dict[str, Any] = {argument: others if rank else mine}
        ps.initialize_model_parallel(1, 2, **options)

    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=2)
    error = caught.value.errors[1]
    assert isinstance(error, GroupMismatchError)
    assert str(error).splitlines()[0] == (
        f"[C9] initialize_model_parallel #1 of the world: ranks 0-1 differ in {argument}"
    )
    for fact, value in zip(error.facts, (mine, others), strict=True):
        assert (f"{argument}={value!r}" in fact) == (value is not None)
        assert "test_parallel_state.py" in fact


def test_a_rank_that_does_not_call(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        if rank != 1:
            ps.initialize_model_parallel(1)
            ps.destroy_model_parallel()

    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=3)
    assert (
        "[C9] initialize_model_parallel #1 of the world: ranks 0, 2 called it, rank 1 did not"
        in str(caught.value)
    )


def test_equal_arguments_in_other_words(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        for _ in range(2):
            if rank:
                ps.initialize_model_parallel(2, expert_tensor_parallel_size=2, local_world_size=4)
            else:
                ps.initialize_model_parallel(2, order="TP-CP-EP-DP-PP")
            ps.destroy_model_parallel()

    kernbench.spawn(worker, nprocs=4)


def test_too_many_groups(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        with pytest.raises(KernbenchError, match="C17"):
            ps.initialize_model_parallel(2)
        assert [group.name for group in dist.live_groups()] == ["WORLD"]
        assert not ps.is_initialized()

    ctx = kernbench.context(group_limit=5)
    with ctx:
        ctx.multiprocessing.spawn(worker, nprocs=4)


# The end


def test_groups_that_the_user_destroyed_already(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        ps.initialize_model_parallel(2)
        dist.destroy_process_group(ps.get_tensor_model_parallel_group())
        ps.destroy_model_parallel()
        ps.initialize_model_parallel(2)
        dist.destroy_process_group()
        ps.destroy_model_parallel()
        ps.destroy_model_parallel()
        dist.init_process_group("nccl")
        ps.initialize_model_parallel(4)
        assert ps.get_tensor_model_parallel_world_size() == 4
        ps.destroy_model_parallel()

    kernbench.spawn(worker, nprocs=4)


def test_destroyed_while_an_operation_is_pending(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        ps.initialize_model_parallel(2, 2)
        x = torch.ones(4, device="cuda")
        group = ps.get_model_parallel_group()
        work = dist.all_reduce(x, group=group, async_op=True)
        with pytest.raises(KernbenchError, match="C13"):
            ps.destroy_model_parallel()
        work.wait()
        ps.destroy_model_parallel()
        assert [group.name for group in dist.live_groups()] == ["WORLD"]

    kernbench.spawn(worker, nprocs=4)


def test_nothing_survives_a_spawn_and_contexts_are_apart(kernbench: Kernbench) -> None:
    def worker(rank: int, tp: int) -> None:
        assert not ps.is_initialized()
        dist.init_process_group("nccl")
        ps.initialize_model_parallel(tp)
        ps.set_pipeline_model_parallel_rank(9)
        dist.barrier()
        assert ps.get_tensor_model_parallel_world_size() == tp
        dist.destroy_process_group()

    one, other = kernbench.context(), kernbench.context()
    for ctx, tp in ((one, 2), (other, 4), (one, 1)):
        with ctx:
            ctx.multiprocessing.spawn(worker, args=(tp,), nprocs=4)


# The module


@pytest.mark.parametrize("name", ps.__all__)
def test_names_are_documented_and_their_own(name: str) -> None:
    thing = getattr(ps, name)
    assert thing.__module__ in {each.__name__ for each in (ps, layout, held, accessors, stages)}
    assert thing.__doc__
    assert not re.search(r"[{}]", thing.__doc__)
    assert name in {thing.__name__, "is_initialized"}
    if name in CHECKED:
        assert str(inspect.signature(thing)).startswith("(check_initialized: bool = True")


def test_all_accessors_are_listed() -> None:
    listed = {name for name in vars(ps) if name.startswith(("get_", "set_", "is_"))}
    assert listed <= set(ps.__all__)
    assert set(NEEDS_GROUPS) | set(PLAIN) | set(FORGIVING) <= set(ps.__all__)
