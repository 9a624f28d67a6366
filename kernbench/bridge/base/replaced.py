"""Functions of PyTorch that are replaced, as subclasses and function modes see them."""

import functools
from types import FunctionType
from typing import Any, Final

import torch
from torch.overrides import handle_torch_function, has_torch_function

from kernbench.isolation.replaced import Patch


def seen_once(patch: Patch) -> Patch:
    """Returns a name that is replaced by a function that subclasses and function modes see.

    PyTorch tells them of its own function, and names it by what stands in its place. What stands
    there would run twice, the second time with what it has given to PyTorch's own: a tensor of a
    device would come to the host, where PyTorch keeps it.

    Args:
        patch: The name, and a function that takes tensors.
    """
    replacement = patch.value
    if not isinstance(replacement, FunctionType):
        return patch

    @functools.wraps(replacement)
    def function(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values()) if kwargs else args
        if has_torch_function(given):
            return handle_torch_function(function, given, *args, **kwargs)
        return replacement(*args, **kwargs)

    return patch._replace(value=function)


def takes_tensors(patch: Patch) -> bool:
    """Returns whether a name is that of a function that PyTorch tells subclasses and modes of.

    Args:
        patch: The name. Functions that make tensors of nothing are left out: modes are told of
            PyTorch's own, and are asked for the default device.
    """
    if patch.owner is torch.Tensor:
        return True
    return patch.owner in (torch, torch.nn.functional) and patch.name in _OF_TENSORS


LIKE: Final = (
    *("empty_like", "full_like", "ones_like", "rand_like", "randint_like", "randn_like"),
    "zeros_like",
)
"""Functions that make tensors like another one."""

_OF_TENSORS: Final = frozenset(("dropout", "rms_norm", "scaled_dot_product_attention", *LIKE))
