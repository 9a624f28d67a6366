"""Training steps of a Llama-like model that learns to predict the next byte of a text.

RMSNorm, rotary embedding, causal attention with grouped queries, SwiGLU, a vocabulary of 256 in
parts, AdamW. Flags, after `--`: `--tp` ranks a model times `--dp` models; `--layers`, `--hidden`,
`--ffn`, `--heads`, `--kv-heads`; `--batch` sequences of `--sequence` bytes a step, of all models
together; `--steps`, `--lr`, `--clip`; `--dtype`, `--kernel` who multiplies, `--sequence-parallel`;
`--text`, a file to learn from, by default kernbench's README. `kernbench run --seed` seeds weights
and batches: the losses do not depend on how the model is split.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from benches.models import results
from benches.models.flags import (
    parser,
    positive,
    positive_number,
    require_fitting,
    require_multiple,
    require_ranks,
)
from benches.models.llama import Llama, Shape
from benches.models.measure import Measured, counted, measure, tensor_parallel
from kernbench.config.shipped import shipped
from kernbench.errors import UsageError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.model_memory import ModelMemory
from kernbench.tp import parallel_state
from kernbench.tp.config import GemmKernel, ModelParallelConfig
from kernbench.tp.gradients import clip_grad_norm_, finalize_model_grads

_VOCAB = 256
_STEP = "training step"
_WARMUP = 1

# Not float16: AdamW's squares of gradients are 0 in it, unless somebody scales the loss.
_DTYPES = ("float64", "float32", "bfloat16")


@dataclass(frozen=True)
class Flags:
    """What follows `--` on the command line."""

    tp: int
    dp: int
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    sequence: int
    batch: int
    steps: int
    lr: float
    clip: float
    dtype: str
    kernel: GemmKernel
    sequence_parallel: bool
    text: Path

    @property
    def ranks(self) -> int:
        """How many take part."""
        return self.tp * self.dp


def parse(argv: list[str]) -> Flags:
    """Returns the flags.

    Raises:
        UsageError: If one is unknown, or they do not fit each other.
    """
    flags = parser("transformer", _DTYPES)
    add = flags.add_argument
    add("--tp", type=positive, default=2, metavar="N", help="ranks that share a model: 2")
    add("--dp", type=positive, default=2, metavar="N", help="models, each with its batch: 2")
    add("--layers", type=positive, default=2, metavar="N", help="2")
    add("--hidden", type=positive, default=64, metavar="N", help="width between layers: 64")
    add("--ffn", type=positive, default=192, metavar="N", help="width inside an MLP: 192")
    add("--heads", type=positive, default=8, metavar="N", help="heads of queries: 8")
    add("--kv-heads", type=positive, default=4, metavar="N", help="of keys and values: 4")
    add("--sequence", type=positive, default=64, metavar="N", help="bytes of a sequence: 64")
    add("--batch", type=positive, default=16, metavar="N", help="sequences a step: 16")
    add("--steps", type=positive, default=40, metavar="N", help="40; the first warms up")
    add("--lr", type=positive_number, default=6e-3, metavar="X", help="step width: 0.006")
    add("--clip", type=positive_number, default=1.0, metavar="X", help="gradients' norm: 1")
    add("--text", type=Path, default=shipped("README.md"), metavar="FILE", help="the README")
    given = Flags(**vars(flags.parse_args(argv)))
    _check(given)
    return given


def _check(given: Flags) -> None:
    def multiple(name: str, value: int, of: str, divisor: int) -> None:
        require_multiple("transformer", name, value, of, divisor)

    multiple("--hidden", given.hidden, "2 x --heads", 2 * given.heads)
    multiple("--heads", given.heads, "--kv-heads", given.kv_heads)
    multiple("--kv-heads", given.kv_heads, "--tp", given.tp)
    multiple("--ffn", given.ffn, "--tp", given.tp)
    multiple("the vocabulary of", _VOCAB, "--tp", given.tp)
    multiple("--batch", given.batch, "--dp", given.dp)
    if given.steps < 2:
        raise UsageError(f"transformer: --steps {given.steps}: expected 2 or more")
    if given.sequence_parallel:
        multiple("--sequence", given.sequence, "--tp", given.tp)
        if given.tp == 1:
            raise UsageError("transformer: --sequence-parallel: expected --tp 2 or more")


def _text(flags: Flags) -> np.ndarray[Any, np.dtype[np.int64]]:
    try:
        data = flags.text.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"transformer: --text {flags.text}: {reason}") from error
    if len(data) <= flags.sequence:
        raise UsageError(
            f"transformer: --text {flags.text}: expected more than --sequence {flags.sequence} "
            f"bytes, got {len(data)}"
        )
    return np.frombuffer(data, np.uint8).astype(np.int64)


def _build(flags: Flags) -> tuple[Llama, torch.optim.AdamW]:
    config = ModelParallelConfig(
        tensor_model_parallel_size=flags.tp,
        sequence_parallel=flags.sequence_parallel,
        params_dtype=getattr(torch, flags.dtype),
        kernel=flags.kernel,
    )
    shape = Shape(
        flags.layers, flags.hidden, flags.ffn, flags.heads, flags.kv_heads, flags.sequence, _VOCAB
    )
    model = Llama(shape, config)
    return model, torch.optim.AdamW(model.parameters(), lr=flags.lr)


class _Step:
    """A training step of one rank."""

    def __init__(self, ctx: RuntimeContext, flags: Flags) -> None:
        self.model, self.optimizer = _build(flags)
        self._flags, self._seed, self._text = flags, ctx.spec.seed, _text(flags)
        self._number = 0
        self._dp_group = parallel_state.get_data_parallel_group()
        self._replica = (
            self.model
            if flags.dp == 1
            else torch.nn.parallel.DistributedDataParallel(self.model, process_group=self._dp_group)
        )

    def _batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns this rank's ids `[b, s]`, and the ones that follow them, `[s, b]`."""
        flags, text = self._flags, self._text
        numbers = np.random.default_rng([self._seed, self._number])
        starts = numbers.integers(0, len(text) - flags.sequence, flags.batch)
        mine = np.split(starts, flags.dp)[parallel_state.get_data_parallel_rank()]
        windows = text[mine[:, None] + np.arange(flags.sequence + 1)]
        ids, targets = windows[:, :-1].copy(), windows[:, 1:].T.copy()
        return torch.from_numpy(ids).cuda(), torch.from_numpy(targets).cuda()

    def forward(self) -> torch.Tensor:
        self._number += 1
        with torch.profiler.record_function("batch"):
            ids, targets = self._batch()
        loss: torch.Tensor = self._replica(ids, targets)
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()
        with torch.profiler.record_function("gradients"):
            finalize_model_grads(self.model)
            clip_grad_norm_(self.model.parameters(), self._flags.clip)
        with torch.profiler.record_function("optimizer"):
            self.optimizer.step()

    def whole(self, losses: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(losses, dist.ReduceOp.AVG, group=self._dp_group)
        return losses


def worker(ctx: RuntimeContext, flags: Flags) -> Measured:
    """Trains on one rank."""
    with tensor_parallel(flags.tp):
        # All ranks draw the same dense weights; each keeps its part.
        torch.manual_seed(ctx.spec.seed)
        step = _Step(ctx, flags)
        return measure(
            _STEP,
            step,
            counted(ctx, flags.steps - _WARMUP),
            _WARMUP,
            step.model,
            step.optimizer,
            whole=step.whole,
            data=ctx.engine.enable_data,
        )


def check(ctx: RuntimeContext, flags: Flags) -> list[ModelMemory]:
    """Returns what the model of each rank needs of HBM.

    Raises:
        UsageError: If it does not fit (M7).
    """

    def build(rank: int) -> tuple[Llama, torch.optim.AdamW]:
        del rank
        with tensor_parallel(flags.tp):
            return _build(flags)

    return require_fitting("transformer", ctx, build, flags.ranks)


def run(ctx: RuntimeContext) -> int:
    """Runs the bench."""
    flags = parse(ctx.argv)
    _text(flags)
    engine = ctx.engine
    machine = engine.topology.name
    layout = f"--tp {flags.tp} --dp {flags.dp}"
    require_ranks("transformer", flags.ranks, layout, machine, len(ctx.devices))
    engine.op_log.keep_records()

    check(ctx, flags)
    per_rank: dict[int, Measured] = {}

    def rank_main(rank: int) -> None:
        per_rank[rank] = worker(ctx, flags)

    ctx.multiprocessing.spawn(rank_main, nprocs=flags.ranks)
    section = results.Section(
        _STEP,
        flags.steps - _WARMUP,
        _WARMUP,
        [per_rank[rank] for rank in range(flags.ranks)],
        results.breakdown(ctx, _STEP),
    )
    given = {**asdict(flags), "text": str(flags.text)}
    ctx.results.append(results.document("transformer", ctx, given, [section]))
    if not ctx.quiet:
        kind = "on" if flags.sequence_parallel else "off"
        title = f"transformer on {machine}: tp {flags.tp}, dp {flags.dp}, sequence parallel {kind}"
        sizes = ("layers", "hidden", "ffn", "heads", "kv_heads", "sequence", "batch", "dtype")
        shape = {name.replace("_", " "): getattr(flags, name) for name in sizes}
        dials = results.dials(ctx, kernel=flags.kernel, seed=ctx.spec.seed)
        lines = results.header_lines(ctx, title, [shape, dials])
        print("\n".join([*lines, *results.section_lines(section, "nats/byte")]))
    return 0
