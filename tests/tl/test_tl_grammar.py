"""A kernel is refused where Triton refuses to compile it, and nowhere else (K12)."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import triton_kernels
from tl_machine import Machine, place
from triton_compiler import refusals
from triton_kernels import ACCEPTED, REFUSED

import kernbench.torch as torch
from kernbench import tl
from kernbench.errors import OperandError
from kernbench.hw.pe import PeCosts
from kernbench.testing import Kernbench
from kernbench.tl.grammar import check
from kernbench.tl.launch import Kernel, kind_of
from kernbench.tl.typed import CompilationError
from kernbench.topology import Topology


@pytest.fixture(scope="session")
def machine(topology: Callable[[str], Topology]) -> Machine:
    return Machine(topology("sip8"))


def checked(machine: Machine, kernel: Kernel) -> None:
    arguments = {
        "x": tl.Pointer(machine.tensor(np.zeros(64, np.float32)), 0),
        "h": tl.Pointer(machine.tensor(np.zeros(64, np.float16)), 0),
        "n": 7,
        "f": 1.5,
        "B": 16,
    }
    check(kernel, arguments, PeCosts.of(machine.engine.devices[0].sip))


@pytest.mark.parametrize("function", ACCEPTED, ids=lambda f: f.__name__)
def test_what_triton_compiles_is_accepted(machine: Machine, function: Any) -> None:
    checked(machine, Kernel(function))


@pytest.mark.parametrize("function", REFUSED, ids=lambda f: f.__name__)
def test_what_triton_refuses_is_refused(machine: Machine, function: Any) -> None:
    with pytest.raises(CompilationError) as caught:
        checked(machine, Kernel(function))
    assert caught.value.code == "K12"
    assert REFUSED[function] in str(caught.value)
    assert caught.value.facts[0].startswith(f"at {triton_kernels.__file__}:")
    assert caught.value.hint
    checked(machine, Kernel(function, portable=False))


@tl.jit
def total(x: Any, out: Any, n: int, block: tl.constexpr) -> None:
    found = tl.full((), 0, tl.int32)
    for start in range(0, n, block):
        found += tl.sum(tl.load(x + start + tl.arange(0, block)))
    tl.store(out, found)


def test_k12_a_launch_is_refused_before_anything_is_issued(kernbench: Kernbench) -> None:
    with kernbench.context() as ctx:
        x, out = torch.ones(64, device="cuda"), torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        before = ctx.engine.loop.now
        with pytest.raises(CompilationError) as caught:
            total[(1,)](x, out, 64, block=16)
        changed = place(__file__, "found += tl.sum(tl.load(x + start + tl.arange(0, block)))")
        issued = place(__file__, "total[(1,)](x, out, 64, block=16)")
        assert str(caught.value) == (
            "[K12] Triton would not compile this kernel: found is int32[] before and becomes "
            "float32[] in this loop\n"
            f"  at {changed}\n"
            f"  total was issued at {issued}\n"
            "  hint: start with a value of the type and shape that found takes, such as tl.zeros, "
            "or convert with .to(dtype)"
        )
        torch.cuda.synchronize()
        assert ctx.engine.loop.now == before
        assert out.item() == 0.0


def test_every_launch_of_a_refused_kernel_is_refused(kernbench: Kernbench) -> None:
    with kernbench.context():
        x, out = torch.ones(64, device="cuda"), torch.zeros(1, device="cuda")
        for n in (64, 64, 32):
            with pytest.raises(CompilationError):
                total[(1,)](x, out, n, block=16)


def grid_of_twelve(x: Any, out: Any) -> None:
    lanes = tl.arange(0, 12)
    tl.store(out + lanes, tl.load(x + lanes) + 1)


def test_a_kernel_for_pes_only_may_have_blocks_of_any_extent(kernbench: Kernbench) -> None:
    with kernbench.context():
        x, out = torch.zeros(12, device="cuda"), torch.zeros(12, device="cuda")
        with pytest.raises(CompilationError, match="must be a power of 2"):
            tl.jit(grid_of_twelve)[(1,)](x, out)
        tl.jit(portable=False)(grid_of_twelve)[(1,)](x, out)
        assert out.tolist() == [1.0] * 12


@tl.jit
def pass_on(x: Any, y: Any, block: tl.constexpr) -> None:
    """What another program sends has a type that only a run tells."""
    if tl.program_id(0) == 0:
        tl.send(tl.load(x + tl.arange(0, block)), 1)
    else:
        tile = tl.recv(0)
        for _ in range(2):
            tile = tile + 1.0 if block > 2 else -tile
        tl.store(y + tl.arange(0, block), tl.maximum(tile, 0.0))


def test_received_tiles_are_of_any_type(kernbench: Kernbench) -> None:
    with kernbench.context():
        x, y = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
        pass_on[(2,)](x, y, block=4)
        assert y.tolist() == [3.0] * 4


def test_a_kernel_has_a_source(machine: Machine) -> None:
    scope: dict[str, Any] = {"tl": tl}
    exec("def typed_in(x, h, n, f, B: tl.constexpr):\n    tl.store(x, 1.0)", scope)
    for function in (scope["typed_in"], lambda x, h, n, f, B: tl.store(x, 1.0)):
        with pytest.raises(CompilationError, match=r"is no `def` of a file"):
            checked(machine, Kernel(function))


@pytest.mark.parametrize("value", [1, 0, 2])
def test_the_argument_1_is_a_constant(machine: Machine, value: int) -> None:
    def strided(x: Any, n: Any) -> None:
        tl.store(x + tl.arange(0, n), 1.0)

    arguments = {"x": tl.Pointer(machine.tensor(np.zeros(4, np.float32)), 0), "n": value}
    costs = PeCosts.of(machine.engine.devices[0].sip)
    if value == 1:
        check(Kernel(strided), arguments, costs)
    else:
        with pytest.raises(CompilationError, match=r"the bounds of tl\.arange are constants"):
            check(Kernel(strided), arguments, costs)


# Constants


def test_a_marked_constant_works_like_its_value(machine: Machine) -> None:
    size, half, flag = tl.constexpr(4), tl.constexpr(0.5), tl.constexpr(True)

    def marked(x: Any, out: Any) -> None:
        lanes = tl.arange(0, size) * 1
        if flag:
            tl.store(out + lanes, tl.load(x + lanes) * half + size)

    for dtype in (np.float16, np.float32):
        x = machine.tensor(np.array([1, 2, 3, 4], dtype))
        out = machine.tensor(np.zeros(4, dtype))
        machine.launch(Kernel(marked), x=x, out=out)
        assert out.read().tolist() == [4.5, 5.0, 5.5, 6.0]
    assert (size + 1, half * 2, f"{size}", list(range(size))) == (5, 1.0, "4", [0, 1, 2, 3])
    assert tl.constexpr(size).value == 4
    assert tl.constexpr("a") + "b" == "ab"
    assert tl.constexpr((1, 2))[1] == 2
    assert tl.constexpr(None) is None
    assert tl.constexpr(tl.float16) is tl.float16


def test_marked_constants_are_told_apart() -> None:
    kinds = [kind_of(tl.constexpr(value)) for value in (1, 2, 1.0, "1", (1,))]
    assert None not in kinds
    assert len(set(kinds)) == 5
    assert kind_of(tl.constexpr(1)) == kinds[0]


def test_what_cannot_be_marked() -> None:
    with pytest.raises(OperandError, match=r"tl\.constexpr takes a number, .*; got \[1\]"):
        tl.constexpr([1])


# Triton's own compiler


@pytest.mark.torch
def test_the_lists_are_what_triton_says() -> None:
    pytest.importorskip("triton")
    functions = [*ACCEPTED, *REFUSED]
    said = refusals([(triton_kernels.__file__, function.__name__) for function in functions])
    wrong = [
        f"{function.__name__}: {answer or 'compiles'}"
        for function, answer in zip(functions, said, strict=True)
        if (answer is not None) is not (function in REFUSED)
    ]
    assert not wrong
