"""A GPT of the kind of Llama and Qwen3, in the layout of any process groups.

Ranks share layers (`tp`), sequences (`cp`) and the layers' succession (`pp`); the rest of them have
batches of their own (`dp`). Activations are `[s/cp, b, h]`; with sequence parallelism
`[s/cp/tp, b, h]` between layers. Names are those of Megatron-Core.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Any, Final

import kernbench.torch as torch
import kernbench.torch.distributed as dist
import kernbench.torch.nn.functional as F
from kernbench.cp import DotProductAttention
from kernbench.parallel.config import ModelParallelConfig
from kernbench.parallel.groups import ProcessGroupCollection
from kernbench.parallel.rebinding import context_parallel_stream
from kernbench.parallel.rotary import RotaryEmbedding, apply_rotary_pos_emb
from kernbench.parallel.shards import InitMethod, marked
from kernbench.tp.cross_entropy import vocab_parallel_cross_entropy
from kernbench.tp.layers import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
from kernbench.tp.utils import divide

_EMBEDDING: Final = -2
_OUTPUT: Final = -1
"""Numbers of what is not a layer, in `draw_of`."""


@dataclass(kw_only=True)
class GPTConfig(ModelParallelConfig):
    """Sizes of the model, of all ranks together, and what its layers have in common.

    It is not frozen: `eval_cp_context` sets `context_parallel_size`.

    Attributes:
        num_layers: How many, of all stages together.
        hidden_size: Width of activations.
        ffn_hidden_size: Width inside the MLP.
        num_attention_heads: Heads of queries.
        num_query_groups: Heads of keys and of values, each for as many queries.
        vocab_size: Ids.
        seq_length: Tokens of a sequence, of which `eval_cp_context` asks whether ranks can share
            them; None if that is not known.
        kv_channels: Width of a head; None for `hidden_size / num_attention_heads`.
        qk_layernorm: Whether queries and keys are normed head by head, as in Qwen3.
        share_embeddings_and_output_weights: Whether the output's weight is the embedding's.
        layernorm_epsilon: What norms add before the root.
        rotary_base: Base of the periods of the rotary embedding.
        cp_comm_type: How ranks that share a sequence exchange it, see `kernbench.cp`.
        init_method_std: Deviation of first weights.
        init_seed: Seed of first weights. Each layer draws its own, whatever stage it is on.
    """

    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    vocab_size: int
    seq_length: int | None = None
    kv_channels: int | None = None
    qk_layernorm: bool = False
    share_embeddings_and_output_weights: bool = False
    layernorm_epsilon: float = 1e-5
    rotary_base: float = 10000.0
    cp_comm_type: str = "p2p"
    init_method_std: float = 0.02
    init_seed: int = 0

    @property
    def head(self) -> int:
        """Width of a head."""
        return self.kv_channels or self.hidden_size // self.num_attention_heads


class Attention(torch.nn.Module):
    """Causal attention with grouped queries; a rank has the groups whose keys it has.

    The rows of the fused weight go group by group: its queries, its key, its value.
    """

    def __init__(self, config: GPTConfig, number: int, groups: ProcessGroupCollection) -> None:
        super().__init__()
        self.config = config
        self.queries = config.num_attention_heads // config.num_query_groups
        self.groups = divide(config.num_query_groups, groups.tp.size())
        draw = draw_of(config, 2 * number)
        self.qkv = ColumnParallelLinear(
            config.hidden_size,
            config.num_query_groups * (self.queries + 2) * config.head,
            config=config,
            init_method=draw(),
            bias=False,
            tp_group=groups.tp,
        )
        self.core = DotProductAttention(
            config.num_attention_heads,
            config.head,
            num_gqa_groups=config.num_query_groups,
            qkv_format="sbhd",
            attn_mask_type="causal",
            tp_group=groups.tp,
            **sharing_of(config, groups),
        )
        width = config.num_attention_heads * config.head
        self.out = row_linear(config, width, draw, groups)
        self.query_norm = self.key_norm = None
        if config.qk_layernorm:
            # A rank norms its own heads only: gradients are parts of a sum.
            self.query_norm = norm_of(config, config.head, parts=True)
            self.key_norm = norm_of(config, config.head, parts=True)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """Returns the output for each token.

        Args:
            x: Activations.
            angles: By which the rotary embedding turns each token's pairs.
        """
        fused, _ = self.qkv(x)
        s, b, _ = fused.shape
        grouped = fused.view(s, b, self.groups, self.queries + 2, self.config.head)
        query, key, value = grouped.split([self.queries, 1, 1], 3)
        query = query.reshape(s, b, -1, self.config.head)
        key, value = key.squeeze(3), value.squeeze(3)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        query = apply_rotary_pos_emb(query, angles, self.config)
        key = apply_rotary_pos_emb(key, angles, self.config)
        out: torch.Tensor = self.out(self.core(query, key, value))[0]
        return out


class SwigluMLP(torch.nn.Module):
    """`down(silu(gate(x)) * up(x))`; gate and up are one product."""

    def __init__(self, config: GPTConfig, number: int, groups: ProcessGroupCollection) -> None:
        super().__init__()
        draw = draw_of(config, 2 * number + 1)
        self.gate_up = ColumnParallelLinear(
            config.hidden_size,
            2 * config.ffn_hidden_size,
            config=config,
            init_method=draw(),
            bias=False,
            stride=2,
            tp_group=groups.tp,
        )
        self.down = row_linear(config, config.ffn_hidden_size, draw, groups)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the output for each token."""
        inner, _ = self.gate_up(x)
        out: torch.Tensor = self.down(F.swiglu(inner))[0]
        return out


