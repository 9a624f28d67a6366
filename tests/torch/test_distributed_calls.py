"""Every call of `torch.distributed` as its documentation shows it: only the imports differ.

The values, and where it prints them the text, are those that the documentation gives for the same
calls; `test_distributed_examples.py` has the rest.
"""

import ast
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench
from kernbench.torch.distributed import ReduceOp
from kernbench.torch.distributed.device_mesh import DeviceMesh, init_device_mesh

Worker = Callable[[int, int], None]


def _spawn(
    kernbench: Kernbench, worker: Worker, world_size: int, backend: str | None = None
) -> None:
    def start(rank: int) -> None:
        dist.init_process_group(backend, rank=rank, world_size=world_size)
        worker(rank, world_size)
        dist.destroy_process_group()

    kernbench.spawn(start, nprocs=world_size)


# Initialisation


@pytest.mark.parametrize(
    "arguments",
    [
        {"backend": "nccl", "init_method": "tcp://10.1.1.20:23456"},
        {"backend": "gloo", "init_method": "file:///mnt/nfs/sharedfile"},
        {"backend": "cpu:gloo,cuda:nccl", "init_method": "env://"},
        {"backend": dist.Backend.NCCL, "timeout": timedelta(minutes=1)},
        {"backend": "nccl", "device_id": "its own"},
        {},
    ],
)
def test_initialisation(kernbench: Kernbench, arguments: dict[str, Any]) -> None:
    def worker(rank: int, world_size: int) -> None:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        given = dict(arguments)
        if "device_id" in given:
            given["device_id"] = torch.device(f"cuda:{rank}")
        assert dist.is_available()
        assert not dist.is_initialized()
        dist.init_process_group(**given, world_size=world_size, rank=rank)
        assert dist.is_initialized()
        assert dist.get_backend() == str(arguments.get("backend", "ccl"))
        assert (dist.get_rank(), dist.get_world_size()) == (rank, world_size)
        dist.barrier()
        dist.destroy_process_group()
        with pytest.raises(ValueError, match="Default process group has not been initialized, pl"):
            dist.get_rank()
        with pytest.raises(ValueError, match="Default process group has not been initialized, pl"):
            dist.get_world_size()

    kernbench.spawn(worker, nprocs=4, args=(4,))


def test_a_group_of_cpu_and_gpu_takes_both(kernbench: Kernbench) -> None:
    def worker(rank: int, world_size: int) -> None:
        for device in ("cpu", "cuda"):
            tensor = torch.ones(2, device=device) * (rank + 1)
            dist.all_reduce(tensor)
            assert tensor.tolist() == [3.0, 3.0]

    _spawn(kernbench, worker, 2)
    _spawn(kernbench, worker, 2, "cpu:gloo,cuda:nccl")


def test_reduce_operations_print_as_pytorchs() -> None:
    assert str(ReduceOp.SUM) == "RedOpType.SUM"
    assert repr(ReduceOp.SUM) == "<RedOpType.SUM: 0>"
    assert str(ReduceOp.PREMUL_SUM) == "RedOpType.PREMUL_SUM"
    assert [repr(getattr(ReduceOp, name)) for name in ("AVG", "BXOR", "PREMUL_SUM")] == [
        "<RedOpType.AVG: 1>",
        "<RedOpType.BXOR: 7>",
        "<RedOpType.PREMUL_SUM: 8>",
    ]


# Messages


def test_blocking_messages(kernbench: Kernbench) -> None:
    def worker(rank: int, world_size: int) -> None:
        tensor = torch.zeros(1)
        if rank == 0:
            tensor += 1
            # Send the tensor to process 1
            dist.send(tensor=tensor, dst=1)
        else:
            # Receive tensor from process 0
            dist.recv(tensor=tensor, src=0)
        assert f"Rank {rank} has data {tensor[0]}" == f"Rank {rank} has data 1.0"

    _spawn(kernbench, worker, 2, "gloo")


