"""Makes reports for users of what programs of a kernel do wrong."""

import linecache
from typing import Final

import numpy as np

from kernbench.errors import KernbenchError
from kernbench.ttir.frames import ProgramError
from kernbench.ttir.memory import Memory, OutsideError
from kernbench.ttir.module import Operation, Site
from kernbench.ttir.races import MANY, RaceError

_LIBRARY: Final = "triton/language/"
"""Part of the paths of Triton's own library, whose functions are inlined into kernels."""

_READS: Final = frozenset({"tt.load", "tt.descriptor_load", "tt.descriptor_gather"})


class OutOfBoundsError(KernbenchError):
    """A program touches what is outside of the memory that it was given (M1, M2)."""


class ProgramRaceError(KernbenchError):
    """Programs of one launch, or lanes of one store, touch an element in no order (M12)."""


class KernelAssertionError(KernbenchError, AssertionError):
    """A condition that a kernel asserts does not hold."""


class KernelWaitError(KernbenchError):
    """A program waits for what no program before it writes (K7)."""


def report(error: ProgramError, kernel: str, grid: tuple[int, int, int]) -> KernbenchError:
    """Returns what a user is told of a mistake of a program.

    Args:
        error: The mistake.
        kernel: Name of the kernel.
        grid: Extents of its launch.
    """
    operation = error.operation
    program = f"program {_program(error.program, grid)} of {kernel}"
    facts = _places(operation)
    if error.outside is not None:
        return _outside(error, error.outside, program, facts)
    if error.kind == "wait":
        return KernelWaitError(
            f"{program} {error.message}",
            [*facts, "programs run one after the other, in the order of the grid"],
            hint="let programs wait only for what programs with lower numbers write",
            code="K7",
        )
    lane = f", lane {_tuple(error.lane)}" if error.lane else ""
    said = error.message or "an assertion does not hold"
    return KernelAssertionError(f"{kernel}: {said}", [*facts, f"{program}{lane}"])


def race(
    error: RaceError, kernel: str, grid: tuple[int, int, int], memory: Memory
) -> KernbenchError:
    """Returns what a user is told of programs, or lanes of one, that touch an element.

    Args:
        error: Who touches it.
        kernel: Name of the kernel.
        grid: Extents of its launch.
        memory: What the launch may touch.
    """
    (first, other), (second, mine) = error.first, error.second
    allocation = memory.at(error.address)
    label, place = "memory", f"address {error.address}"
    if allocation is not None:
        place = f"byte {error.address - allocation.start} of {len(allocation.data)}"
        label = allocation.label
    who = f"program {_program(mine, grid)}"
    whom = "other programs" if other == MANY else f"program {_program(other, grid)}"
    if other == mine:
        title = f"lanes of {who} of {kernel} store different values to the same element of {label}"
        facts = []
    else:
        title = f"{who} and {whom} of {kernel} touch the same elements of {label}, in no order"
        facts = [f"{whom}: {_call(first)} {place}", *_places(first)]
    lane = f", lane {_tuple(error.lane)}" if error.lane else ""
    return ProgramRaceError(
        title,
        [f"{who}{lane}: {_call(second)} {place}", *_places(second), *facts],
        hint="give each program elements of its own, or combine them with tl.atomic_add",
        code="M12",
    )


def _program(number: int, grid: tuple[int, int, int]) -> str:
    x, y, _ = grid
    return f"({number % x}, {number // x % y}, {number // (x * y)})"


def _outside(
    error: ProgramError, found: OutsideError, program: str, facts: list[str]
) -> KernbenchError:
    reads = error.operation.name in _READS
    lane = f", lane {_tuple(error.lane)}" if error.lane else ""
    row = int(np.argwhere(found.bad)[0][0])
    address = int(np.broadcast_to(found.addresses, found.bad.shape)[(row, *error.lane)])
    label = "all memory that the kernel was given"
    offset = f"address {address}"
    if found.allocation is not None:
        label = found.allocation.label
        offset = f"byte {address - found.allocation.start} of {len(found.allocation.data)}"
    many = f"{np.count_nonzero(found.bad)} of {found.bad.size} lanes of programs that run together"
    what = "misaligned in" if found.misaligned else "out of bounds of"
    hint = "move the pointer by whole elements" if found.misaligned else _MASKED[reads]
    return OutOfBoundsError(
        f"{_call(error.operation)} {what} {label}",
        [*facts, f"{program}{lane}", f"first bad element at {offset}; {many}"],
        hint=hint,
        code="M1" if reads else "M2",
    )


def _call(operation: Operation) -> str:
    """Returns how a kernel writes an operation."""
    name = operation.name.removeprefix("tt.")
    if name.startswith("descriptor_"):
        return f"{name.removeprefix('descriptor_')} of a descriptor"
    return f"tl.atomic_{operation.words[0]}" if name == "atomic_rmw" else f"tl.{name}"


_MASKED: Final = {
    True: "mask the lanes beyond the end: tl.load(ptr + offs, mask=offs < n)",
    False: "mask the lanes beyond the end: tl.store(ptr + offs, value, mask=offs < n)",
}
"""What to do, for reads and for others."""


def _tuple(place: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, place))}{',' if len(place) == 1 else ''})"


def _places(operation: Operation) -> list[str]:
    """Returns where the kernel asks for an operation: the innermost line of the user's first."""
    mine = [site for site in operation.sites if _LIBRARY not in site.file.replace("\\", "/")]
    return [
        f"{'called at' if place else 'at'} {_shown(site)}"
        for place, site in enumerate(mine or operation.sites)
    ]


def _shown(site: Site) -> str:
    source = linecache.getline(site.file, site.line).strip()
    place = f"{site.file}:{site.line}:{site.column}"
    return f"{place}: {source}" if source else place
