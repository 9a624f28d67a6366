"""Start of programs of PyTorch: `kernbench torchrun`, two ranks, beside what the program imports.

CPU time of whole processes, which run in turns; the least of several. A DDP program is set beside
itself in plain Python, too: `DistributedDataParallel` imports `torch._dynamo` and DTensor wherever
it runs.
"""

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

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


def cpu_s(command: Sequence[str]) -> float:
    """Returns the CPU time of a process, in seconds."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29577"}
    env = {**os.environ, **alone, "PYTHONPATH": str(ROOT)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        command, cwd=ROOT, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        empty, ddp = Path(folder, "empty.py"), Path(folder, "ddp.py")
        empty.write_text(EMPTY)
        ddp.write_text(DDP)
        commands: dict[str, Sequence[str]] = {
            "import torch": (sys.executable, "-c", "import torch"),
            "import torch, torch.distributed": (
                sys.executable,
                "-c",
                "import torch, torch.distributed",
            ),
            "kernbench torchrun, empty": (*TORCHRUN, str(empty)),
            "DDP, plain Python, one rank": (sys.executable, str(ddp)),
            "kernbench torchrun, DDP": (*TORCHRUN, str(ddp)),
        }
        best = dict.fromkeys(commands, float("inf"))
        for _ in range(REPEATS):
            for name, command in commands.items():
                best[name] = min(best[name], cpu_s(command))
    beside = {
        "kernbench torchrun, empty": "import torch",
        "kernbench torchrun, DDP": "DDP, plain Python, one rank",
    }
    rows = []
    for name, time in best.items():
        peer = beside.get(name)
        more = None if peer is None else time - best[peer]
        told = "" if more is None else f"+{more:.2f}"
        verdict = "" if more is None else _measure.verdict(more, LIMIT_S, at_least=False)
        rows.append([name, f"{time:.2f}", told, verdict])
    _measure.show("Start of programs of PyTorch", ["", "CPU s", "more s", "target"], rows)


if __name__ == "__main__":
    main()
