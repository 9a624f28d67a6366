"""From a launch, as it is counted and compiled, to what the law of its time takes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Final

from kernbench.kernels.contention import Contention, contention_of, spread_over
from kernbench.kernels.grids import LANES, GridLaunch
from kernbench.triton.machine_code import Loop, MachineCode
from kernbench.ttir.counting import Atomic, TextLoop, Work

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
        waits, ahead, beside, together = _waits(work.loops), bool(work.flop), False, True
        spilled = stack = 0
        registers = _BASE + work.largest // (warps * LANES)
        # Operands of products lie in shared memory, those of a loop once for each stage.
        shared = work.tiles[0] + stages * work.tiles[1] if ahead else 0
    else:
        machine = _without_retries(machine, len(work.loops))
        outside, inside, waits, spilled = _issued(work, machine, programs, warps * LANES)
        ahead = any(loop.ahead for loop in machine.loops)
        deep = [loop for loop in machine.loops if loop.innermost]
        beside = bool(deep) and all(loop.beside for loop in deep)
        registers, shared = machine.registers, machine.shared
        stack, together = machine.stack, machine.together
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
        contention=tuple([_contention(each, extents) for each in work.atomics]),
        spilled=spilled * warps * LANES,
        stack=stack * warps * LANES,
        together=together,
    )


def _without_retries(machine: MachineCode, loops: int) -> MachineCode:
    """Returns machine code in which loops that retry are a part of what is around them.

    They are none of the text's; mostly an atomic operation succeeds at once.

    Args:
        loops: How many loops the text has.
    """
    if len(machine.loops) <= loops:
        return machine
    outside, found = machine.outside, list(machine.loops)
    for loop in machine.loops:
        if loop.retries and loop.around < 0:
            outside += loop.instructions
        elif loop.retries:
            around = found[loop.around]
            found[loop.around] = replace(
                around, instructions=around.instructions + loop.instructions
            )
    left = [number for number, loop in enumerate(found) if not loop.retries]
    within = {found[number].around for number in left}
    deep = [replace(found[number], innermost=number not in within) for number in left]
    return replace(machine, outside=outside, loops=deep)


_UNKNOWN: Final = 1 << 20
"""Bytes of a memory of which no argument tells the extent."""


def _contention(atomic: Atomic, extents: Mapping[int, int]) -> Contention:
    """Returns what an atomic operation asks of the last cache.

    Where numbers in memory say where it adds, it adds anywhere, at random.
    """
    extent = _UNKNOWN if atomic.root is None else extents.get(atomic.root, _UNKNOWN)
    seen = atomic.seen
    if seen is None:
        seen = spread_over(extent, atomic.itemsize)
    looked_at = seen.shape[0] * seen.shape[1]
    scale = atomic.requests / looked_at if looked_at else 0.0
    return contention_of(seen, atomic.itemsize, scale, extent)


def _issued(
    work: Work, machine: MachineCode, programs: int, threads: int
) -> tuple[int, int, Fraction, int]:
    """Returns what a warp of each program issues, summed over programs: outside and in turns.

    The third number is how often programs wait for loads in turns, the fourth the bytes of
    registers that a thread of each spills. Loops of the machine code are those of the text, in
    order. If they are not as many, since some were unrolled or split, each counts as the one of the
    text that takes the most turns. What takes over the turns that are left of an unrolled one
    counts as none.
    """
    outside, inside, waits = machine.outside * programs, Fraction(0), Fraction(0)
    spilled = Fraction(machine.spilled * programs)
    loops = _mains(machine.loops, len(machine.loops) - len(work.loops))
    deep = [loop for loop, _ in loops if loop.innermost]
    most = max((each.turns for each in work.loops if each.innermost), default=0)
    alike = [each.innermost for each, _ in loops] == [each.innermost for each in work.loops]
    for place, (loop, left) in enumerate(loops):
        if alike:
            turns = work.loops[place].turns
            often = _unrolled(loop, work.loops[place], threads, left)
        else:
            often = left
            turns = most // len(deep) if loop.innermost else programs
        if loop.innermost:
            inside += Fraction(loop.instructions * turns, often)
            outside -= programs * (loop.instructions * (often - 1) // often)
            spilled += Fraction(loop.spilled * turns, often)
        else:
            outside += loop.instructions * turns
            spilled += loop.spilled * turns
        waits += Fraction((loop.waits if often > 1 else min(1, loop.waits)) * turns, often)
    if not alike:
        waits = _waits(work.loops)
    return max(0, outside), ceil(inside), waits, ceil(spilled)


def _waits(loops: Sequence[TextLoop]) -> Fraction:
    """Returns how often programs wait for loads in turns, if each turn waits for its own."""
    return Fraction(sum(each.turns for each in loops if each.waits))


def _mains(loops: Sequence[Loop], beyond: int) -> list[tuple[Loop, int]]:
    """Returns loops, and of how many turns each of them has been unrolled, as far as they tell.

    An unrolled loop may be followed by one that takes the turns which are left over, of a counter
    that moves on by a part of its step; that is left out.

    Args:
        beyond: How many loops there are beyond those of the text.
    """
    found: list[tuple[Loop, int]] = []
    for loop in loops:
        if beyond > 0 and found and loop.innermost and loop.step:
            before, _ = found[-1]
            often, rest = divmod(before.step, loop.step)
            if before.innermost and often > 1 and not rest and loop.loaded * often == before.loaded:
                found[-1] = before, often
                beyond -= 1
                continue
        found.append((loop, 1))
    return found


def _unrolled(loop: Loop, text: TextLoop, threads: int, left: int) -> int:
    """Returns how many turns of a loop of the text are one of the machine code's.

    It is told by what a turn loads, which warps may each load for themselves, and no more than by
    how far the counter moves on. Where barriers part the loads of all these turns, each turn of the
    text counts as one of the loop: what it waits for at barriers is not known otherwise.

    Args:
        threads: Threads of a program.
        left: As many as the loop tells that takes those which are left over.
    """
    loaded = sum(-(-elements // threads) * each for elements, each in text.tiles)
    if loaded:
        often = max(1, loop.loaded // loaded)
        if text.step and loop.step and not loop.step % text.step:
            often = min(often, loop.step // text.step)
        return 1 if loop.parted >= often else often
    if left > 1:
        return left
    often, rest = divmod(loop.step, text.step) if text.step else (1, 1)
    # An address that took the counter's place moves on by bytes.
    return often if often and not rest and 2 * often <= loop.instructions else 1
