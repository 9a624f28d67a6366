"""`kernbench run --hash-seeds`: a process for each hash seed of Python, and what they did."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Final

from kernbench.cli.output import SILENT, Output
from kernbench.ranks.exploring import ends_of, returned
from kernbench.ranks.hash_seeds import Calls, Trial, compare
from kernbench.ranks.schedules import Schedule
from kernbench.run_spec import RunSpec

_CHILD: Final = """\
import json, sys
with open(sys.argv[1], encoding="utf-8") as file:
    job = json.load(file)
sys.path[:], sys.argv[:] = job["path"], job["argv"]
from kernbench.cli.seed_child import child
sys.exit(child(job))
"""


class Listener:
    """Notes in a child what its run does.

    Attributes:
        calls: Notes what ranks call together.
        schedule: Notes what hosts read.
        ends: How the program ended; None if it has not come to an end by itself.
        raised: Whether it ended with an error.
    """

    def __init__(self, spec: RunSpec) -> None:
        self.calls: Final = Calls()
        self.schedule: Final = Schedule(spec.schedule)
        self.ends: tuple[str, ...] | None = None
        self.raised = False

    def returned(self, status: object) -> None:
        """Notes what the program has returned."""
        self.ends = returned(status)

    def failed(self, error: Exception) -> None:
        """Notes an error of the program."""
        self.ends, self.raised = ends_of(error), True


def try_seeds(spec: RunSpec, output: Output, most: int, command: str) -> int:
    """Runs a bench under several hash seeds; only the first run prints and writes files.

    Args:
        output: What the first run shows and writes.
        most: Number of hash seeds: 1, 2 and so on.
        command: Command of a plain run.

    Returns:
        The exit code of the first run, or of a later one that could not be compared. If the first
        run fails, it is the only run.

    Raises:
        HashSeedError: If the program depends on the hash seed (R11).
    """
    status, first = _try(spec, output, most, 1)
    if first is None:
        return status
    for seed in range(2, most + 1):
        code, trial = _try(spec, SILENT, most, seed)
        if trial is None:
            return code
        compare(first, trial, f"PYTHONHASHSEED={seed} {command}")
    if not output.quiet:
        print(f"kernbench: hash seeds: all {most} agree", file=sys.stderr)
    return status


def _try(spec: RunSpec, output: Output, most: int, seed: int) -> tuple[int, Trial | None]:
    """Returns the exit code of a run under a hash seed, and what to compare, if there is that."""
    silent = output is SILENT
    with tempfile.TemporaryDirectory() as there:
        done, task = Path(there, "done.json"), Path(there, "job.json")
        shown = {name: str(v) if isinstance(v, Path) else v for name, v in asdict(output).items()}
        job = {
            "path": [folder or os.getcwd() for folder in sys.path],
            "argv": sys.argv,
            "spec": spec.to_json(),
            "output": shown,
            "seeds": most,
            "seed": seed,
            "done": str(done),
        }
        task.write_text(json.dumps(job), encoding="utf-8")
        ran = subprocess.run(
            [sys.executable, "-c", _CHILD, str(task)],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            stdout=subprocess.DEVNULL if silent else None,
            stderr=subprocess.PIPE if silent else None,
            check=False,
        )
        if not done.is_file():
            if silent:
                sys.stderr.write(ran.stderr.decode(errors="replace"))
            return ran.returncode, None
        return ran.returncode, Trial.from_json(json.loads(done.read_text(encoding="utf-8")))
