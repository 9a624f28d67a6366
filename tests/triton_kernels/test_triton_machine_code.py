"""Loops of machine code, and what a launch becomes of it, by hand."""

from dataclasses import replace
from fractions import Fraction

import numpy as np

from kernbench.kernels.contention import Contention
from kernbench.kernels.grids import GridLaunch
from kernbench.triton.instructions import Instruction
from kernbench.triton.machine_code import Loop, MachineCode, loops_of
from kernbench.triton.timing import grid_launch
from kernbench.ttir.counting import Access, Atomic, TextLoop, Work

OTHER = Instruction()
LOAD = Instruction("load", 16)
BARRIER = Instruction("barrier")
STORE = Instruction("store")
ATOMIC = Instruction("atomic")


def branch(place: int) -> Instruction:
    return Instruction("branch", place)


def test_a_branch_back_closes_a_loop() -> None:
    outside, loops = loops_of(
        [
            *(OTHER, branch(8)),
            *(Instruction("copy", 16), OTHER),  # the outer loop, up to its branch to 2
            *(OTHER, branch(4)),  # the inner one
            *(Instruction("idle"), branch(2)),
            *(OTHER, OTHER),
            *(branch(10), Instruction("idle")),  # behind the exit
        ]
    )

    # Two, two, and the branch to itself.
    assert len(outside) == 5
    assert loops == [
        Loop(3, innermost=False, ahead=True, loaded=16, waits=0, parted=0),
        Loop(2, innermost=True, ahead=False, waits=0, parted=0, around=0),
    ]


def test_loads_that_no_barrier_parts_are_waited_for_together() -> None:
    def loop(under_way: int) -> Loop:
        half, word = Instruction("load", 2), Instruction("load", 4)
        products = Instruction("under way", under_way)
        code = [LOAD, half, OTHER, BARRIER, word, products, branch(0), OTHER]
        (found,) = loops_of(code)[1]
        return found

    assert loop(0) == Loop(7, True, False, loaded=16 + 2 + 4, waits=2, parted=2)
    assert loop(1) == Loop(7, True, False, loaded=22, waits=2, beside=True, parted=2)


def the_loop(*code: Instruction) -> Loop:
    (found,) = loops_of([*code, branch(0), OTHER])[1]
    return found


def test_stores_and_atomic_operations_part_loads_as_barriers_do() -> None:
    assert the_loop(LOAD, LOAD, STORE, STORE, LOAD, STORE).waits == 2
    assert the_loop(LOAD, LOAD, STORE, STORE, LOAD, STORE).parted == 1
    assert the_loop(ATOMIC, ATOMIC).waits == 2
    assert the_loop(STORE, OTHER).waits == 0


def test_the_counter_of_a_loop_is_what_its_last_test_looks_at() -> None:
    steps = Instruction("step", -4, (12,)), Instruction("step", 64, (3,))
    tests = Instruction("test", 0, (3,)), Instruction("test", 0, (255, 12))
    assert the_loop(*steps, *tests).step == 4
    assert the_loop(*steps, tests[0]).step == 64
    assert the_loop(*steps).step == 0


WORK = Work(
    turns=[(4, 10), (4, 30)],
    loops=[TextLoop(False, 16, [], waits=False), TextLoop(True, 160, [(128, 4), (1, 8)])],
    accesses=[Access(0, loads=True, stores=False, nbytes=4096)],
    atomics=[],
    flop={"bf16": 1000},
    issued=(8 * 2 * 32, 160 * 3 * 2 * 32),
    tiles=(100, 1000),
    largest=640,
)


def launch(machine: MachineCode | None) -> GridLaunch:
    return grid_launch(WORK, machine, warps=2, stages=3, extents={0: 1024}, same={})


def test_where_lanes_add_is_looked_at_or_drawn() -> None:
    atomics = [Atomic(0, 4, 1000, None), Atomic(None, 4, 100, np.full((2, 1, 32), 64))]
    work = replace(WORK, atomics=atomics)
    launched = grid_launch(work, None, warps=2, stages=3, extents={0: 1024}, same={})
    drawn, known = launched.contention
    # 1024 bytes have 32 sectors, in two chunks; 32 lanes are in about 20 of them.
    assert 18_000 < drawn.passes < 28_000
    assert drawn.chunks == 2
    # 50 requests for each one that was looked at, whose lanes all add to one number.
    assert known == Contention(passes=3200, chunks=1, hottest=3200)


def test_loops_of_the_code_are_those_of_the_text() -> None:
    outer = Loop(6, False, False, waits=0)
    code = MachineCode(40, 512, 20, [outer, Loop(5, True, True)])
    assert launch(code) == GridLaunch(
        warps=2,
        stages=3,
        turns=((4, 10), (4, 30)),
        instructions=20 + 6 * 16 // 8,
        turn_instructions=5,
        hbm_bytes=1024,
        traffic=4096,
        flop={"bf16": 1000},
        registers=40,
        shared=512,
    )


def test_loops_that_the_compiler_has_changed_take_the_most_turns_together() -> None:
    code = MachineCode(40, 512, 20, [Loop(7, True, True), Loop(3, True, True)])
    assert launch(code).turn_instructions == 5
    assert launch(code).instructions == 20


