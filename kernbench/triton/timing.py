"""From a launch, as it is counted and compiled, to what the law of its time takes."""

from collections.abc import Mapping
from fractions import Fraction
from math import ceil
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
    same: Mapping[int, int],
) -> GridLaunch:
    """Returns a launch as `kernels.grids` takes it.

    Args:
        work: What its programs do.
        machine: Their machine code; without it, all that it tells is estimated.
        warps: Warps of a program.
        stages: Turns of a loop whose loads the compiler was asked to have under way at once.
        extents: Bytes of the tensors that are given, by number of the argument.
        same: For each of them the first argument that is of the same memory.
    """
    programs = sum(count for count, _ in work.turns)
    turns = sum(count * each for count, each in work.turns)
    if machine is None:
        outside, inside = (-(-each // (warps * LANES)) for each in work.issued)
        waits, ahead, beside = Fraction(turns), bool(work.flop), False
        registers = _BASE + work.largest // (warps * LANES)
        # Operands of products lie in shared memory, those of a loop once for each stage.
        shared = work.tiles[0] + stages * work.tiles[1] if ahead else 0
    else:
        outside, inside, waits = _issued(work, machine, programs, warps * LANES)
        ahead = any(loop.ahead for loop in machine.loops)
        deep = [loop for loop in machine.loops if loop.innermost]
        beside = bool(deep) and all(loop.beside for loop in deep)
        registers, shared = machine.registers, machine.shared
    return GridLaunch(
        warps,
        stages if ahead else 1,
        tuple(work.turns),
        -(-outside // programs),
        -(-inside // turns) if turns else 0,
        work.distinct(extents, same),
        work.traffic,
        work.flop,
        registers,
        shared,
        machine is None,
        waits / turns if turns else Fraction(1),
        beside,
    )


def _issued(
    work: Work, machine: MachineCode, programs: int, threads: int
) -> tuple[int, int, Fraction]:
    """Returns what a warp of each program issues, summed over programs: outside and in turns.

    The third number is how often programs wait for loads in turns. Loops of the machine code are
    those of the text, in order. If they are not as many, since some were unrolled or split, each
    counts as the one of the text that takes the most turns.

    A loop is unrolled if its turn loads what several of the text do, with the loads of some under
    way together; turns that are left over have code of their own outside, as long as the loop's but
    for one turn. Where a barrier parts them all, each turn of the text counts as one of the loop:
    what it waits for at barriers is not known otherwise.
    """
    outside, inside, waits = machine.outside * programs, Fraction(0), Fraction(0)
    deep = [loop for loop in machine.loops if loop.innermost]
    known = [turns for innermost, turns, _ in work.loops if innermost]
    most = max(known, default=0)
    alike = [each.innermost for each in machine.loops] == [each for each, *_ in work.loops]
    for place, loop in enumerate(machine.loops):
        if not alike:
            turns, often = (most // len(deep) if loop.innermost else programs), 1
        else:
            _, turns, tiles = work.loops[place]
            loaded = sum(-(-elements // threads) * each for elements, each in tiles)
            often = loop.loaded // loaded if loaded else 1
        if loop.waits >= often:
            often = 1
        if loop.innermost:
            inside += Fraction(loop.instructions * turns, often)
            outside -= programs * (loop.instructions * (often - 1) // often)
            waits += Fraction((loop.waits if often > 1 else 1) * turns, often)
        else:
            outside += loop.instructions * turns
    return max(0, outside), ceil(inside), waits
