"""Runs in which ranks do the same: which specifications can have them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernbench.config import ConfigError
from kernbench.errors import UsageError
from kernbench.run_spec import PytorchRun, RunSpec
from kernbench.scripts.program import program_of
from kernbench.scripts.pytorch import check_pytorch


def _check(ranks: int | None = None, *, data: bool = False, **fields: Any) -> None:
    pytorch = PytorchRun(**fields)
    check_pytorch(RunSpec(pytorch=pytorch, data=data, nproc_per_node=ranks), pytorch)


@pytest.mark.parametrize("fake", [False, True])
def test_ranks_without_numbers_may_do_the_same(fake: bool) -> None:
    _check(same_ranks=True, fake=fake)


def test_ranks_with_numbers_have_their_own(tmp_path: Path) -> None:
    spec = RunSpec(pytorch=PytorchRun(same_ranks=True))
    with (
        pytest.raises(UsageError, match="ranks that have numbers each have their own"),
        program_of(spec, tmp_path / "train.py"),
    ):
        pass


def test_witnesses_are_ranks_that_are_there() -> None:
    _check(same_ranks=True, witnesses=(3, 9))  # the program says how many ranks there are
    _check(5, same_ranks=True, witnesses=(3, 9), nodes=2)
    with pytest.raises(UsageError, match="--witnesses 3,9: of 8 ranks none is 9"):
        _check(4, same_ranks=True, witnesses=(3, 9), nodes=2)
    with pytest.raises(UsageError, match="--witnesses without --same-ranks"):
        _check(witnesses=(3, 9))


@pytest.mark.parametrize("wrong", [(), (0, 3), (3, 3), (-1,), 3, "3"])
def test_witnesses_are_different_ranks_beside_the_first(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="witnesses: expected different ranks from 1"):
        PytorchRun(witnesses=wrong)


def test_the_command_of_a_report_has_the_option() -> None:
    pytorch = PytorchRun(same_ranks=True)
    spec = RunSpec(pytorch=pytorch, data=False, bench="train.py", topology="h200x8")
    assert "--same-ranks" in spec.command().split()
    assert "--witnesses" not in spec.command()
    more = replace(spec, pytorch=replace(pytorch, witnesses=(3, 17)))
    assert "--same-ranks --witnesses 3,17" in more.command()
