"""Runs in which ranks do the same: which specifications can have them."""

from pathlib import Path

import pytest

from kernbench.errors import UsageError
from kernbench.run_spec import Data, RunSpec
from kernbench.scripts.program import program_of
from kernbench.scripts.pytorch import check_same_ranks


@pytest.mark.parametrize("data", [False, "fake"])
def test_ranks_without_numbers_may_do_the_same(data: Data) -> None:
    check_same_ranks(RunSpec(pytorch=True, same_ranks=True, data=data))


def test_ranks_with_numbers_have_their_own(tmp_path: Path) -> None:
    spec = RunSpec(pytorch=True, same_ranks=True)
    with (
        pytest.raises(UsageError, match="ranks that have numbers each have their own"),
        program_of(spec, tmp_path / "train.py"),
    ):
        pass


def test_only_ranks_of_pytorch_may_do_the_same(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="only a program of PyTorch can run so"),
        program_of(RunSpec(same_ranks=True, data=False), tmp_path / "train.py"),
    ):
        pass


def test_the_command_of_a_report_has_the_option() -> None:
    spec = RunSpec(pytorch=True, same_ranks=True, data=False, bench="train.py", topology="h200x8")
    assert "--same-ranks" in spec.command().split()
