"""The command as a process: its start, and an end from outside."""

import subprocess
import sys
from pathlib import Path

import pytest

from kernbench import __version__
from kernbench.cli.failures import Exit

COMMAND = (sys.executable, "-m", "kernbench")


def test_python_m_kernbench() -> None:
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"kernbench {__version__}\n"


@pytest.mark.parametrize("where", ["in ranks", "on main"])
def test_a_reader_that_goes_away_leaves_no_traceback(tmp_path: Path, where: str) -> None:
    calls = "ctx.multiprocessing.spawn(lines, nprocs=2)" if where == "in ranks" else "lines(0)"
    (tmp_path / "talks.py").write_text(
        "def lines(rank):\n"
        "    for number in range(100_000):\n"
        "        print(rank, number)\n"
        f"def run(ctx):\n    {calls}\n"
    )
    with subprocess.Popen(
        [*COMMAND, "run", str(tmp_path / "talks.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "0 0\n"
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == Exit.BROKEN_PIPE
