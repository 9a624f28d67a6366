"""Runs in which ranks do the same: which specifications can have them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernbench.config import ConfigError
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


def test_witnesses_are_ranks_that_are_there() -> None:
    spec = RunSpec(pytorch=True, same_ranks=True, data=False, witnesses=(3, 9))
    check_same_ranks(spec)  # the program says how many ranks there are
    check_same_ranks(replace(spec, nproc_per_node=5, nodes=2))
    with pytest.raises(UsageError, match="--witnesses 3,9: of 8 ranks none is 9"):
        check_same_ranks(replace(spec, nproc_per_node=4, nodes=2))
    with pytest.raises(UsageError, match="--witnesses without --same-ranks"):
        check_same_ranks(replace(spec, same_ranks=False))


@pytest.mark.parametrize("wrong", [(), (0, 3), (3, 3), (-1,), 3, "3"])
def test_witnesses_are_different_ranks_beside_the_first(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="witnesses: expected different ranks from 1"):
        RunSpec(witnesses=wrong)


def test_only_ranks_of_pytorch_may_do_the_same(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="only a program of PyTorch can run so"),
        program_of(RunSpec(same_ranks=True, data=False), tmp_path / "train.py"),
    ):
        pass
    with (
        pytest.raises(UsageError, match="only a program of PyTorch can run so"),
        program_of(RunSpec(witnesses=(3,), data=False), tmp_path / "train.py"),
    ):
        pass


def test_the_command_of_a_report_has_the_option() -> None:
    spec = RunSpec(pytorch=True, same_ranks=True, data=False, bench="train.py", topology="h200x8")
    assert "--same-ranks" in spec.command().split()
    assert "--witnesses" not in spec.command()
    assert "--same-ranks --witnesses 3,17" in replace(spec, witnesses=(3, 17)).command()
