"""`torch.autograd.graph`: what nodes keep for backward, packed by functions of the user."""

from collections.abc import Callable
from typing import Any

from kernbench.errors import OperandError, call_site, site_fact
from kernbench.tensors import nodes
from kernbench.tensors.operands import type_name
from kernbench.tensors.tensor import Tensor

__all__ = ["saved_tensors_hooks"]


class saved_tensors_hooks:  # noqa: N801 - PyTorch's name
    """`torch.autograd.graph.saved_tensors_hooks`: packs what operations in a block keep.

    The hooks of the innermost block act. What they get has no history unless it is a leaf.

    Args:
        pack_hook: Takes each tensor that is about to be kept; what it returns is kept instead.
        unpack_hook: Takes that when the backward pass needs the tensor, and returns a tensor.

    Raises:
        OperandError: If a hook cannot be called.
    """

    def __init__(
        self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Tensor]
    ) -> None:
        for name, hook in (("pack_hook", pack_hook), ("unpack_hook", unpack_hook)):
            if not callable(hook):
                raise OperandError(
                    f"saved_tensors_hooks(): argument '{name}' must be callable, not "
                    f"{type_name(hook)}",
                    [site_fact(call_site())],
                )
        self.pack_hook = pack_hook
        self.unpack_hook = unpack_hook

    def __enter__(self) -> None:
        nodes.push_saved_hooks((self.pack_hook, self.unpack_hook))

    def __exit__(self, *error: Any) -> None:
        nodes.pop_saved_hooks()
