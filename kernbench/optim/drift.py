"""Finds weights that ranks hold alike and that a step of an optimiser makes different.

Ranks share one interpreter, so they can be compared for nothing: no message, no simulated time.
"""

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import count
from operator import and_
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from kernbench.errors import KernbenchError
from kernbench.memory import DType
from kernbench.nn.marks import PARTS
from kernbench.process.process import Process, RankLocal
from kernbench.ranks.groups import ProcessGroup
from kernbench.ranks.ranges import folded
from kernbench.tensors.tensor import Tensor

_Before = tuple[tuple[int, ...], int]
_Seen = dict[_Before, list[int]]
"""Checksums of values after a step, by shape and checksum of those before it."""

_SEEN: Final[WeakKeyDictionary[ProcessGroup, dict[tuple[object, ...], dict[int, _Seen]]]] = (
    WeakKeyDictionary()
)
"""By group and step, what ranks have seen while some have not come to the step yet."""

_NUMBERS: Final = RankLocal("number of optimisers", lambda _: count())


def _no_group(_: Process) -> ProcessGroup | None:
    return None


_GROUP: Final = RankLocal("group of tensor-parallel layers", _no_group)


class WeightDriftError(KernbenchError, RuntimeError):
    """A step made weights different that the ranks of a tensor-parallel group held alike (C21)."""


class Watch:
    """The weights of an optimiser that all ranks of a tensor-parallel group should hold alike.

    Args:
        process: The rank that owns the optimiser.
        number: Which of the rank's optimisers it is.
    """

    def __init__(self, process: Process, group: ProcessGroup, number: int) -> None:
        self._process: Final = process
        self._group: Final = group
        self._number: Final = number
        self._steps: Final = count()

    def step(
        self, place: int, dtype: DType, parameters: "Iterable[Tensor]"
    ) -> "WatchedStep | None":
        """Returns what looks at a step before and after it; None if it changes nothing to look at.

        Args:
            place: Which of the optimiser's groups of parameters makes the step.
            dtype: Type of the parameters that the step changes.
            parameters: All parameters of the group.
        """
        members = [p for p in parameters if p.dtype is dtype and p.requires_grad and _whole(p)]
        if not members:
            return None
        key = (self._number, place, dtype, next(self._steps))
        return WatchedStep(self._process, self._group, key, members)


def number(process: Process) -> int:
    """Returns which of a rank's optimisers a new one is."""
    return next(_NUMBERS.of(process))


def note(process: Process, parameters: Iterable[Tensor]) -> None:
    """Remembers the group of tensor-parallel layers whose shards a rank's optimiser is given."""
    for parameter in parameters:
        group: ProcessGroup | None = getattr(parameter, PARTS, None)
        if group is not None and group.size() > 1 and _dense_shard(parameter):
            _GROUP.set(process, group)
            return


def watch(process: Process, number: int) -> Watch | None:
    """Returns a watch if one of the rank's optimisers has shards of tensor-parallel layers.

    Args:
        number: Of the optimiser to watch, which may be one of norms and biases only.
    """
    group = _GROUP.of(process)
    return None if group is None else Watch(process, group, number)


def _dense_shard(parameter: Tensor) -> bool:
    return getattr(parameter, "tensor_model_parallel", False) and _dense(parameter)


def _dense(parameter: Tensor) -> bool:
    return getattr(parameter, "allreduce", True) is not False


def _whole(parameter: Tensor) -> bool:
    return _dense(parameter) and not getattr(parameter, "tensor_model_parallel", False)


class WatchedStep:
    """One step of one rank, among those of the other ranks.

    Args:
        group: The ranks that should hold the weights alike.
        key: Which step it is; the same on all ranks.
        members: The weights.
    """

    def __init__(
        self,
        process: Process,
        group: ProcessGroup,
        key: tuple[object, ...],
        members: "Sequence[Tensor]",
    ) -> None:
        self._process: Final = process
        self._group: Final = group
        self._key: Final = key
        self._members: Final = members
        self._old: list[_Before] = []

    def before(self) -> None:
        """Notes the values before the step."""
        self._old = [(each.window.shape, _checksum(each)) for each in self._members]

    def after(self) -> None:
        """Notes the values after the step; the last rank compares.

        Raises:
            WeightDriftError: If ranks had the same values before, and have not now (C21).
        """
        after = [_checksum(each) for each in self._members]
        mine: _Seen = {}
        # The order of the parameters does not matter: ranks may have built the model otherwise.
        for before, checksum in sorted(zip(self._old, after, strict=True)):
            mine.setdefault(before, []).append(checksum)
        steps = _SEEN.setdefault(self._group, {})
        seen = steps.setdefault(self._key, {})
        seen[self._process.rank] = mine
        if len(seen) < self._group.size():
            return
        del steps[self._key]
        own = {before: _differing(before, seen) for before in mine}
        drifted = [
            (member, _sides(own[before]))
            for member, before, checksum in zip(self._members, self._old, after, strict=True)
            if checksum in own[before].get(self._process.rank, ())
        ]
        if drifted:
            raise _report(self._group, drifted)


def _differing(before: _Before, seen: dict[int, _Seen]) -> dict[int, Counter[int]]:
    """Returns, by rank, the values of a step that other ranks had before it, but not after it."""
    after = {rank: Counter(seen[rank].get(before, ())) for rank in sorted(seen)}
    if len({each.total() for each in after.values()}) > 1:
        # Other values on some rank before the step: they were never alike.
        return {}
    everywhere = reduce(and_, after.values())
    return {rank: each - everywhere for rank, each in after.items()}


def _sides(after: dict[int, Counter[int]]) -> list[list[int]]:
    """Returns the ranks by what they have after a step."""
    sides: dict[frozenset[tuple[int, int]], list[int]] = {}
    for rank, values in after.items():
        sides.setdefault(frozenset(values.items()), []).append(rank)
    return list(sides.values())


def _report(
    group: ProcessGroup, drifted: "list[tuple[Tensor, list[list[int]]]]"
) -> WeightDriftError:
    lines = [
        f"{_name(each)} {list(each.shape)} {each.dtype} is now one on {folded(sides[0])}, and "
        f"another on {'; '.join(map(folded, sides[1:]))}"
        for each, sides in drifted
    ]
    if all(getattr(each, "sequence_parallel", False) for each, _ in drifted):
        hint = (
            "the mark sequence_parallel says that each rank has a part of the gradient: call "
            "kernbench.tp.gradients.finalize_model_grads(model) between backward() and step()"
        )
    else:
        hint = (
            "where each rank sees only its rows, as with sequence parallelism, set "
            "parameter.sequence_parallel = True and call "
            "kernbench.tp.gradients.finalize_model_grads(model) between backward() and step(); "
            "if ranks hold parts of it on purpose, set parameter.tensor_model_parallel = True"
        )
    names = ", ".join(_name(each) for each, _ in drifted)
    return WeightDriftError(
        f"ranks of the tensor-parallel group {group.name} held {names} alike, and a step has "
        "changed them differently",
        lines,
        hint=hint,
        code="C21",
    )


def _checksum(tensor: Tensor) -> int:
    return zlib.crc32(np.ascontiguousarray(tensor.window.array()).tobytes())


def _name(parameter: Tensor) -> str:
    return getattr(parameter, "known_as", "") or "a parameter that no module has listed"
