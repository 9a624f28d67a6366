"""`torch.jit.script` in ranks: compiled by PyTorch with its own names, and run as Python.

TorchScript knows functions of PyTorch by their identity, so it compiles while nothing is replaced.
What it has compiled does not ask where tensors are as Python does: a function runs as it was
written. A module runs as it was compiled.
"""

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import torch
from torch.jit import _builtins

from kernbench.bridge.base.here import HERE
from kernbench.runtime_api.refused_functions import Once

_NOT_FUSED: Final = (
    "torch.jit.script compiles nothing for simulated devices: the code runs one kernel an "
    "operation, so its predicted time is that of eager PyTorch"
)

_OF_COMPILED: Final = (
    *("code", "get_debug_state", "graph", "graph_for", "inlined_graph", "name", "qualified_name"),
    *("save", "save_to_buffer", "schema"),
)
"""What programs ask a scripted function for."""


def script(
    real: Callable[..., Any],
    undone: Callable[[], AbstractContextManager[None]],
    real_of: Callable[[], dict[int, Any]],
) -> Callable[..., Any]:
    """Returns `torch.jit.script` as ranks have it.

    Args:
        undone: Gives a block in which PyTorch's own names stand.
        real_of: Gives PyTorch's own functions by the identities of those that stand for them.
    """
    once = Once()

    @functools.wraps(real)
    def compiled(obj: Any, *args: Any, _frames_up: int = 0, **options: Any) -> Any:
        if HERE.rank is None:
            return real(obj, *args, _frames_up=_frames_up + 1, **options)
        once.say(_NOT_FUSED)
        names, find = real_of(), _builtins._find_builtin
        if inspect.isfunction(obj):
            kinds = obj.__annotations__.items()
            obj.__annotations__ = {name: names.get(id(kind), kind) for name, kind in kinds}
        with undone():
            # A program may have taken a function by its name while another stood for it.
            _builtins._find_builtin = lambda function: find(names.get(id(function), function))
            try:
                made = real(obj, *args, _frames_up=_frames_up + 1, **options)
            finally:
                _builtins._find_builtin = find
        if not inspect.isfunction(obj) or not isinstance(made, torch.jit.ScriptFunction):
            return made
        for name in _OF_COMPILED:
            setattr(obj, name, getattr(made, name))
        return obj

    return compiled
