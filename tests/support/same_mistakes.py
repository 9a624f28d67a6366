"""Mistakes that programs can make under both torches, and what each torch reports of them.

A mistake is a function of the module `torch` and the rank. It holds names of no torch, so that the
same lines run under both, and reports name the same file, line and column.
"""

import re
from collections.abc import Callable
from typing import Any

from kernbench.errors import KernbenchError
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext

Mistake = Callable[[Any, int], object]
"""What a rank does, given the module `torch`."""

MISTAKES: dict[str, tuple[Mistake, str, int]] = {}
"""Each mistake by its name: the ranks' function, the code, how many ranks."""


def _mistake(code: str, ranks: int = 2) -> Callable[[Mistake], Mistake]:
    def add(function: Mistake) -> Mistake:
        MISTAKES[function.__name__] = function, code, ranks
        return function

    return add


def _ones(torch: Any, *shape: int, **options: Any) -> Any:
    return torch.ones(*(shape or (1024,)), device="cuda", **options)


# Collectives


@_mistake("C1", 3)
def one_rank_returns_early(torch: Any, rank: int) -> None:
    x = _ones(torch)
    torch.distributed.all_reduce(x)
    if rank == 1:
        return
    torch.distributed.all_reduce(x)


@_mistake("C1")
def objects_of_one_rank_alone(torch: Any, rank: int) -> None:
    if rank:
        torch.distributed.all_gather_object([None, None], rank)


@_mistake("C2")
def another_collective(torch: Any, rank: int) -> None:
    x = _ones(torch)
    if rank:
        torch.distributed.broadcast(x, 0)
    else:
        torch.distributed.all_reduce(x)


@_mistake("C2")
def a_barrier_beside_objects(torch: Any, rank: int) -> None:
    if rank:
        torch.distributed.barrier()
    else:
        torch.distributed.all_gather_object([None, None], rank)


@_mistake("C3")
def another_shape(torch: Any, rank: int) -> None:
    torch.distributed.all_reduce(_ones(torch, 4 + rank))


@_mistake("C3")
def as_many_elements(torch: Any, rank: int) -> None:
    x = _ones(torch, 8, 4) if rank else _ones(torch, 4, 8)
    torch.distributed.all_reduce(x)


@_mistake("C4")
def another_dtype(torch: Any, rank: int) -> None:
    kind = torch.float16 if rank else torch.bfloat16
    torch.distributed.all_reduce(_ones(torch, 4, dtype=kind))


@_mistake("C5")
def another_reduction(torch: Any, rank: int) -> None:
    op = torch.distributed.ReduceOp.MAX if rank else torch.distributed.ReduceOp.SUM
    torch.distributed.all_reduce(_ones(torch, 4), op=op)


@_mistake("C6")
def a_reduction_that_nccl_lacks(torch: Any, rank: int) -> None:
    x = _ones(torch, 4, dtype=torch.int32)
    torch.distributed.all_reduce(x, op=torch.distributed.ReduceOp.BXOR)


@_mistake("C6")
def a_type_that_nccl_lacks(torch: Any, rank: int) -> None:
    torch.distributed.all_reduce(_ones(torch, 4, dtype=torch.int16))


@_mistake("C7")
def another_root(torch: Any, rank: int) -> None:
    torch.distributed.broadcast(_ones(torch, 4), src=rank)


@_mistake("C7")
def a_root_that_is_no_member(torch: Any, rank: int) -> None:
    torch.distributed.broadcast(_ones(torch, 4), src=7)


@_mistake("C9")
def other_members(torch: Any, rank: int) -> None:
    torch.distributed.new_group([0, 1] if rank else [0])


@_mistake("C9")
def a_group_made_by_one(torch: Any, rank: int) -> None:
    if rank:
        torch.distributed.new_group([0, 1])


@_mistake("C10")
def groups_in_crossing_order(torch: Any, rank: int) -> None:
    dist = torch.distributed
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    x = _ones(torch, 4)
    for group in (second, first) if rank else (first, second):
        dist.all_reduce(x, group=group)
        torch.cuda.synchronize()


@_mistake("C11")
def splits_that_differ(torch: Any, rank: int) -> None:
    out, given = _ones(torch, 4), _ones(torch, 4)
    torch.distributed.all_to_all_single(out, given, [2, 2], [1, 3] if rank else [3, 1])


