"""A training step of a published model on a cluster: its time, what is exposed, and memory.

Megatron-like: stages in 1F1B, interleaved if they have several chunks, layers in shards with
sequence parallelism, keys and values gathered over `cp`, experts with equal shares of tokens, a
distributed optimiser. Flags, after `--`: `--model`; `--ranks`, cut by `--tp`, `--cp`, `--pp` and
`--dp`, by default the rest; of the ranks of a stage, each `--ep` neighbours hold different experts;
`--virtual` chunks of a stage; `--microbatches` of a step, each of `--micro-batch` sequences of
`--sequence` tokens; `--layers`; `--overlap` sums gradients beside the last backward pass;
`--recompute full` computes activations again. It needs `kernbench run --data off`. With `--collapse
exact` few ranks of each stage are simulated and stand for all: so a cluster of any size takes the
time of one pipeline. MFU counts what the model needs, once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from benches.models import results
from benches.models.cluster_model import Cut, chunks_of, groups_of
from benches.models.flags import Parser, positive, require_multiple, require_ranks
from benches.models.gpt import forward_step
from benches.models.published import MODELS, Published
from benches.models.sharded_optimizer import ShardedOptimizer
from kernbench.errors import UsageError
from kernbench.pp import get_forward_backward_func
from kernbench.process.process import current_process
from kernbench.report.bounds import peak_flop
from kernbench.report.breakdown import COMMUNICATION, COMPUTE
from kernbench.report.intervals import Interval, difference, length, union
from kernbench.report.records import is_engine
from kernbench.runtime_api.context import RuntimeContext
from kernbench.units import PS_PER_S, format_bytes

GROUPS: Final = ("tp", "cp", "ep", "pp", "dp")
_MOST: Final = 131_072
_PS_PER_MS: Final = 10**9


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
    add("--tp", type=positive, metavar="N", help="ranks that share layers: 8, or 1 of deepseek-v3")
    add("--cp", type=positive, default=1, metavar="N", help="ranks that share sequences: 1")
    add("--ep", type=positive, default=1, metavar="N", help="ranks with different experts: 1")
    add("--pp", type=positive, default=1, metavar="N", help="stages: 1")
    add("--virtual", type=positive, default=1, metavar="N", help="chunks of a stage: 1")
    add("--dp", type=positive, metavar="N", help="batches: what is left of --ranks, or 1")
    add("--layers", type=positive, metavar="N", help="as the model has")
    add("--sequence", type=positive, metavar="N", help="tokens of a sequence: as in its training")
    add("--microbatches", type=positive, metavar="N", help="of a step: twice the stages")
    add("--micro-batch", type=positive, default=1, metavar="N", help="sequences of one: 1")
    add("--overlap", action="store_true", help="sums of gradients with the last backward pass")
    add("--recompute", choices=("none", "full"), default="none", help="none")
    found = flags.parse_args(argv)
    model = MODELS[found.model].cut(found.layers, found.sequence)
    found.tp = found.tp or (8 if model.latent is None else 1)
    cut = Cut(found.tp, found.cp, found.ep, found.pp, _data_parallel(found), found.virtual)
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
            f"cluster: --dp {found.dp}: expected --ranks {found.ranks} / (--tp x --cp x --pp "
            f"{others}) = {dp}"
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
    if cut.virtual > 1:
        chunks = cut.pp * cut.virtual
        if cut.pp == 1:
            raise UsageError(f"cluster: --virtual {cut.virtual}: expected --pp 2 or more")
        if chunks > model.layers + 2:
            raise UsageError(
                f"cluster: --pp {cut.pp} x --virtual {cut.virtual} = {chunks} chunks: expected at "
                f"most {model.layers + 2}: {model.layers} layers, the embedding and the output"
            )
        multiple("--microbatches", given.microbatches, "--pp", cut.pp)
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
        groups: What each group is for, by its name.
    """

    begin: int
    end: int
    memory: dict[str, int]
    groups: dict[str, str]