class Layer(torch.nn.Module):
    """Attention and MLP, each behind a norm and beside a shortcut."""

    def __init__(self, config: GPTConfig, number: int, groups: ProcessGroupCollection) -> None:
        super().__init__()
        self.number = number
        self.attention_norm = norm_of(config, config.hidden_size)
        self.attention = Attention(config, number, groups)
        self.mlp_norm = norm_of(config, config.hidden_size)
        self.mlp = SwigluMLP(config, number, groups)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """Returns the output for each token; see `Attention`."""
        x = x + self.attention(self.attention_norm(x), angles)
        out: torch.Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class GPTModel(torch.nn.Module):
    """Embedding, layers, norm, output and loss: all of them, or what a stage of a pipeline has.

    Its parts are ranges: `embedding`, `layer 0` and so on, `output`.

    Args:
        config: Sizes, and what the layers have in common.
        groups: Who shares what: `tp`, `cp`, `pp`.
        vp_stage: Which of the chunks that the stage holds, if they are several.
        numbers: Of its layers; None: every chunk has equally many.
        make: Makes a layer of its configuration, number and groups.

    Attributes:
        config: As given.
        pg_collection: The groups.
        cp_group: Ranks that share each sequence.
        vp_stage: As given.
        pre_process: Whether it begins with the embedding, rather than what the stage before sent.
        post_process: Whether it ends with the loss.
    """

    def __init__(
        self,
        config: GPTConfig,
        groups: ProcessGroupCollection,
        vp_stage: int | None = None,
        numbers: Sequence[int] | None = None,
        make: Callable[[GPTConfig, int, ProcessGroupCollection], torch.nn.Module] = Layer,
    ) -> None:
        super().__init__()
        self.config, self.pg_collection, self.vp_stage = config, groups, vp_stage
        self.cp_group = groups.cp
        stage, stages = groups.pp.rank(), groups.pp.size()
        chunks, chunk = config.virtual_pipeline_model_parallel_size or 1, vp_stage or 0
        self.pre_process = stage == chunk == 0
        self.post_process = stage == stages - 1 and chunk == chunks - 1
        # The first chunks of all stages, then the second ones.
        place = chunk * stages + stage
        if numbers is None:
            count = divide(config.num_layers, stages * chunks)
            numbers = range(place * count, (place + 1) * count)
        self.input_tensor: torch.Tensor | None = None
        self.rotary = RotaryEmbedding(
            config.head,
            rotary_base=config.rotary_base,
            cp_group=groups.cp,
            dtype=torch.float64 if config.params_dtype is torch.float64 else torch.float32,
        )
        self.embedding = None
        if self.pre_process:
            self.embedding = VocabParallelEmbedding(
                config.vocab_size,
                config.hidden_size,
                init_method=draw_of(config, _EMBEDDING)(),
                reduce_scatter_embeddings=config.sequence_parallel,
                config=config,
                tp_group=groups.tp,
            )
        self.layers = torch.nn.ModuleList([make(config, number, groups) for number in numbers])
        self.norm = self.output = None
        tied = config.share_embeddings_and_output_weights
        if self.post_process:
            self.norm = norm_of(config, config.hidden_size)
            self.output = ColumnParallelLinear(
                config.hidden_size,
                config.vocab_size,
                config=config,
                init_method=draw_of(config, _EMBEDDING if tied else _OUTPUT)(),
                bias=False,
                skip_weight_param_allocation=tied and self.pre_process,
                tp_group=groups.tp,
            )
        if tied and self.embedding is not None and self.output is not None:
            # The output adds to `main_grad` and returns this, to which the embedding's is added.
            marked(self.embedding.weight, zero_out_wgrad=True)
        elif tied:
            # Both stages sum their gradients, and in norms the weight counts once.
            if self.embedding is not None:
                marked(self.embedding.weight, shared_embedding=True)
            if self.output is not None and self.output.weight is not None:
                marked(self.output.weight, shared_embedding=True, shared=True)

    def set_input_tensor(self, input_tensor: Sequence[torch.Tensor | None]) -> None:
        """Takes what the stage before has sent, or `[None]`; schedules call it."""
        (self.input_tensor,) = input_tensor

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Returns the loss of each of the rank's tokens in nats, or what the next stage needs.

        Args:
            ids: The rank's tokens `[b, s/cp]`; looked at by the first stage.
            labels: The ones that follow them, `[b, s/cp]`; looked at by the last stage.

        Returns:
            `[s/cp, b]` on the last stage, the same on all ranks of `tp`; else activations.
        """
        config = self.config
        x: torch.Tensor
        if self.embedding is not None:
            with torch.profiler.record_function("embedding"):
                x = self.embedding(ids)
                if not config.sequence_parallel:
                    x = x.transpose(0, 1).contiguous()
        else:
            assert self.input_tensor is not None
            x = self.input_tensor
        length = self.rotary.get_rotary_seq_len(None, None, x, config)
        angles = self.rotary(length)
        for layer in self.layers:
            with torch.profiler.record_function(f"layer {layer.number}"):
                x = layer(x, angles)
        if self.output is None or self.norm is None:
            return x
        with torch.profiler.record_function("output"):
            tied = self.embedding if self.output.weight is None else None
            logits, _ = self.output(self.norm(x), None if tied is None else tied.weight)
            return vocab_parallel_cross_entropy(
                logits, labels.transpose(0, 1).contiguous(), tp_group=self.pg_collection.tp
            )


def forward_step(
    batches: Iterator[tuple[torch.Tensor, torch.Tensor]], model: torch.nn.Module
) -> tuple[torch.Tensor, Callable[[torch.Tensor], Any]]:
    """Does a forward pass, as schedules of `kernbench.pp` ask for it.

    Args:
        batches: Pairs of `ids` and `labels`, see `GPTModel.forward`.
        model: The model, or the chunk whose turn it is.
    """
    return model(*next(batches)), loss_func


def loss_func(losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the sum of the rank's losses, their number, and both as `average_loss` takes them."""
    with torch.profiler.record_function("output"):
        total = losses.sum()
        count = torch.full((), losses.numel(), dtype=total.dtype, device="cuda")
        return total, count, torch.stack([total.detach(), count])


