"""Leaves: which tensors need gradients, how `grad` adds up, and hooks."""

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from kernbench.errors import OperandError, call_site, site_fact
from kernbench.memory import dtypes
from kernbench.memory.windows import is_contiguous
from kernbench.operations.copies import clone, contiguous, to
from kernbench.operations.elementwise import elementwise
from kernbench.operations.pointwise import add, add_
from kernbench.process.process import current_process
from kernbench.tensors.errors import TensorError
from kernbench.tensors.hooks import RemovableHandle, add_hook
from kernbench.tensors.host_time import spend_views
from kernbench.tensors.nodes import Hook, Leaf, Output, edge_of, history, leaf_of, retain
from kernbench.tensors.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable


# Adding up


def summed(a: Tensor, b: Tensor, *, wide: bool) -> Tensor:
    """Returns the sum of two gradients.

    Args:
        a: One gradient.
        b: The other gradient, of the same shape.
        wide: Whether to add in float32 at least, as for a leaf.
    """
    if wide and a.dtype.is_floating_point and a.dtype.itemsize < 4:
        return elementwise("aten::add", np.add, a, b, compute=dtypes.float32)
    return add(a, b)


def accumulate(leaf: Leaf, tensor: Tensor, grad: Tensor, *, owned: bool) -> None:
    """Adds a gradient to the `grad` of a leaf.

    Gradients of 16-bit tensors are added in float32 and rounded once; the float32 sum is kept from
    the second gradient on, until `grad` is set to None or written by the user.

    Args:
        tensor: The tensor of the leaf.
        grad: The gradient, in the tensor's type or in float32.
        owned: Whether the leaf may keep `grad` itself, without a copy.
    """
    held = leaf.grad
    narrow = tensor.dtype.itemsize < 4
    if held is None:
        wide = grad if narrow and grad.dtype is not tensor.dtype else None
        kept = to(grad, tensor.dtype)
        plain = is_contiguous(kept.window) or kept.window.strides == tensor.window.strides
        if not plain:
            kept = contiguous(kept)
        elif not owned and kept is grad:
            kept = clone(kept)
        if kept is grad:
            spend_views(grad)  # PyTorch keeps it detached
        leaf.grad, leaf.wide, leaf.wide_version = kept, wide, kept.memory.version
        return
    if not narrow:
        add_(held, grad)
        return
    if leaf.wide is None or leaf.wide_version != held.memory.version:
        leaf.wide = elementwise("aten::add", np.add, held, grad, compute=dtypes.float32)
    else:
        add_(leaf.wide, grad)
    held.copy_(leaf.wide)
    leaf.wide_version = held.memory.version


# Attributes and methods of tensors


def is_leaf(self: Tensor) -> bool:
    """Returns whether a tensor is not the result of a recorded operation."""
    edge = edge_of(self)
    return edge is None or isinstance(edge[0], Leaf)


def get_grad(self: Tensor) -> Tensor | None:
    """Returns the gradient of a leaf, or of a tensor whose `retain_grad` was called."""
    graph = history(self)
    if isinstance(graph, Output) and not _is_retained(graph):
        warnings.warn(
            "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed. Its "
            ".grad attribute won't be populated during autograd.backward(). If you indeed want the "
            ".grad field to be populated for a non-leaf Tensor, use .retain_grad() on the non-leaf "
            "Tensor.",
            UserWarning,
            stacklevel=3,
        )
    return None if graph is None else graph.grad


def _is_retained(output: Output) -> bool:
    keepers = output.node.retained
    return output.grad is not None or (keepers is not None and output.index in keepers)


def set_grad(self: Tensor, grad: Tensor | None) -> None:
    """Replaces the gradient; the next gradient is added to the new one.

    Raises:
        OperandError: If `grad` is neither a tensor nor None.
        TensorError: If `grad` has another shape, type or device than the tensor, or is the tensor.
    """
    if grad is self:
        raise TensorError("can't assign Variable as its own grad", [site_fact(call_site())])
    if grad is None:
        graph = history(self)
        if graph is not None:
            graph.grad = None
            if isinstance(graph, Leaf):
                graph.wide = None
        return
    if not isinstance(grad, Tensor):
        raise OperandError(
            "assigned grad expected to be a Tensor or None but got grad of type "
            f"{type(grad).__name__}",
            [site_fact(call_site())],
        )
    for what, same in (
        ("of a different size", grad.window.shape == self.window.shape),
        ("of a different type", grad.dtype is self.dtype),
        ("located on a different device", grad.device == self.device),
    ):
        if not same:
            raise TensorError(
                f"assigned grad has data {what}",
                [
                    site_fact(call_site()),
                    f"tensor {list(self.shape)} {self.dtype} on {self.device}, "
                    f"grad {list(grad.shape)} {grad.dtype} on {grad.device}",
                ],
            )
    graph = history(self)
    if isinstance(graph, Output):
        graph.grad = grad
    else:
        leaf = leaf_of(self)
        leaf.grad, leaf.wide = grad, None


