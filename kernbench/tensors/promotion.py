"""Dtypes of results, by PyTorch's rules (documentation of `torch.Tensor`, type promotion)."""

from collections.abc import Sequence
from typing import Final

from kernbench.errors import KernbenchError, UnsupportedError, call_site, site_fact
from kernbench.memory import DType, dtypes
from kernbench.tensors.settings import default_complex, default_dtype
from kernbench.tensors.tensor import Tensor

Scalar = int | float | bool | complex

_INTS: Final = (dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64)
_EIGHT_BIT_FLOATS: Final = (dtypes.float8_e4m3fn, dtypes.float8_e5m2)


FLOATS: Final = 2
"""The category of floating-point types."""


def category(dtype: DType) -> int:
    """Returns 0 for bool, 1 for integers, 2 for floats, 3 for complex numbers.

    A result may not be written to a tensor of a lower category.
    """
    if dtype.is_floating_point:
        return FLOATS
    if dtype.is_complex:
        return 3
    return 0 if dtype is dtypes.bool_ else 1


def promote_types(type1: DType, type2: DType) -> DType:
    """Returns the smallest type that both can be converted to, as `torch.promote_types`.

    Raises:
        KernbenchError: For two types of which one is an 8-bit float, which PyTorch refuses too.
    """
    a, b = type1, type2
    if a is b:
        return a
    if a in _EIGHT_BIT_FLOATS or b in _EIGHT_BIT_FLOATS:
        raise KernbenchError(
            f"promotion of {a} and {b} is not supported",
            [site_fact(call_site())],
            hint="convert one of them with .to(dtype)",
        )
    if a.is_complex or b.is_complex:
        wide = dtypes.float64 in {dtypes.real_type(a), dtypes.real_type(b)}
        return dtypes.complex128 if wide else dtypes.complex64
    if category(a) != category(b):
        return a if category(a) > category(b) else b
    if a.is_floating_point:
        if a.itemsize == b.itemsize:
            return dtypes.float32
        return a if a.itemsize > b.itemsize else b
    if dtypes.uint8 in {a, b}:
        other = b if a is dtypes.uint8 else a
        return dtypes.int16 if other is dtypes.int8 else other
    return _INTS[max(_INTS.index(a), _INTS.index(b))]


def scalar_type(value: Scalar) -> DType:
    """Returns the dtype that PyTorch gives to a Python number."""
    if isinstance(value, bool):
        return dtypes.bool_
    if isinstance(value, complex):
        return default_complex()
    return dtypes.int64 if isinstance(value, int) else default_dtype()


def result_type(operands: Sequence[Tensor | Scalar]) -> DType:
    """Returns the type of an operation on tensors and numbers, as `torch.result_type`.

    Tensors with dimensions decide. Tensors of a single value, and then Python numbers, count only
    if they are of a higher category (bool, integer, floating-point, complex). A complex single
    value or number beside a floating-point tensor gives the complex type of the tensor's precision.

    Raises:
        UnsupportedError: If the result would be a complex number of float16.
    """
    if len(operands) == 2 and isinstance(operands[0], Tensor):
        # Nearly all operations: two tensors of one type, or floats and a real number.
        known, other = operands[0].window.dtype, operands[1]
        if isinstance(other, Tensor):
            if other.window.dtype is known:
                return known
        elif known.is_floating_point and not isinstance(other, complex):
            return known
    dimensioned: DType | None = None
    single: DType | None = None
    number: DType | None = None
    for operand in operands:
        if not isinstance(operand, Tensor):
            dtype = scalar_type(operand)
            number = dtype if number is None else promote_types(number, dtype)
        elif operand.window.shape:
            dtype = operand.window.dtype
            dimensioned = dtype if dimensioned is None else promote_types(dimensioned, dtype)
        else:
            dtype = operand.window.dtype
            single = dtype if single is None else promote_types(single, dtype)
    result = dimensioned
    for weaker in (single, number):
        if weaker is None:
            continue
        if result is None or category(weaker) > category(result):
            result = _lifted(result, weaker)
    assert result is not None
    return result


def _lifted(dtype: DType | None, higher: DType) -> DType:
    """Returns the result type of a dtype beside a single value of a higher category."""
    if dtype is None or not (higher.is_complex and dtype.is_floating_point):
        return higher
    if dtype in _EIGHT_BIT_FLOATS:
        return promote_types(dtype, higher)
    lifted = dtypes.complex_type(dtype)
    if lifted is None:
        raise UnsupportedError(
            f"complex numbers of {dtype} (torch.complex32) are not simulated",
            [site_fact(call_site())],
            hint="convert to float32 first",
        )
    return lifted
