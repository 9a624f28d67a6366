"""Kernels that run several steps as one: those of `torch.nn`, and of gradients."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernbench.kernels.names import kernel_name
from kernbench.kernels.prices import Price
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
    price: Price | None = None,
    library: str = "aten",
    beside: tuple[Sequence[Tensor], Callable[[], None]] | None = None,
    strides: tuple[int, ...] | None = None,
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
        price: What the kernel costs; None: what its name does.
        library: Library of the operation; traces show `library::name`.
        strides: Strides of the result; None: row-major.
        beside: Further tensors that the kernel writes, and the function that writes them first.
        **options: Values that the formulas of the gradients need.
    """
    process = current_process()
    site = process.call_site()
    tensors, tracked = [], False
    also: Sequence[Tensor] = ()
    if beside is not None:
        also = beside[0]
    for each in operands:
        if each is not None:
            if not any(each is written for written in also):
                tensors.append(each)
            tracked = tracked or each.memory.tracked
            if each.window.dtype.is_complex:
                check_complex(name, dtype, frozenset())
    out = new_tensor(process, shape, dtype, same_device(name, tensors), site, strides=strides)
    sources, target = [None if each is None else each.window for each in operands], out.window

    def effect() -> None:
        if beside is not None:
            beside[1]()
        values = [None if source is None else widened(source) for source in sources]
        target.adopt(np.asarray(function(*values)))

    label = kernel_name(name, library)
    run(process, label, tensors, out, effect, also=also, price=price, site=site)
    node = None
    if tracked and dtype.is_floating_point:
        # A formula may need what the kernel writes beside its result, as it is now.
        node = tape.begin(process, name, operands, options, site=site)
    if node is not None:
        tape.finish(node, out)
    return out


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
