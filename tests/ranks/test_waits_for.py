"""The quick look whether somebody waits for a rank says what a look at all its commands says."""

import random

import pytest

from kernbench import torch
from kernbench.process.process import Process, current_process
from kernbench.ranks.meeting import Exchange
from kernbench.ranks.waiting import waits_for
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.torch import distributed as dist

RANKS = 4


def looked_at_all(process: Process) -> bool:
    """Looks at every command of a rank that is in the way of nobody by a call that it misses."""
    for commands in process.joined.values():
        for command in commands:
            joint = command.part.joint if isinstance(command.part, Exchange) else None
            if joint is not None and joint.arrived and not command.begun:
                return True
    return False


@pytest.mark.parametrize("seed", range(12))
def test_the_first_of_each_line_tells_of_all(seed: int) -> None:
    told: set[bool] = set()

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        groups = [dist.group.WORLD, dist.new_group(range(RANKS)), dist.new_group([0, 1])]
        draws, own = random.Random(seed), random.Random(seed * RANKS + rank)
        side, works = torch.cuda.Stream(), []
        tensors = [torch.ones(64, device="cuda") for _ in range(60)]
        torch.cuda.synchronize()
        for tensor in tensors:
            group, root = draws.choice(groups), draws.choice([0, 1])
            what, other = draws.choice(["all_reduce", "broadcast", "message"]), draws.random() < 0.3
            for _ in range(own.randrange(3)):
                torch.ones(own.choice([8, 1 << 16]), device="cuda").sum()
            if group is groups[2] and rank > 1:
                continue
            with torch.cuda.stream(side if other else torch.cuda.current_stream()):
                if what == "all_reduce":
                    works.append(dist.all_reduce(tensor, group=group, async_op=not other))
                elif what == "broadcast":
                    works.append(dist.broadcast(tensor, root, group=group, async_op=True))
                elif rank == root:
                    works.append(dist.isend(tensor, 1 - root))
                elif rank == 1 - root:
                    works.append(dist.irecv(tensor, root))
            if own.random() < 0.3 and works:
                work = works.pop(own.randrange(len(works)))
                if work is not None:
                    work.wait()
            if own.random() < 0.2:
                torch.cuda.synchronize()
            process = current_process()
            assert isinstance(process, Process)
            every = looked_at_all(process)
            told.add(every)
            # Besides commands it looks at calls that the rank has not made: it may say more.
            assert waits_for(process) or not every
        for work in works:
            if work is not None:
                work.wait()
        dist.destroy_process_group()

    with RuntimeContext(RunSpec(topology="sip8", data=False)) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=RANKS)
    assert told == {False, True}, "the draw was of one kind"
