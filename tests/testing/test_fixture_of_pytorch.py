"""The fixture runs workers of the real PyTorch, and a rank's mistake shows none of our frames."""

import pytest

pytest_plugins = ["pytester"]

TORCH = """
import torch
import torch.distributed as dist

def worker(rank, size):
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank)
    x = torch.full((size,), float(rank), device="cuda")
    dist.all_reduce(x)
    dist.destroy_process_group()
    return x[0].item()

def test_it(kernbench):
    outcome = kernbench.torchrun_spawn(worker, nprocs=4, args=(3,))
    assert outcome.returned == [6.0] * 4
    assert kernbench.contexts == (outcome.context,)
"""

LEFT = """
import kernbench.torch as torch
import kernbench.torch.distributed as dist

def test_it(kernbench):
    def worker(rank):
        dist.init_process_group("nccl")
        dist.all_reduce(torch.ones(4, device="cuda"), async_op=True)
    kernbench.spawn(worker, nprocs=2)
"""


@pytest.mark.torch
def test_the_fixture_runs_the_real_pytorch(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TORCH)
    pytester.runpytest_inprocess("-p", "no:xdist").assert_outcomes(passed=1)


def test_a_report_without_lines_of_the_user_shows_no_frames_of_ours(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(LEFT)
    done = pytester.runpytest_inprocess("-p", "no:xdist")
    done.assert_outcomes(failed=1)
    text = done.stdout.str()
    assert "[C13]" in text
    assert "spawning.py" not in text
