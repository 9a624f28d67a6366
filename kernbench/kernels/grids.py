"""Kernels whose programs work on tiles, such as Triton's: what a launch of them takes.

One function, `grid_time`, from a plain record of a launch, `GridLaunch`, to its time with its parts. It knows no
compiler: whoever launches a kernel says what its programs do, as far as that is known.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GridLaunch:
    """A launch of equal programs, or of programs that differ in the turns of their loops.

    Attributes:
        programs: How many; at least 1.
        warps: Warps of each program, of 32 threads.
        stages: How many turns of a loop have their loads under way at once; 1: none is ahead.
        turns: Turns of the innermost loops, of all programs together.
        longest: Most turns of one program.
        instructions: What each warp of a program issues, summed over the programs.
        hbm_bytes: Different bytes that are read and written.
        l2_bytes: Bytes that are read and written, as often as they are.
        flop: Operations of the matrix engines, by the type of operands as a machine's file names it, such as `bf16`.
        registers: Of each thread; None if no compiler has told.
        shared: Bytes of shared memory of each program; None if no compiler has told.
    """

    programs: int
    warps: int
    stages: int
    turns: int
    longest: int
    instructions: int
    hbm_bytes: int
    l2_bytes: int
    flop: Mapping[str, int] = field(default_factory=dict)
    registers: int | None = None
    shared: int | None = None
