"""Processes of this computer that a rank starts: they have no device."""

from functools import partial
from typing import Any, Final, NoReturn

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernbench.bridge.tensors.devices import on_device
from kernbench.errors import UnsupportedError, call_site, site_fact

_HINT: Final = "let a rank itself use its device, and give the process tensors of the host"


def _refuse(name: str, *_: Any, **__: Any) -> NoReturn:
    raise UnsupportedError(
        f"a process that {name} has started uses a simulated device",
        [site_fact(call_site()), "only ranks have devices"],
        hint=_HINT,
    )


class _WithoutDevices(TorchDispatchMode):
    """Refuses operations on tensors that a fork has got from its rank's device."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name: Final = name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation on tensors of the host."""
        del types
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, torch.Tensor) and on_device(value):
                _refuse(self._name)
        return func(*args, **(kwargs or {}))


def without_devices(name: str) -> None:
    """Takes the simulated devices from this process, which a rank has started.

    Args:
        name: Name of the rank.
    """
    for _ in range(torch._C._len_torch_dispatch_stack()):  # a fork begins with the rank's
        torch._C._pop_torch_dispatch_stack(None)
    torch.cuda._lazy_init = partial(_refuse, name)  # which all that makes tensors there calls
    _WithoutDevices(name).__enter__()
