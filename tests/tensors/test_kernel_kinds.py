"""A launch takes another one's recording only if the kernel cannot tell the two apart."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernbench.torch as torch
from kernbench import caches, tl
from kernbench.runtime_api.context import RuntimeContext
from kernbench.testing import Kernbench
from kernbench.tl.launch import LaunchError, kind_of

SCALE: Any = 1.0


@tl.jit
def fill(x: Any, value: Any) -> None:
    tl.store(x, value)


@tl.jit
def second(x: Any, pair: Any) -> None:
    tl.store(x, pair[1] * 1)


@tl.jit(portable=False)
def divide(x: Any, sign: tl.constexpr) -> None:
    tl.store(x, sign * tl.full((), 0.0) / SCALE)


def twice(value: tl.Tile, by: float = 2.0) -> tl.Tile:
    found: tl.Tile = value * by * SCALE
    return found


@tl.jit(portable=False)
def apply(x: Any, function: tl.constexpr) -> None:
    tl.store(x, function(tl.load(x)))


def results(
    kernbench: Kernbench, kernel: tl.Kernel, values: list[Any], start: float = 3.0
) -> list[float]:
    """Returns what one context computes of values, in turn, on a tensor of its own each."""
    found = []
    with kernbench.context():
        for value in values:
            x = torch.full((1,), start, device="cuda")
            kernel[(1,)](x, value)
            found.append(x.item())
    return found


def test_zeros_of_both_signs(kernbench: Kernbench) -> None:
    found = results(kernbench, fill, [0.0, -0.0, 0.0, np.float32(-0.0)])
    assert np.signbit(found).tolist() == [False, True, False, True]


def test_numbers_that_are_equal_and_of_different_types(kernbench: Kernbench) -> None:
    caches.clear()
    with kernbench.context() as ctx:
        x, before = torch.zeros(1, device="cuda"), ctx.recordings.kept
        for pair in ((1, 2), (1.0, 2.0), (1, 2.0), (True, 2), (1, 2)):
            second[(1,)](x, pair)
        assert ctx.recordings.kept - before == 4


def test_values_outside_of_the_kernel(kernbench: Kernbench, monkeypatch: Any) -> None:
    found = []
    with kernbench.context():
        for scale in (1.0, -1.0, 1.0):
            monkeypatch.setitem(globals(), "SCALE", scale)
            x = torch.ones(1, device="cuda")
            divide[(1,)](x, 1.0)
            apply[(1,)](torch.ones(1, device="cuda"), twice)
            found.append(bool(np.signbit(x.item())))
    assert found == [False, True, False]


def test_functions_as_arguments(kernbench: Kernbench, monkeypatch: Any) -> None:
    def shifted(by: float) -> Callable[[tl.Tile], tl.Tile]:
        return lambda value: value + by

    found = results(kernbench, apply, [shifted(1.0), shifted(2.0), twice])
    assert found == [4.0, 5.0, 6.0]
    with kernbench.context():
        for defaults, expected in ((2.0, 6.0), (3.0, 9.0)):
            monkeypatch.setattr(twice, "__defaults__", (defaults,))
            x = torch.full((1,), 3.0, device="cuda")
            apply[(1,)](x, twice)
            assert x.item() == expected


def test_what_is_not_known_has_no_kind() -> None:
    class Plain:
        """Hashable, and nobody knows by what."""

    for value in (Plain(), [1], {1}, np.zeros(2), (1, Plain())):
        assert kind_of(value) is None
    items = [Plain()]
    assert kind_of(lambda: items) is None


@pytest.mark.parametrize("value", [1, 1.5, "a", None, tl.float32, (1, (2.0, "b")), tl.Tile])
def test_what_is_known_has_the_same_kind_again(value: Any) -> None:
    kind = kind_of(value)
    assert kind is not None
    assert kind == kind_of(value)
    assert hash(kind) == hash(kind_of(value))


def test_a_kernel_that_prints_does_so_at_every_launch(
    ctx: RuntimeContext, capsys: pytest.CaptureFixture[str]
) -> None:
    @tl.jit
    def telling(x: Any) -> None:
        print("a program runs")
        tl.store(x, 1.0)

    x = torch.zeros(1, device="cuda")
    for _ in range(2):
        telling[(1,)](x)
    torch.cuda.synchronize()
    assert capsys.readouterr().out.count("a program runs") == 2


@pytest.mark.parametrize(("value", "kind"), [("4", "str"), (b"4", "bytes"), ([4], "list")])
def test_what_no_kernel_takes_is_named(kernbench: Kernbench, value: Any, kind: str) -> None:
    with kernbench.context(), pytest.raises(LaunchError) as caught:
        fill[(1,)](torch.zeros(1, device="cuda"), value)
    assert caught.value.summary == f"kernel fill: argument value is a {kind}"
    assert (caught.value.code, __file__ in caught.value.facts[0]) == ("K3", True)