def test_messages_that_are_waited_for(kernbench: Kernbench) -> None:
    def worker(rank: int, world_size: int) -> None:
        tensor = torch.zeros(1)
        req = None
        if rank == 0:
            tensor += 1
            req = dist.isend(tensor=tensor, dst=1)
        else:
            req = dist.irecv(tensor=tensor, src=0)
        req.wait()
        assert tensor[0] == 1

    _spawn(kernbench, worker, 2, "gloo")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_batch_of_messages(kernbench: Kernbench, device: str) -> None:
    def worker(rank: int, world_size: int) -> None:
        send_tensor = torch.arange(2, dtype=torch.float32, device=device) + 2 * rank
        recv_tensor = torch.randn(2, dtype=torch.float32, device=device)
        send_op = dist.P2POp(dist.isend, send_tensor, (rank + 1) % world_size)
        recv_op = dist.P2POp(dist.irecv, recv_tensor, (rank - 1 + world_size) % world_size)
        reqs = dist.batch_isend_irecv([send_op, recv_op])
        for req in reqs:
            req.wait()
        assert recv_tensor.tolist() == [[2.0, 3.0], [0.0, 1.0]][rank]

    _spawn(kernbench, worker, 2)


def test_a_receive_from_anybody(kernbench: Kernbench) -> None:
    def worker(rank: int, world_size: int) -> None:
        tensor = torch.zeros(1)
        if rank == 0:
            senders = {dist.recv(tensor) for _ in range(world_size - 1)}
            assert senders == {1, 2}
        else:
            dist.send(tensor, 0)

    _spawn(kernbench, worker, 3)


# Collectives


def test_all_reduce_of_complex_numbers(kernbench: Kernbench) -> None:
    def worker(rank: int, world_size: int) -> None:
        device = torch.device(f"cuda:{rank}")
        # All tensors below are of torch.cfloat type.
        tensor = torch.tensor([1 + 1j, 2 + 2j], dtype=torch.cfloat, device=device)
        tensor = tensor + 2 * rank * (1 + 1j)
        before = ["[1.+1.j, 2.+2.j]", "[3.+3.j, 4.+4.j]"][rank]
        assert repr(tensor) == f"tensor({before}, device='cuda:{rank}')"
        dist.all_reduce(tensor, op=ReduceOp.SUM)
        assert repr(tensor) == f"tensor([4.+4.j, 6.+6.j], device='cuda:{rank}')"

    _spawn(kernbench, worker, 2, "nccl")


def test_all_gather_of_complex_numbers(kernbench: Kernbench) -> None:
    def worker(rank: int, world_size: int) -> None:
        device = torch.device(f"cuda:{rank}")
        tensor_list = [torch.zeros(2, dtype=torch.cfloat, device=device) for _ in range(2)]
        here = f"device='cuda:{rank}'"
        assert repr(tensor_list) == (
            f"[tensor([0.+0.j, 0.+0.j], {here}), tensor([0.+0.j, 0.+0.j], {here})]"
        )
        tensor = torch.tensor([1 + 1j, 2 + 2j], dtype=torch.cfloat, device=device)
        tensor = tensor + 2 * rank * (1 + 1j)
        dist.all_gather(tensor_list, tensor)
        assert repr(tensor_list) == (
            f"[tensor([1.+1.j, 2.+2.j], {here}), tensor([3.+3.j, 4.+4.j], {here})]"
        )

    _spawn(kernbench, worker, 2, "nccl")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_all_to_all_of_complex_numbers(kernbench: Kernbench, device: str) -> None:
    def worker(rank: int, world_size: int) -> None:
        values = [1 + 1j, 2 + 2j, 3 + 3j, 4 + 4j]
        input = torch.tensor(values, dtype=torch.cfloat, device=device) + 4 * rank * (1 + 1j)
        output = torch.empty([4], dtype=torch.cfloat, device=device)
        dist.all_to_all_single(output, input)
        expected = [(4 * r + rank + 1) * (1 + 1j) for r in range(4)]
        assert output.tolist() == expected
        outputs = list(torch.empty([4], dtype=torch.cfloat, device=device).chunk(4))
        dist.all_to_all(outputs, list(input.chunk(4)))
        assert [t.tolist() for t in outputs] == [[value] for value in expected]
        # The documentation's `output` is of int64, which PyTorch refuses, too.
        with pytest.raises(ValueError, match="tensors of different dtypes"):
            dist.all_to_all_single(torch.empty([4], dtype=torch.int64, device=device), input)

    _spawn(kernbench, worker, 4)


