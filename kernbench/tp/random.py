"""Streams of random numbers, as `parallel.random` has them, and recomputing with the same ones."""

from collections.abc import Callable
from typing import Any, TypeVar

import kernbench.torch as torch
from kernbench.extend import CallNumbers, first_run, guard, second_run
from kernbench.parallel import random
from kernbench.parallel.members import ensure_divisibility, refuse, refuse_assertion, size_of
from kernbench.parallel.random import (
    DATA_PARALLEL,
    EXPERT_PARALLEL,
    MODEL_PARALLEL,
    CudaRNGStatesTracker,
    RngError,
    RngTracker,
    forked_rng,
    get_all_rng_states,
    get_cuda_rng_tracker,
    get_data_parallel_rng_tracker_name,
    get_expert_parallel_rng_tracker_name,
    get_rng_tracker,
    initialize_rng_tracker,
    model_parallel_cuda_manual_seed,
    model_parallel_manual_seed,
)
from kernbench.torch.utils.checkpoint import check_backward_validity
from kernbench.tp.utils import (
    gather_split_1d_tensor,
    group_of,
    split_tensor_into_1d_equal_chunks,
)

__all__ = [
    "DATA_PARALLEL",
    "EXPERT_PARALLEL",
    "MODEL_PARALLEL",
    "CudaRNGStatesTracker",
    "RngError",
    "RngTracker",
    "checkpoint",
    "forked_rng",
    "get_all_rng_states",
    "get_cuda_rng_tracker",
    "get_data_parallel_rng_tracker_name",
    "get_expert_parallel_rng_tracker_name",
    "get_rng_tracker",
    "initialize_rng_tracker",
    "model_parallel_cuda_manual_seed",
    "model_parallel_manual_seed",
]

_R = TypeVar("_R")


class _Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], distribute: bool, *args: Any) -> Any:
        ctx.function = function
        ctx.states, ctx.calls = random.rng_states(), CallNumbers()
        out = first_run(function, args, any(ctx.needs_input_grad))
        kept = [each if isinstance(each, torch.Tensor) else None for each in args]
        ctx.rest = [None if isinstance(each, torch.Tensor) else each for each in args]
        ctx.wanted = [each is not None and each.requires_grad for each in kept]
        ctx.shape = None
        if distribute:
            ctx.shape = args[0].shape
            kept[0] = split_tensor_into_1d_equal_chunks(args[0].detach(), new_buffer=True)
        ctx.save_for_backward(*kept)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        if not torch.autograd._is_checkpoint_valid():
            raise refuse(
                "Checkpointing is not compatible with .grad() or when an `inputs` parameter is "
                "passed to .backward()",
                hint="call backward() without inputs, and read the grad of each tensor",
            )
        kept = list(ctx.saved_tensors)
        if ctx.shape is not None:
            kept[0] = gather_split_1d_tensor(kept[0]).view(ctx.shape)
        args = [
            rest if each is None else each.detach().requires_grad_(wanted)
            for each, rest, wanted in zip(kept, ctx.rest, ctx.wanted, strict=True)
        ]

        def run(*given: Any) -> Any:
            with random.forked_rng(ctx.states), ctx.calls.again():
                return ctx.function(*given)

        return None, None, *second_run(run, args, grads)


def checkpoint(
    function: Callable[..., _R], distribute_saved_activations: bool | None, *args: Any
) -> _R:
    """Returns `function(*args)`, whose activations are not kept but computed anew by backward.

    Backward calls the function again with the random numbers that it drew the first time, from the
    default generator and from all streams of the calling rank. Gradients of parameters that it uses
    are added to them then. If the function communicates, backward communicates as much again.

    Args:
        function: Called twice, the second time by the backward pass; it takes the same course both
            times.
        distribute_saved_activations: Whether each rank of the tensor-parallel group keeps only its
            part of the first argument, which must be the same on all of them; backward gathers it.
            The argument itself is freed when nobody else holds it.
        *args: Arguments of the function. At least one tensor must need a gradient, or none flows
            through, not even to parameters.

    Raises:
        ParallelAssertionError: If the ranks cannot share the first argument equally, or it is no
            tensor.
        ParallelError: In backward, if that is for chosen tensors only, as by `autograd.grad`.
        TensorError: If the function writes an argument in place and backward is to call it again;
            in backward, if the function then returns no value with a gradient, or another number of
            values (CheckpointError).
        ParallelStateError: If it is to be shared and model parallelism is not initialised.
    """
    if distribute_saved_activations:
        if not args or not isinstance(args[0], torch.Tensor):
            raise refuse_assertion(
                "checkpoint(distribute_saved_activations=True): the first argument is no tensor"
            )
        ensure_divisibility(args[0].numel(), size_of(group_of(None)))
    if not torch.is_grad_enabled():
        return function(*args)  # nobody goes back, so nothing is kept
    check_backward_validity(args)
    out: _R = _Checkpoint.apply(function, bool(distribute_saved_activations), *args)
    return out


guard(globals())
