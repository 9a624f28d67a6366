"""Text of a tensor: the numbers, brackets and line breaks that PyTorch prints."""

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, Final

import numpy as np

from kernbench.memory import Array
from kernbench.operations.host_reads import single
from kernbench.tensors.nodes import Output, edge_of
from kernbench.tensors.running import host_array
from kernbench.tensors.tensor import Tensor

_MOST_SHOWN: Final = 1000
"""A tensor with more elements than this prints only those at the edges."""
_EDGE: Final = 3
_LINE: Final = 80
_PREFIX: Final = "tensor("

_Write = Callable[[Any], str]


def text(self: Tensor) -> str:
    """Returns the text that PyTorch prints: values, then type and device if not the defaults."""
    values = host_array(self, "__repr__")
    if self.dtype.is_floating_point:
        values = values.astype(np.float64)
    facts = [] if self.is_cpu else [f"device='{self.device}'"]
    if not values.size:
        shown = "[]"
        if values.ndim > 1:
            facts.append(f"size={tuple(values.shape)}")
    else:
        write, width = _writer(values)
        shown = _nested(values, len(_PREFIX), write, width, values.size > _MOST_SHOWN)
    plain = {"float32", "int64", "bool", "complex64"} if values.size else {"float32"}
    if self.dtype.name not in plain:
        facts.append(f"dtype={self.dtype}")
    edge = edge_of(self)
    if edge is not None:
        made = isinstance(self.graph, Output)
        facts.append(f"grad_fn={edge[0]!r}" if made else "requires_grad=True")
    return _with_facts(_PREFIX + shown, facts)


def formatted(self: Tensor, spec: str) -> str:
    """Returns a single value formatted as a number, and any other tensor as text."""
    if self.window.shape:
        return format(text(self), spec)
    value = single(self, "__format__")
    return format(value, spec) if spec else str(value)


def _with_facts(shown: str, facts: Sequence[str]) -> str:
    """Adds the facts that follow the values, on further lines where a line would be too long."""
    length = len(shown) - shown.rfind("\n") + 1
    for fact in facts:
        if length + len(fact) + 2 > _LINE:
            shown += ",\n" + " " * len(_PREFIX) + fact
            length = len(_PREFIX) + len(fact)
        else:
            shown += f", {fact}"
            length += len(fact) + 2
    return f"{shown})"


def _nested(values: Array, indent: int, write: _Write, width: int, cut: bool) -> str:
    """Returns an array in brackets; `cut` leaves out the elements that are not at the edges."""
    if not values.ndim:
        return write(values.item())
    left_out = cut and len(values) > 2 * _EDGE
    if left_out:
        values = np.concatenate([values[:_EDGE], values[-_EDGE:]])
    if values.ndim == 1:
        parts = [write(value) for value in values.tolist()]
    else:
        parts = [_nested(row, indent + 1, write, width, cut) for row in values]
    if left_out:
        parts.insert(_EDGE, " ..." if values.ndim == 1 else "...")
    if values.ndim > 1:
        return "[" + ("," + "\n" * (values.ndim - 1) + " " * (indent + 1)).join(parts) + "]"
    room = max(1, (_LINE - indent) // (width + 2))
    lines = [", ".join(parts[at : at + room]) for at in range(0, len(parts), room)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"


def _writer(values: Array) -> tuple[_Write, int]:
    """Returns a function that writes an element, and the width it counts for in line breaks."""
    shown = _shown(values)
    if values.dtype.kind != "c":
        return _real_writer(shown)
    (first, width), (second, other) = _real_writer(shown.real), _real_writer(shown.imag)

    def write(value: complex) -> str:
        imag = second(value.imag).lstrip()
        return f"{first(value.real)}{'' if imag[0] in '+-' else '+'}{imag}j"

    return write, width + other + 1


def _real_writer(shown: Array) -> tuple[_Write, int]:
    if shown.dtype.kind != "f":
        width = max(len(str(value)) for value in shown.reshape(-1).tolist())
        return (lambda value: str(value).rjust(width)), width
    form = _floats_form(shown.astype(np.float64))
    # The finite elements other than 0 determine the width, as in PyTorch.
    wide = [form(v) for v in shown.reshape(-1).tolist() if v and isfinite(v)]
    width = max(map(len, wide), default=1)
    return (lambda value: form(value).rjust(width)), width


def _shown(values: Array) -> Array:
    """Returns the elements at the edges, which are all that is printed of a long tensor."""
    if values.size > _MOST_SHOWN:
        for axis, extent in enumerate(values.shape):
            if extent > 2 * _EDGE:
                edges = [*range(_EDGE), *range(extent - _EDGE, extent)]
                values = np.take(values, edges, axis)
    return values


def _floats_form(shown: Array) -> _Write:
    """Returns a function that writes floats: whole, with four decimals, or with an exponent."""
    size = np.abs(shown)
    size = size[np.isfinite(size) & (size > 0)]
    high, low = (size.max(), size.min()) if size.size else (1.0, 1.0)
    whole = bool((size == np.ceil(size)).all())
    if high / low > 1000 or high > 1e8 or (low < 1e-4 and not whole):
        return lambda value: f"{value:.4e}"
    if whole:
        return lambda value: f"{value:.0f}." if isfinite(value) else str(value)
    return lambda value: f"{value:.4f}"
