"""Ranks that disagree: the full text that each of them gets."""

# ruff: noqa: E501 - texts as users see them

from collections.abc import Callable

import pytest
from goldens import Case, Cases, ones
from report_text import cut, relative

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.errors import KernbenchError
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench

CASES = Cases()


@CASES.add(
    3,
    (
        (0, 2),
        """
[C1] all_reduce #2 of group WORLD: ranks 0, 2 wait for rank 1
  waiting ranks 0, 2: all_reduce([4], torch.float32, sum) at 4 us, at FILE+6: dist.all_reduce(x)
  missing rank 1 returned at FILE+5: return; its last collective was #1, rank 1: all_reduce([4], torch.float32, sum) at 2 us, at FILE+3: dist.all_reduce(x)
  hint: every rank of a group must call the collective; look for a branch on the rank, or a loop with fewer turns
""",
    ),
)
def c1_returned(rank: int) -> None:
    dist.init_process_group("nccl")
    x = ones()
    dist.all_reduce(x)
    if rank == 1:
        return
    dist.all_reduce(x)
    x.numpy()


@CASES.add(
    3,
    (
        (0,),
        """
[C1] barrier #1 of group G1{0,2}: rank 0 waits for rank 2
  waiting rank 0: barrier() at 4 us, at FILE+5: dist.barrier(pair)
  missing rank 2 returned at FILE+4: if rank == 0:; it called none, and last of all #1 of group WORLD, rank 2: all_reduce([4], torch.float32, sum) at 2 us, at FILE+3: dist.all_reduce(ones())
  hint: every rank of a group must call the collective; look for a branch on the rank, or a loop with fewer turns
""",
    ),
)
def c1_group(rank: int) -> None:
    dist.init_process_group("nccl")
    pair = dist.new_group([0, 2])
    dist.all_reduce(ones())
    if rank == 0:
        dist.barrier(pair)


@CASES.add(
    3,
    (
        (0, 1, 2),
        """
[C2] collective #2 of group WORLD: ranks 0-2 differ in collective
  ranks 0, 2: all_reduce([4], torch.float32, sum) at 4 us, at FILE+6: dist.all_reduce(x)
  rank 1: broadcast([4], torch.float32, src=0) at 4 us, at FILE+5: dist.broadcast(x, 0)
  hint: every rank of a group calls the same collectives in the same order
""",
    ),
)
def c2(rank: int) -> None:
    dist.init_process_group("nccl")
    x = ones()
    dist.all_reduce(x)
    if rank == 1:
        dist.broadcast(x, 0)
    dist.all_reduce(x)


@CASES.add(
    3,
    (
        (0, 1, 2),
        """
[C2] collective #1 of group WORLD: ranks 0-2 differ in device
  ranks 0, 2: all_reduce([4], torch.float32, sum) at 2 us, at FILE+3: dist.all_reduce(x)
  rank 1: all_reduce([4], torch.float32, sum) on cpu at 6 us, at FILE+3: dist.all_reduce(x)
  hint: all ranks give tensors on the host, or all on devices: move one with .cuda() or .cpu() first; or the order of calls differs
""",
    ),
)
def c2_device(rank: int) -> None:
    dist.init_process_group("gloo")
    x = ones().cpu() if rank == 1 else ones()
    dist.all_reduce(x)


@CASES.add(
    3,
    (
        (0, 1, 2),
        """
[C2] collective #1 of group WORLD: ranks 0-2 differ in collective
  rank 0: all_reduce([4], torch.float32, sum) at 2 us, at FILE+6: dist.all_reduce(x)
  rank 1: all_reduce([4], torch.float32, sum) on cpu at 6 us, at FILE+6: dist.all_reduce(x)
  rank 2: broadcast([4], torch.float32, src=0) at 2 us, at FILE+4: dist.broadcast(x, 0)
  hint: every rank of a group calls the same collectives in the same order
""",
    ),
)
def c2_device_and_more(rank: int) -> None:
    dist.init_process_group("gloo")
    x = ones().cpu() if rank == 1 else ones()
    if rank == 2:
        dist.broadcast(x, 0)
    else:
        dist.all_reduce(x)


