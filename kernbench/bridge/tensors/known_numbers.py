"""Numbers that are known though tensors have none: what follows from values of the host alone.

With `--data fake` a read gives 0. A program that stops when a flag of its own is set on the device
would never end then, so small tensors keep their numbers as long as these are known: those of a
factory, of a copy from the host, and of operations on such tensors alone. A number on which
anything else has a say is not known, but where it makes no difference (`unknown | True`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch._ops import OpOverload

from kernbench.bridge.base.here import HERE
from kernbench.bridge.tensors.operands import tensors_in
from kernbench.bridge.tensors.storages import STORAGES, Ref, is_on_device

_MOST: Final = 1024
"""Most elements of a tensor whose numbers are kept."""

_MOST_WHOLE: Final = 1 << 17
"""The same of integers and booleans: positions and masks of a long sequence decide what runs."""

_ROOM: Final = 1 << 24
"""Bytes after which numbers of storages that are gone are forgotten."""

_CPU: Final = torch.device("cpu")
_EMPTY: Final = torch.empty  # PyTorch's own, also while ranks run
_FULL: Final = torch.full
_SCALAR: Final = torch.ops.aten.scalar_tensor.default
_VALUE: Final = "_kernbench_value"
"""Name by which the storage of a scalar that C++ code makes of a number says which it is."""

BLANK: Final = frozenset(
    ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
)
"""Operations whose result has no numbers yet."""

_OVER: Final = frozenset(("copy_", "fill_", "zero_"))
"""Operations that write all of their first operand, and do not read it."""

_OR: Final = frozenset(("bitwise_or", "logical_or", "__or__", "__ior__"))
_AND: Final = frozenset(("bitwise_and", "logical_and", "__and__", "__iand__"))


class _Rule:
    """What an operation does with its operands.

    Attributes:
        alone: Whether what it makes follows from its operands.
        like: Whether it reads no more than the shape of its first operand.
        over: Whether it writes all of its first operand, and does not read it.
        settles: The value that settles the result, whatever the other operand is; None: none does.
        view: Whether it gives a view, which shares the numbers.
        writes: Which arguments it writes; None: nobody knows.
    """

    __slots__ = ("alone", "like", "over", "settles", "view", "writes")

    def __init__(self, func: Any) -> None:
        plain = isinstance(func, OpOverload) and func.namespace == "aten"
        name = func.overloadpacket.__name__ if plain else ""
        tags = func.tags if plain else ()
        self.view: Final = plain and (func.is_view or torch.Tag.inplace_view in tags)
        drawn = torch.Tag.nondeterministic_seeded in tags
        self.alone: Final = plain and not drawn and name not in BLANK
        self.like: Final = name.startswith("new_") or name.endswith("_like")
        self.over: Final = name in _OVER
        self.writes: Final = _written(func) if plain else None
        kind = name if name.startswith("__") else name.removesuffix("_")
        self.settles: Final = True if kind in _OR else False if kind in _AND else None


def _written(func: OpOverload) -> list[tuple[int, str]]:
    return [
        (at, one.name)
        for at, one in enumerate(func._schema.arguments)
        if one.alias_info is not None and one.alias_info.is_write
    ]


class KnownNumbers:
    """Numbers of small tensors of one rank's device that are known."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Ref, Any]] = {}
        self._room = _ROOM
        self._rules: Final[dict[int, _Rule]] = {}

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns the numbers of a tensor of the device; None if they are not known.

        Returns:
            A tensor of the host; to write to it is to write the numbers of all views.
        """
        storage = tensor.untyped_storage()
        found = self._kept.get(storage._cdata)
        if found is None or tensor.is_conj() or tensor.is_neg():
            return None
        held, numbers = STORAGES.get(storage._cdata), found[1]
        if held is None or held.ref is not found[0] or numbers.nbytes() != storage.nbytes():
            return None  # another storage, or one that has changed its size
        return _seen(numbers, tensor)

    def keep(self, tensor: torch.Tensor, values: Callable[[], torch.Tensor]) -> None:
        """Takes note of the numbers of a tensor of the device, if it is small.

        Args:
            values: Gives its numbers, a tensor of the host.
        """
        storage = tensor.untyped_storage()
        held = STORAGES.get(storage._cdata)
        if held is None or _is_large(tensor) or not _fills(tensor):
            return
        self._room -= storage.nbytes()
        if self._room < 0:
            self._kept = {key: kept for key, kept in self._kept.items() if kept[0]() is not None}
            self._room = _ROOM + sum(kept[1].nbytes() for kept in self._kept.values())
        numbers = torch.UntypedStorage(storage.nbytes())
        _seen(numbers, tensor).copy_(values())
        self._kept[storage._cdata] = held.ref, numbers

    def forget(self, tensor: torch.Tensor) -> None:
        """Takes note that something else writes a tensor."""
        self.forget_storage(tensor.untyped_storage())

    def forget_storage(self, storage: Any) -> None:
        """Takes note that something else writes a storage; None: one that is gone."""
        if self._kept and storage is not None:
            self._kept.pop(storage._cdata, None)

    def follow(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Takes note of what an operation has made and written."""
        rule = self._rules.get(id(func))
        if rule is None:
            rule = self._rules[id(func)] = _Rule(func)
        if rule.view:
            return
        operands = list(tensors_in((args, kwargs)))
        if not (self._kept or rule.over or rule.like) and any(map(is_on_device, operands)):
            return
        named, written = kwargs or {}, operands
        if rule.writes is not None:
            written = list(
                tensors_in(
                    [args[at] if at < len(args) else named.get(name) for at, name in rule.writes]
                )
            )
        written = [one for one in written if is_on_device(one)]
        made = list(tensors_in(out))
        results = [one for one in made if is_on_device(one)]
        if func is _SCALAR and not results and out.is_meta:
            setattr(out.untyped_storage(), _VALUE, args[0])
        if not written and not results:
            return
        if rule.alone and self._computed(func, rule, args, named, operands, made):
            return
        for one in written:
            self.forget(one)

    def _computed(
        self, func: Any, rule: _Rule, args: Any, kwargs: Any, operands: Any, made: Any
    ) -> bool:
        """Finds out the numbers of what an operation makes; returns whether they are known."""
        results = [one for one in made if is_on_device(one)]
        if any(map(_is_large, (*operands, *results))):
            return False
        read = operands[1:] if rule.over or rule.like else operands
        given = {
            id(one): self.of(one) if is_on_device(one) else _of_index(one)
            for one in operands
            if one.is_meta or is_on_device(one)
        }
        if any(id(one) in given and given[id(one)] is None for one in read):
            value = self._settled(rule, given)
            if value is None:
                return False
            for one in results:
                known = self.of(one)  # of an operation in place
                if known is None:
                    self.keep(one, partial(_FULL, one.shape, value, device=_CPU))
                else:
                    known.fill_(value)
            return all(self.of(one) is not None for one in results)
        if rule.over and is_on_device(operands[0]) and given[id(operands[0])] is None:
            if not _fills(operands[0]):
                return False  # a part of what is not known
            self.keep(operands[0], partial(_FULL, (), 0, device=_CPU))
            given[id(operands[0])] = self.of(operands[0])
        if rule.like and given.get(id(operands[0]), 0) is None:
            given[id(operands[0])] = _EMPTY(operands[0].shape, dtype=operands[0].dtype, device=_CPU)
        try:
            found = _run(func, _replaced(args, given), _replaced(kwargs, given))
        except (RuntimeError, IndexError):
            return False  # the CPU has no such operation
        written = {one.untyped_storage()._cdata for one in operands}
        for one, values in zip(made, tensors_in(found), strict=True):
            # The CPU may give less than CUDA beside a result, as of `embedding_bag`.
            alike = is_on_device(one) and one.shape == values.shape
            if alike and one.untyped_storage()._cdata not in written:
                self.keep(one, partial(_same, values))
        return True

    @staticmethod
    def _settled(rule: _Rule, given: dict[int, torch.Tensor | None]) -> bool | None:
        """Returns the value of all elements of a result that one operand settles; None: none."""
        if rule.settles is None:
            return None
        for known in given.values():
            if (
                known is not None
                and known.dtype is torch.bool
                and bool((known == rule.settles).all())
            ):
                return rule.settles
        return None


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    rank, HERE.rank = HERE.rank, None
    try:
        if "device" in kwargs:
            kwargs = {**kwargs, "device": _CPU}
        return func(*args, **kwargs)
    finally:
        HERE.rank = rank


