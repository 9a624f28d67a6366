"""A small model in pieces, tensor-parallel, and the same in numpy: what the tests here share.

A piece is `x + tanh(x @ W1.T + b1) @ W2.T + b2`; the loss of a microbatch is the mean squared
distance from a target. The numpy side knows nothing of the other: it is formulas on whole arrays.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.parallel import parallel_state
from kernbench.parallel.config import ModelParallelConfig
from kernbench.pp.schedules import get_forward_backward_func
from kernbench.runtime_api.context import RuntimeContext
from kernbench.testing import Kernbench
from kernbench.tp.gradients import finalize_model_grads
from kernbench.tp.layers import ColumnParallelLinear, RowParallelLinear

S, B, H, FFN = 4, 2, 6, 8
PIECES, MICROBATCHES = 8, 4
DIMS: dict[str, int | None] = {
    "up.weight": 0, "up.bias": 0, "down.weight": 1, "down.bias": None,
}  # fmt: skip
"""Along which dimension a parameter of a piece is cut among tensor-parallel ranks."""


def weights_of(piece: int) -> dict[str, Any]:
    """Returns the whole parameters of a piece."""
    draw = np.random.default_rng([1, piece]).standard_normal
    shapes: dict[str, Any] = {
        "up.weight": (FFN, H),
        "up.bias": FFN,
        "down.weight": (H, FFN),
        "down.bias": H,
    }
    return {name: draw(shape) / 2 for name, shape in shapes.items()}


def batch_of(microbatch: int) -> tuple[Any, Any]:
    """Returns input and target of a microbatch, `[s, b, h]`."""
    draw = np.random.default_rng([2, microbatch]).standard_normal
    return draw((S, B, H)), draw((S, B, H))


@dataclass
class Reference:
    """What the whole model gives on one rank.

    Attributes:
        losses: By microbatch.
        grads: By piece and name: of the mean over the microbatches.
    """

    losses: list[float]
    grads: list[dict[str, Any]]


def reference() -> Reference:
    """Returns losses and gradients in float64."""
    weights = [weights_of(piece) for piece in range(PIECES)]
    grads = [{name: np.zeros_like(value) for name, value in each.items()} for each in weights]
    losses = []
    for microbatch in range(MICROBATCHES):
        x, target = batch_of(microbatch)
        seen = []
        for w in weights:
            wide = np.tanh(x @ w["up.weight"].T + w["up.bias"])
            seen.append((x, wide))
            x = x + wide @ w["down.weight"].T + w["down.bias"]
        losses.append(float(((x - target) ** 2).mean()))
        dx = 2 * (x - target) / x.size / MICROBATCHES
        for w, g, (x, wide) in zip(weights[::-1], grads[::-1], seen[::-1], strict=True):
            before = (dx @ w["down.weight"]) * (1 - wide**2)
            g["down.weight"] += np.einsum("sbi,sbj->ij", dx, wide)
            g["down.bias"] += dx.sum((0, 1))
            g["up.weight"] += np.einsum("sbi,sbj->ij", before, x)
            g["up.bias"] += before.sum((0, 1))
            dx = dx + before @ w["up.weight"]
    return Reference(losses, grads)


def cut(name: str, whole: Any) -> Any:
    """Returns the calling rank's part of a parameter."""
    dim = DIMS[name]
    if dim is None:
        return whole
    ranks = parallel_state.get_tensor_model_parallel_world_size()
    return np.split(whole, ranks, dim)[parallel_state.get_tensor_model_parallel_rank()]


