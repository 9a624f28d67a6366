"""Calls that are refused at once: the full text that the rank gets."""

# mypy: disable-error-code="arg-type"

# ruff: noqa: E501 - texts as users see them

import pytest
from goldens import Case, Cases, ones

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.testing import Kernbench

CASES = Cases()

shared: list[dist.ProcessGroup] = []
"""What a rank hands to another one in a way that real processes could not."""


@CASES.add(
    3,
    (
        (1,),
        """
[C6] rank 1: all_reduce: bxor is not defined on backend nccl
  call #1 of group WORLD at 2 us, at FILE+3: dist.all_reduce(ones(dtype=torch.int32), dist.ReduceOp.BXOR)
  hint: nccl has sum, product, min, max, avg, premul_sum; gloo has sum, product, min, max, avg, band, bor, bxor; ccl has sum, product, min, max, avg, band, bor, bxor, premul_sum
""",
    ),
)
def c6_nccl(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.all_reduce(ones(dtype=torch.int32), dist.ReduceOp.BXOR)


@CASES.add(
    3,
    (
        (1,),
        """
[C6] rank 1: reduce: bxor is not defined for torch.float32 on backend ccl
  call #1 of group WORLD at 2 us, at FILE+3: dist.reduce(ones(), 0, dist.ReduceOp.BXOR)
  hint: bxor takes int64, int32, int16, int8, uint8, bool there: convert the tensor with .to() first
""",
    ),
)
def c6_dtype(rank: int) -> None:
    dist.init_process_group("ccl")
    if rank == 1:
        dist.reduce(ones(), 0, dist.ReduceOp.BXOR)


@CASES.add(
    3,
    (
        (1,),
        """
[C6] rank 1: all_reduce: premul_sum(2) is not defined on backend gloo
  call #1 of group WORLD at 2 us, at FILE+3: dist.all_reduce(ones(), dist.ReduceOp.PREMUL_SUM(2))
  hint: nccl has sum, product, min, max, avg, premul_sum; gloo has sum, product, min, max, avg, band, bor, bxor; ccl has sum, product, min, max, avg, band, bor, bxor, premul_sum
""",
    ),
)
def c6_gloo(rank: int) -> None:
    dist.init_process_group("gloo")
    if rank == 1:
        dist.all_reduce(ones(), dist.ReduceOp.PREMUL_SUM(2))


@CASES.add(
    3,
    (
        (1,),
        """
[C6] rank 1: all_reduce: sum is not defined for torch.float8_e5m2 on backend gloo
  call #1 of group WORLD at 4 us, at FILE+3: dist.all_reduce(torch.ones(2).to(torch.float8_e5m2))
  hint: sum takes float64, float32, float16, bfloat16, int64, int32, int8, uint8, bool, complex64, complex128 there: convert the tensor with .to() first
""",
    ),
)
def c6_eight_bits(rank: int) -> None:
    dist.init_process_group("gloo")
    if rank == 1:
        dist.all_reduce(torch.ones(2).to(torch.float8_e5m2))


@CASES.add(
    3,
    (
        (1,),
        """
[C6] rank 1 called broadcast on a tensor of torch.int16, which it is not defined for on backend nccl
  call #1 of group WORLD at 2 us, at FILE+3: dist.broadcast(ones(dtype=torch.int16), 1)
  hint: convert the tensor first, or send its bytes: broadcast of tensor.view(torch.uint8)
""",
    ),
)
def c6_type_that_is_not_moved(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.broadcast(ones(dtype=torch.int16), 1)


@CASES.add(
    3,
    (
        (1,),
        """
[C6] rank 1 called gather on a tensor of torch.complex64, which it is not defined for on backend gloo
  call #1 of group WORLD at 2 us, at FILE+3: dist.gather(ones(dtype=torch.complex64))
  hint: gather of torch.view_as_real(tensor)
""",
    ),
)
def c6_gather_of_complex(rank: int) -> None:
    dist.init_process_group("gloo")
    if rank == 1:
        dist.gather(ones(dtype=torch.complex64))


@CASES.add(
    3,
    (
        (1,),
        """
[C6] rank 1 called send on a tensor of torch.int16, which it is not defined for on backend nccl
  call #1 of group WORLD at 2 us, at FILE+3: dist.send(ones(dtype=torch.int16), 0)
  hint: convert the tensor first, or send its bytes: send of tensor.view(torch.uint8)
""",
    ),
)
def c6_message(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.send(ones(dtype=torch.int16), 0)


@CASES.add(
    3,
    (
        (1,),
        """
[C6] rank 1: all_reduce does not support RedOpType.MAX on complex tensors
  call #1 of group WORLD at 2 us, at FILE+3: dist.all_reduce(ones(dtype=torch.complex64), dist.ReduceOp.MAX)
  got a tensor of torch.complex64
  hint: complex numbers travel as their parts: sum, avg and premul_sum take them
""",
    ),
)
def c6_complex(rank: int) -> None:
    dist.init_process_group("ccl")
    if rank == 1:
        dist.all_reduce(ones(dtype=torch.complex64), dist.ReduceOp.MAX)


@CASES.add(
    2,
    (
        (1,),
        """
[C12] rank 1 called all_gather_coalesced with output_tensor_lists that do not fit
  call #1 of group WORLD at 6 us, at FILE+4: dist.all_gather_coalesced(lists, [ones()])
  needed 2 lists, one for each rank of group WORLD, of tensors of [4] elements; got [[4], [3]]
  hint: make each list like the inputs: [torch.empty_like(x) for x in inputs]
""",
    ),
)
def c12_coalesced(rank: int) -> None:
    dist.init_process_group("nccl")
    lists = [[ones()], [ones(3)]]
    if rank == 1:
        dist.all_gather_coalesced(lists, [ones()])


@CASES.add(
    2,
    (
        (1,),
        """
rank 1 called all_reduce_coalesced with tensors that is no list of tensors
  call #1 of group WORLD at 0 ps, at FILE+3: dist.all_reduce_coalesced([])
  got []
""",
    ),
)
def coalesced_nothing(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.all_reduce_coalesced([])


@CASES.add(
    3,
    (
        (1,),
        """
[C6] rank 1: all_reduce: ReduceOp.PREMUL_SUM needs a factor
  call #1 of group WORLD at 2 us, at FILE+3: dist.all_reduce(ones(), dist.ReduceOp.PREMUL_SUM)
  hint: call ReduceOp.PREMUL_SUM(factor), and use its result
""",
    ),
)
def c6_factor(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.all_reduce(ones(), dist.ReduceOp.PREMUL_SUM)


@CASES.add(
    3,
    (
        (1,),
        """
[C6] rank 1: all_reduce: a builtin_function_or_method is no reduce operation
  call #1 of group WORLD at 2 us, at FILE+3: dist.all_reduce(ones(), max)
  hint: use one of torch.distributed.ReduceOp
""",
    ),
)
def c6_none(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.all_reduce(ones(), max)


@CASES.add(
    3,
    (
        (1,),
        """
[C7] rank 1 called broadcast(src=3): group WORLD has no such rank
  call #1 of group WORLD at 2 us, at FILE+3: dist.broadcast(ones(), 3)
  src= is a global rank: expected ranks 0-2
  hint: ranks are counted from 0
""",
    ),
)
def c7_range(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.broadcast(ones(), 3)


@CASES.add(
    3,
    (
        (2,),
        """
[C7] rank 2 called reduce(dst=0): group G1{1-2} has no such rank
  call #1 of group G1{1-2} at 2 us, at FILE+4: dist.reduce(ones(), 0, group=g)
  dst= is a global rank: expected ranks 1-2
  hint: group_dst= takes ranks in the group
""",
    ),
)
def c7_member(rank: int) -> None:
    dist.init_process_group("nccl")
    g = dist.new_group([1, 2])
    if rank == 2:
        dist.reduce(ones(), 0, group=g)


@CASES.add(
    3,
    (
        (2,),
        """
[C7] rank 2 called scatter(group_src=2): group G1{1-2} has no such rank
  call #1 of group G1{1-2} at 2 us, at FILE+4: dist.scatter(ones(), group_src=2, group=g)
  group_src= is a rank in the group: expected 0..1
  hint: src= takes global ranks
""",
    ),
)
def c7_group(rank: int) -> None:
    dist.init_process_group("nccl")
    g = dist.new_group([1, 2])
    if rank == 2:
        dist.scatter(ones(), group_src=2, group=g)


@CASES.add(
    3,
    (
        (1,),
        """
[C7] rank 1 called broadcast with both of src= and group_src=
  call #1 of group WORLD at 2 us, at FILE+3: dist.broadcast(ones(), 0, group_src=0)
  expected one of them
  hint: src= takes global ranks, group_src= ranks in the group
""",
    ),
)
def c7_both(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.broadcast(ones(), 0, group_src=0)


@CASES.add(
    3,
    (
        (1,),
        """
[C7] rank 1 called reduce with neither of dst= and group_dst=
  call #1 of group WORLD at 2 us, at FILE+3: dist.reduce(ones())
  expected one of them
  hint: dst= takes global ranks, group_dst= ranks in the group
""",
    ),
)
def c7_none(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.reduce(ones())


@CASES.add(
    3,
    (
        (0,),
        """
[C8] rank 0 called get_process_group_ranks on a group that it is not in (NON_GROUP_MEMBER)
  at 0 ps, at FILE+5: dist.get_process_group_ranks(b)
  not in G1{1-2}; group G1{1-2} was made by rank 0 at FILE+2: dist.new_group([1, 2])
  not in G2{2}; group G2{2} was made by rank 0 at FILE+3: b = dist.new_group([2])
  hint: call it on the members only: `if group != GroupMember.NON_GROUP_MEMBER:`
""",
    ),
)
def c8(rank: int) -> None:
    dist.init_process_group("nccl")
    dist.new_group([1, 2])
    b = dist.new_group([2])
    if rank == 0:
        dist.get_process_group_ranks(b)


@CASES.add(
    3,
    (
        (1,),
        """
[C8] rank 1 called all_reduce on group G1{0,2}, which it is not in
  at 8.249 us, at FILE+7: dist.all_reduce(ones(), group=shared.pop())
  group G1{0,2} was made by rank 1 at FILE+2: g = dist.new_group([0, 2])
  hint: call it on the members only: `if dist.get_rank(group) >= 0:`
""",
    ),
)
def c8_shared(rank: int) -> None:
    dist.init_process_group("nccl")
    g = dist.new_group([0, 2])
    if rank == 0:
        shared.append(g)
    dist.barrier()
    if rank == 1:
        dist.all_reduce(ones(), group=shared.pop())


@CASES.add(
    3,
    (
        (1,),
        """
[C9] rank 1 called barrier on group G1{0-1} before it made the group itself
  call #1 of group G1{0-1} at 6.249 us, at FILE+6: dist.barrier(shared[0])
  group G1{0-1} was made by rank 0 at FILE+3: shared.append(dist.new_group([0, 1]))
  hint: every rank calls new_group() for every group, and uses its own result
""",
    ),
)
def c9_early(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank != 1:
        shared.append(dist.new_group([0, 1]))
    dist.barrier()
    if rank == 1:
        dist.barrier(shared[0])


@CASES.add(
    3,
    (
        (1,),
        """
[C12] rank 1 called all_gather with 2 tensors in tensor_list
  call #1 of group WORLD at 6 us, at FILE+3: dist.all_gather([ones(), ones()], ones())
  needed 3, one for each rank of group WORLD; got 2
  hint: make the list with one entry for each of dist.get_world_size(group)
""",
    ),
)
def c12_list(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.all_gather([ones(), ones()], ones())


@CASES.add(
    3,
    (
        (1,),
        """
[C12] rank 1 called all_gather with tensor_list[1] of 2 elements
  call #1 of group WORLD at 8 us, at FILE+3: dist.all_gather([ones(), ones(2), ones()], ones())
  needed 4, as many as the tensor [4] of this rank; got [2]
  hint: make it like the tensor, or give a tensor like tensor_list[1]
""",
    ),
)
def c12_block(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.all_gather([ones(), ones(2), ones()], ones())


@CASES.add(
    3,
    (
        (1,),
        """
[C12] rank 1 called all_gather_into_tensor with an output of 8 elements
  call #1 of group WORLD at 4 us, at FILE+3: dist.all_gather_into_tensor(ones(8), ones(4))
  needed 12 = 3 ranks x 4 of the input [4]; got [8]
  hint: make the output 3 times as large as the input
""",
    ),
)
def c12_into(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.all_gather_into_tensor(ones(8), ones(4))


@CASES.add(
    3,
    (
        (1,),
        """
[C12] rank 1 called reduce_scatter_tensor with an input of 5 elements
  call #1 of group WORLD at 4 us, at FILE+3: dist.reduce_scatter_tensor(ones(2), ones(5))
  needed 6 = 3 ranks x 2 of the output [2]; got [5]
  hint: make the input 3 times as large as the output
""",
    ),
)
def c12_rs(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.reduce_scatter_tensor(ones(2), ones(5))


@CASES.add(
    3,
    (
        (1,),
        """
[C12] rank 1 called gather with a gather_list, but dst=0 has it
  call #1 of group WORLD at 4 us, at FILE+3: dist.gather(ones(), [ones()] * 3, dst=0)
  hint: give gather_list on that rank only
""",
    ),
)
def c12_gather(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.gather(ones(), [ones()] * 3, dst=0)


@CASES.add(
    3,
    (
        (0,),
        """
rank 0 called gather with gather_list of type NoneType
  call #1 of group WORLD at 2 us, at FILE+3: dist.gather(ones(), None, dst=0)
  expected a list of tensors
""",
    ),
)
def c12_gather2(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 0:
        dist.gather(ones(), None, dst=0)


@CASES.add(
    3,
    (
        (1,),
        """
[C12] rank 1 called all_to_all_single with an input that cannot be split
  call #1 of group WORLD at 4 us, at FILE+3: dist.all_to_all_single(ones(6), ones(5))
  needed a number of rows that 3 ranks can share, or input_split_sizes; got shape [5]
  hint: split sizes count rows, one number for each rank of the group
""",
    ),
)
def c12_splits(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.all_to_all_single(ones(6), ones(5))


@CASES.add(
    3,
    (
        (1,),
        """
[C12] rank 1 called all_to_all_single with an input that cannot be split
  call #1 of group WORLD at 4 us, at FILE+3: dist.all_to_all_single(ones(6), ones(6), None, [1, 2, 2])
  needed 3 sizes that add up to 6 rows; got shape [6], input_split_sizes=[1, 2, 2]
  hint: split sizes count rows, one number for each rank of the group
""",
    ),
)
def c12_splits2(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.all_to_all_single(ones(6), ones(6), None, [1, 2, 2])


@CASES.add(
    3,
    (
        (1,),
        """
[C4] rank 1 called all_gather with tensors of different dtypes
  call #1 of group WORLD at 4 us, at FILE+3: dist.all_gather([ones(dtype=torch.float16)] * 3, ones())
  got torch.float32 and torch.float16
  hint: convert them to one with .to()
""",
    ),
)
def c4_lists(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.all_gather([ones(dtype=torch.float16)] * 3, ones())


@CASES.add(
    3,
    (
        (1,),
        """
[C13] rank 1 destroys WORLD while 1 operation is pending
  at 4 us, at FILE+4: dist.destroy_process_group()
  all_reduce #1 of group WORLD was issued at 2 us, at FILE+2: work = dist.all_reduce(ones(), async_op=True)
  hint: call work.wait() first
""",
    ),
)
def c13(rank: int) -> None:
    dist.init_process_group("nccl")
    work = dist.all_reduce(ones(), async_op=True)
    if rank == 1:
        dist.destroy_process_group()
    work.wait()
    torch.cuda.synchronize()


@CASES.add(
    3,
    (
        (1,),
        """
[C14] rank 1 wrote a tensor before all_reduce on it was waited for
  at 4 us, at FILE+5: x.zero_()
  all_reduce #1 of group WORLD was issued at 2 us, at FILE+3: work = dist.all_reduce(x, async_op=True)
  all_reduce runs on the communication stream, the write on the default stream
  tensor [4] torch.float32, bytes 0..16 of 16: write after write
  hint: call work.wait() first
""",
    ),
)
def c14(rank: int) -> None:
    dist.init_process_group("nccl")
    x = ones()
    work = dist.all_reduce(x, async_op=True)
    if rank == 1:
        x.zero_()
    work.wait()


@CASES.add(
    3,
    (
        (1,),
        """
[C15] rank 1 read a tensor before all_gather_into_tensor on it was waited for
  at 6 us, at FILE+5: y.numpy()
  all_gather_into_tensor #1 of group WORLD was issued at 4 us, at FILE+3: work = dist.all_gather_into_tensor(y, x, async_op=True)
  all_gather_into_tensor runs on the communication stream, the read on the default stream
  tensor [12] torch.float32, bytes 0..48 of 48: read after write
  hint: call work.wait() first
""",
    ),
)
def c15(rank: int) -> None:
    dist.init_process_group("nccl")
    x, y = ones(), ones(12)
    work = dist.all_gather_into_tensor(y, x, async_op=True)
    if rank == 1:
        y.numpy()
    work.wait()


@CASES.add(
    2,
    (
        (1,),
        """
[C14] rank 1 wrote a tensor before all_gather_into_tensor on it was waited for
  at 10 us, at FILE+6: x.add_(1)
  all_gather_into_tensor #1 of group WORLD was issued at 6 us, at FILE+3: work = dist.all_gather_into_tensor(y, x, async_op=True)
  all_gather_into_tensor runs on the communication stream, the write on the default stream
  tensor [4] torch.float32, bytes 0..16 of 16: write after read
  hint: call work.wait() first
""",
    ),
)
def c14_read_on_two_streams(rank: int) -> None:
    dist.init_process_group("nccl")
    x, y, z = ones(), ones(8), ones(8)
    work = dist.all_gather_into_tensor(y, x, async_op=True)
    dist.all_gather_into_tensor(z, x)
    if rank == 1:
        x.add_(1)
    work.wait()


@CASES.add(
    2,
    (
        (1,),
        """
[C15] rank 1 read a tensor before recv on it was waited for
  at 12 us, at FILE+7: b.tolist()
  recv #2 of group WORLD was issued at 8 us, at FILE+4: first, second = (dist.batch_isend_irecv([dist.P2POp(op, x, 1 - rank)])[0] for x in (a, b))
  recv runs on the stream of message 0 of batches, the read on the default stream
  tensor [4] torch.float32, bytes 0..16 of 16: read after write
  hint: call work.wait() first
""",
    ),
)
def c15_waited_for_an_earlier_batch(rank: int) -> None:
    dist.init_process_group("nccl")
    a, b = ones(), ones()
    op = dist.irecv if rank == 1 else dist.isend
    first, second = (dist.batch_isend_irecv([dist.P2POp(op, x, 1 - rank)])[0] for x in (a, b))
    first.wait()
    if rank == 1:
        b.tolist()
    second.wait()


@CASES.add(
    1,
    (
        (0,),
        """
[C18] rank 0 called all_reduce without an initialised process group
  at 2 us, at FILE+1: dist.all_reduce(ones())
  hint: call torch.distributed.init_process_group() in every worker first
""",
    ),
)
def c18_early(rank: int) -> None:
    dist.all_reduce(ones())


@CASES.add(
    1,
    (
        (0,),
        """
[C18] rank 0 called init_process_group twice
  at 0 ps, at FILE+2: dist.init_process_group("nccl")
  hint: call destroy_process_group in between
""",
    ),
)
def c18_twice(rank: int) -> None:
    dist.init_process_group("nccl")
    dist.init_process_group("nccl")


@CASES.add(
    2,
    (
        (1,),
        """
[C18] init_process_group(world_size=8) on rank 1
  at 0 ps, at FILE+1: dist.init_process_group("nccl", world_size=8 if rank else 2)
  expected one of -1, 2
  hint: spawn as many ranks, or leave it out
""",
    ),
)
def c18_world_size(rank: int) -> None:
    dist.init_process_group("nccl", world_size=8 if rank else 2)


@CASES.add(
    1,
    (
        (0,),
        """
[C18] rank 0 called get_rank: Default process group has not been initialized, please make sure to call init_process_group.
  at 0 ps, at FILE+3: dist.get_rank()
  destroyed at FILE+2: dist.destroy_process_group()
  hint: ask before destroy_process_group()
""",
    ),
)
def c18_rank(rank: int) -> None:
    dist.init_process_group("nccl")
    dist.destroy_process_group()
    dist.get_rank()


@CASES.add(
    1,
    (
        (0,),
        """
[C18] rank 0 called all_reduce without an initialised process group
  at 2 us, at FILE+3: dist.all_reduce(ones())
  destroyed at FILE+2: dist.destroy_process_group()
  hint: call torch.distributed.init_process_group() again first
""",
    ),
)
def c18_destroyed(rank: int) -> None:
    dist.init_process_group("nccl")
    dist.destroy_process_group()
    dist.all_reduce(ones())


@CASES.add(
    2,
    (
        (0,),
        """
[C18] rank 0 called barrier on group G1{0-1}, which it has destroyed
  call #1 of group G1{0-1} at 0 ps, at FILE+4: dist.barrier(g)
  destroyed at FILE+3: dist.destroy_process_group(g)
  group G1{0-1} was made by rank 0 at FILE+2: g = dist.new_group([0, 1])
  hint: destroy a group after its last use
""",
    ),
    (
        (1,),
        """
[C18] rank 1 called barrier on group G1{0-1}, which it has destroyed
  call #1 of group G1{0-1} at 0 ps, at FILE+4: dist.barrier(g)
  destroyed at FILE+3: dist.destroy_process_group(g)
  group G1{0-1} was made by rank 1 at FILE+2: g = dist.new_group([0, 1])
  hint: destroy a group after its last use
""",
    ),
)
def c18_group(rank: int) -> None:
    dist.init_process_group("nccl")
    g = dist.new_group([0, 1])
    dist.destroy_process_group(g)
    dist.barrier(g)


@CASES.add(
    2,
    (
        (0,),
        """
[C18] rank 0 called destroy_process_group on group G1{0-1}, which it has destroyed
  call #1 of group G1{0-1} at 0 ps, at FILE+4: dist.destroy_process_group(g)
  destroyed at FILE+3: dist.destroy_process_group(g)
  group G1{0-1} was made by rank 0 at FILE+2: g = dist.new_group([0, 1])
  hint: destroy a group after its last use
""",
    ),
    (
        (1,),
        """
[C18] rank 1 called destroy_process_group on group G1{0-1}, which it has destroyed
  call #1 of group G1{0-1} at 0 ps, at FILE+4: dist.destroy_process_group(g)
  destroyed at FILE+3: dist.destroy_process_group(g)
  group G1{0-1} was made by rank 1 at FILE+2: g = dist.new_group([0, 1])
  hint: destroy a group after its last use
""",
    ),
)
def c18_destroy_twice(rank: int) -> None:
    dist.init_process_group("nccl")
    g = dist.new_group([0, 1])
    dist.destroy_process_group(g)
    dist.destroy_process_group(g)


@CASES.add(
    3,
    (
        (1,),
        """
rank 1 called all_reduce on a tensor on cpu: No backend type associated with device type cpu
  call #1 of group WORLD at 0 ps, at FILE+3: dist.all_reduce(torch.ones(2, device="cpu"))
  group WORLD has the backend nccl, for tensors on cuda:1
  hint: move it with .to('cuda:1') first, or use the backend 'cpu:gloo,cuda:nccl'
""",
    ),
)
def tensors_host(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.all_reduce(torch.ones(2, device="cpu"))


@CASES.add(
    2,
    (
        (0,),
        """
rank 0 called all_reduce on a tensor on cuda:2
  at 2 us, at FILE+3: dist.all_reduce(ones())
  expected one on cuda:0
  hint: move it with .to('cuda:0') first: rank r has the r-th device
""",
    ),
    (
        (1,),
        """
rank 1 called all_reduce on a tensor on cuda:3
  at 2 us, at FILE+3: dist.all_reduce(ones())
  expected one on cuda:1
  hint: move it with .to('cuda:1') first: rank r has the r-th device
""",
    ),
)
def tensors_elsewhere(rank: int) -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank + 2)
    dist.all_reduce(ones())


@CASES.add(
    3,
    (
        (1,),
        """
rank 1 called all_reduce on a tensor that is not contiguous
  at 2 us, at FILE+3: dist.all_reduce(ones(2, 3).t())
  shape [3, 2], strides [1, 3]
  hint: call .contiguous() first, and use its result
""",
    ),
)
def tensors_strided(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.all_reduce(ones(2, 3).t())


@CASES.add(
    3,
    (
        (1,),
        """
rank 1 called all_reduce with tensor of type list
  at 2 us, at FILE+3: dist.all_reduce([ones()])
  expected a tensor
""",
    ),
)
def tensors_kind(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.all_reduce([ones()])


@CASES.add(
    3,
    (
        (1,),
        """
all_reduce(group='tp'): expected a ProcessGroup or None
  at 2 us, at FILE+3: dist.all_reduce(ones(), group="tp")
""",
    ),
)
def group_kind(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.all_reduce(ones(), group="tp")


@CASES.add(
    3,
    (
        (1,),
        """
work.wait of an operation that is coalesced with others
  at FILE+5: w.wait()
  noted down at FILE+4: w = dist.all_reduce(ones(), async_op=True)
  hint: wait for all of them: `with _coalescing_manager(async_ops=True) as cm: ...`, then cm.wait()
""",
    ),
)
def coal(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        with dist._coalescing_manager():
            w = dist.all_reduce(ones(), async_op=True)
            w.wait()


@CASES.add(
    3,
    (
        (1,),
        """
_coalescing_manager: collectives of one kind only
  at FILE+3: with dist._coalescing_manager():
  got all_reduce max, all_reduce sum
""",
    ),
)
def coal_mixed(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        with dist._coalescing_manager():
            dist.all_reduce(ones())
            dist.all_reduce(ones(), dist.ReduceOp.MAX)


@CASES.add(
    3,
    (
        (1,),
        """
[C17] rank 1 holds 5 process groups; the limit is 4
  new_group #5 of the world: new_group([0, 1]) at 0 ps, at FILE+4: dist.new_group([0, 1])
  5 of them were made at FILE+4: dist.new_group([0, 1])
  hint: destroy groups after their last use, or make them in `with group_scope():`; --group-limit or group_limit= sets the limit
""",
    ),
)
def c17(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        for _ in range(5):
            dist.new_group([0, 1])


@CASES.add(
    2,
    (
        (0, 1),
        """
a group of ranks [0, 2]: rank 2 does not exist
  at FILE+5: dist.new_group([0, 2])
  expected ranks 0..1 of global numbering, each at most once
""",
    ),
)
def c9_by_list(rank: int) -> None:
    dist.init_process_group("nccl")
    try:
        dist.new_group([0, 0])
    except ValueError:
        dist.new_group([0, 2])


@CASES.add(
    3,
    (
        (1,),
        """
[C12] rank 1 called all_gather_object with 2 entries as object_list
  call #1 of group WORLD at 0 ps, at FILE+3: dist.all_gather_object([None] * 2, "x")
  needed a list of 3, one for each rank of group WORLD
  hint: make it [None] * dist.get_world_size(group)
""",
    ),
)
def c12_objects(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.all_gather_object([None] * 2, "x")


@CASES.add(
    3,
    (
        (1,),
        """
[C12] rank 1 called all_to_all_single with rows of different size
  call #1 of group WORLD at 4 us, at FILE+3: dist.all_to_all_single(ones(3, 2), ones(3, 4))
  input rows [4], output rows [2]
  hint: only the first dimension is split: make the others alike
""",
    ),
)
def c12_rows(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.all_to_all_single(ones(3, 2), ones(3, 4))


@CASES.add(
    3,
    (
        (1,),
        """
a tensor inside an object that goes to other ranks is not simulated
  at FILE+3: dist.all_gather_object([None] * 3, {"x": ones()})
  hint: send its values with .tolist(), or the tensor with a collective for tensors
""",
    ),
)
def objects_tensor(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.all_gather_object([None] * 3, {"x": ones()})


@CASES.add(
    3,
    (
        (1,),
        """
monitored_barrier is only implemented for GLOO backend.
  at FILE+3: dist.monitored_barrier()
  the backend is nccl
  hint: call barrier(): a rank that does not come is named in its report, too
""",
    ),
)
def monitored(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.monitored_barrier()


@CASES.add(
    3,
    (
        (1,),
        """
Mesh should not be bigger than default world size 3, but found 4 ranks!
  at FILE+3: dist.init_device_mesh("cuda", (2, 2))
""",
    ),
)
def mesh_small(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.init_device_mesh("cuda", (2, 2))


@CASES.add(
    3,
    (
        (1,),
        """
new_group(pg_options=) is not simulated
  at FILE+3: dist.new_group([0], pg_options=1)
""",
    ),
)
def unsupported(rank: int) -> None:
    dist.init_process_group("nccl")
    if rank == 1:
        dist.new_group([0], pg_options=1)


@pytest.mark.parametrize("case", CASES, ids=Case.name)
def test_every_rank_is_told_in_full(kernbench: Kernbench, case: Case) -> None:
    shared.clear()
    assert case.found(kernbench) == case.expected()
