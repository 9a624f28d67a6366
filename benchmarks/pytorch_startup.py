"""Start of programs of PyTorch: `kernbench torchrun`, two ranks, beside what the program imports.

Whole processes run in turns, with their compiled modules kept, as a user's are: a first turn does
not count, and of the others the least counts. A DDP program is set beside itself in plain Python,
too: `DistributedDataParallel` imports `torch._dynamo` and DTensor wherever it runs.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import _measure

ROOT = Path(__file__).parent.parent
REPEATS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
LIMIT_S = 0.5
TORCHRUN = (sys.executable, "-m", "kernbench", "torchrun", "--nproc-per-node", "2")

EMPTY = """
import torch

print(1)
"""
DDP = """
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl" if device == "cuda" else "gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4).to(device))
model(torch.ones(2, 4, device=device)).sum().backward()
dist.destroy_process_group()
"""


class Taken(NamedTuple):
    """Seconds that a process has taken."""

    cpu: float
    wall: float


def taken(command: Sequence[str], cache: Path) -> Taken:
    """Returns the time of a process, whose compiled modules are in a folder of their own."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29577"}
    env = {**os.environ, **alone, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(cache)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        command, cwd=ROOT, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Taken(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        empty, ddp = Path(folder, "empty.py"), Path(folder, "ddp.py")
        empty.write_text(EMPTY)
        ddp.write_text(DDP)
        imports = "import torch, torch.distributed"
        commands: dict[str, Sequence[str]] = {
            "import torch": (sys.executable, "-c", "import torch"),
            imports: (sys.executable, "-c", imports),
            "kernbench torchrun, empty": (*TORCHRUN, str(empty)),
            "DDP, plain Python, one rank": (sys.executable, str(ddp)),
            "kernbench torchrun, DDP": (*TORCHRUN, str(ddp)),
        }
        turns = [
            {name: taken(command, Path(folder, "cache")) for name, command in commands.items()}
            for _ in range(REPEATS + 1)
        ][1:]
    beside = {
        "kernbench torchrun, empty": imports,
        "kernbench torchrun, DDP": "DDP, plain Python, one rank",
    }
    best = {
        name: Taken(*(min(times) for times in zip(*(turn[name] for turn in turns), strict=True)))
        for name in commands
    }
    rows = []
    for name, (cpu, wall) in best.items():
        row = [name, f"{cpu:.2f}", f"{wall:.2f}"]
        if name in beside:
            more = cpu - best[beside[name]].cpu
            told = _measure.verdict(more, LIMIT_S, at_least=False)
            row += [f"{more:+.2f}", f"{wall - best[beside[name]].wall:+.2f}", told]
        rows.append(row + [""] * (6 - len(row)))
    header = ["", "CPU s", "wall s", "more CPU s", "more wall s", "target"]
    _measure.show("Start of programs of PyTorch", header, rows)


if __name__ == "__main__":
    main()
