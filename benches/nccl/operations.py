"""Operations between ranks: how nccl-tests counts them, how PyTorch calls them, what is right.

Where ranks exchange blocks, rank r's block is the r-th part of the larger buffer, and in place
means that the smaller buffer is that part of the larger one (`*GetCollByteCount` in nccl-tests'
src/).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]

_COPIED_VALUES: Final = 128
"""Numbers below it are exact in every type, int8 and bfloat16 too."""

# Distance from 1 to the next number, by bytes; for 2 that of bfloat16, the coarser one.
_EPSILON: Final = {2: 2.0**-7, 4: 2.0**-23, 8: 2.0**-52}

# nccl-tests' alignment of blocks, in bytes: `(count/nranks) & -(16/eltSize)`.
_ALIGNMENT: Final = 16


@dataclass(frozen=True)
class Case:
    """One operation on one rank.

    Attributes:
        dist: `torch.distributed`.
        rank: The rank that calls.
        ranks: How many take part.
        root: Root rank; -1 if there is none.
        reduction: One of `dist.ReduceOp`; None if the operation does not reduce.
    """

    dist: Any
    rank: int
    ranks: int
    root: int
    reduction: Any


Call = Callable[[], Any]
"""Calls the operation once; returns the tensor to look at, None if this rank is given nothing."""

Prepare = Callable[[Case, Any, Any], Call]
"""Takes input and output, tensors or None; in place they are the same, or one is in the other."""


def _all_reduce(case: Case, source: Any, target: Any) -> Call:
    dist, op = case.dist, case.reduction
    if target is None:
        return lambda: dist._functional_collectives.all_reduce(source, op, dist.group.WORLD)

    def call() -> Any:
        dist.all_reduce(source, op)
        return source

    return call


def _broadcast(case: Case, source: Any, target: Any) -> Call:
    def call() -> Any:
        # PyTorch has it in place only; NCCL would copy while it sends.
        if source is not None and source is not target:
            target.copy_(source)
        case.dist.broadcast(target, src=case.root)
        return target

    return call


def _reduce(case: Case, source: Any, target: Any) -> Call:
    # PyTorch has it in place only; a rank that is given nothing keeps its input.
    buffer = source if target is None else target

    def call() -> Any:
        if buffer is not source:
            buffer.copy_(source)
        case.dist.reduce(buffer, dst=case.root, op=case.reduction)
        return buffer

    return call


def _all_gather(case: Case, source: Any, target: Any) -> Call:
    def call() -> Any:
        case.dist.all_gather_into_tensor(target, source)
        return target

    return call


def _reduce_scatter(case: Case, source: Any, target: Any) -> Call:
    def call() -> Any:
        case.dist.reduce_scatter_tensor(target, source, op=case.reduction)
        return target

    return call


def _gather(case: Case, source: Any, target: Any) -> Call:
    pieces = None if target is None else _blocks(target, case.ranks)

    def call() -> Any:
        case.dist.gather(source, gather_list=pieces, dst=case.root)
        return target

    return call


def _scatter(case: Case, source: Any, target: Any) -> Call:
    pieces = None if source is None else _blocks(source, case.ranks)

    def call() -> Any:
        case.dist.scatter(target, scatter_list=pieces, src=case.root)
        return target

    return call


def _all_to_all(case: Case, source: Any, target: Any) -> Call:
    def call() -> Any:
        case.dist.all_to_all_single(target, source)
        return target

    return call


def _sendrecv(case: Case, source: Any, target: Any) -> Call:
    dist = case.dist
    to, origin = (case.rank + 1) % case.ranks, (case.rank - 1) % case.ranks

    def call() -> Any:
        messages = [dist.P2POp(dist.isend, source, to), dist.P2POp(dist.irecv, target, origin)]
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        return target

    return call


def _blocks(tensor: Any, ranks: int) -> list[Any]:
    count = len(tensor) // ranks
    return [tensor[rank * count : (rank + 1) * count] for rank in range(ranks)]


@dataclass(frozen=True)
class Operation:
    """What an operation moves between ranks.

    Attributes:
        prepare: Makes the call.
        input_blocks: Whether the input has a block for every rank.
        output_blocks: Whether the output has a block from every rank.
        reduces: Whether values are combined.
        rooted: Whether one rank is the root.
        only_root_has_input: Whether the others bring nothing.
        only_root_has_output: Whether the others are given nothing.
        in_place: Whether it can be called in place.
        makes_output: Whether the call out of place makes its output itself.
    """

    prepare: Prepare
    input_blocks: bool = False
    output_blocks: bool = False
    reduces: bool = False
    rooted: bool = False
    only_root_has_input: bool = False
    only_root_has_output: bool = False
    in_place: bool = True
    makes_output: bool = False

    @property
    def blocks(self) -> bool:
        """Whether a count is that of one rank's block."""
        return self.input_blocks or self.output_blocks

    def count(self, size: int, itemsize: int, ranks: int) -> int:
        """Returns the elements to call the operation with.

        Args:
            size: Bytes asked for.
            itemsize: Bytes of an element.
            ranks: How many take part.
        """
        count = size // itemsize
        if not self.blocks:
            return count
        step = _ALIGNMENT // itemsize
        return count // ranks // step * step

    def nbytes(self, count: int, itemsize: int, ranks: int) -> int:
        """Returns the bytes of input or output, whichever is more, for a count of elements."""
        return count * itemsize * (ranks if self.blocks else 1)

    def input_count(self, count: int, case: Case) -> int | None:
        """Returns how many elements the rank brings; None if it brings nothing."""
        if self.only_root_has_input and case.rank != case.root:
            return None
        return count * (case.ranks if self.input_blocks else 1)

    def output_count(self, count: int, case: Case) -> int | None:
        """Returns how many elements the rank is given; None if it is given nothing."""
        if self.only_root_has_output and case.rank != case.root:
            return None
        return count * (case.ranks if self.output_blocks else 1)


