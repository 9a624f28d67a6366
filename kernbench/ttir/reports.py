"""Makes reports for users of what programs of a kernel do wrong."""

import linecache
import warnings
from collections.abc import Sequence
from typing import Final

import numpy as np

from kernbench.errors import KernbenchError
from kernbench.ttir.frames import BlockOf, ProgramError
from kernbench.ttir.marked import Cause
from kernbench.ttir.memory import Memory, OutsideError
from kernbench.ttir.module import Module, Operation, Site
from kernbench.ttir.races import RaceError
from kernbench.ttir.wrapping import wrapped

_LIBRARY: Final = "triton/language/"
"""Part of the paths of Triton's own library, whose functions are inlined into kernels."""

_READS: Final = frozenset({"tt.load", "tt.descriptor_load", "tt.descriptor_gather"})


class OutOfBoundsError(KernbenchError):
    """A program touches what is outside of the memory that it was given (M1, M2)."""


class ProgramRaceError(KernbenchError):
    """Programs of one launch, or lanes of one store, touch an element in no order (M12)."""


class UninitialisedReadError(KernbenchError):
    """A program uses elements that nothing has written (M5)."""


class KernelDivisionError(KernbenchError, ZeroDivisionError):
    """A program uses the quotient or the remainder of a division by 0 (K13)."""


class UndefinedLanesError(KernbenchError):
    """A program uses lanes of a load that the mask leaves out (K14)."""


class UndefinedLanesWarning(UserWarning):
    """The text of an `UndefinedLanesError`: such a lane often holds 0, so a kernel goes on."""


class KernelDescriptorError(KernbenchError):
    """A program makes a descriptor of a tensor as GPUs do not take it (K15)."""


class KernelAssertionError(KernbenchError, AssertionError):
    """A condition that a kernel asserts does not hold."""


class KernelWaitError(KernbenchError):
    """A program waits for what no program before it writes (K7)."""


class KernelEndlessError(KernbenchError):
    """A program goes on and on in a loop (K5)."""


def report(
    error: ProgramError, module: Module, grid: tuple[int, int, int], memory: Memory
) -> KernbenchError:
    """Returns what a user is told of a mistake of a program.

    Args:
        error: The mistake.
        module: The kernel.
        grid: Extents of its launch.
        memory: What the launch may touch.
    """
    operation, kernel = error.operation, module.kernel.name
    program = f"program {program_of(error.program, grid)} of {kernel}"
    facts = _places(operation)
    if error.outside is not None:
        return _outside(error, error.outside, module, program, facts)
    if error.cause is not None:
        return _undefined(error, error.cause, program, grid, memory)
    if error.kind == "descriptor":
        return KernelDescriptorError(
            f"{program} makes a descriptor of a tensor that {error.message}",
            facts,
            hint="pad the rows of the tensor, or load with pointers: tl.load(ptr + offs)",
            code="K15",
        )
    if error.kind == "wait":
        return KernelWaitError(
            f"{program} {error.message}",
            [*facts, "programs run one after the other, in the order of the grid"],
            hint="let programs wait only for what programs with lower numbers write",
            code="K7",
        )
    if error.kind == "endless":
        return KernelEndlessError(
            f"{program} {error.message}",
            [*facts, "the time is this host's; on a GPU the kernel might never end"],
            hint="look at what ends the loop; --watchdog or watchdog_s= sets the limit",
            code="K5",
        )
    lane = f", lane {_tuple(error.lane)}" if error.lane else ""
    said = error.message or "an assertion does not hold"
    return KernelAssertionError(f"{kernel}: {said}", [*facts, f"{program}{lane}"])


def waiting(loop: Operation, program: int, kernel: str, grid: tuple[int, int, int]) -> list[str]:
    """Returns what is told of a program that polls what another launch is to change.

    Args:
        loop: The loop in which it polls.
        program: Number of the program.
        kernel: Name of the kernel.
        grid: Extents of its launch.
    """
    return [f"program {program_of(program, grid)} of {kernel} polls", *_places(loop)]


def asked(operation: Operation) -> list[str]:
    """Returns what a kernel asks for, and where."""
    first, *others = _places(operation)
    return [f"{_call(operation)} {first}", *others]


def warning(error: KernbenchError, operation: Operation) -> None:
    """Warns of what is no error, at the line that asks for an operation."""
    site = next(iter(_mine(operation)), Site("kernel", 1))
    warnings.warn_explicit(str(error), UndefinedLanesWarning, site.file, site.line)


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
    label, place = _placed(error.address, memory)
    who = f"program {program_of(mine, grid)}"
    whom = f"program {program_of(other, grid)}"
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


def _placed(address: int, memory: Memory) -> tuple[str, str]:
    """Returns how the tensor that has an address is called, and where in it that is."""
    found = memory.at(address)
    if found is None:
        return "memory", f"address {address}"
    return found.label, f"byte {address - found.start} of {len(found.data)}"


