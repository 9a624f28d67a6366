"""Megatron's MLP over tensor-parallel ranks: forward, then forward and backward.

Linear layer in columns, GELU, linear layer in rows; one all-reduce each way, or with
`--sequence-parallel` an all-gather and a reduce-scatter. Flags, after `--`: `--tp` ranks,
`--hidden` and `--ffn` widths, `--tokens`, `--dtype`, `--kernel` who multiplies, `--iterations`
counted and `--warmup` steps, `--forward-only`. `kernbench run --seed` seeds weights and input. The
loss is the mean square of the output.
"""

from dataclasses import asdict, dataclass

import kernbench.torch as torch
import kernbench.torch.distributed as dist
import kernbench.torch.nn.functional as F
from benches.models import results
from benches.models.flags import (
    parser,
    positive,
    require_every_rank,
    require_fitting,
    require_multiple,
    require_ranks,
)
from benches.models.measure import Measured, Watch, counted, measure, model_parallel
from kernbench.runtime_api.context import RuntimeContext
from kernbench.tp.config import GemmKernel, ModelParallelConfig
from kernbench.tp.gradients import finalize_model_grads
from kernbench.tp.layers import ColumnParallelLinear, RowParallelLinear


@dataclass(frozen=True)
class Flags:
    """What follows `--` on the command line."""

    tp: int
    hidden: int
    ffn: int
    tokens: int
    dtype: str
    kernel: GemmKernel
    sequence_parallel: bool
    iterations: int
    warmup: int
    forward_only: bool


def parse(argv: list[str]) -> Flags:
    """Returns the flags.

    Raises:
        UsageError: If one is unknown, or they do not fit each other.
    """
    flags = parser("tp_mlp")
    add = flags.add_argument
    add("--tp", type=positive, default=8, metavar="N", help="ranks: 8")
    add("--hidden", type=positive, default=1024, metavar="N", help="width outside: 1024")
    add("--ffn", type=positive, default=4096, metavar="N", help="width inside: 4096")
    add("--tokens", type=positive, default=128, metavar="N", help="rows of the input: 128")
    add("--iterations", type=positive, default=2, metavar="N", help="counted steps: 2")
    add("--warmup", type=positive, default=1, metavar="N", help="steps before them: 1")
    add("--forward-only", action="store_true", help="leaves the backward pass out")
    given = Flags(**vars(flags.parse_args(argv)))
    require_multiple("tp_mlp", "--ffn", given.ffn, "--tp", given.tp)
    if given.sequence_parallel:
        require_multiple("tp_mlp", "--tokens", given.tokens, "--tp", given.tp)
        if given.tp == 1:
            flags.error("--sequence-parallel: expected --tp 2 or more")
    return given


