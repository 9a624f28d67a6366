"""The examples of PyTorch's documentation of `torch.distributed`: only their imports differ."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench
from kernbench.torch.distributed import ReduceOp, _coalescing_manager

Worker = Callable[[int], None]


def _spawn(kernbench: Kernbench, worker: Worker, world_size: int, backend: str = "nccl") -> None:
    def start(rank: int) -> None:
        dist.init_process_group(backend, rank=rank, world_size=world_size)
        worker(rank)
        dist.destroy_process_group()

    kernbench.spawn(start, nprocs=world_size)


def test_synchronous_and_asynchronous_collectives(kernbench: Kernbench) -> None:
    printed: list[Any] = []

    def worker(rank: int) -> None:
        output = torch.tensor([rank]).cuda(rank)
        s = torch.cuda.Stream()
        handle = dist.all_reduce(output, async_op=True)
        # Wait ensures the operation is enqueued, but not necessarily complete.
        handle.wait()
        # Using result on non-default stream.
        with torch.cuda.stream(s):
            s.wait_stream(torch.cuda.default_stream())
            output.add_(100)
            if rank == 0:
                printed.append(output.tolist())

    _spawn(kernbench, worker, 2)
    assert printed == [[101]]


def test_all_reduce(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        device = torch.device(f"cuda:{rank}")
        tensor = torch.arange(2, dtype=torch.int64, device=device) + 1 + 2 * rank
        dist.all_reduce(tensor, op=ReduceOp.SUM)
        assert tensor.tolist() == [4, 6]

    _spawn(kernbench, worker, 2)


def test_all_gather(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        device = torch.device(f"cuda:{rank}")
        tensor_list = [torch.zeros(2, dtype=torch.int64, device=device) for _ in range(2)]
        tensor = torch.arange(2, dtype=torch.int64, device=device) + 1 + 2 * rank
        dist.all_gather(tensor_list, tensor)
        assert [t.tolist() for t in tensor_list] == [[1, 2], [3, 4]]

    _spawn(kernbench, worker, 2)


@pytest.mark.parametrize("function", ["all_gather_into_tensor", "all_gather_single"])
def test_all_gather_into_tensor(kernbench: Kernbench, function: str) -> None:
    world_size = 2

    def worker(rank: int) -> None:
        all_gather_single = getattr(dist, function)
        device = torch.device(f"cuda:{rank}")
        tensor_in = torch.arange(2, dtype=torch.int64, device=device) + 1 + 2 * rank
        # Output in concatenation form
        tensor_out = torch.zeros(world_size * 2, dtype=torch.int64, device=device)
        all_gather_single(tensor_out, tensor_in)
        assert tensor_out.tolist() == [1, 2, 3, 4]
        # Output in stack form
        tensor_out2 = torch.zeros(world_size, 2, dtype=torch.int64, device=device)
        all_gather_single(tensor_out2, tensor_in)
        assert tensor_out2.tolist() == [[1, 2], [3, 4]]

    _spawn(kernbench, worker, world_size)


@pytest.mark.parametrize("function", ["reduce_scatter_tensor", "reduce_scatter_single"])
def test_reduce_scatter_tensor(kernbench: Kernbench, function: str) -> None:
    world_size = 2

    def worker(rank: int) -> None:
        reduce_scatter_single = getattr(dist, function)
        device = torch.device(f"cuda:{rank}")
        tensor_out = torch.zeros(2, dtype=torch.int64, device=device)
        # Input in concatenation form
        tensor_in = torch.arange(world_size * 2, dtype=torch.int64, device=device)
        reduce_scatter_single(tensor_out, tensor_in)
        assert tensor_out.tolist() == [[0, 2], [4, 6]][rank]
        # Input in stack form
        tensor_in = torch.reshape(tensor_in, (world_size, 2))
        reduce_scatter_single(tensor_out, tensor_in)
        assert tensor_out.tolist() == [[0, 2], [4, 6]][rank]

    _spawn(kernbench, worker, world_size)


def test_gather(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        tensor_size = 2
        device = torch.device(f"cuda:{rank}")
        tensor = torch.ones(tensor_size, device=device) + rank
        if dist.get_rank() == 0:
            gather_list = [torch.zeros_like(tensor, device=device) for i in range(2)]
        else:
            gather_list = None
        dist.gather(tensor, gather_list, dst=0)
        # Rank 0 gets gathered data.
        if gather_list is not None:
            assert [t.tolist() for t in gather_list] == [[1.0, 1.0], [2.0, 2.0]]

    _spawn(kernbench, worker, 2)


def test_scatter(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        tensor_size = 2
        device = torch.device(f"cuda:{rank}")
        output_tensor = torch.zeros(tensor_size, device=device)
        if dist.get_rank() == 0:
            # Assumes world_size of 2.
            # Only tensors, all of which must be the same size.
            t_ones = torch.ones(tensor_size, device=device)
            t_fives = torch.ones(tensor_size, device=device) * 5
            scatter_list = [t_ones, t_fives]
        else:
            scatter_list = None
        dist.scatter(output_tensor, scatter_list, src=0)
        # Rank i gets scatter_list[i].
        assert output_tensor.tolist() == [[1.0, 1.0], [5.0, 5.0]][rank]

    _spawn(kernbench, worker, 2)


UNEVEN_INPUT = [[0, 1, 2, 3, 4, 5], [*range(10, 19)], [*range(20, 25)], [*range(30, 37)]]
INPUT_SPLITS = [[2, 2, 1, 1], [3, 2, 2, 2], [2, 1, 1, 1], [2, 2, 2, 1]]
OUTPUT_SPLITS = [[2, 3, 2, 2], [2, 2, 1, 2], [1, 2, 1, 2], [1, 2, 1, 1]]
UNEVEN_OUTPUT = [
    [0, 1, 10, 11, 12, 20, 21, 30, 31],
    [2, 3, 13, 14, 22, 32, 33],
    [4, 15, 16, 23, 34, 35],
    [5, 17, 18, 24, 36],
]


def test_all_to_all_single(kernbench: Kernbench) -> None:
    world_size = 4

    def worker(rank: int) -> None:
        input = torch.arange(4) + rank * 4
        output = torch.empty([4], dtype=torch.int64)
        dist.all_to_all_single(output, input)
        assert output.tolist() == [rank, 4 + rank, 8 + rank, 12 + rank]
        # Essentially, it is similar to following operation:
        scatter_list = list(input.chunk(world_size))
        gather_list = list(output.chunk(world_size))
        for i in range(world_size):
            dist.scatter(gather_list[i], scatter_list if i == rank else [], src=i)
        assert output.tolist() == [rank, 4 + rank, 8 + rank, 12 + rank]
        # Another example with uneven split
        input = torch.tensor(UNEVEN_INPUT[rank])
        input_splits, output_splits = INPUT_SPLITS[rank], OUTPUT_SPLITS[rank]
        output = torch.empty(sum(output_splits), dtype=torch.int64)
        dist.all_to_all_single(output, input, output_splits, input_splits)
        assert output.tolist() == UNEVEN_OUTPUT[rank]

    _spawn(kernbench, worker, world_size)


def test_all_to_all(kernbench: Kernbench) -> None:
    world_size = 4

    def worker(rank: int) -> None:
        input: Any = torch.arange(4) + rank * 4
        input = list(input.chunk(4))
        output: Any = list(torch.empty([4], dtype=torch.int64).chunk(4))
        dist.all_to_all(output, input)
        assert [t.tolist() for t in output] == [[rank], [4 + rank], [8 + rank], [12 + rank]]
        # Essentially, it is similar to following operation:
        scatter_list = input
        gather_list = output
        for i in range(world_size):
            dist.scatter(gather_list[i], scatter_list if i == rank else [], src=i)
        input = torch.tensor(UNEVEN_INPUT[rank])
        input = list(input.split(INPUT_SPLITS[rank]))
        output = [torch.empty(size, dtype=torch.int64) for size in OUTPUT_SPLITS[rank]]
        dist.all_to_all(output, input)
        assert [value for t in output for value in t.tolist()] == UNEVEN_OUTPUT[rank]

    _spawn(kernbench, worker, world_size)


def test_objects(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        # Assumes world_size of 3.
        gather_objects = ["foo", 12, {1: 2}]  # any picklable object
        output: list[Any] = [None for _ in gather_objects]
        dist.all_gather_object(output, gather_objects[dist.get_rank()])
        assert output == ["foo", 12, {1: 2}]
        output = [None for _ in gather_objects]
        dist.gather_object(
            gather_objects[dist.get_rank()], output if dist.get_rank() == 0 else None, dst=0
        )
        assert output == (["foo", 12, {1: 2}] if rank == 0 else [None] * 3)
        if dist.get_rank() == 0:
            # Assumes world_size of 3.
            objects: list[Any] = ["foo", 12, {1: 2}]  # any picklable object
        else:
            objects = [None, None, None]
        # Assumes backend is not NCCL
        device = torch.device("cpu")
        dist.broadcast_object_list(objects, src=0, device=device)
        assert objects == ["foo", 12, {1: 2}]
        if dist.get_rank() == 0:  # noqa: SIM108 - as documented
            # Assumes world_size of 3.
            objects = ["foo", 12, {1: 2}]  # any picklable object
        else:
            # Can be any list on non-src ranks, elements are not used.
            objects = [None, None, None]
        output_list: list[Any] = [None]
        dist.scatter_object_list(output_list, objects, src=0)
        # Rank i gets objects[i]. For example, on rank 2:
        assert output_list == [["foo", 12, {1: 2}][rank]]

    _spawn(kernbench, worker, 3, "gloo")


def test_subgroups(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        # Create intra-machine subgroups.
        cur_subgroup, subgroups = dist.new_subgroups()
        # Allreduce within the machine.
        rank = dist.get_rank()
        tensor = torch.ones(1, device=rank) * rank
        dist.all_reduce(tensor, group=cur_subgroup)
        assert tensor.tolist() == [28]  # Assume 8 CUDA devices per machine.
        # Cleanup.
        for subgroup in subgroups:
            dist.destroy_process_group(subgroup)
        # Create two subgroups, where each has 2 processes.
        cur_subgroup, subgroups = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
        tensor = torch.ones(1, device=rank) * rank
        if rank < 4:
            dist.all_reduce(tensor, group=cur_subgroup)
            assert tensor.tolist() == [4 if rank % 2 else 2]

    _spawn(kernbench, worker, 8)


def test_coalescing_manager(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        num_colls = 3
        tensors = [torch.ones(i + 1, device="cuda") for i in range(num_colls)]
        # Synchronous ops
        with _coalescing_manager():
            for i in range(num_colls):
                dist.all_reduce(tensors[i])
        # Asynchronous ops
        with _coalescing_manager(async_ops=True) as cm:
            for i in range(num_colls):
                dist.all_reduce(tensors[i])
        cm.wait()
        assert [t.tolist() for t in tensors] == [[4.0] * (i + 1) for i in range(num_colls)]

    _spawn(kernbench, worker, 2)


def test_device_mesh(kernbench: Kernbench) -> None:
    from kernbench.torch.distributed.device_mesh import init_device_mesh

    def worker(rank: int) -> None:
        mesh_1d = init_device_mesh("cuda", mesh_shape=(8,))
        mesh_2d = init_device_mesh("cuda", mesh_shape=(2, 4), mesh_dim_names=("dp", "tp"))
        tp_mesh = mesh_2d["tp"]
        dp_mesh = mesh_2d["dp"]
        assert mesh_1d.size() == 8
        assert tp_mesh.mesh.tolist() == ([0, 1, 2, 3] if rank < 4 else [4, 5, 6, 7])
        assert dp_mesh.mesh.tolist() == [rank % 4, rank % 4 + 4]

    _spawn(kernbench, worker, 8)


def test_monitored_barrier(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        # monitored barrier requires gloo process group to perform host-side sync.
        group_gloo = dist.new_group(backend="gloo")
        if rank not in [1]:
            dist.monitored_barrier(group=group_gloo, timeout=timedelta(seconds=2))

    with pytest.raises(SpawnException, match="rank 0 waits for rank 1"):
        _spawn(kernbench, worker, 2)


def test_a_mistake_that_only_debug_builds_report(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        tensor = torch.randn(10 if rank == 0 else 20).cuda()
        dist.all_reduce(tensor)
        torch.cuda.synchronize(device=rank)

    with pytest.raises(SpawnException, match=r"rank 0: all_reduce\(\[10\]"):
        _spawn(kernbench, worker, 2)
