"""Whoever is timed alone is timed anew when company comes: as if all had used the network."""

import pytest
from ccl_machine import own_algorithm, ring, submit

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.ccl.plan import NOTHING, Comm
from kernbench.operations.copies import PeerCopy
from kernbench.sim_engine.command import Command, Stream
from kernbench.sim_engine.dials import Fidelity
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.host import Host
from kernbench.testing import Kernbench
from kernbench.topology import load_topology


def push(comm: Comm) -> None:
    """Rank 0 gives everything to rank 1, as fast as its first link takes it."""
    for chunk in range(comm.world_size):
        comm.exchange(
            send=chunk if comm.rank == 0 else NOTHING,
            to=1,
            receive=chunk if comm.rank == 1 else NOTHING,
            source=0,
            combine="copy",
        )


@pytest.mark.parametrize("launch", ["0 ns", "100 ns", "2 us"])
@pytest.mark.parametrize("slots", [1, 4, 16])
@pytest.mark.parametrize("count", [1, 1_000, 8_000, 30_000])
def test_a_sender_is_done_while_its_messages_queue_up_before_a_slow_link(
    launch: str, slots: int, count: int
) -> None:
    machine = load_topology("sip8", [f"system.sip.collective_launch={launch}"]).topology_obj
    chosen = own_algorithm(push, f"algorithms.ring_allreduce_tcm.n_slots={slots}")

    def ends(fidelity: Fidelity) -> list[int | None]:
        engine = GraphEngine(machine, enable_data=False, fidelity=fidelity)
        commands = submit(engine, chosen, [0, 1], count, 3, [0, 9_000])
        engine.loop.run()
        assert not engine.network.claims
        return [command.done.time for command in commands]

    assert ends("kernel") == ends("tile")


@pytest.mark.parametrize("part", [0.0, 0.3, 0.7, 1.0, 1.1])
def test_a_copy_holds_its_links_until_its_last_byte_has_come(part: float) -> None:
    # The copy is one chunk, so all of its times are known as soon as it begins.
    overrides = ["system.sip.collective_launch=0 ns", "system.sips.network.chunk=1 MiB"]
    machine, begin = load_topology("sip8", overrides).topology_obj, 1_000_000

    def ends(fidelity: Fidelity, later: float) -> tuple[int, list[int]]:
        engine = GraphEngine(machine, enable_data=False, fidelity=fidelity)
        host = Host(engine.loop, -1, engine.rank_owner(-1), begin, 64)
        work = PeerCopy(engine, 0, 1, 500_000, lambda: None)
        copy = Command("copy", "copy", host, Stream("c", 0), work)
        engine.submit(copy)
        commands = list[Command]()

        def issue() -> None:
            starts = [engine.loop.now + 9_000 * sip for sip in range(3)]
            commands.extend(submit(engine, ring(), [0, 1, 2], 4_096, 1, starts))

        engine.loop.at(begin + int(later), engine.rank_owner(0), issue)
        engine.loop.run()
        assert not engine.network.claims
        return (copy.done.time or 0) - begin, [one.done.time or 0 for one in commands]

    lasting, _ = ends("tile", 1e9)
    assert lasting > 10_000_000
    assert ends("kernel", part * lasting) == ends("tile", part * lasting)


def test_the_second_in_line_meets_company_before_the_first_is_over(kernbench: Kernbench) -> None:
    """The gather is alone on 1 -> 2; the all-reduce behind it meets the messages of 0 and 2."""

    def worker(rank: int) -> None:
        dist.init_process_group("ccl")
        pair = dist.new_group([1, 2])
        mine, got = torch.ones(2, device="cuda"), torch.empty(2, device="cuda")
        if rank != 1:
            torch.ones(2, device="cuda")
            other = 2 - rank
            both = [dist.P2POp(dist.isend, mine, other), dist.P2POp(dist.irecv, got, other)]
            for work in dist.batch_isend_irecv(both):
                work.wait()
        if rank:
            parts = [torch.empty(2, device="cuda") for _ in range(2)] if rank == 2 else None
            dist.gather(mine, parts, dst=2, group=pair)
            dist.all_reduce(mine, group=pair)
            assert mine.tolist() == [2, 2]
        dist.destroy_process_group()

    def times(fidelity: Fidelity) -> list[tuple[int, str, int, int]]:
        log = kernbench.spawn(worker, nprocs=3, fidelity=fidelity, record="full").engine.op_log
        commands = [c for c in log.records if c.category == "collective"]
        return sorted((c.rank, c.name, c.start, c.end) for c in commands)

    assert times("kernel") == times("tile")
    assert times("kernel")
