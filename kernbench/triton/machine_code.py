"""What a kernel in machine code consists of: registers, shared memory, and how many instructions.

Registers are what `cuobjdump` prints, which comes with Triton; instructions are read from the file.
"""

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kernbench.errors import UsageError
from kernbench.triton.instructions import Instruction, instructions_of

_USAGE: Final = re.compile(r"REG:(\d+) STACK:(\d+)")


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of the machine code.

    Attributes:
        instructions: Those in it, and in no loop inside of it.
        innermost: Whether it has no loop inside.
        ahead: Whether it loads what later turns use.
        loaded: Bytes that a thread loads.
        waits: How often it waits for loads, if none is ahead: those that no barrier, store or
            atomic operation parts are under way together. Atomic operations that return what was
            there count as loads.
        beside: Whether its last product goes on beside the instructions of the next turn.
        parted: Into how many parts barriers part its loads.
        step: By how much a turn moves the counter on; 0 if that is not known.
        spilled: Bytes of registers that a thread moves to and from memory.
        around: Number of the loop in which it is; -1: in none.
        retries: Whether it does nothing but try an atomic operation until that succeeds.
    """

    instructions: int
    innermost: bool
    ahead: bool
    loaded: int = 0
    waits: int = 1
    beside: bool = False
    parted: int = 1
    step: int = 0
    spilled: int = 0
    around: int = -1
    retries: bool = False


@dataclass(frozen=True, slots=True)
class MachineCode:
    """A kernel in machine code.

    Attributes:
        registers: Of a thread.
        shared: Bytes of shared memory of a program.
        outside: Instructions in no loop.
        loops: Its loops, in the order in which they begin.
        spilled: Bytes of registers that a thread moves to and from memory, in no loop.
        stack: Bytes of a thread's registers that lie in memory.
        together: Whether the warps of a program wait for each other.
    """

    registers: int
    shared: int
    outside: int
    loops: Sequence[Loop]
    spilled: int = 0
    stack: int = 0
    together: bool = True


class Coming(Protocol):
    """Machine code that is being made."""

    def check(self) -> None:
        """Waits until it is known whether a program fits a PE.

        Raises:
            OutOfResources: If it needs more shared memory than a PE has, as on a GPU.
        """
        ...

    def code(self) -> MachineCode | None:
        """Returns the machine code; None if there is none, or it is not to be looked at."""
        ...


def registers_of(cubin: bytes, usage: str) -> tuple[int, int]:
    """Returns the registers of a thread, and bytes of it that are kept in memory for want of them.

    Args:
        cubin: The kernel, as an ELF file.
        usage: Path of `cuobjdump`.

    Raises:
        UsageError: If that cannot read it.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = usage, "-res-usage", file.name
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = _USAGE.search(done.stdout)
    if done.returncode or found is None:
        raise UsageError(
            f"{usage} does not tell the registers of a kernel", [done.stderr.strip()[:400]]
        )
    return int(found[1]), int(found[2])


def read_cubin(cubin: bytes, shared: int, arch: int, usage: str) -> MachineCode:
    """Returns what a kernel in machine code consists of.

    Args:
        cubin: The kernel, as an ELF file.
        shared: Bytes of shared memory of a program, which the file does not tell.
        arch: The architecture: 90 of sm_90.
        usage: Path of `cuobjdump`.

    Raises:
        UsageError: If one of them cannot be read.
    """
    instructions = instructions_of(cubin, arch)
    outside, loops = loops_of(instructions)
    registers, stack = registers_of(cubin, usage)
    spilled = sum(each.amount for each in outside if each.kind == "spill")
    together = any(each.kind == "barrier" for each in instructions)
    return MachineCode(registers, shared, len(outside), loops, spilled, stack, together)


def loops_of(
    instructions: Sequence[Instruction],
) -> tuple[Sequence[Instruction], Sequence[Loop]]:
    """Returns the instructions that are in no loop, and the loops.

    A branch to an instruction before it closes a loop; several to one place are of one loop. What
    branches to itself, behind the last exit, never runs.
    """
    ends: dict[int, int] = {}
    for place, instruction in enumerate(instructions):
        begin = instruction.amount
        if instruction.kind == "branch" and begin < place:
            ends[begin] = max(place, ends.get(begin, 0))
    spans = sorted(ends.items(), key=lambda each: (each[0], -each[1]))
    of = [-1] * len(instructions)  # the innermost loop of each instruction
    for number, (begin, end) in enumerate(spans):
        of[begin : end + 1] = [number] * (end + 1 - begin)
    inside: list[list[Instruction]] = [[] for _ in range(len(spans) + 1)]
    for number, instruction in zip(of, instructions, strict=True):
        if instruction.kind != "idle":
            inside[number].append(instruction)
    loops = []
    for number, (begin, end) in enumerate(spans):
        innermost = not any(begin <= other and stop <= end for other, stop in spans[number + 1 :])
        around = next((n for n in reversed(range(number)) if spans[n][1] >= end), -1)
        loops.append(_loop(inside[number], innermost, around))
    return inside[-1], loops


_RETRY: Final = 16
"""Most instructions of a loop that tries an atomic operation again."""


def _loop(instructions: Sequence[Instruction], innermost: bool, around: int) -> Loop:
    loaded = waits = parted = step = spilled = 0
    ahead = beside = waiting = together = False
    steps = {each.registers: each.amount for each in instructions if each.kind == "step"}
    for kind, amount, registers in instructions:
        ahead |= kind in ("copy", "tensor copy")
        beside |= kind == "under way" and amount > 0
        if kind in ("load", "copy"):
            loaded += amount
        spilled += amount if kind == "spill" else 0
        if kind in ("load", "atomic"):
            waits += not waiting
            parted += not together
            waiting = together = True
        if kind == "barrier":  # where a program waits for all its warps, and they for loads
            waiting = together = False
        elif kind in ("store", "atomic"):
            waiting = False
        elif kind == "test":
            step = next((abs(steps[(one,)]) for one in registers if (one,) in steps), step)
    count = len(instructions)
    kinds = {each.kind for each in instructions}
    retries = innermost and "atomic" in kinds and "load" not in kinds and count <= _RETRY
    return Loop(
        count,
        innermost,
        ahead,
        loaded=loaded,
        waits=waits,
        beside=beside,
        parted=parted,
        step=step,
        spilled=spilled,
        around=around,
        retries=retries,
    )
