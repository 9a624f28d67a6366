"""What libraries define in Python of operations: by `custom_op`, `triton_op` and `Library.impl`."""

from collections.abc import Iterable
from typing import Any, Final, TypeVar
from weakref import WeakSet

import torch

from kernbench.bridge.operations.costs import Cost

_KERNELS: Final = ("CUDA", "CPU", "CompositeExplicitAutograd")
"""For what a library registers what its operation does."""

K = TypeVar("K")
V = TypeVar("V")


class Kept(dict[K, V]):
    """What is known of operations, until a library defines one anew."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(self) -> None:
        _ALL.add(self)


_ALL: Final = WeakSet[Kept[Any, Any]]()


class _Impls(set[str]):
    def add(self, name: str) -> None:
        super().add(name)
        _forget([name])

    def __isub__(self, names: Any) -> Any:  # type: ignore[misc]
        self.difference_update(names)
        _forget(names)
        return self


def _forget(names: Iterable[str]) -> None:
    if any(name.rpartition("/")[2] in _KERNELS for name in names):
        for kept in _ALL:
            kept.clear()


_IMPLS: Final = _Impls(torch.library._impls)
torch.library._impls = _IMPLS  # of which PyTorch tells nobody that it changes


def defined(func: Any, cost: Cost) -> bool:
    """Returns whether a library defines what an operation does on a device.

    Args:
        func: The operation.
        cost: What it is on a device; of what has a price, a library may have a kernel for CUDA.
    """
    name = func._name.replace("::", "/")
    of_pytorch = f"_native/{name.partition('/')[2]}_native_0/CUDA" in _IMPLS  # which need a GPU
    return not of_pytorch and any(
        f"{name}/{key}" in _IMPLS for key in _KERNELS[: 3 - 2 * cost.known]
    )