def test_all_to_all_on_the_host(kernbench: Kernbench) -> None:
    def worker(rank: int, world_size: int) -> None:
        input = torch.arange(4, device="cpu") + rank * 4
        output = torch.empty([4], dtype=torch.int64, device="cpu")
        dist.all_to_all_single(output, input)
        assert (
            repr(output)
            == [
                "tensor([ 0,  4,  8, 12])",
                "tensor([ 1,  5,  9, 13])",
                "tensor([ 2,  6, 10, 14])",
                "tensor([ 3,  7, 11, 15])",
            ][rank]
        )
        inputs = list(input.chunk(4))
        outputs = list(torch.empty([4], dtype=torch.int64, device="cpu").chunk(4))
        dist.all_to_all(outputs, inputs)
        assert repr(outputs[1]) == f"tensor([{4 + rank}])"
        for i in range(world_size):
            dist.scatter(outputs[i], inputs if i == rank else [], src=i)
        assert [t.item() for t in outputs] == [rank, 4 + rank, 8 + rank, 12 + rank]

    _spawn(kernbench, worker, 4, "gloo")


def test_broadcast_and_reduce(kernbench: Kernbench) -> None:
    def worker(rank: int, world_size: int) -> None:
        tensor = torch.arange(3) + 10 * rank
        dist.broadcast(tensor, src=1)
        assert tensor.tolist() == [10, 11, 12]
        dist.reduce(tensor, dst=0, op=ReduceOp.SUM)
        assert tensor.tolist() == ([20, 22, 24] if rank == 0 else [10, 11, 12])

    _spawn(kernbench, worker, 2)


def test_reduce_scatter(kernbench: Kernbench) -> None:
    def worker(rank: int, world_size: int) -> None:
        output = torch.zeros(2, dtype=torch.int64)
        input_list = list((torch.arange(4) * (rank + 1)).chunk(2))
        dist.reduce_scatter(output, input_list, op=ReduceOp.MAX)
        assert output.tolist() == [[0, 2], [4, 6]][rank]

    _spawn(kernbench, worker, 2)


def test_every_reduce_operation(kernbench: Kernbench) -> None:
    def worker(rank: int, world_size: int) -> None:
        for op, expected in (
            (ReduceOp.SUM, 9.0),
            (ReduceOp.AVG, 3.0),
            (ReduceOp.PRODUCT, 24.0),
            (ReduceOp.MIN, 2.0),
            (ReduceOp.MAX, 4.0),
            (dist._make_nccl_premul_sum(2.0), 18.0),
            (ReduceOp.PREMUL_SUM(2.0), 18.0),
        ):
            tensor = torch.tensor([rank + 2.0])
            dist.all_reduce(tensor, op=op)
            assert tensor.item() == expected
        for op, whole in ((ReduceOp.BAND, 0), (ReduceOp.BOR, 7), (ReduceOp.BXOR, 5)):
            tensor = torch.tensor([rank + 2], device="cpu")
            dist.all_reduce(tensor, op=op)
            assert tensor.item() == whole

    _spawn(kernbench, worker, 3)


def test_several_tensors_at_once(kernbench: Kernbench) -> None:
    def worker(rank: int, world_size: int) -> None:
        tensors = [torch.ones(2), torch.ones(1, 3) * rank]
        dist.all_reduce_coalesced(tensors)
        assert [t.tolist() for t in tensors] == [[2.0, 2.0], [[1.0, 1.0, 1.0]]]
        input_tensor_list = [
            [torch.ones(2, 2), torch.ones(1) * 2],
            [torch.zeros(2, 2), torch.ones(1)],
        ]
        output_tensor_lists = [[torch.empty(2, 2), torch.empty(1)] for _ in range(world_size)]
        work = dist.all_gather_coalesced(
            output_tensor_lists, input_tensor_list[rank], async_op=True
        )
        work.wait()
        assert [[t.tolist() for t in part] for part in output_tensor_lists] == [
            [[[1.0, 1.0], [1.0, 1.0]], [2.0]],
            [[[0.0, 0.0], [0.0, 0.0]], [1.0]],
        ]

    _spawn(kernbench, worker, 2)


def test_futures(kernbench: Kernbench) -> None:
    def worker(rank: int, world_size: int) -> None:
        tensor = torch.ones(4, device="cuda") * (rank + 1)
        work = dist.all_reduce(tensor, async_op=True)
        assert isinstance(work, dist.Work)
        mean = work.get_future().then(lambda fut: fut.value()[0] / world_size)
        assert mean.wait().tolist() == [1.5] * 4
        work.wait()
        torch.cuda.synchronize()
        assert work.is_completed()

    _spawn(kernbench, worker, 2, "nccl")


def test_barriers(kernbench: Kernbench) -> None:
    def worker(rank: int, world_size: int) -> None:
        dist.barrier()
        work = dist.barrier(async_op=True)
        assert work is not None
        work.wait()
        dist.monitored_barrier(timeout=timedelta(seconds=30), wait_all_ranks=True)

    _spawn(kernbench, worker, 3, "gloo")


