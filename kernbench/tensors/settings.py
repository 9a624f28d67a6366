"""What a rank has set for all its operations: the default type, and how exact products are."""

from dataclasses import dataclass
from typing import Final, Literal

from kernbench.memory import DType, dtypes
from kernbench.process.process import RankLocal, current_process

Precision = Literal["highest", "high", "medium"]


@dataclass
class Settings:
    """What a rank has set.

    Attributes:
        dtype: Type of tensors that are made of floats without a type.
        precision: How products of float32 are computed: `highest` in float32, else as tf32.
        deterministic: Whether operations without a fixed order are to be refused; there are none.
        warn_only: Whether they are to be warned of instead.
        threads: Number of threads that the program has asked for.
    """

    dtype: DType = dtypes.float32
    precision: Precision = "highest"
    deterministic: bool = False
    warn_only: bool = False
    threads: int = 1


_SETTINGS: Final = RankLocal("settings", lambda _: Settings())

_touched: Final[list[None]] = []
"""Has an entry once a rank has set something; operations look for settings then."""


def settings() -> Settings:
    """Returns the calling rank's settings, to be read or changed."""
    if not _touched:
        _touched.append(None)
    return _SETTINGS.of(current_process())


def default_dtype() -> DType:
    """Returns the type of tensors that are made of floats without a type."""
    return _SETTINGS.of(current_process()).dtype if _touched else dtypes.float32


def default_complex() -> DType:
    """Returns the type of tensors that are made of complex numbers without a type."""
    return dtypes.complex128 if default_dtype() is dtypes.float64 else dtypes.complex64


def products_are_short() -> bool:
    """Returns whether the calling rank multiplies float32 as tf32 on its device."""
    return bool(_touched) and _SETTINGS.of(current_process()).precision != "highest"
