"""Launches of programs on tiles, timed by hand."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from kernbench.des import Beside
from kernbench.hw.library import Library
from kernbench.kernels.contention import Contention
from kernbench.kernels.grids import GridLaunch, grid_time, resident
from kernbench.topology import load_topology
from kernbench.topology.spec import ProgramsSpec
from kernbench.units import Bandwidth, FlopRate, Ps

_NS = 1000
_PES = 4
_SPEC = ProgramsSpec(latency=Ps(500 * _NS), step=Ps(2 * _NS), issue=50, traffic=200)


@pytest.fixture
def library() -> Library:
    """Four PEs of an instruction of a warp a ns: half of 64 GFLOP/s, and a TFLOP/s of products."""
    sip = load_topology("h200x8").topology_obj.machine.system.sip
    pe = replace(sip.pe, math=FlopRate(64 * 10**9), programs=_SPEC)
    pe = replace(pe, gemm=replace(pe.gemm, rate={**pe.gemm.rate, "bf16": FlopRate(10**12)}))
    hbm = replace(sip.cube.hbm, bandwidth=Bandwidth(10**11))
    cube = replace(
        sip.cube, pes=_PES, hbm=hbm, sram=replace(sip.cube.sram, bandwidth=Bandwidth(5 * 10**11))
    )
    return Library(replace(sip, launch=Ps(1000 * _NS), pe=pe, cube=cube, kernels={}))


def launch(**given: Any) -> GridLaunch:
    usual = {
        "warps": 4,
        "stages": 3,
        "turns": ((_PES, 0),),
        "instructions": 100,
        "turn_instructions": 0,
        "hbm_bytes": 0,
        "traffic": 0,
    }
    return GridLaunch(**{**usual, **given})


def ns(library: Library, **given: Any) -> float:
    return grid_time(library, launch(**given)) / _NS


def bound(library: Library, **given: Any) -> str:
    parts = grid_time(library, launch(**given)).parts
    return max(parts, key=lambda key: (key[0] != "launch", parts[key].ps))[0]


def test_a_program_alone_issues_one_instruction_after_the_other(library: Library) -> None:
    # The launch has the latency of one load, so 1000 + 100 * 2.
    assert ns(library) == 1200
    assert bound(library) == "latency"


def test_programs_of_a_pe_share_its_slots(library: Library) -> None:
    # 10 programs of 4 warps on each PE: 4000 instructions.
    assert ns(library, turns=((10 * _PES, 0),)) == 1000 + 4000 - 500
    assert bound(library, turns=((10 * _PES, 0),)) == "math"


def test_the_last_wave_has_fewer_programs(library: Library) -> None:
    # 16 of 4 warps at once. The wave that is left has one for some PEs: 500 + 200.
    whole = ns(library, turns=((16 * _PES, 0),))
    assert whole == 1000 + 16 * 400 - 500
    assert ns(library, turns=((16 * _PES + 1, 0),)) == whole + 700


def test_one_stage_waits_for_each_load(library: Library) -> None:
    loop = {"turns": ((_PES, 10),), "turn_instructions": 20, "instructions": 0}
    flop = {"bf16": _PES * 10 * 100_000}  # 100 ns a turn
    # 10 turns of 500 for the load, 40 for the instructions, 100 for the product.
    assert ns(library, **loop, flop=flop, stages=1) == 1000 + 10 * 640
    # A load is issued within a turn, so a turn takes 500 + 40, or half of it with two ahead.
    assert ns(library, **loop, flop=flop, stages=2) == 1000 + 10 * 540
    assert ns(library, **loop, flop=flop, stages=3) == 1000 + 10 * 270
    # With many ahead the instructions and the product are left.
    assert ns(library, **loop, flop=flop, stages=9) == 1000 + 10 * 140


def test_loads_from_elsewhere_are_longer_on_their_way(library: Library) -> None:
    loop = {"turns": ((_PES, 10),), "turn_instructions": 20, "instructions": 0, "away": 300 * _NS}
    assert ns(library, **loop, stages=1) == 1000 + 10 * (500 + 300 + 40)
    assert ns(library, **loop, stages=2) == 1000 + 10 * (500 + 300 + 40)
    # Without a loop, there is one load.
    assert ns(library, turns=((_PES, 0),), away=300 * _NS) == ns(library, turns=((_PES, 0),)) + 300


def test_few_programs_do_not_keep_memory_and_engines_busy_at_once(library: Library) -> None:
    # 16 programs of a PE: 16 * 400 ns of engines, 500 of them in the launch; as long for the bytes.
    share = int(library.kernel("pointwise").share)  # percent of 100 bytes a ns
    loads = {"turns": ((16 * _PES, 0),), "stages": 1, "hbm_bytes": share * 5900}
    # A closed network of two stations that are equally fast: one part more in as many as it has.
    assert ns(library, **loads) == 1000 + 5900 * 17 / 16
    assert ns(library, **loads, registers=128) == 1000 + 5900 * 5 / 4
    assert ns(library, **loads, shared=200 << 10) == 1000 + 5900 + 5900
    # With loads ahead the longer one counts.
    assert ns(library, **{**loads, "stages": 3}, registers=128) == 1000 + 5900
    # One twice as fast as the other, two programs: (4 + 2 + 1) / (2 + 1) of the faster one's time.
    loads["hbm_bytes"] = share * 11800
    assert ns(library, **loads, shared=100 << 10) == pytest.approx(1000 + 5900 * 7 / 3, abs=0.001)
    assert bound(library, **loads, shared=100 << 10) == "HBM"


def test_bytes_of_a_last_wave_do_not_hide_its_wait(library: Library) -> None:
    # 16 programs of a PE move 9 us of bytes; the one that is left takes its 700 ns, and not 141.
    most = {"stages": 1, "hbm_bytes": int(library.kernel("pointwise").share) * 9063}
    alone = ns(
        library, turns=((16 * _PES, 0),), **{**most, "hbm_bytes": most["hbm_bytes"] * 64 // 65}
    )
    assert ns(library, turns=((16 * _PES + 1, 0),), **most) == pytest.approx(alone + 700, abs=1)


def test_loads_of_several_turns_are_waited_for_together(library: Library) -> None:
    loop = {"turns": ((_PES, 10),), "turn_instructions": 20, "instructions": 0, "stages": 1}
    # 10 turns of 40; three waits, as the last two turns wait, too.
    assert ns(library, **loop, waits=Fraction(1, 4)) == 1000 + 10 * 40 + 3 * 500


def test_instructions_of_a_turn_are_beside_the_product_of_the_one_before(library: Library) -> None:
    loop = {"turns": ((_PES, 10),), "turn_instructions": 20, "instructions": 30, "stages": 9}
    # Of 400 ns and 40 ns a turn the longer counts, and what is outside of them.
    flop = {"bf16": _PES * 10 * 400_000}
    assert ns(library, **loop, flop=flop, beside=True) == 1000 + 30 * 2 + 10 * 400
    assert ns(library, **loop, flop=flop) == 1000 + 30 * 2 + 10 * (400 + 40)
    assert ns(library, **loop, beside=True) == 1000 + 30 * 2 + 10 * 500 // 8 + 10 * 40 // 8


def test_warps_of_other_groups_go_on_beside_a_product(library: Library) -> None:
    loop = {"turns": ((_PES, 10),), "turn_instructions": 20, "instructions": 0, "stages": 9}
    flop = {"bf16": _PES * 10 * 400_000}  # 400 ns a turn, half of it of each group
    slow = replace(_SPEC, step=Ps(20 * _NS))
    slowly = Library(replace(library.sip, pe=replace(library.sip.pe, programs=slow)))
    assert ns(slowly, **loop, flop=flop, warps=8) == 1000 + 10 * (20 * 20 + 200)
    assert ns(slowly, **loop, flop=flop, warps=4) == 1000 + 10 * (20 * 20 + 400)


def test_products_of_all_programs_of_a_pe_take_turns(library: Library) -> None:
    loop = {"turns": ((8 * _PES, 10),), "turn_instructions": 1, "instructions": 0}
    flop = {"bf16": 8 * _PES * 10 * 100_000}
    assert ns(library, **loop, flop=flop) == 1000 + 8 * 10 * 100 - 500
    assert bound(library, **loop, flop=flop) == "tensor"


def test_bytes_of_the_memories_bound_a_launch(library: Library) -> None:
    # 100 GB/s of the HBM, twice 500 GB/s of the SRAM.
    assert ns(library, hbm_bytes=10**6, traffic=10**6) == 1000 + 10_000
    assert bound(library, hbm_bytes=10**6, traffic=10**6) == "HBM"
    assert ns(library, hbm_bytes=10**6, traffic=2 * 10**7) == 1000 + 20_000
    assert bound(library, hbm_bytes=10**6, traffic=2 * 10**7) == "L2"
    found = grid_time(library, launch(hbm_bytes=10**6, traffic=10**6))
    occupancy = found.occupancy
    assert occupancy.roofs["HBM"] == 10_000 * _NS
    assert occupancy.roofs["L2"] == 1_000 * _NS
    assert occupancy.ps == found
    assert (occupancy.work["HBM"], occupancy.work["math"]) == (10**6, _PES * 4 * 100 * 32)
    assert sum(spent.ps for spent in found.parts.values()) == found


def test_warps_that_never_meet_take_turns_at_memory_each_for_itself(library: Library) -> None:
    # Memory 40 us, engines 20 us of one program a PE with two warps: 60 us in turns, and with two
    # customers (40^3 - 20^3) / (40^2 - 20^2).
    given = {"warps": 2, "instructions": 5000, "hbm_bytes": 10**6 * 4, "stages": 1}
    both, each = (grid_time(library, launch(**given, together=one)) for one in (True, False))
    assert both > each
    assert each >= 40_000 * _NS


def test_spilled_registers_go_where_there_is_room(library: Library) -> None:
    sip = library.sip
    capacity, shared = sip.cube.sram.capacity, _SPEC.shared
    # One program a PE: beside the shared memory there is room for all of its registers.
    assert ns(library, spilled=10**9, stack=shared - 512, shared=512) == ns(library)
    price = grid_time(library, launch(spilled=10**6, stack=shared + 4))
    assert price.occupancy.work["L2"] == 10**6
    assert price.occupancy.work["HBM"] == 0
    # Of four PEs' registers, twice what the last cache keeps, half goes to the HBM and back.
    price = grid_time(library, launch(spilled=10**9, stack=capacity // 2))
    assert price.occupancy.work["HBM"] == 5 * 10**8
    assert "for want of registers 953.7 MiB go to memory and back" in str(price.occupancy)
    assert bound(library, spilled=10**9, stack=capacity // 2) == "HBM"


def test_atomic_operations_wait_for_each_other(library: Library) -> None:
    spec = replace(_SPEC, atomic=Ps(2 * _NS), sector=Ps(_NS), slices=48)
    pe = replace(library.sip.pe, programs=spec)
    crowded = Library(replace(library.sip, pe=pe))
    two = [Contention(passes=100, chunks=1, hottest=4000), Contention(3000, 1, 1)]
    assert ns(crowded, contention=two) == 1000 + 4000 * 2 + 3000
    assert bound(crowded, contention=two) == "atomics"
    assert ns(library, contention=two) == ns(library), "a machine that does not say how long"


def test_turns_that_wait_for_nothing_issue_without_gaps(library: Library) -> None:
    loop = {"turns": ((8 * _PES, 10),), "turn_instructions": 100, "instructions": 0, "stages": 1}
    # 8 programs of 4 warps, of two instructions a ns; others, and what waits, have half of that.
    assert ns(library, **loop, waits=Fraction(0)) == 1000 + 8 * 4 * 1000 / 2 - 500
    loop["instructions"] = 10
    assert ns(library, **loop, waits=Fraction(0)) == 1000 + 8 * 4 * (1000 / 2 + 10) - 500
    assert ns(library, **loop, waits=Fraction(1, 10)) == 1000 + 8 * 4 * (1000 + 10) - 500


def test_programs_that_differ_begin_where_one_has_ended(library: Library) -> None:
    # One at once on each PE. The 5th begins after the shortest, with 1 turn, and has 5.
    turns = ((1, 4), (1, 3), (1, 2), (1, 1), (1, 5))
    loop = {"turn_instructions": 1000, "instructions": 0, "stages": 2}
    given = launch(turns=turns, **loop, registers=255, warps=8)
    assert resident(given, _SPEC) == (1, "registers")
    # Its 8 warps issue 8000 instructions a turn; one would take 500 + 2000 with its load.
    assert grid_time(library, given) / _NS == 1000 + (1 + 5) * 8000 - 500


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"warps": 1}, (32, "programs")),
        ({"warps": 4}, (16, "warps")),
        # 255 registers are given out as 256: 65536 / (256 * 32 * 4)
        ({"registers": 255}, (2, "registers")),
        # 228 KiB / (48 + 1)
        ({"shared": 48 << 10}, (4, "shared memory")),
        ({"shared": 512 << 10}, (1, "shared memory")),
    ],
)
def test_what_limits_the_programs_of_a_pe(given: dict[str, int], expected: tuple[int, str]) -> None:
    assert resident(launch(**given), _SPEC) == expected


def test_few_programs_leave_pes_to_others(library: Library) -> None:
    few = grid_time(library, launch(turns=((_PES - 1, 0),)))
    assert isinstance(few.plain, Beside)
    assert not isinstance(grid_time(library, launch()).plain, Beside)


def test_a_machine_without_times_of_its_own_is_bound_by_its_engines(library: Library) -> None:
    sip = library.sip
    plain = Library(replace(sip, pe=replace(sip.pe, programs=ProgramsSpec())))
    # 4 warps of 100 instructions at 2 a ns, no latency.
    assert ns(plain) == 1000 + 200
