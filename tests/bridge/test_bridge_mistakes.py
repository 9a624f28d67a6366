"""Mistakes planted in small programs of PyTorch: the code and the program's own line."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from bridge_devices import on_ranks

import kernbench
from kernbench.errors import KernbenchError
from kernbench.process.access import AccessError
from kernbench.ranks.spawn_errors import SpawnException

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
dist: Any = torch.distributed


def skipped(rank: int) -> None:
    if rank != 1:
        dist.all_reduce(torch.ones(4, device="cuda"))  # C1


def order(rank: int) -> None:
    x = torch.ones(4, device="cuda")
    if rank:
        dist.broadcast(x, 0)  # C2
    else:
        dist.all_reduce(x)  # C2


def shape(rank: int) -> None:
    dist.all_reduce(torch.ones(4 + rank, device="cuda"))  # C3


def dtype(rank: int) -> None:
    kind = torch.float16 if rank else torch.bfloat16
    dist.all_reduce(torch.ones(4, dtype=kind, device="cuda"))  # C4


def reduce_op(rank: int) -> None:
    op = dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM
    dist.all_reduce(torch.ones(4, device="cuda"), op=op)  # C5


def root(rank: int) -> None:
    dist.broadcast(torch.ones(4, device="cuda"), src=rank)  # C7


def read_early(rank: int) -> None:
    x = torch.ones(4, device="cuda")
    work = dist.all_reduce(x, async_op=True)  # issued
    y = x + 1  # C15
    work.wait()
    del y


def host_read_early(rank: int) -> None:
    x = torch.ones(1, device="cuda")
    work = dist.all_reduce(x, async_op=True)  # issued
    x.item()  # C15
    work.wait()


def copied_early(rank: int) -> None:
    x = torch.ones(4, device="cuda")
    work = dist.all_reduce(x, async_op=True)  # issued
    x.cpu()  # C15
    work.wait()


def written_early(rank: int) -> None:
    x = torch.ones(4, device="cuda")
    work = dist.all_reduce(x, async_op=True)  # issued
    x.zero_()  # C14
    work.wait()


def sent_and_written(rank: int) -> None:
    x = torch.ones(4, device="cuda")
    if rank:
        dist.recv(x, 0)
    else:
        work = dist.isend(x, 1)  # issued
        x.mul_(2)  # C14
        work.wait()


def unwritten(rank: int) -> None:
    x = torch.empty(4, device="cuda")  # made
    dist.all_reduce(x)  # M5


def unwritten_message(rank: int) -> None:
    x = torch.empty(4, device="cuda")  # made
    if rank:
        dist.recv(x, 0)
    else:
        dist.send(x, 1)  # M5


def circle(rank: int) -> None:
    x = torch.ones(4, device="cuda")
    dist.recv(x, 1 - rank)  # P4
    dist.send(x, 1 - rank)


def truncated(rank: int) -> None:
    if rank:
        dist.recv(torch.ones(5, device="cuda"), 0)  # P7
    else:
        dist.send(torch.ones(4, device="cuda"), 1)  # P7


def never_waited(rank: int) -> None:
    dist.all_reduce(torch.ones(4, device="cuda"), async_op=True)  # C13


def unknown_op(rank: int) -> None:
    x = torch.ones(4, dtype=torch.float16, device="cuda")
    dist.all_reduce(x, op=dist.ReduceOp.BXOR)  # C6


def other_members(rank: int) -> None:
    dist.new_group([0, 1] if rank else [0])  # C9


def made_by_one(rank: int) -> None:
    if rank:
        dist.new_group([0, 1])  # C9


def crossing(rank: int) -> None:
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    x = torch.ones(4, device="cuda")
    for group in (second, first) if rank else (first, second):
        dist.all_reduce(x, group=group)  # C10
        x.sum().item()


def splits(rank: int) -> None:
    out, given = torch.ones(4, device="cuda"), torch.ones(4, device="cuda")
    dist.all_to_all_single(out, given, [2, 2], [1, 3] if rank else [3, 1])  # C11


def short_list(rank: int) -> None:
    x = torch.ones(4, device="cuda")
    dist.all_gather([torch.ones(4, device="cuda")], x)  # C12


def small_buffer(rank: int) -> None:
    x = torch.ones(4, device="cuda")
    dist.all_gather_single(torch.ones(7, device="cuda"), x)  # C12


def destroyed(rank: int) -> None:
    group = dist.new_group([0, 1])
    dist.destroy_process_group(group)
    dist.all_reduce(torch.ones(4, device="cuda"), group=group)  # C18


def twice(rank: int) -> None:
    dist.init_process_group("nccl", rank=rank, world_size=2, init_method="tcp://x:1")  # C18


def to_itself(rank: int) -> None:
    if rank == 0:
        dist.send(torch.ones(4, device="cuda"), 0)  # P6


def no_such_peer(rank: int) -> None:
    if rank == 0:
        dist.send(torch.ones(4, device="cuda"), 5)  # P9


def full(rank: int) -> None:
    torch.zeros(1 << 27, dtype=torch.uint8, device="cuda")  # M7


def without_end(rank: int) -> None:
    x = torch.ones(4, device="cuda")
    while True:
        x += 1  # K5


def objects_differ(rank: int) -> None:
    if rank:
        dist.barrier()  # C2
    else:
        dist.all_gather_object([None, None], rank)  # C2


def objects_missing(rank: int) -> None:
    if rank:
        dist.all_gather_object([None, None], rank)  # C1


MISTAKES: list[tuple[Callable[[int], None], str, str]] = [
    (skipped, "C1", "# C1"),
    (order, "C2", "# C2"),
    (shape, "C3", "# C3"),
    (dtype, "C4", "# C4"),
    (reduce_op, "C5", "# C5"),
    (root, "C7", "# C7"),
    (read_early, "C15", "# C15"),
    (host_read_early, "C15", "# C15"),
    (copied_early, "C15", "# C15"),
    (written_early, "C14", "# C14"),
    (sent_and_written, "C14", "# C14"),
    (unwritten, "M5", "# M5"),
    (unwritten_message, "M5", "# M5"),
    (circle, "P4", "# P4"),
    (truncated, "P7", "# P7"),
    (never_waited, "C13", "# C13"),
    (unknown_op, "C6", "# C6"),
    (other_members, "C9", "# C9"),
    (made_by_one, "C9", "# C9"),
    (crossing, "C10", "# C10"),
    (splits, "C11", "# C11"),
    (short_list, "C12", "# C12"),
    (small_buffer, "C12", "# C12"),
    (no_such_peer, "P9", "# P9"),
    (objects_differ, "C2", "# C2"),
    (objects_missing, "C1", "# C1"),
]


def in_a_group(worker: Callable[[int], None]) -> Callable[[int], None]:
    def run(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=2, init_method="tcp://x:1")
        worker(rank)

    return run


@pytest.mark.parametrize(
    ("worker", "code", "line"), MISTAKES, ids=[each[0].__name__ for each in MISTAKES]
)
def test_a_mistake_is_reported_with_its_code_and_the_line_of_the_program(
    worker: Callable[[int], None], code: str, line: str
) -> None:
    with pytest.raises((SpawnException, KernbenchError)) as failed:
        on_ranks(in_a_group(worker), 2)
    text = str(failed.value)
    assert f"[{code}]" in text
    assert line in text
    assert "site-packages" not in text, "no line of PyTorch"


@pytest.mark.parametrize(
    ("worker", "said", "line"),
    [
        (destroyed, "Process group .* is not initialized", "# C18"),
        (twice, "trying to initialize the default process group twice", "# C18"),
        (to_itself, "destination rank should not be the same as the rank", "# P6"),
    ],
    ids=["destroyed", "twice", "to_itself"],
)
def test_what_pytorch_itself_refuses_is_told_in_its_words_with_the_line(
    worker: Callable[[int], None], said: str, line: str
) -> None:
    with pytest.raises(SpawnException, match=said) as failed:
        on_ranks(in_a_group(worker), 2)
    assert all(isinstance(each, ValueError) for each in failed.value.errors.values())
    assert line in str(failed.value)
    assert "site-packages" not in str(failed.value), "no line of PyTorch"


def test_a_full_memory_is_told_with_its_size_and_the_line() -> None:
    with pytest.raises(SpawnException) as failed:
        on_ranks(full, 2, hbm="64MiB")
    text = str(failed.value)
    assert "[M7] CUDA out of memory" in text
    assert "# M7" in text
    assert "free 64 MiB of 64 MiB" in text


def filled_by_one_line(rank: int) -> None:
    weight = torch.empty(4 << 20, device="cuda")  # the weight
    kept = [torch.empty(1 << 20, device="cuda") for _ in range(100)]  # M7
    del weight, kept


def test_a_full_memory_is_told_by_the_lines_that_filled_it() -> None:
    with pytest.raises(SpawnException) as failed:
        on_ranks(filled_by_one_line, 2, hbm="64MiB")
    text = str(failed.value)
    most, less = (line for line in text.splitlines() if " tensor [" in line and " at " in line)
    assert "48 MiB in 12 blocks, each 4 MiB tensor [1048576] torch.float32, at" in most
    assert most.endswith("# M7")
    assert "16 MiB tensor [4194304] torch.float32 at" in less
    assert less.endswith("# the weight")
    assert text.count("# M7") == 2, "where it failed, and what is in use"


def test_a_program_that_never_ends_meets_the_budget_of_steps() -> None:
    with pytest.raises(SpawnException) as failed:
        kernbench.torchrun_spawn(without_end, nprocs=2, step_budget=500)
    assert "[K5]" in str(failed.value)
    assert "# K5" in str(failed.value)
    assert "site-packages" not in str(failed.value)


@pytest.mark.filterwarnings("ignore:barrier")  # PyTorch told once that it takes the device
def test_groups_that_pytorch_allows_are_no_mistake() -> None:
    def worker(rank: int) -> None:
        mine, _ = dist.new_subgroups(1)
        dist.all_reduce(torch.ones(4, device="cuda"), group=mine)
        alone = dist.new_group([1])
        if rank == 1:
            dist.all_reduce(torch.ones(4, device="cuda"), group=alone)
        else:
            assert alone == dist.GroupMember.NON_GROUP_MEMBER
            assert dist.get_rank(alone) == -1
        both = dist.new_group([0, 1])
        inner, _ = dist.new_subgroups(group_size=1, group=both)
        dist.barrier(group=inner)
        dist.destroy_process_group()

    on_ranks(in_a_group(worker), 2)


def test_what_was_waited_for_is_no_mistake() -> None:
    def worker(rank: int) -> float:
        x = torch.ones(4, device="cuda")
        work = dist.all_reduce(x, async_op=True)
        other = torch.zeros(4, device="cuda") + 1
        work.wait()
        x += other
        buffer = torch.empty(4, device="cuda")
        buffer[:2] = 1.0  # a part counts as the whole storage
        dist.broadcast(buffer, 0)
        received = [torch.empty(4, device="cuda") for _ in range(2)]
        dist.all_gather(received, x)
        return float(received[1][0].item())

    def run(rank: int) -> float:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=2, init_method="tcp://x:1")
        return worker(rank)

    assert on_ranks(run, 2) == [3.0, 3.0]


def test_an_array_over_what_a_copy_still_writes_is_no_mistake_yet() -> None:
    def run(rank: int) -> list[float]:
        given = torch.arange(4.0, device="cuda")
        first, second = (torch.empty(4).pin_memory() for _ in range(2))
        first.copy_(given, non_blocking=True)
        with pytest.warns(UserWarning, match=r"still writes: whether .* is not checked \(C15\)"):
            array = first.numpy()
        second.copy_(given + 1, non_blocking=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it was said
            other = np.asarray(second)
        with pytest.raises(AccessError, match="C15"):
            second.tolist()
        torch.cuda.synchronize()
        found: list[float] = [*array.tolist(), *other.tolist()]
        return found

    assert on_ranks(run, 1) == [[0, 1, 2, 3, 1, 2, 3, 4]]


def test_host_memory_that_numpy_has_filled_was_written() -> None:
    def run(rank: int) -> float:
        dist.init_process_group("gloo", rank=rank, world_size=2, init_method="tcp://x:1")
        x = torch.empty(2)
        x.numpy()[:] = 1.0
        dist.all_reduce(x)
        return float(x[0].item())

    assert on_ranks(run, 2) == [2.0, 2.0]
