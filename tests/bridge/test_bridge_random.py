"""Random programs of streams and collectives: no false alarm, no miss, numbers of a plain loop."""

from typing import Any

import pytest
from bridge_devices import on_ranks
from bridge_random import Program, expected, make, run

from kernbench.ranks.spawn_errors import SpawnException

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
_FEW = range(5)
_MANY = range(1000, 1150)


def _run(program: Program, reached: list[int]) -> list[Any]:
    def worker(rank: int) -> Any:
        torch.cuda.set_device(rank)
        torch.distributed.init_process_group(
            "nccl", rank=rank, world_size=program.ranks, init_method="tcp://x:1"
        )
        return run(program, rank, reached)

    return on_ranks(worker, program.ranks)


def _check_correct(seed: int, length: int) -> None:
    program = make(seed, planted=False, length=length)
    assert _run(program, [-1] * program.ranks) == expected(program)


def _check_planted(seed: int, length: int) -> None:
    program = make(seed, planted=True, length=length)
    if program.wrong is None:  # there was no wait to leave out
        return
    reached = [-1] * program.ranks
    with pytest.raises(SpawnException) as failed:
        _run(program, reached)
    errors = failed.value.errors
    assert {getattr(each, "code", None) for each in errors.values()} <= program.codes
    assert {reached[rank] for rank in errors} == {program.wrong}


@pytest.mark.filterwarnings("ignore:.*process groups were made")
@pytest.mark.parametrize("seed", _FEW)
def test_a_program_that_orders_its_streams_gives_the_numbers_of_a_loop(seed: int) -> None:
    _check_correct(seed, 14)


@pytest.mark.filterwarnings("ignore:.*process groups were made")
@pytest.mark.parametrize("seed", _FEW)
def test_a_wait_that_is_left_out_is_reported_at_the_access(seed: int) -> None:
    _check_planted(seed, 14)


@pytest.mark.filterwarnings("ignore:.*process groups were made")
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=pytest.mark.slow if seed < 1040 else pytest.mark.at_length)
        for seed in _MANY
    ],
)
def test_many_longer_programs(seed: int) -> None:
    _check_correct(seed, 30)
    _check_planted(seed, 30)