def sharing_of(config: GPTConfig, groups: ProcessGroupCollection) -> dict[str, Any]:
    """Returns what attention is told of the ranks that share a sequence."""
    told = {"cp_comm_type": config.cp_comm_type}
    if groups.cp.size() == 1:
        return told
    return {
        **told,
        "cp_group": groups.hcp if config.cp_comm_type == "a2a+p2p" else groups.cp,
        "cp_global_ranks": dist.get_process_group_ranks(groups.cp),
        "cp_stream": context_parallel_stream(),
    }


_Draw = Callable[..., InitMethod]


def draw_of(config: GPTConfig, place: int) -> _Draw:
    """Returns what makes functions that fill weights, all from one stream of random numbers."""
    generator = torch.Generator(device="cpu")
    generator.manual_seed(config.init_seed * 1_000_003 + place)

    def init(scale: float = 1.0) -> InitMethod:
        return partial(
            torch.nn.init.normal_, std=config.init_method_std * scale, generator=generator
        )

    return init


def row_linear(
    config: GPTConfig, width: int, draw: _Draw, groups: ProcessGroupCollection
) -> RowParallelLinear:
    """Returns a layer whose output is added to the shortcut, as two of each layer are.

    Args:
        config: Of the model.
        width: Of its input, of all ranks together.
        draw: What fills its weight.
        groups: Who shares it.
    """
    return RowParallelLinear(
        width,
        config.hidden_size,
        config=config,
        init_method=draw(1 / sqrt(2 * config.num_layers)),
        bias=False,
        input_is_parallel=True,
        skip_bias_add=False,
        tp_group=groups.tp,
    )


def norm_of(config: GPTConfig, width: int, *, parts: bool = False) -> torch.nn.RMSNorm:
    """Returns a norm.

    Args:
        config: Of the model.
        width: Of what it norms.
        parts: Whether the gradient of each rank is a part of a sum, though all see all rows.
    """
    norm = torch.nn.RMSNorm(
        width, config.layernorm_epsilon, device="cuda", dtype=config.params_dtype
    )
    # As layers mark theirs: all ranks have it, and each may have a part of its gradient.
    assert norm.weight is not None
    marked(
        norm.weight,
        tensor_model_parallel=False,
        sequence_parallel=parts or config.sequence_parallel,
    )
    return norm
