"""`os.environ` of each rank."""

import os

import pytest

import kernbench.torch.distributed as dist
from kernbench.process.process import current_process
from kernbench.ranks.environments import Environments, own_environments, own_variables
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench


def test_each_rank_has_what_it_writes(
    kernbench: Kernbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLOUR", "red")
    monkeypatch.delenv("SHAPE", raising=False)
    before = os.environ
    ends: dict[int, tuple[str | None, ...]] = {}

    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        assert os.environ["COLOUR"] == "red"
        os.environ["SHAPE"] = f"of {rank}"
        if rank == 1:
            del os.environ["COLOUR"]
        dist.barrier()
        ends[rank] = (
            os.getenv("SHAPE"),
            os.environ.get("COLOUR"),
            own_variables(current_process()).get("SHAPE"),
        )

    kernbench.spawn(worker, nprocs=3)
    assert ends == {
        0: ("of 0", "red", "of 0"),
        1: ("of 1", None, "of 1"),
        2: ("of 2", "red", "of 2"),
    }
    assert os.environ is before
    assert "SHAPE" not in os.environ
    assert os.environ["COLOUR"] == "red"


def test_it_does_what_a_mapping_does(kernbench: Kernbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"A": "1"})

    def worker(rank: int) -> None:
        variables = os.environ
        assert variables.copy() == dict(variables) == {"A": "1"}
        assert "A" not in own_variables(current_process())
        assert variables | {"B": "2"} == {"A": "1", "B": "2"}
        assert {"A": "0", "B": "2"} | variables == {"A": "1", "B": "2"}
        variables |= {"C": str(rank)}
        assert variables is os.environ
        assert (sorted(variables), len(variables)) == (["A", "C"], 2)
        assert repr(variables) == f"environ({{'A': '1', 'C': '{rank}'}})"
        assert "A" not in own_variables(current_process())
        with pytest.raises(KeyError, match=r"^'D'$"):
            del variables["D"]
        with pytest.raises(KeyError, match=r"^'D'$"):
            variables["D"]
        with pytest.raises(TypeError, match="str expected, not int"):
            variables["D"] = 3  # type: ignore[assignment]
        variables.clear()
        assert not variables

    kernbench.spawn(worker, nprocs=2)
    assert os.environ == {"A": "1"}


def test_on_main_it_is_the_environment_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"A": "1"})
    real = os.environ
    with own_environments():
        assert isinstance(os.environ, Environments)
        with own_environments():
            os.environ["B"] = "2"
        assert isinstance(os.environ, Environments)
    assert os.environ is real
    assert real == {"A": "1", "B": "2"}


def test_blocks_of_several_threads_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    real = {"A": "1"}
    monkeypatch.setattr(os, "environ", real)
    first, second = own_environments(), own_environments()
    first.__enter__()
    second.__enter__()
    first.__exit__()
    assert isinstance(os.environ, Environments)
    second.__exit__()
    assert os.environ is real


@pytest.mark.parametrize("init_method", [None, "env://"])
def test_a_rank_that_takes_itself_for_another_is_told(
    kernbench: Kernbench, init_method: str | None
) -> None:
    def worker(rank: int) -> None:
        os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), "3"
        dist.init_process_group("gloo", init_method)

    with pytest.raises(SpawnException) as raised:
        kernbench.spawn(worker, nprocs=2)
    assert "[C18] init_process_group(os.environ['WORLD_SIZE']='3') on" in str(raised.value)
    assert "expected one of '2'" in str(raised.value)


def test_a_rank_that_says_who_it_is_needs_no_variables(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        os.environ["RANK"] = os.environ["WORLD_SIZE"] = "7"
        dist.init_process_group("gloo", rank=rank, world_size=2)

    kernbench.spawn(worker, nprocs=2)