def test_a_monitored_barrier_that_only_one_rank_calls(kernbench: Kernbench) -> None:
    def worker(rank: int, world_size: int) -> None:
        if dist.get_rank() == 0:
            dist.monitored_barrier(wait_all_ranks=True)

    with pytest.raises(SpawnException, match="rank 0 waits for ranks 1-2"):
        _spawn(kernbench, worker, 3, "gloo")


# Objects


@pytest.mark.parametrize("backend", ["gloo", None])
def test_objects_from_one_rank_to_another(kernbench: Kernbench, backend: str | None) -> None:
    def worker(rank: int, world_size: int) -> None:
        # Assumes backend is not NCCL
        device = torch.device("cpu")
        if dist.get_rank() == 0:
            # Assumes world_size of 2.
            objects: list[Any] = ["foo", 12, {1: 2}]  # any picklable object
            dist.send_object_list(objects, dst=1, device=device)
        else:
            objects = [None, None, None]
            dist.recv_object_list(objects, src=0, device=device)
        assert objects == ["foo", 12, {1: 2}]

    _spawn(kernbench, worker, 2, backend)


# Groups


def test_groups_and_their_numbering(kernbench: Kernbench) -> None:
    def worker(rank: int, world_size: int) -> None:
        group = dist.new_group([1, 3])
        tensor = torch.ones(1)
        if rank in {1, 3}:
            assert dist.get_process_group_ranks(group) == [1, 3]
            assert dist.get_group_rank(group, 3) == 1
            assert dist.get_global_rank(group, 0) == 1
            dist.all_reduce(tensor, op=ReduceOp.SUM, group=group)
            assert tensor.item() == 2
        else:
            assert group == dist.GroupMember.NON_GROUP_MEMBER
            assert (dist.get_rank(group), dist.get_world_size(group)) == (-1, -1)
        assert dist.get_process_group_ranks(dist.group.WORLD) == [0, 1, 2, 3]
        half = dist.split_group(split_ranks=[[0, 1], [2, 3]])
        assert half is not None
        assert dist.get_process_group_ranks(half) == ([0, 1] if rank < 2 else [2, 3])
        dist.broadcast(tensor, group=half, group_src=1)

    _spawn(kernbench, worker, 4, "nccl")


def test_groups_that_end_with_their_block(kernbench: Kernbench) -> None:
    def worker(rank: int, world_size: int) -> None:
        with dist.group_scope():
            dist.new_group([0, 1])
            assert [group.name for group in dist.live_groups()] == ["WORLD", "G1{0-1}"]
        assert [group.name for group in dist.live_groups()] == ["WORLD"]

    _spawn(kernbench, worker, 2)


def test_subgroups_by_enumeration(kernbench: Kernbench) -> None:
    def worker(rank: int, world_size: int) -> None:
        cur_subgroup, subgroups = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
        tensor = torch.ones(1, device=rank) * rank
        dist.all_reduce(tensor, group=cur_subgroup)
        assert repr(tensor) == f"tensor([{4 if rank % 2 else 2}.], device='cuda:{rank}')"
        for subgroup in subgroups:
            dist.destroy_process_group(subgroup)
        cur_subgroup, subgroups = dist.new_subgroups(group_size=2)
        assert dist.get_process_group_ranks(cur_subgroup) == ([0, 1] if rank < 2 else [2, 3])

    _spawn(kernbench, worker, 4)


# Meshes


