"""Layers whose weights are shared by the ranks of a tensor-parallel group.

Activations are `[s, b, h]`. Weights stand as in `y = x @ weight.T + bias`. Ranks that start from
one seed have parts of one and the same dense layer.
"""

from typing import Any

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.parallel.config import GemmKernel, ModelParallelConfig
from kernbench.parallel.members import Group, divide, refuse, size_of
from kernbench.parallel.shards import (
    InitMethod,
    bias_of,
    checked_config,
    checked_stride,
    expert_ranks_of,
    layer_group,
    marked,
    marks_of,
    sequence_parallel_of,
    shard_of,
    transposed_pieces,
)
from kernbench.tp.affine import (  # noqa: F401 - names that Megatron-Core has here
    _initialize_affine_weight_cpu,
    _initialize_affine_weight_gpu,
    copy_tensor_model_parallel_attributes,
    set_defaults_if_not_set_tensor_model_parallel_attributes,
    set_tensor_model_parallel_attributes,
)
from kernbench.tp.gradients import param_is_not_tensor_parallel_duplicate
from kernbench.tp.kernels import check_linear
from kernbench.tp.linear import (
    linear_with_frozen_weight,
    linear_with_grad_accumulation_and_async_allreduce,
    parallel_linear,
)
from kernbench.tp.mappings import (
    gather_from_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
    scatter_to_tensor_model_parallel_region,
)
from kernbench.tp.primitives import EmbeddingSaved, embedding_bwd, embedding_fwd
from kernbench.tp.utils import VocabUtility, group_of

__all__ = [
    "ColumnParallelLinear",
    "RowParallelLinear",
    "VocabParallelEmbedding",
    "copy_tensor_model_parallel_attributes",
    "linear_with_frozen_weight",
    "linear_with_grad_accumulation_and_async_allreduce",
    "parallel_linear",
    "param_is_not_tensor_parallel_duplicate",
    "set_defaults_if_not_set_tensor_model_parallel_attributes",
    "set_tensor_model_parallel_attributes",
]


