"""Kernels that run several steps as one: those of `torch.nn`, and of gradients."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernbench.kernels.prices import of_bytes
from kernbench.memory import Array, DType, View
from kernbench.operations.elementwise import check_complex
from kernbench.operations.ranking import wide_type
from kernbench.process.process import current_process
from kernbench.tensors import tape
from kernbench.tensors.new import new_tensor
from kernbench.tensors.running import run, same_device
from kernbench.tensors.tensor import Tensor


def widened(view: View) -> Array:
    """Returns the values of a view to compute with: 16-bit floats as float32, others unchanged."""
    values = view.read()
    return values.astype(wide_type(view.dtype), copy=False)


def kernel(
    name: str,
    function: Callable[..., Any],
    operands: Sequence[Tensor | None],
    shape: tuple[int, ...],
    dtype: DType,
    *,
    traffic: int | None = None,
    library: str = "aten",
    **options: Any,
) -> Tensor:
    """Runs one kernel and returns its result; does not wait.

    16-bit floats are computed in float32 and rounded once.

    Args:
        name: Name in traces and errors, without `aten::`. If the name has a derivative, autograd
            records the operation.
        function: Takes an array per operand, returns the result or an array that broadcasts to it.
        operands: Tensors on one device; None for an operand that is left out, which `function` gets
            as None.
        shape: Shape of the result.
        dtype: Type of the result.
        traffic: Bytes that the kernel reads and writes; None: the bytes of all tensors.
        library: Library of the operation; traces show `library::name`.
        **options: Values that the formulas of the gradients need.
    """
    process = current_process()
    site = process.call_site()
    tensors, tracked = [], False
    for each in operands:
        if each is not None:
            tensors.append(each)
            tracked = tracked or each.memory.tracked
            if each.window.dtype.is_complex:
                check_complex(name, dtype, frozenset())
    out = new_tensor(process, shape, dtype, same_device(name, tensors), site)
    sources, target = [None if each is None else each.window for each in operands], out.window

    def effect() -> None:
        values = [None if source is None else widened(source) for source in sources]
        target.adopt(np.asarray(function(*values)))

    node = None
    if tracked and dtype.is_floating_point:
        node = tape.begin(process, name, operands, options, site=site)
    price = None if traffic is None else of_bytes(traffic)
    run(process, f"{library}::{name}", tensors, out, effect, price=price, site=site)
    if node is not None:
        tape.finish(node, out)
    return out


def kernel_of_many(
    name: str,
    function: Callable[..., Sequence[Any]],
    operands: Sequence[Tensor | None],
    shapes: Sequence[tuple[int, ...] | None],
    dtype: DType,
) -> list[Tensor | None]:
    """Runs one kernel with several results, and returns them; nothing records it.

    Args:
        name: Name in traces and errors, without `aten::`.
        function: Takes an array per operand, returns an array per result.
        operands: Tensors on one device; None for an operand that is left out, which `function` gets
            as None.
        shapes: Shape of each result; None for one that is not wanted. One at least is.
        dtype: Type of the results.
    """
    process = current_process()
    site = process.call_site()
    tensors = [each for each in operands if each is not None]
    device = same_device(name, tensors)
    results = [
        None if shape is None else new_tensor(process, shape, dtype, device, site)
        for shape in shapes
    ]
    sources = [None if each is None else each.window for each in operands]
    targets = [None if each is None else each.window for each in results]

    def effect() -> None:
        values = [None if source is None else widened(source) for source in sources]
        for target, found in zip(targets, function(*values), strict=True):
            if target is not None:
                target.adopt(np.asarray(found))

    out, *also = [each for each in results if each is not None]
    run(process, f"aten::{name}", tensors, out, effect, also=also, site=site)
    return results


def reduced(grad: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Returns a gradient summed over the dimensions that broadcasting repeated.

    This is `torch.Tensor.sum_to_size`.
    """
    old = grad.window.shape
    if old == shape:
        return grad
    missing = len(old) - len(shape)
    axes = [*range(missing)]
    axes += [missing + d for d, n in enumerate(shape) if n == 1 != old[missing + d]]
    return grad.sum(axes, keepdim=True).reshape(shape) if axes else grad.reshape(shape)


def broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    """Returns whether a tensor of one shape can be expanded to another."""
    missing = len(to) - len(shape)
    return missing >= 0 and all(n in {1, m} for n, m in zip(shape, to[missing:], strict=True))
