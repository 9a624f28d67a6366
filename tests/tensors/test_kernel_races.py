"""A kernel in `tl` races with others on what it loads and stores, and on nothing else."""

from collections.abc import Callable
from typing import Any

import pytest

import kernbench.torch as torch
from kernbench import tl
from kernbench.process.access import AccessError
from kernbench.testing import Kernbench

both_modes = pytest.mark.parametrize("data", [True, False])


@tl.jit
def copy(x: Any, y: Any, spare: Any, n: tl.constexpr) -> None:
    """Leaves `spare` alone."""
    lanes = tl.arange(0, n)
    tl.store(y + lanes, tl.load(x + lanes))


@tl.jit
def add_up(x: Any, y: Any, spare: Any, n: tl.constexpr) -> None:
    lanes = tl.arange(0, n)
    tl.store(y + lanes, tl.load(x + lanes) + tl.load(y + lanes))


@tl.jit
def copy_positive(x: Any, y: Any, spare: Any, n: tl.constexpr) -> None:
    """What it stores depends on values, whether it may store does not."""
    lanes = tl.arange(0, n)
    values = tl.load(x + lanes)
    tl.store(y + lanes, values, values > 0)


@tl.jit
def copy_if(x: Any, y: Any, spare: Any, n: tl.constexpr) -> None:
    """Only values tell what it touches."""
    lanes = tl.arange(0, n)
    if tl.load(x + 0) > 0:
        tl.store(y + lanes, tl.load(x + lanes))


def race(function: Callable[..., object], *arguments: object) -> bool:
    """Returns whether an operation is refused because of another stream."""
    try:
        function(*arguments)
    except AccessError as error:
        return error.code == "M10"
    return False


def touch(mine: torch.Tensor, by_kernel: bool, write: bool) -> None:
    """Reads or writes a tensor on the current stream."""
    x, y, spare = (torch.ones(4, device="cuda") for _ in range(3))
    if by_kernel:
        copy[(1,)](x if write else mine, mine if write else y, spare, n=4)
    elif write:
        mine.fill_(2)
    else:
        torch.add(mine, 1)


Pair = tuple[bool, bool]


def read_and_write(
    kernbench: Kernbench, kernel: tl.Kernel, which: str, *, data: bool, launches: int = 1
) -> tuple[Pair, Pair]:
    """Returns whether reading and writing an argument of a launch on another stream are races.

    First with operations of the library, then with kernels.
    """
    found = []
    with kernbench.context(data=data):
        for by_kernel in (False, True):
            each = []
            for write in (False, True):
                tensors = {name: torch.ones(4, device="cuda") for name in ("x", "y", "spare")}
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    for _ in range(launches):
                        kernel[(1,)](**tensors, n=4)
                each.append(race(touch, tensors[which], by_kernel, write))
                torch.cuda.synchronize()
            found.append((each[0], each[1]))
    return found[0], found[1]


@both_modes
@pytest.mark.parametrize("launches", [1, 3])
@pytest.mark.parametrize(
    ("kernel", "which", "expected"),
    [
        (copy, "x", (False, True)),
        (copy, "y", (True, True)),
        (copy, "spare", (False, False)),
        (add_up, "x", (False, True)),
        (add_up, "y", (True, True)),
        (copy_positive, "x", (False, True)),
        (copy_positive, "y", (True, True)),
        (copy_positive, "spare", (False, False)),
    ],
)
def test_what_a_kernel_touches(
    kernbench: Kernbench, kernel: tl.Kernel, which: str, expected: Pair, launches: int, data: bool
) -> None:
    by_operation, by_kernel = read_and_write(kernbench, kernel, which, data=data, launches=launches)
    assert by_operation == expected
    assert by_kernel == expected


@pytest.mark.parametrize("which", ["x", "y", "spare"])
def test_where_only_values_tell_it_may_do_anything(kernbench: Kernbench, which: str) -> None:
    found = read_and_write(kernbench, copy_if, which, data=True)
    assert found == ((True, True), (True, True))


@both_modes
def test_a_kernel_waits_for_nobody_where_others_touch_what_it_does_not(
    kernbench: Kernbench, data: bool
) -> None:
    with kernbench.context(data=data):
        x, y, spare = (torch.ones(4, device="cuda") for _ in range(3))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            spare.fill_(3)
            x + 1
        copy[(1,)](x, y, spare, n=4)
        assert race(copy[(1,)], spare, y, x, 4)
        assert race(copy[(1,)], y, x, spare, 4)
        torch.cuda.synchronize()


def test_order_ends_the_race(kernbench: Kernbench) -> None:
    with kernbench.context():
        x, y, z = (torch.full((4,), float(n), device="cuda") for n in range(3))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            copy[(1,)](z, y, x, n=4)
        assert race(copy[(1,)], y, x, z, 4)
        torch.cuda.current_stream().wait_stream(side)
        copy[(1,)](y, x, z, n=4)
        assert x.tolist() == [2.0] * 4


def test_a_kernel_that_finds_other_than_plain_values_may_touch_anything(
    kernbench: Kernbench,
) -> None:
    notes: list[int] = []

    @tl.jit(portable=False)
    def noting(x: Any, y: Any, spare: Any, n: tl.constexpr) -> None:
        notes.append(n)
        tl.store(y + tl.arange(0, n), tl.load(x + tl.arange(0, n)))

    found = read_and_write(kernbench, noting, "x", data=True)
    assert found == ((True, True), (True, True))
    assert notes == [4] * 4  # once a launch
