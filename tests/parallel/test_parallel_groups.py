"""Groups along the dimensions of a grid, and all groups of a layout in one object."""

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.parallel import parallel_state
from kernbench.parallel.groups import FIELDS, GroupGrid, ProcessGroupCollection
from kernbench.testing import Kernbench


def test_groups_along_the_dimensions_of_a_grid(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        grid = GroupGrid([2, 3], ["tp", "dp"], rank_offset=1)
        assert grid.get_rank_enum("tp") == [[1, 2], [3, 4], [5, 6]]
        assert grid.get_rank_enum(["dp"]) == [[1, 3, 5], [2, 4, 6]]
        assert grid.get_rank_enum(["dp", "tp"]) == [[1, 2, 3, 4, 5, 6]]
        with pytest.raises(KeyError, match="no groups along dp"):
            grid.get_pg("dp")
        group = grid.create_pg("dp")
        both = grid.create_pg(["tp", "dp"])
        assert grid.get_pg("dp") is group
        assert grid.get_pg(["dp", "tp"]) is both  # the order of names makes no difference
        with pytest.raises(KeyError, match="along tp-dp already"):
            grid.create_pg(["dp", "tp"])
        if 1 <= rank <= 6:
            x = torch.full((1,), float(rank), device="cuda")
            dist.all_reduce(x, group=group)
            assert x.item() == (9.0 if rank % 2 else 12.0)
        else:
            assert group is None
        grid.destroy()
        grid.destroy()
        assert all(
            rank not in record.ranks or record.name == "WORLD" for record in dist.live_groups()
        )
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=8)


def test_grids_that_cannot_be(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        with pytest.raises(ValueError, match="2 extents for the dimensions tp"):
            GroupGrid([2, 2], ["tp"])
        with pytest.raises(ValueError, match="no negative offset"):
            GroupGrid([2], ["tp"], rank_offset=-1)
        with pytest.raises(RuntimeError, match="a grid of 4 ranks from rank 2 on is too large"):
            GroupGrid([2, 2], ["tp", "dp"], rank_offset=2)
        with pytest.raises(ValueError, match="no dimension 'pp'"):
            GroupGrid([2], ["tp"]).create_pg("pp")
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=4)


def test_a_collection_of_groups(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(2, 2)
        groups = ProcessGroupCollection.use_mpu_process_groups()
        assert groups.tp is parallel_state.get_tensor_model_parallel_group()
        assert groups.dp is parallel_state.get_data_parallel_group()
        assert groups.hcp is None
        assert groups.inter_dist_opt is None
        some = ProcessGroupCollection.use_mpu_process_groups(["tp", "pp"])
        assert repr(some) == "ProcessGroupCollection(tp=2, pp=2)"
        some.hcp = [groups.tp, groups.dp]
        assert repr(some) == "ProcessGroupCollection(tp=2, pp=2, hcp=[2, 2])"
        with pytest.raises(ValueError, match=r"Invalid process groups requested: \['dq'\]"):
            ProcessGroupCollection.use_mpu_process_groups(["dq"])
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=8)


def test_one_instance_of_the_distributed_optimizer(kernbench: Kernbench) -> None:
    """Every declared name may be asked for; parts of one instance are all of it."""

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(
            2, context_parallel_size=2, hierarchical_context_parallel_sizes=[2],
            expert_model_parallel_size=2, rank_offset=1, local_world_size=8,
        )  # fmt: skip
        if 1 <= rank <= 8:
            for name in ("intra_dp_cp", "intra_expt_dp", "inter_dist_opt", "intra_dist_opt"):
                found = ProcessGroupCollection.use_mpu_process_groups([name])
                every = ProcessGroupCollection.use_mpu_process_groups()
                assert getattr(found, name) is getattr(every, name)
            assert every.intra_dp_cp is every.dp_cp
            assert every.intra_expt_dp is every.expt_dp
            assert dist.get_process_group_ranks(every.intra_dist_opt) == [*range(1, 9)]
            assert every.inter_dist_opt is None
            present = [name for name in FIELDS if name not in {"embd", "pos_embd"}]
            ProcessGroupCollection.use_mpu_process_groups(present)
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=10, topology="fattree64")


def test_names_that_a_collection_does_not_have() -> None:
    with pytest.raises(ValueError, match="unknown groups dq"):
        ProcessGroupCollection(dq=1)
    empty = ProcessGroupCollection()
    assert all(getattr(empty, name) is None for name in FIELDS)
    with pytest.raises(AttributeError, match="no group 'dq'"):
        _ = empty.dq
    with pytest.raises(AttributeError, match="no group 'dq'"):
        empty.dq = 1
