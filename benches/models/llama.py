"""A model like Llama's, split over the ranks of a tensor-parallel group.

Activations are `[s, b, h]`; with sequence parallelism `[s/tp, b, h]` between layers.
"""

from dataclasses import dataclass
from functools import partial
from math import sqrt

import kernbench.torch as torch
import kernbench.torch.nn.functional as F
from kernbench.tp import parallel_state
from kernbench.tp.config import ModelParallelConfig
from kernbench.tp.cross_entropy import vocab_parallel_cross_entropy
from kernbench.tp.layers import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
from kernbench.tp.utils import divide

_DEVIATION = 0.02
_EPSILON = 1e-5
_ROTARY_BASE = 10000.0


@dataclass(frozen=True)
class Shape:
    """Sizes of the model, of all ranks together.

    Attributes:
        layers: How many.
        hidden: Width of activations.
        ffn: Width inside the MLP.
        heads: Of queries.
        kv_heads: Of keys and of values, each for `heads / kv_heads` queries.
        sequence: Tokens of a sequence.
        vocab: Ids.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    sequence: int
    vocab: int

    @property
    def head(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads


class Rotary(torch.nn.Module):
    """Turns pairs of a head's elements by an angle that grows with the position (RoFormer, 2021).

    Element i is paired with i + d/2, as in Llama; its angle is `position / base**(2i/d)`.

    Args:
        sequence: Positions.
        width: d, of a head.
        dtype: Of what it is called with.
    """

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, sequence: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        exponents = torch.arange(0, width, 2, dtype=torch.float64, device="cuda") / width
        positions = torch.arange(sequence, dtype=torch.float64, device="cuda")
        angles = positions[:, None] * torch.pow(_ROTARY_BASE, -exponents)[None, :]
        angles = torch.cat((angles, angles), -1).reshape(sequence, 1, 1, 1, width)
        self.register_buffer("cos", angles.cos().to(dtype), persistent=False)
        self.register_buffer("sin", angles.sin().to(dtype), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns `[s, b, groups, heads, d]` turned."""
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat((-second, first), -1) * self.sin


class Attention(torch.nn.Module):
    """Causal attention with grouped queries; a rank has the groups whose keys it has.

    The rows of the fused weight go group by group: its queries, its key, its value.
    """

    def __init__(self, shape: Shape, config: ModelParallelConfig, rotary: Rotary) -> None:
        super().__init__()
        tp = parallel_state.get_tensor_model_parallel_world_size()
        self.width = shape.head
        self.queries = shape.heads // shape.kv_heads
        self.groups = divide(shape.kv_heads, tp)
        self.rotary = rotary
        rows = shape.kv_heads * (self.queries + 2) * self.width
        self.qkv = ColumnParallelLinear(
            shape.hidden, rows, config=config, init_method=_init(), bias=False
        )
        self.out = _row(shape, shape.hidden, config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the output for each token."""
        fused, _ = self.qkv(x)
        s, b, _ = fused.shape
        grouped = fused.reshape(s, b, self.groups, self.queries + 2, self.width)
        turned = self.rotary(grouped[:, :, :, :-1])
        query = turned[:, :, :, :-1].reshape(s, b, -1, self.width)
        key, value = turned[:, :, :, -1], grouped[:, :, :, -1]
        query, key, value = (each.permute(1, 2, 0, 3) for each in (query, key, value))
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        out: torch.Tensor = self.out(found.permute(2, 0, 1, 3).reshape(s, b, -1))[0]
        return out


class SwigluMLP(torch.nn.Module):
    """`down(silu(gate(x)) * up(x))`; gate and up are one product."""

    def __init__(self, shape: Shape, config: ModelParallelConfig) -> None:
        super().__init__()
        self.gate_up = ColumnParallelLinear(
            shape.hidden, 2 * shape.ffn, config=config, init_method=_init(), bias=False, stride=2
        )
        self.down = _row(shape, shape.ffn, config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the output for each token."""
        inner, _ = self.gate_up(x)
        out: torch.Tensor = self.down(F.swiglu(inner))[0]
        return out


class Layer(torch.nn.Module):
    """Attention and MLP, each behind a norm and beside a shortcut."""

    def __init__(self, shape: Shape, config: ModelParallelConfig, rotary: Rotary) -> None:
        super().__init__()
        self.attention_norm = _norm(shape, config)
        self.attention = Attention(shape, config, rotary)
        self.mlp_norm = _norm(shape, config)
        self.mlp = SwigluMLP(shape, config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the output for each token."""
        x = x + self.attention(self.attention_norm(x))
        out: torch.Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class Llama(torch.nn.Module):
    """Embedding, layers, norm, output, and the mean loss over all tokens.

    Its parts are ranges: `embedding`, `layer 0` and so on, `output`.

    Args:
        shape: Sizes.
        config: What the layers have in common; the tensor-parallel group is the calling rank's.
    """

    def __init__(self, shape: Shape, config: ModelParallelConfig) -> None:
        super().__init__()
        self.sequence_parallel = config.sequence_parallel
        self.embedding = VocabParallelEmbedding(
            shape.vocab,
            shape.hidden,
            init_method=_init(),
            reduce_scatter_embeddings=config.sequence_parallel,
            config=config,
        )
        rotary = Rotary(shape.sequence, shape.head, config.params_dtype)
        self.layers = torch.nn.ModuleList(
            [Layer(shape, config, rotary) for _ in range(shape.layers)]
        )
        self.norm = _norm(shape, config)
        self.output = ColumnParallelLinear(
            shape.hidden, shape.vocab, config=config, init_method=_init(), bias=False
        )

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Returns the loss in nats per token, a single value, the same on all ranks of the group.

        Args:
            ids: Tokens `[b, s]`.
            targets: The ones that follow them, `[s, b]`.
        """
        with torch.profiler.record_function("embedding"):
            x = self.embedding(ids)
            if not self.sequence_parallel:
                x = x.transpose(0, 1).contiguous()
        for number, layer in enumerate(self.layers):
            with torch.profiler.record_function(f"layer {number}"):
                x = layer(x)
        with torch.profiler.record_function("output"):
            logits, _ = self.output(self.norm(x))
            return vocab_parallel_cross_entropy(logits, targets).mean()


def _init(scale: float = 1.0) -> partial[torch.Tensor]:
    return partial(torch.nn.init.normal_, std=_DEVIATION * scale)


def _row(shape: Shape, width: int, config: ModelParallelConfig) -> RowParallelLinear:
    # Each layer adds two of these to the shortcut.
    return RowParallelLinear(
        width,
        shape.hidden,
        config=config,
        init_method=_init(1 / sqrt(2 * shape.layers)),
        bias=False,
        input_is_parallel=True,
        skip_bias_add=False,
    )


def _norm(shape: Shape, config: ModelParallelConfig) -> torch.nn.RMSNorm:
    norm = torch.nn.RMSNorm(shape.hidden, _EPSILON, device="cuda", dtype=config.params_dtype)
    # As layers mark theirs: all ranks have it, with sequence parallelism a part of its gradient.
    marks = {"tensor_model_parallel": False, "sequence_parallel": config.sequence_parallel}
    for name, value in marks.items():
        setattr(norm.weight, name, value)
    return norm
