"""A step of a tiny Llama-like model of PyTorch under FSDP2 with numbers, on nodes of 8 H200.

Prints what a step in the steady state takes on this computer, and what comes before it. `--ranks 8
16 32 64` shows how that grows.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import _measure

PROGRAM = Path(__file__).parent / "programs" / "llama_fsdp2.py"
NODE = 8
STEPS = 4
MODEL = {"layers": 4, "hidden": 128, "heads": 4, "kv-heads": 2, "ffn": 256}
MODEL |= {"vocabulary": 1024, "sequence": 64}

LIMIT_S = 10


class Took(NamedTuple):
    """What a part of a run took, in seconds of wall time and of process time."""

    wall_s: float
    cpu_s: float


def run(ranks: int) -> tuple[list[Took], float]:
    """Runs the program; returns what came before each line that it printed, and the memory in GiB.

    A line ends a step of rank 0. The first step is behind the start of Python, the set-up of all
    ranks, and what is found out but once.
    """
    command = [sys.executable, "-m", "kernbench", "torchrun", "--nproc-per-node", str(NODE)]
    command += ["--nnodes", str(ranks // NODE), "--topology", "h200x8_x4_nodes"]
    command += ["--set", f"system.sips.count={ranks}", str(PROGRAM), "--steps", str(STEPS)]
    for name, value in MODEL.items():
        command += [f"--{name}", str(value)]
    parts, last = [], Took(time.perf_counter(), 0.0)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("{"):
                now = Took(time.perf_counter(), cpu_of(child.pid))
                parts.append(Took(now.wall_s - last.wall_s, now.cpu_s - last.cpu_s))
                last = now
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(child.returncode)
    return parts, usage.ru_maxrss / 2**20


def cpu_of(pid: int) -> float:
    """Returns the process time of a process so far, in seconds (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(ranks: list[int]) -> None:
    """Runs the program on each number of ranks, and prints what it takes."""
    rows = []
    for count in ranks:
        (first, *steps), rss_gib = run(count)
        wall_s, cpu_s = min(one.wall_s for one in steps), min(one.cpu_s for one in steps)
        cells = [count, f"{first.wall_s:.0f} s", f"{first.cpu_s:.0f} s"]
        cells += [f"{wall_s:.1f} s", f"{cpu_s:.1f} s", f"{cpu_s / count * 1e3:.0f} ms"]
        target = _measure.verdict(wall_s, LIMIT_S, at_least=False)
        rows.append([*cells, f"{rss_gib:.2f} GiB", target])
    title = "FSDP2 on a tiny Llama with numbers: a step, the best of several"
    header = ["ranks", "set-up and first step", "CPU", "a step", "CPU", "CPU a rank"]
    _measure.show(title, [*header, "memory", "target"], rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64], help="multiples of 8")
    main(**vars(parser.parse_args()))
