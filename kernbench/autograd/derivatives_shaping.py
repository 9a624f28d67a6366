"""Gradients of views, of copies, and of operations that move elements."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernbench.autograd.derivatives_pointwise import nothing, same
from kernbench.autograd.kernels import added
from kernbench.errors import call_site, site_fact
from kernbench.kernels.prices import of_part
from kernbench.memory import Array
from kernbench.memory.special import add_slices
from kernbench.operations.creation import zeros
from kernbench.operations.elementwise import layout
from kernbench.operations.fused import kernel
from kernbench.operations.indexing import Advanced, Key, gathered, scattered
from kernbench.operations.shaping import cat, key_along, moved, stack
from kernbench.operations.views import narrow, permute, reshape, squeeze, unsqueeze
from kernbench.process.process import current_process
from kernbench.tensors import tape
from kernbench.tensors.errors import TensorError
from kernbench.tensors.new import new_tensor
from kernbench.tensors.nodes import Like
from kernbench.tensors.running import run
from kernbench.tensors.tape import derivative
from kernbench.tensors.tensor import Tensor

Step = tuple[Any, ...]
Grads = Sequence[Tensor | None]


# Views: the gradient of a view of all elements is a view; other gradients are copied into zeros


def _reshaped(g: Tensor, like: Like) -> Tensor:
    return reshape(g, like.shape)


def _ordered_back(g: Tensor, like: Like, step: Step) -> Tensor:
    dims: tuple[int, ...] = step[1]
    kept = sorted(dims)
    g = permute(g, [dims.index(dim) for dim in kept])
    for dim in range(len(like.shape)):
        if dim not in kept:
            g = unsqueeze(g, dim)
    return g


def _squeezed(g: Tensor, step: Step) -> Tensor:
    return squeeze(g, step[1])


def _placed(name: str) -> Callable[..., Tensor]:
    """Returns the formula that puts the gradient of a view of some elements among zeros."""
    stem = f"{name}_backward"

    def formula(g: Tensor, like: Like, step: Step) -> Tensor:
        process = current_process()
        whole = new_tensor(process, like.shape, g.dtype, g.device)
        function, *arguments = step
        part, source, held = function(whole, *arguments).window, g.window, g.dtype.numpy

        def effect() -> None:
            whole.window.adopt(np.zeros(like.shape, held))
            part.store(source.read())

        node = tape.begin(process, stem, (g,), {"step": step}) if g.memory.tracked else None
        price = of_part(part.shape, part.strides)
        run(process, f"aten::{stem}", (g,), whole, effect, price=price)
        if node is not None:
            tape.finish(node, whole)
        return whole

    derivative(stem, lambda g, step: step[0](g, *step[1:]))
    return formula


derivative("view", _reshaped)
derivative("permute", _ordered_back)
derivative("unsqueeze", _squeezed)
derivative("expand", same)
for _name in ("slice", "select", "diagonal"):
    derivative(_name, _placed(_name))


def _all(grads: Grads, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Returns the gradients of several results, with zeros for those that have none."""
    known = next(g for g in grads if g is not None)
    return [
        zeros(shape, dtype=known.dtype, device=known.device) if g is None else g
        for g, shape in zip(grads, shapes, strict=True)
    ]


def _joined(grads: Grads, like: Like, dim: int, sizes: Sequence[int]) -> Tensor:
    before, after = like.shape[:dim], like.shape[dim + 1 :]
    return cat(_all(grads, [(*before, size, *after) for size in sizes]), dim)


def _stacked(grads: Grads, like: Like, dim: int) -> Tensor:
    shape = like.shape[:dim] + like.shape[dim + 1 :]
    known = next(g for g in grads if g is not None)
    none = [zeros((), dtype=known.dtype, device=known.device) if g is None else g for g in grads]
    return stack([each.expand(shape) for each in none], dim)


derivative("split", _joined, several=True)
derivative("split_with_sizes", _joined, several=True)
derivative("unbind", _stacked, several=True)


# Copies


def _sent_back(g: Tensor, like: Like) -> Tensor:
    return g.to(like.device, like.dtype)


derivative("clone", same)
derivative("to_copy", _sent_back)
derivative("copy", nothing, _sent_back)


# Rearranging


def _part(g: Tensor, like: Like, index: int, dim: int, starts: Sequence[int]) -> Tensor:
    return narrow(g, dim, starts[index], like.shape[dim])


derivative("cat", every=_part)


def _unrepeated(g: Tensor, like: Like, repeats: Sequence[int]) -> Tensor:
    for _ in range(len(repeats) - len(like.shape)):
        g = g.sum(0)
    times = repeats[len(repeats) - len(like.shape) :]
    pairs: list[int] = []
    axes: list[int] = []
    for count, extent in zip(times, like.shape, strict=True):
        if count != 1:
            axes.append(len(pairs))
            pairs.append(count)
        pairs.append(extent)
    return g.reshape(pairs).sum(axes) if axes else g


def _uninterleaved(g: Tensor, like: Like, repeats: int, dim: int | None) -> Tensor:
    if dim is None:
        return g.reshape(*like.shape, repeats).sum(-1)
    place = dim + 1
    return g.reshape(*like.shape[:place], repeats, *like.shape[place:]).sum(place)


def _unrolled(g: Tensor, shifts: Sequence[int], dims: Sequence[int] | None) -> Tensor:
    back = [-shift for shift in shifts]
    return g.roll(back[0]) if dims is None else g.roll(back, dims)


