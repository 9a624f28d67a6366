"""`torch.cuda.FloatTensor` and so on, `Tensor.new`, and the default class of tensors."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernbench.bridge.base.here import HERE, Rank, this_rank
from kernbench.bridge.tensors.devices import on_device, to
from kernbench.bridge.tensors.storages import is_plain
from kernbench.isolation.replaced import Patch

_REAL_NEW: Final = torch.Tensor.new
_REAL_EMPTY: Final = torch.empty
_REAL_TYPE: Final = torch.Tensor.type
_STORAGES: Final = (torch.UntypedStorage, torch.TypedStorage)
_MAKES: Final = torch.ops.aten.empty.memory_format


_NAMES: Final = {
    torch.float32: "FloatTensor",
    torch.float64: "DoubleTensor",
    torch.float16: "HalfTensor",
    torch.bfloat16: "BFloat16Tensor",
    torch.uint8: "ByteTensor",
    torch.int8: "CharTensor",
    torch.int16: "ShortTensor",
    torch.int32: "IntTensor",
    torch.int64: "LongTensor",
    torch.bool: "BoolTensor",
}
"""The classes of `torch.cuda`, by the element types of their tensors."""

DTYPES: Final = {name: dtype for dtype, name in _NAMES.items()}


def name_of(dtype: torch.dtype) -> str:
    """Returns what `Tensor.type()` calls tensors of a type on a device.

    Args:
        dtype: Any element type; some have a name, and no class.
    """
    name = _NAMES.get(dtype) or _REAL_TYPE(_REAL_EMPTY(0, dtype=dtype)).removeprefix("torch.")
    return f"torch.cuda.{name}"


class _Sizes(TorchDispatchMode):
    """Takes note of sizes, without room for so many elements.

    Attributes:
        sizes: Those of a tensor that was to be made without values; None if there was none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sizes: Sequence[int] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation, but for the one that makes a tensor without values."""
        del types
        if func is not _MAKES or any(size < 0 for size in args[0]):
            return func(*args, **(kwargs or {}))
        self.sizes = args[0]
        return torch.ops.aten.empty.memory_format((), **(kwargs or {})).expand(args[0])


def _made(rank: Rank, dtype: torch.dtype, args: Any, options: dict[str, Any]) -> torch.Tensor:
    """Returns what an old class makes on the device; PyTorch's own parses the arguments."""
    device = options.pop("device", None)
    if device is not None and torch.device(device).type != "cuda":
        raise RuntimeError(
            "legacy constructor expects device type: cuda but device type: "
            f"{torch.device(device).type} was passed"
        )
    device = rank.device if device is None else device
    given = args[0] if len(args) == 1 and not options else None
    if not args and len(options) == 1:
        given = options.get("other")
    if isinstance(given, torch.Tensor):
        if given.dtype != dtype or not on_device(given):
            raise TypeError(f"expected {name_of(dtype)} (got {given.type()})")
        return torch.ops.aten.alias.default(given)
    if isinstance(given, _STORAGES):
        return torch.empty(0, dtype=dtype, device=device).set_(given)
    HERE.rank = None  # what parses them works on tensors of the host
    try:
        like = _REAL_EMPTY(0, dtype=dtype, device="cpu")
        with _Sizes() as seen:
            host = _REAL_NEW(like, *args, **options)
    finally:
        HERE.rank = rank
    if seen.sizes is not None:
        return torch.empty(seen.sizes, dtype=dtype, device=device)
    return to(host, device)


class OldClass(type):
    """Class of the classes `torch.cuda.FloatTensor` and so on, which no tensor is an object of."""

    dtype: torch.dtype

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, torch.Tensor) and value.dtype == cls.dtype and on_device(value)

    def __call__(cls, *args: Any, **options: Any) -> torch.Tensor:
        """Returns a tensor of the device, by the forms of arguments that PyTorch's classes take."""
        return _made(this_rank(), cls.dtype, args, options)


def old_classes() -> dict[str, OldClass]:
    """Returns `torch.cuda.FloatTensor` and so on, by name."""
    return {
        name: OldClass(name, (), {"dtype": dtype, "__module__": "torch.cuda"})
        for dtype, name in _NAMES.items()
    }


def _new(self: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    """`Tensor.new`: a tensor of the same class, where the tensor is."""
    rank = HERE.rank
    if rank is None or not is_plain(type(self)) or not on_device(self):
        made: torch.Tensor = _REAL_NEW(self, *args, **options)
        return made
    return _made(rank, self.dtype, args, options)


def _default(real: Callable[[Any], None], classes: dict[str, OldClass]) -> Callable[[Any], None]:
    """Returns `torch.set_default_tensor_type`, which also takes the classes of `torch.cuda`."""

    def set_default_tensor_type(t: Any, /) -> None:
        if HERE.rank is None:
            real(t)
            return
        if isinstance(t, str) and t.startswith("torch.cuda."):
            t = classes.get(t.removeprefix("torch.cuda."), t)
        if not isinstance(t, OldClass):
            real(t)
            torch.set_default_device(None)
            return
        if not t.dtype.is_floating_point:
            raise TypeError("only floating-point types are supported as the default type")
        torch.set_default_dtype(t.dtype)
        torch.set_default_device("cuda")

    return set_default_tensor_type


def patches() -> Iterator[Patch]:
    """Yields what is replaced of old classes of tensors."""
    classes = old_classes()
    for name, ours in classes.items():
        yield Patch(torch.cuda, name, ours)
    yield Patch(torch.Tensor, "new", _new)
    default = _default(torch.set_default_tensor_type, classes)
    yield Patch(torch, "set_default_tensor_type", default)
