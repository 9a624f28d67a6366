"""Where tensors are: `cuda` devices that PyTorch itself does not have.

PyTorch keeps what is on the simulated device on the device `cpu`, or on `meta` without numbers.
So everything that tells Python where a tensor is, and every function that takes a `device`, is
replaced here, while ranks run. The table is in `patches`.
"""

import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from kernbench.bridge.base.here import HERE, Rank, this_rank
from kernbench.bridge.tensors.no_numbers import read
from kernbench.bridge.tensors.storages import PINNED, hold, is_on_device, is_plain
from kernbench.errors import KernbenchError, call_site, not_simulated, site_fact
from kernbench.process.access import other_device
from kernbench.process.process import MAIN

_CPU: Final = torch.device("cpu")
_DEVICE_GETTER: Final = torch.Tensor.device.__get__
_REAL_WRAPPER: Final = torch.Tensor._make_wrapper_subclass
_REAL_TO: Final = torch.Tensor.to
_ITEM: Final = torch.ops.aten._local_scalar_dense.default


def real_device(tensor: torch.Tensor) -> torch.device:
    """Returns where PyTorch keeps a tensor."""
    with torch._C.DisableTorchFunction():  # a function mode would ask the replaced property
        device: torch.device = _DEVICE_GETTER(tensor)
    return device


_WRAPS: Final = ("_local_tensor", "_tensor", "elem")
"""Attributes in which subclasses of tensors keep the plain tensor that they stand for."""


