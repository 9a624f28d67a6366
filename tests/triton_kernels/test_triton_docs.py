"""What docs/triton.md shows is what its programs print."""

import os
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


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a program with a cache of its own: Triton's keeps the path of the first such file."""
    command = [sys.executable, "-m", "kernbench", "torchrun", "--nproc-per-node", "1", *arguments]
    env = {**os.environ, "TRITON_CACHE_DIR": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, env=env)


def test_the_softmax_takes_the_time_and_has_the_bound_that_are_shown(tmp_path: Path) -> None:
    code, output, explained, _ = BLOCKS
    program = "docs/triton/softmax.py"
    assert code == "py\n" + (ROOT / program).read_text(encoding="utf-8")
    done = _run(tmp_path, "--explain-time", program)
    assert done.returncode == 0, done.stderr
    for line in (*output.strip().splitlines()[2:], *explained.strip().splitlines()):
        assert line in done.stdout
    assert float(done.stdout.split()[2]) < 1e-6


def test_the_planted_mistake_is_told_as_shown(tmp_path: Path) -> None:
    done = _run(tmp_path, "docs/triton/mask.py")
    assert done.returncode == 1
    told = done.stderr.replace(f"{ROOT}/", "")
    for line in BLOCKS[3].strip().splitlines():
        assert line in told