class ColumnParallelLinear(torch.nn.Module):
    """A linear layer whose outputs are shared by the ranks.

    Args:
        input_size: Width of the input.
        output_size: Width of the output, of all ranks together.
        config: What the layers of a model have in common.
        init_method: Fills the dense weight `[output_size, input_size]` in place.
        bias: Whether to add one; it is 0 at first.
        gather_output: Whether every rank gets the outputs of all.
        stride: How many weights lie below each other in this one, such as 3 for q, k and v. A
            rank has its part of each; a gathered output is in the order of the dense layer, which
            takes a copy beside the message.
        keep_master_weight_for_test: Whether `master_weight` keeps the dense weight.
        skip_bias_add: Whether `forward` returns the bias rather than to add it.
        skip_weight_param_allocation: Whether `forward` is given the weight.
        embedding_activation_buffer: A list that gets the inputs of which the weight's gradient is
            computed later, see `config.defer_embedding_wgrad_compute`; else it is not used.
        grad_output_buffer: A list that gets the gradients of the outputs, likewise.
        is_expert: Whether it belongs to an expert: with several ranks or several groups of experts
            whoever dispatches tokens communicates, and this layer does not.
        tp_comm_buffer_name: Has no effect, as in Megatron-Core: the name of a buffer that layers of
            Transformer Engine have.
        disable_grad_reduce: Whether the input's gradient stays that of this rank's part alone.
        tp_group: Which ranks; by default the tensor-parallel group, or that of experts.
        name: What the layer is called; kept as `name` and of no effect, as in Megatron-Core.
        kernel: Who multiplies; by default what the configuration says.

    Attributes:
        weight: `[output_size/tp, input_size]`; None if it is given to `forward`.
        bias: `[output_size/tp]`, or None.

    Raises:
        ParallelAssertionError: If the ranks cannot share the outputs equally, or the stride is no
            number of weights.
        ParallelError: If the configuration names other sizes than the groups have.
        OperandError: If `config` or `init_method` is of another kind.
    """

    weight: torch.nn.Parameter | None
    bias: torch.nn.Parameter | None

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        config: ModelParallelConfig,
        init_method: InitMethod,
        bias: bool = True,
        gather_output: bool = False,
        stride: int = 1,
        keep_master_weight_for_test: bool = False,
        skip_bias_add: bool = False,
        skip_weight_param_allocation: bool = False,
        embedding_activation_buffer: list[torch.Tensor] | None = None,
        grad_output_buffer: list[torch.Tensor] | None = None,
        is_expert: bool = False,
        tp_comm_buffer_name: str | None = None,
        disable_grad_reduce: bool = False,
        tp_group: Group | None = None,
        name: str | None = None,
        kernel: GemmKernel | None = None,
    ) -> None:
        super().__init__()
        del tp_comm_buffer_name
        self.name = name
        self.input_size = input_size
        self.output_size = output_size
        self.gather_output = gather_output
        self.skip_bias_add = skip_bias_add
        self.config = checked_config(config)
        self.embedding_activation_buffer = embedding_activation_buffer
        self.grad_output_buffer = grad_output_buffer
        if config.defer_embedding_wgrad_compute and (
            embedding_activation_buffer is None or grad_output_buffer is None
        ):
            raise refuse(
                "config.defer_embedding_wgrad_compute needs embedding_activation_buffer and "
                "grad_output_buffer",
                hint="pass a list for each, and call drain_embedding_wgrad_compute at the end; "
                "layers whose gradient is not put off take a config without it",
            )
        self.tp_group = layer_group(tp_group, is_expert)
        self.kernel = kernel or config.kernel
        expert_ranks = expert_ranks_of(config, self.tp_group, tp_group, is_expert)
        allreduce = not (is_expert and expert_ranks > 1)
        marks = marks_of(self.tp_group, tp_group, allreduce=allreduce)
        ranks = size_of(self.tp_group)
        self.output_size_per_partition = divide(output_size, ranks)
        self.stride = checked_stride(stride)
        self.master_weight: torch.Tensor | None = None
        self.register_parameter("weight", None)
        if not skip_weight_param_allocation:
            size = (output_size, input_size)
            self.weight, master = shard_of(
                size, 0, self.tp_group, config, init_method, stride=stride, marks=marks
            )
            if keep_master_weight_for_test:
                self.master_weight = master
        self.register_parameter("bias", None)
        if bias:
            self.bias = marked(
                bias_of(self.output_size_per_partition, config),
                tensor_model_parallel=True,
                partition_dim=0,
                partition_stride=stride,
                **marks,
            )
        self.explicit_expert_comm = is_expert and (ranks > 1 or expert_ranks > 1)
        self.sequence_parallel = (
            sequence_parallel_of(config, ranks) and not self.explicit_expert_comm
        )
        self.allreduce_dgrad = (
            ranks > 1
            and not self.sequence_parallel
            and not disable_grad_reduce
            and not self.explicit_expert_comm
        )

    def forward(
        self,
        input_: torch.Tensor,
        weight: torch.Tensor | None = None,
        runtime_gather_output: bool | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns the output, and the bias if that is not added. Does not wait on the host.

        Args:
            input_: `[s, b, input_size]`, or this rank's part of dimension 0 if sequence parallel.
            weight: In place of the layer's own: `[output_size/tp, input_size]`.
            runtime_gather_output: In place of `gather_output`.

        Returns:
            `[s, b, output_size/tp]`, or gathered `[s, b, output_size]`; and the bias or None.

        Raises:
            ParallelError: If there is no weight, or it has another shape.
            TensorError: If the input does not fit the weight in width, type or device.
        """
        if weight is None:
            weight = self.weight
            if weight is None:
                raise refuse(
                    "weight was not supplied to ColumnParallelLinear forward pass and "
                    "skip_weight_param_allocation is True."
                )
        expected = (self.output_size_per_partition, self.input_size)
        if weight.shape != expected:
            raise refuse(
                f"supplied weight's shape is {tuple(weight.shape)}, not {expected} as expected"
            )
        later = None
        if self.config.defer_embedding_wgrad_compute and weight.requires_grad:
            later, kept = self.grad_output_buffer, self.embedding_activation_buffer
            assert kept is not None
            limit = self.config.wgrad_deferral_limit
            if not limit or len(kept) < limit:
                kept.append(input_.detach())
        out = parallel_linear(
            input_,
            weight,
            None if self.skip_bias_add else self.bias,
            allreduce_dgrad=self.allreduce_dgrad,
            sequence_parallel=self.sequence_parallel,
            tp_group=self.tp_group,
            kernel=self.kernel,
            gradient_accumulation_fusion=self.config.gradient_accumulation_fusion,
            grad_output_buffer=later,
            wgrad_deferral_limit=self.config.wgrad_deferral_limit,
        )
        gather = self.gather_output if runtime_gather_output is None else runtime_gather_output
        if gather:
            out = gather_from_tensor_model_parallel_region(out, self.tp_group)
            out = transposed_pieces(out, size_of(self.tp_group), self.stride)
        return out, self.bias if self.skip_bias_add else None

    def extra_repr(self) -> str:
        """See `Module`."""
        return (
            f"in_features={self.input_size}, out_features={self.output_size_per_partition}, "
            f"bias={self.bias is not None}, tp={size_of(self.tp_group)}"
        )


class RowParallelLinear(torch.nn.Module):
    """A linear layer whose inputs are shared by the ranks; their products are summed.

    Args:
        input_size: Width of the input, of all ranks together.
        output_size: Width of the output.
        config: What the layers of a model have in common.
        init_method: Fills the dense weight `[output_size, input_size]` in place.
        bias: Whether to add one, once, after the sum; it is 0 at first.
        input_is_parallel: Whether each rank has its part of the input's last dimension already.
        skip_bias_add: Whether `forward` returns the bias rather than to add it.
        stride: How many weights lie side by side in this one. A rank has its part of each; an
            input that is not parallel is dealt out like that, which takes a copy.
        keep_master_weight_for_test: Whether `master_weight` keeps the dense weight.
        is_expert: See `ColumnParallelLinear`; the bias is then left to the caller too.
        tp_comm_buffer_name: Has no effect, see `ColumnParallelLinear`.
        tp_group: Which ranks; by default the tensor-parallel group, or that of experts.
        name: What the layer is called; kept as `name` and of no effect, as in Megatron-Core.
        kernel: Who multiplies; by default what the configuration says.

    Attributes:
        weight: `[output_size, input_size/tp]`.
        bias: `[output_size]`, the same on all ranks, or None. If sequence parallel, its gradient is
            that of this rank's rows, which `bias.sequence_parallel` says; whoever finalises
            gradients sums them over the group.

    Raises:
        ParallelAssertionError: If the ranks cannot share the inputs equally, or the stride is no
            number of weights.
        ParallelError: If it is sequence parallel, and the input is not parallel; if the
            configuration names other sizes than the groups have.
        OperandError: If `config` or `init_method` is of another kind.
    """

    weight: torch.nn.Parameter
    bias: torch.nn.Parameter | None

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        config: ModelParallelConfig,
        init_method: InitMethod,
        bias: bool,
        input_is_parallel: bool,
        skip_bias_add: bool,
        stride: int = 1,
        keep_master_weight_for_test: bool = False,
        is_expert: bool = False,
        tp_comm_buffer_name: str | None = None,
        tp_group: Group | None = None,
        name: str | None = None,
        kernel: GemmKernel | None = None,
    ) -> None:
        super().__init__()
        del tp_comm_buffer_name
        self.name = name
        self.input_size = input_size
        self.output_size = output_size
        self.input_is_parallel = input_is_parallel
        self.skip_bias_add = skip_bias_add
        self.config = checked_config(config)
        if config.sequence_parallel and not input_is_parallel:
            raise refuse("To enable `sequence_parallel`, `input_is_parallel` must be `True`")
        self.tp_group = layer_group(tp_group, is_expert)
        self.kernel = kernel or config.kernel
        expert_ranks = expert_ranks_of(config, self.tp_group, tp_group, is_expert)
        allreduce = not (is_expert and expert_ranks > 1)
        marks = marks_of(self.tp_group, tp_group, allreduce=allreduce)
        ranks = size_of(self.tp_group)
        self.input_size_per_partition = divide(input_size, ranks)
        self.stride = checked_stride(stride)
        size = (output_size, input_size)
        self.weight, master = shard_of(
            size, 1, self.tp_group, config, init_method, stride=stride, marks=marks
        )
        self.master_weight = master if keep_master_weight_for_test else None
        self.explicit_expert_comm = is_expert and (ranks > 1 or expert_ranks > 1)
        if self.explicit_expert_comm and bias and not skip_bias_add:
            raise refuse("a RowParallelLinear of an expert needs `skip_bias_add`, or no bias")
        self.sequence_parallel = sequence_parallel_of(config, ranks)
        self.register_parameter("bias", None)
        if bias:
            self.bias = marked(
                bias_of(output_size, config),
                sequence_parallel=self.sequence_parallel,
                **marks,
            )

    def forward(self, input_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns the output, and the bias if that is not added. Does not wait on the host.

        Args:
            input_: `[s, b, input_size/tp]`, or `[s, b, input_size]` if it is not parallel.

        Returns:
            `[s, b, output_size]`, the same bits on all ranks, or this rank's part of dimension 0 if
            sequence parallel; and the bias or None.

        Raises:
            TensorError: If the input does not fit the weight in width, type or device.
        """
        if not self.input_is_parallel:
            check_linear(input_, self.weight, whole_width=self.input_size)
            input_ = transposed_pieces(input_, self.stride, size_of(self.tp_group))
            input_ = scatter_to_tensor_model_parallel_region(input_, self.tp_group)
        partial = parallel_linear(
            input_,
            self.weight,
            allreduce_dgrad=False,
            sequence_parallel=False,
            tp_group=self.tp_group,
            kernel=self.kernel,
            gradient_accumulation_fusion=self.config.gradient_accumulation_fusion,
        )
        if self.explicit_expert_comm:
            out = partial
        elif self.sequence_parallel:
            out = reduce_scatter_to_sequence_parallel_region(partial, self.tp_group)
        else:
            out = reduce_from_tensor_model_parallel_region(partial, self.tp_group)
        if self.skip_bias_add:
            return out, self.bias
        return out if self.bias is None else out + self.bias, None

    def extra_repr(self) -> str:
        """See `Module`."""
        return (
            f"in_features={self.input_size_per_partition}, out_features={self.output_size}, "
            f"bias={self.bias is not None}, tp={size_of(self.tp_group)}"
        )


# Embedding


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, ids: torch.Tensor, weight: torch.Tensor, first: int, vocabulary: int
    ) -> torch.Tensor:
        out, saved = embedding_fwd(ids, weight, first, vocabulary)
        ctx.save_for_backward(saved.ids)
        ctx.rows = saved.rows
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor, None, None]:
        (ids,) = ctx.saved_tensors
        return None, embedding_bwd(EmbeddingSaved(ids, ctx.rows), grad), None, None


