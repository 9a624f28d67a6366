"""From the shell: `kernbench --help` against importing numpy, and the main job as a whole."""

import subprocess
import sys
import time
from pathlib import Path

import _measure

ROOT = Path(__file__).parent.parent
KERNBENCH = [sys.executable, "-c", "from kernbench.cli import main; main()"]
NUMPY = [sys.executable, "-c", "import numpy"]


def wall(command: list[str], *arguments: str) -> float:
    """Returns the seconds that a command takes, from the root of the repository."""
    begin = time.perf_counter()
    subprocess.run([*command, *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main() -> None:
    numpy, help_text = [], []
    for _ in range(7):
        numpy.append(wall(NUMPY))
        help_text.append(wall(KERNBENCH, "--help"))
    job = min(wall(KERNBENCH, "run", "benches/ccl_allreduce.py") for _ in range(3))
    limit, ours = min(numpy), min(help_text)
    _measure.show(
        "From the shell",
        ["", "limit s", "kernbench s", "ratio", "target"],
        [
            [
                "--help, over importing numpy",
                f"{limit:.3f}",
                f"{ours:.3f}",
                f"{ours / limit:.2f}x",
                _measure.verdict(ours / limit, 3, at_least=False),
            ],
            [
                "run benches/ccl_allreduce.py",
                "5",
                f"{job:.2f}",
                f"{job / 5:.2f}x",
                _measure.verdict(job, 5, at_least=False),
            ],
        ],
    )


if __name__ == "__main__":
    main()
