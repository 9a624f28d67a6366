"""The fixture runs workers of the real PyTorch, and a rank's mistake shows none of our frames."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pytorch.md"

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
def test_the_test_of_the_page_runs_with_the_real_pytorch(pytester: pytest.Pytester) -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## 6. In tests\n")[2]
    pytester.makepyfile(section.split("```")[1])
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
