"""Products with a rank's part of a weight, as functions with gradients.

`kernbench.tp.layers` is made of them.
"""

import warnings
from typing import Any

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.extend import guard
from kernbench.parallel.config import GemmKernel, ModelParallelConfig
from kernbench.parallel.members import Group, refuse, refuse_assertion, size_of
from kernbench.tp.primitives import (
    LinearOptions,
    LinearSaved,
    add_to_main_grad,
    linear_bwd,
    linear_fwd,
)
from kernbench.tp.utils import group_of

__all__ = [
    "drain_embedding_wgrad_compute",
    "linear_with_frozen_weight",
    "linear_with_grad_accumulation_and_async_allreduce",
    "parallel_linear",
]


class _ParallelLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        options: LinearOptions,
    ) -> torch.Tensor:
        out, saved = linear_fwd(x, weight, bias, options)
        for_input, for_weight, _, _ = ctx.needs_input_grad
        # A frozen weight keeps no input.
        ctx.save_for_backward(saved.x if for_weight else None, saved.weight if for_input else None)
        ctx.options = options
        if options.gradient_accumulation_fusion:
            # Itself, for its attributes.
            ctx.parameter = weight
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        if ctx.options.gradient_accumulation_fusion:
            weight = ctx.parameter
        saved = LinearSaved(x, weight, ctx.options)
        return *linear_bwd(saved, grad, ctx.needs_input_grad[:3]), None


def parallel_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    allreduce_dgrad: bool,
    sequence_parallel: bool,
    tp_group: Group | None = None,
    kernel: GemmKernel = "tile",
    gradient_accumulation_fusion: bool = False,
    grad_output_buffer: list[torch.Tensor] | None = None,
    wgrad_deferral_limit: int = 0,
) -> torch.Tensor:
    """Returns `x @ weight.T + bias` of this rank's part of a weight; does not wait on the host.

    Backward issues the collective of the input's gradient before the product that gives the
    weight's, and waits for it after.

    Args:
        x: `[s, b, in]`; with `sequence_parallel` `[s/tp, b, in]`, gathered first.
        weight: `[out, in]`, of the same type.
        bias: `[out]`.
        allreduce_dgrad: Whether the input's gradient is summed over the ranks.
        sequence_parallel: Whether the input is cut along dimension 0, and its gradient summed and
            cut.
        tp_group: Which ranks; by default the tensor-parallel group.
        kernel: Who multiplies.
        gradient_accumulation_fusion: Whether the weight's gradient is added to `weight.main_grad`
            by the product that computes it; see `primitives.linear_bwd`.
        grad_output_buffer: A list that gets the gradients of outputs of which the weight's gradient
            is not computed now, see `drain_embedding_wgrad_compute`; None to compute all.
        wgrad_deferral_limit: How many it takes; 0 for any number.

    Returns:
        `[s, b, out]`.

    Raises:
        ParallelError: If both `allreduce_dgrad` and `sequence_parallel` are asked for, or the
            weight has no `main_grad` to add to; if there is a `grad_output_buffer` without
            `gradient_accumulation_fusion`.
    """
    if grad_output_buffer is not None and not gradient_accumulation_fusion:
        raise refuse(
            "a weight's gradient is put off to grad_output_buffer only with "
            "gradient_accumulation_fusion",
            hint="set it: what is put off is added to weight.main_grad; or leave the buffer out",
        )
    options = LinearOptions(
        group_of(tp_group),
        sequence_parallel,
        allreduce_dgrad,
        kernel,
        gradient_accumulation_fusion,
        grad_output_buffer,
        wgrad_deferral_limit,
    )
    out: torch.Tensor = _ParallelLinear.apply(x, weight, bias, options)
    return out


def linear_with_grad_accumulation_and_async_allreduce(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gradient_accumulation_fusion: bool,
    allreduce_dgrad: bool,
    sequence_parallel: bool,
    grad_output_buffer: list[torch.Tensor] | None = None,
    wgrad_deferral_limit: int | None = 0,
    async_grad_allreduce: bool | None = None,
    tp_group: Group | None = None,
) -> torch.Tensor:
    """Does what `parallel_linear` does, with Megatron-Core's arguments.

    Args:
        input: `[s, b, in]`; with `sequence_parallel` `[s/tp, b, in]`, gathered first.
        weight: `[out, in]`, of the same type.
        bias: `[out]`.
        gradient_accumulation_fusion: Whether the weight's gradient is added to `weight.main_grad`.
        allreduce_dgrad: Whether the input's gradient is summed over the ranks.
        sequence_parallel: Whether the input is cut along dimension 0.
        grad_output_buffer: See `parallel_linear`.
        wgrad_deferral_limit: How many gradients it takes; 0 or None for any number.
        async_grad_allreduce: Has no effect, as in Megatron-Core, but for a warning.
        tp_group: Which ranks; by default the tensor-parallel group.

    Returns:
        `[s, b, out]`.

    Raises:
        ParallelError: See `parallel_linear`.
    """
    _warn_of(async_grad_allreduce)
    return parallel_linear(
        input,
        weight,
        bias,
        allreduce_dgrad=allreduce_dgrad,
        sequence_parallel=sequence_parallel,
        tp_group=tp_group,
        gradient_accumulation_fusion=gradient_accumulation_fusion,
        grad_output_buffer=grad_output_buffer,
        wgrad_deferral_limit=wgrad_deferral_limit or 0,
    )


