"""Blocks of another library take part in collectives: their owner sees the result in place."""

from typing import Any

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.distributed.groups import find_group
from kernbench.distributed.issuing import issue
from kernbench.distributed.reduce_ops import ReduceOp
from kernbench.distributed.signatures import signature
from kernbench.errors import OperandError
from kernbench.memory import Allocator, Buffer, Space, View, dtypes
from kernbench.process.access import AccessError, Guard
from kernbench.process.act import Span
from kernbench.process.process import Process, current_process
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.tensors.running import wait_for
from kernbench.testing import Kernbench


def block_of(process: Process, array: np.ndarray[Any, np.dtype[np.float32]]) -> Span:
    """Returns what a collective sees of an array that belongs to somebody else."""
    sip = process.device_index
    memory = Allocator(Space.HBM, sip, 0, None)
    buffer = Buffer.over(memory.allocate(array.nbytes, "an array of another library", None), array)
    window = View(buffer, dtypes.float32, array.shape, (1,), 0)
    return Span(Guard(buffer, process), window)


def all_reduce(array: np.ndarray[Any, np.dtype[np.float32]], *, async_op: bool) -> Any:
    """Sums an array over all ranks, and returns the block and the command."""
    process = current_process()
    group = find_group(process, None, "all_reduce")
    what = signature("all_reduce", "all_reduce", dtypes.float32, (array.shape,), ReduceOp.SUM)
    both = (block_of(process, array),)
    command, _ = issue(process, group, what, both, both, async_op=async_op)
    return both[0], command


@pytest.mark.parametrize("elements", [1, 1000])
@pytest.mark.parametrize("fidelity", ["kernel", "tile"])
def test_the_owner_sees_the_sum_in_place(
    kernbench: Kernbench, fidelity: Any, elements: int
) -> None:
    arrays = [np.full(elements, rank + 1, np.float32) for rank in range(4)]
    before = [array.ctypes.data for array in arrays]

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        # Ranks come at different times.
        for _ in range(rank):
            torch.ones(10_000, device="cuda").sum()
        block, command = all_reduce(arrays[rank], async_op=False)
        wait_for(current_process(), command)
        assert block.window.buffer.data is not None
        assert np.shares_memory(block.window.buffer.data, arrays[rank])

    kernbench.spawn(worker, nprocs=4, fidelity=fidelity)
    for array, address in zip(arrays, before, strict=True):
        assert array.ctypes.data == address
        assert array.tolist() == [10.0] * elements


def test_a_block_meets_tensors_of_other_ranks(kernbench: Kernbench) -> None:
    foreign = np.array([1.0, 2.0], np.float32)
    sums: dict[int, list[float]] = {}

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        if rank == 1:
            _, command = all_reduce(foreign, async_op=False)
            wait_for(current_process(), command)
            return
        x = torch.tensor([10.0, 20.0], device="cuda")
        dist.all_reduce(x)
        sums[rank] = x.tolist()

    kernbench.spawn(worker, nprocs=3)
    assert foreign.tolist() == [21.0, 42.0]
    assert sums == {0: [21.0, 42.0], 2: [21.0, 42.0]}


def test_touching_a_block_in_flight_is_a_mistake(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        block, command = all_reduce(np.ones(4, np.float32), async_op=True)
        if rank == 0:
            process = current_process()
            block.memory.check(process, None, block.window, "read")
        wait_for(current_process(), command)

    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=2)
    (error,) = caught.value.errors.values()
    assert isinstance(error, AccessError)
    assert error.code == "C15"
    assert "an array of another library" in str(error)


def test_bytes_of_somebody_else_are_never_replaced() -> None:
    array = np.zeros(4, np.float32)
    block = Allocator(Space.HBM, 0, 0, None).allocate(16, "array", None)
    buffer = Buffer.over(block, array)
    view = View(buffer, dtypes.float32, (4,), (1,), 0)
    view.adopt(np.arange(4))
    assert array.tolist() == [0, 1, 2, 3]
    buffer.borrow(np.full(4, 7, np.float32).view(np.uint8))
    assert array.tolist() == [7, 7, 7, 7]
    view.write()[...] = 5
    assert array.tolist() == [5, 5, 5, 5]
    assert not buffer.lent


def test_arrays_that_cannot_show_a_result_are_refused() -> None:
    block = Allocator(Space.HBM, 0, 0, None).allocate(16, "array", None)
    frozen = np.zeros(4, np.float32)
    frozen.flags.writeable = False
    for array in (np.zeros(8, np.float32)[::2], frozen):
        with pytest.raises(OperandError, match="contiguous and writeable"):
            Buffer.over(block, array)


def test_an_array_and_its_tensor_stay_one_through_collectives(kernbench: Kernbench) -> None:
    arrays = [np.full(3, rank + 1, np.float32) for rank in range(3)]
    shown: dict[int, Any] = {}

    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        dist.all_reduce(torch.from_numpy(arrays[rank]))
        other = torch.full((2,), float(rank), device="cpu")
        shown[rank] = other.numpy()
        dist.broadcast(other, 2)

    kernbench.spawn(worker, nprocs=3)
    assert [array.tolist() for array in arrays] == [[6.0] * 3] * 3
    assert [shown[rank].tolist() for rank in range(3)] == [[2.0, 2.0]] * 3
