"""Bytes that move at the last call are those that move at the completion."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.memory import Buffer, Storage, View, contiguous_strides, dtypes
from kernbench.process.process import Process, current_process
from kernbench.ranks.at_call import AtCall
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.tensors.memory import Memory
from kernbench.tensors.new import wrap
from kernbench.tensors.running import cuda_device
from kernbench.tensors.tensor import Tensor
from kernbench.topology import load_topology

RANKS: Final = 4

Arrays = Sequence[np.ndarray[Any, Any]]
Make = Callable[[Process, np.ndarray[Any, Any]], Tensor]
"""Makes a tensor of an array."""


def of_ours(process: Process, array: np.ndarray[Any, Any]) -> Tensor:
    del process
    found: Tensor = torch.tensor(array, device="cuda")
    return found


def of_another_library(process: Process, array: np.ndarray[Any, Any]) -> Tensor:
    """Returns a tensor over an array, whose owner sees what is written."""
    memory = process.engine.devices[process.device_index].hbm
    storage = Storage(memory, array.nbytes, "an array of another library", None)
    buffer = Buffer.over(storage.buffer.allocation, array)
    dtype = next(each for each in dtypes.ALL if each.numpy == array.dtype)
    window = View(buffer, dtype, array.shape, contiguous_strides(array.shape), 0)
    return wrap(Memory(storage, process), window, cuda_device(process.device_index))


def all_reduce(rank: int, make: Callable[[Any], Tensor]) -> list[Tensor]:
    block = make(values(rank, 1000))
    dist.all_reduce(block, dist.ReduceOp.SUM)
    return [block]


def average(rank: int, make: Callable[[Any], Tensor]) -> list[Tensor]:
    block = make(values(rank, 31))
    dist.all_reduce(block, dist.ReduceOp.AVG, async_op=True).wait()
    return [block]


def reduce(rank: int, make: Callable[[Any], Tensor]) -> list[Tensor]:
    block = make(values(rank, 40))
    dist.reduce(block, 2, dist.ReduceOp.MAX)
    return [block]


def broadcast(rank: int, make: Callable[[Any], Tensor]) -> list[Tensor]:
    block = make(values(rank, 40))
    dist.broadcast(block, 3)
    return [block]


def all_gather(rank: int, make: Callable[[Any], Tensor]) -> list[Tensor]:
    blocks = [make(np.zeros(5 + place, np.float32)) for place in range(RANKS)]
    dist.all_gather(blocks, make(values(rank, 5 + rank)))
    return blocks


def reduce_scatter(rank: int, make: Callable[[Any], Tensor]) -> list[Tensor]:
    block = make(np.zeros(7, np.float32))
    dist.reduce_scatter_tensor(block, make(values(rank, 7 * RANKS)))
    return [block]


def uneven_exchange(rank: int, make: Callable[[Any], Tensor]) -> list[Tensor]:
    sends = [rank + place for place in range(RANKS)]
    block = make(np.zeros(sum(sends), np.float32))
    dist.all_to_all_single(block, make(values(rank, sum(sends))), sends, sends)
    return [block]


def messages(rank: int, make: Callable[[Any], Tensor]) -> list[Tensor]:
    block, given = make(np.zeros(9, np.float32)), make(values(rank, 9))
    operations = [
        dist.P2POp(dist.isend, given, (rank + 1) % RANKS),
        dist.P2POp(dist.irecv, block, (rank - 1) % RANKS),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return [block, given]


def scatter(rank: int, make: Callable[[Any], Tensor]) -> list[Tensor]:
    block = make(np.zeros(6, np.float32))
    parts = [make(values(place, 6)) for place in range(RANKS)] if rank == 1 else None
    dist.scatter(block, parts, 1)
    return [block]


def values(rank: int, count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(rank).standard_normal(count).astype(np.float32)


OPERATIONS: Final = (
    all_reduce,
    average,
    reduce,
    broadcast,
    all_gather,
    reduce_scatter,
    uneven_exchange,
    messages,
    scatter,
)


def run(
    operation: Callable[[int, Callable[[Any], Tensor]], list[Tensor]], *, at_call: bool
) -> list[Arrays]:
    """Returns what the blocks of each rank hold at the end."""
    machine = load_topology("sip8").topology_obj
    engine = GraphEngine(machine, enable_data=not at_call, moves_at_call=at_call)
    found: list[Arrays] = [[]] * RANKS

    def worker(rank: int) -> None:
        process = current_process()
        dist.init_process_group("nccl")
        for _ in range(rank):  # ranks come at different times
            torch.ones(10_000, device="cuda").sum()

        def make(array: np.ndarray[Any, Any]) -> Tensor:
            return (of_another_library if at_call else of_ours)(process, array)

        blocks = operation(rank, make)
        if at_call:
            for command in chain(*process.joined.values()):
                joint = getattr(command.part, "joint", None)
                assert isinstance(joint, AtCall)
                before = process.host.clock
                process.wait(joint.moved)
                assert process.host.clock == before, "numbers cost no simulated time"
            found[rank] = [np.array(block.window.array()) for block in blocks]
        else:
            found[rank] = [block.cpu().numpy() for block in blocks]

    with RuntimeContext(engine=engine, quiet=True) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=RANKS)
    return found


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_bytes_are_those_that_move_in_simulated_time(
    operation: Callable[[int, Callable[[Any], Tensor]], list[Tensor]],
) -> None:
    expected = run(operation, at_call=False)
    got = run(operation, at_call=True)
    for mine, theirs in zip(got, expected, strict=True):
        for block, other in zip(mine, theirs, strict=True):
            assert block.tobytes() == other.tobytes()


def test_a_message_is_copied_so_that_the_sender_may_go_on() -> None:
    machine = load_topology("sip8").topology_obj
    engine = GraphEngine(machine, enable_data=False, moves_at_call=True)
    found = np.zeros(3, np.float32)

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        process = current_process()
        if rank == 0:
            array = values(0, 3)
            dist.send(of_another_library(process, array), 1)
            array[...] = 0
        else:
            process.host.clock += 10**9
            process.wait_stream(process.current_stream(process.device_index))
            dist.recv(of_another_library(process, found), 0)

    with RuntimeContext(engine=engine, quiet=True) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
    assert found.tobytes() == values(0, 3).tobytes()
