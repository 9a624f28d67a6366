"""Training steps of a GPT that learns to predict the next byte of a text.

RMSNorm, rotary embedding, causal attention with grouped queries, SwiGLU, a vocabulary of 256 in
parts, AdamW. Flags, after `--`: ranks, whose product is their number: `--tp` share layers, `--cp`
sequences, exchanged by `--cp-comm-type`, `--pp` stages have layers of their own, `--dp` batches;
`--microbatches` of a step, `--schedule` and `--virtual` chunks for stages; `--layers`, `--hidden`,
`--ffn`, `--heads`, `--kv-heads`, `--qk-norm`, `--tied`; `--batch` sequences of `--sequence` bytes a
step, of all models together; `--steps`, `--lr`, `--clip`; `--dtype`, `--kernel` who multiplies,
`--sequence-parallel`; `--text`, a file to learn from, by default kernbench's README.
`kernbench run --seed` seeds weights and batches: losses do not depend on how the model is split.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import kernbench.torch as torch
from benches.models import results
from benches.models.flags import (
    COMM_TYPES,
    check_heads_exchanged,
    parser,
    positive,
    positive_number,
    require_every_rank,
    require_fitting,
    require_multiple,
    require_ranks,
)
from benches.models.gpt import GPTConfig, GPTModel
from benches.models.measure import Measured, Watch, counted, measure, model_parallel
from benches.models.training import Trainer
from kernbench.config.shipped import shipped
from kernbench.cp import get_batch_on_this_cp_rank
from kernbench.errors import UsageError
from kernbench.parallel import parallel_state
from kernbench.parallel.config import GemmKernel
from kernbench.parallel.evaluation import average_loss
from kernbench.parallel.groups import ProcessGroupCollection
from kernbench.pp import ideal_bubble_fraction, measured_bubble_fraction
from kernbench.pp.bubble import MICROBATCH
from kernbench.pp.schedules import ScheduleName
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.model_memory import ModelMemory

_VOCAB = 256
_STEP = "training step"
_WARMUP = 1
_PASSES = (MICROBATCH, "forward", "backward")
"""How the names of ranges begin that schedules make, around those of layers."""

# Not float16: AdamW's squares of gradients are 0 in it, unless somebody scales the loss.
_DTYPES = ("float64", "float32", "bfloat16")


@dataclass(frozen=True)
class Flags:
    """What follows `--` on the command line."""

    tp: int
    cp: int
    cp_comm_type: str
    a2a_ranks: int | None
    pp: int
    virtual: int
    schedule: ScheduleName
    microbatches: int
    dp: int
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    qk_norm: bool
    tied: bool
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
        return self.tp * self.cp * self.pp * self.dp

    @property
    def layout(self) -> dict[str, int]:
        """The ranks by name; `cp` and `pp` where they are more than one."""
        more = {name: getattr(self, name) for name in ("cp", "pp") if getattr(self, name) > 1}
        return {"tp": self.tp, **more, "dp": self.dp}

    @property
    def how(self) -> dict[str, object]:
        """How ranks share sequences and stages by name, where they do."""
        names = ("cp_comm_type",) * (self.cp > 1) + ("a2a_ranks",) * (self.a2a_ranks is not None)
        names += ("schedule", "virtual") * (self.pp > 1)
        names += ("microbatches",) * (max(self.pp, self.microbatches) > 1)
        return {name.replace("_", " "): getattr(self, name) for name in names}

    def model_parallel(self) -> dict[str, Any]:
        """Returns what `initialize_model_parallel` is given."""
        inner = self.a2a_ranks
        return {
            "pipeline_model_parallel_size": self.pp,
            "virtual_pipeline_model_parallel_size": self.virtual if self.virtual > 1 else None,
            "context_parallel_size": self.cp,
            "hierarchical_context_parallel_sizes": inner and [inner, self.cp // inner],
        }


def parse(argv: list[str]) -> Flags:
    """Returns the flags.

    Raises:
        UsageError: If one is unknown, or they do not fit each other.
    """
    flags = parser("transformer", _DTYPES)
    add = flags.add_argument
    add("--tp", type=positive, default=2, metavar="N", help="ranks that share layers: 2")
    add("--cp", type=positive, default=1, metavar="N", help="ranks that share sequences: 1")
    add("--cp-comm-type", choices=COMM_TYPES, default="p2p", help="how they exchange them: p2p")
    add("--a2a-ranks", type=positive, metavar="N", help="of a2a+p2p, for heads: 2")
    add("--pp", type=positive, default=1, metavar="N", help="stages: 1")
    add("--virtual", type=positive, default=1, metavar="N", help="chunks of a stage: 1")
    add("--schedule", choices=("1f1b", "gpipe"), default="1f1b", help="of stages: 1f1b")
    add("--microbatches", type=positive, metavar="N", help="of a step: as many as stages")
    add("--dp", type=positive, default=2, metavar="N", help="models, each with its batch: 2")
    add("--layers", type=positive, default=2, metavar="N", help="2")
    add("--hidden", type=positive, default=64, metavar="N", help="width between layers: 64")
    add("--ffn", type=positive, default=192, metavar="N", help="width inside an MLP: 192")
    add("--heads", type=positive, default=8, metavar="N", help="heads of queries: 8")
    add("--kv-heads", type=positive, default=4, metavar="N", help="of keys and values: 4")
    add("--qk-norm", action="store_true", help="norms queries and keys")
    add("--tied", action="store_true", help="one weight for embedding and output")
    add("--sequence", type=positive, default=64, metavar="N", help="bytes of a sequence: 64")
    add("--batch", type=positive, default=16, metavar="N", help="sequences a step: 16")
    add("--steps", type=positive, default=40, metavar="N", help="40; the first warms up")
    add("--lr", type=positive_number, default=6e-3, metavar="X", help="step width: 0.006")
    add("--clip", type=positive_number, default=1.0, metavar="X", help="gradients' norm: 1")
    add("--text", type=Path, default=shipped("README.md"), metavar="FILE", help="the README")
    found = vars(flags.parse_args(argv))
    if found["microbatches"] is None:
        found["microbatches"] = found["pp"]
    if found["a2a_ranks"] is None and found["cp_comm_type"] == "a2a+p2p":
        found["a2a_ranks"] = 2
    given = Flags(**found)
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
    if given.virtual > 1:
        if given.pp == 1:
            raise UsageError("transformer: --virtual: expected --pp 2 or more")
        if given.schedule != "1f1b":
            raise UsageError(
                f"transformer: --virtual: expected --schedule 1f1b, not {given.schedule}"
            )
        multiple("--microbatches", given.microbatches, "--pp", given.pp)
    multiple("--layers", given.layers, "--pp x --virtual", given.pp * given.virtual)
    multiple("--batch", given.batch, "--dp x --microbatches", given.dp * given.microbatches)
    if given.steps < 2:
        raise UsageError(f"transformer: --steps {given.steps}: expected 2 or more")
    if given.pp == 1 and given.schedule != "1f1b":
        raise UsageError(f"transformer: --schedule {given.schedule}: expected --pp 2 or more")
    if given.a2a_ranks is not None and given.cp_comm_type != "a2a+p2p":
        raise UsageError("transformer: --a2a-ranks: expected --cp-comm-type a2a+p2p")
    if given.cp > 1:
        multiple("--sequence", given.sequence, "2 x --cp", 2 * given.cp)
        check_heads_exchanged(
            "transformer", given.cp_comm_type, given.cp, given.a2a_ranks, given.kv_heads, given.tp
        )
    elif given.cp_comm_type != "p2p":
        raise UsageError(
            f"transformer: --cp-comm-type {given.cp_comm_type}: expected --cp 2 or more"
        )
    if given.sequence_parallel:
        multiple("--sequence", given.sequence, "--tp x --cp", given.tp * given.cp)
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


def _build(flags: Flags, seed: int) -> tuple[list[GPTModel], torch.optim.AdamW]:
    """Returns the chunks of the calling rank, and their optimiser."""
    config = GPTConfig(
        num_layers=flags.layers,
        hidden_size=flags.hidden,
        ffn_hidden_size=flags.ffn,
        num_attention_heads=flags.heads,
        num_query_groups=flags.kv_heads,
        vocab_size=_VOCAB,
        seq_length=flags.sequence,
        qk_layernorm=flags.qk_norm,
        share_embeddings_and_output_weights=flags.tied,
        cp_comm_type=flags.cp_comm_type,
        init_seed=seed,
        tensor_model_parallel_size=flags.tp,
        context_parallel_size=flags.cp,
        pipeline_model_parallel_size=flags.pp,
        virtual_pipeline_model_parallel_size=flags.virtual if flags.virtual > 1 else None,
        pipeline_dtype=getattr(torch, flags.dtype),
        sequence_parallel=flags.sequence_parallel,
        params_dtype=getattr(torch, flags.dtype),
        gradient_accumulation_fusion=flags.dtype != "bfloat16",  # which products cannot add to
        kernel=flags.kernel,
    )
    groups = ProcessGroupCollection.use_mpu_process_groups()
    stages = [n if flags.virtual > 1 else None for n in range(flags.virtual)]
    chunks = [GPTModel(config, groups, stage) for stage in stages]
    return chunks, torch.optim.AdamW(_whole(chunks).parameters(), lr=flags.lr)


def _whole(chunks: list[GPTModel]) -> torch.nn.Module:
    return chunks[0] if len(chunks) == 1 else torch.nn.ModuleList(chunks)


class _Step:
    """A training step of one rank."""

    def __init__(self, ctx: RuntimeContext, flags: Flags) -> None:
        chunks, self.optimizer = _build(flags, ctx.spec.seed)
        self.model = _whole(chunks)
        self._flags, self._seed, self._text = flags, ctx.spec.seed, _text(flags)
        self._number = 0
        self._groups = chunks[0].pg_collection
        schedule = flags.schedule if flags.pp > 1 and flags.virtual == 1 else None
        self._trainer = Trainer(chunks, self.optimizer, flags.clip, schedule)

    def _batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yields this rank's ids and the ones that follow them, `[b, s/cp]`, by microbatch."""
        flags, text = self._flags, self._text
        numbers = np.random.default_rng([self._seed, self._number])
        starts = numbers.integers(0, len(text) - flags.sequence, flags.batch)
        mine = np.split(starts, flags.dp)[parallel_state.get_data_parallel_rank()]
        windows = text[mine[:, None] + np.arange(flags.sequence + 1)]
        batch = get_batch_on_this_cp_rank(
            {
                "tokens": torch.from_numpy(windows[:, :-1].copy()),
                "labels": torch.from_numpy(windows[:, 1:].copy()),
            },
            self._groups.cp,
        )
        ids, labels = (
            batch[name].cuda().chunk(flags.microbatches) for name in ("tokens", "labels")
        )
        return zip(ids, labels, strict=True)

    def __call__(self, watch: Watch) -> torch.Tensor:
        self._number += 1
        with torch.profiler.record_function("batch"):
            batches = [*self._batches()]
        return self._trainer.step(batches, watch.forward)

    def whole(self, reports: torch.Tensor) -> torch.Tensor:
        return average_loss(reports, self._groups)