# nccl-tests times all_to_all and sendrecv in place too, and says itself that their values are then
# wrong (`reportErrors`); neither NCCL nor PyTorch allows it.
OPERATIONS: Final[Mapping[str, Operation]] = {
    "all_reduce": Operation(_all_reduce, reduces=True, makes_output=True),
    "broadcast": Operation(_broadcast, rooted=True, only_root_has_input=True),
    "reduce": Operation(_reduce, reduces=True, rooted=True, only_root_has_output=True),
    "all_gather": Operation(_all_gather, output_blocks=True),
    "reduce_scatter": Operation(_reduce_scatter, input_blocks=True, reduces=True),
    "gather": Operation(_gather, output_blocks=True, rooted=True, only_root_has_output=True),
    "scatter": Operation(_scatter, input_blocks=True, rooted=True, only_root_has_input=True),
    "all_to_all": Operation(_all_to_all, input_blocks=True, output_blocks=True, in_place=False),
    "sendrecv": Operation(_sendrecv, in_place=False),
}


def values(name: str, rank: int, ranks: int, start: int, count: int, dtype: Any) -> Array:
    """Returns elements of a rank's input: small whole numbers.

    Args:
        name: Name of the operation. Where it reduces, sums of the numbers are exact in any order;
            else they are from as many as all types have.
        rank: Whose input it is.
        ranks: How many take part.
        start: The first of the elements.
        count: How many.
        dtype: Of the result.
    """
    top = max(2, _COPIED_VALUES // ranks) if OPERATIONS[name].reduces else _COPIED_VALUES
    # Longer for a higher rank, and odd, so that neither blocks nor ranks look alike.
    pattern = np.random.default_rng([rank, ranks]).integers(0, top, 4093 + 2 * rank)
    return np.resize(np.roll(pattern.astype(dtype), -start), count)


@lru_cache(maxsize=1)
def _reduced(name: str, redop: str, ranks: int, start: int, count: int, dtype: Any) -> Array:
    """Returns elements of the reduction of all ranks' inputs, from these alone."""
    combine = {"prod": np.multiply, "min": np.minimum, "max": np.maximum}.get(redop, np.add)
    wide = np.float64 if np.dtype(dtype).kind not in "iu" else dtype
    total = values(name, 0, ranks, start, count, dtype).astype(wide)
    for rank in range(1, ranks):
        combine(total, values(name, rank, ranks, start, count, dtype), out=total)
    if redop == "avg":
        total = total / ranks
    return total.astype(dtype, copy=False)


@lru_cache(maxsize=1)
def _gathered(name: str, ranks: int, start: int, count: int, dtype: Any) -> Array:
    """Returns the same part of every rank's input, one behind the other."""
    return np.concatenate([values(name, r, ranks, start, count, dtype) for r in range(ranks)])


def expected(
    name: str, redop: str, rank: int, ranks: int, root: int, count: int, dtype: Any
) -> Array | None:
    """Returns the right result on a rank, from the inputs of all; None if it is given nothing.

    Args:
        name: Name of the operation.
        redop: nccl-tests' name of the reduction.
        rank: Whose result it is.
        ranks: How many take part.
        root: Root rank.
        count: What the operation was called with.
        dtype: Of the result.
    """
    block = rank * count
    if name == "all_reduce" or (name == "reduce" and rank == root):
        return _reduced(name, redop, ranks, 0, count, dtype)
    if name == "reduce":
        # NCCL leaves what the others brought as it was, and nccl-tests checks that.
        return values(name, rank, ranks, 0, count, dtype)
    if name == "reduce_scatter":
        return _reduced(name, redop, ranks, block, count, dtype)
    if name == "broadcast":
        return values(name, root, ranks, 0, count, dtype)
    if name == "scatter":
        return values(name, root, ranks, block, count, dtype)
    if name == "all_gather" or (name == "gather" and rank == root):
        return _gathered(name, ranks, 0, count, dtype)
    if name == "all_to_all":
        return _gathered(name, ranks, block, count, dtype)
    if name == "sendrecv":
        return values(name, (rank - 1) % ranks, ranks, 0, count, dtype)
    return None


def wrong_elements(got: Array, right: Array, redop: str, ranks: int) -> int:
    """Returns how many elements are wrong; where results are rounded, by more than all roundings.

    Args:
        got: The result.
        right: What it should be.
        redop: nccl-tests' name of the reduction; `none` if values are only copied.
        ranks: How many took part.
    """
    (bad,) = np.nonzero(got != right)
    exact = right.dtype.kind in "iu" or redop == "none"
    if not len(bad) or exact or (redop not in {"prod", "avg"} and ranks <= 64):
        # Whole numbers this small are exact in every type.
        return len(bad)
    found, wanted = got[bad].astype(np.float64), right[bad].astype(np.float64)
    slack = ranks * _EPSILON[right.dtype.itemsize] * np.abs(wanted)
    # Written so that nan is wrong.
    return int((~(np.abs(found - wanted) <= slack)).sum())
