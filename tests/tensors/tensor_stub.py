"""Writes `kernbench/tensors/tensor.pyi`: `python tests/tensors/tensor_stub.py`.

The stub tells type checkers which methods `Tensor` has; the functions stand in rooms above it
(ADR 0021). A test holds the file equal to what this writes.
"""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, Final, get_overloads

import kernbench.tensors
from kernbench.runtime_api.tensor_methods import TensorMethods, attributes_of
from kernbench.tensors.tensor import Tensor

STUB: Final = Path(kernbench.tensors.__file__).with_name("tensor.pyi")

HEAD: Final = '''"""What `Tensor` is to type checkers; written by `tests/tensors/tensor_stub.py`."""

import builtins
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal, NoReturn, Self, overload

import numpy as np

from kernbench.memory import DType, Storage, View
from kernbench.process.types import Device, DeviceLike, Size
from kernbench.tensors.generators import Generator
from kernbench.tensors.hooks import RemovableHandle
from kernbench.tensors.memory import Memory
from kernbench.tensors.nodes import Leaf, Node, Origin, Output
from kernbench.tensors.return_types import ValuesAndIndices

class Tensor:
    memory: Memory
    window: View
    device: Device
    graph: Leaf | Output | None
    origin: Origin | None
    __array_priority__: ClassVar[builtins.int]
    __hash__: ClassVar[Callable[[object], builtins.int]]
'''

HIDDEN: Final = ("bool", "float", "int", "type")
"""Types whose names are methods of `Tensor`, too."""

UNTYPED_OVERRIDES: Final = frozenset({"__eq__", "__ne__"})
"""Methods that return a tensor where `object` returns a bool, as PyTorch's do."""


def _type(annotation: Any) -> str:
    """Returns an annotation as the stub spells it."""
    if annotation is None:
        return "None"
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        text = annotation.__name__
    else:
        text = annotation if isinstance(annotation, str) else str(annotation)
    text = re.sub(r"ForwardRef\('([^']*)'\)", r"\1", text)
    # Types are imported by their own names; only numpy's keep that of their module.
    text = re.sub(r"\b(?!np\.)(?:\w+\.)+(?=\w)", lambda m: "np." if m[0] == "numpy." else "", text)
    text = text.replace("np.generic", "generic").replace("generic", "np.generic")
    text = re.sub(r"Optional\[((?:[^\[\]]|\[[^\]]*\])*)\]", r"\1 | None", text)
    text = re.sub(r"\bndarray\b", "np.ndarray", text).replace("np.np.", "np.")
    return re.sub(rf"\b({'|'.join(HIDDEN)})\b", r"builtins.\1", text)


def _default(parameter: inspect.Parameter) -> str:
    """Returns how the stub spells a default: constants as they are, all else as `...`."""
    if parameter.default is inspect.Parameter.empty:
        return ""
    plain = isinstance(parameter.default, bool | int | float | str | None)
    return f" = {parameter.default!r}" if plain else " = ..."


def _method(name: str, function: FunctionType) -> str:
    """Returns the lines of a method."""
    overloads = get_overloads(function)
    if overloads:
        return "".join(f"    @overload\n{_signature(name, each)}" for each in overloads)
    return _signature(name, function)


def _signature(name: str, function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    # Functions that a factory makes are typed as a `Callable`, which has no names.
    nameless = name.startswith("__") or "<locals>" in inspect.unwrap(function).__code__.co_qualname
    shown, starred = ["self"], False
    for parameter in list(signature.parameters.values())[1:]:
        star = ""
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            star, starred = "*", True
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            star = "**"
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            if nameless:  # operators pass none of them
                break
            if not starred:
                shown.append("*")
                starred = True
        shown.append(f"{star}{parameter.name}: {_type(parameter.annotation)}{_default(parameter)}")
    if nameless and len(shown) > 1 and not starred:
        shown.append("/")
    ignored = "  # type: ignore[override]" if name in UNTYPED_OVERRIDES else ""
    returned = _type(signature.return_annotation)
    return f"    def {name}({', '.join(shown)}) -> {returned}: ...{ignored}\n"


def _property(name: str, value: property) -> str:
    """Returns the lines of a property."""
    assert value.fget is not None
    kind = _type(inspect.signature(value.fget).return_annotation)
    text = f"    @property\n    def {name}(self) -> {kind}: ...\n"
    if value.fset is not None:
        (_, given) = inspect.signature(value.fset).parameters.values()
        text += f"    @{name}.setter\n"
        text += f"    def {name}(self, {given.name}: {_type(given.annotation)}) -> None: ...\n"
    return text


def stub() -> str:
    """Returns the text of the stub."""
    text = HEAD
    own = {name: value for name, value in vars(Tensor).items() if name in {"shape", "dtype"}}
    own |= {name: getattr(Tensor, name) for name in ("is_cuda", "is_cpu")}
    for name, value in {**own, **attributes_of(TensorMethods)}.items():
        if isinstance(value, property):
            text += _property(name, value)
        elif isinstance(value, FunctionType):
            text += _method(name, value)
    return text


if __name__ == "__main__":
    STUB.write_text(stub())
