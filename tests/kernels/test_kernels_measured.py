"""Single kernels against what an H200 was measured at, under both torches."""

import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest


@cache
def _script() -> Any:
    folder = Path(__file__).parents[2] / "benchmarks"
    spec = importlib.util.spec_from_file_location("measured_cells", folder / "measured_cells.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(folder))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    return module


def _errors(times: str) -> dict[str, float]:
    script = _script()
    cells = script.cells_of(None)
    found = script.errors(cells, getattr(script, times)(cells))
    return {table: script.mean(values) for table, values in found.items()}


_MOST = {"rowops": 0.3, "rowops2": 0.17, "elementwise": 0.08, "memory": 0.15, "embedding": 0.06}


@pytest.mark.parametrize("table", _MOST)
def test_kernels_take_about_as_long_as_measured(table: str) -> None:
    assert 0 < _own()[table] <= _MOST[table]


@pytest.mark.torch
@pytest.mark.parametrize("table", _MOST)
def test_kernels_are_as_near_to_measured_ones_as_those_of_pytorch(table: str) -> None:
    pytest.importorskip("torch")
    assert _own()[table] <= _real()[table] + 0.01


@cache
def _own() -> dict[str, float]:
    return _errors("under_own")


@cache
def _real() -> dict[str, float]:
    return _errors("under_bridge")