@_mistake("C12")
def a_short_list(torch: Any, rank: int) -> None:
    torch.distributed.all_gather([_ones(torch, 4)], _ones(torch, 4))


@_mistake("C12")
def a_long_list(torch: Any, rank: int) -> None:
    given = [_ones(torch, 4) for _ in range(3)]
    torch.distributed.reduce_scatter(_ones(torch, 4), given)


@_mistake("C12")
def splits_that_do_not_add_up(torch: Any, rank: int) -> None:
    torch.distributed.all_to_all_single(_ones(torch, 4), _ones(torch, 4), [2, 2], [2, 3])


@_mistake("C4")
def a_buffer_of_another_type(torch: Any, rank: int) -> None:
    out = _ones(torch, 8, dtype=torch.float16)
    torch.distributed.all_gather_single(out, _ones(torch, 4))


@_mistake("C13")
def never_waited(torch: Any, rank: int) -> None:
    torch.distributed.all_reduce(_ones(torch, 4), async_op=True)


@_mistake("C14")
def written_before_the_wait(torch: Any, rank: int) -> None:
    x = _ones(torch)
    work = torch.distributed.all_reduce(x, async_op=True)
    x.zero_()
    work.wait()


@_mistake("C14")
def a_part_changed_before_the_wait(torch: Any, rank: int) -> None:
    x = _ones(torch)
    work = torch.distributed.all_reduce(x, async_op=True)
    x[10:20].add_(1)
    work.wait()


@_mistake("C14")
def a_copy_into_it_before_the_wait(torch: Any, rank: int) -> None:
    x, y = _ones(torch), _ones(torch)
    work = torch.distributed.all_reduce(x, async_op=True)
    x.copy_(y)
    work.wait()


@_mistake("C14")
def a_message_overwritten(torch: Any, rank: int) -> None:
    x = _ones(torch)
    if rank:
        torch.distributed.recv(x, 0)
    else:
        work = torch.distributed.isend(x, 1)
        x.mul_(2)
        work.wait()


@_mistake("C14")
def an_element_written_before_the_wait(torch: Any, rank: int) -> None:
    x = _ones(torch)
    work = torch.distributed.all_reduce(x, async_op=True)
    x[3] = 2.0
    work.wait()


@_mistake("C14")
def an_operand_of_a_step_before_the_wait(torch: Any, rank: int) -> None:
    x, y = _ones(torch), _ones(torch)
    work = torch.distributed.all_reduce(x, async_op=True)
    x += y
    work.wait()


@_mistake("C15")
def read_before_the_wait(torch: Any, rank: int) -> None:
    x = _ones(torch)
    work = torch.distributed.all_reduce(x, async_op=True)
    y = x + 1
    work.wait()
    del y


@_mistake("C15")
def a_part_read_before_the_wait(torch: Any, rank: int) -> None:
    x = _ones(torch)
    work = torch.distributed.all_reduce(x, async_op=True)
    y = x[:8] * 2
    work.wait()
    del y


@_mistake("C15")
def read_by_the_host_before_the_wait(torch: Any, rank: int) -> None:
    x = _ones(torch, 1)
    work = torch.distributed.all_reduce(x, async_op=True)
    x.item()
    work.wait()


@_mistake("C15")
def copied_to_the_host_before_the_wait(torch: Any, rank: int) -> None:
    x = _ones(torch)
    work = torch.distributed.all_reduce(x, async_op=True)
    x.cpu()
    work.wait()


@_mistake("C15")
def a_receipt_read_before_the_wait(torch: Any, rank: int) -> None:
    x = _ones(torch)
    if rank:
        work = torch.distributed.irecv(x, 0)
        y = x.sum()
        work.wait()
        del y
    else:
        torch.distributed.send(x, 1)


@_mistake("C14")
def given_again_before_the_wait(torch: Any, rank: int) -> None:
    x, out = _ones(torch), _ones(torch)
    work = torch.distributed.all_to_all_single(out, x, async_op=True)
    torch.distributed.all_reduce(out)
    work.wait()


# Messages


@_mistake("P1")
def a_message_that_nobody_sends(torch: Any, rank: int) -> None:
    if rank:
        torch.distributed.recv(_ones(torch, 4), 0)


