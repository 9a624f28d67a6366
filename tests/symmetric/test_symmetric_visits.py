"""Kernels that meet while they run: what they have seen decides when they end."""

from typing import Any

import numpy as np
import pytest

import kernbench.torch as torch
from kernbench.process.act import act
from kernbench.process.process import current_process
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.command import Command
from kernbench.sim_engine.engine import GraphEngine
from kernbench.symmetric.links import Move
from kernbench.symmetric.regions import Block
from kernbench.symmetric.visits import Visit, action_of
from kernbench.topology import load_topology
from kernbench.ttir.memory import Allocation

US = 1_000_000
HOP = 240_000
"""Picoseconds from a device to another one of h200x8."""
ATOMIC, FENCE = 200_000, 540_000
"""Picoseconds of an atomic operation, and of a fence before it, there."""


class Launch:
    """A kernel of one rank, in which a program does what a test says.

    Args:
        blocks: Blocks of all ranks.
    """

    def __init__(self, blocks: list[Block]) -> None:
        self.process = current_process()
        self._memory = {
            block: Allocation("a signal pad", 64 * place, np.zeros(64, np.uint8))
            for place, block in enumerate(blocks)
        }
        self.visit = Visit(self.process, {one.start: at for at, one in self._memory.items()})
        self.visit.begin(0, 0)

    def changes(self, block: Block, word: int, moved: int) -> None:
        """Changes a word after so many bytes."""
        self._touches(block, word, moved, True)

    def _touches(self, block: Block, word: int, moved: int, changes: bool) -> None:
        one, memory = np.array([word]), self._memory[block]
        self.visit.turned(memory, one, np.array([changes]), moved, looked=not changes)

    def swaps(self, block: Block, word: int, moved: int) -> None:
        """Changes a word by an operation with release that returns what was there."""
        one, memory = np.array([word]), self._memory[block]
        self.visit.turned(memory, one, np.array([True]), moved, looked=True, fences=True)

    def polls(self, block: Block, word: int, moved: int) -> None:
        """Looks at a word until somebody has changed it."""
        while word not in block.puts:
            self.visit.wait(lambda: ["program (0, 0, 0) of k polls"])
        self._touches(block, word, moved, False)

    def issued(self, price: int, moved: int, moves: list[Move] | None = None) -> Command:
        """Issues the kernel, whose only program has moved so many bytes."""
        self.visit.begin(1, moved)
        process, engine = self.process, self.process.engine
        device = engine.devices[process.device_index]
        work = action_of(engine, device.compute, price, self.visit, moves or [])
        return act(process, "k", "kernel", process.current_stream(process.device_index), work)


def on_ranks(worker: Any, ranks: int = 2) -> list[Any]:
    """Runs a function as ranks, and returns the commands that it issued on each, ended."""
    engine = GraphEngine(load_topology("h200x8").topology_obj, enable_data=False)
    blocks = [Block(rank) for rank in range(ranks)]
    found: dict[int, Any] = {}

    def rank_main(rank: int) -> None:
        found[rank] = worker(rank, blocks)
        torch.cuda.synchronize()

    with RuntimeContext(engine=engine, quiet=True):
        torch.multiprocessing.spawn(rank_main, nprocs=ranks)
    return [found[rank] for rank in range(ranks)]


def test_a_program_goes_on_when_what_it_saw_has_come() -> None:
    def work(rank: int, blocks: list[Block]) -> Command:
        launch = Launch(blocks)
        if rank:
            launch.process.host.clock += 50 * US
            launch.changes(blocks[0], 8, 300)
            return launch.issued(20 * US, 400)
        launch.polls(blocks[0], 8, 100)
        return launch.issued(10 * US, 400)

    late, early = on_ranks(work)
    begun = early.issued
    assert early.done.time == begun + 20 * US
    # The word leaves after 3 quarters of 20 us; 3 quarters of 10 us are left then.
    assert late.issued < begun
    assert late.done.time == begun + 15 * US + HOP + ATOMIC + 7_500_000


def test_what_was_changed_long_ago_holds_up_nobody() -> None:
    def work(rank: int, blocks: list[Block]) -> Command:
        launch = Launch(blocks)
        if rank:
            launch.changes(blocks[0], 8, 0)
            return launch.issued(US, 0)
        launch.process.host.clock += 50 * US
        launch.polls(blocks[0], 8, 0)
        return launch.issued(10 * US, 400)

    late, _ = on_ranks(work)
    assert late.done.time == late.issued + ATOMIC + 10 * US


def test_two_that_wait_for_each_other_go_on_together() -> None:
    def work(rank: int, blocks: list[Block]) -> Command:
        launch = Launch(blocks)
        launch.process.host.clock += 30 * US * rank
        launch.changes(blocks[1 - rank], 4, 0)
        launch.polls(blocks[rank], 4, 0)
        return launch.issued(10 * US, 100)

    first, second = on_ranks(work)
    assert second.done.time == second.issued + ATOMIC + 10 * US
    assert first.done.time == second.issued + HOP + ATOMIC + 10 * US


def test_who_changes_a_word_elsewhere_waits_for_the_way_back() -> None:
    def work(rank: int, blocks: list[Block]) -> Command:
        launch = Launch(blocks)
        if rank:
            launch.process.host.clock += 50 * US
            launch.swaps(blocks[0], 8, 0)
            return launch.issued(10 * US, 100)
        launch.polls(blocks[0], 8, 0)
        return launch.issued(10 * US, 100)

    late, early = on_ranks(work)
    begun = early.issued
    assert early.done.time == begun + FENCE + HOP + ATOMIC + HOP + 10 * US
    # The word is on the late one's own device.
    assert late.done.time == begun + FENCE + HOP + ATOMIC + ATOMIC + 10 * US


def test_bytes_leave_once_the_program_has_met_those_for_whom_it_waits_first() -> None:
    size = 361_000_000  # a millisecond through the switch

    def work(rank: int, blocks: list[Block]) -> Command:
        launch = Launch(blocks)
        if rank:
            launch.process.host.clock += 50 * US
            launch.changes(blocks[0], 8, 0)
            return launch.issued(US, 400)
        launch.polls(blocks[0], 8, 0)
        return launch.issued(10 * US, size, [Move(1, 0, size, asked=True)])

    late, early = on_ranks(work)
    known = early.issued + HOP + ATOMIC + 1000 * US + 2 * HOP
    assert late.done.time == pytest.approx(known, abs=10_000)  # each chunk ends at a whole one


def test_who_polls_for_what_nobody_changes_is_told() -> None:
    def work(rank: int, blocks: list[Block]) -> None:
        if rank == 0:
            Launch(blocks).polls(blocks[0], 8, 0)

    with pytest.raises(SpawnException, match=r"\[K7\] a kernel of rank 0 polls memory that nobody"):
        on_ranks(work)