def test_meshes(kernbench: Kernbench) -> None:
    def worker(rank: int, world_size: int) -> None:
        # Initialize device mesh as (2, 4) to represent the topology
        # of cross-host(dim 0), and within-host (dim 1).
        mesh = DeviceMesh(device_type="cuda", mesh=[[0, 1, 2, 3], [4, 5, 6, 7]])
        assert mesh.get_local_rank(0) == rank // 4
        assert mesh.get_local_rank(1) == rank % 4
        assert dist.get_process_group_ranks(mesh.get_group(1))[0] == rank // 4 * 4
        mesh_3d = init_device_mesh("cuda", (2, 2, 2), mesh_dim_names=("dp", "pp", "cp"))
        dp_cp_mesh = mesh_3d["dp", "cp"]
        cp_dp_mesh = mesh_3d["cp", "dp"]
        assert dp_cp_mesh.mesh_dim_names == ("dp", "cp")
        first = 2 * (rank // 2 % 2)
        assert dp_cp_mesh.mesh.tolist() == [[first, first + 1], [first + 4, first + 5]]
        assert cp_dp_mesh.mesh.tolist() == [[first, first + 4], [first + 1, first + 5]]
        assert cp_dp_mesh.size() == 4
        assert cp_dp_mesh.size(0) == 2

    _spawn(kernbench, worker, 8)


def test_a_flattened_mesh(kernbench: Kernbench) -> None:
    def worker(rank: int, world_size: int) -> None:
        mesh_3d = init_device_mesh("cuda", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
        flat = mesh_3d["dp", "cp"]._flatten()
        assert flat.mesh.tolist() == ([1, 3, 5, 7] if rank % 2 else [0, 2, 4, 6])
        assert flat.mesh_dim_names == ("dp_cp",)
        assert mesh_3d["dp_cp"] is flat
        tensor = torch.ones(1) * rank
        dist.all_reduce(tensor, group=flat.get_group())
        assert tensor.item() == (16 if rank % 2 else 12)
        assert flat._flatten() is flat
        everything = mesh_3d._flatten("all")
        assert everything.get_group() is dist.group.WORLD
        with pytest.raises(RuntimeError, match="dp_cp already exists in the mesh"):
            mesh_3d["dp", "cp"]._flatten()
        with pytest.raises(RuntimeError, match="flatten a DeviceMesh without mesh_dim_names"):
            DeviceMesh("cuda", [[0, 1], [2, 3]])._flatten()

    _spawn(kernbench, worker, 8)


# Tools


def test_counting_collectives(kernbench: Kernbench) -> None:
    def worker(rank: int, world_size: int) -> None:
        comm_mode = dist.comm_debug.CommDebugMode()
        with comm_mode:
            dist.all_reduce(torch.ones(2))
            dist.all_reduce(torch.ones(2, device="cpu"))
            dist.all_reduce_coalesced([torch.ones(2)])
        assert comm_mode.get_total_counts() == 3
        assert comm_mode.get_comm_counts()["all_reduce"] == 2

    _spawn(kernbench, worker, 2)


def test_gradients_through_collectives(kernbench: Kernbench) -> None:
    from kernbench.torch.distributed.nn import functional

    def worker(rank: int, world_size: int) -> None:
        tensor = torch.ones(2, requires_grad=True)
        parts = functional.all_gather(tensor * (rank + 1))
        assert [part.tolist() for part in parts] == [[1.0, 1.0], [2.0, 2.0]]
        torch.stack(list(parts)).sum().backward()
        assert tensor.grad is not None
        assert tensor.grad.tolist() == [2.0 * (rank + 1)] * 2
        assert dist.nn.all_reduce(tensor).tolist() == [2.0, 2.0]

    _spawn(kernbench, worker, 2)


def test_what_is_not_there_is_named() -> None:
    for name in ("shrink_group", "TCPStore", "record_comm"):
        with pytest.raises(
            AttributeError, match=rf"torch\.distributed\.{name} is not in kernbench"
        ):
            getattr(dist, name)


CALLS: Final = """
init_process_group destroy_process_group is_available is_initialized get_backend get_rank
get_world_size new_group new_subgroups new_subgroups_by_enumeration WORLD NON_GROUP_MEMBER
get_process_group_ranks get_group_rank get_global_rank split_group all_reduce broadcast reduce
all_gather all_gather_into_tensor gather scatter reduce_scatter reduce_scatter_tensor all_to_all
all_to_all_single barrier monitored_barrier send recv isend irecv P2POp batch_isend_irecv
broadcast_object_list all_gather_object gather_object scatter_object_list wait is_completed
get_future SUM AVG PRODUCT MIN MAX BAND BOR BXOR PREMUL_SUM _coalescing_manager init_device_mesh
DeviceMesh get_group get_local_rank size mesh_dim_names group_scope live_groups comm_debug
"""


def test_every_call_has_its_example() -> None:
    named: set[str] = set()
    for name in ("test_distributed_examples.py", "test_distributed_calls.py"):
        for node in ast.walk(ast.parse((Path(__file__).parent / name).read_text())):
            if isinstance(node, ast.Attribute):
                named.add(node.attr)
            elif isinstance(node, ast.Name):
                named.add(node.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                # Names of functions that a test looks up, such as two of one meaning.
                named |= {node.value} if node.value.isidentifier() else set()
    assert set(CALLS.split()) - named == set()
