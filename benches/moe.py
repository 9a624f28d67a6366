"""A layer of experts that ranks share, by each routing: what imbalance costs.

Flags, after `--`: `--ep` ranks hold different ones of `--experts` experts, and `--etp` ranks parts
of the same ones. Each of all these ranks has `--tokens` tokens, `--hidden` wide, each of which
passes `--topk` experts, `--ffn` wide. `--dispatcher` is `alltoall` or `allgather`, `--routing` a
name that `kernbench run --routing` takes, or `all`: `W0` to `W7`; without it, that of the run, or
else all. A forward and a backward pass are timed after one that warms up. `dispatch`, `experts` and
`combine` are times of the forward pass in which its commands are under way, exchanges from when a
rank comes to them; all are means of the ranks. `exposed` is communication of both passes while no
kernel runs. `sent` is counted in the log, `formula` computed from the routing: with r rows that
leave a rank or come to it, each way sends r x hidden, and with alltoall a weight for each row that
leaves, forward, or comes, backward; forward, the counts of all experts go around.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from benches.models import results
from benches.models.flags import (
    Parser,
    positive,
    require_every_rank,
    require_multiple,
    require_ranks,
)
from kernbench import extend
from kernbench.ep import MoEConfig, MoELayer
from kernbench.errors import UsageError
from kernbench.extend import Asked, Routing
from kernbench.parallel import parallel_state
from kernbench.report.breakdown import COMMUNICATION, COMPUTE
from kernbench.report.intervals import difference, length, union
from kernbench.report.records import is_engine
from kernbench.runtime_api.context import RuntimeContext
from kernbench.units import PS_PER_US

ALL: Final = tuple(f"W{number}" for number in range(8))
_PHASES: Final = ("dispatch", "experts", "combine")
_MIB: Final = 1 << 20
_ITEM: Final = 2  # bfloat16


@dataclass(frozen=True)
class Flags:
    """What follows `--` on the command line."""

    ep: int
    etp: int
    experts: int
    topk: int
    hidden: int
    ffn: int
    tokens: int
    dispatcher: str
    routing: str

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.ep * self.etp

    @property
    def names(self) -> Sequence[str]:
        """The routings that are measured."""
        return ALL if self.routing == "all" else (self.routing,)


def parse(argv: list[str], of_run: str | None = None) -> Flags:
    """Returns the flags.

    Args:
        argv: What follows `--`.
        of_run: The routing of the run, which takes the place of the flag; None for none.

    Raises:
        UsageError: If one is unknown, or they do not fit each other or the run.
    """
    flags = Parser(prog="moe", allow_abbrev=False)
    add = flags.add_argument
    add("--ep", type=positive, default=8, metavar="N", help="ranks with different experts: 8")
    add("--etp", type=positive, default=1, metavar="N", help="ranks with parts of an expert: 1")
    add("--experts", type=positive, default=64, metavar="N", help="of all ranks: 64")
    add("--topk", type=positive, default=4, metavar="N", help="experts that a token passes: 4")
    add("--hidden", type=positive, default=4096, metavar="N", help="width of tokens: 4096")
    add("--ffn", type=positive, default=2048, metavar="N", help="width of experts: 2048")
    add("--tokens", type=positive, default=4096, metavar="N", help="of each rank: 4096")
    add("--dispatcher", choices=("alltoall", "allgather"), default="alltoall", help="alltoall")
    add("--routing", metavar="NAME|FILE", help="what tokens choose: all, W0 to W7, or the run's")
    read = flags.parse_args(argv)
    if None not in (read.routing, of_run):
        raise UsageError(
            f"moe: --routing {read.routing} after --, {of_run} before it: expected one of them"
        )
    read.routing = read.routing or of_run or "all"
    given = Flags(**vars(read))
    require_multiple("moe", "--experts", given.experts, "--ep", given.ep)
    require_multiple("moe", "--ffn", given.ffn, "--etp", given.etp)
    if given.topk > given.experts // 2:
        raise UsageError(
            f"moe: --topk {given.topk}: expected at most half of --experts {given.experts}: W5 "
            "has no more"
        )
    return given


def _worker(flags: Flags, routing: Routing) -> None:
    """Times both passes on one rank."""
    dist.init_process_group("nccl")
    parallel_state.initialize_model_parallel(
        expert_model_parallel_size=flags.ep, expert_tensor_parallel_size=flags.etp
    )
    config = MoEConfig(
        hidden_size=flags.hidden,
        moe_ffn_hidden_size=flags.ffn,
        num_moe_experts=flags.experts,
        moe_router_topk=flags.topk,
        moe_token_dispatcher_type=flags.dispatcher,
        params_dtype=torch.bfloat16,
    )
    layer = MoELayer(config)
    layer.router.routing = routing
    x = torch.randn(flags.tokens, flags.hidden, dtype=torch.bfloat16, device="cuda")
    x.requires_grad_()
    grad = torch.ones_like(x)

    def together() -> None:
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()

    layer(x)[0].backward(grad)
    together()
    with torch.profiler.record_function("forward"):
        out, _ = layer(x)
        torch.cuda.synchronize()
    together()
    with torch.profiler.record_function("backward"):
        out.backward(grad)
        torch.cuda.synchronize()
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


@dataclass(frozen=True)
class Row:
    """What was measured of a routing; times in simulated microseconds.

    Attributes:
        routing: Its name.
        overload: Rows of the busiest rank over the mean.
        forward_us: The forward pass, the mean of the ranks; so are the others.
        dispatch_us: Of it, until a rank has the rows of its experts.
        experts_us: Of it, products and what is between.
        combine_us: Of it, until each token has its sum.
        backward_us: The backward pass.
        exposed_us: Communication of both while no kernel runs.
        sent_bytes: The most that a rank has sent in both.
        formula_bytes: The same from the routing; None where ranks share experts.
    """

    routing: str
    overload: float
    forward_us: float
    dispatch_us: float
    experts_us: float
    combine_us: float
    backward_us: float
    exposed_us: float
    sent_bytes: int
    formula_bytes: int | None


def counts_of(flags: Flags, routing: Routing, step: int) -> np.ndarray[Any, Any]:
    """Returns the rows from each rank to each rank of `--ep`, in a step."""
    rows = []
    for rank in range(flags.ranks):
        asked = Asked(step, 0, rank, flags.tokens, flags.experts, flags.topk)
        rows.append(routing.choices(asked).counts.reshape(flags.ep, -1).sum(1))
    return np.array(rows)


def formula(flags: Flags, routing: Routing) -> int | None:
    """Returns the most bytes that a rank sends in both passes; None where ranks share experts."""
    if flags.etp > 1:
        return None
    others, counts = flags.ep - 1, flags.experts * 8
    if flags.dispatcher == "allgather":
        # Weights go with tokens, sums come back; and back; the map goes around as bytes.
        each = 2 * (2 * flags.hidden + flags.experts) * _ITEM + flags.experts
        return others * flags.tokens * each
    rows = counts_of(flags, routing, 1)
    own = np.diag(rows)
    leave, come = rows.sum(1) - own, rows.sum(0) - own
    each_way = (leave + come) * flags.hidden * _ITEM
    return int((2 * each_way + (leave + come) * _ITEM).max()) + others * counts


def _measured(ctx: RuntimeContext, flags: Flags, routing: Routing, since: int) -> Row:
    records = ctx.engine.op_log.records[since:]
    of_rank: list[dict[str, float]] = []
    for rank in range(flags.ranks):
        mine = [each for each in records if each.rank == rank and not is_engine(each.track)]
        of_rank.append(_times(mine) | {"sent": _sent(records, mine, rank)})
    mean = {name: float(np.mean([each[name] for each in of_rank])) for name in of_rank[0]}
    received = counts_of(flags, routing, 1).sum(0)
    return Row(
        routing.name,
        float(received.max() / received.mean()),
        mean["forward"],
        mean["dispatch"],
        mean["experts"],
        mean["combine"],
        mean["backward"],
        mean["exposed"],
        int(max(each["sent"] for each in of_rank)),
        formula(flags, routing),
    )


def _window(records: Iterable[Any], name: str) -> tuple[int, int]:
    return next((each.start, each.end) for each in records if each.name == name)


def _times(mine: Sequence[Any]) -> dict[str, float]:
    """Returns the times of a rank's passes and phases."""
    found, exposed = {}, 0
    for name in ("forward", "backward"):
        first, last = _window((each for each in mine if each.category == "range"), name)
        inside = [
            each
            for each in mine
            if each.start >= first and each.end <= last and each.category in _WORK
        ]
        spans = [(each.start, each.end) for each in inside]
        found[name] = (max(end for _, end in spans) - first) / PS_PER_US
        moving = union((each.start, each.end) for each in inside if each.category in COMMUNICATION)
        computing = union((each.start, each.end) for each in inside if each.category in COMPUTE)
        exposed += length(difference(moving, computing))
        if name == "forward":
            for phase in _PHASES:
                own = [each for each in inside if each.ranges[-1] == f"moe 0 {phase}"]
                busy = length(union((each.start, each.end) for each in own))
                found[phase] = busy / PS_PER_US
    return {**found, "exposed": exposed / PS_PER_US}


