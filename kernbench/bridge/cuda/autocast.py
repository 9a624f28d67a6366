"""`torch.autocast`: operands on simulated devices are cast as CUDA casts them (ADR 0041).

PyTorch's dispatcher has a key for autocast on CUDA, and kernels for it that cast tensors that are
on CUDA, which tensors of simulated devices are not. Here kernels of that key take their place, with
the same lists. The dispatcher asks them for every operation, whoever calls it: a function of
PyTorch in C++ or Python, a module, a backward pass, a script. What switches autocast on and off,
and remembers it for a backward pass, is PyTorch itself.

The key is not among those of a tensor here, so each thread adds it while autocast is enabled.
"""

import warnings
import weakref
from collections.abc import Callable, Iterator
from itertools import compress
from typing import Any, Final

import torch
from torch._C import DispatchKey

from kernbench.bridge.base.here import HERE
from kernbench.bridge.tensors.devices import device_of
from kernbench.bridge.tensors.storages import STORAGES, is_plain
from kernbench.errors import not_simulated
from kernbench.isolation.replaced import Patch
from kernbench.runtime_api import autocast_lists as lists

_ATEN: Final = torch.ops.aten
_LISTS: Final = frozenset((list, tuple))
_CUDA: Final = "AutocastCUDA"
_HOST: Final = "AutocastCPU"
_without: Final = torch._C._ExcludeDispatchKeyGuard
_CUDA_KEYS: Final = torch._C.DispatchKeySet(DispatchKey.AutocastCUDA)
_HOST_KEYS: Final = torch._C.DispatchKeySet(DispatchKey.AutocastCPU)
_FULL: Final = torch.float32
_TO: Final = _ATEN._to_copy.default
_lower: Final = torch.get_autocast_dtype

INSTEAD: Final[dict[str, Callable[..., Any]]] = {}
"""What is called with the cast operands in place of an operation, by the operation's name.

For functions that on CUDA are other operations than on a CPU, by the types of their operands.
"""

Kernel = Callable[..., Any]


# Casts


def _is_cast(tensor: torch.Tensor) -> bool:
    """Returns whether autocast of CUDA changes the type of a tensor."""
    if not tensor.is_floating_point() or tensor.dtype is torch.float64:
        return False
    if is_plain(type(tensor)):
        try:
            held = STORAGES.get(tensor.untyped_storage()._cdata)
        except NotImplementedError:  # sparse, or inside of `vmap` and the like
            pass
        else:
            return held is not None and held.on_device
    return bool(device_of(tensor).type == "cuda")


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        if value.dtype is dtype or not _is_cast(value):
            return value
        if (
            value.requires_grad
            and value.dtype is _FULL
            and value.is_leaf
            and dtype is _lower("cuda")
            and torch.is_autocast_cache_enabled()
            and not value._is_view()
        ):
            return _weight(value, dtype)
        return _TO(value, dtype=dtype)
    if type(value) in _LISTS:
        return [_cast(one, dtype) for one in value]
    return value