def _undefined(
    error: ProgramError, cause: Cause, program: str, grid: tuple[int, int, int], memory: Memory
) -> KernbenchError:
    """Returns what is told of a program that uses what is not defined."""
    lane = f", lane {_tuple(error.lane)}" if error.lane else ""
    use = _USES.get(error.operation.name, f"{_call(error.operation)} uses it")
    facts = [f"{use} in {program}{lane}", *_places(error.operation)]
    if cause.kind == "unwritten":
        label, place = _placed(cause.address, memory)
        first = f", lane {_tuple(cause.lane)}" if cause.lane else ""
        return UninitialisedReadError(
            f"{_call(cause.operation)} reads what nothing has written of {label}",
            [
                *_places(cause.operation),
                f"program {program_of(cause.program, grid)}{first}: {place}, "
                f"the first of {cause.count}",
                *facts,
            ],
            hint="write them first, or make the tensor with zeros() instead of empty()",
            code="M5",
        )
    if cause.kind == "divided":
        return KernelDivisionError(
            f"{program} divides a whole number by 0",
            [*_places(cause.operation), *facts],
            hint="divide by tl.where(divisor == 0, 1, divisor)",
            code="K13",
        )
    return UndefinedLanesError(
        f"{program} uses lanes that the mask of tl.load leaves out and no other= defines",
        [*_places(cause.operation), *facts],
        hint="say what these lanes are: tl.load(ptr, mask=mask, other=0.0)",
        code="K14",
    )


_USES: Final = {
    "cf.cond_br": "a branch depends on it",
    "scf.condition": "a loop depends on it",
    "scf.for": "a loop depends on it",
    "scf.if": "a branch depends on it",
}
"""How operations that choose where to go on use a value."""


def program_of(number: int, grid: tuple[int, int, int]) -> str:
    """Returns the place of a program in its grid, as kernels know it."""
    x, y, _ = grid
    return f"({number % x}, {number // x % y}, {number // (x * y)})"


def _outside(
    error: ProgramError, found: OutsideError, module: Module, program: str, facts: list[str]
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
    more: list[str] = []
    block = _descriptor_of(error)
    if found.misaligned:
        hint = "move the pointer by whole elements"
    elif (sum_ := wrapped(error, module)) is not None:
        first, *others = _places(sum_.operation)
        more = [f"{sum_.shown} wraps around, as it is {sum_.type}, {first}", *others]
        hint = "convert an operand first: row.to(tl.int64) * stride"
    elif found.allocation is None:
        more = ["no tensor lies there; one that did is gone, or the address is no tensor's"]
        hint = "keep a tensor while kernels have its address, and take the address anew if it moves"
    elif block:
        more = [f"the descriptor says {block}"]
        hint = "make the descriptor with the shape and the strides of the tensor"
    elif address < found.allocation.start:
        hint = _BEFORE[reads]
    else:
        hint = _MASKED[reads]
    return OutOfBoundsError(
        f"{_call(error.operation)} {what} {label}",
        [*facts, f"{program}{lane}", f"first bad element at {offset}; {many}", *more],
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

_BEFORE: Final = {
    True: "mask the lanes before the start: tl.load(ptr + offs, mask=offs >= 0)",
    False: "mask the lanes before the start: tl.store(ptr + offs, value, mask=offs >= 0)",
}
"""The same of what lies before the tensor."""


def _descriptor_of(error: ProgramError) -> str:
    """Returns what the descriptor says that an access goes by; nothing if it goes by none."""
    operands = error.operation.operands
    held = error.frame.values[operands[0].number] if error.frame is not None else None
    if error.frame is None or not isinstance(held, BlockOf):
        return ""
    row = int(np.flatnonzero(error.frame.programs == error.program)[0])
    shape, strides = (
        _tuple(tuple(int(each[min(row, len(each) - 1)]) for each in numbers))
        for numbers in (held.shape, held.strides)
    )
    return f"shape {shape}, of strides {strides} in bytes"


def _tuple(place: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, place))}{',' if len(place) == 1 else ''})"


def _places(operation: Operation) -> list[str]:
    """Returns where the kernel asks for an operation: the innermost line of the user's first."""
    return [
        f"{'called at' if place else 'at'} {_shown(site)}"
        for place, site in enumerate(_mine(operation))
    ]


def _mine(operation: Operation) -> Sequence[Site]:
    """Returns the sites of an operation, without those in Triton's library if there are others."""
    mine = [site for site in operation.sites if _LIBRARY not in site.file.replace("\\", "/")]
    return mine or operation.sites


def _shown(site: Site) -> str:
    source = linecache.getline(site.file, site.line).strip()
    place = f"{site.file}:{site.line}:{site.column}"
    return f"{place}: {source}" if source else place
