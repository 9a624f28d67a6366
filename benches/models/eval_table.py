"""Megatron-Bridge's table of evaluation with ranks that share sequences, measured and simulated.

The rows are those of pull request 3755: Qwen3-4B with fewer layers, 4 sequences an evaluation, one
at a time. `dp` is what ranks are left, and in `as measured` both layouts evaluate as many
microbatches as the one of training has, `4 / dp`: with two ranks a sequence that is half of the
samples. `same samples` evaluates all of them.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, NamedTuple

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from benches.models import results
from benches.models.evaluation import evaluate
from benches.models.gpt import GPTConfig, GPTModel
from benches.models.groups import lay_out
from kernbench.errors import UsageError
from kernbench.parallel.evaluation import microbatches
from kernbench.parallel.rebinding import eval_cp_context
from kernbench.pp import ideal_bubble_fraction
from kernbench.report import mean_of_ranks, range_breakdown
from kernbench.runtime_api.context import RuntimeContext
from kernbench.units import PS_PER_US

MACHINE: Final = "h200x8"

FIXED_MS: Final = 3.6
"""What an evaluation takes beside the model: data, collectives and Python around the schedule."""

CONSTANTS: Final = {
    "system.host.dispatch": "35 us",
    "system.host.dispatch_of.batch": "800 us",
    "system.host.eager": "{}",
}
"""Overrides of the machine file, what a command costs the host in Megatron-Core's eager modules.

