"""What ranks print: whole lines, in the order in which they end."""

import io
import sys
from contextlib import redirect_stdout

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench


def _x(rank: int) -> torch.Tensor:
    """Returns a tensor whose text a rank must wait for, the lowest rank the longest."""
    dist.init_process_group("nccl")
    x = torch.full((1,), float(rank), device="cuda")
    dist.all_reduce(x)
    for _ in range(9 - rank):
        x.mul_(1)
    return x


def test_a_line_with_tensors_comes_out_whole(
    kernbench: Kernbench, capsys: pytest.CaptureFixture[str]
) -> None:
    def worker(rank: int) -> None:
        x = _x(rank)
        print(f"rank {rank}:", x, x + rank, sep=" | ")
        print(rank, "done", end="!\nand ")
        print(x, end="")

    kernbench.spawn(worker, nprocs=3)
    out = capsys.readouterr().out
    for rank in range(3):
        assert f"rank {rank}: | tensor([3.], device='cuda:{rank}') | tensor([{3 + rank}.]," in out
        assert f"{rank} done!\n" in out
        assert f"and tensor([3.], device='cuda:{rank}')" in out
    assert out.count("\n") == 6


def test_what_is_flushed_comes_at_once(kernbench: Kernbench) -> None:
    seen: list[str] = []

    def worker(rank: int) -> None:
        print("begun", end=" ")
        seen.append(out.getvalue())
        sys.stdout.flush()
        seen.append(out.getvalue())
        print("and gone on", end=" ", flush=True)
        seen.append(out.getvalue())
        sys.stdout.writelines(["first\n", "rest"])
        seen.append(out.getvalue())

    with redirect_stdout(io.StringIO()) as out:
        kernbench.spawn(worker, nprocs=1)
    begun = "begun and gone on "
    assert seen == ["", "begun ", begun, f"{begun}first\n"]
    assert out.getvalue() == f"{begun}first\nrest"


def test_the_stream_is_put_back_also_if_a_rank_fails(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        print("on my way", end="")
        if rank == 1:
            raise ValueError
        _x(rank)

    with redirect_stdout(io.StringIO()) as out:
        with pytest.raises(SpawnException):
            kernbench.spawn(worker, nprocs=2)
        assert sys.stdout is out
        print(" on main")
    assert out.getvalue() == "on my way" * 2 + " on main\n"


def test_a_stream_of_the_programs_own_is_left_alone(kernbench: Kernbench) -> None:
    own = io.StringIO()

    def worker(rank: int) -> None:
        assert not sys.stdout.isatty()
        with redirect_stdout(own):
            print("part", end="")
            assert own.getvalue() == "part"

    with redirect_stdout(io.StringIO()) as out:
        kernbench.spawn(worker, nprocs=1)
    assert out.getvalue() == ""


def test_a_program_without_standard_output(
    kernbench: Kernbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    kernbench.spawn(print, nprocs=2)
    assert sys.stdout is None
