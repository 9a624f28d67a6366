"""Signatures of collective calls, without the rank and its tensors: made once, then looked up."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

from kernbench.caches import cached
from kernbench.ccl.operations import OPERATIONS, Reduction
from kernbench.distributed.reduce_ops import check_reduction
from kernbench.memory import DType, dtypes
from kernbench.ranks.gathering import HOST_SUFFIX
from kernbench.ranks.meeting import Splits, Term

Shape = tuple[int, ...]

_SHOWN: Final = 8
"""Most shapes that a text lists."""


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """Description of a collective call, without the calling rank and the tensors' memory.

    Attributes:
        name: Name of the function that the user called.
        kind: Kind of the call; calls of different ranks may meet if their kinds are equal.
        operation: A key of `OPERATIONS`.
        terms: Values on which the calls of all ranks must agree.
        text: Text of the call in reports.
        sizes: Elements of `wire` in each block; None if the sizes depend on the `splits` of all
            ranks.
        nbytes: Bytes of all blocks of the largest buffer, as nccl-tests counts them.
        dtype: Element type.
        wire: Element type that travels: for complex numbers the type of their parts, as in PyTorch;
            otherwise `dtype`.
        reduction: How values are combined; None for operations that combine none.
        root: Rank in the group of the source or destination; 0 for operations without one.
        splits: Amounts that the calling rank exchanges with each rank; None for operations in which
            ranks give no sizes of their own.
        row: Elements of `wire` in one unit of `splits`.
        sends: Elements of `wire` that go to each rank; empty without `splits`.
        counted: Kind under which `CommDebugMode` counts the call; empty for `kind`.
        hosted: Whether the tensors are on the host.
        of_objects: Whether the tensors are the bytes of pickled objects.
    """

    name: str
    kind: str
    operation: str
    terms: tuple[Term, ...]
    text: str
    sizes: tuple[int, ...] | None
    nbytes: int
    dtype: DType
    wire: DType
    reduction: Reduction | None = None
    root: int = 0
    splits: Splits | None = None
    row: int = 1
    sends: tuple[int, ...] = ()
    counted: str = ""
    hosted: bool = False
    of_objects: bool = False

    @property
    def command(self) -> str:
        """Name of the command in traces and errors: of objects, of what moves their bytes."""
        return self.operation if self.of_objects else self.name


@cached("distributed.signatures")
def signature(
    name: str,
    operation: str,
    dtype: DType,
    blocks: tuple[Shape, ...],
    reduction: Reduction | None = None,
    root: int = 0,
    root_text: str = "",
) -> Signature:
    """Returns the signature of an operation whose blocks are the same on all ranks.

    Args:
        name: Name of the function that the user called.
        operation: A key of `OPERATIONS`.
        blocks: Shapes of the blocks: a single block, or a block for each rank of the group.
        reduction: How values are combined; None for operations that combine none.
        root: Rank in the group of the source or destination, for operations that have one.
        root_text: The root as the user gave it, such as `src=2`; empty without a root.
    """
    wire, parts = _wire(dtype)
    sizes = tuple([parts * prod(shape) for shape in blocks])
    whole: Any = blocks[0] if OPERATIONS[operation].blocks == "one" else blocks
    terms = _terms(operation, dtype, whole, reduction, root)
    inside = [_blocks_text(blocks), str(dtype)]
    if reduction is not None:
        inside.append(reduction.name)
    if root_text:
        inside.append(root_text)
    return Signature(
        name,
        operation,
        operation,
        terms,
        f"{name}({', '.join(inside)})",
        sizes,
        sum(sizes) * wire.itemsize,
        dtype,
        wire,
        reduction,
        root,
    )


@cached("distributed.reducing")
def reducing_signature(
    name: str,
    operation: str,
    dtype: DType,
    blocks: tuple[Shape, ...],
    reduction: Reduction,
    backend: str,
) -> Signature:
    """Returns the signature of an operation that combines values; see `signature`.

    Args:
        name: Name of the function that the user called.
        operation: A key of `OPERATIONS`.
        blocks: Shapes of the blocks: a single block, or a block for each rank of the group.
        reduction: How values are combined.
        backend: Name of the library that serves the tensors, such as `nccl`.

    Raises:
        ReductionError: If the backend lacks the reduction, or lacks it for the dtype (C6).
    """
    check_reduction(name, reduction, dtype, backend)
    return signature(name, operation, dtype, blocks, reduction)


@cached("distributed.even")
def even_signature(
    name: str,
    operation: str,
    dtype: DType,
    shape: Shape,
    ranks: int,
    reduction: Reduction | None = None,
    root: int = 0,
    root_text: str = "",
) -> Signature:
    """Returns the signature of an operation with an equal block for each rank; see `signature`.

    Args:
        name: Name of the function that the user called.
        operation: A key of `OPERATIONS`.
        shape: Shape of each block.
        ranks: Number of ranks in the group, and so of blocks.
        reduction: How values are combined; None for operations that combine none.
        root: Rank in the group of the source or destination, for operations that have one.
        root_text: The root as the user gave it, such as `src=2`; empty without a root.
    """
    return signature(name, operation, dtype, (shape,) * ranks, reduction, root, root_text)


@cached("distributed.objects")
def object_signature(
    name: str,
    operation: str,
    dtype: DType,
    blocks: tuple[Shape, ...],
    root: int = 0,
    root_text: str = "",
) -> Signature:
    """Returns the signature of a collective on the bytes of pickled objects; see `signature`.

    Only calls of the same function may meet. Hardware would accept a mix and exchange the wrong
    values.

    Args:
        name: Name of the function that the user called.
        operation: A key of `OPERATIONS`.
        blocks: Shapes of the blocks: a single block, or a block for each rank of the group.
        root: Rank in the group of the source or destination, for operations that have one.
        root_text: The root as the user gave it, such as `src=2`; empty without a root.
    """
    what = signature(name, operation, dtype, blocks, None, root, root_text)
    return replace(what, kind=name, counted=operation, of_objects=True)


@cached("distributed.coalesced")
def coalesced_signature(
    operation: str,
    dtype: DType,
    blocks: tuple[tuple[Shape, ...], ...],
    reduction: Reduction | None = None,
) -> Signature:
    """Returns the signature of several operations issued as one; a block holds several tensors.

    Args:
        operation: A key of `OPERATIONS`.
        blocks: Shapes of the tensors in each block.
        reduction: How values are combined; None for operations that combine none.
    """
    wire, parts = _wire(dtype)
    sizes = tuple([parts * sum(prod(shape) for shape in shapes) for shapes in blocks])
    name, count = f"{operation}_coalesced", len(blocks[0])
    inside = [f"{count} tensor{'s' if count > 1 else ''}", _blocks_text(blocks[0]), str(dtype)]
    if reduction is not None:
        inside.append(reduction.name)
    return Signature(
        name,
        name,
        operation,
        _terms(operation, dtype, blocks, reduction, 0),
        f"{name}({', '.join(inside)})",
        sizes,
        sum(sizes) * wire.itemsize,
        dtype,
        wire,
        reduction,
    )


@cached("distributed.exchanges")
def exchange_signature(
    name: str,
    dtype: DType,
    sends: tuple[int, ...],
    receives: tuple[int, ...],
    row: Shape | None,
) -> Signature:
    """Returns the signature of an exchange in which each rank gives sizes of its own.

    Args:
        name: Name of the function that the user called.
        sends: Rows, or elements, that go to each rank of the group.
        receives: Rows, or elements, that come from each rank of the group.
        row: Shape of a row; None if `sends` and `receives` count elements.
    """
    terms = [Term("C4", "dtype", dtype, _dtype_hint)]
    unit, length, shown = "element", 1, ""
    if row is not None:
        terms.append(Term("C3", "shape of a row", row, _shape_hint))
    if row:
        unit, length, shown = "row", prod(row), f"rows of {list(row)}, "
    wire, parts = _wire(dtype)
    return Signature(
        name,
        name,
        "all_to_all",
        tuple(terms),
        f"{name}({shown}{dtype}, to each {_counts(sends)}, from each {_counts(receives)})",
        None,
        max(sum(sends), sum(receives)) * length * dtype.itemsize,
        dtype,
        wire,
        splits=Splits(sends, receives, unit),
        row=parts * length,
        sends=tuple([count * parts * length for count in sends]),
    )


@cached("distributed.on_hosts")
def on_hosts(what: Signature) -> Signature:
    """Returns the signature of the same operation on tensors of the host.

    The signature has a kind of its own: on hardware, a collective on the host and one on devices
    would wait for each other for ever.
    """
    return replace(
        what,
        kind=f"{what.kind}{HOST_SUFFIX}",
        text=f"{what.text}{HOST_SUFFIX}",
        counted=what.counted or what.kind,
        hosted=True,
    )


def renamed(what: Signature, name: str) -> Signature:
    """Returns the signature of `name()`: only calls of this name meet, and no term must agree."""
    return replace(what, name=name, kind=name, terms=(), text=f"{name}()")


def _wire(dtype: DType) -> tuple[DType, int]:
    """Returns the type that travels for an element, and how many values of it an element has."""
    return dtypes.real_type(dtype), 2 if dtype.is_complex else 1


def _terms(
    operation: str, dtype: DType, shape: Any, reduction: Reduction | None, root: int
) -> tuple[Term, ...]:
    spec = OPERATIONS[operation]
    terms = []
    if spec.rooted:
        terms.append(Term("C7", "root", root, _root_hint))
    if reduction is not None:
        terms.append(Term("C5", "reduce operation", reduction.name, _reduction_hint))
    terms.append(Term("C4", "dtype", dtype, _dtype_hint))
    hint = _shape_hint if spec.blocks == "one" else _blocks_hint
    terms.append(Term("C3", "shape", shape, hint))
    return tuple(terms)


def _root_hint(expected: Any, got: Any) -> str:
    return (
        f"ranks {expected} and {got} of the group were named; src= and dst= are global ranks, "
        "group_src= and group_dst= ranks in the group"
    )


def _reduction_hint(expected: Any, got: Any) -> str:
    del expected, got
    return "all ranks name the same reduction, with the same factor if it has one"


def _dtype_hint(expected: Any, got: Any) -> str:
    if expected.itemsize == got.itemsize:
        return "the types have the same size, so hardware would take the one for the other"
    return "all ranks give tensors of one type; convert with .to(dtype) first"


def _shape_hint(expected: Any, got: Any) -> str:
    if prod(expected) == prod(got):
        return "the number of elements is the same, so hardware would not notice"
    return "all ranks give tensors of one shape"


def _blocks_hint(expected: Any, got: Any) -> str:
    if [prod(shape) for shape in expected] == [prod(shape) for shape in got]:
        return "the numbers of elements are the same, so hardware would not notice"
    return (
        "all ranks must agree on what belongs to each rank: pad to one size, or send with "
        "all_to_all_single and split sizes"
    )


def _blocks_text(blocks: Sequence[Shape]) -> str:
    if len(blocks) == 1:
        return str(list(blocks[0]))
    if len(set(blocks)) == 1:
        return f"{len(blocks)} x {list(blocks[0])}"
    shown = ", ".join(str(list(shape)) for shape in blocks[:_SHOWN])
    return shown + (f", ... {len(blocks)} in all" if len(blocks) > _SHOWN else "")


def _counts(counts: Sequence[int]) -> str:
    if len(set(counts)) == 1:
        return str(counts[0])
    shown = ", ".join(map(str, counts[:_SHOWN]))
    return f"[{shown}, ...]" if len(counts) > _SHOWN else f"[{shown}]"
