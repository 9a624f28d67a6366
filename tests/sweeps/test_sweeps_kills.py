"""A few real kills of a sweep; `kills.py 500` does as many as one wants."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.3], ids=["files", "workers"])
def test_kills_at_random_moments_lose_nothing(share: float) -> None:
    script = [sys.executable, str(ROOT / "tests" / "sweeps" / "kills.py"), "6"]
    ran = subprocess.run(
        [*script, "--workers", str(share)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    told = re.fullmatch(r"(\d+) kills, (\d+) sweeps with all runs once\n", ran.stdout)
    assert told is not None
    assert int(told[1]) == 6
    assert int(told[2]) > 2
