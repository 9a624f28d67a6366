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


def _run(folder: Path, *arguments: str, ranks: int = 1) -> subprocess.CompletedProcess[str]:
    """Runs a program with a cache of its own: Triton's keeps the path of the first such file."""
    count = ("--nproc-per-node", str(ranks))
    command = [sys.executable, "-m", "kernbench", "torchrun", *count, *arguments]
    env = {**os.environ, "TRITON_CACHE_DIR": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, env=env)


def test_the_softmax_takes_the_time_and_has_the_bound_that_are_shown(tmp_path: Path) -> None:
    code, output, explained, *_ = BLOCKS
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("block", "arguments"),
    [
        (5, ("docs/triton/symmetric.py",)),
        (6, ("--data", "off", "docs/triton/gather_product.py")),
        (7, ("docs/triton/fused.py",)),
    ],
)
def test_what_goes_between_devices_takes_the_times_that_are_shown(
    block: int, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    assert BLOCKS[4].removeprefix("py\n") in (ROOT / "docs/triton/symmetric.py").read_text("utf-8")
    done = _run(tmp_path, *arguments, ranks=4)
    assert done.returncode == 0, done.stderr
    command, *lines = BLOCKS[block].strip("\n").splitlines()
    assert command.endswith(" ".join(arguments))
    assert "\n".join(lines) in done.stdout
