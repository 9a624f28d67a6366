"""Writes `kernbench/runtime_api/pytorch_names.txt`: the public names of PyTorch 2.13.

`python tests/torch/pytorch_names.py` needs PyTorch 2.13.0 (the wheel for CPUs is enough; names that
only exist in a build with CUDA are not in it).
"""

import importlib
import pkgutil
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any, Final

FILE: Final = (
    Path(__file__).resolve().parents[2] / "kernbench" / "runtime_api" / "pytorch_names.txt"
)

VERSION: Final = "2.13.0"

HEAD: Final = f"""\
# The public names of PyTorch {VERSION}, a module or class and its names a line, written by
# tests/torch/pytorch_names.py from the package itself (https://pytorch.org, BSD-3-Clause).
"""

LEFT_OUT: Final = (
    "torch.ao",
    "torch.contrib",
    "torch.distributed.benchmarks",
    "torch.distributed.flight_recorder",
    "torch.export",
    "torch.fx.experimental",
    "torch.fx.passes",
    "torch.jit",
    "torch.masked",
    "torch.nn.intrinsic",
    "torch.nn.qat",
    "torch.nn.quantizable",
    "torch.nn.quantized",
    "torch.onnx",
    "torch.package",
    "torch.quantization",
    "torch.return_types",
    "torch.utils.benchmark",
    "torch.utils.bottleneck",
    "torch.utils.collect_env",
    "torch.utils.cpp_extension",
    "torch.utils.hipify",
    "torch.utils.model_dump",
    "torch.utils.serialization",
    "torch.utils.viz",
)
"""Modules of which only the name is kept: hardly any program uses their parts."""

CLASSES: Final = ("torch.Tensor", "torch.nn.Module", "torch.optim.Optimizer")
"""Classes of which every public attribute is kept, since programs use them by instances."""


def modules(package: ModuleType) -> dict[str, ModuleType | None]:
    """Returns the public modules by name; None for one that needs another package."""
    found: dict[str, ModuleType | None] = {package.__name__: package}
    for info in pkgutil.iter_modules(vars(package).get("__path__"), f"{package.__name__}."):
        name = info.name
        if name.rpartition(".")[2].startswith("_") or name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(name)
        except Exception:
            found[name] = None
            continue
        found[name] = module
        if info.ispkg and name not in LEFT_OUT and "__path__" in vars(module):
            found |= modules(module)
    return found


def names(module: ModuleType, parts: set[str]) -> set[str]:
    """Returns the public names of a module, with its submodules."""
    listed = getattr(module, "__all__", ())
    if listed and "__path__" not in vars(module):
        return {name for name in listed if not name.startswith("_")}
    found = {name for name in listed if not name.startswith("_")}
    found |= {part for part in parts if part.rpartition(".")[0] == module.__name__}
    kept = set()
    for name in dir(module):
        value: Any = getattr(module, name, None)
        if name.startswith("_"):
            continue
        if isinstance(value, ModuleType):
            if value.__name__.startswith("torch."):
                kept.add(name)
        elif str(getattr(value, "__module__", "torch")).partition(".")[0] == "torch":
            kept.add(name)
    return {name.rpartition(".")[2] for name in found} | kept


def text() -> str:
    """Returns the content of the file."""
    torch = importlib.import_module("torch")
    assert str(torch.__version__).partition("+")[0] == VERSION
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        public = modules(torch)
        content = {
            name: set() if name in LEFT_OUT or module is None else names(module, set(public))
            for name, module in public.items()
        }
        for path in CLASSES:
            module, _, name = path.rpartition(".")
            content[path] = {
                each
                for each in dir(getattr(importlib.import_module(module), name))
                if not each.startswith("_")
            }
    lines = [f"{name}: {' '.join(sorted(content[name]))}".rstrip() for name in sorted(content)]
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