@CASES.add(
    2,
    (
        (0, 1),
        """
[C4] collective #1 of group WORLD: ranks 0-1 differ in dtype
  rank 0: all_reduce([4], torch.float32, sum) at 2 us, at FILE+3: dist.all_reduce(x)
  rank 1: all_reduce([4], torch.float16, sum) at 2 us, at FILE+3: dist.all_reduce(x)
  hint: all ranks give tensors of one type; convert with .to(dtype) first
""",
    ),
)
def c4_sizes(rank: int) -> None:
    dist.init_process_group("nccl")
    x = ones(dtype=torch.float16 if rank == 1 else torch.float32)
    dist.all_reduce(x)


@CASES.add(
    3,
    (
        (0, 1, 2),
        """
[C3] collective #1 of group WORLD: ranks 0-2 differ in shape
  rank 0: all_reduce([8, 4], torch.float32, sum) at 2 us, at FILE+3: dist.all_reduce(x)
  ranks 1-2: all_reduce([4, 8], torch.float32, sum) at 2 us, at FILE+3: dist.all_reduce(x)
  hint: the number of elements is the same, so hardware would not notice
""",
    ),
)
def c3_first(rank: int) -> None:
    dist.init_process_group("nccl")
    x = ones(8, 4) if rank == 0 else ones(4, 8)
    dist.all_reduce(x)


@CASES.add(
    3,
    (
        (0, 1, 2),
        """
[C3] collective #1 of group WORLD: ranks 0-2 differ in shape
  rank 0: all_gather_into_tensor(3 x [2, 2], torch.float32) at 2 us, at FILE+4: dist.all_gather_into_tensor(out, x)
  ranks 1-2: all_gather_into_tensor(3 x [4], torch.float32) at 2 us, at FILE+4: dist.all_gather_into_tensor(out, x)
  hint: the numbers of elements are the same, so hardware would not notice
""",
    ),
)
def c3_gather(rank: int) -> None:
    dist.init_process_group("nccl")
    out = torch.empty(12, device="cuda")
    x = ones(4) if rank else ones(2, 2)
    dist.all_gather_into_tensor(out, x)


@CASES.add(
    3,
    (
        (0, 1, 2),
        """
[C3] collective #1 of group WORLD: ranks 0-2 differ in shape
  ranks 0-1: all_gather([1], [2], [3], torch.float32) at 8 us, at FILE+3: dist.all_gather([ones(s) for s in sizes], ones(sizes[rank]))
  rank 2: all_gather([1], [1], [3], torch.float32) at 8 us, at FILE+3: dist.all_gather([ones(s) for s in sizes], ones(sizes[rank]))
  hint: all ranks must agree on what belongs to each rank: pad to one size, or send with all_to_all_single and split sizes
""",
    ),
)
def c3_lists(rank: int) -> None:
    dist.init_process_group("nccl")
    sizes = [1, 2, 3] if rank != 2 else [1, 1, 3]
    dist.all_gather([ones(s) for s in sizes], ones(sizes[rank]))


@CASES.add(
    3,
    (
        (0, 1, 2),
        """
[C4] collective #1 of group WORLD: ranks 0-2 differ in dtype
  ranks 0, 2: all_reduce([4], torch.bfloat16, sum) at 2 us, at FILE+3: dist.all_reduce(x)
  rank 1: all_reduce([4], torch.float16, sum) at 2 us, at FILE+3: dist.all_reduce(x)
  hint: the types have the same size, so hardware would take the one for the other
""",
    ),
)
def c4(rank: int) -> None:
    dist.init_process_group("nccl")
    x = ones(dtype=torch.float16 if rank == 1 else torch.bfloat16)
    dist.all_reduce(x)


@CASES.add(
    3,
    (
        (0, 1, 2),
        """
[C5] collective #1 of group WORLD: ranks 0-2 differ in reduce operation
  ranks 0-1: all_reduce([4], torch.float32, sum) at 2 us, at FILE+3: dist.all_reduce(ones(), op)
  rank 2: all_reduce([4], torch.float32, max) at 2 us, at FILE+3: dist.all_reduce(ones(), op)
  hint: all ranks name the same reduction, with the same factor if it has one
""",
    ),
)
def c5(rank: int) -> None:
    dist.init_process_group("nccl")
    op = dist.ReduceOp.MAX if rank == 2 else dist.ReduceOp.SUM
    dist.all_reduce(ones(), op)


