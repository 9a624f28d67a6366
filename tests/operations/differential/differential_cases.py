"""Calls that PyTorch and kernbench both get: their operands, and how each library makes them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import numpy as np

FLOATS: Final = ("float64", "float32", "float16", "bfloat16")
INTS: Final = ("int64", "int32", "int16", "int8", "uint8")
COMPLEX: Final = ("complex64", "complex128")
REALS: Final = (*FLOATS, *INTS, "bool")
TYPES: Final = (*REALS, *COMPLEX)

SHAPES: Final = ((), (1,), (5,), (0,), (2, 3), (3, 1), (1, 4), (2, 0), (2, 3, 4), (2, 1, 4))
MATRICES: Final = ((3, 3), (2, 3), (1, 4), (0, 3), (2, 3, 4), (2, 0, 3), (1, 1), (2, 2, 3, 2))
LAYOUTS: Final = ("plain", "plain", "turned", "stepped", "part", "expanded")


@dataclass(frozen=True)
class DTypeOf:
    """An element type, by name."""

    name: str


@dataclass(frozen=True)
class Operand:
    """A tensor.

    Attributes:
        shape: Extents.
        dtype: Name of the element type.
        seed: Decides the values.
        layout: How the elements lie: `plain`, or as the view that `turned`, `stepped`, `part` or
            `expanded` names.
        kind: Range of the values: `any`, `small`, `positive`, `distinct`, `special` (with nan and
            infinities), or `below:n` for indices.
        grad: Whether it needs a gradient.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    seed: int = 0
    layout: str = "plain"
    kind: str = "any"
    grad: bool = False

    def values(self) -> np.ndarray[Any, Any]:
        """Returns the values, in a type of numpy."""
        rng = np.random.default_rng(self.seed)
        shape = self.shape
        if self.kind.startswith("below:"):
            return rng.integers(0, int(self.kind[6:]), shape).astype(self.dtype)
        if self.dtype == "bool":
            return np.asarray(rng.integers(0, 2, shape)).astype(bool)
        if self.kind == "distinct":
            size = int(np.prod(shape))
            return rng.permutation(size).reshape(shape).astype(_held(self.dtype))
        if self.dtype in INTS:
            low = 0 if self.dtype == "uint8" or self.kind == "positive" else -4
            return np.asarray(rng.integers(low + (self.kind == "positive"), 7, shape)).astype(
                self.dtype
            )
        scale = 0.25 if self.kind == "small" else 1.0
        # Multiples of 1/8 are exact in every type.
        found = rng.integers(-24, 25, shape) / 8 * scale
        if self.kind == "positive":
            found = np.abs(found) + 0.25
        if self.dtype in COMPLEX:
            found = found + 1j * (rng.integers(-24, 25, shape) / 8)
        found = np.asarray(found)
        if self.kind == "special" and found.size:
            flat = found.reshape(-1)
            for each in (np.nan, np.inf, -np.inf, -0.0):
                flat[rng.integers(0, flat.size)] = each
            found = flat.reshape(shape)
        return found.astype(_held(self.dtype))


def _held(dtype: str) -> str:
    return "float32" if dtype == "bfloat16" else dtype


def _laid(lib: Any, values: np.ndarray[Any, Any], layout: str, dtype: Any, device: str) -> Any:
    def make(array: np.ndarray[Any, Any]) -> Any:
        return lib.tensor(array, device=device).to(dtype)

    rank = values.ndim
    if layout == "turned" and rank > 1:
        order = list(range(rank))[::-1]
        return make(np.ascontiguousarray(values.transpose(order))).permute(order)
    if layout == "stepped" and rank:
        wide = np.zeros((*values.shape[:-1], 2 * values.shape[-1]), values.dtype)
        wide[..., ::2] = values
        return make(wide)[..., ::2]
    if layout == "part" and rank:
        wide = np.zeros((values.shape[0] + 1, *values.shape[1:]), values.dtype)
        wide[1:] = values
        return make(wide)[1:]
    if layout == "expanded" and rank and values.shape[0]:
        return make(np.ascontiguousarray(values[:1])).expand(values.shape)
    return make(values)


