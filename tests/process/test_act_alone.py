"""A command without blocks takes the time that `act` gives it, whichever way it is issued."""

import random
from typing import Any

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.process.act import Alone, act
from kernbench.process.process import current_process
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine, Hold
from kernbench.topology import load_topology

HALF = 30


def moments(
    seed: int, *, plainly: bool, streams: int, later: int = 0, records: bool = False
) -> tuple[list[int], Any]:
    """Returns the host's clock after each of many steps of two ranks, and what the log counts.

    Args:
        seed: Of the steps.
        plainly: Whether commands are issued by `act`.
        streams: Number of streams from the start.
        later: Number of streams that are made half-way.
        records: Whether every record is kept from half-way on.
    """
    engine = GraphEngine(load_topology("sip8").topology_obj, enable_data=False)
    clocks: list[int] = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        chance = random.Random(seed)  # the same steps in both ranks, of other lengths
        process = current_process()
        device = engine.devices[process.device_index]
        alone = Alone(process, "compute", device.compute)
        lines = [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(streams - 1))]
        blocks = {line: torch.ones(4096, device="cuda") for line in lines}
        torch.cuda.synchronize()
        for number in range(60):
            if number == HALF:
                lines += [torch.cuda.Stream() for _ in range(later)]
                for line in lines[streams:]:
                    with torch.cuda.stream(line):
                        blocks[line] = torch.ones(4096, device="cuda")
                if records:
                    engine.op_log.keep_records()
            with torch.cuda.stream(chance.choice(lines)):
                step, duration = chance.random(), chance.randrange(1, 30_000_000) * (rank + 1)
                stream = process.current_stream(process.device_index)
                if step < 0.7 and plainly:
                    hold = Hold(engine, device.compute, duration, None)
                    act(process, "operation", "compute", stream, hold)
                elif step < 0.7:
                    alone.issue("operation", stream, duration)
                elif step < 0.85:
                    blocks[torch.cuda.current_stream()].mul_(2)
                elif step < 0.93:
                    dist.all_reduce(blocks[torch.cuda.current_stream()])
                else:
                    torch.cuda.current_stream().synchronize()
            clocks.append(process.host.clock)
        torch.cuda.synchronize()
        clocks.append(process.host.clock)

    with RuntimeContext(engine=engine, quiet=True) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
    totals = {key: (each.count, each.busy_ps) for key, each in engine.op_log.totals.items()}
    kept = sorted(
        (each.rank, each.start, each.end, each.issued, each.name, each.track)
        for each in engine.op_log.records
    )
    return sorted(clocks), (totals, kept)


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_both_ways_take_the_same_time(seed: int, streams: int) -> None:
    quick = moments(seed, plainly=False, streams=streams)
    assert quick == moments(seed, plainly=True, streams=streams)


@pytest.mark.parametrize("seed", range(5))
def test_a_stream_that_comes_while_commands_wait_takes_its_turn(seed: int) -> None:
    quick = moments(seed, plainly=False, streams=1, later=1)
    assert quick == moments(seed, plainly=True, streams=1, later=1)


@pytest.mark.parametrize("seed", range(3))
def test_records_are_those_of_both_ways(seed: int) -> None:
    _, (_, quick) = moments(seed, plainly=False, streams=1, records=True)
    _, (_, plain) = moments(seed, plainly=True, streams=1, records=True)
    assert [each for each in plain if each not in quick] == []
    assert quick == plain