@CASES.add(
    3,
    (
        (0, 1, 2),
        """
[C5] collective #1 of group WORLD: ranks 0-2 differ in reduce operation
  ranks 0-1: all_reduce([4], torch.float32, premul_sum(0.5)) at 2 us, at FILE+2: dist.all_reduce(ones(), dist._make_nccl_premul_sum(0.5 + rank // 2))
  rank 2: all_reduce([4], torch.float32, premul_sum(1.5)) at 2 us, at FILE+2: dist.all_reduce(ones(), dist._make_nccl_premul_sum(0.5 + rank // 2))
  hint: all ranks name the same reduction, with the same factor if it has one
""",
    ),
)
def c5_premul(rank: int) -> None:
    dist.init_process_group("nccl")
    dist.all_reduce(ones(), dist._make_nccl_premul_sum(0.5 + rank // 2))


@CASES.add(
    3,
    (
        (0, 1, 2),
        """
[C7] collective #1 of group WORLD: ranks 0-2 differ in root
  ranks 0-1: broadcast([4], torch.float32, src=0) at 2 us, at FILE+2: dist.broadcast(ones(), 1 if rank == 2 else 0)
  rank 2: broadcast([4], torch.float32, src=1) at 2 us, at FILE+2: dist.broadcast(ones(), 1 if rank == 2 else 0)
  hint: ranks 0 and 1 of the group were named; src= and dst= are global ranks, group_src= and group_dst= ranks in the group
""",
    ),
)
def c7_differs(rank: int) -> None:
    dist.init_process_group("nccl")
    dist.broadcast(ones(), 1 if rank == 2 else 0)


@CASES.add(
    3,
    (
        (0, 1, 2),
        """
[C9] new_group #2 of the world: ranks 0-2 differ in members
  ranks 0, 2: new_group([0, 2]) at 0 ps, at FILE+3: dist.new_group([1, 2] if rank == 1 else [0, 2])
  rank 1: new_group([1, 2]) at 0 ps, at FILE+3: dist.new_group([1, 2] if rank == 1 else [0, 2])
  hint: every rank makes the same groups in the same order, also those that it is not a member of
""",
    ),
)
def c9_lists(rank: int) -> None:
    dist.init_process_group("nccl")
    dist.new_group([0, 1])
    dist.new_group([1, 2] if rank == 1 else [0, 2])
    ones().numpy()


@CASES.add(
    3,
    (
        (0, 1, 2),
        """
[C9] new_group #1 of the world: ranks 0-2 differ in description
  rank 0: new_group([0, 1], 'dp') at 0 ps, at FILE+2: dist.new_group([0, 1], group_desc="tp" if rank else "dp")
  ranks 1-2: new_group([0, 1], 'tp') at 0 ps, at FILE+2: dist.new_group([0, 1], group_desc="tp" if rank else "dp")
  hint: every rank makes the same groups in the same order, also those that it is not a member of
""",
    ),
)
def c9_desc(rank: int) -> None:
    dist.init_process_group("nccl")
    dist.new_group([0, 1], group_desc="tp" if rank else "dp")


@CASES.add(
    3,
    (
        (0, 2),
        """
[C9] new_group #1 of the world: ranks 0, 2 called it, rank 1 did not
  waiting ranks 0, 2: new_group([0, 2]) at 0 ps, at FILE+3: dist.new_group([0, 2])
  missing rank 1 returned at FILE+2: if rank != 1:; it called none
  hint: every rank makes the same groups in the same order, also those that it is not a member of
""",
    ),
)
def c9_subset(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank != 1:
        dist.new_group([0, 2])


@CASES.add(
    3,
    (
        (0, 1, 2),
        """
[C9] split_group #1 of the world: ranks 0-2 differ in parts
  rank 0: split_group(WORLD, [[0], [1, 2]]) at 0 ps, at FILE+3: dist.split_group(None, parts)
  ranks 1-2: split_group(WORLD, [[0, 1], [2]]) at 0 ps, at FILE+3: dist.split_group(None, parts)
  hint: every rank makes the same groups in the same order, also those that it is not a member of
""",
    ),
)
def c9_split(rank: int) -> None:
    dist.init_process_group("nccl")
    parts = [[0, 1], [2]] if rank else [[0], [1, 2]]
    dist.split_group(None, parts)


@CASES.add(
    3,
    (
        (0, 1, 2),
        """
[C11] all_to_all_single #1 of group WORLD: ranks do not expect what others send, 2 times
  rank 1 sends 3 rows to rank 0; rank 0 expects 2 from rank 1
  rank 1 sends 1 row to rank 2; rank 2 expects 2 from rank 1
  ranks 0, 2: all_to_all_single(rows of [2], torch.float32, to each 2, from each 2) at 2 us, at FILE+5: dist.all_to_all_single(out, x, [2, 2, 2], splits)
  rank 1: all_to_all_single(rows of [2], torch.float32, to each [3, 2, 1], from each 2) at 2 us, at FILE+5: dist.all_to_all_single(out, x, [2, 2, 2], splits)
  hint: what rank i sends to rank j is what rank j expects from rank i
""",
    ),
)
def c11(rank: int) -> None:
    dist.init_process_group("nccl")
    x = ones(6, 2)
    out = torch.empty((6, 2), device="cuda")
    splits = [3, 2, 1] if rank == 1 else [2, 2, 2]
    dist.all_to_all_single(out, x, [2, 2, 2], splits)


@CASES.add(
    3,
    (
        (0, 1, 2),
        """
[C11] all_to_all_single #3 of group WORLD: ranks do not expect what others send, 2 times
  rank 1 sends 3 rows to rank 0; rank 0 expects 2 from rank 1
  rank 1 sends 1 row to rank 2; rank 2 expects 2 from rank 1
  ranks 0, 2: all_to_all_single(rows of [2], torch.float32, to each 2, from each 2) at 6 us, at FILE+5: dist.all_to_all_single(out, x, [2, 2, 2], splits)
  rank 1: all_to_all_single(rows of [2], torch.float32, to each [3, 2, 1], from each 2) at 6 us, at FILE+5: dist.all_to_all_single(out, x, [2, 2, 2], splits)
  hint: what rank i sends to rank j is what rank j expects from rank i
""",
    ),
)
def c11_after_exchanges_that_fit(rank: int) -> None:
    dist.init_process_group("nccl")
    x, out = ones(6, 2), torch.empty((6, 2), device="cuda")
    for step in range(3):
        splits = [3, 2, 1] if rank == 1 and step == 2 else [2, 2, 2]
        dist.all_to_all_single(out, x, [2, 2, 2], splits)


@CASES.add(
    3,
    (
        (0, 1, 2),
        """
[C11] all_to_all #1 of group WORLD: rank 2 sends 3 elements to rank 0; rank 0 expects 1 from rank 2
  rank 0: all_to_all(torch.float32, to each 1, from each [1, 2, 1]) at 12 us, at FILE+4: dist.all_to_all(outs, ins)
  rank 1: all_to_all(torch.float32, to each 2, from each [1, 2, 3]) at 12 us, at FILE+4: dist.all_to_all(outs, ins)
  rank 2: all_to_all(torch.float32, to each 3, from each [1, 2, 3]) at 12 us, at FILE+4: dist.all_to_all(outs, ins)
  hint: what rank i sends to rank j is what rank j expects from rank i
""",
    ),
)
def c11_lists(rank: int) -> None:
    dist.init_process_group("nccl")
    ins = [ones(1 + rank) for _ in range(3)]
    outs = [ones(1 + r if (rank, r) != (0, 2) else 1) for r in range(3)]
    dist.all_to_all(outs, ins)


@CASES.add(
    4,
    (
        (0, 1, 2, 3),
        """
[C11] all_to_all_single #1 of group WORLD: ranks do not expect what others send, 12 times
  rank 0 sends 0 elements to rank 1; rank 1 expects 1 from rank 0
  rank 0 sends 0 elements to rank 2; rank 2 expects 2 from rank 0
  rank 0 sends 0 elements to rank 3; rank 3 expects 3 from rank 0
  rank 1 sends 1 element to rank 0; rank 0 expects 0 from rank 1
  rank 1 sends 1 element to rank 2; rank 2 expects 2 from rank 1
  rank 1 sends 1 element to rank 3; rank 3 expects 3 from rank 1
  rank 2 sends 2 elements to rank 0; rank 0 expects 0 from rank 2
  rank 2 sends 2 elements to rank 1; rank 1 expects 1 from rank 2
  and 4 more
  rank 0: all_to_all_single(torch.float32, to each 0, from each 0) at 4 us, at FILE+2: dist.all_to_all_single(ones(4 * rank), ones(4 * rank))
  rank 1: all_to_all_single(torch.float32, to each 1, from each 1) at 4 us, at FILE+2: dist.all_to_all_single(ones(4 * rank), ones(4 * rank))
  rank 2: all_to_all_single(torch.float32, to each 2, from each 2) at 4 us, at FILE+2: dist.all_to_all_single(ones(4 * rank), ones(4 * rank))
  rank 3: all_to_all_single(torch.float32, to each 3, from each 3) at 4 us, at FILE+2: dist.all_to_all_single(ones(4 * rank), ones(4 * rank))
  hint: what rank i sends to rank j is what rank j expects from rank i
""",
    ),
)
def c11_everywhere(rank: int) -> None:
    dist.init_process_group("nccl")
    dist.all_to_all_single(ones(4 * rank), ones(4 * rank))


@CASES.add(
    3,
    (
        (0, 1, 2),
        """
[C3] collective #1 of group WORLD: ranks 0-2 differ in shape
  ranks 0, 2: broadcast([3], torch.float32, src=2) at 2 us, at FILE+3: dist.broadcast(x, 2)
  rank 1: broadcast([2], torch.float32, src=2) at 2 us, at FILE+3: dist.broadcast(x, 2)
  hint: all ranks give tensors of one shape
""",
    ),
)
def c3_broadcast(rank: int) -> None:
    dist.init_process_group("nccl")
    x = ones(2) if rank == 1 else ones(3)
    dist.broadcast(x, 2)


@CASES.add(
    3,
    (
        (0, 1, 2),
        """
[C2] collective #1 of group WORLD: ranks 0-2 differ in collective
  rank 0: all_reduce([4], torch.float32, sum) at 2 us, at FILE+3: dist.all_reduce(ones())
  rank 1: barrier() at 0 ps, at FILE+5: dist.barrier()
  rank 2: reduce([4], torch.float32, sum, dst=0) at 2 us, at FILE+7: dist.reduce(ones(), 0)
  hint: every rank of a group calls the same collectives in the same order
""",
    ),
)
def c2_three(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 0:
        dist.all_reduce(ones())
    elif rank == 1:
        dist.barrier()
    else:
        dist.reduce(ones(), 0)


@CASES.add(
    3,
    (
        (0, 1, 2),
        """
[C2] collective #1 of group WORLD: ranks 0-2 differ in collective
  ranks 0, 2: all_to_all_single(rows of [2], torch.float32, to each 1, from each 1) at 4 us, at FILE+6: dist.all_to_all_single(out, x)
  rank 1: all_to_all(torch.float32, to each 2, from each 2) at 4 us, at FILE+4: dist.all_to_all(list(out.split(1)), list(x.split(1)))
  hint: every rank of a group calls the same collectives in the same order
""",
    ),
)
def c2_exchanges_of_two_kinds(rank: int) -> None:
    dist.init_process_group("nccl")
    x, out = ones(3, 2), ones(3, 2)
    if rank == 1:
        dist.all_to_all(list(out.split(1)), list(x.split(1)))
    else:
        dist.all_to_all_single(out, x)


@CASES.add(
    2,
    (
        (0, 1),
        """
[C2] collective #1 of group WORLD: ranks 0-1 differ in collective
  rank 0: broadcast([1], torch.int64, src=0) at 2 us, at FILE+3: dist.broadcast(ones(1, dtype=torch.int64), 0)
  rank 1: broadcast_object_list([1], torch.int64, src=0) at 0 ps, at FILE+5: dist.broadcast_object_list([None], 0)
  hint: every rank of a group calls the same collectives in the same order
""",
    ),
)
def c2_broadcast_of_objects(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 0:
        dist.broadcast(ones(1, dtype=torch.int64), 0)
    else:
        dist.broadcast_object_list([None], 0)


@CASES.add(
    2,
    (
        (0, 1),
        """
[C2] collective #1 of group WORLD: ranks 0-1 differ in collective
  rank 0: scatter_object_list([1], torch.int64, src=0) at 4 us, at FILE+3: dist.scatter_object_list([None], ["a", "b"], 0)
  rank 1: broadcast([1], torch.int64, src=1) at 2 us, at FILE+5: dist.broadcast(ones(1, dtype=torch.int64), 1)
  hint: every rank of a group calls the same collectives in the same order
""",
    ),
)
def c2_scatter_of_objects(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 0:
        dist.scatter_object_list([None], ["a", "b"], 0)
    else:
        dist.broadcast(ones(1, dtype=torch.int64), 1)


@CASES.add(
    2,
    (
        (0, 1),
        """
[C2] collective #1 of group WORLD: ranks 0-1 differ in collective
  rank 0: all_gather(2 x [4], torch.float32) at 6 us, at FILE+3: dist.all_gather([ones(), ones()], ones())
  rank 1: gather_object(2 x [1], torch.int64) at 4 us, at FILE+5: dist.gather_object("a", None, 0)
  hint: every rank of a group calls the same collectives in the same order
""",
    ),
)
def c2_gather_of_objects(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 0:
        dist.all_gather([ones(), ones()], ones())
    else:
        dist.gather_object("a", None, 0)


@CASES.add(
    2,
    (
        (1,),
        """
[P7] rank 0 sends a tensor to rank 1, which receives objects
  rank 0, message #1 of group WORLD: send([1], torch.int64, to rank 1, tag 0) at 2 us, at FILE+3: dist.send(ones(1, dtype=torch.int64), 1)
  rank 1, message #1 of group WORLD: recv_object_list([1], torch.int64, from rank 0, tag 0) at 0 ps, at FILE+5: dist.recv_object_list([None], 0)
  hint: recv_object_list receives what send_object_list sends
""",
    ),
)
def p7_objects(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 0:
        dist.send(ones(1, dtype=torch.int64), 1)
    else:
        dist.recv_object_list([None], 0)


@pytest.mark.parametrize("case", CASES, ids=Case.name)
def test_every_rank_is_told_in_full(kernbench: Kernbench, case: Case) -> None:
    assert case.found(kernbench) == case.expected()


def test_reading_what_nobody_wrote_is_reported_by_its_rank(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.zeros(4, device="cuda") if rank else torch.empty(4, device="cuda")
        dist.all_reduce(x)
        torch.cuda.synchronize()

    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=2)
    assert list(caught.value.errors) == [0]
    error = caught.value.errors[0]
    assert isinstance(error, KernbenchError)
    assert error.code == "M5"
    assert "all_reduce was issued at FILE: dist.all_reduce(x)" in cut(str(error))


def test_a_faulty_input_of_one_rank_reaches_no_other(kernbench: Kernbench) -> None:
    seen: list[object] = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.zeros(4, device="cuda") if rank else torch.empty(4, device="cuda")
        dist.all_reduce(x)
        if rank:
            seen.append(x.tolist())
        torch.cuda.synchronize()

    for fidelity in ("kernel", "tile", "functional"):
        with pytest.raises(SpawnException) as caught:
            kernbench.spawn(worker, nprocs=3, fidelity=fidelity)
        assert list(caught.value.errors) == [0]
    assert seen == []


def test_functions_of_one_kind_may_meet(kernbench: Kernbench) -> None:
    """Both are the same on the wire."""

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        parts = list(torch.zeros(6, device="cuda").chunk(3))
        if rank == 1:
            dist.all_gather(parts, ones(2))
        else:
            dist.all_gather_into_tensor(torch.zeros(6, device="cuda"), ones(2))
        torch.cuda.synchronize()

    kernbench.spawn(worker, nprocs=3)


def test_ranks_that_get_the_same_report_are_told_together(kernbench: Kernbench) -> None:
    # Who comes second finds the difference; those after it meet it on another line of ours.
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(4, dtype=torch.float16 if rank == 2 else torch.float32, device="cuda")
        dist.all_reduce(x)

    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=5)
    (only,) = caught.value.alike()
    assert only[0] == [0, 1, 2, 3, 4]


def test_what_differs_in_the_name_of_its_rank_only_is_told_together(kernbench: Kernbench) -> None:
    def c12(rank: int) -> None:
        dist.init_process_group("nccl")
        dist.all_gather([ones()] * (3 if rank == 2 else 2), ones())

    def c13(rank: int) -> None:
        dist.init_process_group("nccl")
        dist.isend(ones(), (rank + 1) % 4)
        dist.recv(ones())

    def c14(rank: int) -> None:
        dist.init_process_group("nccl")
        x = ones()
        dist.all_reduce(x, async_op=True)
        x.zero_()

    def c18(rank: int) -> None:
        dist.init_process_group("nccl")
        dist.destroy_process_group()
        dist.barrier()

    def users_own(rank: int) -> None:
        raise ValueError(f"rank {rank}")

    def told(worker: Callable[[int], None]) -> str:
        with pytest.raises(SpawnException) as caught:
            kernbench.spawn(worker, nprocs=4)
        return relative(str(caught.value), worker)

    assert told(c12) == (
        """ranks 0-3 failed
ranks 0-1, 3: CollectiveArgumentError: [C12] each of ranks 0-1, 3 called all_gather with 2 tensors in tensor_list
  call #1 of group WORLD at 4 us, at FILE+2: dist.all_gather([ones()] * (3 if rank == 2 else 2), ones())
  needed 4, one for each rank of group WORLD; got 2
  hint: make the list with one entry for each of dist.get_world_size(group)
rank 2: CollectiveArgumentError: [C12] rank 2 called all_gather with 3 tensors in tensor_list
  call #1 of group WORLD at 4 us, at FILE+2: dist.all_gather([ones()] * (3 if rank == 2 else 2), ones())
  needed 4, one for each rank of group WORLD; got 3
  hint: make the list with one entry for each of dist.get_world_size(group)
replay: seed 0, schedule 0"""
    )
    assert told(c13) == (
        """ranks 0-3 failed
ranks 0-3: LeakError: [C13] each of ranks 0-3 returned without waiting for 1 operation
  send #1 of group WORLD issued at 2 us, at FILE+2: dist.isend(ones(), (rank + 1) % 4)
  hint: keep the work that each of these calls returned, and call its wait()
replay: seed 0, schedule 0"""
    )
    assert told(c14) == (
        """ranks 0-3 failed
ranks 0-3: AccessError: [C14] each of ranks 0-3 wrote a tensor before all_reduce on it was waited for
  at 4 us, at FILE+4: x.zero_()
  all_reduce #1 of group WORLD was issued at 2 us, at FILE+3: dist.all_reduce(x, async_op=True)
  all_reduce runs on the communication stream, the write on the default stream
  tensor [4] torch.float32, bytes 0..16 of 16: write after write
  hint: call work.wait() first
replay: seed 0, schedule 0"""
    )
    assert told(c18) == (
        """ranks 0-3 failed
ranks 0-3: GroupError: [C18] each of ranks 0-3 called barrier without an initialised process group
  at 0 ps, at FILE+3: dist.barrier()
  destroyed at FILE+2: dist.destroy_process_group()
  hint: call torch.distributed.init_process_group() again first
replay: seed 0, schedule 0"""
    )
    assert told(users_own) == (
        """ranks 0-3 failed
ranks 0-3: ValueError: rank <rank>
  at 0 ps, at FILE+1: raise ValueError(f"rank {rank}")
replay: seed 0, schedule 0"""
    )


def test_c1_tells_apart_who_returned_who_hangs_and_who_is_on_the_way(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        busy = dist.new_group([3, 4, 5])
        if rank == 1:
            return
        if rank == 2:
            dist.recv(ones(), 1)
            torch.cuda.synchronize()
        if rank >= 3:
            for _ in range(100):
                dist.barrier(busy)
        dist.all_reduce(ones())
        torch.cuda.synchronize()

    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=6)
    assert list(caught.value.errors) == [0, 2]
    assert relative(str(caught.value.errors[0]), worker) == (
        """[C1] all_reduce #1 of group WORLD: rank 0 waits for ranks 1-2
  waiting rank 0: all_reduce([4], torch.float32, sum) at 2 us, at FILE+11: dist.all_reduce(ones())
  missing rank 1 returned at FILE+4: return; it called none
  missing rank 2 waits in message #1 of group WORLD: recv([4], torch.float32, from rank 1, tag 0) at 2 us, at FILE+6: dist.recv(ones(), 1); it called none
  on the way: ranks 3-5, at FILE+10: dist.barrier(busy)
  hint: every rank of a group must call the collective; look for a branch on the rank, or a loop with fewer turns"""
    )