def worker(ctx: RuntimeContext, flags: Flags) -> Measured:
    """Trains on one rank."""
    with model_parallel(flags.tp, **flags.model_parallel()):
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

    def build(rank: int) -> tuple[torch.nn.Module, torch.optim.AdamW]:
        del rank
        with model_parallel(flags.tp, **flags.model_parallel()):
            chunks, optimizer = _build(flags, ctx.spec.seed)
            return _whole(chunks), optimizer

    return require_fitting("transformer", ctx, build, flags.ranks)


def run(ctx: RuntimeContext) -> int:
    """Runs the bench."""
    flags = parse(ctx.argv)
    _text(flags)
    engine = ctx.engine
    machine = engine.topology.name
    layout = " ".join(f"--{name} {size}" for name, size in flags.layout.items())
    require_every_rank("transformer", ctx)
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
        results.breakdown(ctx, _STEP, _PASSES),
        _bubble(ctx, flags),
    )
    given = {**asdict(flags), "text": str(flags.text)}
    ctx.results.append(results.document("transformer", ctx, given, [section]))
    if not ctx.quiet:
        kind = "on" if flags.sequence_parallel else "off"
        layout = ", ".join(f"{name} {size}" for name, size in flags.layout.items())
        title = f"transformer on {machine}: {layout}, sequence parallel {kind}"
        sizes = ("layers", "hidden", "ffn", "heads", "kv_heads", "sequence", "batch", "dtype")
        shape = {name.replace("_", " "): getattr(flags, name) for name in sizes}
        dials = results.dials(ctx, kernel=flags.kernel, seed=ctx.spec.seed)
        how = [flags.how] if flags.how else []
        lines = results.header_lines(ctx, title, [shape, *how, dials])
        print("\n".join([*lines, *results.section_lines(section, "nats/byte")]))
    return 0


def _bubble(ctx: RuntimeContext, flags: Flags) -> results.Bubble | None:
    """Returns how long stages wait, if there are several."""
    rows = results.breakdown(ctx, _STEP)
    if flags.pp == 1 or rows is None:
        return None
    return results.Bubble(
        ideal_bubble_fraction(flags.pp, flags.microbatches, flags.virtual),
        measured_bubble_fraction(rows),
    )