@_mistake("P2")
def a_message_that_nobody_receives(torch: Any, rank: int) -> None:
    if rank == 0:
        torch.distributed.send(_ones(torch, 4), 1)


@_mistake("P4")
def a_circle_of_receives(torch: Any, rank: int) -> None:
    x = _ones(torch, 4)
    torch.distributed.recv(x, 1 - rank)
    torch.distributed.send(x, 1 - rank)


@_mistake("P4", 4)
def a_circle_of_four(torch: Any, rank: int) -> None:
    x = _ones(torch, 4)
    torch.distributed.recv(x, (rank - 1) % 4)
    torch.distributed.send(x, (rank + 1) % 4)


@_mistake("P7")
def a_message_of_another_size(torch: Any, rank: int) -> None:
    if rank:
        torch.distributed.recv(_ones(torch, 5), 0)
    else:
        torch.distributed.send(_ones(torch, 4), 1)


@_mistake("P9")
def no_such_peer(torch: Any, rank: int) -> None:
    if rank == 0:
        torch.distributed.send(_ones(torch, 4), 5)


# Memory


@_mistake("C14")
def an_output_before_the_wait(torch: Any, rank: int) -> None:
    x, y = _ones(torch), _ones(torch)
    work = torch.distributed.all_reduce(x, async_op=True)
    torch.add(y, y, out=x)
    work.wait()


@_mistake("C14")
def columns_before_the_wait(torch: Any, rank: int) -> None:
    x = _ones(torch, 8, 8)
    work = torch.distributed.all_reduce(x, async_op=True)
    x[:, 2].zero_()
    work.wait()


@_mistake("C15")
def both_operands_before_the_wait(torch: Any, rank: int) -> None:
    x, y = _ones(torch), _ones(torch)
    first = torch.distributed.all_reduce(x, async_op=True)
    second = torch.distributed.all_reduce(y, async_op=True)
    z = x * y
    first.wait()
    second.wait()
    del z


@_mistake("C15")
def the_source_of_a_copy_before_the_wait(torch: Any, rank: int) -> None:
    x, y = _ones(torch), _ones(torch)
    work = torch.distributed.all_reduce(x, async_op=True)
    y.copy_(x)
    work.wait()


@_mistake("C14")
def a_batch_overwritten(torch: Any, rank: int) -> None:
    dist = torch.distributed
    x, y = _ones(torch), _ones(torch)
    both = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
    works = dist.batch_isend_irecv(both)
    x.zero_()
    for work in works:
        work.wait()


@_mistake("M5")
def an_unwritten_tensor_given(torch: Any, rank: int) -> None:
    x = torch.empty(4, device="cuda") if rank else _ones(torch, 4)
    torch.distributed.all_reduce(x)


@_mistake("M5")
def an_unwritten_tensor_sent(torch: Any, rank: int) -> None:
    x = torch.empty(4, device="cuda")
    if rank:
        torch.distributed.recv(x, 0)
    else:
        torch.distributed.send(x, 1)


@_mistake("M5", 1)
def an_unwritten_tensor_used(torch: Any, rank: int) -> None:
    x = torch.empty(4, device="cuda")
    y = x + 1
    del y


@_mistake("M5", 1)
def a_tensor_written_in_part(torch: Any, rank: int) -> None:
    x = torch.empty(8, device="cuda")
    x[:4] = 1.0
    y = x * 2
    del y


@_mistake("M5", 1)
def an_unwritten_tensor_shown(torch: Any, rank: int) -> None:
    x = torch.empty(4, device="cuda")
    x.tolist()


@_mistake("M5", 1)
def an_unwritten_tensor_changed(torch: Any, rank: int) -> None:
    x = torch.empty(4, device="cuda")
    x.add_(1)


# Streams


@_mistake("M10", 1)
def read_on_a_stream_that_has_not_waited(torch: Any, rank: int) -> None:
    side, x = torch.cuda.Stream(), _ones(torch)
    with torch.cuda.stream(side):
        y = x * 2
    del y


@_mistake("M10", 1)
def a_side_stream_not_waited_for(torch: Any, rank: int) -> None:
    side, x = torch.cuda.Stream(), _ones(torch)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
    y + 1


