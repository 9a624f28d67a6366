"""A test of a user's own: the one of the tutorial's page on tensor parallelism, 8 ranks.

Each time in a fresh interpreter, outside the package, as pytest measures it: set-up of the fixture,
call and clean-up, after the imports of the test's module.
"""

import importlib.metadata
import os
import re
import statistics
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

import _measure

ROOT = Path(__file__).parent.parent
FILES = ("mlp.py", "check_mlp.py", "test_mlp.py")
REPEATS = 9
LIMIT_MS = 50
COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}
"""Modules are compiled once, wherever the script is run."""


def write_files(folder: Path) -> None:
    """Writes the files of the tutorial's page."""
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    for name in FILES:
        block = re.search(rf"^```python\n(# {re.escape(name)}\n.*?)^```$", text, re.M | re.S)
        assert block is not None, name
        (folder / name).write_text(block[1], encoding="utf-8")


def seconds(folder: Path) -> float:
    """Returns what pytest says the test took."""
    installed = importlib.metadata.entry_points(group="pytest11", name="kernbench")
    plugin = () if installed else ("-p", "kernbench.testing.plugin")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [*command, "--junitxml", "report.xml", FILES[-1]],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path, **COMPILED, "PYTHONPYCACHEPREFIX": str(folder)},
    )
    case = ET.parse(folder / "report.xml").find(".//testcase")
    assert case is not None
    return float(case.attrib["time"])


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder)
        seconds(folder)
        times = [seconds(folder) * 1e3 for _ in range(REPEATS)]
    rows = [
        [
            f"the first test of a process, {what}",
            f"{LIMIT_MS}",
            f"{ms:.0f}",
            f"{ms / LIMIT_MS:.1f}x",
            _measure.verdict(ms / LIMIT_MS, 1, at_least=False),
        ]
        for what, ms in (("min", min(times)), ("median", statistics.median(times)))
    ]
    _measure.show("A test of 8 ranks, ms", ["", "limit", "kernbench", "ratio", "target"], rows)


if __name__ == "__main__":
    main()
