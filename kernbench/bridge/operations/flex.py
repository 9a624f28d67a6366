"""`flex_attention` as the one kernel, in each direction, that `torch.compile` makes of it on CUDA.

PyTorch's own operations of higher order are called, so policies of `torch.utils.checkpoint` see
them. Numbers are those of PyTorch's eager path: the matrix of scores, which is no memory of the
device; gradients are autograd's of that path. Tensors to which `score_mod` refers
get gradients, too.

PyTorch's own autograd kernel traces `score_mod` with tensors that name the device, for which a
build without CUDA ends the process.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final, NamedTuple

import torch
from torch.utils._pytree import tree_map_only

from kernbench.bridge.base.here import HERE, Rank
from kernbench.bridge.distributed.works import unseen
from kernbench.bridge.operations import flex_blocks
from kernbench.bridge.operations.costs_operands import layouts
from kernbench.bridge.operations.flex_blocks import BlockMask
from kernbench.bridge.operations.flex_functions import Lifted, captured
from kernbench.bridge.tensors.operands import tensors_in
from kernbench.bridge.tensors.storages import DTYPES, hold, is_on_device
from kernbench.cuda_on_cpu.keys import with_autograd
from kernbench.errors import warn_at_call
from kernbench.hw.attention import Direction, Shape
from kernbench.hw.library import Library
from kernbench.isolation.replaced import Patch, WhenImported
from kernbench.kernels.operands import total_bytes

_OPERATIONS: Final = "torch._higher_order_ops.flex_attention"
_FUNCTIONS: Final = "torch.nn.attention.flex_attention"
_INDICES: Final = 4
"""Arguments of `mask_mod`: batch element, head, query, key; `score_mod` takes the score before."""

_BACKEND: Final = "flash"
"""Whose kernel's times are taken: the one that PyTorch generates goes over tiles as it does."""

_UNKNOWN: Final = (
    "flex_attention: which blocks of its BlockMask are seen depends on numbers of the device, of "
    "which there are none; its predicted time is that of all blocks"
)


def patches() -> Iterator[WhenImported]:
    """Yields what is replaced of the operations, and of the function."""
    yield WhenImported(_OPERATIONS, _of_operations)
    yield WhenImported(_FUNCTIONS, _of_functions)


def _of_operations(module: ModuleType) -> Iterator[Patch]:
    key = torch._C.DispatchKey.Autograd
    operation = module.flex_attention
    kernels = operation.py_kernels
    yield Patch(operation, "py_kernels", {**kernels, key: _with_gradients(module, kernels[key])})
    yield Patch(operation, "_dispatch_cache", {})


