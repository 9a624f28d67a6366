"""Single values of a machine: names lead to them, and numbers through lists."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeAlias, TypeVar

from kernbench.topology.spec import KERNELS, KernelSpec
from kernbench.units import Rate

Path: TypeAlias = tuple[str | int, ...]
T = TypeVar("T")


def path_of(text: str) -> Path:
    """Returns the path that a text such as `sip.pe.gemm.library.kernels.0.edge` stands for."""
    return tuple(int(part) if part.isdigit() else part for part in text.split("."))


def get(part: Any, path: Path) -> Any:
    """Returns the value to which a path leads; None if a part of the way is missing.

    A kernel that a machine's file does not have has the price of the one that it is like.

    Args:
        part: The machine's system.
        path: Names of fields, keys of mappings, places in lists.
    """
    for name in path:
        if part is None:
            return None
        if isinstance(part, Mapping):
            part = part.get(name) if name in part or name not in KERNELS else _like(part, str(name))
        elif isinstance(part, Sequence):
            part = part[int(name)] if int(name) < len(part) else None
        else:
            part = getattr(part, str(name), None)
    return part


def _like(kernels: Mapping[str, KernelSpec], name: str) -> KernelSpec:
    like: str | None = name
    while like is not None:
        if like in kernels:
            return kernels[like]
        like = KERNELS[like]
    return KernelSpec()


def put(part: T, path: Path, number: float) -> T:
    """Returns a machine with another number in one place; its type stays.

    The number is rounded to three digits, which is more than what was measured has.

    Args:
        part: The machine's system.
        path: Where, see `get`.
        number: In the unit of what stands there: picoseconds, bytes, or so much a second.
    """
    found: T = _put(part, path, number)
    return found


def _put(part: Any, path: Path, number: float) -> Any:
    if not path:
        whole = max(0, round(float(f"{number:.3g}")))
        return type(part)(max(1, whole)) if isinstance(part, Rate) else whole
    name, *rest = path
    inside = _put(get(part, (name,)), tuple(rest), number)
    if isinstance(part, Mapping):
        return {**part, name: inside}
    if isinstance(part, tuple):
        return (*part[: int(name)], inside, *part[int(name) + 1 :])
    return replace(part, **{str(name): inside})


def amount(value: Any) -> int:
    """Returns a value as a plain number: a rate as so much a second."""
    return int(value.per_second if isinstance(value, Rate) else value)


def has_field(part: Any, path: Path) -> bool:
    """Returns whether machines have such a value at all, if only as a default."""
    *way, last = path
    holder = get(part, tuple(way))
    if holder is None:
        return False
    if isinstance(holder, Mapping | Sequence):
        return get(holder, (last,)) is not None
    return any(each.name == last for each in fields(holder)) and get(holder, (last,)) is not None