def worker(ctx: RuntimeContext, flags: Flags, rank: int) -> Measured:
    """Does a step on one rank."""
    dist.init_process_group("nccl")
    cut, model = flags.cut, flags.published
    groups = groups_of(cut, rank)
    memory: dict[str, int] = {}
    chunks = chunks_of(model, cut, cut.stage_of(rank), groups, flags.recompute)
    memory["weights"] = torch.cuda.memory_allocated()
    optimizer = ShardedOptimizer(torch.nn.ModuleList(chunks), groups, overlap=flags.overlap)
    memory["optimizer"] = optimizer.state_bytes
    memory["gradients"] = torch.cuda.memory_allocated() - memory["weights"] - optimizer.held_bytes
    chunks[0].config.no_sync_func = optimizer.no_sync
    shape = flags.micro_batch, flags.sequence // cut.cp
    ids = torch.zeros(*shape, dtype=torch.int64, device="cuda")
    alone = len(chunks) == 1
    step = get_forward_backward_func(cut.pp, None if alone else len(chunks))
    batches = [_batches(ids, flags.microbatches) for _ in chunks]
    torch.cuda.synchronize()
    begin = current_process().host.clock
    optimizer.zero_grad()
    step(
        forward_step_func=forward_step,
        data_iterator=batches[0] if alone else batches,
        model=chunks[0] if alone else chunks,
        num_microbatches=flags.microbatches,
        seq_length=flags.sequence,
        micro_batch_size=flags.micro_batch,
        pg_collection=groups,
    )
    optimizer.step()
    torch.cuda.synchronize()
    end = current_process().host.clock
    memory["peak"] = torch.cuda.max_memory_allocated()
    kinds = {"dp_cp": "dp", "expt_dp": "dp", **{name: name for name in GROUPS[:-1]}}
    names = {getattr(groups, field).group_name: name for field, name in kinds.items()}
    dist.destroy_process_group()
    return Measured(begin, end, memory, names)


