"""`kernbench tour`: six commands, shown and run, each with what to look at."""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from kernbench.report import make_folder

TRAIN: Final = '''"""A usual script for torchrun; nothing in it knows kernbench."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
model = DDP(torch.nn.Linear(256, 256).to(rank), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.ones(64, 256, device=rank)).pow(2).mean()
    loss.backward()
    optimizer.step()
    if rank == 0:
        print(f"step {step}: loss {loss.item():.4f}")
dist.destroy_process_group()
'''

HANG: Final = '''"""A mistake: rank 3 leaves out the second all-reduce."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
loss = torch.full((4,), float(rank), device=rank)
dist.all_reduce(loss)
if rank != 3:
    dist.all_reduce(loss)
print(loss.tolist())
'''

FILES: Final = {"train.py": TRAIN, "hang.py": HANG}


class Stop(NamedTuple):
    """A command of the tour.

    Attributes:
        title: What it is about.
        command: The command.
        look: What to look at.
        code: Its exit code.
    """

    title: str
    command: str
    look: str
    code: int = 0


_SCRIPT: Final = "--as-torch --nproc-per-node 4"

STOPS: Final[Sequence[Stop]] = (
    Stop(
        "A collective, measured",
        "kernbench run ccl_allreduce -- -b 64K -e 16M -f 16",
        "time is predicted; #wrong is counted in real values, so 0 means that the sums are right.",
    ),
    Stop(
        "What if the links were twice as fast?",
        "kernbench run ccl_allreduce --set system.sips.network.bandwidth='100 GB/s' "
        "-- -b 64K -e 16M -f 16",
        "the large sizes take half as long; the small ones do not: latency bounds them.",
    ),
    Stop(
        "A script for torchrun, and what bounds it",
        f"kernbench run train.py {_SCRIPT} --topology h200x8 --explain-time",
        "losses are computed. The line below them is the verdict; the table says why.",
    ),
    Stop(
        "The same as a page",
        f"kernbench run train.py {_SCRIPT} --topology h200x8 --quiet --report page.html",
        "open page.html in a browser: w and s zoom its timeline, a click shows a command's line.",
    ),
    Stop(
        "A hang, explained",
        f"kernbench run hang.py {_SCRIPT}",
        "who waits, for whom, and at which lines. On GPUs this is a hang until a timeout.",
        code=1,
    ),
    Stop(
        "What a code means",
        "kernbench explain C1",
        "what happened, and what to do. docs/errors.md has all codes.",
    ),
)


def tour(folder: Path) -> int:
    """Shows and runs the commands of the tour in a folder; returns the exit code.

    On a terminal each waits for Enter.

    Args:
        folder: Where the files of the tour are written.

    Raises:
        UsageError: If the folder cannot be made.
    """
    make_folder(folder)
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    print(f"The files of this tour are in {folder}: {', '.join(FILES)}.")
    asks = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    for number, stop in enumerate(STOPS, 1):
        print(f"\n{number} of {len(STOPS)}. {stop.title}\n\n$ {stop.command}", flush=True)
        if asks:
            input("  (Enter runs it) ")
        words = shlex.split(stop.command)[1:]
        done = subprocess.run([sys.executable, "-m", "kernbench", *words], cwd=folder, check=False)
        if done.returncode != stop.code:
            print(
                f"kernbench: expected exit code {stop.code}, got {done.returncode}", file=sys.stderr
            )
            return 1
        print(f"\n-> {stop.look}", flush=True)
    print(f"\nThat was it. In {folder}, change train.py or the machine, and run a command again.")
    return 0
