"""What ranks are told when they wait for what can never happen: every rank's full text."""
# ruff: noqa: E501 - texts as users see them

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from report_text import failure, relative, views

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.des import Event
from kernbench.ranks.hidden_deadlocks import EagerWarning
from kernbench.ranks.reviewing import Reviewer
from kernbench.ranks.verdicts import RankDeadlockError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.sim_engine.engine import GraphEngine
from kernbench.testing import Kernbench
from kernbench.topology import Topology

JAM = """
from kernbench.ccl.plan import NOTHING

def all_reduce(comm):
    other = 1 - comm.rank
    comm.exchange(send=0, to=other, receive=NOTHING, source=0)
    comm.exchange(send=NOTHING, to=0, receive=0, source=other, combine="reduce")
"""

JAM_FILE = """
defaults:
  algorithm: jam
  n_slots: 2
algorithms:
  jam:
    module: jam
"""


def _x(rank: int, count: int = 4) -> torch.Tensor:
    dist.init_process_group("nccl")
    return torch.full((count,), float(rank), device="cuda")


def test_c1_names_the_missing_rank_and_where_it_returned(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = _x(rank)
        dist.all_reduce(x)
        if rank == 2:
            return
        dist.all_reduce(x)
        x.tolist()

    assert views(kernbench, worker, 4) == {
        (0, 1, 3): """\
CollectiveMismatchError: [C1] all_reduce #2 of group WORLD: ranks 0-1, 3 wait for rank 2
  waiting ranks 0-1, 3: all_reduce([4], torch.float32, sum) at 4 us, at FILE+5: dist.all_reduce(x)
  missing rank 2 returned at FILE+4: return; its last collective was #1, rank 2: all_reduce([4], torch.float32, sum) at 2 us, at FILE+2: dist.all_reduce(x)
  hint: every rank of a group must call the collective; look for a branch on the rank, or a loop with fewer turns""",
    }


@pytest.mark.parametrize("pair", [False, True])
def test_c1_of_a_group_that_everybody_has_destroyed(kernbench: Kernbench, pair: bool) -> None:
    """The root of a broadcast waits for nobody, so its rank is done with the group."""

    def worker(rank: int) -> None:
        x = _x(rank)
        group = dist.new_group([0, 1]) if pair else None
        if rank == 0:
            dist.broadcast(x, src=0, group=group)
        x.tolist()
        dist.destroy_process_group(group)

    name = "G1{0-1}" if pair else "WORLD"
    assert views(kernbench, worker, 2) == {
        (0,): f"""\
CollectiveMismatchError: [C1] broadcast #1 of group {name}: rank 0 waits for rank 1
  waiting rank 0: broadcast([4], torch.float32, src=0) at 2 us, at FILE+4: dist.broadcast(x, src=0, group=group)
  missing rank 1 destroyed the group at FILE+6: dist.destroy_process_group(group); it called none
  hint: every rank of a group must call the collective; look for a branch on the rank, or a loop with fewer turns""",
    }


def test_c10_two_groups_in_crossing_order(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = _x(rank)
        a, b = dist.new_group([0, 1, 2]), dist.new_group([0, 1])
        if rank == 0:
            dist.all_reduce(x, group=a)
            dist.all_reduce(x, group=b)
        elif rank == 1:
            dist.all_reduce(x, group=b)
            dist.all_reduce(x, group=a)
        elif rank == 2:
            dist.all_reduce(x, group=a)
        x.tolist()

    assert views(kernbench, worker, 4) == {
        (0,): """\
RankDeadlockError: [C10] groups are used in crossing order: 0 waits in G1{0-2} for 1; 1 waits in G2{0-1} for 0
  rank 0 waits in all_reduce #1 of group G1{0-2}: all_reduce([4], torch.float32, sum) at 2 us, at FILE+4: dist.all_reduce(x, group=a)
  rank 1 waits in all_reduce #1 of group G2{0-1} at 2 us, at FILE+7: dist.all_reduce(x, group=b)
  rank 2 waits in all_reduce #1 of group G1{0-2} at 2 us, at FILE+10: dist.all_reduce(x, group=a)
  hint: every rank must use the groups in the same order""",
        (1,): """\
RankDeadlockError: [C10] groups are used in crossing order: 0 waits in G1{0-2} for 1; 1 waits in G2{0-1} for 0
  rank 1 waits in all_reduce #1 of group G2{0-1}: all_reduce([4], torch.float32, sum) at 2 us, at FILE+7: dist.all_reduce(x, group=b)
  rank 0 waits in all_reduce #1 of group G1{0-2} at 2 us, at FILE+4: dist.all_reduce(x, group=a)
  rank 2 waits in all_reduce #1 of group G1{0-2} at 2 us, at FILE+10: dist.all_reduce(x, group=a)
  hint: every rank must use the groups in the same order""",
        (2,): """\
RankDeadlockError: [C10] groups are used in crossing order: 0 waits in G1{0-2} for 1; 1 waits in G2{0-1} for 0
  rank 2 waits in all_reduce #1 of group G1{0-2}: all_reduce([4], torch.float32, sum) at 2 us, at FILE+10: dist.all_reduce(x, group=a)
  rank 0 waits in all_reduce #1 of group G1{0-2} at 2 us, at FILE+4: dist.all_reduce(x, group=a)
  rank 1 waits in all_reduce #1 of group G2{0-1} at 2 us, at FILE+7: dist.all_reduce(x, group=b)
  hint: every rank must use the groups in the same order""",
    }


def test_c10_across_streams_of_ranks_that_have_returned(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = _x(rank)
        groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
        for group in groups if rank else reversed(groups):
            dist.all_reduce(x, group=group)

    assert views(kernbench, worker, 2) == {
        (0,): """\
RankDeadlockError: [C10] groups are used in crossing order: 0 waits in G2{0-1} for 1; 1 waits in G1{0-1} for 0
  rank 0 waits in all_reduce #1 of group G2{0-1}: all_reduce([4], torch.float32, sum) at 2 us, at FILE+4: dist.all_reduce(x, group=group)
  rank 1 waits in all_reduce #1 of group G1{0-1} at 2 us, at FILE+4: dist.all_reduce(x, group=group)
  hint: every rank must use the groups in the same order""",
        (1,): """\
RankDeadlockError: [C10] groups are used in crossing order: 0 waits in G2{0-1} for 1; 1 waits in G1{0-1} for 0
  rank 1 waits in all_reduce #1 of group G1{0-1}: all_reduce([4], torch.float32, sum) at 2 us, at FILE+4: dist.all_reduce(x, group=group)
  rank 0 waits in all_reduce #1 of group G2{0-1} at 2 us, at FILE+4: dist.all_reduce(x, group=group)
  hint: every rank must use the groups in the same order""",
    }


def test_p1_the_sender_has_returned(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = _x(rank)
        if rank == 1:
            dist.recv(x, 0)
        if rank == 0:
            dist.isend(x, 2).wait()
        if rank == 2:
            torch.cuda.synchronize()
            for _ in range(3):
                x.mul_(2)
            x.tolist()
            dist.recv(x, 0, tag=0)

    assert views(kernbench, worker, 3) == {
        (1,): """\
RankDeadlockError: [P1] rank 1 waits for a message from rank 0, which has returned
  rank 1 waits in message #1 of group WORLD: recv([4], torch.float32, from rank 0, tag 0) at 2 us, at FILE+3: dist.recv(x, 0)
  rank 0 returned at FILE+6: if rank == 2:
  rank 0 sent nothing that is not received
  hint: every recv needs a send with the same group and tag""",
    }


def test_p1_everybody_has_returned(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = _x(rank)
        if rank == 1:
            dist.recv(x)

    assert views(kernbench, worker, 3) == {
        (1,): """\
RankDeadlockError: [P1] rank 1 waits for a message from any rank, and ranks 0, 2 have returned
  rank 1 waits in message #1 of group WORLD: recv([4], torch.float32, from any rank, tag 0) at 2 us, at FILE+3: dist.recv(x)
  rank 0 returned at FILE+2: if rank == 1:
  rank 2 returned at FILE+2: if rank == 1:
  ranks 0, 2 sent nothing that is not received
  hint: every recv needs a send with the same group and tag""",
    }


def test_p2_nobody_receives(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = _x(rank, 3)
        if rank == 2:
            dist.send(x, 0, tag=5)

    assert views(kernbench, worker, 3) == {
        (2,): """\
RankDeadlockError: [P2] rank 2 sends [3] torch.float32, 12 B to rank 0 with tag 5, which returned without receiving it
  rank 2 waits in message #1 of group WORLD: send([3], torch.float32, to rank 0, tag 5) at 2 us, at FILE+3: dist.send(x, 0, tag=5)
  rank 0 returned at FILE+2: if rank == 2:
  hint: every send needs a recv with the same group and tag""",
    }


def test_p3_the_tags_differ(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = _x(rank)
        if rank == 0:
            dist.send(x, 1, tag=7)
        if rank == 1:
            dist.recv(x, 0, tag=8)

    assert views(kernbench, worker, 3) == {
        (0,): """\
RankDeadlockError: [P3] rank 1 holds a message from 0 with tag 7; recv asks for tag 8
  rank 0 is the sender
  rank 0, message #1 of group WORLD: send([4], torch.float32, to rank 1, tag 7) at 2 us, at FILE+3: dist.send(x, 1, tag=7)
  rank 1, message #1 of group WORLD: recv([4], torch.float32, from rank 0, tag 8) at 2 us, at FILE+5: dist.recv(x, 0, tag=8)
  hint: a message is received with the tag that it was sent with""",
        (1,): """\
RankDeadlockError: [P3] rank 1 holds a message from 0 with tag 7; recv asks for tag 8
  rank 1 is the receiver
  rank 0, message #1 of group WORLD: send([4], torch.float32, to rank 1, tag 7) at 2 us, at FILE+3: dist.send(x, 1, tag=7)
  rank 1, message #1 of group WORLD: recv([4], torch.float32, from rank 0, tag 8) at 2 us, at FILE+5: dist.recv(x, 0, tag=8)
  hint: a message is received with the tag that it was sent with""",
    }


def test_p3_in_a_circle_of_hosts_that_wait(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = _x(rank)
        if rank == 0:
            dist.send(x, 1, tag=7)
        if rank == 1:
            dist.recv(x, tag=8)
        x.tolist()

    assert views(kernbench, worker, 2) == {
        (0,): """\
RankDeadlockError: [P3] rank 1 holds a message from 0 with tag 7; recv asks for tag 8
  rank 0 is the sender
  rank 0, message #1 of group WORLD: send([4], torch.float32, to rank 1, tag 7) at 2 us, at FILE+3: dist.send(x, 1, tag=7)
  rank 1, message #1 of group WORLD: recv([4], torch.float32, from any rank, tag 8) at 2 us, at FILE+5: dist.recv(x, tag=8)
  hint: a message is received with the tag that it was sent with""",
        (1,): """\
RankDeadlockError: [P3] rank 1 holds a message from 0 with tag 7; recv asks for tag 8
  rank 1 is the receiver
  rank 0, message #1 of group WORLD: send([4], torch.float32, to rank 1, tag 7) at 2 us, at FILE+3: dist.send(x, 1, tag=7)
  rank 1, message #1 of group WORLD: recv([4], torch.float32, from any rank, tag 8) at 2 us, at FILE+5: dist.recv(x, tag=8)
  hint: a message is received with the tag that it was sent with""",
    }


def test_p3_which_of_several_messages_was_meant_is_left_open(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = _x(rank)
        if rank == 0:
            dist.send(x, 1)
        if rank == 1:
            dist.recv(x, tag=7)
            dist.recv(x, 0)
        if rank == 2:
            dist.send(x, 1, tag=8)

    def text(view: str) -> str:
        return f"""\
RankDeadlockError: [P3] rank 1 holds messages from 0 with tag 0 and from 2 with tag 8; recv asks for tag 7
  {view}
  rank 0, message #1 of group WORLD: send([4], torch.float32, to rank 1, tag 0) at 2 us, at FILE+3: dist.send(x, 1)
  rank 2, message #1 of group WORLD: send([4], torch.float32, to rank 1, tag 8) at 2 us, at FILE+8: dist.send(x, 1, tag=8)
  rank 1, message #1 of group WORLD: recv([4], torch.float32, from any rank, tag 7) at 2 us, at FILE+5: dist.recv(x, tag=7)
  hint: a message is received with the tag that it was sent with"""

    assert views(kernbench, worker, 3) == {
        (0,): text("rank 0 is one of the senders"),
        (1,): text("rank 1 is the receiver"),
        (2,): text("rank 2 is one of the senders"),
    }


def test_p3_several_receives_of_other_tags(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x, y = _x(rank), torch.zeros(4, device="cuda")
        if rank == 0:
            dist.send(x, 1, tag=7)
        else:
            works = [dist.irecv(x, 0, tag=8), dist.irecv(y, 0, tag=9)]
            for work in works:
                work.wait()
        x.tolist()

    def text(view: str) -> str:
        return f"""\
RankDeadlockError: [P3] rank 1 holds a message from 0 with tag 7; irecv asks for tag 8 and irecv asks for tag 9
  {view}
  rank 0, message #1 of group WORLD: send([4], torch.float32, to rank 1, tag 7) at 4 us, at FILE+3: dist.send(x, 1, tag=7)
  rank 1, message #1 of group WORLD: irecv([4], torch.float32, from rank 0, tag 8) at 4 us, at FILE+5: works = [dist.irecv(x, 0, tag=8), dist.irecv(y, 0, tag=9)]
  rank 1, message #2 of group WORLD: irecv([4], torch.float32, from rank 0, tag 9) at 6 us, at FILE+5: works = [dist.irecv(x, 0, tag=8), dist.irecv(y, 0, tag=9)]
  hint: a message is received with the tag that it was sent with"""

    assert views(kernbench, worker, 2) == {
        (0,): text("rank 0 is the sender"),
        (1,): text("rank 1 is the receiver"),
    }


def test_p4_everybody_receives_first(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x, n = _x(rank), dist.get_world_size()
        for _ in range(rank):
            x.mul_(2)
        dist.recv(x, (rank - 1) % n)
        dist.send(x, (rank + 1) % n)

    assert views(kernbench, worker, 4) == {
        (0,): """\
RankDeadlockError: [P4] ranks 0-3 wait for one another: 0 recv<-3 (l.+4) -> 3 recv<-2 -> 2 recv<-1 -> 1 recv<-0 -> 0
  rank 0 waits in message #1 of group WORLD: recv([4], torch.float32, from rank 3, tag 0) at 2 us, at FILE+4: dist.recv(x, (rank - 1) % n)
  ranks 0-3 wait in message #1 of group WORLD: recv([4], torch.float32, tag 0) at 2 us to 8 us, at FILE+4: dist.recv(x, (rank - 1) % n)
  hint: let one side send before it receives, or start both with batch_isend_irecv""",
        (1,): """\
RankDeadlockError: [P4] ranks 0-3 wait for one another: 0 recv<-3 (l.+4) -> 3 recv<-2 -> 2 recv<-1 -> 1 recv<-0 -> 0
  rank 1 waits in message #1 of group WORLD: recv([4], torch.float32, from rank 0, tag 0) at 4 us, at FILE+4: dist.recv(x, (rank - 1) % n)
  ranks 0-3 wait in message #1 of group WORLD: recv([4], torch.float32, tag 0) at 2 us to 8 us, at FILE+4: dist.recv(x, (rank - 1) % n)
  hint: let one side send before it receives, or start both with batch_isend_irecv""",
        (2,): """\
RankDeadlockError: [P4] ranks 0-3 wait for one another: 0 recv<-3 (l.+4) -> 3 recv<-2 -> 2 recv<-1 -> 1 recv<-0 -> 0
  rank 2 waits in message #1 of group WORLD: recv([4], torch.float32, from rank 1, tag 0) at 6 us, at FILE+4: dist.recv(x, (rank - 1) % n)
  ranks 0-3 wait in message #1 of group WORLD: recv([4], torch.float32, tag 0) at 2 us to 8 us, at FILE+4: dist.recv(x, (rank - 1) % n)
  hint: let one side send before it receives, or start both with batch_isend_irecv""",
        (3,): """\
RankDeadlockError: [P4] ranks 0-3 wait for one another: 0 recv<-3 (l.+4) -> 3 recv<-2 -> 2 recv<-1 -> 1 recv<-0 -> 0
  rank 3 waits in message #1 of group WORLD: recv([4], torch.float32, from rank 2, tag 0) at 8 us, at FILE+4: dist.recv(x, (rank - 1) % n)
  ranks 0-3 wait in message #1 of group WORLD: recv([4], torch.float32, tag 0) at 2 us to 8 us, at FILE+4: dist.recv(x, (rank - 1) % n)
  hint: let one side send before it receives, or start both with batch_isend_irecv""",
    }


def test_p4_names_the_shortest_circle_and_elides_a_long_one(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = _x(rank)
        if rank == 7:
            dist.send(x, 3)
        if rank == 3:
            dist.send(x, 7)
        if rank < 2:
            dist.recv(x, 3)
        x.tolist()

    assert views(kernbench, worker, 8) == {
        (3,): """\
RankDeadlockError: [P4] ranks 3, 7 wait for one another: 3 send->7 (l.+5) -> 7 send->3 (l.+3) -> 3
  rank 3 waits in message #1 of group WORLD: send([4], torch.float32, to rank 7, tag 0) at 2 us, at FILE+5: dist.send(x, 7)
  rank 7 waits in message #1 of group WORLD: send([4], torch.float32, tag 0) at 2 us, at FILE+3: dist.send(x, 3)
  hint: let one side send before it receives, or start both with batch_isend_irecv""",
        (7,): """\
RankDeadlockError: [P4] ranks 3, 7 wait for one another: 3 send->7 (l.+5) -> 7 send->3 (l.+3) -> 3
  rank 7 waits in message #1 of group WORLD: send([4], torch.float32, to rank 3, tag 0) at 2 us, at FILE+3: dist.send(x, 3)
  rank 3 waits in message #1 of group WORLD: send([4], torch.float32, tag 0) at 2 us, at FILE+5: dist.send(x, 7)
  hint: let one side send before it receives, or start both with batch_isend_irecv""",
    }

    def long(rank: int) -> None:
        x, n = _x(rank), dist.get_world_size()
        dist.send(x, (rank + 1) % n)
        dist.recv(x, (rank - 1) % n)

    error = failure(kernbench, long, 10, topology="torus4x4").errors[4]
    assert relative(str(error), long) == (
        """[P4] ranks 0-9 wait for one another: 0 send->1 (l.+2) -> 1 send->2 -> 2 send->3 -> ... -> 9 send->0 -> 0
  rank 4 waits in message #1 of group WORLD: send([4], torch.float32, to rank 5, tag 0) at 2 us, at FILE+2: dist.send(x, (rank + 1) % n)
  ranks 0-9 wait in message #1 of group WORLD: send([4], torch.float32, tag 0) at 2 us, at FILE+2: dist.send(x, (rank + 1) % n)
  hint: let one side send before it receives, or start both with batch_isend_irecv"""
    )


def test_p4_between_a_message_and_a_collective(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = _x(rank)
        if rank == 2:
            dist.recv(x, 0)
        dist.all_reduce(x)
        if rank == 0:
            dist.send(x, 2)

    assert views(kernbench, worker, 3) == {
        (0,): """\
RankDeadlockError: [P4] ranks 0-2 wait for one another: 0 all_reduce #1 of group WORLD (l.+4) -> 2 recv<-0 (l.+3) -> 0
  rank 0 waits in all_reduce #1 of group WORLD: all_reduce([4], torch.float32, sum) at 2 us, at FILE+4: dist.all_reduce(x)
  ranks 0-1 wait in all_reduce #1 of group WORLD at 2 us, at FILE+4: dist.all_reduce(x)
  rank 2 waits in message #1 of group WORLD: recv([4], torch.float32, tag 0) at 2 us, at FILE+3: dist.recv(x, 0)
  hint: every rank must come to collectives and messages in the same order""",
        (1,): """\
RankDeadlockError: [P4] ranks 0-2 wait for one another: 0 all_reduce #1 of group WORLD (l.+4) -> 2 recv<-0 (l.+3) -> 0
  rank 1 waits in all_reduce #1 of group WORLD: all_reduce([4], torch.float32, sum) at 2 us, at FILE+4: dist.all_reduce(x)
  ranks 0-1 wait in all_reduce #1 of group WORLD at 2 us, at FILE+4: dist.all_reduce(x)
  rank 2 waits in message #1 of group WORLD: recv([4], torch.float32, tag 0) at 2 us, at FILE+3: dist.recv(x, 0)
  hint: every rank must come to collectives and messages in the same order""",
        (2,): """\
RankDeadlockError: [P4] ranks 0-2 wait for one another: 0 all_reduce #1 of group WORLD (l.+4) -> 2 recv<-0 (l.+3) -> 0
  rank 2 waits in message #1 of group WORLD: recv([4], torch.float32, from rank 0, tag 0) at 2 us, at FILE+3: dist.recv(x, 0)
  ranks 0-1 wait in all_reduce #1 of group WORLD at 2 us, at FILE+4: dist.all_reduce(x)
  hint: every rank must come to collectives and messages in the same order""",
    }


def test_a_deadlock_is_found_while_others_run_on(kernbench: Kernbench) -> None:
    steps: list[int] = []

    def worker(rank: int) -> None:
        x = _x(rank)
        busy = dist.new_group([2, 3])
        if rank >= 2:
            for _ in range(1000):
                dist.all_reduce(x, group=busy)
                x.tolist()
                steps.append(1)
        else:
            dist.recv(x, 1 - rank)
            dist.send(x, 1 - rank)

    failed = failure(kernbench, worker, 4)
    assert list(failed.errors) == [0, 1]
    assert [line.split(" at ")[0] for line in failed.aborted_lines()] == ["ranks 2-3 aborted"]
    assert len(steps) < 20


@pytest.mark.parametrize("operation", ["broadcast", "scatter", "reduce", "gather"])
def test_a_circle_through_a_root_is_found_while_others_run_on(
    kernbench: Kernbench, operation: str
) -> None:
    """Who ends with values needs those who give them; who only gives may be done early."""
    steps: list[int] = []

    def rooted(x: torch.Tensor, rank: int) -> None:
        parts = [torch.empty_like(x) for _ in range(4)] if rank == 0 else None
        if operation == "broadcast":
            dist.broadcast(x, 0)
        elif operation == "reduce":
            dist.reduce(x, 0)
        elif operation == "gather":
            dist.gather(x, parts, 0)
        else:
            dist.scatter(x, [x] * 4 if rank == 0 else None, 0)

    def worker(rank: int) -> None:
        x = _x(rank)
        busy = dist.new_group([2, 3])
        taker = 1 if operation in {"broadcast", "scatter"} else 0
        if rank >= 2:
            for _ in range(1000):
                dist.all_reduce(x, group=busy)
                x.tolist()
                steps.append(1)
        elif rank == taker:
            rooted(x, rank)
            dist.send(x, 1 - rank)
        else:
            dist.recv(x, 1 - rank)
            rooted(x, rank)
        x.tolist()

    failed = failure(kernbench, worker, 4)
    assert list(failed.errors) == [0, 1]
    assert {error.code for error in failed.errors.values()} == {"P4"}  # type: ignore[attr-defined]
    assert len(steps) < 20


@pytest.mark.parametrize("polls", [False, True])
def test_streams_that_come_to_a_circle_by_themselves_are_found_soon(
    kernbench: Kernbench, polls: bool
) -> None:
    """Their hosts wait already, so nobody is about to wait when the circle closes."""
    steps: list[int] = []

    def worker(rank: int) -> None:
        x = _x(rank)
        pairs = [dist.new_group([0, 1]), dist.new_group([0, 1])]
        busy = dist.new_group([2, 3])
        if rank < 2:
            dist.all_reduce(x)  # which the others come to when these hosts wait already
            for group in pairs if rank else reversed(pairs):
                dist.all_reduce(x, group=group)
            x.tolist()
        for step in range(3000):
            if step == 5:
                dist.all_reduce(x)
            work = dist.all_reduce(x[:1], group=busy, async_op=True)
            while polls and not work.is_completed():
                pass
            work.wait()
            x[0].item()
            steps.append(1)

    failed = failure(kernbench, worker, 4)
    assert list(failed.errors) == [0, 1]
    assert {error.code for error in failed.errors.values()} == {"C10"}  # type: ignore[attr-defined]
    assert 0 < len(steps) < 1000


def test_p5_warns_of_what_only_buffering_hides(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x, y = _x(rank), torch.empty(4, device="cuda")
        dist.send(x, 1 - rank)
        x.mul_(100)
        dist.recv(y, 1 - rank)
        assert y.tolist() == [1.0 - rank] * 4

    assert list(failure(kernbench, worker, 2).errors) == [0, 1]
    assert list(failure(kernbench, worker, 2, eager_limit=8).errors) == [0, 1]
    with pytest.warns(EagerWarning) as caught:
        kernbench.spawn(worker, nprocs=2, eager_limit=16)
    assert relative(str(caught[0].message), worker) == (
        "[P5] works only because message <= eager limit 16 B: 0 send->1 (l.+2) -> 1 send->0 -> 0\n"
        "  ranks 0-1 would wait in message #1 of group WORLD: send([4], torch.float32, tag 0) "
        "at 2 us, at FILE+2: dist.send(x, 1 - rank)\n"
        "  hint: let one side send before it receives, or start both with batch_isend_irecv"
    )


def test_p5_does_not_warn_of_what_needs_no_buffer(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = _x(rank)
        dist.all_reduce(x)
        if rank == 0:
            dist.send(x, 1)
            dist.recv(x, 1)
        else:
            dist.recv(x, 0)
            dist.send(x, 0)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernbench.spawn(worker, nprocs=2, eager_limit=1 << 20)


def test_p2_of_a_send_that_was_buffered(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = _x(rank)
        if rank == 0:
            dist.send(x, 1)

    assert views(kernbench, worker, 2, eager_limit=4096) == {
        (0,): """\
RankDeadlockError: [P2] rank 0 sends [4] torch.float32, 16 B to rank 1 with tag 0, which returned without receiving it
  rank 0 waits in message #1 of group WORLD: send([4], torch.float32, to rank 1, tag 0) at 2 us, at FILE+3: dist.send(x, 1)
  rank 1 returned at FILE+2: if rank == 0:
  hint: every send needs a recv with the same group and tag""",
    }


def test_k6_polling_for_what_cannot_happen(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = _x(rank)
        if rank == 2:
            dist.recv(x, 0)
            x.tolist()
        work = dist.irecv(x, 1 - rank)
        while not work.is_completed():
            pass

    assert views(kernbench, worker, 3) == {
        (0, 1): """\
LivelockError: [K6] ranks 0-1 poll for ever, and nothing else is left to happen
  rank 0 polls at FILE+6: while not work.is_completed():
  rank 0 polls recv, issued at FILE+5: work = dist.irecv(x, 1 - rank); irecv #1 of group WORLD lacks rank 1
  rank 1 polls at FILE+6: while not work.is_completed():
  rank 1 polls recv, issued at FILE+5: work = dist.irecv(x, 1 - rank); irecv #1 of group WORLD lacks rank 0
  rank 2 waits in recv([4], torch.float32, from rank 0, tag 0) at 2 us, at FILE+3: dist.recv(x, 0)
  hint: call work.wait() or synchronize() instead of polling; they find out what is missing""",
    }


@pytest.mark.parametrize("polls", [False, True])
def test_a_fault_of_the_device_outranks_those_who_wait_behind_it(
    kernbench: Kernbench, polls: bool
) -> None:
    def worker(rank: int) -> None:
        x, y = _x(rank), torch.ones(4, device="cuda")
        if rank == 0:
            dist.send(torch.empty(4, device="cuda"), dst=1)
        else:
            work = dist.irecv(x, src=0)
            while polls and not work.is_completed():
                pass
            work.wait()
        dist.all_reduce(y)
        y.tolist()

    assert views(kernbench, worker, 2) == {
        (0,): """\
UninitialisedReadError: [M5] 4 of 4 elements of tensor [4] torch.float32 were never written
  first unwritten element 0, last 3 (of the tensor as read, shape (4,))
  allocated at FILE+3: dist.send(torch.empty(4, device="cuda"), dst=1)
  nothing was issued that writes to it
  send was issued at FILE+3: dist.send(torch.empty(4, device="cuda"), dst=1)
  hint: write them first, or make the tensor with zeros() instead of empty()""",
    }


def test_k6_is_no_false_alarm_of_a_poll_that_ends(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = _x(rank, 1 << 20)
        if rank:
            for _ in range(20):
                x.mul_(2)
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        while not work.is_completed():
            pass

    kernbench.spawn(worker, nprocs=2)


@pytest.mark.parametrize("fidelity", ["kernel", "tile"])
@pytest.mark.parametrize(
    ("count", "told"),
    [
        (1 << 16, "; n_slots=32 is the least that completes"),
        (1 << 18, "; no n_slots up to 64 that fits into memory completes"),
        (1 << 23, ""),  # so many messages that nobody wants to wait for the answer
    ],
)
def test_k7_an_algorithm_that_waits_for_itself(
    kernbench: Kernbench,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fidelity: str,
    count: int,
    told: str,
) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.zeros(count, device="cuda")
        for _ in range(rank):
            x.mul_(1)
        dist.all_reduce(x)
        x.tolist()

    (tmp_path / "jam.py").write_text(JAM)
    (tmp_path / "ccl.yaml").write_text(JAM_FILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = views(kernbench, worker, 2, ccl=tmp_path / "ccl.yaml", fidelity=fidelity)
    line = "JAM: comm.exchange(send=0, to=other, receive=NOTHING, source=0)"
    programs = f"""
  all_reduce on rank 0 waits for a credit for the queue to 1 since T, at {line}
  all_reduce on rank 1 waits for a credit for the queue to 0 since T, at {line}"""
    lines = "" if fidelity == "tile" else "; fidelity tile names the lines of the algorithm"
    facts = f"""{programs if fidelity == "tile" else ""}
  rank 0 send blocked: queue 0->1 full 2/2
  rank 1 send blocked: queue 1->0 full 2/2
  queues have 2 slots of 4 KiB, n_slots at {tmp_path}/ccl.yaml:4:12
  hint: every send needs a receive, and no more than n_slots messages fit in a queue{told}{lines}"""
    summary = (
        "RankDeadlockError: [K7] all_reduce #1 of group WORLD: every rank has come, and the "
        "algorithm jam waits for itself\n  rank "
    )
    call = f"all_reduce #1 of group WORLD: all_reduce([{count}], torch.float32, sum)"
    cut = {
        ranks: re.sub(r"FILE\+-\d+", "JAM", re.sub(r"(since|at) [\d.]+ \ws", r"\1 T", text))
        for ranks, text in found.items()
    }
    assert cut == {
        (0,): f"{summary}0 waits in {call} at T, at FILE+5: dist.all_reduce(x){facts}",
        (1,): f"{summary}1 waits in {call} at T, at FILE+5: dist.all_reduce(x){facts}",
    }


BULKY = """
def all_reduce(comm):
    tl = comm.tl
    tl.send(tl.load(comm.buffer.run(0, 200)), 1 - comm.rank)
"""

BULKY_FILE = """
defaults: {algorithm: bulky, slot_size: 512 B}
algorithms: {bulky: {module: bulky}}
"""


def test_k9_an_algorithm_whose_message_is_larger_than_its_slots(
    kernbench: Kernbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def worker(rank: int) -> None:
        dist.all_reduce(_x(rank, 200))
        torch.cuda.synchronize()

    (tmp_path / "bulky.py").write_text(BULKY)
    (tmp_path / "ccl.yaml").write_text(BULKY_FILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = views(kernbench, worker, 2, ccl=tmp_path / "ccl.yaml")
    text = f"""\
MessageSizeError: [K9] tl.send of 800 B to {{0}}: a slot holds 512 B
  at FILE+{{1}}: tl.send(tl.load(comm.buffer.run(0, 200)), 1 - comm.rank)
  tile of shape (200,), torch.float32
  slot_size at {tmp_path}/ccl.yaml:2:41
  all_reduce was issued at FILE+1: dist.all_reduce(_x(rank, 200))
  hint: send smaller tiles, or make the slots larger"""
    line = 4 - worker.__code__.co_firstlineno
    assert found == {(rank,): text.format(1 - rank, line) for rank in range(2)}


def test_the_text_is_the_same_each_time_and_also_plain_values(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = _x(rank)
        dist.recv(x, 1 - rank)
        x.tolist()

    first, second = failure(kernbench, worker, 2), failure(kernbench, worker, 2)
    assert str(first) == str(second)
    assert json.dumps(first.as_json()) == json.dumps(second.as_json())
    document = first.as_json()
    assert list(document["errors"]) == ["0", "1"]
    assert document["errors"]["1"]["code"] == "P4"
    assert document["replay"] == {"seed": 0, "schedule": "0"}


def test_ranks_that_only_wait_for_the_dead_are_siblings(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        x = _x(rank)
        if rank < 2:
            dist.recv(x, 1 - rank)
        else:
            dist.recv(x, rank - 1)
        x.tolist()
        dist.send(x, (rank + 1) % 4)

    failed = failure(kernbench, worker, 4)
    assert list(failed.errors) == [0, 1]
    assert all(isinstance(error, RankDeadlockError) for error in failed.errors.values())
    assert list(failed.aborted) == [0, 1, 2, 3]


def test_a_deadlock_among_1024_ranks_is_looked_for_once_and_told_briefly(
    make_topology: Callable[..., Topology], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What that costs in wall time, `benchmarks/mistakes.py` measures."""
    looks: list[Reviewer] = []

    def counted(reviewer: Reviewer) -> None:
        looks.append(reviewer)
        review(reviewer)

    review = Reviewer._review
    monkeypatch.setattr(Reviewer, "_review", counted)

    def worker(rank: int) -> None:
        x, n = _x(rank), dist.get_world_size()
        dist.recv(x, (rank - 1) % n)
        dist.send(x, (rank + 1) % n)

    topology = make_topology(1024, {"kind": "switch"})
    ctx = RuntimeContext(engine=GraphEngine(topology, enable_data=False))
    with pytest.raises(SpawnException) as caught:
        ctx.multiprocessing.spawn(worker, nprocs=1024)
    assert len(looks) == 1
    assert len(str(caught.value)) < 1000
    assert len(caught.value.errors) == 1024


def test_waiting_for_what_nobody_makes_happen(kernbench: Kernbench) -> None:
    """As a program does that waits for an event of its own."""
    ctx = kernbench.context()

    def worker(rank: int) -> None:
        if rank == 1:
            ctx.wait(Event("a door to open"))

    with pytest.raises(SpawnException) as caught:
        ctx.multiprocessing.spawn(worker, nprocs=2)
    assert relative(str(caught.value), worker) == (
        "rank 1 failed\n"
        "rank 1: RankDeadlockError: ranks wait for what can never happen\n"
        "  rank 1 waits for a door to open since 0 ps, at FILE+2: "
        'ctx.wait(Event("a door to open"))\n'
        "replay: seed 0, schedule 0"
    )