derivative("repeat", _unrepeated)
derivative("repeat_interleave", _uninterleaved)
derivative("flip", lambda g, dims: g.flip(dims))
derivative("roll", _unrolled)
derivative("tril", lambda g, diagonal: g.tril(diagonal))
derivative("triu", lambda g, diagonal: g.triu(diagonal))


# Padding


def padded(input: Tensor, sides: Sequence[Sequence[int]], value: float) -> Tensor:
    """Returns a tensor with a number around it, as `constant_pad_nd`.

    Args:
        sides: How many elements come before and after each dimension; negative ones are taken away.
        value: The number.

    Raises:
        TensorError: If more is taken away than there is.
    """
    old, number = input.window.shape, input.dtype.numpy.type(value)
    shape = tuple([n + sum(side) for n, side in zip(old, sides, strict=True)])
    cut = tuple([slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(old, sides, strict=True)])
    added = [(max(a, 0), max(b, 0)) for a, b in sides]
    if any(each.stop < each.start for each in cut):
        raise TensorError("narrow(): length must be non-negative.", [site_fact(call_site())])
    lies = None if any(map(any, added)) else layout(shape, (input,))

    def found(x: Array) -> Array:
        return np.pad(x[cut], added, constant_values=number)

    return moved("constant_pad_nd", input, shape, found, strides=lies, sides=sides)


def _unpadded(g: Tensor, sides: Sequence[Sequence[int]]) -> Tensor:
    return padded(g, [(-before, -after) for before, after in sides], 0)


derivative("constant_pad_nd", _unpadded)


def _folded(name: str) -> None:
    def formula(g: Tensor, like: Like, rows: dict[int, list[int]]) -> Tensor:
        def add(grad: Array) -> Array:
            for dim, places in rows.items():
                total = np.zeros((*grad.shape[:dim], like.shape[dim], *grad.shape[dim + 1 :]))
                total = total.astype(grad.dtype)
                add_slices(total, grad, np.asarray(places), dim)
                grad = total
            return grad

        return kernel(f"{name}_backward", add, (g,), like.shape, g.dtype)

    derivative(name, formula)


for _name in ("reflection_pad", "replication_pad"):
    for _rank in (1, 2, 3):
        _folded(f"{_name}{_rank}d")


# By index tensors


def added_along(name: str, g: Tensor, like: Like, dim: int, chosen: Tensor) -> Tensor:
    """Returns zeros with a gradient added at the elements that were chosen along a dimension.

    One kernel writes the zeros, another one adds.

    Args:
        name: Name of the operation of PyTorch that adds.
        g: The gradient, of the shape of `chosen`.
        like: Shape of the result.
        dim: The dimension along which elements were chosen.
        chosen: Index along `dim` of each element of the gradient, int64.
    """

    def add(total: Array, grad: Array, rows: Array) -> None:
        if total.ndim:
            np.add.at(total, key_along(rows, dim), grad)
        else:
            total += grad.reshape(())

    return added(f"{name.rstrip('_')}_backward", name, add, g, like.shape, (chosen,))


def _gathered_back(g: Tensor, like: Like, dim: int, chosen: Tensor) -> Tensor:
    return added_along("scatter_add_", g, like, dim, chosen)


def _selected_back(g: Tensor, like: Like, dim: int, chosen: Tensor) -> Tensor:
    def add(total: Array, grad: Array, rows: Array) -> None:
        if total.ndim:
            add_slices(total, grad, rows.reshape(-1), dim)
        else:
            total += grad.reshape(())

    return added("index_select_backward", "index_add_", add, g, like.shape, (chosen,))


derivative("gather", _gathered_back)
derivative("index_select", _selected_back)


def _source(g: Tensor, like: Like, dim: int, chosen: Tensor) -> Tensor:
    found = g.gather(dim, chosen)
    if found.shape == like.shape:
        return found
    whole = zeros(like.shape, dtype=g.dtype, device=g.device)
    whole[tuple(slice(n) for n in found.shape)] = found
    return whole


derivative("scatter", lambda g, dim, chosen: g.scatter(dim, chosen, 0), _source)
derivative("scatter_add", same, _source)


def _slices(g: Tensor, dim: int, chosen: Tensor, alpha: float) -> Tensor:
    found = g.index_select(dim, chosen)
    return found if alpha == 1 else found * alpha


derivative("index_add", same, _slices)


def _indexed_back(g: Tensor, like: Like, advanced: Advanced) -> Tensor:
    """Returns zeros with a gradient added at the elements that `gathered` chose.

    Sums of 16-bit floats are rounded once.

    Args:
        g: Gradient of the gathered elements, in their shape.
        like: Shape of the result.
        advanced: An index for each dimension of the result; None for the whole dimension.
    """
    key = Key(current_process(), g, advanced, like.shape)

    def add(total: Array, grad: Array, *key: Any) -> None:
        np.add.at(total, key, grad)

    def read() -> tuple[Any, ...]:
        return key.read("index_backward", "M1")

    return added("index_backward", "index_put_", add, g, like.shape, key.tensors, read)


def _cleared(g: Tensor, advanced: Any) -> Tensor:
    whole = g.clone()
    scattered(whole, advanced, 0)
    return whole


derivative("index", _indexed_back)
derivative("index_put", _cleared, gathered)
