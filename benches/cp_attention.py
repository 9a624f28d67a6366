"""Attention over sequences that ranks share, by each way to exchange them.

Flags, after `--`: `--cp` ranks share each of `--batch` sequences of `--seq` tokens, with `--heads`
heads of queries and `--kv-heads` of keys, `--head-dim` wide, and of values, `--value-dim` wide;
`--mask` and `--dtype`. `--comm` is one of `kernbench.cp`'s ways or `all`; in `a2a+p2p` rings of
neighbours are replaced by `--a2a-ranks` ranks that exchange heads. A forward and a backward pass
are timed after one that warms up. `sent` is counted in the log, `formula` computed from the sizes:
with t tokens a rank, keys and values are KV = t x kv-heads x (head-dim + value-dim) elements, and
queries and outputs QO as many with heads in place of kv-heads.
"""

from collections.abc import Iterable
from dataclasses import asdict, astuple, dataclass
from math import gcd
from typing import Any, Final, Literal

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from benches.models import results
from benches.models.flags import (
    COMM_TYPES,
    Parser,
    positive,
    require_every_rank,
    require_multiple,
    require_ranks,
)
from kernbench.cp import cp_attention
from kernbench.errors import UsageError
from kernbench.report import mean_of_ranks
from kernbench.report.breakdown import COMMUNICATION
from kernbench.report.intervals import length, union
from kernbench.report.records import is_engine
from kernbench.runtime_api.context import RuntimeContext
from kernbench.units import PS_PER_US

Direction = Literal["forward", "backward"]
DIRECTIONS: Final[tuple[Direction, ...]] = ("forward", "backward")

_DTYPES: Final = ("float64", "float32", "float16", "bfloat16")
_MIB: Final = 1 << 20


@dataclass(frozen=True)
class Flags:
    """What follows `--` on the command line."""

    cp: int
    comm: str
    a2a_ranks: int
    seq: int
    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    mask: str
    dtype: str

    @property
    def schemes(self) -> list[str]:
        """The ways that are measured: with `all`, those that the heads allow."""
        if self.comm != "all":
            return [self.comm]
        return [each for each in COMM_TYPES if not self.why_not(each)]

    def why_not(self, comm: str) -> str:
        """Returns why a way is left out of `all`; nothing if it is not."""
        if self.kv_heads % self.exchanging(comm):
            return f"--kv-heads {self.kv_heads} is no multiple of {self.exchanging(comm)}"
        return "with 1 rank that exchanges heads it is p2p" if self._is_ring(comm) else ""

    def _is_ring(self, comm: str) -> bool:
        return comm == "a2a+p2p" and self.a2a_ranks == 1

    def exchanging(self, comm: str) -> int:
        """Returns how many ranks exchange heads."""
        return {"a2a": self.cp, "a2a+p2p": self.a2a_ranks}.get(comm, 1)


def parse(argv: list[str]) -> Flags:
    """Returns the flags.

    Raises:
        UsageError: If one is unknown, or they do not fit each other.
    """
    flags = Parser(prog="cp_attention", allow_abbrev=False)
    add = flags.add_argument
    add("--cp", type=positive, default=4, metavar="N", help="ranks: 4")
    add("--comm", choices=("all", *COMM_TYPES), default="all", help="how they exchange: all")
    add("--a2a-ranks", type=positive, metavar="N", help="that exchange heads in a2a+p2p: the most "
        "that divide --kv-heads and leave a ring")  # fmt: skip
    add("--seq", type=positive, default=1024, metavar="N", help="tokens of a sequence: 1024")
    add("--batch", type=positive, default=1, metavar="N", help="sequences: 1")
    add("--heads", type=positive, default=8, metavar="N", help="of queries: 8")
    add("--kv-heads", type=positive, default=4, metavar="N", help="of keys and values: 4")
    add("--head-dim", type=positive, default=128, metavar="N", help="width of queries, keys: 128")
    add("--value-dim", type=positive, metavar="N", help="width of values: that of keys")
    add("--mask", choices=("causal", "no_mask"), default="causal", help="causal")
    add("--dtype", choices=_DTYPES, default="bfloat16", help="bfloat16")
    found = vars(flags.parse_args(argv))
    if found["a2a_ranks"] is not None and found["comm"] not in {"all", "a2a+p2p"}:
        raise UsageError("cp_attention: --a2a-ranks: expected --comm a2a+p2p or all")
    if found["value_dim"] is None:
        found["value_dim"] = found["head_dim"]
    if found["a2a_ranks"] is None:
        shared = gcd(found["cp"], found["kv_heads"])
        found["a2a_ranks"] = next(
            each
            for each in range(shared, 0, -1)
            if shared % each == 0 and each < max(2, found["cp"])
        )
    given = Flags(**found)
    _check(given)
    return given


