"""What the documents show of programs of PyTorch is what these do."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import docs_readme
import pytest

from kernbench.scripts.checking import check_files

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

ROOT: Final = Path(__file__).resolve().parents[2]
NUMBER: Final = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
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


TEXT: Final = docs_readme.README.read_text(encoding="utf-8")
PROGRAMS: Final = docs_readme.programs(TEXT)


@pytest.mark.parametrize("command", PROGRAMS)
def test_the_programs_of_the_readme_print_what_it_shows(command: str) -> None:
    if "softmax.py" in command:
        pytest.importorskip("triton")
    got = docs_readme.printed_by(command)
    shown = PROGRAMS[command]
    assert shown
    for line in shown:
        (now,) = (each for each in got if each.split()[:2] == line.split()[:2])
        if line.startswith("simulated time"):
            assert now == line, "`python tests/docs/docs_readme.py` writes it anew"
            continue
        # A processor rounds as it does.
        numbers = [[*map(float, NUMBER.findall(each))] for each in (now, line)]
        assert numbers[0] == pytest.approx(numbers[1], rel=0.05)


def test_the_first_program_is_in_the_page_of_its_topic_too() -> None:
    first = next(iter(PROGRAMS.values()))
    assert first[-1] in (ROOT / "docs" / "pytorch.md").read_text(encoding="utf-8")


def test_the_verdict_of_the_first_program_is_what_the_readme_says() -> None:
    command = next(iter(PROGRAMS))
    got = docs_readme.printed_by(command.replace("torchrun", "torchrun --explain-time", 1))
    (verdict,) = (line for line in got if line.startswith("host-bound: "))
    assert f"\n{verdict}\n" in TEXT


def test_the_kernel_of_the_readme_is_that_of_its_program() -> None:
    (kernel,) = (fence.content for fence in docs_readme.fences(TEXT) if fence.language == "python")
    assert kernel in (ROOT / "docs" / "pytorch" / "softmax.py").read_text(encoding="utf-8")


def test_the_first_program_of_the_readme_is_in_the_checkout_and_nothing_of_it_is_refused() -> None:
    program = next(iter(PROGRAMS)).split()[-1]
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
