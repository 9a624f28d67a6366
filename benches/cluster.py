"""A training step of a published model on a cluster: its time, what is exposed, and memory.

Megatron-like: 1F1B pipeline, weights of tensor-parallel ranks in shards with sequence parallelism,
keys and values of context-parallel ranks gathered, experts of equal shares, a distributed optimiser
whose sums of gradients run beside the last backward pass. Flags, after `--`: `--model`; `--ranks`,
cut by `--tp`, `--cp`, `--pp` and `--dp` (the rest, if it is not given), of a stage `--ep` of which
hold different experts; `--microbatches` of a step, each of `--micro-batch` sequences of
`--sequence` tokens; `--layers`; `--recompute full` computes activations again. Without values, so
`kernbench run --data off`; `--collapse exact` simulates one rank of each stage, which stands for
all, and so takes a cluster of any size. MFU counts what the model needs, not what is computed again.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from benches.models.cluster_model import Cut, groups_of, layers_of, model_of
from benches.models.flags import Parser, positive, require_multiple, require_ranks
from benches.models.gpt import forward_step
from benches.models.published import MODELS, Published
from benches.models.sharded_optimizer import ShardedOptimizer
from kernbench.errors import UsageError
from kernbench.hw.attention import peak_of
from kernbench.pp import get_forward_backward_func
from kernbench.report.breakdown import COMMUNICATION, COMPUTE
from kernbench.report.intervals import Interval, difference, length, union
from kernbench.report.records import is_engine
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.op_log import Record
from kernbench.units import PS_PER_S, format_bytes, format_time

GROUPS: Final = ("tp", "cp", "ep", "pp", "dp")
_MOST: Final = 131_072


@dataclass(frozen=True)
class Flags:
    """What follows `--` on the command line."""

    model: str
    cut: Cut
    layers: int
    sequence: int
    microbatches: int
    micro_batch: int
    recompute: str
    overlap: bool

    @property
    def published(self) -> Published:
        """The model, with the numbers of layers and tokens that were asked for."""
        return MODELS[self.model].cut(self.layers, self.sequence)

    @property
    def tokens(self) -> int:
        """Of the whole batch of a step."""
        return self.cut.dp * self.microbatches * self.micro_batch * self.sequence


def parse(argv: list[str]) -> Flags:
    """Returns the flags.

    Raises:
        UsageError: If one is unknown, or they do not fit each other or the model.
    """
    flags = Parser(prog="cluster", allow_abbrev=False)
    add = flags.add_argument
    add("--model", choices=[*MODELS], default="llama3-70b", help="llama3-70b")
    add("--ranks", type=positive, metavar="N", help="of all stages; tp x cp x pp x dp")
    add("--tp", type=positive, default=8, metavar="N", help="ranks that share layers: 8")
    add("--cp", type=positive, default=1, metavar="N", help="ranks that share sequences: 1")
    add("--ep", type=positive, default=1, metavar="N", help="ranks with different experts: 1")
    add("--pp", type=positive, default=1, metavar="N", help="stages: 1")
    add("--dp", type=positive, metavar="N", help="batches: what is left of --ranks, or 1")
    add("--layers", type=positive, metavar="N", help="as the model has")
    add("--sequence", type=positive, metavar="N", help="tokens of a sequence: as in its training")
    add("--microbatches", type=positive, metavar="N", help="of a step: twice the stages")
    add("--micro-batch", type=positive, default=1, metavar="N", help="sequences of one: 1")
    add("--overlap", action="store_true", help="sums of gradients with the last backward pass")
    add("--recompute", choices=("none", "full"), default="none", help="none")
    found = flags.parse_args(argv)
    model = MODELS[found.model].cut(found.layers, found.sequence)
    cut = Cut(found.tp, found.cp, found.ep, found.pp, _data_parallel(found))
    given = Flags(
        found.model,
        cut,
        model.layers,
        model.sequence,
        found.microbatches or 2 * cut.pp,
        found.micro_batch,
        found.recompute,
        found.overlap,
    )
    _check(given, model)
    return given


def _data_parallel(found: Any) -> int:
    """Returns the number of batches of their own."""
    others = found.tp * found.cp * found.pp
    if found.ranks is None:
        return int(found.dp or 1)
    require_multiple("cluster", "--ranks", found.ranks, "--tp x --cp x --pp", others)
    dp: int = found.ranks // others
    if found.dp not in {None, dp}:
        raise UsageError(
            f"cluster: --dp {found.dp}: --ranks {found.ranks} over --tp x --cp x --pp {others} is {dp}"
        )
    return dp


def _check(given: Flags, model: Published) -> None:
    cut = given.cut

    def multiple(name: str, value: int, of: str, divisor: int) -> None:
        require_multiple("cluster", name, value, of, divisor)

    if cut.ranks > _MOST:
        raise UsageError(f"cluster: {cut.ranks} ranks: expected at most {_MOST}")
    multiple(f"the heads of keys of {given.model},", model.kv_heads, "--tp", cut.tp)
    multiple("--sequence", given.sequence, "2 x --cp x --tp", 2 * cut.cp * cut.tp)
    if model.layers < max(2 * cut.pp - 2, 1):
        raise UsageError(
            f"cluster: --pp {cut.pp}: {model.layers} layers, of which each stage has one or more; "
            "the embedding and the output count as one each"
        )
    if model.latent is not None and cut.tp > 1:
        raise UsageError(
            f"cluster: --tp {cut.tp}: the attention of {given.model} is not cut; expected --tp 1"
        )
    if model.experts is None:
        if cut.ep > 1:
            raise UsageError(f"cluster: --ep {cut.ep}: {given.model} has no experts")
        return
    multiple(f"the experts of {given.model},", model.experts.count, "--ep", cut.ep)
    multiple("the ranks of a stage,", cut.stage, "--ep", cut.ep)
    rows = given.micro_batch * given.sequence // cut.cp * model.experts.topk
    multiple("choices of a rank's tokens,", rows, "the experts", model.experts.count)


@dataclass(frozen=True)
class Measured:
    """What a rank has measured.

    Attributes:
        begin: Of the step, in picoseconds.
        end: Of the step.
        memory: Bytes by what they are for.
    """

    begin: int
    end: int
    memory: dict[str, int]


def worker(ctx: RuntimeContext, flags: Flags, rank: int) -> Measured:
    """Does a step on one rank."""
    dist.init_process_group("nccl")
    cut, model = flags.cut, flags.published
    groups = groups_of(cut, rank)
    memory: dict[str, int] = {}
    stage = model_of(model, cut, cut.stage_of(rank), groups, flags.recompute)
    memory["weights"] = torch.cuda.memory_allocated()
    optimizer = ShardedOptimizer(stage, groups, overlap=flags.overlap)
    memory["gradients"] = torch.cuda.memory_allocated() - memory["weights"]
    stage.config.no_sync_func = optimizer.no_sync
    shape = flags.micro_batch, flags.sequence // cut.cp
    ids = torch.zeros(*shape, dtype=torch.int64, device="cuda")
    step = get_forward_backward_func(cut.pp)
    torch.cuda.synchronize()
    begin = ctx.clock()
    optimizer.zero_grad()
    step(
        forward_step_func=forward_step,
        data_iterator=_batches(ids, flags.microbatches),
        model=stage,
        num_microbatches=flags.microbatches,
        seq_length=flags.sequence,
        micro_batch_size=flags.micro_batch,
        pg_collection=groups,
    )
    optimizer.step()
    torch.cuda.synchronize()
    return Measured(begin, ctx.clock(), memory)


def _batches(ids: torch.Tensor, count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for _ in range(count):
        yield ids, ids
