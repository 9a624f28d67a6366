"""Every operation against PyTorch, in drawn calls; the other tests do not need PyTorch."""

from random import Random
from typing import Any, Final

import differential_layers  # noqa: F401 - adds rows
import differential_networks  # noqa: F401 - adds rows
import differential_shapes  # noqa: F401 - adds rows
import pytest
from differential_cases import Case, Side
from differential_compare import compare, outcome
from differential_listed import LISTED, UNCOMPARED, Listed
from differential_rows import ROWS

import kernbench.torch
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.namespace import root
from kernbench.runtime_api.pytorch_versions import minor_of
from kernbench.runtime_api.tensor_methods import TensorMethods, attributes_of
from kernbench.sim_engine.engine import GraphEngine

CALLS: Final = 45
"""Calls a row."""

GROUPS: Final = 24
"""Tests that the rows are divided into, so that they can run side by side."""

ON_HOST: Final = {"Tensor.is_cpu", "Tensor.is_cuda", "Tensor.get_device", "Tensor.cpu"}
"""What tells where a tensor is; PyTorch's are on the host."""


def _offered() -> set[str]:
    names = root()
    functions = {
        f"torch.{name}"
        for name, value in names.items()
        if callable(value) and not isinstance(value, type)
    }
    methods = {f"Tensor.{name}" for name in attributes_of(TensorMethods)}
    facts = {f"Tensor.{name}" for name in ("shape", "dtype", "is_cuda", "is_cpu")}
    networks = names["nn"]
    functional = {f"torch.nn.functional.{name}" for name in networks["functional"]}
    modules = {f"torch.nn.{name}" for name, value in networks.items() if isinstance(value, type)}
    return functions | methods | facts | functional | modules


def test_every_operation_has_a_row_or_a_reason() -> None:
    named = set(ROWS) | set(UNCOMPARED)
    assert _offered() - named == set()
    assert named - _offered() == set()
    assert not set(ROWS) & set(UNCOMPARED)
    assert CALLS * len(ROWS) >= 20_000


def _differences(torch: Any, topology: Any, name: str) -> list[tuple[Case, str]]:
    rng, found, calls = Random(f"calls of {name}"), [], 0
    while calls < CALLS:
        with RuntimeContext(engine=GraphEngine(topology("sip8"))) as ctx:
            # What follows on a stream with a fault is skipped.
            while calls < CALLS and not ctx.main.current_stream(0).faulted:
                case = ROWS[name](rng)
                device = "cuda" if calls % 2 and name not in ON_HOST else "cpu"
                theirs = outcome(Side(torch, "cpu"), case)
                ours = outcome(Side(kernbench.torch, device), case)
                difference = compare(ours, theirs, case)
                if difference is not None:
                    found.append((case, difference))
                calls += 1
    return found


@pytest.fixture(scope="session")
def torch() -> Any:
    found: Any = pytest.importorskip("torch")
    found.set_num_threads(1)
    return found


@pytest.mark.torch
@pytest.mark.parametrize("group", range(GROUPS))
def test_calls(torch: Any, topology: Any, group: int) -> None:
    unlisted = []
    listed = [each for each in LISTED if each.is_of(minor_of(torch.__version__))]
    for name in sorted(ROWS)[group::GROUPS]:
        for case, difference in _differences(torch, topology, name):
            if not any(each.explains(case, difference) for each in listed):
                unlisted.append(f"{case}\n    {difference}")
    assert not unlisted, "\n".join(unlisted)


@pytest.mark.torch
@pytest.mark.parametrize("listed", LISTED, ids=lambda listed: f"{listed.names}-{listed.difference}")
def test_what_is_listed_is_met(torch: Any, topology: Any, listed: Listed) -> None:
    found = _differences(torch, topology, listed.met)
    met = listed.is_of(minor_of(torch.__version__))
    assert met == any(listed.explains(case, difference) for case, difference in found)
