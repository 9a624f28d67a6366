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
from kernbench.memory import DType, View, dtypes
from kernbench.tl.launch import Kernel, jit
from kernbench.topology import Topology
from kernbench.ttir.reports import ProgramRaceError


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
        f"  program (1,) stores element 0 of x at {store}",
        f"  program (0,) stores element 0 of x at {store}",
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
    assert lines[1].startswith("  program (0, 0) loads element 8 of x at ")
    assert lines[1].endswith("ahead = tl.load(x + lanes + block)")
    assert lines[2].startswith("  program (1, 0) stores element 8 of x at ")


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
def test_m12_two_arguments_in_one_memory(sip8: Topology, recorded: bool) -> None:
    machine = Machine(sip8, recorded=recorded)
    apart = [machine.tensor(np.arange(64, dtype=np.float32)) for _ in range(2)]
    base = machine.tensor(np.arange(64, dtype=np.float32), label="base")
    assert launched(machine, shift, (2,), x=apart[0], y=apart[1], block=8) == ""
    lines = launched(machine, shift, (2,), x=base, y=base, block=8).splitlines()
    site = place(__file__, "tl.store(y + lanes, tl.load(x + lanes + block))")
    load = site.replace(":5: ", ":25: ")
    assert lines[:4] == [
        "[M12] programs (0,) and (1,) of grid (2,) touch the same elements of base, in no order",
        f"  program (0,) loads element 8 of x at {load}",
        f"  program (1,) stores element 8 of y at {site}",
        "  x and y lie in the same memory",
    ]
    machine = Machine(sip8, recorded=recorded)
    base = machine.tensor(np.arange(64, dtype=np.float32))
    assert launched(machine, shift, (1,), x=base, y=base, block=8) == ""


@jit
def write_two(x: Any, y: Any, step: tl.constexpr, count: tl.constexpr) -> None:
    row = tl.program_id(0)
    tl.store(x + row * step + tl.arange(0, count), 1)
    tl.store(y + row * step + tl.arange(0, count), 2)


@given(
    starts=st.tuples(st.integers(0, 12), st.integers(0, 12)),
    kinds=st.tuples(*[st.sampled_from([dtypes.uint8, dtypes.int16, dtypes.int64])] * 2),
    programs=st.integers(1, 3),
    step=st.integers(0, 6),
    count=st.sampled_from([1, 2, 4]),
)
def test_views_of_one_memory_race_where_their_bytes_meet(
    sip8: Topology,
    starts: tuple[int, int],
    kinds: tuple[DType, DType],
    programs: int,
    step: int,
    count: int,
) -> None:
    def stored(program: int) -> set[int]:
        return {
            byte
            for start, kind in zip(starts, kinds, strict=True)
            for byte in range(
                (start + program * step) * kind.itemsize,
                (start + program * step + count) * kind.itemsize,
            )
        }

    expected = any(stored(a) & stored(b) for a, b in product(range(programs), repeat=2) if a != b)
    for recorded in (True, False):
        machine = Machine(sip8, recorded=recorded)
        buffer = machine.tensor(np.zeros(512, np.uint8)).buffer
        views = [
            View(buffer, kind, (512 // kind.itemsize - start,), (1,), start)
            for start, kind in zip(starts, kinds, strict=True)
        ]
        options = {"step": step, "count": count}
        error = launched(machine, write_two, (programs,), x=views[0], y=views[1], **options)
        assert bool(error) == expected


def set_flag(x: Any, y: Any, same: tl.constexpr) -> None:
    row = tl.program_id(0)
    if same:
        tl.store(x, 7)
    else:
        tl.store(x, row)
    tl.store(y + row, row)


@pytest.mark.parametrize("recorded", [True, False])
def test_one_value_of_several_programs_has_a_switch(sip8: Topology, recorded: bool) -> None:
    strict, lenient = jit(set_flag), jit(same_stores=True)(set_flag)
    machine = Machine(sip8, recorded=recorded)
    x, y = machine.tensor(np.zeros(1, np.int32)), machine.tensor(np.zeros(4, np.int32))
    for _ in range(2):
        assert launched(machine, lenient, (4,), x=x, y=y, same=True) == ""
        assert (x.read().tolist(), y.read().tolist()) == ([7], [0, 1, 2, 3])
        machine = Machine(sip8, recorded=recorded)
        x, y = machine.tensor(np.zeros(1, np.int32)), machine.tensor(np.zeros(4, np.int32))
    error = launched(machine, strict, (4,), x=x, y=y, same=True)
    assert "if all store the same value, say @tl.jit(same_stores=True)" in error
    machine = Machine(sip8, recorded=recorded)
    x, y = machine.tensor(np.zeros(1, np.int32)), machine.tensor(np.zeros(4, np.int32))
    error = launched(machine, lenient, (4,), x=x, y=y, same=False)
    assert "programs (1,) and (0,) of grid (4,) touch the same elements" in error
    assert "refused even under same_stores" in error


@jit
def scatter(x: Any, index: Any, values: Any, n: int, count: tl.constexpr) -> None:
    lanes = tl.arange(0, count)
    tl.store(x + tl.load(index + lanes), tl.load(values + lanes), lanes < n)


@jit
def fold(x: Any, values: Any, count: tl.constexpr) -> None:
    lanes = tl.arange(0, count)
    tl.store(x + lanes % 2, tl.load(values + lanes))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), min_size=8, max_size=8))
def test_lanes_of_one_store_agree_on_each_element(
    sip8: Topology, pairs: list[tuple[int, int]]
) -> None:
    active = pairs[:6]
    expected = len({index for index, _ in active}) < len(set(active))
    for recorded in (True, False):
        machine = Machine(sip8, recorded=recorded)
        error = launched(
            machine,
            scatter,
            (1,),
            x=machine.tensor(np.zeros(4, np.float32)),
            index=machine.tensor(np.array([index for index, _ in pairs])),
            values=machine.tensor(np.array([value for _, value in pairs], np.float32)),
            n=6,
            count=8,
        )
        assert bool(error) == expected


@pytest.mark.parametrize("recorded", [True, False])
def test_m12_names_the_store_whose_lanes_differ(sip8: Topology, recorded: bool) -> None:
    machine = Machine(sip8, recorded=recorded)
    x = machine.tensor(np.zeros(2, np.float32), label="x")
    same = machine.tensor(np.array([3, 4] * 4, np.float32))
    assert launched(machine, fold, (1,), x=x, values=same, count=8) == ""
    assert x.read().tolist() == [3, 4]
    values = machine.tensor(np.array([3, 4, 3, 5, 3, 4, 3, 4], np.float32))
    lines = launched(machine, fold, (1,), x=x, values=values, count=8).splitlines()
    site = place(__file__, "tl.store(x + lanes % 2, tl.load(values + lanes))")
    assert lines[:3] == [
        "[M12] lanes of one tl.store have different values for one element of x",
        f"  program (0,) of grid (1,) stores element 1 of x at {site}",
        "  2 of 8 lanes store to an element that another lane stores to, and which one is last is "
        "not defined",
    ]
    assert x.read().tolist() == [3, 4]
