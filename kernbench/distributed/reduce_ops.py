"""`torch.distributed.ReduceOp`: reduce operations, and the types and backends that have them."""

import math
from typing import Any, Final

from kernbench.ccl.operations import Reduction
from kernbench.distributed.libraries import LIBRARIES, named
from kernbench.errors import KernbenchError, OperandError, UnsupportedError, call_site, site_fact
from kernbench.memory import DType
from kernbench.tensors.tensor import Tensor


class ReductionError(KernbenchError, RuntimeError, ValueError):
    """A reduce operation that is not defined for a type or on a backend (C6)."""


_NUMBERS: Final = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")


class RedOp(Reduction):
    """One of the values of `ReduceOp`, which prints as PyTorch's."""

    __slots__ = ()

    @property
    def op(self) -> "RedOp":
        """The operation itself, as the attribute `op` of PyTorch's `ReduceOp(op)`."""
        return self

    @property
    def value(self) -> int:
        """The operation's number."""
        return _NUMBERS.index(self.name)

    def __str__(self) -> str:
        return f"RedOpType.{self.name.upper()}"

    def __repr__(self) -> str:
        return f"<{self}: {self.value}>"


class PremulSum:
    """`ReduceOp.PREMUL_SUM`: becomes an operation when it is called with a factor."""

    def __str__(self) -> str:
        return "RedOpType.PREMUL_SUM"

    def __repr__(self) -> str:
        return f"<{self}: 8>"

    def __call__(self, factor: Any) -> Reduction:
        """Returns the operation that multiplies each rank's values by a factor, then adds up."""
        return premul_sum(factor)


def premul_sum(factor: Any) -> Reduction:
    """Returns the operation that multiplies each rank's values by a factor, then adds them up.

    The function is `torch.distributed._make_nccl_premul_sum`.

    Args:
        factor: Finite; every rank must give the same one.

    Raises:
        UnsupportedError: If the factor is a tensor.
        OperandError: If the factor is no number.
    """
    if isinstance(factor, Tensor):
        raise UnsupportedError(
            "PREMUL_SUM with a tensor as its factor is not simulated",
            [site_fact(call_site())],
            hint="give a number, which is part of the call that all ranks must agree on",
        )
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or math.isnan(factor):
        raise OperandError(
            f"PREMUL_SUM takes a number as its factor; got {factor!r}", [site_fact(call_site())]
        )
    return Reduction(f"premul_sum({factor:g})", "add", factor=float(factor))


class _Kinds(type):
    """Makes reduce operations instances of `ReduceOp` and `RedOpType`, as in PyTorch."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Reduction | PremulSum)


class RedOpType(metaclass=_Kinds):
    """`torch.distributed.ReduceOp.RedOpType`: the values of a `ReduceOp`."""

    SUM: Final = RedOp("sum", "add")
    AVG: Final = RedOp("avg", "add", average=True)
    PRODUCT: Final = RedOp("product", "multiply")
    MIN: Final = RedOp("min", "minimum")
    MAX: Final = RedOp("max", "maximum")
    BAND: Final = RedOp("band", "bitwise_and")
    BOR: Final = RedOp("bor", "bitwise_or")
    BXOR: Final = RedOp("bxor", "bitwise_xor")
    PREMUL_SUM: Final = PremulSum()


class ReduceOp(RedOpType):
    """`torch.distributed.ReduceOp`: how values of ranks are combined.

    `AVG` divides the sum by the number of ranks at the end; for integers it drops the fraction, as
    NCCL does; it does not take bools, and with `gloo` no integers. `PREMUL_SUM(factor)` multiplies
    before it adds, and takes floats and complex numbers only. Complex numbers take `SUM`, `AVG` and
    `PREMUL_SUM`. As in PyTorch, `nccl` has no `BAND`, `BOR` and `BXOR`, and `gloo` has no
    `PREMUL_SUM`; `ccl` has all operations (`libraries.LIBRARIES` is the table).

    `nccl` and `ccl` reduce 8-bit floats, as NCCL does since 2.24 on GPUs that have them; `gloo`
    does not. Each sum and product of two values is rounded to the tensor's dtype, to nearest even,
    before the next one; a value that is too large becomes the largest finite value. For 8-bit
    floats `AVG` multiplies by `1 / ranks`, itself rounded to the dtype, before it adds.
    """

    RedOpType: Final = RedOpType

    def __new__(cls, op: Reduction) -> Reduction:  # type: ignore[misc]
        """Returns the operation itself: PyTorch's wrapper object is equal to it.

        Raises:
            OperandError: If `op` is no reduce operation.
        """
        if not isinstance(op, Reduction):
            raise OperandError(
                f"ReduceOp() takes one of ReduceOp; got {op!r}", [site_fact(call_site())]
            )
        return op


_BY_NAME: Final = {op.name: op for op in vars(RedOpType).values() if isinstance(op, Reduction)}


def reduction_of(name: str, op: object) -> Reduction:
    """Returns the operation that an argument means: one of `ReduceOp`, or its name.

    Raises:
        ReductionError: If the argument means no reduce operation (C6).
    """
    if isinstance(op, Reduction):
        return op
    if isinstance(op, str) and op.lower() in _BY_NAME:
        return _BY_NAME[op.lower()]
    needs_factor = isinstance(op, PremulSum)
    given = repr(op) if isinstance(op, str) else f"a {type(op).__name__}"
    raise ReductionError(
        f"{name}: ReduceOp.PREMUL_SUM needs a factor"
        if needs_factor
        else f"{name}: {given} is no reduce operation",
        [site_fact(call_site())],
        hint="call ReduceOp.PREMUL_SUM(factor), and use its result"
        if needs_factor
        else "use one of torch.distributed.ReduceOp",
        code="C6",
    )


def check_reduction(name: str, op: Reduction, dtype: DType, backend: str) -> None:
    """Checks that an operation is defined.

    Args:
        name: Name of the collective, for the report.
        dtype: Element type of the tensors.
        backend: Name of the library that serves the tensors.

    Raises:
        ReductionError: If the backend lacks the operation, or lacks it for the type (C6).
    """
    library = LIBRARIES.get(backend)
    if library is None:
        return  # the group has none for this type of device, and `check_library` says so
    kind = op.name.partition("(")[0]
    takes = library.reduced.get(kind)
    if takes is None:
        lists = [f"{name} has {', '.join(each.reduced)}" for name, each in LIBRARIES.items()]
        raise ReductionError(
            f"{name}: {op.name} is not defined on backend {backend}",
            [site_fact(call_site())],
            hint="; ".join(lists),
            code="C6",
        )
    if dtype in takes:
        return
    if dtype.is_complex and op.combine != "add":
        raise ReductionError(
            f"{name} does not support {op} on complex tensors",
            [site_fact(call_site()), f"got a tensor of {dtype}"],
            hint="complex numbers travel as their parts: sum, avg and premul_sum take them",
            code="C6",
        )
    raise ReductionError(
        f"{name}: {op.name} is not defined for {dtype} on backend {backend}",
        [site_fact(call_site())],
        hint=f"{kind} takes {named(takes)} there: convert the tensor with .to() first",
        code="C6",
    )