_WORK: Final = (*COMPUTE, *COMMUNICATION, "copy")


def _sent(records: Sequence[Any], mine: Sequence[Any], rank: int) -> int:
    windows = [
        _window((each for each in mine if each.category == "range"), name)
        for name in ("forward", "backward")
    ]
    return sum(
        each.args["bytes"]
        for each in records
        if each.rank == rank
        and each.category == "send"
        and any(first <= each.issued <= last for first, last in windows)
    )


def run(ctx: RuntimeContext) -> int:
    """Runs the bench."""
    flags = parse(ctx.argv, ctx.spec.routing)
    machine = ctx.engine.topology.name
    require_every_rank("moe", ctx)
    require_ranks("moe", flags.ranks, f"--ep x --etp {flags.ranks}", machine, len(ctx.devices))
    if not ctx.engine.timed:
        raise UsageError("moe: expected a fidelity that simulates time")
    ctx.engine.op_log.keep_records()
    rows = []
    for name in flags.names:
        routing, since = extend.routing_of(name), len(ctx.engine.op_log.records)
        ctx.multiprocessing.spawn(lambda _, one=routing: _worker(flags, one), nprocs=flags.ranks)
        rows.append(_measured(ctx, flags, routing, since))
    ctx.results.append(
        {
            "schema_version": results.SCHEMA_VERSION,
            "clock": "simulated",
            "bench": "moe",
            "machine": machine,
            "flags": asdict(flags),
            "dials": results.dials(ctx),
            "routings": [asdict(row) for row in rows],
        }
    )
    if not ctx.quiet:
        print("\n".join(_lines(ctx, flags, rows)))
    return 0