class MLP(torch.nn.Module):
    """Its parts are ranges: `column`, `gelu`, `row`."""

    def __init__(self, flags: Flags) -> None:
        super().__init__()
        config = ModelParallelConfig(
            tensor_model_parallel_size=flags.tp,
            sequence_parallel=flags.sequence_parallel,
            params_dtype=getattr(torch, flags.dtype),
            kernel=flags.kernel,
        )
        init = torch.nn.init.xavier_normal_
        self.column = ColumnParallelLinear(flags.hidden, flags.ffn, config=config, init_method=init)
        self.row = RowParallelLinear(
            flags.ffn,
            flags.hidden,
            config=config,
            init_method=init,
            bias=True,
            input_is_parallel=True,
            skip_bias_add=False,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the output `[s, b, hidden]`."""
        with torch.profiler.record_function("column"):
            inner, _ = self.column(x)
        with torch.profiler.record_function("gelu"):
            inner = F.gelu(inner)
        with torch.profiler.record_function("row"):
            out: torch.Tensor = self.row(inner)[0]
        return out


class _Step:
    def __init__(self, flags: Flags, model: MLP, x: torch.Tensor, *, backward: bool) -> None:
        self._flags, self._model, self._backward = flags, model, backward
        self._x = x.detach().requires_grad_(backward)

    def __call__(self, watch: Watch) -> torch.Tensor:
        flags, self._x.grad = self._flags, None
        with watch.forward(), torch.set_grad_enabled(self._backward):
            out = self._model(self._x)
            with torch.profiler.record_function("loss"):
                wide = out if out.dtype is torch.float64 else out.float()
                # Of this rank's rows, if it has some of them only.
                loss: torch.Tensor = wide.square().sum() / (flags.tokens * flags.hidden)
            del out, wide
        if self._backward:
            loss.backward()
            with torch.profiler.record_function("gradients"):
                finalize_model_grads(self._model)
        return loss.detach()

    def whole(self, losses: torch.Tensor) -> torch.Tensor:
        if self._flags.sequence_parallel:
            dist.all_reduce(losses)
        return losses


def _input(flags: Flags) -> torch.Tensor:
    """Returns `[s, b, hidden]`, or the calling rank's part of it."""
    x = torch.randn(flags.tokens, 1, flags.hidden, dtype=getattr(torch, flags.dtype), device="cuda")
    if not flags.sequence_parallel:
        return x
    part: torch.Tensor = x.chunk(flags.tp, 0)[dist.get_rank()].clone()
    return part


def _sections(flags: Flags) -> dict[str, bool]:
    """Returns the kinds of steps by name, and whether they go back."""
    forward = {"forward": False}
    return forward if flags.forward_only else {**forward, "forward + backward": True}


def worker(ctx: RuntimeContext, flags: Flags) -> dict[str, Measured]:
    """Measures every kind of step on one rank."""
    found = {}
    with model_parallel(flags.tp):
        # All ranks draw the same dense weights and input; each keeps its part.
        torch.manual_seed(ctx.spec.seed)
        model, x = MLP(flags), _input(flags)
        for name, backward in _sections(flags).items():
            step = _Step(flags, model, x, backward=backward)
            found[name] = measure(
                name,
                step,
                counted(ctx, flags.iterations),
                flags.warmup,
                model,
                whole=step.whole,
                data=ctx.engine.enable_data,
            )
    return found


def run(ctx: RuntimeContext) -> int:
    """Runs the bench."""
    flags = parse(ctx.argv)
    engine = ctx.engine
    machine = engine.topology.name
    require_every_rank("tp_mlp", ctx)
    require_ranks("tp_mlp", flags.tp, f"--tp {flags.tp}", machine, len(ctx.devices))
    engine.op_log.keep_records()

    def on_paper(rank: int) -> tuple[MLP, None]:
        del rank
        with model_parallel(flags.tp):
            return MLP(flags), None

    require_fitting("tp_mlp", ctx, on_paper, flags.tp)
    per_rank: dict[int, dict[str, Measured]] = {}

    def rank_main(rank: int) -> None:
        per_rank[rank] = worker(ctx, flags)

    ctx.multiprocessing.spawn(rank_main, nprocs=flags.tp)
    sections = [
        results.Section(
            name,
            flags.iterations,
            flags.warmup,
            [per_rank[rank][name] for rank in range(flags.tp)],
            results.breakdown(ctx, name),
        )
        for name in _sections(flags)
    ]
    ctx.results.append(results.document("tp_mlp", ctx, asdict(flags), sections))
    if not ctx.quiet:
        kind = "on" if flags.sequence_parallel else "off"
        sizes = {name: getattr(flags, name) for name in ("hidden", "ffn", "tokens", "dtype")}
        title = f"tp_mlp on {machine}: {flags.tp} ranks, sequence parallel {kind}"
        lines = results.header_lines(ctx, title, [sizes, results.dials(ctx, kernel=flags.kernel)])
        for section in sections:
            lines += results.section_lines(section, "mean square")
        print("\n".join(lines))
    return 0
