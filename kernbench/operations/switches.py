"""Switches for all operations of a rank: types, exactness, determinism, threads."""

from typing import Any

from kernbench.errors import OperandError, OptionError, call_site, site_fact
from kernbench.memory import DType
from kernbench.tensors.operands import type_name
from kernbench.tensors.settings import Precision, default_dtype, settings

__all__ = [
    "are_deterministic_algorithms_enabled",
    "get_default_dtype",
    "get_float32_matmul_precision",
    "get_num_threads",
    "is_deterministic_algorithms_warn_only_enabled",
    "set_default_dtype",
    "set_float32_matmul_precision",
    "set_num_threads",
    "use_deterministic_algorithms",
]


def set_default_dtype(d: DType, /) -> None:
    """Sets the type that the calling rank gives to tensors of floats without a type.

    Raises:
        OperandError: If it is no floating-point type.
    """
    if not isinstance(d, DType) or not d.is_floating_point or d.itemsize == 1:
        raise OperandError(
            f"only floating-point types are supported as the default type, got {d!r}",
            [site_fact(call_site())],
        )
    settings().dtype = d


def get_default_dtype() -> DType:
    """Returns the type that the calling rank gives to tensors of floats without a type."""
    return default_dtype()


def set_float32_matmul_precision(precision: Precision) -> None:
    """Sets how the calling rank multiplies matrices of float32 on its device.

    Args:
        precision: `highest` for float32. `high` and `medium` for tf32: the last 13 bits of each
            operand are dropped, and the product takes the time of the rate `tf32` of the machine
            file, or of `fp32` where there is none.

    Raises:
        OptionError: If it is none of these.
    """
    if precision not in {"highest", "high", "medium"}:
        raise OptionError(
            f"{precision!r} is not one of 'highest', 'high', 'medium'", [site_fact(call_site())]
        )
    settings().precision = precision


def get_float32_matmul_precision() -> Precision:
    """Returns how the calling rank multiplies matrices of float32."""
    return settings().precision


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Asks for results that do not vary from run to run, which all results here do not.

    Args:
        mode: Whether to ask.
        warn_only: Whether to warn instead of failing where there is no such operation.
    """
    found = settings()
    found.deterministic, found.warn_only = bool(mode), bool(mode and warn_only)


def are_deterministic_algorithms_enabled() -> bool:
    """Returns whether `use_deterministic_algorithms` has asked."""
    return settings().deterministic


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """Returns whether `use_deterministic_algorithms` has asked for warnings only."""
    return settings().warn_only


def set_num_threads(int: Any) -> None:
    """Sets what `get_num_threads` returns. The host's own arithmetic takes no simulated time.

    Raises:
        OperandError: If the number is no integer.
        OptionError: If it is not above 0.
    """
    if not hasattr(int, "__index__") or isinstance(int, bool):
        raise OperandError(
            f"set_num_threads expects an int, but got {type_name(int)}", [site_fact(call_site())]
        )
    if int <= 0:
        raise OptionError("set_num_threads expects a positive integer", [site_fact(call_site())])
    settings().threads = int


def get_num_threads() -> int:
    """Returns the number of threads that the calling rank has set, 1 at first."""
    return settings().threads
