# mypy: disable-error-code="import-not-found"
"""A plugin of pytest for Megatron-Core's own tests, without Transformer Engine, on each rank.

Their `conftest.py` asks for Transformer Engine, which needs CUDA: this answers that there is none,
and writes the outcome of each test into a file of the rank in `OUTCOMES`.
"""

import gc
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from megatron.core import utils
from megatron.core.transformer.moe import moe_utils
from packaging.version import Version

gc.disable()  # the tests' container calls a barrier where it is freed
utils.get_te_version = lambda: Version("0")
utils.is_te_min_version = lambda version, check_equality=True: False
if not hasattr(moe_utils, "te_general_gemm"):
    moe_utils.te_general_gemm = None  # 0.16.1 leaves it undefined


@pytest.fixture(autouse=True)
def set_env() -> None:
    """Stands for a fixture of that `conftest.py`."""


@pytest.fixture(scope="session")
def tmp_path_dist_ckpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stands for a fixture of that `conftest.py`."""
    return tmp_path_factory.mktemp("checkpoint")


def pytest_runtest_logreport(report: Any) -> None:
    """Writes an outcome, with the last words of a failure."""
    if report.when != "call" and report.outcome == "passed":
        return
    words = str(report.longrepr).splitlines() if report.outcome != "passed" else [""]
    errors = [line[2:].strip() for line in words if line.startswith("E ")] or words[-1:]
    file = Path(os.environ["OUTCOMES"]) / os.environ["RANK"]
    with file.open("a") as out:
        out.write(json.dumps([report.nodeid.split("/")[-1], report.outcome, errors[0]]) + "\n")


def pytest_sessionfinish(session: Any) -> None:
    """Ends the groups; an exit with 1 would end ranks that still run."""
    if dist.is_initialized():
        dist.destroy_process_group()
    session.exitstatus = 0