def _check(given: Flags) -> None:
    def multiple(name: str, value: int, of: str, divisor: int) -> None:
        require_multiple("cp_attention", name, value, of, divisor)

    if given.cp == 1:
        raise UsageError("cp_attention: --cp 1: expected 2 or more")
    multiple("--seq", given.seq, "2 x --cp", 2 * given.cp)
    multiple("--heads", given.heads, "--kv-heads", given.kv_heads)
    if given.comm in {"all", "a2a+p2p"}:
        multiple("--cp", given.cp, "--a2a-ranks", given.a2a_ranks)
    if given.comm != "all":
        name = {"a2a": "--cp", "a2a+p2p": "--a2a-ranks"}.get(given.comm, "1:")
        multiple("--kv-heads", given.kv_heads, name, given.exchanging(given.comm))


def formula(flags: Flags, comm: str, direction: Direction) -> int:
    """Returns the bytes that a rank sends.

    Going back, gradients of 16-bit keys and values travel in float32 on rings and in `all_gather`,
    and queries and outputs do not: each is exchanged once more, in its own type.

    Args:
        flags: Sizes.
        comm: The way.
        direction: Forward or backward.
    """
    item: int = getattr(torch, flags.dtype).itemsize
    elements = flags.batch * flags.seq // flags.cp * (flags.head_dim + flags.value_dim)
    kv, qo = elements * flags.kv_heads, elements * flags.heads
    inner = flags.exchanging(comm)
    heads = (kv + qo) * item * (inner - 1) // inner
    ring = (flags.cp // inner - 1) * kv
    back = ring * max(item, 4) if direction == "backward" else 0
    return heads + ring * item + back


# One rank


def _worker(flags: Flags, name: str) -> None:
    """Times both directions on one rank."""
    dist.init_process_group("nccl")
    group: Any = dist.new_group(range(flags.cp))
    if name == "a2a+p2p":
        group = _levels(flags)
    torch.manual_seed(dist.get_rank())
    rows = (flags.batch, flags.seq // flags.cp)
    dtype = getattr(torch, flags.dtype)

    def drawn(heads: int, width: int) -> torch.Tensor:
        return torch.randn(*rows, heads, width, dtype=dtype, device="cuda", requires_grad=True)

    query = drawn(flags.heads, flags.head_dim)
    key = drawn(flags.kv_heads, flags.head_dim)
    value = drawn(flags.kv_heads, flags.value_dim)
    back = torch.randn(*rows, flags.heads, flags.value_dim, dtype=dtype, device="cuda")
    stream = torch.cuda.Stream()

    def forward() -> torch.Tensor:
        out: torch.Tensor = cp_attention(
            query,
            key,
            value,
            cp_group=group,
            cp_comm_type=name,
            attn_mask_type=flags.mask,
            cp_stream=stream,
        )
        return out

    def together() -> None:
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()

    forward().backward(back)
    together()
    with torch.profiler.record_function(f"{name} forward"):
        forward()
        torch.cuda.synchronize()
    # Outside of a range: what a backward pass issues belongs to those of its forward pass.
    out = forward()
    together()
    with torch.profiler.record_function(f"{name} backward"):
        out.backward(back)
        torch.cuda.synchronize()
    dist.destroy_process_group()


def _levels(flags: Flags) -> list[Any]:
    """Returns the ranks with which the calling one exchanges heads, and those of its ring."""
    inner = flags.a2a_ranks
    heads = [range(first, first + inner) for first in range(0, flags.cp, inner)]
    rings = [range(first, flags.cp, inner) for first in range(inner)]
    return [
        dist.new_subgroups_by_enumeration([[*ranks] for ranks in every])[0]
        for every in (heads, rings)
    ]


# What was measured


@dataclass(frozen=True)
class Times:
    """Simulated times of a pass, means of the ranks in microseconds.

    Attributes:
        us: From the first command to the end of the last.
        compute_us: A kernel runs.
        exposed_us: Communication that no kernel hides.
        idle_us: Nothing to do until the next command begins.
        communication_us: All communication, hidden or not.
        host_us: The host issues commands.
    """

    us: float
    compute_us: float
    exposed_us: float
    idle_us: float
    communication_us: float
    host_us: float


@dataclass(frozen=True)
class Pass:
    """A pass in one direction.

    Attributes:
        comm: How ranks exchange.
        direction: Forward or backward.
        sent_bytes: The most that a rank has sent; None if no time is simulated.
        formula_bytes: The same from the sizes.
        times: None if no time is simulated.
    """

    comm: str
    direction: Direction
    sent_bytes: int | None
    formula_bytes: int
    times: Times | None


def _measured(ctx: RuntimeContext, flags: Flags, comm: str, direction: Direction) -> Pass:
    engine, name = ctx.engine, f"{comm} {direction}"
    records = [
        each
        for each in engine.op_log.records
        if each.ranges == (name,) and each.category != "range"
    ]
    sent = dict.fromkeys(range(flags.cp), 0)
    for each in records:
        if each.category == "send":
            sent[each.rank] += each.args["bytes"]
    counted = max(sent.values()) if engine.timed else None
    times = _times(ctx, flags, name, records)
    return Pass(comm, direction, counted, formula(flags, comm, direction), times)


def _times(ctx: RuntimeContext, flags: Flags, name: str, records: Iterable[Any]) -> Times | None:
    """Returns where the time went.

    Args:
        ctx: Of the run.
        flags: Sizes.
        name: Of the range around the pass.
        records: Of the pass.
    """
    rows = results.breakdown(ctx, name)
    if rows is None:
        return None
    (mean,) = mean_of_ranks(rows)
    moving = [
        each for each in records if each.category in COMMUNICATION and not is_engine(each.track)
    ]
    communication = sum(
        length(union((each.start, each.end) for each in moving if each.rank == rank))
        for rank in range(flags.cp)
    )
    return Times(
        mean.device_ps / PS_PER_US,
        mean.compute_ps / PS_PER_US,
        mean.exposed_ps / PS_PER_US,
        mean.idle_ps / PS_PER_US,
        communication / flags.cp / PS_PER_US,
        mean.host_ps / PS_PER_US,
    )


def run(ctx: RuntimeContext) -> int:
    """Runs the bench."""
    flags = parse(ctx.argv)
    machine = ctx.engine.topology.name
    require_every_rank("cp_attention", ctx)
    require_ranks("cp_attention", flags.cp, f"--cp {flags.cp}", machine, len(ctx.devices))
    ctx.engine.op_log.keep_records()
    passes = []
    for comm in flags.schemes:
        ctx.multiprocessing.spawn(lambda _, comm=comm: _worker(flags, comm), nprocs=flags.cp)
        passes += [_measured(ctx, flags, comm, direction) for direction in DIRECTIONS]
    ctx.results.append(
        {
            "schema_version": results.SCHEMA_VERSION,
            "clock": "simulated" if ctx.engine.timed else None,
            "bench": "cp_attention",
            "machine": machine,
            "flags": asdict(flags),
            "dials": results.dials(ctx),
            "passes": [asdict(each) for each in passes],
        }
    )
    if not ctx.quiet:
        print("\n".join(_lines(ctx, flags, passes)))
    return 0


def _lines(ctx: RuntimeContext, flags: Flags, passes: Iterable[Pass]) -> list[str]:
    title = f"cp_attention on {ctx.engine.topology.name}: {flags.batch} x {flags.seq} tokens "
    title += f"shared by {flags.cp} ranks, {flags.mask}"
    sizes = ("heads", "kv_heads", "head_dim", "value_dim", "dtype")
    shape = {name.replace("_", " "): getattr(flags, name) for name in sizes}
    left_out = [each for each in COMM_TYPES if each not in flags.schemes and flags.comm == "all"]
    inner = flags.a2a_ranks
    names = ("time", "compute", "exposed", "idle", "(comm.)", "(host)")
    rows = [
        [
            each.comm,
            each.direction,
            *(["N/A"] * 6 if each.times is None else map("{:.1f}".format, astuple(each.times))),
            "N/A" if each.sent_bytes is None else f"{each.sent_bytes / _MIB:.3f}",
            f"{each.formula_bytes / _MIB:.3f}",
        ]
        for each in passes
    ]
    return [
        *results.header_lines(ctx, title, [shape, results.dials(ctx)]),
        *(f"# {each}: left out, {flags.why_not(each)}" for each in left_out),
        *(
            [f"# a2a+p2p: {inner} ranks exchange heads, rings of {flags.cp // inner}"]
            if "a2a+p2p" in flags.schemes
            else []
        ),
        "#",
        *results.table(
            [
                *(("comm", ""), ("pass", "")),
                *((name, "(us)") for name in names),
                *((name, "(MiB)") for name in ("sent", "formula")),
            ],
            rows,
        ),
        "# mean of the ranks; exposed: communication while no kernel runs; (comm.): all of it, and",
        "# (host) runs beside the device; sent: by a rank",
    ]
