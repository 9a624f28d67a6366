"""What each library of collectives has: devices, element types, and reductions for each type.

Gloo's rows are those of PyTorch's gloo, held against it by a test. NCCL's are those of
`ProcessGroupNCCL` of PyTorch with NCCL 2.28 on an H100. `ccl` has whatever this package computes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kernbench.memory import DType, dtypes

Types = frozenset[DType]

_ALL: Final[Types] = frozenset(dtypes.ALL)
_COMPLEX: Final[Types] = frozenset(dtype for dtype in _ALL if dtype.is_complex)
_EIGHT_BITS: Final[Types] = frozenset(dtype for dtype in _ALL if dtype.saturates)
_FLOATS: Final[Types] = frozenset(dtype for dtype in _ALL if dtype.is_floating_point) - _EIGHT_BITS
_BOOL: Final[Types] = frozenset({dtypes.bool_})
_INTEGERS: Final[Types] = _ALL - _COMPLEX - _EIGHT_BITS - _FLOATS - _BOOL
_SHORT: Final[Types] = frozenset({dtypes.int16})


@dataclass(frozen=True, slots=True)
class Library:
    """What a library of collectives has.

    Attributes:
        devices: Types of device whose tensors it takes.
        moved: Element types of collectives.
        gathered: Element types of `gather`, which are fewer in PyTorch's libraries.
        sent: Element types of messages.
        reduced: Element types of each reduction, by its name; `premul_sum` without its factor.
    """

    devices: tuple[str, ...]
    moved: Types
    gathered: Types
    sent: Types
    reduced: Mapping[str, Types]

    def takes(self, kind: str, dtype: DType) -> bool:
        """Returns whether an operation takes an element type.

        Args:
            kind: Name of the collective; `send_recv` for a message.
        """
        if kind == "send_recv":
            return dtype in self.sent
        return dtype in (self.gathered if kind == "gather" else self.moved)


def _reductions(
    moved: Types, *, averages: Types, bits: Types, scaled: Types
) -> Mapping[str, Types]:
    """Returns the types of each reduction; a reduction without types is left out."""
    ordered = moved - _COMPLEX
    found = {"sum": moved, "product": ordered, "min": ordered, "max": ordered, "avg": averages}
    found |= dict.fromkeys(("band", "bor", "bxor"), bits) | {"premul_sum": scaled}
    return {name: types for name, types in found.items() if types}


_GLOO: Final = _ALL - _EIGHT_BITS - _SHORT
_NCCL: Final = _ALL - _SHORT
_NONE: Final[Types] = frozenset()

LIBRARIES: Final[Mapping[str, Library]] = {
    "nccl": Library(
        ("cuda",),
        moved=_NCCL,
        gathered=_NCCL - _COMPLEX,
        sent=_NCCL,
        reduced=_reductions(_NCCL, averages=_NCCL - _BOOL, bits=_NONE, scaled=_FLOATS | _COMPLEX),
    ),
    "gloo": Library(
        ("cpu", "cuda"),
        moved=_GLOO,
        gathered=_GLOO - _COMPLEX,
        sent=_ALL,
        reduced=_reductions(
            _GLOO,
            averages=_FLOATS | _COMPLEX,
            bits=(_INTEGERS | _BOOL) & _GLOO,
            scaled=_NONE,
        ),
    ),
    "ccl": Library(
        ("cpu", "cuda"),
        moved=_ALL,
        gathered=_ALL,
        sent=_ALL,
        reduced=_reductions(
            _ALL,
            averages=_ALL - _BOOL,
            bits=_INTEGERS | _BOOL,
            scaled=_FLOATS | _COMPLEX | _EIGHT_BITS,
        ),
    ),
}
"""Every library by name."""

PARTIAL: Final[Types] = frozenset(
    dtype
    for dtype in _ALL
    if not all(
        dtype in types
        for library in LIBRARIES.values()
        for types in (library.moved, library.gathered, library.sent)
    )
)
"""Element types that some library does not move: the others need no look at each call."""


def named(types: Types) -> str:
    """Returns the names of types, in the order of `dtypes.ALL`."""
    return ", ".join(dtype.name for dtype in dtypes.ALL if dtype in types)
