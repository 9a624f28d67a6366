"""A transformer layer on 64 ranks, tensor parallel by 8, without data: what the host's part costs.

The layer is that of Llama 3 with 8 billion parameters: RMSNorm, rotary embedding, grouped queries,
SwiGLU; matrices are multiplied by the machine's library. All ranks are on their way at once, and
the clock runs from the first rank's call to the moment when the last rank has seen its device done.
"""

import time
from collections.abc import Callable

import _measure

import kernbench.torch as torch
import kernbench.torch.distributed as dist
import kernbench.torch.nn.functional as F
from kernbench import caches
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.tp import parallel_state
from kernbench.tp.config import ModelParallelConfig
from kernbench.tp.layers import ColumnParallelLinear, RowParallelLinear

RANKS, TP = 64, 8
HIDDEN, FFN, HEADS, KV_HEADS = 4096, 14336, 32, 8
WIDTH = HIDDEN // HEADS
SEQUENCE, BATCH = 2048, 1
REPEATS = 15
LIMIT_MS = 50


class Layer(torch.nn.Module):
    """One layer, of which this rank has its part; activations are `[s, b, h]`."""

    def __init__(self) -> None:
        super().__init__()
        config = ModelParallelConfig(
            tensor_model_parallel_size=TP,
            params_dtype=torch.bfloat16,
            perform_initialization=False,
            kernel="library",
        )
        self.heads, self.kv_heads = HEADS // TP, KV_HEADS // TP

        def column(width: int, stride: int = 1) -> ColumnParallelLinear:
            return ColumnParallelLinear(
                HIDDEN, width, config=config, init_method=torch.nn.init.zeros_, bias=False,
                stride=stride,
            )  # fmt: skip

        def row(width: int) -> RowParallelLinear:
            return RowParallelLinear(
                width, HIDDEN, config=config, init_method=torch.nn.init.zeros_, bias=False,
                input_is_parallel=True, skip_bias_add=False,
            )  # fmt: skip

        def norm() -> torch.nn.RMSNorm:
            return torch.nn.RMSNorm(HIDDEN, eps=1e-5, dtype=torch.bfloat16, device="cuda")

        self.qkv, self.proj = column(HIDDEN + 2 * KV_HEADS * WIDTH), row(HIDDEN)
        self.up, self.down = column(2 * FFN, stride=2), row(FFN)
        self.before_attention, self.before_mlp = norm(), norm()

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before_attention(x), cos, sin)
        widened, _ = self.up(self.before_mlp(x))
        narrowed, _ = self.down(F.swiglu(widened))
        out: torch.Tensor = x + narrowed
        return out

    def attention(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        joint, _ = self.qkv(x)
        length, batch, _ = joint.shape
        sizes = [self.heads, self.kv_heads, self.kv_heads]
        heads = joint.view(length, batch, sum(sizes), WIDTH).permute(1, 2, 0, 3)
        q, k, v = heads.split(sizes, dim=1)
        seen = F.scaled_dot_product_attention(
            rotated(q, cos, sin), rotated(k, cos, sin), v, is_causal=True, enable_gqa=True
        )
        out: torch.Tensor
        out, _ = self.proj(seen.permute(2, 0, 1, 3).reshape(length, batch, -1))
        return out


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Returns `[b, heads, s, d]` turned by the angle of each position: rotary embedding."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class Stopwatch:
    """Wall time in which all ranks do one thing, from the first's beginning to the last's end."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float]] = []
        self.seconds: list[float] = []

    def time(self, function: Callable[[], None]) -> None:
        """Runs a function; ranks that come here at the same time are timed together."""
        dist.barrier()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        function()
        torch.cuda.synchronize()
        self.times.append((begin, time.perf_counter()))
        if len(self.times) == RANKS:
            begins, ends = zip(*self.times, strict=True)
            self.seconds.append(max(ends) - min(begins))
            self.times.clear()


def measured() -> tuple[list[list[float]], list[int]]:
    """Returns the seconds of forward passes and of both, and how many commands a rank issues."""
    watches = Stopwatch(), Stopwatch()
    counts: list[int] = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=TP)
        layer = Layer()
        shape = (SEQUENCE, BATCH, HIDDEN)
        x = torch.empty(*shape, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        grad = torch.empty(*shape, dtype=torch.bfloat16, device="cuda")
        angles = torch.empty(2, SEQUENCE, WIDTH, dtype=torch.bfloat16, device="cuda")
        cos, sin = angles[0], angles[1]

        def forward() -> None:
            with torch.no_grad():
                layer(x, cos, sin)

        def step() -> None:
            layer.zero_grad()
            layer(x, cos, sin).backward(grad)

        for watch, function in zip(watches, (forward, step), strict=True):
            before = commands()
            for _ in range(REPEATS):
                watch.time(function)
            if rank == 0:
                counts.append((commands() - before) // REPEATS)
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()

    def commands() -> int:
        totals = ctx.engine.op_log.totals
        return sum(total.count for (rank, _), total in totals.items() if rank == 0)

    machine, texts = "h200x8_x4_nodes", (f"system.sips.count={RANKS}",)
    with RuntimeContext(RunSpec(topology=machine, overrides=texts, data=False)) as ctx:
        _measure.seconds(lambda: ctx.multiprocessing.spawn(worker, nprocs=RANKS))
    return [watch.seconds for watch in watches], counts


def main() -> None:
    measured()  # everything that is imported at first use
    caches.clear()
    cold, counts = measured()
    warm, _ = measured()
    rows = []
    names = ("forward", "forward and backward")
    for name, empty, seconds, count in zip(names, cold, warm, counts, strict=True):
        for kind, best in (
            ("first, caches empty", empty[0]),
            ("first", seconds[0]),
            ("again", min(seconds[1:])),
        ):
            ms = best * 1e3
            rows.append(
                [
                    f"{name}, {kind}",
                    f"{LIMIT_MS}",
                    f"{ms:.0f}",
                    f"{ms / LIMIT_MS:.1f}x",
                    f"{ms * 1e3 / RANKS / count:.0f}",
                    _measure.verdict(ms / LIMIT_MS, 1, at_least=False),
                ]
            )
    header = ["", "limit", "kernbench", "ratio", "us a command", "target"]
    _measure.show(f"A layer on {RANKS} ranks, ms", header, rows)


if __name__ == "__main__":
    main()