def linear_with_frozen_weight(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gradient_accumulation_fusion: bool,
    allreduce_dgrad: bool,
    sequence_parallel: bool,
    tp_group: Group | None,
    grad_output_buffer: None = None,
    wgrad_deferral_limit: None = None,
    async_grad_allreduce: bool | None = None,
) -> torch.Tensor:
    """Returns `input @ weight.T + bias`, which hands gradients on to the input only.

    As in Megatron-Core neither the weight nor the bias gets one, and no input is kept.

    Args:
        input: `[s, b, in]`; with `sequence_parallel` `[s/tp, b, in]`, gathered first.
        weight: `[out, in]`, of the same type.
        bias: `[out]`.
        gradient_accumulation_fusion: Has no effect, as in Megatron-Core: there is no gradient to
            add.
        allreduce_dgrad: Whether the input's gradient is summed over the ranks.
        sequence_parallel: Whether the input is cut along dimension 0, and its gradient summed and
            cut.
        tp_group: Which ranks; None: the tensor-parallel group.
        grad_output_buffer: Must be None.
        wgrad_deferral_limit: Must be None.
        async_grad_allreduce: Has no effect, as in Megatron-Core, but for a warning.

    Returns:
        `[s, b, out]`.

    Raises:
        ParallelAssertionError: If one of the two is given.
        ParallelError: If both `allreduce_dgrad` and `sequence_parallel` are asked for.
    """
    del gradient_accumulation_fusion
    _warn_of(async_grad_allreduce)
    for name, given in (
        ("grad_output_buffer", grad_output_buffer),
        ("wgrad_deferral_limit", wgrad_deferral_limit),
    ):
        if given is not None:
            raise refuse_assertion(
                f"{name} is only supported with linear_with_grad_accumulation_and_async_allreduce"
            )
    return parallel_linear(
        input,
        weight.detach(),
        None if bias is None else bias.detach(),
        allreduce_dgrad=allreduce_dgrad,
        sequence_parallel=sequence_parallel,
        tp_group=tp_group,
    )


def _warn_of(async_grad_allreduce: bool | None) -> None:
    if async_grad_allreduce is not None:
        warnings.warn(
            "async_grad_allreduce is deprecated, not in use anymore and will be fully removed with "
            "0.11.0. Please use allreduce_dgrad instead.",
            stacklevel=3,
        )


def drain_embedding_wgrad_compute(
    config: ModelParallelConfig,
    embedding_activation_buffer: list[torch.Tensor],
    grad_output_buffer: list[torch.Tensor],
    weight: torch.Tensor,
    tp_group: Group | None = None,
) -> None:
    """Adds the gradients that were put off to `weight.main_grad`; does not wait on the host.

    With `config.sequence_parallel` each input is gathered beside the product before it.

    Args:
        config: That of the layer.
        embedding_activation_buffer: Its inputs, empty afterwards.
        grad_output_buffer: The gradients of its outputs, in the same order; empty afterwards.
        weight: `[out, in]`, this rank's.
        tp_group: Which ranks; by default the tensor-parallel group.

    Raises:
        ParallelAssertionError: If the lists are not equally long.
        ParallelError: If the weight has no `main_grad`.
    """
    if len(embedding_activation_buffer) != len(grad_output_buffer):
        raise refuse_assertion(
            f"drain_embedding_wgrad_compute: {len(embedding_activation_buffer)} inputs for "
            f"{len(grad_output_buffer)} gradients",
            hint="call it after the backward pass of every forward pass",
        )
    group = group_of(tp_group)
    ranks = size_of(group) if config.sequence_parallel else 1
    gathered: list[tuple[torch.Tensor, Any]] = []

    def gather(at: int) -> None:
        if at < len(embedding_activation_buffer):
            x = embedding_activation_buffer[at]
            whole, work = x, None
            if ranks > 1:
                whole = torch.empty(
                    x.shape[0] * ranks, *x.shape[1:], dtype=x.dtype, device=x.device
                )
                work = dist.all_gather_into_tensor(whole, x.contiguous(), group, async_op=True)
            gathered.append((whole, work))

    gather(0)
    for at, dout in enumerate(grad_output_buffer):
        whole, work = gathered.pop()
        if work is not None:
            work.wait()
        gather(at + 1)
        add_to_main_grad(weight, whole, dout)
    embedding_activation_buffer.clear()
    grad_output_buffer.clear()


guard(globals())
