"""What libraries define in Python of operations: by `custom_op`, `triton_op` and `Library.impl`."""

from collections.abc import Iterable
from typing import Any, Final
from weakref import WeakSet

import torch

from kernbench.bridge.operations.costs import Cost

_KERNELS: Final = ("CUDA", "CPU", "CompositeExplicitAutograd")
"""For what a library registers what its operation does."""


class Kept(dict[Any, Any]):
    """What is known of operations, until a library defines one anew."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(self) -> None:
        _ALL.add(self)


_ALL: Final = WeakSet[Kept]()


class _Impls(set[str]):
    def add(self, name: str) -> None:
        super().add(name)
        _OF_PYTORCH.discard(name)
        _forget([name])

    def __isub__(self, names: Any) -> Any:  # type: ignore[misc]
        self.difference_update(one for one in names if not _is_anew(one))
        _forget(names)
        return self


def _is_anew(name: str) -> bool:
    """Returns whether another library has defined what a library that goes away had."""
    full, _, key = name.replace("/", "::", 1).partition("/")
    there = key in _KERNELS and full in torch._C._dispatch_get_all_op_names()
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return there and not full.startswith("aten::") and has(full, key)


def _forget(names: Iterable[str]) -> None:
    if any(name.rpartition("/")[2] in _KERNELS for name in names):
        for kept in _ALL:
            kept.clear()


_IMPLS: Final = _Impls(torch.library._impls)
_NATIVE: Final = " ".join(one for one in _IMPLS if one.startswith("_native/"))
_OF_PYTORCH: Final = {
    one for one in _IMPLS if f"/{one.split('/')[1].replace('.', '_')}_" in _NATIVE
}
"""What PyTorch itself defines (`torch._native`), which needs a GPU."""
torch.library._impls = _IMPLS  # of which PyTorch tells nobody that it changes


def defined(func: Any, cost: Cost) -> bool:
    """Returns whether a library defines what an operation does: for CUDA, if it has a price.

    FSDP defines its operations so when it is imported; with a price, they are one call of the host.
    """
    if func.namespace == "fsdp" and cost.known:
        return False
    name, keys = func._name.replace("::", "/"), _KERNELS[: 3 - 2 * cost.known]
    return not _IMPLS.intersection(f"{name}/{key}" for key in keys) <= _OF_PYTORCH
