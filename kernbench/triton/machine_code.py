"""What a kernel in machine code consists of: registers, shared memory, and how many instructions.

Read from what NVIDIA's tools print, which come with Triton.
"""

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kernbench.errors import UsageError

_LABEL: Final = re.compile(r"\s*(\.L_\w+):")
_INSTRUCTION: Final = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;")
_TARGET: Final = re.compile(r"`\((\.L_\w+)\)")
_IDLE: Final = re.compile(r"(@!?U?P\w+ )?NOP\b")
_AHEAD: Final = re.compile(r"(LDGSTS|UBLKCP|UTMALDG)\b")
"""Loads into shared memory, which nobody waits for at once."""

_LOAD: Final = re.compile(r"\b(LDG|LDGSTS)\b(\.\w+)*")
_WIDTHS: Final = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
"""Bytes that a thread loads, by the word of the instruction that tells them; 4 without one."""

_BARRIER: Final = re.compile(r"\bBAR\b")
"""Where a program waits for all its warps, and these for what they have loaded."""

_BESIDE: Final = re.compile(r"WARPGROUP\.DEPBAR\.LE gsb\d+, 0x0*[1-9a-f]")
"""Waits for products, but leaves some of them under way."""

_USAGE: Final = re.compile(r"REG:(\d+) STACK:(\d+)")


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of the machine code.

    Attributes:
        instructions: Those in it, and in no loop inside of it.
        innermost: Whether it has no loop inside.
        ahead: Whether it loads what later turns use.
        loaded: Bytes that a thread loads.
        waits: How often it waits for loads, if none is ahead: those that no barrier parts are under
            way together.
        beside: Whether its last product goes on beside the instructions of the next turn.
    """

    instructions: int
    innermost: bool
    ahead: bool
    loaded: int = 0
    waits: int = 1
    beside: bool = False


@dataclass(frozen=True, slots=True)
class MachineCode:
    """A kernel in machine code.

    Attributes:
        registers: Of a thread.
        shared: Bytes of shared memory of a program.
        outside: Instructions in no loop.
        loops: Its loops, in the order in which they begin.
    """

    registers: int
    shared: int
    outside: int
    loops: Sequence[Loop]


def registers_of(cubin: bytes, usage: str) -> tuple[int, int]:
    """Returns the registers of a thread, and bytes of it that are kept in memory for want of them.

    Args:
        cubin: The kernel, as an ELF file.
        usage: Path of `cuobjdump`.

    Raises:
        UsageError: If that cannot read it.
    """
    found = _USAGE.search(_printed(cubin, usage, "-res-usage"))
    if found is None:
        raise UsageError(f"{usage} does not tell the registers of a kernel")
    return int(found[1]), int(found[2])


def read_cubin(cubin: bytes, shared: int, usage: str, disassembler: str) -> MachineCode:
    """Returns what a kernel in machine code consists of.

    Args:
        cubin: The kernel, as an ELF file.
        shared: Bytes of shared memory of a program, which the file does not tell.
        usage: Path of `cuobjdump`.
        disassembler: Path of `nvdisasm`.

    Raises:
        UsageError: If one of them cannot read it.
    """
    outside, loops = loops_of(_printed(cubin, disassembler, "-hex"))
    return MachineCode(registers_of(cubin, usage)[0], shared, outside, loops)


def _printed(cubin: bytes, tool: str, option: str) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = tool, option, file.name
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(f"{tool} failed", [done.stderr.strip()[:400]])
    return done.stdout


def loops_of(listing: str) -> tuple[int, Sequence[Loop]]:
    """Returns how many instructions are in no loop, and the loops.

    A branch to an instruction before it closes a loop; several to one place are of one loop. What
    branches to itself, behind the last exit, never runs.

    Args:
        listing: What `nvdisasm` prints.
    """
    labels: dict[str, int] = {}
    instructions: list[str] = []
    for line in listing.splitlines():
        label = _LABEL.match(line)
        found = _INSTRUCTION.match(line)
        if label:
            labels[label[1]] = len(instructions)
        elif found:
            instructions.append(found[1])
    ends: dict[int, int] = {}
    for place, instruction in enumerate(instructions):
        target = _TARGET.search(instruction)
        begin = labels.get(target[1]) if target and "BRA" in instruction else None
        if begin is not None and begin < place:
            ends[begin] = max(place, ends.get(begin, 0))
    spans = sorted(ends.items(), key=lambda each: (each[0], -each[1]))
    of = [-1] * len(instructions)  # the innermost loop of each instruction
    for number, (begin, end) in enumerate(spans):
        of[begin : end + 1] = [number] * (end + 1 - begin)
    inside: list[list[str]] = [[] for _ in range(len(spans) + 1)]
    for number, instruction in zip(of, instructions, strict=True):
        if not _IDLE.match(instruction):
            inside[number].append(instruction)
    loops = [
        _loop(
            inside[number],
            not any(begin <= other and stop <= end for other, stop in spans[number + 1 :]),
        )
        for number, (begin, end) in enumerate(spans)
    ]
    return len(inside[-1]), loops


def _loop(instructions: Sequence[str], innermost: bool) -> Loop:
    loaded = waits = 0
    ahead = beside = waiting = False
    for instruction in instructions:
        load = _LOAD.search(instruction)
        ahead |= bool(_AHEAD.search(instruction))
        beside |= bool(_BESIDE.search(instruction))
        if load:
            words = load[0].split(".")
            loaded += next((_WIDTHS[word] for word in reversed(words) if word in _WIDTHS), 4)
            waits += load[1] == "LDG" and not waiting
            waiting |= load[1] == "LDG"
        elif _BARRIER.search(instruction):
            waiting = False
    return Loop(len(instructions), innermost, ahead, loaded, waits, beside)
