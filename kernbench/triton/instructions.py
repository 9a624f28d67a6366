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

Kind = Literal["", "idle", "branch", "load", "copy", "tensor copy", "barrier", "under way"]

_BYTES: Final = 16
_KINDS: Final[dict[int, Kind]] = {
    0x918: "idle",  # NOP
    0x947: "branch",  # BRA
    0x547: "branch",  # BRA.U
    0x981: "load",  # LDG
    0xFAE: "copy",  # LDGSTS
    0x5B4: "tensor copy",  # UTMALDG
    0xB1D: "barrier",  # BAR
    0x9C5: "under way",  # WARPGROUP: DEPBAR where bit 47 is set, else ARRIVE
}
_LOADED: Final = (1, 1, 2, 2, 4, 8, 16, 16)
"""Bytes by the size's three bits of LDG: U8, S8, U16, S16, 32, 64, 128."""

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
            `under way` waits for products; an empty one is any other.
        amount: Bytes that a thread loads (`load`, `copy`); where a branch goes to, as the number of
            the instruction; how many products are left under way.
    """

    kind: Kind = ""
    amount: int = 0


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
    if kind == "load":
        return Instruction(kind, _LOADED[high >> 9 & 7])
    if kind == "copy":
        return Instruction(kind, _COPIED[high >> (10 if arch >= _LATER_COPIES else 9) & 3])
    if kind == "under way":
        return Instruction(kind, high >> 8 & 0xFF) if low >> 47 & 1 else Instruction()
    return Instruction(kind)
