"""Programs and lanes that touch the same elements in no order, found only where they do."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ttir_texts import FIRST, Array, kernel, run

from kernbench.errors import KernbenchError
from kernbench.ttir.memory import Allocation, Memory
from kernbench.ttir.module import Operation
from kernbench.ttir.races import Access, RaceError, Races
from kernbench.ttir.sums import Sum

PROGRAMS = 4
LANES = "tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32>"


def rows(step: int, *operations: str) -> str:
    """Returns a kernel whose programs have 8 lanes at `step` times their number: `%p` and `%q`."""
    lines = [
        "%i = tt.get_program_id x : i32",
        f"%s = arith.constant {step} : i32",
        "%b = arith.muli %i, %s : i32",
        f"%l = {LANES}",
        "%bs = tt.splat %b : i32 -> tensor<8xi32>",
        "%o = arith.addi %bs, %l : tensor<8xi32>",
        "%is = tt.splat %i : i32 -> tensor<8xi32>",
    ]
    for name, argument in (("p", "x"), ("q", "y")):
        pointers = "tensor<8x!tt.ptr<i32>>"
        lines.append(f"%{name}s = tt.splat %{argument} : !tt.ptr<i32> -> {pointers}")
        lines.append(f"%{name} = tt.addptr %{name}s, %o : {pointers}, tensor<8xi32>")
    return kernel("%x: !tt.ptr<i32>, %y: !tt.ptr<i32>", "\n".join((*lines, *operations)))


LOAD = '%v = tt.load %p : tensor<8x!tt.ptr<i32>> loc("mine.py":3:5)'
STORE = 'tt.store %p, %is : tensor<8x!tt.ptr<i32>> loc("mine.py":4:5)'


def caught(text: str, arguments: Sequence[Array], programs: int = PROGRAMS) -> list[str]:
    with pytest.raises(KernbenchError) as found:
        run(text, arguments, (programs, 1, 1))
    assert found.value.code == "M12"
    return [found.value.summary, *found.value.facts]


def test_programs_that_store_different_values_to_an_element_are_told() -> None:
    assert caught(rows(6, STORE), [np.zeros(32, np.int32), np.zeros(32, np.int32)]) == [
        "program (0, 0, 0) and program (1, 0, 0) of kernel touch the same elements of argument 0, "
        "in no order",
        "program (0, 0, 0), lane (6,): tl.store byte 24 of 128",
        "at mine.py:4:5",
        "program (1, 0, 0): tl.store byte 24 of 128",
        "at mine.py:4:5",
    ]


def test_a_program_that_changes_what_another_one_loads_is_told() -> None:
    told = caught(rows(6, LOAD, STORE), [np.zeros(32, np.int32), np.zeros(32, np.int32)])
    assert told == [
        "program (1, 0, 0) and program (0, 0, 0) of kernel touch the same elements of argument 0, "
        "in no order",
        "program (1, 0, 0), lane (0,): tl.store byte 24 of 128",
        "at mine.py:4:5",
        "program (0, 0, 0): tl.load byte 24 of 128",
        "at mine.py:3:5",
    ]


def test_a_load_of_what_another_program_has_stored_is_told() -> None:
    back = "%c = arith.constant 8 : i32\n%cs = tt.splat %c : i32 -> tensor<8xi32>\n"
    back += "%w = tt.addptr %p, %cs : tensor<8x!tt.ptr<i32>>, tensor<8xi32>\n"
    load = 'tt.load %w : tensor<8x!tt.ptr<i32>> loc("mine.py":5:5)'
    told = caught(rows(8, STORE, back + "%v = " + load), [np.zeros(64, np.int32)] * 2)
    assert told[1:4] == [
        "program (0, 0, 0), lane (0,): tl.load byte 32 of 256",
        "at mine.py:5:5",
        "program (1, 0, 0): tl.store byte 32 of 256",
    ]


@pytest.mark.parametrize(
    ("step", "operations"),
    [
        (8, (LOAD, STORE)),  # each its own
        (0, (LOAD,)),  # nobody stores
        (
            0,
            (
                "%v = tt.load %q : tensor<8x!tt.ptr<i32>>",
                "tt.store %p, %l : tensor<8x!tt.ptr<i32>>",
            ),
        ),
        (8, (LOAD, "tt.store %p, %v : tensor<8x!tt.ptr<i32>>", STORE)),  # twice
    ],
)
def test_what_is_no_race_is_not_told(step: int, operations: tuple[str, ...]) -> None:
    run(rows(step, *operations), [np.ones(32, np.int32), np.ones(32, np.int32)], (PROGRAMS, 1, 1))


def test_to_store_what_is_there_is_no_race() -> None:
    store = "tt.store %p, %v : tensor<8x!tt.ptr<i32>>"
    run(rows(4, LOAD, store), [np.arange(32, dtype=np.int32)] * 2, (PROGRAMS, 1, 1))


def test_lanes_that_store_different_values_to_an_element_are_told() -> None:
    half = (
        "%two = arith.constant dense<2> : tensor<8xi32>\n%h = arith.divsi %l, %two : tensor<8xi32>"
    )
    store = 'tt.store %w, %l : tensor<8x!tt.ptr<i32>> loc("mine.py":4:5)'
    move = "%w = tt.addptr %ps, %h : tensor<8x!tt.ptr<i32>>, tensor<8xi32>"
    told = caught(rows(8, half, move, store), [np.zeros(8, np.int32)] * 2, programs=1)
    assert told == [
        "lanes of program (0, 0, 0) of kernel store different values to the same element of "
        "argument 0",
        "program (0, 0, 0), lane (0,): tl.store byte 0 of 32",
        "at mine.py:4:5",
    ]


def test_what_follows_an_atomic_operation_may_be_in_order() -> None:
    text = kernel(
        "%x: !tt.ptr<i32>, %count: !tt.ptr<i32>, %out: !tt.ptr<i32>",
        """
    %i = tt.get_program_id x : i32
    %one = arith.constant 1 : i32
    %yes = arith.constant true
    %three = arith.constant 3 : i32
    %p = tt.addptr %x, %i : !tt.ptr<i32>, i32
    tt.store %p, %i : !tt.ptr<i32>
    %n = tt.atomic_rmw add, acq_rel, gpu, %count, %one, %yes : (!tt.ptr<i32>, i32, i1) -> i32
    %last = arith.cmpi eq, %n, %three : i32
    scf.if %last {
      %q = tt.addptr %x, %one : !tt.ptr<i32>, i32
      %v = tt.load %q : !tt.ptr<i32>
      tt.store %out, %v : !tt.ptr<i32>
    }""",
    )
    out = np.zeros(1, np.int32)

    run(text, [np.zeros(4, np.int32), np.zeros(1, np.int32), out], (4, 1, 1))

    assert out.tolist() == [1]


@st.composite
def tiles(draw: Any) -> tuple[Any, Array | None]:
    """Draws addresses of a tile of 2 x 4 elements for each program, and a mask."""
    count = draw(st.sampled_from([1, PROGRAMS]))
    numbers = np.arange(count).reshape(-1, 1, 1)
    first = 40 + draw(st.integers(0, 9)) * numbers
    row = np.arange(2).reshape(1, 2, 1) * draw(st.integers(-6, 6))
    column = np.arange(4).reshape(1, 1, 4) * draw(st.sampled_from([1, 1, 2, -1, 0]))
    parts = [FIRST + 4 * (first + row), 4 * column]
    bits = st.lists(st.booleans(), min_size=8, max_size=8)
    mask = draw(
        st.one_of(
            st.none(),
            st.integers(0, 4).map(lambda n: (np.arange(4) < n).reshape(1, 1, 4)),
            st.integers(0, 2).map(lambda n: (np.arange(2) < n).reshape(1, 2, 1)),
            bits.map(lambda found: np.array(found).reshape(1, 2, 4)),
        )
    )
    return (Sum(parts) if draw(st.booleans()) else parts[0] + parts[1]), mask


@given(st.lists(st.tuples(st.booleans(), tiles(), st.integers(0, 3)), min_size=1, max_size=4))
def test_races_are_those_of_single_elements(accesses: list[Any]) -> None:
    """The oracle walks through elements: who has loaded and stored each, and which value."""
    programs = np.arange(PROGRAMS)
    elements = np.arange(200, dtype=np.int32)
    memory = Memory({0: Allocation("argument 0", FIRST, elements.view(np.uint8))})
    memory.races = Races([(FIRST, FIRST + 800)], PROGRAMS)
    loaded: dict[int, set[int]] = {}
    stored: dict[int, set[int]] = {}
    now = elements.copy()
    expected = found = False
    for stores, (address, mask), kind in accesses:
        full = address.array if isinstance(address, Sum) else address
        full = (np.broadcast_to(full, (PROGRAMS, 2, 4)) - FIRST) // 4
        active = np.broadcast_to(True if mask is None else mask, full.shape)
        values = {
            0: np.zeros((1, 1, 1), np.int32),
            1: programs.astype(np.int32).reshape(-1, 1, 1),
            2: np.arange(4, dtype=np.int32).reshape(1, 1, 4),
            3: np.broadcast_to(now[full], full.shape).copy(),
        }[kind]
        by = Access(Operation("tt.store" if stores else "tt.load"), programs)
        given_values = np.broadcast_to(values, full.shape)
        before = now.copy()
        wanted: dict[int, set[int]] = {}
        for place in np.ndindex(full.shape):
            if not active[place]:
                continue
            element, program, value = int(full[place]), place[0], int(given_values[place])
            others = stored.get(element, set()) - {program}
            if stores:
                others |= loaded.get(element, set()) - {program}
                expected |= bool(others) and value != before[element]
                wanted.setdefault(element, set()).add(value)
                now[element] = value
            else:
                expected |= bool(others)
        for place in np.ndindex(full.shape):
            if active[place]:
                (stored if stores else loaded).setdefault(int(full[place]), set()).add(place[0])
        expected |= any(len(each) > 1 for each in wanted.values())
        try:
            if stores:
                memory.store(address, (2, 4), values, mask, 0, by)
            else:
                memory.load(address, (2, 4), elements.dtype, mask, None, 0, by)
        except RaceError:
            found = True
        assert found == expected
        if found:
            return
