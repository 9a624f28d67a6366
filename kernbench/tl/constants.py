"""Values that a kernel knows when it is compiled: parameters and globals marked `tl.constexpr`."""

from typing import Any, Final

from kernbench.errors import OperandError, call_site, site_fact
from kernbench.memory import DType


class constexpr:  # noqa: N801 - Triton's name
    """Marks a value that is known when the kernel is compiled.

    As an annotation it marks a parameter or a local of a kernel. `SIZE = tl.constexpr(64)` makes a
    global that kernels may read; on the host it works like the value.

    Attributes:
        value: The value.
    """

    __module__ = "tl"  # signatures in messages read as the source does

    value: Any

    def __new__(cls, value: Any) -> Any:
        """Returns the marked value; None and a dtype, which need no mark, as they are.

        Raises:
            OperandError: For a value of another type than a number, a text or a tuple.
        """
        if cls is not constexpr:
            return super().__new__(cls)
        value = plain(value)
        kind = _KINDS.get(type(value))
        if kind is None:
            if value is None or isinstance(value, DType):
                return value
            raise OperandError(
                f"tl.constexpr takes a number, a text, a tuple, a dtype or None; got {value!r}",
                [site_fact(call_site())],
            )
        made = kind(value)
        made.value = value
        return made


class _Whole(constexpr, int):
    def __new__(cls, value: Any) -> Any:
        return int.__new__(cls, value)


class _Real(constexpr, float):
    def __new__(cls, value: Any) -> Any:
        return float.__new__(cls, value)


class _Text(constexpr, str):
    def __new__(cls, value: Any) -> Any:
        return str.__new__(cls, value)


class _Several(constexpr, tuple):  # type: ignore[type-arg] # entries of any types
    def __new__(cls, value: Any) -> Any:
        return tuple.__new__(cls, value)


_KINDS: Final[dict[type, Any]] = {
    bool: _Whole,
    int: _Whole,
    float: _Real,
    str: _Text,
    tuple: _Several,
}


def plain(value: Any) -> Any:
    """Returns a value without the mark of `constexpr`."""
    return value.value if isinstance(value, constexpr) else value
