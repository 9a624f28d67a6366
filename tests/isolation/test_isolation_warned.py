"""Each rank shows a warning as often as a process of its own does."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

LIBRARY = """
import warnings

def warns(text, **options):
    warnings.warn(text, **options)
"""

PROGRAM = """
import os, sys, warnings
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "site-packages"))
import torch.distributed as dist
import noisy
import own

rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
for turn in range(3):
    noisy.warns("of a library")
    own.warns("of the program")
    warnings.warn("of the file")
    dist.barrier()
if rank == 0:
    warnings.simplefilter("always")
dist.barrier()
for turn in range(3):
    noisy.warns("again")
    dist.barrier()
    noisy.warns("of a library")
    dist.barrier()
if rank == 1:
    with warnings.catch_warnings(record=True) as kept:
        warnings.simplefilter("default")
        dist.barrier()
        noisy.warns("kept")
        dist.barrier()
    assert [str(each.message) for each in kept] == ["kept"], kept
else:
    for turn in range(2):
        noisy.warns("not kept")
        dist.barrier()
noisy.warns("of a library")
warnings.simplefilter("once")
for turn in range(3):
    noisy.warns("once")
    warnings.warn("once")
    dist.barrier()
if rank == 1:
    warnings.simplefilter("ignore")
dist.barrier()
noisy.warns("last")
dist.destroy_process_group()
"""


def _counts(text: str) -> Counter[str]:
    return Counter(
        line.partition("Warning: ")[2] for line in text.splitlines() if "Warning: " in line
    )


def test_as_often_as_processes(tmp_path: Path) -> None:
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "noisy.py").write_text(LIBRARY)
    (tmp_path / "own.py").write_text(LIBRARY)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    real, ours = (
        _counts(
            subprocess.run(
                [sys.executable, "-m", *module, "--nproc-per-node", "2", program],
                capture_output=True,
                text=True,
                check=True,
            ).stderr
        )
        for module in (("torch.distributed.run", "--standalone"), ("kernbench", "torchrun"))
    )
    assert real["of a library"] == 2 + 3 + 2
    assert ours == real
