"""What docs/triton.md shows is what its programs print."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton.language")
pytestmark = pytest.mark.torch

ROOT: Final = Path(__file__).resolve().parents[2]
BLOCKS: Final = (ROOT / "docs" / "triton.md").read_text(encoding="utf-8").split("```")[1::2]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernbench", "torchrun", "--nproc-per-node", "1", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_the_softmax_takes_the_time_and_has_the_bound_that_are_shown() -> None:
    code, output, explained, _ = BLOCKS
    program = "docs/triton/softmax.py"
    assert code == "py\n" + (ROOT / program).read_text(encoding="utf-8")
    done = _run("--explain-time", program)
    assert done.returncode == 0, done.stderr
    for line in (*output.strip().splitlines()[2:], *explained.strip().splitlines()):
        assert line in done.stdout
    assert float(done.stdout.split()[2]) < 1e-6


def test_the_planted_mistake_is_told_as_shown() -> None:
    done = _run("docs/triton/mask.py")
    assert done.returncode == 1
    told = done.stderr.replace(f"{ROOT}/", "")
    for line in BLOCKS[3].strip().splitlines():
        assert line in told
