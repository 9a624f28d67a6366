"""From a launch, as it is counted and compiled, to what the law of its time takes."""

from collections.abc import Mapping

from kernbench.kernels.grids import LANES, GridLaunch
from kernbench.triton.machine_code import MachineCode
from kernbench.ttir.counting import Work


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
        machine: Their machine code. Without it, each warp is taken to issue an instruction for each
            number that its threads compute, and registers and shared memory to limit nothing.
        warps: Warps of a program.
        stages: Turns of a loop whose loads the compiler was asked to have under way at once.
        extents: Bytes of the tensors that are given, by number of the argument.
    """
    programs = sum(count for count, _ in work.turns)
    turns = sum(count * each for count, each in work.turns)
    if machine is None:
        outside, inside = (each // (warps * LANES) for each in work.elements)
        ahead = bool(work.flop)
    else:
        outside, inside = _issued(work, machine, programs)
        ahead = any(loop.ahead for loop in machine.loops)
    return GridLaunch(
        warps,
        stages if ahead else 1,
        tuple(work.turns),
        -(-outside // programs),
        -(-inside // turns) if turns else 0,
        work.distinct(extents),
        work.traffic,
        work.flop,
        None if machine is None else machine.registers,
        None if machine is None else machine.shared,
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
