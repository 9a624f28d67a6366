"""`torch.Tensor(...)`, and the classes named by element type, such as `torch.FloatTensor`."""

from collections.abc import Sequence
from typing import Any, Final, overload

import numpy as np

from kernbench.errors import OperandError, OptionError, call_site, site_fact
from kernbench.memory import DType, dtypes
from kernbench.operations.copies import to
from kernbench.operations.creation import empty, shape_of
from kernbench.operations.from_values import tensor
from kernbench.process.types import DeviceLike, Size
from kernbench.tensors.operands import type_name
from kernbench.tensors.settings import default_dtype
from kernbench.tensors.tensor import Tensor

DTYPES: Final = {
    "BFloat16Tensor": dtypes.bfloat16,
    "BoolTensor": dtypes.bool_,
    "ByteTensor": dtypes.uint8,
    "CharTensor": dtypes.int8,
    "DoubleTensor": dtypes.float64,
    "FloatTensor": dtypes.float32,
    "HalfTensor": dtypes.float16,
    "IntTensor": dtypes.int32,
    "LongTensor": dtypes.int64,
    "ShortTensor": dtypes.int16,
}
"""Element types by the names of PyTorch's classes."""

__all__ = [*DTYPES]  # noqa: PLE0604 - names of the table


def made(dtype: DType, data: tuple[Any, ...], device: DeviceLike | None = None) -> Tensor:
    """Returns the tensor that the arguments of `torch.Tensor` and its like mean.

    Args:
        data: Extents of an unwritten tensor, one by one or as a `torch.Size`; or one sequence or
            array of numbers; or one tensor, whose memory the result shares; nothing for a vector
            without elements.
        device: Device of the result; by default that of a tensor, else as for `torch.tensor`.

    Raises:
        OperandError: If `data` is anything else.
    """
    if len(data) == 1:
        (only,) = data
        if isinstance(only, Tensor):
            return only.detach()
        if isinstance(only, np.ndarray) or (
            isinstance(only, Sequence) and not isinstance(only, str | Size)
        ):
            return tensor(only, device=device).to(dtype)
        if not isinstance(only, int | np.integer | Size) or isinstance(only, bool):
            raise OperandError(
                f"new(): data must be a sequence (got {type_name(only)})", [site_fact(call_site())]
            )
    shape = shape_of(data) if data else (0,)
    return empty(shape, dtype=dtype, device=device)


def init(
    self: Tensor,
    *data: Any,
    size: Sequence[int] | None = None,
    device: DeviceLike | None = None,
) -> None:
    """Makes a tensor of the default type, as `torch.Tensor`: of a shape, numbers or a tensor.

    Args:
        *data: Extents of an unwritten tensor, one by one or as a `torch.Size`; or one sequence or
            array of numbers; or one tensor, whose memory and type the result shares.
        size: Extents, instead of `data`.
        device: Device of the result; by default that of a tensor, else as for `torch.tensor`.

    Raises:
        OperandError: If `data` is anything else.
    """
    source = made(default_dtype(), data if size is None else (Size(size),), device)
    self.memory, self.window, self.device = source.memory, source.window, source.device
    self.graph = self.origin = None


class _OfType(type):
    """The classes of tensors of one type: they make tensors, and tell which tensors they name."""

    dtype: DType
    kind: str | None

    def __call__(cls, *data: Any, device: DeviceLike | None = None) -> Tensor:
        if len(data) == 1 and isinstance(data[0], Tensor) and data[0].dtype is not cls.dtype:
            raise OperandError(
                f"expected {cls.__name__} (got a tensor of {data[0].dtype})",
                [site_fact(call_site())],
                hint=f"tensor.to({cls.dtype}) converts it",
            )
        return made(cls.dtype, data, cls.kind if device is None else device)

    def __instancecheck__(cls, instance: object) -> bool:
        fits = isinstance(instance, Tensor) and instance.dtype is cls.dtype
        return fits and (cls.kind is None or instance.device.type == cls.kind)  # type: ignore[attr-defined]


def of_types(module: str, kind: str | None) -> dict[str, _OfType]:
    """Returns the classes named by element type.

    Args:
        module: Name of the module that holds them, such as `torch.cuda`.
        kind: Device type of their tensors; None: where `torch.tensor` puts them.
    """
    return {
        name: _OfType(name, (), {"dtype": dtype, "kind": kind, "__module__": module})
        for name, dtype in DTYPES.items()
    }


@overload
def type_(self: Tensor) -> str: ...
@overload
def type_(self: Tensor, dtype: DType | str | type, non_blocking: bool = False) -> Tensor: ...
def type_(
    self: Tensor, dtype: DType | str | type | None = None, non_blocking: bool = False
) -> Tensor | str:
    """Returns the tensor in another type, as `torch.Tensor.type`.

    Args:
        dtype: Element type, or a class such as `torch.FloatTensor`, or its name; None to be told
            the class.
        non_blocking: Whether the host need not wait for copies from or to pinned memory.

    Returns:
        The tensor; without a type, the name of the tensor's class.

    Raises:
        OptionError: If no class has the name, or the element type has no class.
    """
    if dtype is None:
        names = {each: name for name, each in DTYPES.items()}
        if self.dtype not in names:
            raise OptionError(f"no class of tensors holds {self.dtype}", [site_fact(call_site())])
        return f"torch.{'cuda.' if self.is_cuda else ''}{names[self.dtype]}"
    if isinstance(dtype, DType):
        return to(self, dtype, non_blocking=non_blocking)
    if dtype is Tensor:
        dtype = "torch.FloatTensor"
    if isinstance(dtype, _OfType):
        dtype = f"{dtype.__module__}.{dtype.__name__}"
    path, _, name = str(dtype).rpartition(".")
    if path not in {"torch", "torch.cuda"} or name not in DTYPES:
        raise OptionError(f"invalid type: {dtype!r}", [site_fact(call_site())])
    return to(self, "cuda" if path == "torch.cuda" else self.device, DTYPES[name], non_blocking)


globals().update(of_types("torch", None))
