"""A step of a Llama-like model of PyTorch under FSDP2 without numbers, on nodes of 8 H200.

Prints the wall time, the memory, the step, and what limits it. The first and the last rank run the
program, and the others repeat what rank 0 does (`--same-ranks`, ADR 0038); `--every-rank` lets all
ranks run it. `--layers 2 --nodes 1` is a small form. The simulated machine's figures are
predictions; nothing between its nodes has been measured.
"""

import argparse
import json
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import _measure

PROGRAM = Path(__file__).parent / "programs" / "llama_fsdp2.py"
HIDDEN, KV, FFN, VOCABULARY, SEQUENCE = 8192, 1024, 28672, 128256, 4096
PEAK_FLOPS = 989e12
"""Dense bf16, datasheet."""

FAST_LINKS = (
    "system.sips.network.bandwidth=4.8 TB/s",
    "system.sips.network.node.bandwidth=36 TB/s",
)
"""100 times the bandwidth: what a step takes less on them is exposed communication."""

SHARE_THAT_LIMITS = 0.3

WALL_LIMIT_S, MEMORY_LIMIT_GIB = 120, 8


def parameters(layers: int) -> int:
    """Returns how many parameters the model has."""
    layer = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * KV + 3 * HIDDEN * FFN + 2 * HIDDEN
    return layers * layer + 2 * VOCABULARY * HIDDEN + HIDDEN


def flops(layers: int) -> float:
    """Returns the operations of a rank's step: the model's own, without what is computed again.

    6 a parameter and token but for the embedding, which multiplies nothing, and the two products
    of attention, forward and backward, half of them for a causal mask.
    """
    multiplied = parameters(layers) - VOCABULARY * HIDDEN
    return float(6 * multiplied * SEQUENCE + layers * 6 * SEQUENCE * SEQUENCE * HIDDEN)


def run(layers: int, nodes: int, options: list[str], *overrides: str) -> dict[str, float]:
    """Runs the program; returns what it printed, and what the run took (seconds, GiB)."""
    command = [sys.executable, "-m", "kernbench", "torchrun", "--nproc-per-node", "8"]
    command += ["--nnodes", str(nodes), "--data", "off", "--topology", "h200x8_x4_nodes"]
    # A busy computer may take long for the first step of the optimiser, which issues nothing.
    command += ["--watchdog", "0", *options]
    for override in (f"system.sips.count={8 * nodes}", *overrides):
        command += ["--set", override]
    command += [str(PROGRAM), "--layers", str(layers)]
    begin = time.perf_counter()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = {"wall_s": time.perf_counter() - begin}
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    found |= {"cpu_s": usage.ru_utime + usage.ru_stime, "rss_gib": usage.ru_maxrss / 2**20}
    printed = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    found |= json.loads(printed)
    late = re.search(r"^late events: (\d+)", done.stdout, re.MULTILINE)
    found["late"] = int(late[1]) if late else 0
    return found


def main(layers: int, nodes: int, exposed: bool, every_rank: bool) -> None:
    """Runs the program, and prints what it takes and what the step is."""
    options = [] if every_rank else ["--same-ranks"]
    found = run(layers, nodes, options)
    step_s = found["step_ms"] / 1e3
    wall, rss = found["wall_s"], found["rss_gib"]
    rows = [
        ["wall time", f"{wall:.0f} s", _measure.verdict(wall, WALL_LIMIT_S, at_least=False)],
        ["process time", f"{found['cpu_s']:.0f} s", ""],
        ["memory", f"{rss:.2f} GiB", _measure.verdict(rss, MEMORY_LIMIT_GIB, at_least=False)],
        ["step", f"{step_s * 1e3:.1f} ms", ""],
        ["tokens a second", f"{8 * nodes * SEQUENCE / step_s:,.0f}", ""],
        ["MFU", f"{flops(layers) / step_s / PEAK_FLOPS:.1%}", ""],
        ["peak memory of a device", f"{found['peak_gib']:.1f} GiB", ""],
        ["late events", f"{found['late']:.0f}", _measure.verdict(found["late"], 0, at_least=False)],
    ]
    if exposed:
        without = run(layers, nodes, options, *FAST_LINKS)["step_ms"] / 1e3
        share = 1 - without / step_s
        limit = "communication" if share > SHARE_THAT_LIMITS else "the devices and hosts"
        rows += [["step on links 100 times faster", f"{without * 1e3:.1f} ms", ""]]
        rows += [["exposed communication", f"{share:.1%}", ""], ["limited by", limit, ""]]
    title = f"{parameters(layers) / 1e9:.1f} B parameters, {8 * nodes} ranks, FSDP2, one step"
    _measure.show(title, ["", "kernbench", "target"], rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=80)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument(
        "--exposed",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also runs on faster links, for what they cost",
    )
    parser.add_argument("--every-rank", action="store_true", help="all ranks run the program")
    main(**vars(parser.parse_args()))
