"""A small language model in shards, and the same in numpy: what the tests of whole models share.

Embedding, two linear layers with gelu between them beside a residual, and a loss over the
vocabulary. The numpy side knows nothing of the other: it is formulas on whole arrays.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import kernbench.torch as torch
from kernbench.torch.nn import functional as F
from kernbench.torch.nn.init import normal_
from kernbench.tp import parallel_state
from kernbench.tp.config import ModelParallelConfig
from kernbench.tp.cross_entropy import vocab_parallel_cross_entropy
from kernbench.tp.layers import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding

S, B, H, FFN, V = 8, 2, 8, 16, 16
"""Tokens and sequences of a rank's batch, widths, and words."""

SEED = 7


def init(weight: torch.Tensor) -> torch.Tensor:
    return normal_(weight, std=0.5)


class Model(torch.nn.Module):
    """Returns the loss of each token, `[s, b]`, of ids `[b, s]` and targets `[s, b]`."""

    def __init__(self, dtype: torch.dtype, sequence_parallel: bool) -> None:
        super().__init__()
        size = parallel_state.get_tensor_model_parallel_world_size()
        settings = ModelParallelConfig(
            tensor_model_parallel_size=size,
            sequence_parallel=sequence_parallel,
            params_dtype=dtype,
        )
        shared: dict[str, Any] = {"config": settings, "init_method": init}
        torch.manual_seed(SEED)
        self.rows = sequence_parallel
        self.words = VocabParallelEmbedding(V, H, reduce_scatter_embeddings=self.rows, **shared)
        self.up = ColumnParallelLinear(H, FFN, **shared)
        self.down = RowParallelLinear(
            FFN, H, bias=True, input_is_parallel=True, skip_bias_add=False, **shared
        )
        self.out = ColumnParallelLinear(H, V, bias=False, **shared)

    def forward(self, ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        if not self.rows:
            x = x.transpose(0, 1).contiguous()
        x = x + self.down(F.gelu(self.up(x)[0]))[0]
        return vocab_parallel_cross_entropy(self.out(x)[0], target)


DIMS: dict[str, int | None] = {
    "words.weight": 0, "up.weight": 0, "up.bias": 0, "down.weight": 1, "down.bias": None,
    "out.weight": 0,
}  # fmt: skip
"""Along which dimension a parameter is cut; None: all ranks hold it."""


def tokens(replica: int, step: int = 0) -> tuple[Any, Any]:
    """Returns the ids `[b, s]` of a batch and the words behind them `[s, b]`."""
    numbers = np.random.default_rng([replica, step])
    first = numbers.integers(V, size=(B, 1))
    line = (first + np.arange(S + 1) * (3 + 2 * replica)) % V
    return line[:, :-1], line[:, 1:].T


@dataclass
class Found:
    """What the ranks of a run have told, by (data-parallel, tensor-parallel) rank."""

    weights: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    grads: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    losses: dict[tuple[int, int], Any] = field(default_factory=dict)

    def whole(self, of: dict[tuple[int, int], dict[str, Any]], name: str, replica: int) -> Any:
        """Returns a parameter of one replica, put together; checks what all ranks hold."""
        parts = [of[place][name] for place in sorted(of) if place[0] == replica]
        dim = DIMS[name]
        if dim is not None:
            return np.concatenate(parts, dim)
        assert len({part.tobytes() for part in parts}) == 1, name
        return parts[0]


def place() -> tuple[int, int]:
    """Returns the calling rank's data-parallel and tensor-parallel rank."""
    return (
        parallel_state.get_data_parallel_rank(),
        parallel_state.get_tensor_model_parallel_rank(),
    )


def copied(tensor: Any) -> Any:
    """Returns the values in numpy, 16-bit ones as they are."""
    return tensor.detach().cpu().numpy().copy()


# In numpy


def _gelu(x: Any) -> tuple[Any, Any]:
    """Returns the exact gelu and its derivative."""
    below = 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return x * below, below + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def dense(weights: dict[str, Any], ids: Any, target: Any) -> tuple[Any, dict[str, Any]]:
    """Returns the loss of each token, `[s, b]`, and the gradients of their sum, in float64."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    words = ids.T
    x = w["words.weight"][words]
    before = x @ w["up.weight"].T + w["up.bias"]
    active, slope = _gelu(before)
    y = x + active @ w["down.weight"].T + w["down.bias"]
    logits = y @ w["out.weight"].T
    logits = logits - logits.max(-1, keepdims=True)
    chances = np.exp(logits)
    chances /= chances.sum(-1, keepdims=True)
    right = np.eye(V)[target]
    losses = -np.log((chances * right).sum(-1))
    d_logits = chances - right
    d_y = d_logits @ w["out.weight"]
    d_before = d_y @ w["down.weight"] * slope
    d_x = d_y + d_before @ w["up.weight"]
    d_words = np.zeros_like(w["words.weight"])
    np.add.at(d_words, words, d_x)
    return losses, {
        "words.weight": d_words,
        "up.weight": np.einsum("sbo,sbi->oi", d_before, x),
        "up.bias": d_before.sum((0, 1)),
        "down.weight": np.einsum("sbo,sbi->oi", d_y, active),
        "down.bias": d_y.sum((0, 1)),
        "out.weight": np.einsum("sbo,sbi->oi", d_logits, y),
    }
