"""What the documents show of programs of PyTorch is what these do."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from kernbench.scripts.checking import check_files

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

ROOT: Final = Path(__file__).resolve().parents[2]
SPARSE: Final = """
import torch
torch.eye(2).to_sparse().to("cuda")
"""


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernbench", "torchrun", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


@pytest.mark.parametrize("document", ["README.md", "docs/pytorch.md"])
def test_the_planted_mistake_is_told_as_shown(document: str) -> None:
    done = _run("--nproc-per-node", "8", "docs/pytorch/skips.py")
    told = done.stderr.replace(f"{ROOT}/", "")
    text = (ROOT / document).read_text(encoding="utf-8")
    start = text.index("CollectiveMismatchError: [C1] all_reduce #9")
    shown = text[start : text.index("```", start)].splitlines()
    assert done.returncode == 1
    assert len(shown) >= 3
    for line in shown:
        assert line.removesuffix("...") in told


def _program() -> list[str]:
    """Returns the lines of the README's first program: its command, and what it prints."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return text[text.index("```\n$ ") :].split("```")[1].strip().splitlines()


def test_the_first_program_of_the_readme_prints_what_it_shows() -> None:
    command, *shown = _program()
    words = command.removeprefix("$ kernbench torchrun ").split()
    done = _run(*words)
    assert done.returncode == 0, done.stderr
    got = done.stdout.splitlines()
    assert got[-1] == shown[-1]
    assert got[-1] in (ROOT / "docs" / "pytorch.md").read_text(encoding="utf-8")
    assert [line.rpartition(" ")[0] for line in got[:-1]] == [
        line.rpartition(" ")[0] for line in shown[:-1]
    ]
    # A processor rounds as it does.
    losses = [[float(line.rpartition(" ")[2]) for line in lines[:-1]] for lines in (got, shown)]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


def test_the_first_program_of_the_readme_is_in_the_checkout_and_nothing_of_it_is_refused() -> None:
    program = _program()[0].split()[-1]
    assert (ROOT / program).is_file()
    findings, read = check_files([ROOT / program], torchrun=True)
    assert findings == []
    assert read == [ROOT / program]


def test_a_sparse_tensor_on_a_device_is_refused_by_name(tmp_path: Path) -> None:
    program = tmp_path / "sparse.py"
    program.write_text(SPARSE, encoding="utf-8")
    done = _run(str(program))
    assert done.returncode == 1
    assert "a tensor of layout torch.sparse_coo on a device is not simulated" in done.stderr
    assert "sparse.py:3:1" in done.stderr


def test_a_file_that_is_not_there_is_told() -> None:
    done = _run("nothere.py")
    assert done.returncode == 2
    assert "there is no file nothere.py" in done.stderr