def _of_index(tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns the value that `x[at] = value` has put into a tensor of no device, if it has."""
    value = getattr(tensor.untyped_storage(), _VALUE, None)
    return None if value is None else _FULL((), value, dtype=tensor.dtype, device=_CPU)


def _same(values: torch.Tensor) -> torch.Tensor:
    return values


def _seen(numbers: Any, tensor: torch.Tensor) -> torch.Tensor:
    """Returns numbers of a storage as a tensor of it has them."""
    whole = _EMPTY(0, dtype=tensor.dtype, device=_CPU)
    return whole.set_(numbers, tensor.storage_offset(), tensor.shape, tensor.stride())


def _is_large(tensor: torch.Tensor) -> bool:
    whole = not (tensor.is_floating_point() or tensor.is_complex())
    return bool(tensor.numel() > (_MOST_WHOLE if whole else _MOST))


def _fills(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor has all of its storage."""
    return bool(tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes())


def _replaced(value: Any, given: dict[int, torch.Tensor | None]) -> Any:
    if isinstance(value, torch.Tensor):
        return given.get(id(value), value)
    if isinstance(value, list | tuple):
        return type(value)(_replaced(one, given) for one in value)
    if isinstance(value, dict):
        return {name: _replaced(one, given) for name, one in value.items()}
    return value
