"""An operation runs the same kernels, for as long, whether or not tensors have numbers."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import both_torches
import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def _of_one(operation: Callable[[Any, Any], object]) -> both_torches.Maker:
    def make(torch: Any) -> both_torches.Operation:
        x = torch.ones(64, 64, device="cuda")
        return lambda: operation(torch, x)

    return make


OPERATIONS: dict[str, both_torches.Maker] = {
    **both_torches.NAMED,
    "assign_element": _of_one(lambda _, x: x.__setitem__((3, 4), 2.0)),
    "assign_masked": _of_one(lambda _, x: x.__setitem__(x > 0, 2.0)),
    "assign_of_host": _of_one(lambda torch, x: x.__setitem__(0, torch.tensor(2.0))),
    "assign_one_of_host": _of_one(lambda torch, x: x.__setitem__(0, torch.tensor([2.0]))),
}

Commands = list[tuple[str, int]]


@cache
def _commands(*, data: bool) -> dict[str, Commands]:
    return both_torches.of_real_torch(
        partial(both_torches.commands_of, operations=OPERATIONS), data=data
    )


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_the_same_commands_with_and_without_numbers(name: str) -> None:
    with_numbers, without = (_commands(data=data)[name] for data in (True, False))

    assert with_numbers == without


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("assign", "aten::fill_"),
        ("assign_part", "aten::fill_"),
        ("assign_of_host", "aten::fill_"),
        ("assign_element", "Memcpy HtoD"),  # of one size: PyTorch copies
        ("assign_one_of_host", "Memcpy HtoD"),  # PyTorch expands it on the host
    ],
)
@pytest.mark.parametrize("data", [True, False])
def test_a_number_that_is_assigned_fills_as_on_a_gpu(name: str, kernel: str, data: bool) -> None:
    assert [each for each, _ in _commands(data=data)[name]] == [kernel]
