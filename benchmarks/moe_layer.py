"""A layer of experts: 64 ranks without data, with a routing; 8 ranks with data, beside numpy.

The first is CPU time of a forward pass, from a barrier to the last rank's end: 4,096 tokens a rank,
256 experts, 8 choices of a token. The second runs in turns with the same products in bare numpy:
experts four times as wide as the hidden size, as Megatron-Core makes them if nobody says it, and
narrow ones, whose rows cost as much to move as to multiply.
"""

import time
from functools import partial
from typing import Any

import _measure
import numpy as np

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import caches
from kernbench.ep import MoEConfig, MoELayer
from kernbench.extend import Asked, routing_of
from kernbench.parallel import parallel_state
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext

LIMIT_MS, LIMIT = 60, 1.3
REPEATS = 5
TOKENS, HIDDEN, EXPERTS, TOPK, RANKS = 1024, 1024, 64, 2, 8
WIDTHS = 4 * HIDDEN, HIDDEN // 2


def without_data(routing: str) -> tuple[list[float], int]:
    """Returns the CPU seconds of each pass on 64 ranks, and the commands of one."""
    ranks, commands = 64, list[int]()
    begins, ends = ([list[float]() for _ in range(REPEATS)] for _ in range(2))

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(expert_model_parallel_size=ranks)
        layer = MoELayer(
            MoEConfig(
                hidden_size=4096,
                moe_ffn_hidden_size=2048,
                num_moe_experts=256,
                moe_router_topk=8,
                params_dtype=torch.bfloat16,
            )
        )
        x = torch.empty(4096, 4096, dtype=torch.bfloat16, device="cuda")
        for number in range(REPEATS):
            dist.barrier()
            torch.cuda.synchronize()
            before = counted()
            begins[number].append(time.process_time())
            layer.router.calls = 0  # the same step of the routing
            with torch.no_grad():
                layer(x)
            torch.cuda.synchronize()
            ends[number].append(time.process_time())
            if len(ends[number]) == ranks:
                commands.append(counted() - before)
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()

    def counted() -> int:
        return sum(total.count for total in ctx.engine.op_log.totals.values())

    spec = RunSpec(
        topology="h200x8_x4_nodes",
        overrides=(f"system.sips.count={ranks}",),
        data=False,
        routing=routing,
    )
    with RuntimeContext(spec) as ctx:
        _measure.seconds(lambda: ctx.multiprocessing.spawn(worker, nprocs=ranks))
    seconds = [max(end) - min(begin) for begin, end in zip(begins, ends, strict=True)]
    return seconds, commands[-1]


class Products:
    """The products of all ranks in bare numpy: scores, and two for each expert."""

    def __init__(self, width: int) -> None:
        self.width = width
        asked = Asked(0, 0, 0, TOKENS, EXPERTS, TOPK)
        rows = RANKS * routing_of("W4").choices(asked).counts
        self.x = [np.ones((count, HIDDEN), np.float32) for count in rows]
        self.first = np.ones((EXPERTS, HIDDEN, 2 * width), np.float32)
        self.second = np.ones((EXPERTS, width, HIDDEN), np.float32)
        self.scored = np.ones((TOKENS, HIDDEN), np.float32)
        self.gate = np.ones((HIDDEN, EXPERTS), np.float32)

    def __call__(self) -> None:
        for _ in range(RANKS):
            self.scored @ self.gate
        for x, first, second in zip(self.x, self.first, self.second, strict=True):
            inner = x @ first
            inner[:, : self.width] @ second


def with_data(width: int) -> tuple[float, float]:
    """Returns the seconds of the products and of the layer, in turns."""
    products, times = Products(width), (list[float](), list[float]())

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(expert_model_parallel_size=RANKS)
        # Weights of usual size: activations of large ones are denormal, which BLAS is slow with.
        small = partial(torch.nn.init.normal_, std=0.02)
        config: dict[str, Any] = {
            "num_moe_experts": EXPERTS,
            "moe_router_topk": TOPK,
            "init_method": small,
        }
        layer = MoELayer(MoEConfig(hidden_size=HIDDEN, moe_ffn_hidden_size=width, **config))
        x = torch.randn(TOKENS, HIDDEN, device="cuda")
        for _ in range(REPEATS):
            dist.barrier()
            torch.cuda.synchronize()
            if rank == 0:
                times[0].append(_measure.seconds(products))
            dist.barrier()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            layer.router.calls = 0
            with torch.no_grad():
                layer(x)
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda.synchronize()
            if rank == 0:
                times[1].append(time.perf_counter() - begin)
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()

    with RuntimeContext(RunSpec(topology="h200x8", routing="W4")) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=RANKS)
    return min(times[0]), min(times[1])


def main() -> None:
    rows = []
    without_data("balanced")  # everything that is imported at first use
    for routing in ("balanced", "zipf:0.6"):
        caches.clear()
        seconds, commands = without_data(routing)
        for kind, best in (("first", seconds[0]), ("again", min(seconds[1:]))):
            ms = best * 1e3
            verdict = _measure.verdict(ms / LIMIT_MS, 1, at_least=False)
            each = f"{ms * 1e3 / commands:.0f}"
            names = [f"64 ranks, {routing}, {kind}", f"{LIMIT_MS}", f"{ms:.0f}"]
            rows.append([*names, f"{ms / LIMIT_MS:.1f}x", each, verdict])
    for width in WIDTHS:
        bare, layer = with_data(width)
        verdict = _measure.verdict(layer / bare, LIMIT, at_least=False)
        names = [f"8 ranks with data, {HIDDEN} to {width}", f"{bare * 1e3:.0f}"]
        rows.append([*names, f"{layer * 1e3:.0f}", f"{layer / bare:.2f}x", "", verdict])
    header = ["", "limit or numpy", "kernbench", "ratio", "us a command", "target"]
    _measure.show("A layer of experts, ms", header, rows)


if __name__ == "__main__":
    main()
