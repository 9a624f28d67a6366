"""An operation is the same by the long way, by the short way, and without numbers.

Calls of every operation that is compared with PyTorch are drawn, with their gradients: shapes,
types, strides and devices of results, commands and their durations, the time of the host, and
errors are compared.
"""

import re
from functools import cache
from random import Random
from typing import Any, Final, NamedTuple

import differential_layers  # noqa: F401 - adds rows
import differential_networks  # noqa: F401 - adds rows
import differential_shapes  # noqa: F401 - adds rows
import pytest
from bridge_devices import machine
from differential_cases import Case, Side
from differential_rows import ROWS

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

CALLS: Final = 4
"""Calls of an operation."""

RUNS: Final = 3
"""Runs of a call: the first is met, those after it may be repeated."""

GROUPS: Final = 8
"""Tests that the operations are divided into."""


class Way(NamedTuple):
    """How operations go.

    Attributes:
        short: Whether operations that were met before take the short way.
        data: Whether tensors have numbers.
        fake: Whether values that are read are made up.
    """

    short: bool = True
    data: bool = True
    fake: bool = False


LONG: Final = Way(short=False)


class _Noted:
    """Stands for what issues the commands of a rank, and notes them."""

    def __init__(self, real: Any, notes: list[Any]) -> None:
        self._real, self._notes = real, notes

    def issue(self, name: str, stream: Any, duration: int) -> Any:
        self._notes.append((name, duration))
        return self._real.issue(name, stream, duration)


class _NoWays(dict[int, Any]):
    """Short ways of operations, none of which is open."""

    def get(self, _: Any, default: Any = None) -> Any:
        from kernbench.bridge.operations.direct import Way as ShortWay

        del default
        way = ShortWay(torch.ops.aten.add.Tensor)
        way.open = False
        return way


def _told(value: Any) -> Any:
    """Returns what is to be the same of a result."""
    if isinstance(value, torch.Tensor):
        strides = value.stride() if value.layout is torch.strided else None
        return tuple(value.shape), value.dtype, strides, str(value.device), value.requires_grad
    if isinstance(value, list | tuple):
        return [_told(one) for one in value]
    return type(value).__name__


def _seen(case: Case, rank: Any, notes: list[Any]) -> Any:
    """Makes a call, and passes back to its operands; returns what is to be the same."""
    side = Side(torch, "cuda")
    torch.manual_seed(1)
    torch.cuda.synchronize()
    notes.clear()
    # Whatever the calls before ended with, which may be listed.
    rank.process.lately.clear()
    rank.process.runs.clear()
    before = rank.process.host.clock
    try:
        result, leaves = side.call(case)
        told = [_told(result)]
        first = result[0] if isinstance(result, list | tuple) and result else result
        if isinstance(first, torch.Tensor) and first.requires_grad:
            first.backward(torch.ones_like(first))
            told.append([_told(leaf.grad) for leaf in leaves])
    except Exception as error:
        return type(error).__name__, str(error).partition("\n")[0], list(notes)
    return told, list(notes), rank.process.host.clock - before


@cache
def _found(group: int, way: Way) -> dict[str, list[Any]]:
    from kernbench.bridge.base.here import this_rank

    found: dict[str, list[Any]] = {}

    def worker(_: int) -> None:
        rank: Any = this_rank()
        notes: list[Any] = []
        rank.mode._alone = _Noted(rank.mode._alone, notes)
        if not way.short:
            rank.mode._ways = _NoWays()
        for name in sorted(ROWS)[group::GROUPS]:
            rng = Random(f"modes of {name}")
            for number in range(CALLS):
                case = ROWS[name](rng)
                found[f"{number}: {case}"] = [_seen(case, rank, notes) for _ in range(RUNS)]

    with machine(data=way.data, fake=way.fake):
        torch.multiprocessing.spawn(worker, nprocs=1)
    return found


@pytest.mark.parametrize("group", range(GROUPS))
def test_the_short_way_does_what_the_long_way_does(group: int) -> None:
    expected = _found(group, LONG)

    assert len(expected) > 150
    assert {
        case: (seen, expected[case])
        for case, seen in _found(group, Way()).items()
        if seen != expected[case]
    } == {}


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("group", range(GROUPS))
def test_an_operation_is_the_same_without_numbers(group: int, fake: bool) -> None:
    expected = _found(group, LONG)
    found = _found(group, Way(data=False, fake=fake))
    compared = {
        case: (runs, expected[case])
        for case, runs in found.items()
        if not _is_listed(case, expected[case][0], runs)
    }

    assert len(compared) > 100
    assert {case: both for case, both in compared.items() if both[0] != both[1]} == {}


LISTED: Final = {
    r"(B|b)atch_?(N|n)orm": "PyTorch lays the result out otherwise where it is for a shape alone",
    r"(H|h)uber_?(L|l)oss": "the same, of a gradient",
    r"GroupNorm": "the same, of a gradient",
    r"one_hot": "PyTorch compares for a shape alone, and scatters otherwise",
    r"logsigmoid": "PyTorch's result lies row by row on the CPU only",
    r"layer_norm": "PyTorch makes gradients that nobody needs where they are for a shape alone",
    r"Tensor\.__setitem__": "PyTorch fills with a single value on the CPU, and copies it on CUDA",
    r"torch\.isinf|Tensor\.t\(": "the stride of one element is any",
    r"Tensor\.__rshift__|torch\.where": "PyTorch's own of shapes takes fewer types",
}
"""Operations that PyTorch itself does otherwise without numbers, and how."""

OVERLAPS: Final = "more than one element of the written-to tensor"


def _is_listed(case: str, expected: Any, runs: list[Any]) -> bool:
    """Returns whether PyTorch, and not this package, makes the difference if there is any."""
    if isinstance(expected[0], str):  # shapes tell fewer mistakes, and by other words
        return OVERLAPS not in expected[1] or isinstance(runs[0][0], str)
    if any(each in case for each in ("shape=(0,)", "shape=(2, 0)", "0, 3)", "3, 0)")):
        return True  # strides of no elements are any, and what is copied by them
    lacks = all(run[0] == "NoDataError" for run in runs)
    return lacks or any(re.search(each, case) for each in LISTED)