class VocabParallelEmbedding(torch.nn.Module):
    """An embedding whose rows are shared by the ranks.

    Args:
        num_embeddings: Rows, of all ranks together.
        embedding_dim: Their width.
        init_method: Fills the dense weight `[num_embeddings, embedding_dim]` in place.
        reduce_scatter_embeddings: Whether each rank gets its part of dimension 0, as layers want
            that are sequence parallel.
        config: What the layers of a model have in common.
        tp_group: Which ranks; by default the tensor-parallel group.

    Attributes:
        weight: `[num_embeddings/tp, embedding_dim]`.
        vocab_start_index: The id of its first row.
        vocab_end_index: The id behind its last row.

    Raises:
        ParallelAssertionError: If the ranks cannot share the rows equally.
        ParallelError: If the configuration names other sizes than the groups have.
        OperandError: If `config` or `init_method` is of another kind.
    """

    weight: torch.nn.Parameter

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        init_method: InitMethod,
        reduce_scatter_embeddings: bool = False,
        config: ModelParallelConfig,
        tp_group: Group | None = None,
    ) -> None:
        super().__init__()
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.reduce_scatter_embeddings = reduce_scatter_embeddings
        self.config = checked_config(config)
        self.tp_group = group_of(tp_group)
        expert_ranks_of(config, self.tp_group, tp_group, is_expert=False)
        place, ranks = dist.get_rank(self.tp_group), size_of(self.tp_group)
        self.vocab_start_index, self.vocab_end_index = (
            VocabUtility.vocab_range_from_global_vocab_size(num_embeddings, place, ranks)
        )
        self.weight, _ = shard_of(
            (num_embeddings, embedding_dim), 0, self.tp_group, config, init_method
        )

    def forward(self, input_: torch.Tensor) -> torch.Tensor:
        """Returns the rows that the ids name. Does not wait on the host.

        Args:
            input_: Integers `[b, s]`, the same on all ranks.

        Returns:
            `[b, s, embedding_dim]`, the same bits on all ranks; with `reduce_scatter_embeddings`
            `[s/tp, b, embedding_dim]`.

        Raises:
            IndexOutOfBoundsError: If no rank has such a row (M1); found when the kernel runs.
        """
        if size_of(self.tp_group) == 1:
            rows = torch.nn.functional.embedding(input_, self.weight)
        else:
            rows = _Lookup.apply(input_, self.weight, self.vocab_start_index, self.num_embeddings)
        if self.reduce_scatter_embeddings:
            turned = rows.transpose(0, 1).contiguous()
            return reduce_scatter_to_sequence_parallel_region(turned, self.tp_group)
        return reduce_from_tensor_model_parallel_region(rows, self.tp_group)

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"{self.num_embeddings}, {self.embedding_dim}, tp={size_of(self.tp_group)}"