def _weight(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns a parameter in the lower type: cast once until the outermost block ends."""
    rank = HERE.rank
    if rank is None:  # code of the bridge itself
        cast: torch.Tensor = _TO(value, dtype=dtype)
        return cast
    kept = rank.casts.get(id(value))
    if kept is None or kept[0]() is not value:
        kept = rank.casts[id(value)] = weakref.ref(value), _TO(value, dtype=dtype)
    return kept[1]


def _widest(values: Any, found: torch.dtype, lower: torch.dtype) -> torch.dtype:
    """Returns the type in which an operation of `WIDEST` runs.

    Args:
        values: Its operands, but those that it need not have: PyTorch does not ask for their type.
        found: The type so far.
        lower: The lower type.

    Raises:
        RuntimeError: If operands are of both lower types, and none before them is of float32.
    """
    for value in values:
        if type(value) in _LISTS:
            found = _widest(value, found, lower)
        elif isinstance(value, torch.Tensor) and _is_cast(value):
            if _FULL in (found, value.dtype):
                found = _FULL
            elif not found is lower is value.dtype:
                raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
    return found


# Kernels


def _operation(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(_ATEN, packet), overload or "default")


def _cast_to(name: str, dtype: torch.dtype | None) -> Kernel:
    """Returns the kernel of an operation whose operands are cast; None: to the lower type."""
    call = INSTEAD.get(name) or _operation(name)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _without(_CUDA_KEYS):
            target = dtype or _lower("cuda")
            given = [_cast(one, target) for one in args]
            if kwargs:
                return call(*given, **{key: _cast(one, target) for key, one in kwargs.items()})
            return call(*given)

    return kernel


def _cast_inside(name: str) -> Kernel:
    """Returns the kernel of an operation that takes the type of its computation as an argument."""
    call = _operation(name)
    place = [each.name for each in call._schema.arguments].index("dtype")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _without(_CUDA_KEYS):
            told = kwargs.get("dtype") if len(args) <= place else args[place]
            if told is None and _is_cast(args[0]):
                return call(*args[:place], **{**kwargs, "dtype": _FULL})
            return call(*args, **kwargs)

    return kernel


def _cast_by(name: str, other: str) -> Kernel:
    """Returns the kernel of an operation another overload of which takes the type."""
    names = [each.name for each in _operation(name)._schema.arguments]
    defaults = {each.name: each.default_value for each in _operation(name)._schema.arguments}
    call = _operation(other)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _without(_CUDA_KEYS):
            given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
            target = _FULL if _is_cast(args[0]) else args[0].dtype
            return call(*(given[each] for each in names), dtype=target)

    return kernel


def _cast_to_widest(name: str) -> Kernel:
    call = _operation(name)
    needed = [str(each.type) in ("Tensor", "List[Tensor]") for each in call._schema.arguments]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _without(_CUDA_KEYS):
            lower = _lower("cuda")
            target = _widest(compress(args, needed), lower, lower)
            given = [_cast(one, target) for one in args]
            return call(*given, **{key: _cast(one, target) for key, one in kwargs.items()})

    return kernel


def _unsafe(*_: Any, **__: Any) -> Any:
    raise RuntimeError(lists.WORDS)


def _unknown(name: str) -> Kernel:
    def kernel(*_: Any, **__: Any) -> Any:
        raise not_simulated(
            f"{name} inside of torch.autocast, which this version of PyTorch casts",
            'leave autocast for this call: with torch.autocast("cuda", enabled=False)',
        )

    return kernel


def with_kernel(key: str) -> set[str]:
    """Returns the operations of PyTorch's own for which something is registered.

    Args:
        key: The dispatcher's key for what.
    """
    prefix, has = "aten::", torch._C._dispatch_has_kernel_for_dispatch_key
    every = torch._C._dispatch_get_all_op_names()
    return {
        name.removeprefix(prefix) for name in every if name.startswith(prefix) and has(name, key)
    }


def _kernels() -> Iterator[tuple[str, Kernel]]:
    """Yields what CUDA's autocast does with each operation."""
    theirs = with_kernel(_CUDA)
    for name in (*lists.LOWER, *lists.CUDNN):
        yield name, _cast_to(name, None)
    for name in lists.FULL:
        if name in theirs:
            yield name, _cast_to(name, _FULL)
    for name in lists.FULL_INSIDE:
        yield name, _cast_inside(name)
    for name, other in lists.FULL_BY.items():
        yield name, _cast_by(name, other)
    for name in lists.WIDEST:
        yield name, _cast_to_widest(name)
    yield lists.UNSAFE, _unsafe
    for name in sorted(theirs - lists.KNOWN):
        yield name, _unknown(name)


def _of_the_host(name: str) -> Kernel:
    """Returns the kernel of autocast of the CPU, which casts no tensor on a simulated device."""
    operation = _operation(name)
    real = torch.library.get_kernel(operation, _HOST)

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if any(map(_is_there, (*args, *kwargs.values()))):
            with _without(_HOST_KEYS):
                return operation(*args, **kwargs)
        return real.call_boxed(keys, *args, **kwargs)

    return kernel


def _is_there(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return bool(device_of(value).type == "cuda")
    return type(value) in _LISTS and any(map(_is_there, value))


class _Kernels:
    """Kernels of one of the dispatcher's keys, registered when a program first enables autocast.

    Args:
        kernels: Yields the kernels, by the name of the operation.
        with_keys: Whether kernels are given the keys of the call.
    """

    def __init__(
        self, key: str, kernels: Callable[[], Iterator[tuple[str, Kernel]]], *, with_keys: bool
    ) -> None:
        self._key: Final = key
        self._kernels: Final = kernels
        self._with_keys: Final = with_keys
        self._made: list[tuple[str, Kernel]] = []
        self._library: torch.library.Library | None = None

    def register(self) -> None:
        """Gives PyTorch the kernels, if it does not have them."""
        if self._library is not None:
            return
        self._made = self._made or list(self._kernels())
        library = self._library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():  # PyTorch warns of a kernel that takes another's place
            warnings.simplefilter("ignore")
            for name, kernel in self._made:
                library.impl(name, kernel, self._key, with_keyset=self._with_keys)

    def withdraw(self) -> None:
        """Lets PyTorch's own kernels stand again."""
        if self._library is not None:
            self._library._destroy()
            self._library = None


_ON_CUDA: Final = _Kernels(_CUDA, _kernels, with_keys=False)
_ON_HOST: Final = _Kernels(
    _HOST, lambda: ((name, _of_the_host(name)) for name in with_kernel(_HOST)), with_keys=True
)


def withdraw() -> None:
    """Lets PyTorch's own autocast stand again, at the end of a run."""
    _ON_CUDA.withdraw()
    _ON_HOST.withdraw()


def patches() -> Iterator[Patch]:
    """Yields what is replaced."""
    real, clear = torch.set_autocast_enabled, torch.clear_autocast_cache

    def set_autocast_enabled(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        rank = HERE.rank
        if rank is None:
            return
        enabled = torch.is_autocast_enabled("cuda")
        if enabled:
            _ON_CUDA.register()
        torch._C._dispatch_tls_set_dispatch_key_included(_CUDA, enabled)
        if rank.data and torch.is_autocast_enabled("cpu"):
            _ON_HOST.register()

    def clear_autocast_cache() -> None:
        clear()
        if HERE.rank is not None:
            HERE.rank.casts.clear()

    yield Patch(torch, "set_autocast_enabled", set_autocast_enabled)
    yield Patch(torch, "clear_autocast_cache", clear_autocast_cache)
