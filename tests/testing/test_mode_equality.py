"""The project's own tests of collectives and messages come to the same in every mode."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]


def outcomes(mode: str, file: Path) -> dict[str, str]:
    """Returns what each test of `tests/distributed` came to."""
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "--tb=line", f"--kb-mode={mode}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--junitxml={file}", "tests/distributed"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return {
        f"{case.get('classname')}::{case.get('name')}": " ".join(
            each.tag for each in case if each.tag != "properties"
        )
        for case in ElementTree.parse(file).iter("testcase")
    }


@pytest.mark.at_length
def test_the_modes_agree(tmp_path: Path) -> None:
    inline, pool, batch = (
        outcomes(mode, tmp_path / f"{mode}.xml") for mode in ("inline", "pool", "batch")
    )
    assert len(inline) > 400
    for other in (pool, batch):
        differing = {name for name in inline | other if inline.get(name) != other.get(name)}
        assert differing == set()