@dataclass(frozen=True)
class Case:
    """One call.

    Attributes:
        name: What is called, such as `torch.add`, `Tensor.add_`, `nn.functional.relu`.
        args: Positional arguments, which may hold `Operand`s and `DTypeOf`s at any depth.
        kwargs: Arguments by keyword.
        loose: Whether many roundings add up in the result.
        shapes_only: Whether the values are random or unwritten.
        function: What is called with the library and the arguments; None: what `name` says.
    """

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    loose: bool = False
    shapes_only: bool = False
    function: Callable[..., Any] | None = None

    @property
    def writes(self) -> bool:
        """Whether the call writes to its first argument."""
        last = self.name.rpartition(".")[2]
        inplace = last.endswith("_") and not last.endswith("__")
        return (
            inplace or last == "__setitem__" or (last.startswith("__i") and last[3:] in _IN_PLACE)
        )

    def dtypes(self) -> set[str]:
        """Returns the element types of the operands."""
        return {each.dtype for each in operands_in([self.args, self.kwargs])}

    def is_special(self) -> bool:
        """Returns whether an operand may hold nan or infinities."""
        return any(each.kind == "special" for each in operands_in([self.args, self.kwargs]))

    def __str__(self) -> str:
        shown = [repr(each) for each in self.args]
        shown += [f"{key}={each!r}" for key, each in self.kwargs.items()]
        return f"{self.name}({', '.join(shown)})"


_IN_PLACE: Final = frozenset(
    f"{stem}__"
    for stem in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
)


def operands_in(value: Any) -> list[Operand]:
    """Returns the operands in a nest of arguments, in order."""
    if isinstance(value, Operand):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [each for entry in value for each in operands_in(entry)]
    if isinstance(value, slice):
        return operands_in([value.start, value.stop, value.step])
    return []


class Side:
    """One of the two libraries.

    Args:
        lib: The module.
        device: Device of the operands.
    """

    def __init__(self, lib: Any, device: str) -> None:
        self.lib = lib
        self.device = device

    def build(self, value: Any, leaves: list[Any]) -> Any:
        """Returns an argument for this library; the tensors that need gradients go to `leaves`."""
        if isinstance(value, Operand):
            dtype = getattr(self.lib, value.dtype)
            found = _laid(self.lib, value.values(), value.layout, dtype, self.device)
            if value.grad:
                found.requires_grad_()
                leaves.append(found)
            return found
        if isinstance(value, DTypeOf):
            return getattr(self.lib, value.name)
        if isinstance(value, list | tuple):
            return type(value)(self.build(each, leaves) for each in value)
        if isinstance(value, dict):
            return {key: self.build(each, leaves) for key, each in value.items()}
        if isinstance(value, slice):
            parts = (value.start, value.stop, value.step)
            return slice(*[self.build(each, leaves) for each in parts])
        return value

    def call(self, case: Case) -> tuple[Any, list[Any]]:
        """Makes the call; returns its result and the tensors that need gradients.

        What the call wrote to its first argument is a part of the result.
        """
        leaves: list[Any] = []
        args = [self.build(each, leaves) for each in case.args]
        kwargs = {key: self.build(each, leaves) for key, each in case.kwargs.items()}
        if case.writes and leaves and args[0] is leaves[0]:
            args[0] = leaves[0] * 1
        if case.function is not None:
            return case.function(self.lib, *args, **kwargs), leaves
        head, _, name = case.name.rpartition(".")
        if head == "Tensor":
            found = getattr(args[0], name)
            result = found(*args[1:], **kwargs) if callable(found) else found
        else:
            found = self.lib
            for part in case.name.split(".")[1:]:
                found = getattr(found, part)
            result = found(*args, **kwargs)
        return ((result, args[0]) if case.writes else result), leaves


def drawn(rng: Random, options: Sequence[Any]) -> Any:
    """Returns one of the options."""
    return options[rng.randrange(len(options))]


def operand(
    rng: Random,
    shape: tuple[int, ...] | None = None,
    dtype: str | None = None,
    *,
    shapes: Sequence[tuple[int, ...]] = SHAPES,
    dtypes: Sequence[str] = REALS,
    kind: str = "any",
    grad: bool | None = None,
    layout: str | None = None,
) -> Operand:
    """Returns an operand of which everything that is not given is drawn."""
    dtype = dtype or drawn(rng, dtypes)
    if kind == "any" and dtype in FLOATS and rng.random() < 0.1:
        kind = "special"
    wants = rng.random() < 0.4 if grad is None else grad
    return Operand(
        drawn(rng, shapes) if shape is None else shape,
        dtype,
        rng.randrange(1 << 20),
        layout or drawn(rng, LAYOUTS),
        kind,
        wants and dtype in FLOATS,
    )
