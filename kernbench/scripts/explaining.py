"""What errors about names that are not there say, when a program has ended with them."""

import re
import sys
from typing import Final

from kernbench.ranks.spawn_errors import SpawnException
from kernbench.runtime_api.missing import missing, pytorch_names, runs_nowhere
from kernbench.triton.versions import INSTALL

_OURS = "kernbench.torch"
_PACKAGES: Final = {"triton": f"{INSTALL}; `kernbench torchrun` runs its kernels"}
"""What is said of packages that run here, and that PyTorch for CPUs does not bring along."""


def is_torch(name: str) -> bool:
    """Returns whether a module is `torch`, or lies in it."""
    return name == "torch" or name.startswith("torch.")


def module_sentence(name: str) -> str:
    """Returns what to say about a module or name of `torch` that is not there.

    Args:
        name: The whole name; of `torch.a.b`, `torch.a` may be what is not there.
    """
    parts = name.split(".")
    for end in range(2, len(parts)):
        if f"kernbench.{'.'.join(parts[:end])}" not in sys.modules:
            name = ".".join(parts[:end])
            break
    holder = sys.modules.get(f"kernbench.{name.rpartition('.')[0]}")
    return missing(name, () if holder is None else vars(holder))


def explain_names(error: BaseException) -> None:
    """Lets errors about names of `torch` that are not there say what to do.

    Missing names of modules are reported when they are used; this is for what Python itself says:
    that an import fails, and that a tensor or a module has no such attribute.

    Args:
        error: An error, or the error of a spawn with those of its ranks.
    """
    causes = error.errors.values() if isinstance(error, SpawnException) else [error]
    for cause in causes:
        if isinstance(cause, ImportError):
            _explain_import(cause)
        elif isinstance(cause, AttributeError):
            _explain_attribute(cause)


def _explain_import(error: ImportError) -> None:
    whole = error.name or ""
    if whole == "torch" and isinstance(error, ModuleNotFoundError):
        error.add_note(
            "hint: --as-torch lets `import torch` mean kernbench.torch; or `kernbench torchrun` "
            "runs programs of PyTorch itself: pip install torch --index-url "
            "https://download.pytorch.org/whl/cpu"
        )
        return
    if is_torch(whole) and sys.modules.get("torch") is not sys.modules.get(_OURS):
        return  # PyTorch itself
    way = _PACKAGES.get(whole.partition(".")[0]) or runs_nowhere(whole)
    if way is not None and isinstance(error, ModuleNotFoundError) and error.msg.startswith("No "):
        error.add_note(f"hint: {way}")
        return
    path = whole.removeprefix("kernbench.")
    if not is_torch(path):
        return
    name = re.match(r"cannot import name '(\w+)'", error.msg)
    if name is not None:
        path = f"{path}.{name[1]}"
    elif not isinstance(error, ModuleNotFoundError):
        return
    error.msg = module_sentence(path)


def _explain_attribute(error: AttributeError) -> None:
    face = sys.modules.get(_OURS)
    name, kind = error.name, type(error.obj)
    if face is None or name is None or name.startswith("_"):
        return
    if issubclass(kind, face.Tensor):
        error.args = (missing(f"torch.Tensor.{name}", dir(kind)),)
        return
    for path, base in ("nn.Module", face.nn.Module), ("optim.Optimizer", face.optim.Optimizer):
        if issubclass(kind, base) and name in pytorch_names()[f"torch.{path}"]:
            error.args = (missing(f"torch.{path}.{name}", ()),)
