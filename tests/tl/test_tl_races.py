"""Programs of one launch that touch the same elements are told so, however the launch is run."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tl_machine import Machine, place

from kernbench import tl
from kernbench.tl.launch import Kernel, jit
from kernbench.tl.races import ProgramRaceError
from kernbench.topology import Topology


@pytest.fixture(scope="session")
def sip8(topology: Callable[[str], Topology]) -> Topology:
    return topology("sip8")


@jit
def copy(
    x: Any, y: Any, load_at: tl.constexpr, store_at: tl.constexpr, step: tl.constexpr, n: int
) -> None:
    """Loads from one place of a tensor, and stores to another one of it or of a second one."""
    row, lanes = tl.program_id(0), tl.arange(0, 8)
    loaded = tl.load(x + load_at + row * step + lanes, lanes < n, 0)
    tl.store(x + store_at + row * step + lanes, loaded, lanes < n)
    tl.store(y + row * 8 + lanes, loaded)


def launched(machine: Machine, kernel: Kernel, grid: tuple[int, ...], **arguments: Any) -> str:
    """Returns the error of a launch, or nothing."""
    try:
        machine.launch(kernel, grid, **arguments)
    except ProgramRaceError as error:
        return str(error)
    return ""


@given(
    programs=st.integers(1, 5),
    load_at=st.integers(0, 40),
    store_at=st.integers(0, 40),
    step=st.integers(0, 12),
    n=st.integers(0, 8),
)
def test_a_race_is_what_brute_force_finds(
    sip8: Topology, programs: int, load_at: int, store_at: int, step: int, n: int
) -> None:
    def touched(base: int, program: int) -> set[int]:
        return {base + program * step + lane for lane in range(n)}

    expected = any(
        touched(store_at, a) & (touched(store_at, b) | touched(load_at, b))
        for a, b in product(range(programs), repeat=2)
        if a != b
    )
    found = []
    for recorded in (True, False):
        machine = Machine(sip8, recorded=recorded)
        x = machine.tensor(np.zeros(120, np.float32))
        y = machine.tensor(np.zeros(40, np.float32))
        options = {"load_at": load_at, "store_at": store_at, "step": step, "n": n}
        found.append(launched(machine, copy, (programs,), x=x, y=y, **options))
    assert [bool(each) for each in found] == [expected] * 2
    assert found[0] == found[1]


@jit
def bump(x: Any, block: tl.constexpr) -> None:
    lanes = tl.arange(0, block)
    tl.store(x + lanes, tl.load(x + lanes) + 1)


@jit
def look_ahead(x: Any, block: tl.constexpr) -> None:
    lanes = tl.program_id(0) * block + tl.arange(0, block)
    ahead = tl.load(x + lanes + block)
    tl.store(x + lanes, ahead)


@pytest.mark.parametrize("recorded", [True, False])
def test_m12_names_both_programs_and_their_lines(sip8: Topology, recorded: bool) -> None:
    machine = Machine(sip8, recorded=recorded)
    x = machine.tensor(np.zeros(64, np.float32), label="x")
    allocated = x.buffer.allocation
    assert allocated.site is not None
    with pytest.raises(ProgramRaceError) as caught:
        machine.launch(bump, (4,), x=x, block=8)
    store = place(__file__, "tl.store(x + lanes, tl.load(x + lanes) + 1)")
    assert str(caught.value).splitlines()[:4] == [
        "[M12] programs (1,) and (0,) of grid (4,) touch the same elements of x, in no order",
        f"  program (1,) stores at {store}",
        f"  program (0,) stores at {store}",
        f"  allocated at {allocated.site.show()}",
    ]


@pytest.mark.parametrize("recorded", [True, False])
def test_m12_a_load_of_what_another_program_stores(sip8: Topology, recorded: bool) -> None:
    machine = Machine(sip8, recorded=recorded)
    x = machine.tensor(np.zeros(64, np.float32), label="x")
    with pytest.raises(ProgramRaceError) as caught:
        machine.launch(look_ahead, (2, 1), x=x, block=8)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("[M12] programs (0, 0) and (1, 0) of grid (2, 1) touch the same")
    assert lines[1].startswith("  program (0, 0) loads at ")
    assert lines[1].endswith("ahead = tl.load(x + lanes + block)")
    assert lines[2].startswith("  program (1, 0) stores at ")


def test_one_program_may_do_as_it_likes(sip8: Topology) -> None:
    machine = Machine(sip8)
    x = machine.tensor(np.zeros(64, np.float32))
    machine.launch(bump, (1,), x=x, block=8)
    machine.launch(look_ahead, (1,), x=x, block=8)
    assert x.read()[:8].tolist() == [0.0] * 8


def test_without_data_nothing_is_compared(topology: Callable[[str], Topology]) -> None:
    machine = Machine(topology("sip8"), data=False)
    assert launched(machine, bump, (4,), x=machine.tensor(np.zeros(64, np.float32)), block=8) == ""


@jit
def in_turns(x: Any) -> None:
    """The second program stores when the first one's message says that it has done so."""
    if tl.program_id(0) == 0:
        tl.store(x + tl.arange(0, 8), 1.0)
        tl.send(tl.zeros((1,)), 1)
    else:
        tl.recv(0)
        tl.store(x + tl.arange(0, 8), 2.0)


def test_messages_put_programs_in_an_order(sip8: Topology) -> None:
    machine = Machine(sip8)
    x = machine.tensor(np.zeros(8, np.float32))
    machine.launch(in_turns, (2,), x=x)
    assert x.read().tolist() == [2.0] * 8


@jit
def shift(x: Any, y: Any, block: tl.constexpr) -> None:
    lanes = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + lanes, tl.load(x + lanes + block))


@pytest.mark.parametrize("recorded", [True, False])
def test_arguments_are_taken_by_themselves(sip8: Topology, recorded: bool) -> None:
    machine = Machine(sip8, recorded=recorded)
    base = machine.tensor(np.arange(64, dtype=np.float32))
    for _ in range(2):
        assert launched(machine, shift, (2,), x=base, y=base, block=8) == ""
