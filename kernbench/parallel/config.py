"""What the layers of a model in shards have in common."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import kernbench.torch as torch
from kernbench.errors import OptionError, call_site, site_fact

GemmKernel = Literal["tile", "library"]
"""Who multiplies matrices: the tile kernel of `kernbench.tp.kernels`, or the machine's library.

Their numbers agree within the tolerances of their type.
"""


NoSync: TypeAlias = Callable[[], AbstractContextManager[Any]]
"""Makes a context in which backward passes add gradients up and do not reduce them."""


@dataclass(kw_only=True)
class ModelParallelConfig:
    """Megatron's configuration of the same name, as far as layers and schedules look at it.

    A size that is None is that of the group, which layers take from `parallel_state` or are given;
    one that contradicts it is refused where the layer is made.

    Attributes:
        tensor_model_parallel_size: Ranks that share a layer, other than those of experts.
        context_parallel_size: Ranks that share a sequence.
        expert_model_parallel_size: Ranks that share the experts; more than one make experts'
            layers leave their communication to whoever dispatches tokens. A layer that is given
            its group does not look for that of experts, and takes None for 1.
        sequence_parallel: Whether activations between layers are cut along dimension 0.
        params_dtype: Type of the parameters.
        perform_initialization: Whether layers draw first values; without, nobody has written them.
        use_cpu_initialization: Has no effect: master weights are always drawn on the host, so that
            a device needs room for its shard only.
        gradient_accumulation_fusion: Whether the product that computes the gradient of a linear
            layer's weight adds it to `weight.main_grad`, which the weight must have.
        defer_embedding_wgrad_compute: Whether a column-parallel layer with buffers for it puts the
            gradient of its weight off until `drain_embedding_wgrad_compute`; needs
            `gradient_accumulation_fusion`.
        wgrad_deferral_limit: How many microbatches are put off; 0 for any number.
        pipeline_model_parallel_size: Ranks that share the layers of a model, one after the other.
        virtual_pipeline_model_parallel_size: Pieces of the model that each of them holds.
        pipeline_dtype: Type of what pipeline stages send each other.
        deallocate_pipeline_outputs: Whether a stage frees what it has sent, and keeps the graph.
        grad_scale_func: What a schedule applies to the loss before its backward pass.
        no_sync_func: Context for all backward passes but the last one; a list has one for each
            piece of the model.
        finalize_model_grads_func: What a schedule calls after the last backward pass, as
            `kernbench.tp.gradients.finalize_model_grads`.
        calculate_per_token_loss: Whether a schedule leaves losses that come with a number of tokens
            as they are, and hands the sum of the numbers to `finalize_model_grads_func`.
        deterministic_mode: Has no effect: every run is deterministic.
        kernel: Who multiplies matrices, where a layer does not say.
    """

    tensor_model_parallel_size: int | None = None
    context_parallel_size: int | None = None
    expert_model_parallel_size: int | None = None
    sequence_parallel: bool = False
    params_dtype: torch.dtype = torch.float32
    perform_initialization: bool = True
    use_cpu_initialization: bool = False
    gradient_accumulation_fusion: bool = False
    defer_embedding_wgrad_compute: bool = False
    wgrad_deferral_limit: int = 0
    pipeline_model_parallel_size: int | None = None
    virtual_pipeline_model_parallel_size: int | None = None
    pipeline_dtype: torch.dtype | None = None
    deallocate_pipeline_outputs: bool = False
    grad_scale_func: Callable[[Any], Any] | None = None
    no_sync_func: NoSync | Sequence[NoSync] | None = None
    finalize_model_grads_func: Callable[..., object] | None = None
    calculate_per_token_loss: bool = False
    deterministic_mode: bool = False
    kernel: GemmKernel = "tile"

    def __post_init__(self) -> None:
        """Refuses what Megatron-Core refuses.

        Raises:
            OptionError: If gradients are put off that are not added to `main_grad`, or fewer than
                none.
        """
        if self.defer_embedding_wgrad_compute and not self.gradient_accumulation_fusion:
            raise OptionError(
                "Cannot defer embedding wgrad compute when gradient accumulation fusion is not "
                "used",
                [site_fact(call_site())],
                hint="ModelParallelConfig(gradient_accumulation_fusion=True)",
            )
        if self.wgrad_deferral_limit < 0:
            raise OptionError(
                f"wgrad_deferral_limit={self.wgrad_deferral_limit}: expected at least 0",
                [site_fact(call_site())],
            )
