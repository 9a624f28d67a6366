"""Whole programs of PyTorch, unmodified, that lie in a folder beside the table."""

import importlib
import json
import os
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from kernbench.validation.table import (
    BESIDE,
    COUNT,
    GPU,
    MEASURED,
    NOTE,
    REMARK,
    SCRIPTS,
    WORD,
    Row,
    Table,
    Times,
)

_STEPS: Final = 2
"""Steps before and in a measurement: they are alike, and the programs take many."""

_ARGUMENTS: Final = (
    "hidden",
    "seq",
    "reshard",
    "checkpoint",
    "batch",
    "accumulate",
    "microbatches",
)
_FILES: Final = {"gpt2_ddp": "train_gpt2_ddp.py", "pp_1f1b": "train_pp.py"}
_FIXED: Final = {"gpt2_ddp": ("hidden", "seq")}
"""Columns that a program has no argument for."""


def _run(
    torch: Any, row: Row, ranks: int, words: list[str], loop: str, results: str
) -> dict[str, Any]:
    """Runs a script in this rank and returns the line that it leaves; {} if it leaves none.

    Args:
        ranks: Number of ranks of the script.
        words: The script, and its arguments.
        loop: Module beside it whose `measure` takes the numbers of steps as first defaults.
        results: Variable that names the file to which `measure` appends its line.
    """
    folder = row[SCRIPTS]
    rank = str(torch.cuda.current_device())
    os.environ.update({"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(ranks)})
    sys.path.insert(0, folder)
    sys.argv[:] = [str(Path(folder, words[0])), *words[1:]]
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        os.environ[results] = file.name
        module = importlib.import_module(loop)
        given = module.measure.__defaults__
        module.measure.__defaults__ = (_STEPS, _STEPS, *given[2:])
        runpy.run_path(sys.argv[0], run_name="__main__")
        line = file.readline()
    return dict(json.loads(line)) if line else {}


def _program(torch: Any, row: Row) -> Times | None:
    name = row["program"]
    words = [_FILES.get(name, f"train_{name}.py")]
    for key in _ARGUMENTS:
        if row[key] and key not in _FIXED.get(name, ()):
            words += [f"--{key}", row[key]]
    told = _run(torch, row, int(row["world"]), words, "llama", "RESULTS")
    return {key: told[key] for key in ("step_us", "peak_mib")} if told else None


def _part(row: Row, column: str) -> str:
    """Steps count as bound by the device if the host has time left, or they are steady.

    The host's time is below 96 % of the mean step, or the fastest step is within 2 % of the median
    on a host whose processes may use every CPU.
    """
    if column == "peak_mib":
        return "peak"
    step, fastest = float(row["step_us"]), float(row["min_us"])
    steady = row["cpus"] == "free" and fastest > 0.98 * step
    device = steady or float(row["host_us"]) < 0.96 * float(row["mean_us"])
    return "device-bound" if device else "host-bound"


def _program3(torch: Any, row: Row) -> Times | None:
    told = _run(torch, row, 1, row["command"].split(), "step", "ROWS")
    return {"step_ms": told["event_ms"], "peak_mib": told["peak_mib"]} if told else None


def _needs(row: Row) -> tuple[str, ...]:
    script = row["command"].split()[0]
    packages = {"vision.py": "torchvision", "lm.py": "transformers", "decode.py": "transformers"}
    return (packages[script],) if script in packages else ()


_PYTORCH: Final = "a program of PyTorch"

TABLES: Final = (
    Table(
        name="programs",
        about="training programs on one to four GPUs: a step, and the peak of memory",
        columns={
            "program": WORD,
            "world": COUNT,
            **dict.fromkeys(_ARGUMENTS, NOTE),
            "cpus": WORD,
            "run": COUNT,
            "step_us": MEASURED,
            **dict.fromkeys(("min_us", "max_us", "mean_us", "host_us"), BESIDE),
            "peak_mib": MEASURED,
        },
        program=_program,
        ranks=lambda row: int(row["world"]),
        only_pytorch=_PYTORCH,
        scripts="programs",
        unread=("cpus", "run"),
        part=_part,
    ),
    Table(
        name="programs3",
        about="models of libraries: a step, and the peak of memory",
        columns={
            GPU: WORD,
            "command": WORD,
            "step_ms": MEASURED,
            "runs_ms": REMARK,
            "spread": BESIDE,
            "peak_mib": MEASURED,
        },
        program=_program3,
        only_pytorch=_PYTORCH,
        needs=_needs,
        scripts="programs3",
        part=lambda row, column: "peak" if column == "peak_mib" else "step",
    ),
)
