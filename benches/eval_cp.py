"""A model trained in one layout and evaluated in another, in which ranks share sequences otherwise.

Three parts, of which `--part` chooses one. `check` trains a small GPT with `--cp-train` ranks a
sequence and evaluates it with `--cp-eval`, in the same processes: one batch in both layouts, then
training with and without evaluations between its steps. `table` is Megatron-Bridge's measured table
of evaluation (pull request 3755) beside simulated runs of its rows, always on `h200x8` and without
data, with the constants of `benches/models/eval_table.py`. `motive` is the arithmetic of a large
run.

Flags, after `--`, of the check: `--ranks`, `--tp`, `--pp`; `--layers`, `--hidden`, `--ffn`,
`--heads`, `--kv-heads`, `--sequence`; `--batch` sequences a training step, `--eval-batch` an
evaluation, `--micro-batch` at once; `--steps`, `--cp-comm-type`, `--dtype`, `--kernel`,
`--sequence-parallel`. `--wrong-rotary` plants a fault that the check must find: positions of the
layout of training. A check that fails ends with exit code 1.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from benches.models import eval_table, results
from benches.models.eval_check import TIMED, Check, Found
from benches.models.flags import (
    parser,
    positive,
    require_every_rank,
    require_multiple,
    require_ranks,
)
from benches.models.gpt import GPTConfig
from kernbench.errors import UsageError
from kernbench.parallel.config import GemmKernel
from kernbench.runtime_api.context import RuntimeContext
from kernbench.units import PS_PER_US

TOLERANCES: Final = {"float64": 1e-10, "float32": 1e-5, "bfloat16": 5e-3}
"""How far losses of one batch may be apart, in nats."""

_VOCAB: Final = 256


@dataclass(frozen=True)
class Flags:
    """What follows `--` on the command line."""

    part: str
    ranks: int
    tp: int
    pp: int
    cp_train: int
    cp_eval: int
    cp_comm_type: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    sequence: int
    batch: int
    eval_batch: int
    micro_batch: int
    steps: int
    dtype: str
    kernel: GemmKernel
    sequence_parallel: bool
    wrong_rotary: bool

    def has(self, part: str) -> bool:
        """Returns whether a part is done."""
        return self.part in {part, "all"}


def parse(argv: list[str]) -> Flags:
    """Returns the flags.

    Raises:
        UsageError: If one is unknown, or they do not fit each other.
    """
    flags = parser("eval_cp", tuple(TOLERANCES))
    add = flags.add_argument
    add("--part", choices=("all", "check", "table", "motive"), default="all", help="all")
    add("--ranks", type=positive, default=4, metavar="N", help="of the check: 4")
    add("--tp", type=positive, default=1, metavar="N", help="ranks that share layers: 1")
    add("--pp", type=positive, default=1, metavar="N", help="stages: 1")
    add("--cp-train", type=positive, default=1, metavar="N", help="share a sequence: 1")
    add("--cp-eval", type=positive, default=2, metavar="N", help="while it is evaluated: 2")
    add("--cp-comm-type", choices=("p2p", "all_gather", "a2a"), default="p2p", help="p2p")
    add("--layers", type=positive, default=2, metavar="N", help="2")
    add("--hidden", type=positive, default=64, metavar="N", help="width between layers: 64")
    add("--ffn", type=positive, default=192, metavar="N", help="width inside an MLP: 192")
    add("--heads", type=positive, default=8, metavar="N", help="heads of queries: 8")
    add("--kv-heads", type=positive, default=4, metavar="N", help="of keys and values: 4")
    add("--sequence", type=positive, default=32, metavar="N", help="tokens of a sequence: 32")
    add("--batch", type=positive, default=4, metavar="N", help="sequences a step: 4")
    add("--eval-batch", type=positive, default=4, metavar="N", help="an evaluation: 4")
    add("--micro-batch", type=positive, default=1, metavar="N", help="at once: 1")
    add("--steps", type=positive, default=4, metavar="N", help="of training: 4")
    add("--wrong-rotary", action="store_true", help="a fault: positions of the training's layout")
    given = Flags(**vars(flags.parse_args(argv)))
    if not given.has("check"):
        for name, value in asdict(given).items():
            if name != "part" and value != flags.get_default(name):
                shown = name.replace("_", "-")
                raise UsageError(f"eval_cp: --{shown}: expected --part check, not {given.part}")
    _check(given)
    return given


def _check(given: Flags) -> None:
    def multiple(name: str, value: int, of: str, divisor: int) -> None:
        require_multiple("eval_cp", name, value, of, divisor)

    if given.cp_train == given.cp_eval:
        raise UsageError(f"eval_cp: --cp-eval {given.cp_eval}: expected another than --cp-train")
    cp = max(given.cp_train, given.cp_eval)
    multiple("--sequence", given.sequence, "2 x the larger --cp", 2 * cp)
    multiple("--hidden", given.hidden, "2 x --heads", 2 * given.heads)
    multiple("--heads", given.heads, "--kv-heads", given.kv_heads)
    multiple("--kv-heads", given.kv_heads, "--tp", given.tp)
    if given.cp_comm_type == "a2a":
        multiple("--kv-heads", given.kv_heads, "--tp x the larger --cp", given.tp * cp)
    multiple("--ffn", given.ffn, "--tp", given.tp)
    multiple("the vocabulary of", _VOCAB, "--tp", given.tp)
    multiple("--layers", given.layers, "--pp", given.pp)
    layouts = {"--cp-train": given.cp_train, "--cp-eval": given.cp_eval}
    for name, size in layouts.items():
        multiple("--ranks", given.ranks, f"--tp x --pp x {name}", given.tp * given.pp * size)
    for name, value, layout in (
        ("--batch", given.batch, "--cp-train"),
        ("--eval-batch", given.eval_batch, "--cp-eval"),
    ):
        dp = given.ranks // (given.tp * given.pp * layouts[layout])
        multiple(name, value, f"--micro-batch x dp of {layout}", given.micro_batch * dp)
    if given.sequence_parallel:
        multiple("--sequence", given.sequence, "--tp x the larger --cp", given.tp * cp)
        if given.tp == 1:
            raise UsageError("eval_cp: --sequence-parallel: expected --tp 2 or more")


def run(ctx: RuntimeContext) -> int:
    """Runs the bench; returns 1 if the check fails."""
    flags = parse(ctx.argv)
    found: dict[str, Any] = {}
    lines: list[str] = []
    good = True
    if flags.has("check"):
        checked, good = _checked(ctx, flags)
        found["check"] = checked
        lines += _check_lines(ctx, flags, checked)
    if flags.has("table"):
        found["table"] = eval_table.run(ctx)
        lines += ["#"] * bool(lines) + eval_table.lines(found["table"])
    if flags.has("motive"):
        lines += ["#"] * bool(lines) + _motive()
    ctx.results.append(
        {
            "schema_version": results.SCHEMA_VERSION,
            "clock": "simulated" if ctx.engine.timed else None,
            "bench": "eval_cp",
            "machine": ctx.engine.topology.name,
            "flags": asdict(flags),
            "dials": {**results.dials(ctx), "seed": ctx.spec.seed},
            **found,
        }
    )
    if not ctx.quiet:
        print("\n".join(lines))
    return 0 if good else 1


# The check


def _checked(ctx: RuntimeContext, flags: Flags) -> tuple[dict[str, Any], bool]:
    """Returns what the check found, and whether all of it is good."""
    if not ctx.engine.enable_data:
        raise UsageError(
            "eval_cp: --part check compares values, and data is off",
            hint="--data on, or -- --part table",
        )
    machine = ctx.engine.topology.name
    require_every_rank("eval_cp", ctx)
    require_ranks("eval_cp", flags.ranks, f"--ranks {flags.ranks}", machine, len(ctx.devices))
    ctx.engine.op_log.keep_records()
    per_rank: dict[int, Found] = {}

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        check = Check(
            _config(flags, ctx.spec.seed),
            flags.cp_eval,
            flags.batch,
            flags.eval_batch,
            flags.micro_batch,
            wrong_rotary=flags.wrong_rotary,
        )
        per_rank[rank] = check.run(flags.steps)
        dist.destroy_process_group()

    ctx.multiprocessing.spawn(worker, nprocs=flags.ranks)
    everyone = [per_rank[rank] for rank in range(flags.ranks)]
    first, second = everyone[0].same_batch
    verdicts = {
        "same_batch": abs(first - second) < TOLERANCES[flags.dtype],
        "training_unchanged": all(each.plain == each.interleaved for each in everyone),
        "restored": all(each.restored for each in everyone),
    }
    times = {cp: _time_us(ctx, TIMED.format(cp)) for cp in (flags.cp_train, flags.cp_eval)}
    times_us = {str(cp): time for cp, time in times.items()}
    tolerance = TOLERANCES[flags.dtype]
    shown = {**asdict(everyone[0]), "tolerance": tolerance, "evaluation_us": times_us}
    return {**shown, "good": verdicts}, all(verdicts.values())


def _config(flags: Flags, seed: int) -> GPTConfig:
    dtype = getattr(torch, flags.dtype)
    return GPTConfig(
        num_layers=flags.layers,
        hidden_size=flags.hidden,
        ffn_hidden_size=flags.ffn,
        num_attention_heads=flags.heads,
        num_query_groups=flags.kv_heads,
        vocab_size=_VOCAB,
        seq_length=flags.sequence,
        qk_layernorm=True,
        # Wide enough that what a token sees, and from where, makes a difference at once.
        init_method_std=0.2,
        cp_comm_type=flags.cp_comm_type,
        init_seed=seed,
        tensor_model_parallel_size=flags.tp,
        context_parallel_size=flags.cp_train,
        pipeline_model_parallel_size=flags.pp,
        pipeline_dtype=dtype,
        params_dtype=dtype,
        sequence_parallel=flags.sequence_parallel,
        gradient_accumulation_fusion=flags.dtype != "bfloat16",  # which products cannot add to
        kernel=flags.kernel,
    )


def _time_us(ctx: RuntimeContext, name: str) -> float | None:
    rows = results.breakdown(ctx, name)
    if rows is None:
        return None
    return sum(row.device_ps for row in rows if row.rank == 0) / PS_PER_US


def _check_lines(ctx: RuntimeContext, flags: Flags, found: dict[str, Any]) -> list[str]:
    def verdict(name: str) -> str:
        return "good" if found["good"][name] else "WRONG"

    train, other = flags.cp_train, flags.cp_eval
    (first, second), steps = found["same_batch"], len(found["plain"])
    title = f"eval_cp on {ctx.engine.topology.name}: {flags.ranks} ranks, tp {flags.tp}, "
    title += f"pp {flags.pp}, trained with cp {train}, evaluated with cp {other}"
    sizes = ("layers", "hidden", "ffn", "heads", "kv_heads", "sequence", "dtype")
    shape = {name.replace("_", " "): getattr(flags, name) for name in sizes}
    rows = [
        (str(n + 1), f"{a:.9f}", f"{b:.9f}", f"{c:.6f}")
        for n, (a, b, c) in enumerate(
            zip(found["plain"], found["interleaved"], found["evaluations"], strict=True)
        )
    ]
    columns = [
        ("step", ""),
        ("alone", "(nats)"),
        ("evaluated", "(nats)"),
        (f"cp {other}", "(nats)"),
    ]
    times = [
        f"cp {cp} {'N/A' if time is None else f'{time:.2f} us'}"
        for cp, time in found["evaluation_us"].items()
    ]
    return [
        *results.header_lines(ctx, title, [shape, results.dials(ctx, seed=ctx.spec.seed)]),
        "#",
        f"# loss of one batch: cp {train} {first:.12f}, cp {other} {second:.12f}, "
        f"apart {abs(first - second):.1e} of {found['tolerance']:.0e}: {verdict('same_batch')}",
        f"# time of its evaluation: {', '.join(times)}",
        "#",
        "# losses of training alone, with an evaluation after each step, and of that evaluation",
        *results.table(columns, rows),
        f"# losses of training, bit for bit in {steps} steps: {verdict('training_unchanged')}",
        f"# groups as before, also after an error: {verdict('restored')}",
    ]


# The arithmetic


def _motive() -> list[str]:
    """Returns why one evaluates so: a run in which each sequence is there for the bubble only."""
    world, tp, pp, samples, microbatches = 8192, 2, 4, 1024, 4
    lines = [
        f"# why: {world} ranks, tp {tp}, pp {pp}, {samples} samples to evaluate; a pipeline takes",
        f"# at least {microbatches} microbatches, or its bubble is larger than "
        f"{(pp - 1) / (microbatches + pp - 1):.0%}",
    ]
    for cp in (1, 4):
        dp = world // (tp * pp * cp)
        done = microbatches * dp
        lines.append(
            f"#   cp {cp}: dp {dp:>4}, {microbatches} microbatches each: {done} samples a step, "
            f"{done / samples:.0f} x what is asked for"
        )
    return lines
