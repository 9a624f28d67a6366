"""Meshes of ranks: their groups, places, and parts."""

import numpy as np
import pytest
from goldens import ones

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.testing import Kernbench
from kernbench.torch.distributed.device_mesh import DeviceMesh, init_device_mesh


def test_a_grid_of_ranks(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        mesh = init_device_mesh("cuda", (2, 3), mesh_dim_names=("dp", "tp"))
        assert dist.is_initialized()
        row, column = divmod(rank, 3)
        assert mesh.get_coordinate() == [row, column]
        assert (mesh.ndim, mesh.shape, mesh.size(), mesh.size(1)) == (2, (2, 3), 6, 3)
        assert mesh.mesh.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert mesh.mesh.dtype == torch.int32
        assert mesh.device_type == "cuda"
        assert mesh.get_rank() == rank
        assert (mesh.get_local_rank("dp"), mesh.get_local_rank(1)) == (row, column)
        dp, tp = mesh.get_all_groups()
        assert dist.get_process_group_ranks(dp) == [column, column + 3]
        assert dist.get_process_group_ranks(tp) == [3 * row, 3 * row + 1, 3 * row + 2]
        assert (dp.desc, tp.desc) == ("mesh_dp", "mesh_tp")
        part = mesh["tp"]
        assert part.get_group() is mesh.get_group("tp") is tp
        assert part.mesh_dim_names == ("tp",)
        assert part.mesh.tolist() == list(tp.ranks)
        assert part.get_local_rank() == column
        assert mesh["dp", "tp"] is mesh
        assert repr(mesh) == "DeviceMesh((dp=2, tp=3), 'cuda')"
        assert mesh == DeviceMesh("cuda", [[0, 1, 2], [3, 4, 5]], mesh_dim_names=("dp", "tp"))
        assert mesh != part
        x = ones(1) * rank
        dist.all_reduce(x, group=mesh.get_group("dp"))
        y = torch.distributed._functional_collectives.all_reduce(ones(1), "sum", (mesh, 1))
        z = torch.distributed._functional_collectives.all_reduce(ones(1), "sum", part)
        assert (x.item(), y.item(), z.item()) == (2 * column + 3, 3, 3)
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=6)


def test_three_dimensions(kernbench: Kernbench) -> None:
    ranks = np.arange(8).reshape(2, 2, 2)

    def worker(rank: int) -> None:
        mesh = init_device_mesh("cuda", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
        a, b, c = np.argwhere(ranks == rank)[0]
        assert mesh["pp", "tp"].mesh.tolist() == ranks[:, b, :].tolist()
        assert mesh["dp"].mesh.tolist() == ranks[a, :, c].tolist()
        assert mesh["pp", "tp"]["tp"].get_group() is mesh.get_group("tp")
        assert mesh["tp", "pp"].mesh.tolist() == ranks[:, b, :].T.tolist()
        with pytest.raises(KeyError, match="a dimension is named twice"):
            mesh["tp", "tp"]
        with pytest.raises(KeyError, match="'cp' does not exist"):
            mesh["cp"]
        with pytest.raises(RuntimeError, match="mesh_dim is needed"):
            mesh.get_group()
        with pytest.raises(IndexError, match="has no dimension 3"):
            mesh.get_group(3)
        dist.destroy_process_group()

    kernbench.spawn(worker)


def test_a_mesh_of_all_ranks_in_a_line_has_the_group_of_all(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        mesh = dist.init_device_mesh("cuda", (4,))
        assert mesh.get_group() is dist.group.WORLD
        assert [group.name for group in dist.live_groups()] == ["WORLD"]
        with pytest.raises(RuntimeError, match="without mesh_dim_names"):
            mesh["x"]
        assert repr(mesh) == "DeviceMesh((4,), 'cuda')"

    kernbench.spawn(worker, nprocs=4)


def test_a_mesh_of_some_ranks(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        mesh = DeviceMesh("cuda", torch.tensor([[3, 0]], device="cpu"), mesh_dim_names=["a", "b"])
        if rank in {0, 3}:
            assert mesh.get_coordinate() == [0, 0 if rank == 3 else 1]
            assert dist.get_process_group_ranks(mesh.get_group("b")) == [3, 0]
            assert mesh.get_local_rank("b") == (0 if rank == 3 else 1)
        else:
            assert mesh.get_coordinate() is None
            with pytest.raises(RuntimeError, match=f"rank {rank} is not in the mesh"):
                mesh.get_group("b")
            with pytest.raises(RuntimeError, match=f"rank {rank} is not in the mesh"):
                mesh["b"]
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=4)


def test_meshes_that_cannot_be(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        for shape, names, message in (
            ((2, 2), ("a", "a"), "must be unique"),
            ((2, 2), ("a",), "same length"),
            ((3, 2), None, "bigger than default world size"),
        ):
            with pytest.raises(RuntimeError, match=message):
                init_device_mesh("cuda", shape, mesh_dim_names=names)
        with pytest.raises(RuntimeError, match="only meshes of 'cuda'"):
            init_device_mesh("cuda:0", (4,))
        with pytest.raises(RuntimeError, match="only once"):
            DeviceMesh("cuda", [0, 0])

    kernbench.spawn(worker, nprocs=4)
