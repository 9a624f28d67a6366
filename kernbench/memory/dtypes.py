"""Element types, named as PyTorch names them, over numpy and ml_dtypes."""

from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np

from kernbench.memory.arithmetic import LARGEST

_FLOAT32: Final = np.dtype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type.

    Attributes:
        name: PyTorch's name without `torch.`.
        numpy: The numpy dtype that holds the elements.
        itemsize: Bytes of one element.
        is_floating_point: Whether it is a floating-point type; complex types are not, as in
            PyTorch.
        is_signed: Whether it has negative values.
        machine_name: Name under which machine files give the rate of this type; for a complex type,
            the name of its parts' type.
        is_complex: Whether it is a complex type.
    """

    name: str
    numpy: np.dtype[Any]
    itemsize: int
    is_floating_point: bool
    is_signed: bool
    machine_name: str
    is_complex: bool = False

    @property
    def accumulator(self) -> np.dtype[Any]:
        """The numpy dtype in which a matmul of this type adds: float32 for narrower floats."""
        if self.is_floating_point and self.itemsize < 4:
            return _FLOAT32
        return self.numpy

    @property
    def saturates(self) -> bool:
        """Whether sums and products end at the largest finite value, as with 8-bit floats."""
        return self.is_floating_point and self.itemsize == 1

    def __repr__(self) -> str:
        return f"torch.{self.name}"

    def __reduce__(self) -> str:
        return self.name


def _float(name: str, scalar: Any, machine_name: str) -> DType:
    dtype = np.dtype(scalar)
    return DType(name, dtype, dtype.itemsize, True, True, machine_name)


def _int(name: str, scalar: Any, machine_name: str) -> DType:
    dtype = np.dtype(scalar)
    return DType(name, dtype, dtype.itemsize, False, dtype.kind == "i", machine_name)


float64: Final = _float("float64", np.float64, "fp64")
float32: Final = _float("float32", np.float32, "fp32")
float16: Final = _float("float16", np.float16, "fp16")
bfloat16: Final = _float("bfloat16", ml_dtypes.bfloat16, "bf16")
float8_e4m3fn: Final = _float("float8_e4m3fn", ml_dtypes.float8_e4m3fn, "fp8")
float8_e5m2: Final = _float("float8_e5m2", ml_dtypes.float8_e5m2, "fp8")
int64: Final = _int("int64", np.int64, "int32")
int32: Final = _int("int32", np.int32, "int32")
int16: Final = _int("int16", np.int16, "int32")
int8: Final = _int("int8", np.int8, "int8")
uint8: Final = _int("uint8", np.uint8, "int8")
bool_: Final = DType("bool", np.dtype(np.bool_), 1, False, False, "int8")
uint16: Final = _int("uint16", np.uint16, "int32")
uint32: Final = _int("uint32", np.uint32, "int32")
uint64: Final = _int("uint64", np.uint64, "int32")
"""Wider unsigned types, of kernels only: no tensor holds them, so they are not in `ALL`."""
complex64: Final = DType("complex64", np.dtype(np.complex64), 8, False, True, "fp32", True)
complex128: Final = DType("complex128", np.dtype(np.complex128), 16, False, True, "fp64", True)

ALL: Final = (
    float64,
    float32,
    float16,
    bfloat16,
    float8_e4m3fn,
    float8_e5m2,
    int64,
    int32,
    int16,
    int8,
    uint8,
    bool_,
    complex64,
    complex128,
)
_BY_NUMPY: Final = {dtype.numpy: dtype for dtype in ALL}


_PARTS: Final = {complex64: float32, complex128: float64}
_OF_PARTS: Final = {bfloat16: complex64, float32: complex64, float64: complex128}


def real_type(dtype: DType) -> DType:
    """Returns the type of the two parts of a complex type; any other type unchanged."""
    return _PARTS.get(dtype, dtype)


def complex_type(dtype: DType) -> DType | None:
    """Returns the complex type that PyTorch makes of a floating-point type; None if there is none.

    There is none for float16: its complex type has parts of 16 bits, which are not simulated.
    """
    return dtype if dtype.is_complex else _OF_PARTS.get(dtype)


def from_numpy(dtype: np.dtype[Any]) -> DType | None:
    """Returns the element type held by a numpy dtype; None if there is none."""
    return _BY_NUMPY.get(dtype)


def cast(values: Any, dtype: DType) -> np.ndarray[Any, Any]:
    """Returns values as an array of a type: the array itself if it has that type already.

    A value that float8_e4m3fn cannot hold becomes its largest value, as in PyTorch; that type has
    no infinity. Complex numbers lose their imaginary part; as bool, they tell whether either part
    is not 0.
    """
    array: np.ndarray[Any, Any] = np.asarray(values)
    if array.dtype == dtype.numpy:
        return array
    if array.dtype.kind == "c" and not dtype.is_complex and dtype is not bool_:
        array = array.real
    if dtype is float8_e4m3fn:
        largest = LARGEST[dtype.numpy]
        array = np.clip(array.astype(np.float32), -largest, largest)
    return array.astype(dtype.numpy)


def poison(dtype: DType) -> Any:
    """Returns the value that unwritten memory holds: NaN, or the largest integer."""
    if dtype.is_floating_point:
        return dtype.numpy.type(float("nan"))
    if dtype.is_complex:
        return dtype.numpy.type(complex("nan+nanj"))
    return True if dtype is bool_ else np.iinfo(dtype.numpy).max
