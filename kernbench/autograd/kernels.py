"""Kernels of gradients: with several results, or that add to zeros."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from kernbench.kernels.names import kernel_name
from kernbench.kernels.prices import of_added
from kernbench.memory import DType
from kernbench.operations.creation import new_zeros
from kernbench.operations.fused import widened
from kernbench.operations.ranking import wide_type
from kernbench.process.process import current_process
from kernbench.tensors import tape
from kernbench.tensors.new import new_tensor
from kernbench.tensors.nodes import Like
from kernbench.tensors.running import run, same_device
from kernbench.tensors.tensor import Tensor


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
        operator: Operator of PyTorch that adds, in place.
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
    run(process, kernel_name(operator), (grad, *operands), whole, effect, price=of_added(operator))
    if node is not None:
        tape.finish(node, whole)
    return whole