def test_a_loop_whose_turn_loads_what_four_of_the_text_do_is_unrolled() -> None:
    # In a turn of the text each of 64 threads loads two numbers of 4 bytes and the one of 8.
    outer = Loop(6, False, False, waits=0)
    unrolled = Loop(40, True, False, loaded=4 * 16, waits=1)
    found = launch(MachineCode(40, 512, 50, [outer, unrolled]))
    assert (found.turn_instructions, found.waits) == (10, Fraction(1, 4))
    # What three turns take stands outside, for those that are left over.
    assert found.instructions == 50 - 30 + 6 * 16 // 8
    parted = replace(unrolled, waits=4, parted=4)
    found = launch(MachineCode(40, 512, 50, [outer, parted]))
    assert (found.turn_instructions, found.waits) == (40, Fraction(1))
    # Stores part what barriers do not: each turn waits, and its instructions are known.
    stores = replace(unrolled, waits=4)
    found = launch(MachineCode(40, 512, 50, [outer, stores]))
    assert (found.turn_instructions, found.waits) == (10, Fraction(1))


def computing(*loops: Loop, step: int = 1) -> GridLaunch:
    """A launch of a kernel whose one loop loads nothing: 8 programs of 20 turns."""
    text = TextLoop(True, 160, [], waits=False, step=step)
    work = replace(WORK, loops=[text], turns=[(8, 20)])
    machine = MachineCode(40, 512, 50, loops)
    return grid_launch(work, machine, warps=2, stages=3, extents={0: 1024}, same={})


def test_a_loop_that_loads_nothing_does_not_wait() -> None:
    found = computing(Loop(40, True, False, waits=0))
    assert (found.turn_instructions, found.waits) == (40, Fraction(0))
    work = replace(WORK, loops=[TextLoop(True, 160, [], waits=False)], flop={})
    assert grid_launch(work, None, 2, 3, {0: 1024}, {}).waits == 0


def test_a_counter_that_moves_on_by_four_steps_is_that_of_an_unrolled_loop() -> None:
    unrolled = Loop(36, True, False, waits=0, step=4)
    left = Loop(11, True, False, waits=0, step=1)  # takes the turns that are left over
    found = computing(unrolled, left)
    assert (found.turn_instructions, found.instructions) == (9, 50 - 27)
    assert computing(replace(unrolled, step=4096), step=1024).turn_instructions == 9
    # An address, of 64 bytes a turn, took the place of the counter.
    assert computing(replace(unrolled, step=64)).turn_instructions == 36


def test_a_turn_that_loads_twice_what_the_text_does_may_be_one_turn() -> None:
    # Both warps load the same for themselves, as the counter tells.
    text = TextLoop(True, 160, [(128, 4), (1, 8)], step=1)
    work = replace(WORK, loops=[text], turns=[(8, 20)])
    loop = Loop(40, True, False, loaded=2 * 16, step=1)
    machine = MachineCode(40, 512, 50, [loop])
    found = grid_launch(work, machine, warps=2, stages=3, extents={0: 1024}, same={})
    assert (found.turn_instructions, found.waits) == (40, Fraction(1))


def test_a_loop_that_tries_an_atomic_operation_again_is_none_of_the_text() -> None:
    again = Instruction("atomic"), OTHER, branch(2)
    code = [LOAD, OTHER, *again, branch(0), OTHER]
    loop, retry = loops_of(code)[1]
    assert (retry.retries, retry.around, loop.innermost) == (True, 0, False)
    found = computing(loop, retry)
    assert (found.turn_instructions, found.instructions) == (3 + 3, 50)
    # It stays where the text has it, such as one that waits for a lock.
    text = [TextLoop(False, 8, []), TextLoop(True, 160, [])]
    work = replace(WORK, loops=text, turns=[(8, 20)])
    machine = MachineCode(40, 512, 50, [loop, retry])
    kept = grid_launch(work, machine, warps=2, stages=3, extents={0: 1024}, same={})
    assert kept.turn_instructions == 3
    # One that loads does more than to try again.
    assert not loops_of([LOAD, *again[:2], branch(0), OTHER])[1][0].retries


def test_spilled_registers_are_counted_as_often_as_a_turn_is_taken() -> None:
    spill = Instruction("spill", 8)
    loop = the_loop(spill, OTHER, spill)
    assert loop.spilled == 16
    text = TextLoop(True, 160, [], waits=False, step=1)
    work = replace(WORK, loops=[text], turns=[(8, 20)])
    machine = MachineCode(40, 512, 50, [loop], spilled=4, stack=24, together=False)
    found = grid_launch(work, machine, warps=2, stages=3, extents={0: 1024}, same={})
    assert found.spilled == (8 * 4 + 160 * 16) * 64
    assert (found.stack, found.together) == (24 * 64, False)


def test_loads_of_an_outer_loop_are_waited_for_in_its_turns() -> None:
    outer, inner = Loop(6, False, False, loaded=4), Loop(5, True, False, waits=0)
    assert launch(MachineCode(40, 512, 20, [outer, inner])).waits == Fraction(16, 160)


def test_products_are_beside_instructions_where_all_loops_leave_them_under_way() -> None:
    leaves, waits = (Loop(5, True, True, beside=beside) for beside in (True, False))
    assert launch(MachineCode(40, 512, 20, [leaves])).beside
    assert not launch(MachineCode(40, 512, 20, [leaves, waits])).beside
    assert not launch(MachineCode(40, 512, 20, [])).beside


def test_no_loads_are_ahead_where_the_code_has_none() -> None:
    assert launch(MachineCode(40, 512, 20, [Loop(5, True, False)])).stages == 1


def test_without_machine_code_it_is_estimated() -> None:
    found = launch(None)
    # A warp issues what its 32 threads do; operands of a loop's products are there three times.
    assert (found.instructions, found.turn_instructions) == (1, 3)
    assert (found.registers, found.shared) == (32 + 640 // 64, 100 + 3 * 1000)
    assert found.estimated
