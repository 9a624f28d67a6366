"""Kernels of Triton on simulated devices, against Triton's interpreter on the CPU.

Each case is a process of its own, with an empty cache of Triton's; figures are process time of a
launch, the first by itself (compilation included), later ones as the fastest. Machine code, which
only the predicted time needs, is made in a process of its own: the first launch is shown without
and with it, and without what Triton itself imports at the first launch of a process. The
interpreter's softmax takes a part of the rows, and its time is scaled to all.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import _measure

PROGRAM = Path(__file__).parent / "programs" / "triton_launches.py"
ROWS, PART = 4096, 256
CASES = (
    ("GEMM 512^3, fp32, tiles 64 x 64 x 32", "gemm", 512, 512, 6.0, 100.0),
    ("flash forward, 4 x 1024, d 64, fp32", "flash", 1024, 1024, 25.0, 40.0),
    ("softmax 4096^2, bf16", "softmax", ROWS, PART, None, 50.0),
)
"""Title, case, size, the interpreter's size, ratios asked of the first and of later launches."""

MEMORY_MIB, FIRST_S = 600.0, 0.3
"""Asked of 4096^3: peak with numbers, and the first launch without."""


def measured(
    case: str, launches: int, size: int, *options: str, interpreted: bool, **given_env: str
) -> dict[str, Any]:
    """Returns `took` and `others`, seconds of each launch, and `peak`, MiB of the process."""
    start = ["-m", "kernbench", "torchrun", "--nproc-per-node", "1", *options]
    given = [str(PROGRAM), case, str(launches), str(size), *(["off"] if options else [])]
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, *([] if interpreted else start), *given],
            env={
                **os.environ,
                "TRITON_CACHE_DIR": cache,
                "TRITON_INTERPRET": str(int(interpreted)),
                **given_env,
            },
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    found: dict[str, Any] = json.loads(
        next(x for x in done.stdout.splitlines() if x.startswith("{"))
    )
    return found


def main() -> None:
    rows = []
    for title, case, size, part, first_asked, again_asked in CASES:
        peer = min(measured(case, 2, part, interpreted=True)["took"]) * size / part
        found = measured(case, 5, size, interpreted=False)
        first, *again = found["took"]
        aside = measured(case, 1, size, interpreted=False, IMPORTED="1")["took"][0]
        for name, took, asked in (
            ("first", first, first_asked),
            ("first, what Triton imports then aside", aside, first_asked),
            ("first, machine code included", first + found["others"][0], first_asked),
            ("again", min(again), again_asked),
        ):
            row = [
                f"{title}, {name}",
                f"{peer:.2f} s",
                f"{took * 1e3:.1f} ms",
                f"{peer / took:.1f}x",
            ]
            rows.append(
                [*row, _measure.verdict(peer / took, asked, at_least=True) if asked else ""]
            )
    found = measured("gemm", 3, 4096, "--data", "off", interpreted=False)
    off = found["took"][0]
    verdict = _measure.verdict(off, FIRST_S, at_least=False)
    rows.append(["GEMM 4096^3, data off, first", f"{FIRST_S} s", f"{off:.2f} s", "", verdict])
    off += found["others"][0]
    verdict = _measure.verdict(off, FIRST_S, at_least=False)
    rows.append(["the same, machine code included", f"{FIRST_S} s", f"{off:.2f} s", "", verdict])
    peak = measured("gemm", 1, 4096, interpreted=False)["peak"]
    verdict = _measure.verdict(peak, MEMORY_MIB, at_least=False)
    rows.append(
        ["GEMM 4096^3 with data, peak", f"{MEMORY_MIB:g} MiB", f"{peak:.0f} MiB", "", verdict]
    )
    header = ["", "interpreter or limit", "kernbench", "ratio", "target"]
    _measure.show("Kernels of Triton, process time of a launch", header, rows)


if __name__ == "__main__":
    main()