def _lines(ctx: RuntimeContext, flags: Flags, rows: Iterable[Row]) -> list[str]:
    title = f"moe on {ctx.engine.topology.name}: {flags.experts} experts shared by {flags.ranks} "
    title += f"ranks, {flags.dispatcher}"
    sizes = {name: getattr(flags, name) for name in ("tokens", "topk", "hidden", "ffn", "etp")}
    times = ("forward", "dispatch", "experts", "combine", "backward", "exposed")
    return [
        *results.header_lines(ctx, title, [sizes, results.dials(ctx)]),
        "#",
        *results.table(
            [
                *(("routing", ""), ("max/mean", "")),
                *((name, "(us)") for name in times),
                *((name, "(MiB)") for name in ("sent", "formula")),
            ],
            [
                [
                    row.routing,
                    f"{row.overload:.3f}",
                    *(f"{getattr(row, f'{name}_us'):.1f}" for name in times),
                    f"{row.sent_bytes / _MIB:.3f}",
                    "N/A" if row.formula_bytes is None else f"{row.formula_bytes / _MIB:.3f}",
                ]
                for row in rows
            ],
        ),
        "# mean of the ranks; dispatch, experts, combine: of forward; exposed: communication of",
        "# both passes while no kernel runs; sent: the most of a rank, both passes",
    ]