A command stands for its views, too. A batch of messages stands for all of the host's work around a
step of a ring, and messages between
stages cost as much. The first two and
`FIXED_MS` are fitted on the times of the rows without a note: root mean square error 3 %. Links,
products of matrices and attention are as measured on an H200.
"""

_SAMPLES: Final = 4
_PS_PER_MS: Final = 1000 * PS_PER_US


class Row(NamedTuple):
    """A row as measured.

    Attributes:
        gpus: Ranks.
        sequence: Tokens of a sequence.
        layers: Of the model.
        tp: Ranks that share a layer.
        pp: Stages.
        ms: Time of an evaluation with one rank a sequence, and with two.
        note: Why the constants are not fitted on it; empty if they are.
    """

    gpus: int
    sequence: int
    layers: int
    tp: int
    pp: int
    ms: tuple[float, float]
    note: str = ""

    def microbatches(self, cp: int) -> int:
        """Returns in how many a rank evaluates all samples, if `cp` ranks share a sequence."""
        return microbatches(_SAMPLES, 1, self.gpus // (self.tp * cp * self.pp))


ROWS: Final = (
    Row(4, 1024, 2, 2, 1, (14.9, 20.7), "earlier commit"),
    Row(4, 8192, 4, 2, 1, (25.3, 33.7), "earlier commit"),
    Row(8, 1024, 4, 2, 1, (8.9, 12.4)),
    Row(8, 8192, 8, 2, 1, (26.3, 21.3)),
    Row(8, 8192, 8, 2, 2, (39.5, 32.2), "held out"),
    Row(8, 8192, 8, 1, 4, (53.1, 32.3)),
    Row(8, 16384, 8, 2, 2, (82.5, 46.5)),
    Row(8, 16384, 8, 1, 4, (117.7, 62.8), "held out"),
)

Arm = Literal["one", "as measured", "same samples"]
ARMS: Final[tuple[Arm, ...]] = ("one", "as measured", "same samples")
"""One rank a sequence; two, with as many microbatches; two, with all samples."""


@dataclass(frozen=True)
class Spent:
    """A simulated evaluation; times are means of the ranks in milliseconds.

    Attributes:
        ms: From its begin to its end.
        microbatches: How many a rank evaluates.
        bubble: Which part of it stages wait, if all take the same time.
        compute_ms: A kernel runs.
        exposed_ms: Communication that no kernel hides.
        host_ms: The host issues commands.
    """

    ms: float
    microbatches: int
    bubble: float
    compute_ms: float
    exposed_ms: float
    host_ms: float


def simulate(
    ctx: RuntimeContext, row: Row, constants: Sequence[str], fixed_ms: float
) -> dict[Arm, Spent]:
    """Returns an evaluation of each kind.

    Args:
        ctx: Whose settings are taken over, but for the machine and data.
        row: The layout and the sizes.
        constants: Overrides of the machine file.
        fixed_ms: Time of an evaluation that does not depend on the model.
    """
    spec = replace(
        ctx.spec, topology=MACHINE, overrides=(*constants, *ctx.spec.overrides), data=False
    )
    with RuntimeContext(spec) as inner:
        inner.engine.op_log.keep_records()
        inner.multiprocessing.spawn(_worker, args=(row,), nprocs=row.gpus)
        return {arm: _spent(inner, row, arm, fixed_ms) for arm in ARMS}


def ratio(spent: dict[Arm, Spent], arm: Arm) -> float:
    """Returns by how much two ranks a sequence are faster than one."""
    return spent["one"].ms / spent[arm].ms


def ideal_ratio(row: Row) -> float:
    """Returns the ratio of equal samples if only device time counts and sharing is perfect."""
    one, two = (row.microbatches(cp) + row.pp - 1 for cp in (1, 2))
    return 2 * one / two


def _microbatches(row: Row, arm: Arm) -> int:
    """Returns how many a rank evaluates; `as measured` has those of the layout of training."""
    return row.microbatches(2 if arm == "same samples" else 1)


def _worker(_: int, row: Row) -> None:
    dist.init_process_group("nccl")
    train, other = (lay_out(row.tp, cp, row.pp) for cp in (1, 2))
    padding = 128 * row.tp
    config = GPTConfig(
        num_layers=row.layers,
        hidden_size=2560,
        ffn_hidden_size=9728,
        num_attention_heads=32,
        num_query_groups=8,
        kv_channels=128,
        vocab_size=-(-10_000 // padding) * padding,
        seq_length=row.sequence,
        qk_layernorm=True,
        layernorm_epsilon=1e-6,
        rotary_base=1e6,
        tensor_model_parallel_size=row.tp,
        context_parallel_size=1,
        pipeline_model_parallel_size=row.pp,
        pipeline_dtype=torch.bfloat16,
        params_dtype=torch.bfloat16,
        sequence_parallel=row.tp > 1,
        perform_initialization=False,
        kernel="library",
    )
    model = GPTModel(config, train)

    def timed(arm: Arm) -> None:
        groups = model.pg_collection
        ids = torch.zeros(1, row.sequence // groups.cp.size(), dtype=torch.int64, device="cuda")
        batches = [(ids, ids)] * _microbatches(row, arm)
        evaluate(model, batches, groups)  # rotary tables are made
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        with torch.profiler.record_function(arm):
            evaluate(model, batches, groups)
            torch.cuda.synchronize()

    timed("one")
    with eval_cp_context(model, other, train):
        timed("as measured")
        timed("same samples")
    dist.destroy_process_group()


def _spent(ctx: RuntimeContext, row: Row, arm: Arm, fixed_ms: float) -> Spent:
    engine, microbatches = ctx.engine, _microbatches(row, arm)
    rows = range_breakdown(engine.op_log, engine.dispatch_ps, [arm])
    means = mean_of_ranks(rows)
    span = sum(each.device_ps for each in rows if each.rank == 0)

    def ms(field: str) -> float:
        total: int = sum(getattr(each, field) for each in means)
        return total / _PS_PER_MS

    return Spent(
        fixed_ms + span / _PS_PER_MS,
        microbatches,
        ideal_bubble_fraction(row.pp, microbatches),
        ms("compute_ps"),
        ms("exposed_ps"),
        ms("host_ps"),
    )


# The table


def run(ctx: RuntimeContext) -> dict[str, Any]:
    """Simulates all rows; returns them, and the constants, as plain values.

    Raises:
        UsageError: If no time is simulated.
    """
    if not ctx.engine.timed:
        raise UsageError(
            "eval_cp: --part table needs times, and fidelity is functional",
            hint="leave --fidelity out, or -- --part check",
        )
    constants = [f"{key}={value}" for key, value in CONSTANTS.items()]
    found = []
    for row in ctx.progress(ROWS, "row"):
        spent = simulate(ctx, row, constants, FIXED_MS)
        found.append(
            {
                **row._asdict(),
                "measured_ratio": row.ms[0] / row.ms[1],
                "as_measured": ratio(spent, "as measured"),
                "same_samples": ratio(spent, "same samples"),
                "same_samples_ideal": ideal_ratio(row),
                "simulated": {arm: asdict(each) for arm, each in spent.items()},
            }
        )
    return {"machine": MACHINE, "constants": CONSTANTS, "fixed_ms": FIXED_MS, "rows": found}


def lines(found: dict[str, Any]) -> list[str]:
    """Returns the tables of what `run` has found."""
    sizes = [("GPUs", ""), ("seq", ""), ("layers", ""), ("TP", ""), ("PP", "")]
    ratios, parts = [], []
    for row in found["rows"]:
        shape = [str(row[name]) for name in ("gpus", "sequence", "layers", "tp", "pp")]
        arms = row["simulated"]
        off = row["as_measured"] / row["measured_ratio"] - 1
        ratios.append(
            [
                *shape,
                *(f"{ms:.1f}" for ms in row["ms"]),
                f"{row['measured_ratio']:.2f}",
                *(f"{arms[arm]['ms']:.1f}" for arm in ("one", "as measured")),
                f"{row['as_measured']:.2f}",
                f"{off:+.0%}",
                f"{arms['same samples']['ms']:.1f}",
                f"{row['same_samples']:.2f}",
                f"{row['same_samples_ideal']:.2f}",
                row["note"],
            ]
        )
        for cp, arm in (("1", "one"), ("2", "as measured"), ("2", "same samples")):
            spent = arms[arm]
            times = ("ms", "compute_ms", "exposed_ms", "host_ms")
            parts.append(
                [
                    *shape,
                    cp,
                    str(spent["microbatches"]),
                    f"{spent['bubble']:.0%}",
                    *(f"{spent[time]:.1f}" for time in times),
                ]
            )
    groups = {"(publ.)": 3, "(as m.)": 4, "(same)": 3}
    names = ("CP=1", "CP=2", "ratio", "CP=1", "CP=2", "ratio", "off", "CP=2", "ratio", "ideal")
    group_of = [group for group, count in groups.items() for _ in range(count)]
    columns = [*sizes, *zip(names, group_of, strict=True), ("note", "")]
    spent_columns = [
        *sizes,
        *(("CP", ""), ("M", ""), ("bubble", "")),
        *((name, "(ms)") for name in ("total", "compute", "exposed", "host")),
    ]
    constants = [f"#   {key}={value}" for key, value in found["constants"].items()]
    return [
        f"# evaluation of {_SAMPLES} samples on {found['machine']}, times in ms",
        "# (publ.): published; (as m.): simulated, as many microbatches for CP=2 as for CP=1;",
        "# (same): simulated, all samples for CP=2; ideal: device time alone, shared perfectly",
        f"# constants: {found['fixed_ms']} ms an evaluation, and",
        *constants,
        "# fitted on the rows without a note; those of an earlier commit contradict the others",
        "#",
        *results.table(columns, ratios),
        "#",
        "# where the time goes, mean of the ranks; M: microbatches; bubble: (PP-1)/(M+PP-1);",
        "# exposed: communication while no kernel runs, also while it waits for other stages",
        *results.table(spent_columns, parts),
    ]
