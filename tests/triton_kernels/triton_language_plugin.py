"""A plugin of pytest for Triton's own tests: a few cases of each, and what became of them."""

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import triton._internal_testing as helpers

MOST = 5
"""Cases of a test that run, spread evenly over all."""

FOUND: dict[str, str] = {}


def pytest_configure() -> None:
    # A fork for CPUs asks this in its copy of the tests.
    if not hasattr(helpers, "is_cpu"):
        helpers.is_cpu = lambda: False
    # Some load what nobody has written, and look at the code alone: M5 is an error here.
    if "ZEROS" in os.environ:
        torch.empty = torch.zeros


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    kept = {id(item) for group in cases.values() for item in _spread(group)}
    if "ASKED" in os.environ:  # which cases there are depends on the device
        asked = json.loads(Path(os.environ["ASKED"]).read_text())
        kept = {id(item) for item in items if asked.get(_name(item.nodeid)) == "passed"}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = [item for item in items if id(item) in kept]


def _name(nodeid: str) -> str:
    file, _, case = nodeid.partition("::")
    return f"{Path(file).name}::{case}"


def _spread(group: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Yields cases that differ in what changes slowly from one to the next, and in what fast."""
    step = max(len(group) // MOST, 1)
    for turn in range(min(MOST, len(group))):
        yield group[turn * len(group) // MOST + 7 * turn % step if step > 1 else turn]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        FOUND.setdefault(_name(report.nodeid), report.outcome)


def pytest_sessionfinish() -> None:
    Path(os.environ["OUTCOMES"]).write_text(json.dumps(FOUND))