def forget(tensors: Iterable[Tensor], set_to_none: bool) -> None:
    """Sets the gradients of leaves to None, or to 0, in the time of one `zero_grad`."""
    gradients = [(each, each.grad) for each in tensors if each.grad is not None]
    on_device = sum(grad is not None and grad.device.index is not None for _, grad in gradients)
    if on_device:
        process = current_process()
        process.host.clock += process.calls.zero_grad + process.calls.zeroed * on_device
    for tensor, grad in gradients:
        if set_to_none:
            tensor.grad = None
        elif grad is not None:
            grad.zero_()


def detach_(self: Tensor) -> Tensor:
    """Makes the tensor a leaf that needs no gradient.

    Raises:
        TensorError: If the tensor is a view.
    """
    if self.origin is not None:
        raise TensorError(
            "Can't detach views in-place. Use detach() instead.", [site_fact(call_site())]
        )
    self.graph = None
    return self


# Hooks


def register_hook(self: Tensor, hook: Hook) -> RemovableHandle:
    """Calls `hook` with each gradient of this tensor; a tensor it returns replaces the gradient.

    Raises:
        TensorError: If the tensor needs no gradient.
    """
    edge = edge_of(self)
    if edge is None:
        raise TensorError(
            "cannot register a hook on a tensor that doesn't require gradient",
            [site_fact(call_site())],
        )
    target, index = edge
    if isinstance(target, Leaf):
        return add_hook(target.hooks, hook)  # type: ignore[arg-type]
    if target.hooks is None:
        target.hooks = {}
    return add_hook(target.hooks.setdefault(index, {}), hook)  # type: ignore[arg-type]


def register_post_accumulate_grad_hook(
    self: Tensor, hook: "Callable[[Tensor], None]"
) -> RemovableHandle:
    """Calls `hook` with this leaf each time a backward pass has added to its gradient.

    The call comes as soon as no node of the pass can add to the gradient any more.

    Raises:
        TensorError: If the tensor is no leaf that needs a gradient.
    """
    edge = edge_of(self)
    if edge is None:
        raise TensorError(
            "cannot register a hook on a tensor that doesn't require gradient",
            [site_fact(call_site())],
        )
    if not isinstance(edge[0], Leaf):
        raise TensorError(
            "post accumulate grad hooks cannot be registered on non-leaf tensors",
            [site_fact(call_site())],
        )
    return add_hook(edge[0].post_hooks, hook)  # type: ignore[arg-type]


def register_done_hook(leaf: Leaf, hook: "Callable[[bool], None]") -> RemovableHandle:
    """Calls `hook` when a backward pass is done with a leaf, with whether it added a gradient.

    The pass is done with a leaf that it has reached on the way from its tensors, even if all nodes
    on that way gave no gradient. The call comes after those of the post accumulate grad hooks.
    """
    if leaf.done_hooks is None:
        leaf.done_hooks = {}
    return add_hook(leaf.done_hooks, hook)  # type: ignore[arg-type]


def retain_grad(self: Tensor) -> None:
    """Makes the backward pass set `grad` of a tensor that is no leaf.

    Raises:
        TensorError: If the tensor needs no gradient.
    """
    edge = edge_of(self)
    if edge is None:
        raise TensorError(
            "can't retain_grad on Tensor that has requires_grad=False", [site_fact(call_site())]
        )
    graph = self.graph
    if isinstance(graph, Output):
        retain(graph)


def retains_grad(self: Tensor) -> bool:
    """Returns whether `retain_grad` was called on a tensor that is no leaf."""
    graph = history(self)
    return (
        isinstance(graph, Output)
        and graph.node.retained is not None
        and graph.index in graph.node.retained
    )