def on_device(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is on a simulated device."""
    if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        for name in _WRAPS:
            inner = getattr(tensor, name, None)
            if isinstance(inner, torch.Tensor):
                return on_device(inner)
        if shards := getattr(tensor, "_local_shards", None):  # ShardedTensor, LocalShardsWrapper
            return on_device(getattr(shards[0], "tensor", shards[0]))
        with torch._C.DisableTorchFunctionSubclass():  # some subclasses know few functions
            return is_on_device(tensor)
    return is_on_device(tensor)


def device_of(tensor: torch.Tensor) -> torch.device:
    """Returns what `tensor.device` is for the program: the simulated device, or the real one."""
    rank = HERE.rank
    if rank is not None and on_device(tensor):
        return rank.device
    device: torch.device = real_device(tensor)
    return device


def wanted(rank: Rank, device: Any) -> torch.device | None:
    """Returns the device that an argument names; None if the argument names none.

    Args:
        device: A name, an index, also one of NumPy, a `torch.device`, or something else.

    Raises:
        KernbenchError: If there is no such device.
        OwnershipError: If it is a device of the node that is not the rank's (M14).
    """
    if isinstance(device, bool) or not isinstance(device, str | int | np.integer | torch.device):
        return None
    if isinstance(device, int | np.integer):
        device = torch.device("cuda", int(device))
    elif isinstance(device, str):
        device = torch.device(device)
    if device.type != "cuda":
        return device
    index = rank.current if device.index is None else device.index
    if index != rank.local:
        raise wrong_device(rank, index)
    return rank.device


def wrong_device(rank: Rank, index: int) -> KernbenchError:
    """Returns the error about a device that is not the rank's own (M14), or not there.

    Args:
        index: Index of the device that the program names.
    """
    process = rank.process
    if index >= rank.local_devices:
        return KernbenchError(
            f"{process.name} asks for cuda:{index}, which does not exist",
            [site_fact(call_site()), f"its node has {rank.local_devices} devices"],
            hint="a rank uses cuda:LOCAL_RANK",
        )
    owner = None if process.rank == MAIN else process.rank - rank.local + index
    return other_device(process.name, index, rank.local, owner)


class placed:  # noqa: N801 - reads like a keyword
    """A block in which all that is made goes to the device, or to the host.

    Args:
        on: Whether it goes to the device; None: where the operands are.
    """

    __slots__ = ("_before", "_on", "_rank")

    def __init__(self, rank: Rank, on: bool | None) -> None:
        self._rank = rank
        self._on = on

    def __enter__(self) -> None:
        self._before, self._rank.making = self._rank.making, self._on

    def __exit__(self, *_: object) -> None:
        self._rank.making = self._before


class ambient:  # noqa: N801 - reads like a keyword
    """A block in which what C++ code makes from nothing goes to the device.

    Args:
        on: Whether it does.
    """

    __slots__ = ("_before", "_on", "_rank")

    def __init__(self, rank: Rank, on: bool) -> None:
        self._rank = rank
        self._on = on

    def __enter__(self) -> None:
        self._before, self._rank.ambient = self._rank.ambient, self._on

    def __exit__(self, *_: object) -> None:
        self._rank.ambient = self._before


def wrapper_subclass(kind: Any, *args: Any, **options: Any) -> Any:
    """`torch.Tensor._make_wrapper_subclass`: autograd asks for what is on the device it is given.

    Args:
        kind: The class of the tensor that is made.
        options: The other arguments by name.
    """
    rank, device = HERE.rank, options.get("device")
    if rank is not None and device is not None and torch.device(device).type == "cuda":
        options["device"] = rank.physical
    return _REAL_WRAPPER(kind, *args, **options)


def moved(rank: Rank, tensor: torch.Tensor, target: torch.device, **options: Any) -> torch.Tensor:
    """Returns a tensor on another device than it is on, as a copy through the host's bus.

    Args:
        target: The simulated device, the host, or `meta`.
        options: Further arguments of `Tensor.to`, such as `dtype`.

    Raises:
        NoDataError: If values would come from a device without numbers.
        UnsupportedError: If it is sparse, and would go to a device.
    """
    options = {**options, "copy": True}
    if target.type == "cuda" and tensor.layout is not torch.strided:
        raise not_simulated(
            f"a tensor of layout {tensor.layout} on a device",
            "keep it on the CPU, or use its dense form: tensor.to_dense()",
        )
    noted = is_plain(type(tensor)) and tensor.requires_grad and torch.is_grad_enabled()
    if noted and target.type != "meta":
        found: torch.Tensor = _Moved.apply(tensor, target, options)
        return found
    return _moved(rank, tensor, target, options)


def _moved(
    rank: Rank, tensor: torch.Tensor, target: torch.device, options: dict[str, Any]
) -> torch.Tensor:
    on = target.type == "cuda"
    with placed(rank, on):
        return _REAL_TO(tensor, rank.physical if on else target, **options)


class _Moved(torch.autograd.Function):
    """A copy on another device, whose gradient goes back: PyTorch's own sees one device only."""

    @staticmethod
    def forward(
        tensor: torch.Tensor, target: torch.device, options: dict[str, Any]
    ) -> torch.Tensor:
        """Returns the copy."""
        return _moved(this_rank(), tensor, target, options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        """Keeps where the tensor is; apart from `forward`, as `torch.func` needs it."""
        del output
        ctx.back = device_of(inputs[0]), inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Returns the gradient where the tensor is, of its type."""
        return to(grad, *ctx.back), None, None


def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`Tensor.to`, which knows the simulated device."""
    rank = HERE.rank
    if rank is None or not isinstance(self, torch.Tensor):
        return _REAL_TO(self, *args, **kwargs)
    target, rest, options = None, list(args), dict(kwargs)
    names: tuple[str, ...] = ("dtype", "non_blocking", "copy")
    if rest and isinstance(rest[0], torch.Tensor):
        other, names = rest.pop(0), names[1:]
        target = device_of(other)
        options["dtype"] = other.dtype
    elif rest and (found := wanted(rank, rest[0])) is not None:
        target = found
        rest.pop(0)
    elif "device" in options:
        target = wanted(rank, options["device"])
    elif isinstance(options.get("other"), torch.Tensor):
        other = options.pop("other")
        target, options["dtype"] = device_of(other), other.dtype
    options.pop("device", None)
    if target is not None:
        options |= dict(zip(names, rest, strict=False))
    options = {name: value for name, value in options.items() if value is not None}
    if target is None:
        return _REAL_TO(self, *rest, **options)
    if device_of(self) != target:
        return moved(rank, self, target, **options)
    return _REAL_TO(self, real_device(self), **options) if options else self


def cuda(self: torch.Tensor, device: Any = None, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`Tensor.cuda`.

    Args:
        device: The device; None: the current one.
        kwargs: Further arguments of PyTorch, by name.
    """
    return to(self, "cuda" if device is None else device, *args, **kwargs)


def cpu(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`Tensor.cpu`."""
    del args, kwargs  # the memory format is that of the tensor
    return to(self, "cpu")


def factory(real: Callable[..., Any], like: bool) -> Callable[..., Any]:
    """Returns a function that makes tensors, which knows the simulated device.

    Args:
        like: Whether the function's first argument says where, if no `device` does.
    """

    @functools.wraps(real)
    def make(*args: Any, **kwargs: Any) -> Any:
        rank = HERE.rank
        if rank is None:
            return real(*args, **kwargs)
        return made(rank, real, like, args, kwargs)

    return make


def sparse_factory(real: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that makes sparse tensors, and refuses to make them on a device."""

    @functools.wraps(real)
    def make(*args: Any, **kwargs: Any) -> Any:
        rank = HERE.rank
        target = None if rank is None else wanted(rank, kwargs.get("device"))
        if target is not None and target.type == "cuda":
            raise not_simulated(
                f"{real.__name__}: a sparse tensor on a device",
                "keep it on the CPU, or make a dense one",
            )
        return real(*args, **kwargs)

    return make


def default_device() -> torch.device | None:
    """Returns the device that `with torch.device(...)` or `set_default_device` has set, if any."""
    if not torch._C._len_torch_function_stack():
        return None
    for mode in reversed(_get_current_function_mode_stack()):
        if isinstance(mode, DeviceContext):
            device: torch.device = mode.device
            return device
    return None


def made(
    rank: Rank, real: Callable[..., Any], like: bool, args: Any, kwargs: dict[str, Any]
) -> Any:
    """Calls a function that makes tensors, on the device that its arguments mean.

    Args:
        like: Whether the function's first argument says where, if no `device` does.
    """
    if not rank.data and args and isinstance(args[0], list | tuple):
        args = (_values(rank, args[0]), *args[1:])
    device = kwargs.get("device")
    if device is None:
        place = args[0] if like else kwargs.get("out")
        if rank.making is not None or place is not None:
            made_of = on_device(place) if rank.making is None else rank.making
            return _noticed(rank, real(*args, **kwargs), bool(made_of))
        device = default_device() or _CPU
    target = wanted(rank, device)
    pinned = kwargs.pop("pin_memory", None)
    if target is None or target.type != "cuda":
        with placed(rank, False):
            result = real(*args, **{**kwargs, "device": target})
        if pinned:
            setattr(result.untyped_storage(), PINNED, True)
        return result
    with placed(rank, True):
        result = _noticed(rank, real(*args, **{**kwargs, "device": rank.physical}), True)
    if rank.numbers is not None and real in _OF_VALUES and not isinstance(args[0], torch.Tensor):
        with placed(rank, False):  # no mode sees the values
            rank.numbers.keep(result, lambda: real(*args, **{**kwargs, "device": _CPU}))
    return result


_OF_VALUES: Final = frozenset((torch.tensor, torch.asarray, torch.as_tensor))
"""What makes tensors of values of Python."""


def _values(rank: Rank, given: Any) -> Any:
    """Returns a list of values of Python without tensors of a device, of which the host reads one.

    Raises:
        NoDataError: If values are not to be made up.
    """
    if isinstance(given, list | tuple) and not isinstance(given, torch.Size):
        return [_values(rank, one) for one in given]
    if type(given) is torch.Tensor and given.numel() == 1 and is_on_device(given):
        return read(rank, _ITEM, (given.reshape(()),), {})
    return given


def _noticed(rank: Rank, result: Any, on: bool) -> Any:
    """Returns a new tensor; one that is made of values of Python is no operation's result."""
    if on and type(result) is torch.Tensor and not on_device(result):  # no FakeTensor
        if rank.data:
            hold(rank, result.untyped_storage(), on_device=True, of=result)
        else:
            rank.mode.uploaded(result)
    return result
