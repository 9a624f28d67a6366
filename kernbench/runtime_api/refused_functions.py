"""Names of PyTorch that are not simulated: each says so, and what to do instead.

Which they are says `runtime_api.refused_names`, which can be read without PyTorch.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from kernbench.errors import not_simulated, warn_at_call
from kernbench.runtime_api.refused_names import refused_by_module

CUDA_PARTS: Final = ("graphs", "green_contexts", "memory", "profiler", "random", "streams")
"""Modules of `torch.cuda` that define some of its names, and may be asked for them."""


class Once:
    """Says a thing once in a run."""

    def __init__(self) -> None:
        self._said = False

    def say(self, text: str) -> None:
        """Warns at the user's line, unless it was said already."""
        if not self._said:
            self._said = True
            warn_at_call(text)


def refused(name: str, hint: str) -> Callable[..., NoReturn]:
    """Returns a function that refuses every call.

    Args:
        name: Its name in PyTorch.
        hint: What to do instead.
    """

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise not_simulated(name, hint)

    refuse.__name__ = name.rpartition(".")[2]
    refuse.__doc__ = f"`{name}`, which is not simulated."
    return refuse


def refused_class(name: str, hint: str) -> type:
    """Returns a class of which no object can be made; programs may still ask for its objects.

    Args:
        name: Its name in PyTorch.
        hint: What to do instead.
    """

    def refuse(cls: type, *_: Any, **__: Any) -> NoReturn:
        del cls
        raise not_simulated(name, hint)

    made = type(name.rpartition(".")[2], (), {"__new__": refuse, "__doc__": refuse.__doc__})
    made.__module__ = name.rpartition(".")[0]
    return made


_BY_MODULE: Final = refused_by_module()

CUDA: Final[dict[str, Any]] = {
    name: (refused_class if name[0].isupper() or name == "graph" else refused)(
        f"torch.cuda.{name}", hint
    )
    for name, hint in _BY_MODULE.pop("torch.cuda").items()
}
"""What `torch.cuda` has and is not simulated, by name."""

MEMORY: Final = {
    name: refused(f"torch.cuda.memory.{name}", hint)
    for name, hint in _BY_MODULE.pop("torch.cuda.memory").items()
    if name not in CUDA
}
"""What `torch.cuda.memory` has of its own and is not simulated, by name."""

OTHERS: Final[Mapping[str, Mapping[str, str]]] = {
    module: names
    for module, names in _BY_MODULE.items()
    # Others have those of `torch.cuda` by other names, operations of higher order, and calls of
    # other ranks.
    if module
    not in {"torch", "torch.distributed.rpc", *(f"torch.cuda.{part}" for part in CUDA_PARTS)}
}
"""What to do instead of names of other modules, by module and name."""