def _of_functions(module: ModuleType) -> Iterator[Patch]:
    # Else PyTorch compiles what `torch.compile` would, and warns that a program did not.
    yield Patch(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    yield Patch(module, "_create_empty_block_mask", _no_mask(module._create_empty_block_mask))


def _no_mask(real: Callable[..., Any]) -> Callable[..., Any]:
    def create(query: torch.Tensor, key: torch.Tensor) -> Any:
        """Returns the mask of a call without one, of which the kernel makes no tensors."""
        rank = HERE.rank
        if rank is None or not is_on_device(query):
            return real(query, key)
        with _outside(rank):
            mask = real(query, key)
        for each in tensors_in(mask.as_tuple()):
            hold(rank, each.untyped_storage(), on_device=True, of=each)
        return mask

    return create


@contextlib.contextmanager
def _outside(rank: Rank) -> Iterator[None]:
    """A block of PyTorch's own code that takes no time, and for which tensors are no device's."""
    HERE.rank = None
    try:
        with unseen():
            yield
    finally:
        HERE.rank = rank


# Gradients


def _with_gradients(module: Any, real: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what stands for autograd's kernel of the operation."""

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        score_mod: Callable[..., torch.Tensor],
        block_mask: tuple[Any, ...],
        scale: float,
        kernel_options: dict[str, Any],
        score_mod_other_buffers: tuple[Any, ...] = (),
        mask_mod_other_buffers: tuple[Any, ...] = (),
    ) -> Any:
        rank = HERE.rank
        buffers, seen_buffers = score_mod_other_buffers, mask_mod_other_buffers
        if rank is None or not is_on_device(query):
            rest = (score_mod, block_mask, scale, kernel_options, buffers, seen_buffers)
            return real(query, key, value, *rest)
        with _outside(rank):
            score = torch.zeros((), dtype=query.dtype, device=rank.physical)
            indices = [torch.zeros((), dtype=torch.int, device=rank.physical)] * _INDICES
        found = captured(rank, score_mod, [score, *indices], buffers)
        score_mod = Lifted(rank, score_mod, 1 + _INDICES + len(buffers), found)
        buffers = (*buffers, *found)
        seen = captured(rank, block_mask[-1], indices, seen_buffers)
        function = Lifted(rank, block_mask[-1], _INDICES + len(seen_buffers), seen)
        block_mask = (*block_mask[:-1], function)
        seen_buffers = (*seen_buffers, *seen)
        learns = torch.is_grad_enabled() and any(
            each.requires_grad for each in tensors_in((query, key, value, buffers))
        )
        if learns and block_mask[7] is None:
            raise RuntimeError(
                "BlockMask q_indices is None. Backward pass requires q_indices to be computed. "
                "Please create the BlockMask with compute_q_blocks=True"
            )
        call = score_mod, block_mask, scale, kernel_options, seen_buffers
        return _Attention.apply(module, call, query, key, value, *buffers)

    @functools.wraps(attention)
    def found(*args: Any) -> Any:
        # A checkpoint that runs it again for a backward pass may have turned them off.
        with torch._C._EnableTorchFunction():
            return attention(*args)

    return found


class _Attention(torch.autograd.Function):
    """The operation and its gradient, below autograd, where modes see them."""

    @staticmethod
    def forward(
        ctx: Any,
        module: Any,
        call: tuple[Any, ...],
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *buffers: Any,
    ) -> Any:
        """Calls the operation.

        Args:
            ctx: What the gradient needs.
            module: PyTorch's module of the operations.
            call: Arguments without a gradient.
            query: Operand.
            key: Operand.
            value: Operand.
            buffers: To what `score_mod` refers.
        """
        score_mod, mask, scale, options, seen = call
        ctx.set_materialize_grads(False)
        with torch._C._AutoDispatchBelowAutograd():
            out, lse, greatest = module.flex_attention(
                query, key, value, score_mod, mask, scale, options, buffers, seen
            )
        ctx.mark_non_differentiable(greatest)
        ctx.module, ctx.call = module, call
        ctx.values = [None if isinstance(one, torch.Tensor) else one for one in buffers]
        ctx.save_for_backward(query, key, value, out, lse, *tensors_in(buffers))
        return out, lse, greatest

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        """Calls the operation of the gradient.

        Args:
            ctx: What `forward` has left.
            grads: Of the result, of its logarithms of sums, and of its greatest scores.
        """
        score_mod, mask, scale, options, seen = ctx.call
        query, key, value, out, lse, *kept = ctx.saved_tensors
        left = iter(kept)
        buffers = tuple(next(left) if one is None else one for one in ctx.values)
        operation = ctx.module.flex_attention_backward
        call = (query, key, value, out, lse, *grads[:2])
        functions = score_mod, None, mask
        *found, others = operation(*call, *functions, scale, options, buffers, seen)
        return None, None, *found, *others


# The operations on a device


class Ran(NamedTuple):
    """What an operation of higher order has done.

    Attributes:
        out: Its result.
        scratch: Memory of the device that it needs while it runs.
        duration: Picoseconds that it takes.
    """

    out: Any
    scratch: torch.Tensor | None
    duration: int


class Named:
    """Stands for an overload of an operation, where its operands are looked at."""

    namespace: Final = "aten"
    arguments: Final = ()

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self._overloadpacket = self._schema = self


def _forward(rank: Rank, library: Library, *args: Any) -> Ran:
    module = sys.modules[_OPERATIONS]
    query, key, value, _, mask, *_ = args
    with _outside(rank):
        if rank.data:
            out, lse, greatest = module.math_attention(*args)
            out = module._permute_strides(out, query.stride())
        else:
            out, lse, greatest = module.flex_attention_fake_impl(*_plain(args))
    duration = _ps(rank, library, "forward", (query, key, value), mask, args[-1], (args, out, lse))
    return Ran((out, lse, greatest), None, duration)


def _plain(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns arguments with tensors in the place of parameters, which PyTorch would refuse."""
    plain: tuple[Any, ...] = tree_map_only(torch.nn.Parameter, lambda one: one.detach(), args)
    return plain


def _backward(rank: Rank, library: Library, *args: Any) -> Ran:
    module = sys.modules[_OPERATIONS]
    query, key, value, _, lse, _, _, _, _, mask, *_ = args
    with _outside(rank):
        # A kernel before it adds up the products of results and gradients, for each query.
        sums = torch.empty_like(lse)
        if rank.data:
            out = _gradients(module, *args)
        else:
            *first, others = module.flex_attention_backward_fake_tensor_mode(*_plain(args))
            buffers = args[-2]
            learns = [getattr(one, "requires_grad", False) for one in buffers]
            kept = [one if used else None for one, used in zip(others, learns, strict=True)]
            out = (*first, tuple(kept))
    hold(rank, sums.untyped_storage(), on_device=True, of=sums)
    duration = _ps(rank, library, "backward", (query, key, value), mask, args[-1], (args, out))
    return Ran(out, sums, duration)


def _gradients(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    grad_out: torch.Tensor | None,
    grad_lse: torch.Tensor | None,
    score_mod: Callable[..., torch.Tensor],
    joint: Any,
    mask: tuple[Any, ...],
    scale: float,
    options: dict[str, Any],
    buffers: tuple[Any, ...],
    seen: tuple[Any, ...],
) -> tuple[Any, ...]:
    """Returns the gradients of the eager path, whose arguments these are."""
    del out, lse, joint  # it computes them once more
    fresh = [
        one.detach().requires_grad_(one.requires_grad) if isinstance(one, torch.Tensor) else one
        for one in buffers
    ]
    operands = [one.detach().requires_grad_() for one in (query, key, value)]
    with torch.enable_grad(), with_autograd():
        again, lse_again, _ = module.math_attention(
            *operands, score_mod, mask, scale, options, tuple(fresh), seen
        )
    pairs = [
        (one, grad) for one, grad in ((again, grad_out), (lse_again, grad_lse)) if grad is not None
    ]
    learning = [*operands, *(one for one in tensors_in(fresh) if one.requires_grad)]
    found = torch.autograd.grad(
        [one for one, _ in pairs],
        learning,
        [grad for _, grad in pairs],
        allow_unused=True,
        materialize_grads=True,
    )
    first = [
        module._permute_strides(grad.contiguous(), one.stride())
        for grad, one in zip(found, operands, strict=False)
    ]
    left = iter(found[len(operands) :])
    others = [next(left) if getattr(one, "requires_grad", False) else None for one in fresh]
    return (*first, tuple(others))


def _ps(
    rank: Rank,
    library: Library,
    direction: Direction,
    operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    given: tuple[Any, ...],
    seen: tuple[Any, ...],
    moved: Any,
) -> int:
    """Returns the picoseconds of one direction: of query, key and value, under a mask."""
    query, key, value = operands
    batch, heads, rows, width = query.shape
    mask, columns = BlockMask(*given), key.shape[2]
    with _outside(rank):
        if rank.data or not is_on_device(mask.partial_counts):
            own, patterns = flex_blocks.patterns_of(mask, rows, columns)
        elif mask.block_queries >= rows and mask.block_keys >= columns:
            own, patterns = flex_blocks.every_block(mask, rows, columns)
        elif seen:
            warn_at_call(_UNKNOWN)
            own, patterns = flex_blocks.every_block(mask, rows, columns)
        else:
            assert isinstance(mask.seen, Lifted)
            mask = mask._replace(seen=mask.seen.function)
            own, patterns = flex_blocks.patterns_by_function(mask, rows, columns)
    shape = Shape(batch, heads, key.shape[1], width, value.shape[3])
    if own > 1:  # heads differ in what they see, as batch elements do
        shape = Shape(batch * heads, 1, 1, width, value.shape[3])
        patterns = patterns * (batch if len(patterns) == heads else 1)
    name = DTYPES[query.dtype].machine_name
    nbytes = total_bytes(layouts(moved))
    return library.attention(_BACKEND, direction, name, shape, patterns, nbytes)


OPERATIONS: Final[dict[str, Callable[..., Ran]]] = {
    "flex_attention": _forward,
    "flex_attention_backward": _backward,
}
"""Operations of higher order that are simulated, by name."""
