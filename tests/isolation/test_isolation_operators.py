"""Operators of `torch.library`: each rank runs the module that defines them, and has its own."""

import gc
from pathlib import Path

import pytest
from bridge_torchrun import run

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

BEGIN = """\
import os, torch, torch.distributed as dist
RANK = int(os.environ["RANK"])
torch.cuda.set_device(RANK)
"""

END = """
dist.init_process_group("nccl")
dist.barrier(device_ids=[RANK])
x = torch.ones(2, device="cuda")
print(RANK, torch.ops.kbown.scaled(x).tolist())
"""

BY_KIND = """
lib = torch.library.Library("kbown", "{kind}")
lib.define("scaled(Tensor x) -> Tensor")
@torch.library.impl(lib, "scaled", "CUDA")
def scaled(x): return x * (RANK + 2)
"""

BY_FUNCTIONS = """
torch.library.define("kbown::scaled", "(Tensor x) -> Tensor")
@torch.library.impl("kbown::scaled", "cuda")
def scaled(x): return x * (RANK + 2)
@torch.library.register_fake("kbown::scaled")
def _(x): return torch.empty_like(x)
"""

WAYS = {
    "a library": BY_KIND.format(kind="DEF"),
    "a fragment": BY_KIND.format(kind="FRAGMENT"),
    "functions": BY_FUNCTIONS,
}


def torchrun(path: Path, program: str) -> object:
    path.write_text(program, encoding="utf-8")
    return run("--nproc-per-node", 3, path)


@pytest.mark.parametrize("way", WAYS)
def test_each_rank_calls_what_it_has_defined_in_run_after_run(
    way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert torchrun(tmp_path / "own.py", BEGIN + WAYS[way] + END) == 0
        assert sorted(capsys.readouterr().out.splitlines())[:3] == [
            "0 [2.0, 2.0]",
            "1 [3.0, 3.0]",
            "2 [4.0, 4.0]",
        ]


def test_the_next_program_may_define_it_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = BY_FUNCTIONS.replace("(Tensor x)", "(Tensor x, int by=2)").replace("(x)", "(x, by=2)")
    for program in (BEGIN + BY_FUNCTIONS + END, BEGIN + other + END):
        assert torchrun(tmp_path / "own.py", program) == 0
        assert "2 [4.0, 4.0]" in capsys.readouterr().out


def test_what_a_rank_has_taken_away_stays_with_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = f"""{BEGIN}
dist.init_process_group("nccl")
with torch.library._scoped_library("kbown", "DEF") as lib:
    lib.define("scaled(Tensor x) -> Tensor")
    lib.impl("scaled", lambda x: x * (RANK + 2), "CUDA")
    dist.barrier(device_ids=[RANK])
    if RANK:
        dist.barrier(device_ids=[RANK])
        print(RANK, torch.ops.kbown.scaled(torch.ones(2, device="cuda")).tolist())
if not RANK:
    dist.barrier(device_ids=[RANK])
dist.barrier(device_ids=[RANK])
print(RANK, hasattr(torch.ops.kbown, "scaled"))
"""
    assert torchrun(tmp_path / "own.py", program) == 0
    told = sorted(capsys.readouterr().out.splitlines())
    assert told[:5] == ["0 False", "1 False", "1 [3.0, 3.0]", "2 False", "2 [4.0, 4.0]"]


def test_to_define_an_operator_twice_or_otherwise_is_refused_in_pytorchs_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = BEGIN + BY_FUNCTIONS + 'torch.library.define("kbown::scaled", "(Tensor x) -> Tensor")'
    for program in (
        again,
        BEGIN
        + BY_FUNCTIONS.replace("Tensor x)", "Tensor {'xyz'[RANK]})").replace('"(Ten', 'f"(Ten'),
    ):
        assert torchrun(tmp_path / "own.py", program) == 1
        told = capsys.readouterr().err
        assert "Tried to register an operator (kbown::scaled" in told
        assert str(tmp_path / "own.py") in told


def test_what_a_former_run_has_left_is_no_operator_of_the_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gc.disable()  # the former run's libraries are there, as it may be by chance
    try:
        for _ in range(3):
            assert torchrun(tmp_path / "own.py", BEGIN + WAYS["a library"] + END) == 0
            assert "1 [3.0, 3.0]" in capsys.readouterr().out
    finally:
        gc.enable()