@_mistake("M10", 1)
def written_while_a_side_stream_reads(torch: Any, rank: int) -> None:
    side, x = torch.cuda.Stream(), _ones(torch)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
    x.zero_()
    del y


@_mistake("M10", 1)
def parts_that_overlap(torch: Any, rank: int) -> None:
    side, x = torch.cuda.Stream(), _ones(torch, 8)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x[:5].mul_(2)
    x[4:].mul_(3)


@_mistake("M10", 1)
def an_event_recorded_too_early(torch: Any, rank: int) -> None:
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    event.record()
    x = _ones(torch)
    with torch.cuda.stream(side):
        side.wait_event(event)
        x.add_(1)


@_mistake("M10", 1)
def read_by_the_host_beside_a_stream(torch: Any, rank: int) -> None:
    side, x = torch.cuda.Stream(), _ones(torch, 1)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.mul_(2)
    x.item()


@_mistake("M10")
def reduced_on_a_stream_that_has_not_waited(torch: Any, rank: int) -> None:
    x, side = _ones(torch), torch.cuda.Stream()
    x.add_(1)
    with torch.cuda.stream(side):
        torch.distributed.all_reduce(x)


@_mistake("M10", 1)
def a_result_of_a_side_stream(torch: Any, rank: int) -> None:
    side, x = torch.cuda.Stream(), _ones(torch)
    y = _ones(torch)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.mul(x, 2.0, out=y)
    y.zero_()


@_mistake("M10", 1)
def a_stream_behind_another_event(torch: Any, rank: int) -> None:
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    x = _ones(torch)
    first.wait_stream(torch.cuda.current_stream())
    second.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(first):
        x.mul_(2)
    with torch.cuda.stream(second):
        y = x * 3
    del y


@_mistake("C14", 1)
def pinned_memory_written_during_a_copy(torch: Any, rank: int) -> None:
    host = torch.ones(4).pin_memory()
    there = host.to("cuda", non_blocking=True)
    host.zero_()
    del there


@_mistake("C15", 1)
def pinned_memory_read_during_a_copy(torch: Any, rank: int) -> None:
    x, host = _ones(torch, 4), torch.zeros(4).pin_memory()
    host.copy_(x, non_blocking=True)
    host.tolist()


@_mistake("M14")
def the_device_of_another_rank(torch: Any, rank: int) -> None:
    torch.ones(4, device=f"cuda:{1 - rank}")


def _worker(torch: Any, mistake: Mistake, ranks: int) -> Callable[[int], None]:
    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        torch.distributed.init_process_group(
            "nccl", init_method="tcp://x:1", rank=rank, world_size=ranks
        )
        mistake(torch, rank)

    return worker


def _told(spawn: Callable[..., object], torch: Any, mistake: Mistake, ranks: int) -> str:
    """Returns the report of a mistake; nothing if ranks run to their ends."""
    try:
        spawn(_worker(torch, mistake, ranks), nprocs=ranks)
    except (SpawnException, KernbenchError) as error:
        return str(error)
    return ""


def of_own_torch(mistake: Mistake, ranks: int) -> str:
    """Returns what `kernbench.torch` reports of a mistake; nothing if it finds none."""
    import kernbench.torch as torch

    spec = RunSpec(topology="h200x8", default_device="cpu")
    with RuntimeContext(spec, quiet=True) as ctx:
        return _told(ctx.multiprocessing.spawn, torch, mistake, ranks)


def of_real_torch(mistake: Mistake, ranks: int) -> str:
    """Returns what the bridge reports of a mistake of PyTorch, which must be installed."""
    import torch
    from bridge_devices import machine

    with machine():
        return _told(torch.multiprocessing.spawn, torch, mistake, ranks)


_OTHERWISE = (
    # Under PyTorch the host takes longer to issue an operation.
    (r" at \d[\d.]* (ps|ns|us|ms),?", " at TIME,"),
    # A report ends with where ranks without a mistake stood, and the options of the run.
    (r"\nranks? [\d, -]+ aborted.*", ""),
    (r"\nreplay:.*", ""),
)
"""What reports say otherwise under the two torches, though the facts are the same."""


def facts(report: str) -> str:
    """Returns a report without what differs between the two torches for other reasons."""
    for pattern, same in _OTHERWISE:
        report = re.sub(pattern, same, report)
    return report
