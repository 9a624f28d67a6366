"""From a launch, as it is counted and compiled, to what the law of its time takes."""

from collections.abc import Mapping
from typing import Final

from kernbench.kernels.grids import LANES, GridLaunch
from kernbench.triton.machine_code import MachineCode
from kernbench.ttir.counting import Work

_BASE: Final = 32
"""Registers of a thread beside its part of the largest tile: an estimate."""


def grid_launch(
    work: Work,
    machine: MachineCode | None,
    warps: int,
    stages: int,
    extents: Mapping[int, int],
) -> GridLaunch:
    """Returns a launch as `kernels.grids` takes it.

    Args:
        work: What its programs do.
        machine: Their machine code; without it, all that it tells is estimated.
        warps: Warps of a program.
        stages: Turns of a loop whose loads the compiler was asked to have under way at once.
        extents: Bytes of the tensors that are given, by number of the argument.
    """
    programs = sum(count for count, _ in work.turns)
    turns = sum(count * each for count, each in work.turns)
    if machine is None:
        outside, inside = (-(-each // (warps * LANES)) for each in work.issued)
        ahead = bool(work.flop)
        registers = _BASE + work.largest // (warps * LANES)
        # Operands of products lie in shared memory, those of a loop once for each stage.
        shared = work.tiles[0] + stages * work.tiles[1] if ahead else 0
    else:
        outside, inside = _issued(work, machine, programs)
        ahead = any(loop.ahead for loop in machine.loops)
        registers, shared = machine.registers, machine.shared
    return GridLaunch(
        warps,
        stages if ahead else 1,
        tuple(work.turns),
        -(-outside // programs),
        -(-inside // turns) if turns else 0,
        work.distinct(extents),
        work.traffic,
        work.flop,
        registers,
        shared,
        machine is None,
    )


def _issued(work: Work, machine: MachineCode, programs: int) -> tuple[int, int]:
    """Returns what a warp of each program issues, summed over programs: outside and in turns.

    Loops of the machine code are those of the text, in order. If they are not as many, since some
    were unrolled or split, each counts as the one of the text that takes the most turns.
    """
    outside, inside = machine.outside * programs, 0
    deep = [loop for loop in machine.loops if loop.innermost]
    known = [turns for innermost, turns in work.loops if innermost]
    most = max(known, default=0)
    alike = [each.innermost for each in machine.loops] == [each for each, _ in work.loops]
    for place, loop in enumerate(machine.loops):
        if loop.innermost:
            inside += loop.instructions * (work.loops[place][1] if alike else most // len(deep))
        else:
            outside += loop.instructions * (work.loops[place][1] if alike else programs)
    return outside, inside