def _batches(ids: torch.Tensor, count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for _ in range(count):
        yield ids, ids


@dataclass(frozen=True)
class Result:
    """What a step takes, as plain values.

    Attributes:
        step_ms: From the first rank's begin to the last rank's end, in milliseconds.
        mfu: Share of the peak in products of bfloat16 that the model's own products are.
        tokens_per_second: Of each rank.
        compute_ms: While a kernel runs, the mean of the ranks.
        exposed_ms: Communication of each group while no kernel runs, the mean of the ranks.
        idle_ms: Neither, the mean of the ranks.
        memory: Bytes by what they are for, of the rank with the highest peak.
        classes: Classes of ranks, each a name, the rank that runs, and how many it stands for.
    """

    step_ms: float
    mfu: float
    tokens_per_second: float
    compute_ms: float
    exposed_ms: dict[str, float]
    idle_ms: float
    memory: dict[str, int]
    classes: list[dict[str, Any]]


def _result(ctx: RuntimeContext, flags: Flags, measured: dict[int, Measured]) -> Result:
    cut = flags.cut
    begin = min(each.begin for each in measured.values())
    span = max(each.end for each in measured.values()) - begin
    weights = dict.fromkeys(measured, 1)
    classes = []
    for partition in ctx.collapsed:
        weights = {one.member: one.size for one in partition.classes}
        classes = [one._asdict() for one in partition.classes]
    groups = {rank: each.groups for rank, each in measured.items()}
    spent = _spent(ctx.engine.op_log.records, groups, begin)
    mean = {
        name: sum(weights[rank] * spent[rank][name] for rank in weights) / cut.ranks / _PS_PER_MS
        for name in ("compute", *GROUPS)
    }
    peak = peak_flop(ctx.engine.topology, ctx.devices[0])
    seconds = span / PS_PER_S
    step_ms = span / _PS_PER_MS
    exposed = {name: mean[name] for name in GROUPS}
    fullest = max(measured.values(), key=lambda each: each.memory["peak"])
    return Result(
        step_ms,
        flags.published.step_flop(flags.tokens) / (seconds * cut.ranks * peak),
        flags.tokens / seconds / cut.ranks,
        mean["compute"],
        exposed,
        step_ms - mean["compute"] - sum(exposed.values()),
        fullest.memory,
        classes,
    )


def _spent(
    records: Sequence[Any], groups: dict[int, dict[str, str]], begin: int
) -> dict[int, dict[str, int]]:
    """Returns the picoseconds of each rank in kernels, and in communication alone, by group.

    What is under way in two groups at once is counted for the first of `GROUPS`.

    Args:
        records: All records.
        groups: By rank, what each group is for, by its name.
        begin: Of the step, in picoseconds.
    """
    busy: dict[int, dict[str, list[Interval]]] = {
        rank: {name: [] for name in ("compute", *GROUPS)} for rank in groups
    }
    for record in records:
        if record.start < begin or is_engine(record.track) or record.rank not in busy:
            continue
        if record.category in COMPUTE:
            busy[record.rank]["compute"].append((record.start, record.end))
        elif record.category in COMMUNICATION:
            name = groups[record.rank].get((record.args or {}).get("group", ""))
            if name is not None:
                busy[record.rank][name].append((record.start, record.end))
    found: dict[int, dict[str, int]] = {}
    for rank, spans in busy.items():
        taken: list[Interval] = []
        found[rank] = {}
        for name in ("compute", *GROUPS):
            mine = union(spans[name])
            found[rank][name] = length(difference(mine, taken))
            taken = union([*taken, *mine])
    return found


def run(ctx: RuntimeContext) -> int:
    """Runs the bench."""
    flags = parse(ctx.argv)
    cut, machine = flags.cut, ctx.engine.topology.name
    layout = " ".join(f"--{name} {getattr(cut, name)}" for name in ("tp", "cp", "pp", "dp"))
    require_ranks("cluster", cut.ranks, layout, machine, len(ctx.devices))
    if ctx.engine.enable_data:
        raise UsageError("cluster: weights of such models do not fit a host", hint="--data off")
    if not ctx.engine.timed:
        raise UsageError("cluster: expected a fidelity that simulates time")
    ctx.engine.op_log.keep_records()
    ctx.roles = _roles(cut, ctx)
    measured: dict[int, Measured] = {}

    def rank_main(rank: int) -> None:
        measured[rank] = worker(ctx, flags, rank)

    ctx.multiprocessing.spawn(rank_main, nprocs=cut.ranks)
    result = _result(ctx, flags, measured)
    ctx.results.append(
        {
            "schema_version": results.SCHEMA_VERSION,
            "clock": "simulated",
            "bench": "cluster",
            "machine": machine,
            "flags": asdict(flags),
            "dials": results.dials(ctx, collapse=ctx.spec.collapse),
            "step": asdict(result),
        }
    )
    if not ctx.quiet:
        print("\n".join(_lines(ctx, flags, result)))
    return 0


def _roles(cut: Cut, ctx: RuntimeContext) -> Callable[[int], str]:
    """Returns the role of a rank: its stage and its part of the sequences, and at times more.

    All parts of a causal sequence have as many scores in the end, but not at each step of the ring.

    Where its node has several ranks of a group, rings go through a node from one NIC to another,
    and turn round in each second node, so that ranks with one place in two nodes do the same.
    """
    node = ctx.engine.topology.machine.system.sips.network.node
    period = 1 if node is None or cut.tp % node.size == 0 else 2 * node.size
    placed = period > 1 and cut.stage % period == 0

    def role(rank: int) -> str:
        told = [f"stage {cut.stage_of(rank)}"]
        if cut.cp > 1:
            told.append(f"part {cut.part_of(rank)} of the sequences")
        if placed:
            told.append(f"place {rank % period} of two nodes")
        return ", ".join(told)

    return role


def _lines(ctx: RuntimeContext, flags: Flags, result: Result) -> list[str]:
    cut = flags.cut
    shape = {name: getattr(cut, name) for name in ("ranks", *GROUPS)}
    batch = {
        "layers": flags.layers,
        "sequence": flags.sequence,
        "chunks of a stage": flags.cut.virtual,
        "microbatches": flags.microbatches,
        "sequences of each": flags.micro_batch,
        "tokens a step": flags.tokens,
    }
    title = f"cluster: {flags.model} on {ctx.engine.topology.name}"
    told = results.dials(ctx, collapse=ctx.spec.collapse, recompute=flags.recompute)
    return [
        *results.header_lines(ctx, title, [shape, batch, told]),
        *(f"# {partition}" for partition in ctx.collapsed),
        "#",
        f"step {result.step_ms:.3f} ms, MFU {result.mfu:.1%}, "
        f"{result.tokens_per_second:.0f} tokens/s a rank",
        "#",
        *results.table(
            [("of a step", ""), ("mean", "(ms)"), ("share", "(%)")],
            [
                [name, f"{spent:.3f}", f"{100 * spent / result.step_ms:.1f}"]
                for name, spent in (
                    ("kernels", result.compute_ms),
                    *((f"exposed {name}", spent) for name, spent in result.exposed_ms.items()),
                    ("idle", result.idle_ms),
                )
            ],
        ),
        "#",
        "# memory of the fullest rank: "
        + ", ".join(f"{name} {format_bytes(size)}" for name, size in result.memory.items()),
    ]
