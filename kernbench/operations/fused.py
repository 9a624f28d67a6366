"""Kernels that run several steps as one: those of `torch.nn`, and of gradients."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from kernbench.kernels.names import kernel_name
from kernbench.kernels.prices import ADDED, of_bytes
from kernbench.memory import Array, DType, View
from kernbench.operations.creation import new_zeros
from kernbench.operations.elementwise import check_complex
from kernbench.operations.ranking import wide_type
from kernbench.process.process import current_process
from kernbench.tensors import tape
from kernbench.tensors.new import new_tensor
from kernbench.tensors.nodes import Like
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
        traffic: Bytes that the kernel reads and writes; None: the bytes of all tensors.
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

    price = None if traffic is None else of_bytes(traffic)
    label = kernel_name(name, library)
    run(process, label, tensors, out, effect, also=also, price=price, site=site)
    node = None
    if tracked and dtype.is_floating_point:
        # A formula may need what the kernel writes beside its result, as it is now.
        node = tape.begin(process, name, operands, options, site=site)
    if node is not None:
        tape.finish(node, out)
    return out


def kernels_of(
    name: str,
    function: Callable[..., Iterable[Any]],
    operands: Sequence[Tensor | None],
    likes: Sequence[Like | None],
    dtype: DType,
) -> list[Tensor | None]:
    """Runs one kernel that has several results; does not wait.

    Args:
        name: Name in traces and errors, without `aten::`.
        function: Takes an array per operand, returns the results that are wanted.
        operands: Tensors on one device; None for an operand that is left out.
        likes: Forms of the results; None for one that nobody wants.
        dtype: Type of the results.
    """
    process = current_process()
    site = process.call_site()
    given = [each for each in operands if each is not None]
    device = same_device(name, given)
    wanted = [like.shape for like in likes if like is not None]
    outs = [new_tensor(process, shape, dtype, device, site) for shape in wanted]
    sources = [None if each is None else each.window for each in operands]
    targets = [out.window for out in outs]

    def effect() -> None:
        values = [None if source is None else widened(source) for source in sources]
        for target, found in zip(targets, function(*values), strict=True):
            target.adopt(np.asarray(found))

    node = None
    if any(each.memory.tracked for each in given):
        node = tape.begin(process, name, operands, site=site)
    run(process, kernel_name(name), given, outs[0], effect, also=outs[1:], site=site)
    left = iter(outs)
    if node is not None:
        for index, out in enumerate(outs):
            node.made(out)
            tape.attach(node, index, out)
    return [None if like is None else next(left) for like in likes]


def added(
    name: str,
    operator: str,
    add: Callable[..., None],
    grad: Tensor,
    shape: Sequence[int],
    operands: Sequence[Tensor],
    read: Callable[[], Sequence[Any]] | None = None,
) -> Tensor:
    """Returns zeros to which a gradient was added; does not wait.

    A kernel writes the zeros, and another one adds. Sums of 16-bit floats are rounded once.

    Args:
        name: Name of the operation, without `aten::`, as in the table of formulas.
        operator: Operator of PyTorch that adds.
        add: Adds the gradient to an array of zeros, and takes what `read` returns besides.
        grad: The gradient.
        shape: Shape of the result.
        operands: Further tensors that the kernel reads.
        read: Reads them when the kernel runs; None: each one's values.
    """
    process = current_process()
    whole = new_zeros(grad, shape)
    source, target, others = grad.window, whole.window, [each.window for each in operands]

    def effect() -> None:
        total = np.zeros(target.shape, wide_type(target.dtype))
        given = [each.read() for each in others] if read is None else read()
        add(total, widened(source), *given)
        target.store(total)

    node = tape.begin(process, name, (grad,)) if grad.memory.tracked else None
    run(process, kernel_name(operator), (grad, *operands), whole, effect, price=ADDED)
    if node is not None:
        tape.finish(node, whole)
    return whole


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