class Piece(torch.nn.Module):
    def __init__(self, number: int, config: ModelParallelConfig) -> None:
        super().__init__()
        self.number = number
        shared: dict[str, Any] = {"config": config, "init_method": torch.nn.init.zeros_}
        self.up = ColumnParallelLinear(H, FFN, **shared)
        self.down = RowParallelLinear(
            FFN, H, bias=True, input_is_parallel=True, skip_bias_add=False, **shared
        )
        with torch.no_grad():
            for name, whole in weights_of(number).items():
                part = np.ascontiguousarray(cut(name, whole))
                self.get_parameter(name).copy_(torch.tensor(part, device="cuda"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(torch.tanh(self.up(x)[0]))[0]
        return out


class Chunk(torch.nn.Module):
    """Neighbouring pieces; takes its input from `set_input_tensor`, as Megatron's models do."""

    def __init__(self, pieces: list[int], config: ModelParallelConfig) -> None:
        super().__init__()
        self.config = config
        self.pieces = torch.nn.ModuleList([Piece(number, config) for number in pieces])
        self.given: Any = None

    def set_input_tensor(self, input_tensor: list[Any]) -> None:
        (self.given,) = input_tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.given is None else self.given
        for piece in self.pieces:
            x = piece(x)
        return x


@dataclass(frozen=True)
class Layout:
    """How ranks share the model."""

    schedule: str
    pp: int = 1
    tp: int = 1
    chunks: int = 1
    rows: bool = False
    cp: int = 1

    @property
    def ranks(self) -> int:
        return self.pp * self.tp * self.cp


@dataclass
class Found:
    """What ranks have told.

    Attributes:
        losses: By (stage, tensor rank) and microbatch.
        grads: By piece, tensor rank and name.
    """

    losses: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    grads: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)

    def whole(self, piece: int, name: str, tp: int) -> Any:
        parts = [self.grads[piece, rank][name] for rank in range(tp)]
        dim = DIMS[name]
        if dim is not None:
            return np.concatenate(parts, dim)
        assert len({part.tobytes() for part in parts}) == 1
        return parts[0]


def chunks_of(layout: Layout, config: ModelParallelConfig) -> list[Chunk]:
    """Returns the chunks of the calling stage."""
    stage = parallel_state.get_pipeline_model_parallel_rank()
    each = PIECES // (layout.pp * layout.chunks)
    starts = [(chunk * layout.pp + stage) * each for chunk in range(layout.chunks)]
    return [Chunk([*range(start, start + each)], config) for start in starts]


def config_of(layout: Layout, **settings: Any) -> ModelParallelConfig:
    """Returns a configuration in float64, with the sum over tensor-parallel ranks at the end."""
    given: dict[str, Any] = {
        "params_dtype": torch.float64,
        "pipeline_dtype": torch.float64,
        "sequence_parallel": layout.rows,
        "finalize_model_grads_func": finalize_model_grads,
        **settings,
    }
    config: Any = ModelParallelConfig(**given)
    config.hidden_size = H
    assert isinstance(config, ModelParallelConfig)
    return config


def forward_step(data_iterator: Any, model: Any) -> Any:
    """Megatron's forward step; a rank's loss is that of its own rows."""
    x, target = next(data_iterator)

    def loss_func(output: torch.Tensor) -> Any:
        loss = (output - target).pow(2).sum() / (S * B * H)
        return loss, {"loss": loss.detach()}

    return model(x), loss_func


def data_of(layout: Layout, count: int = MICROBATCHES) -> Any:
    """Returns the iterators of the calling rank, one for each chunk."""
    parts, mine = layout.cp, parallel_state.get_context_parallel_rank()
    if layout.rows:
        mine = mine * layout.tp + parallel_state.get_tensor_model_parallel_rank()
        parts *= layout.tp
    own = slice(mine * S // parts, (mine + 1) * S // parts)
    batches = [
        tuple(torch.tensor(each[own].copy(), device="cuda") for each in batch_of(microbatch))
        for microbatch in range(count)
    ]
    return [iter(batches) for _ in range(layout.chunks)]


def step(layout: Layout, models: Any, **arguments: Any) -> list[Any]:
    """Does a step on the calling rank."""
    data = data_of(layout)
    several = layout.schedule == "interleaved"
    named: Any = None if layout.schedule == "default" else layout.schedule
    given: dict[str, Any] = {
        "forward_step_func": forward_step,
        "data_iterator": data if several else data[0],
        "model": models if several else models[0],
        "num_microbatches": MICROBATCHES,
        "seq_length": S,
        "micro_batch_size": B,
        **arguments,
    }
    return get_forward_backward_func(schedule=named)(**given)


def spawn(
    kernbench: Kernbench, layout: Layout, work: Callable[[], object], **fields: Any
) -> RuntimeContext:
    """Calls a worker on each rank of a layout."""

    def run(rank: int) -> None:
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=layout.tp,
            pipeline_model_parallel_size=layout.pp,
            context_parallel_size=layout.cp,
            virtual_pipeline_model_parallel_size=layout.chunks if layout.chunks > 1 else None,
        )
        work()
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()

    return kernbench.spawn(run, nprocs=layout.ranks, **fields)


def note(found: Found, models: list[Chunk], told: list[Any]) -> None:
    """Notes the calling rank's losses and gradients."""
    rank = parallel_state.get_tensor_model_parallel_rank()
    stage = parallel_state.get_pipeline_model_parallel_rank()
    found.losses[stage, rank] = [each["loss"].item() for each in told]
    for model in models:
        for module in model.pieces:
            piece: Any = module
            found.grads[piece.number, rank] = {
                name: value.grad.cpu().numpy().copy() for name, value in piece.named_parameters()
            }


def one_step(kernbench: Kernbench, layout: Layout, delay: Any = None, **settings: Any) -> Found:
    """Returns what all ranks have after a step."""
    found = Found()

    def work() -> None:
        models = chunks_of(layout, config_of(layout, **settings))
        if delay is not None:
            delay()
        note(found, models, step(layout, models))

    spawn(kernbench, layout, work)
    return found
