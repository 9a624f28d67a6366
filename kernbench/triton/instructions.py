"""Instructions of machine code: those few of which times depend, told from their bits.

NVIDIA's `nvdisasm` prints them all, but takes 0.3 s for the smallest kernel, longer than Triton
takes to compile it. An instruction has 128 bits since sm_70, and the lowest 12 say which it is.
NVIDIA publishes no encodings: those below are what `nvdisasm` prints for kernels of sm_80 to
sm_120, and `tests/triton_kernels/test_triton_instructions.py` compares both.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

from kernbench.errors import UsageError

_Moves = Literal["load", "store", "atomic", "copy", "tensor copy", "spill"]
Kind = Literal["", "idle", "branch", "barrier", "under way", "step", "test"] | _Moves

_BYTES: Final = 16
_KINDS: Final[dict[int, Kind]] = {
    0x918: "idle",  # NOP
    0x947: "branch",  # BRA
    0x547: "branch",  # BRA.U
    0x981: "load",  # LDG
    0x986: "store",  # STG
    0x9A8: "atomic",  # ATOMG
    0x3A9: "atomic",  # ATOMG.CAS
    0x983: "spill",  # LDL
    0x387: "spill",  # STL
    0xFAE: "copy",  # LDGSTS
    0x5B4: "tensor copy",  # UTMALDG
    0xB1D: "barrier",  # BAR
    0x9C5: "under way",  # WARPGROUP: DEPBAR where bit 47 is set, else ARRIVE
    0x810: "step",  # IADD3
    0x836: "step",  # VIADD
    0x890: "step",  # UIADD3
    0x20C: "test",  # ISETP
    0x80C: "test",
    0xA0C: "test",
    0xC0C: "test",
    0x28C: "test",  # UISETP
    0x88C: "test",
}
_UNIFORM: Final = 256
"""What is added to the number of a register that all threads of a warp share."""

_NONE: Final = 0xFF
"""The register that is always 0."""

_NONE_UNIFORM: Final = {True: 0xFF, False: 0x3F}
"""The same of those that a warp shares, by whether there are more of them, as from sm_100 on."""

_FIRST: Final = frozenset({0x80C, 0xA0C, 0x88C})
"""Tests of which only the first operand is a register."""

_LOADED: Final = (1, 1, 2, 2, 4, 8, 16, 16)
"""Bytes by the size's three bits of LDG, LDL and STL: U8, S8, U16, S16, 32, 64, 128."""

_COPIED: Final = (4, 8, 16, 16)
_LATER_BRANCHES: Final = 90
"""From which architecture on the lowest 8 bits of where a branch goes to stand apart."""

_LATER_COPIES: Final = 100
"""From which architecture on the size of LDGSTS stands a bit further up."""

_TEXT: Final = b".text."
_PROGRAM: Final = 1
"""Type of a section of an ELF file that holds a program."""


class Instruction(NamedTuple):
    """An instruction.

    Attributes:
        kind: `copy` and `tensor copy` load into shared memory, which nobody waits for at once;
            `under way` waits for products; an `atomic` returns what was there; a `step` adds a
            constant to a register, a `test` compares registers; a `spill` moves a register to or
            from memory of the thread's own, for want of registers; an empty one is any other.
        amount: Bytes that a thread moves (`load`, `copy`, `spill`); where a branch goes to, as the
            number of the instruction; how many products are left under way; what a step adds.
        registers: Those that a step changes or a test compares.
    """

    kind: Kind = ""
    amount: int = 0
    registers: tuple[int, ...] = ()


def instructions_of(cubin: bytes, arch: int) -> Sequence[Instruction]:
    """Returns the instructions of a kernel and of the functions that it calls.

    Args:
        cubin: The kernel, as an ELF file.
        arch: The architecture: 90 of sm_90.

    Raises:
        UsageError: If it is no such file, or of an architecture before sm_70.
    """
    found: list[Instruction] = []
    for code in _sections(cubin):
        base = len(found)
        words = struct.iter_unpack("<QQ", code[: len(code) // _BYTES * _BYTES])
        found += (
            _instruction(low, high, base + place, arch) for place, (low, high) in enumerate(words)
        )
    if not found or arch < 70:
        raise UsageError(f"no machine code of sm_70 or newer was made, but for sm_{arch}")
    return found


def _sections(cubin: bytes) -> Iterator[bytes]:
    """Yields the sections that hold instructions, in the order of the file."""
    if cubin[:5] != b"\x7fELF\x02":
        return
    (at,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, at + size * n) for n in range(count)]
    begin = headers[names][4]
    for name, kind, _, _, offset, length in headers:
        if kind == _PROGRAM and cubin.startswith(_TEXT, begin + name):
            yield cubin[offset : offset + length]


def _instruction(low: int, high: int, place: int, arch: int) -> Instruction:
    kind = _KINDS.get(low & 0xFFF, "")
    if kind == "branch":
        # A signed number of words of 4 bytes from the next instruction on.
        words = low >> 34 | (high & 0x3FFFF) << 30
        words -= (words & 1 << 47) << 1
        if arch >= _LATER_BRANCHES:
            words = words << 8 | low >> 16 & 0xFF
        return Instruction(kind, place + 1 + words // 4)
    if kind in ("load", "spill"):
        return Instruction(kind, _LOADED[high >> 9 & 7])
    if kind == "copy":
        return Instruction(kind, _COPIED[high >> (10 if arch >= _LATER_COPIES else 9) & 3])
    if kind == "under way":
        return Instruction(kind, high >> 8 & 0xFF) if low >> 47 & 1 else Instruction()
    if kind == "atomic" and low >> 16 & 0xFF == _NONE:
        return Instruction()
    if kind == "step":
        return _step(low, high, arch)
    if kind == "test":
        return _test(low, arch)
    return Instruction(kind)


def _register(number: int, uniform: bool, arch: int) -> tuple[int, ...]:
    """Returns a register by its eight bits; none for the one that is always 0."""
    number &= 0xFF
    if number == (_NONE_UNIFORM[arch >= _LATER_COPIES] if uniform else _NONE):
        return ()
    return (number + _UNIFORM * uniform,)


def _step(low: int, high: int, arch: int) -> Instruction:
    """Returns an addition of a constant, as a step if it is to the register that it reads."""
    code, uniform = low & 0xFFF, low & 0xFFF == 0x890
    made, read, added = low >> 16 & 0xFF, low >> 24 & 0xFF, low >> 32
    # VIADD adds two; the others have a third operand, and take over what the lower half of a
    # number of 64 bits carries.
    more = code != 0x836 and (_register(high, uniform, arch) or high >> 10 & 1)
    negative = high >> 8 & 1  # what is read
    if made != read or more or negative:
        return Instruction()
    return Instruction("step", added - (added >> 31 << 32), _register(made, uniform, arch))


def _test(low: int, arch: int) -> Instruction:
    """Returns a comparison, with the registers that it compares."""
    code, uniform = low & 0xFFF, low & 0xFF == 0x8C
    compared = _register(low >> 24, uniform, arch)
    if code not in _FIRST:
        compared += _register(low >> 32, uniform or code == 0xC0C, arch)
    return Instruction("test", 0, compared)
