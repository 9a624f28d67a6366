"""Training steps that both torches know, and what a step takes under each of them."""

from collections.abc import Callable
from typing import Any

from kernbench.process.process import current_process
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology

Step = Callable[[], object]
Maker = Callable[[Any, int], Step]
"""Makes model and optimiser with the given torch on a rank, and returns the step."""

US = 10**6
WARM = 3
MEASURED = 4


def _ddp(torch: Any, model: Any, rank: int) -> Any:
    return torch.nn.parallel.DistributedDataParallel(model.to(f"cuda:{rank}"), device_ids=[rank])


def readme(torch: Any, rank: int) -> Step:
    """The step of README's train.py."""
    model = _ddp(torch, torch.nn.Linear(256, 256), rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        loss = model(torch.ones(64, 256, device=f"cuda:{rank}")).pow(2).mean()
        loss.backward()
        optimizer.step()

    return step


WIDTH = 1024


def _block(torch: Any) -> Any:
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            batch, length, width = x.shape
            parts = self.qkv(self.first(x)).view(batch, length, 3, 16, width // 16)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
            return x + self.down(nn.functional.gelu(self.up(self.second(x))))

    return Block()


def _blocks(tokens: int, optimizer: str, dtype: str) -> Maker:
    def make(torch: Any, rank: int) -> Step:
        model = torch.nn.Sequential(_block(torch), _block(torch)).to(getattr(torch, dtype))
        model = _ddp(torch, model, rank)
        chosen = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-3)
        x = torch.ones(1, tokens, WIDTH, device=f"cuda:{rank}", dtype=getattr(torch, dtype))

        def step() -> None:
            chosen.zero_grad()
            model(x).square().mean().backward()
            chosen.step()

        return step

    return make


STEPS: dict[str, Maker] = {
    "readme": readme,
    "two blocks, 128 tokens, SGD": _blocks(128, "SGD", "float32"),
    "two blocks, 128 tokens, AdamW": _blocks(128, "AdamW", "float32"),
    "two blocks, 2048 tokens, AdamW": _blocks(2048, "AdamW", "bfloat16"),
}

RANKS = 4


def _timed(torch: Any, dist: Any, rank: int, found: dict[str, float]) -> None:
    dist.init_process_group("nccl", rank=rank, world_size=RANKS, init_method="tcp://localhost:1")
    torch.cuda.set_device(rank)
    host = current_process().host
    for name, make in STEPS.items():
        step = make(torch, rank)
        for _ in range(WARM):
            step()
        torch.cuda.synchronize()
        dist.barrier(device_ids=[rank])
        torch.cuda.synchronize()
        before = host.clock
        for _ in range(MEASURED):
            step()
        torch.cuda.synchronize()
        if rank == 0:
            found[name] = (host.clock - before) / MEASURED / US
    dist.destroy_process_group()


def of_own_torch() -> dict[str, float]:
    """Returns the microseconds of each step under `kernbench.torch`."""
    import kernbench.torch as torch

    found: dict[str, float] = {}
    engine = GraphEngine(load_topology("h200x8").topology_obj, False)
    with RuntimeContext(engine=engine, quiet=True) as ctx:
        ctx.multiprocessing.spawn(
            lambda rank: _timed(torch, torch.distributed, rank, found), nprocs=RANKS
        )
    return found


def of_real_torch() -> dict[str, float]:
    """Returns the microseconds of each step under PyTorch, which must be installed."""
    import torch

    from kernbench.bridge import bridged

    found: dict[str, float] = {}
    engine = GraphEngine(load_topology("h200x8").topology_obj, False)

    def main(rank: int) -> None:
        _timed(torch, torch.distributed, rank, found)

    with RuntimeContext(engine=engine, quiet=True), bridged(data=False):
        torch.multiprocessing.spawn(main, nprocs=RANKS)
    return found
