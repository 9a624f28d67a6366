"""The process of one hash seed: runs the bench and writes what the run did."""

import json
from pathlib import Path
from typing import Any

from kernbench.cli import loading, ownership
from kernbench.cli.failures import Exit
from kernbench.cli.hash_seeds import Listener
from kernbench.cli.output import Output
from kernbench.cli.run import run_bench
from kernbench.ranks.hash_seeds import Trial
from kernbench.run_spec import RunSpec


def child(job: dict[str, Any]) -> int:
    """Runs a bench in a process of its own; returns the exit code.

    Args:
        job: What to run, from `hash_seeds.try_seeds`.
    """
    ownership.take()
    loading.begin()
    shown: dict[str, Any] = job["output"]
    for name in ("trace", "trace_kineto", "report", "flight_recorder", "json"):
        shown[name] = shown[name] and Path(shown[name])
    spec = RunSpec.from_json(job["spec"])
    listener = Listener(spec)
    status = run_bench(spec, Output(**shown), hash_seeds=job["seeds"], listener=listener)
    # The first run is the only one if it fails; later ones may fail, but not by a bug of kernbench.
    compared = not listener.raised or (job["seed"] > 1 and status == Exit.FAILED)
    if listener.ends is not None and compared:
        trial = Trial(job["seed"], listener.calls.by_rank, listener.schedule.data, listener.ends)
        Path(job["done"]).write_text(json.dumps(trial.to_json()), encoding="utf-8")
    return status
