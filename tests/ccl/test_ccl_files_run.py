"""Collectives from files, run: what they compute to the bit, when, and how they are named."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import ccl_files
import numpy as np
import pytest
from ccl_files import FILES, Xml, outputs_of
from ccl_machine import planned, shipped_algorithm
from ccl_operations import draw, even, execute, expected, simulate

from kernbench.ccl.algorithms import ring
from kernbench.ccl.alone import time_alone
from kernbench.ccl.config import Chosen, choose, load_ccl, shipped_ccl_file
from kernbench.ccl.files import msccl_xml
from kernbench.ccl.files.blocks import Blocks
from kernbench.ccl.files.lower import lower
from kernbench.ccl.files.program import Program
from kernbench.ccl.programs import channels_of
from kernbench.ccl.tuner import Choices
from kernbench.config.problems import ConfigError
from kernbench.errors import UnsupportedError, UsageError
from kernbench.topology import Topology


def program_of(xml: Xml) -> tuple[Blocks, Program]:
    file = msccl_xml.read("a.xml", xml.text)
    return file, Program(lower(file))


def two_sends_first() -> Xml:
    """Each rank sends two chunks before it receives."""
    xml = Xml("allgather", 2, 4)
    for rank in range(2):
        block = xml.block(rank, 1 - rank, 1 - rank)
        for chunk in range(2):
            xml.step(block, "s", ("i", chunk))
        for chunk in range(2):
            xml.step(block, "r", ("i", 0), ("o", 2 * (1 - rank) + chunk))
    return xml


def unequal_swap() -> Xml:
    """Rank 0 sends two chunks as one, rank 1 one after the other, at the same time."""
    xml = Xml("allgather", 2, 4)
    for rank, count in ((0, 2), (1, 1)):
        block = xml.block(rank, 1 - rank, -1)
        for chunk in range(0, 2, count):
            xml.step(block, "s", ("i", chunk), ("o", 0), count)
        block = xml.block(rank, -1, 1 - rank)
        for chunk in range(0, 2, 3 - count):
            xml.step(block, "r", ("i", 0), ("o", 2 * (1 - rank) + chunk), 3 - count)
    return xml


def through_its_own_place() -> Xml:
    """Right out of place alone: what comes lies for a while where the input is in place."""
    xml = Xml("allgather", 2, 2, inside=False)
    for rank in range(2):
        block = xml.block(rank, 1 - rank, 1 - rank)
        xml.step(block, "s", ("i", 0))
        xml.step(block, "r", ("i", 0), ("o", rank))
        xml.step(block, "cpy", ("o", rank), ("o", 1 - rank))
        xml.step(block, "cpy", ("i", 0), ("o", rank))
    return xml


def in_turn(ranks: int) -> Xml:
    """Each rank adds the shares of the others in the order of their numbers, as they come.

    All get the share of rank 0 first, then all that of rank 1: one rank sends at a time, unless it
    goes on with the next part of its chunks.
    """
    xml = Xml("allreduce", ranks, ranks)
    for rank in range(ranks):
        added = None
        for peer in (p for p in range(ranks) if p != rank):
            block = xml.block(rank, -1, peer)
            after = () if added is None else (added,)
            added = block, xml.step(block, "rrc", ("i", rank), ("i", rank), 1, *after)
            xml.step(xml.block(rank, peer, -1), "s", ("i", peer))
        assert added is not None
        for peer in (p for p in range(ranks) if p != rank):
            xml.step(xml.block(rank, peer, -1, 1), "s", ("i", rank), ("i", rank), 1, added)
            xml.step(xml.block(rank, -1, peer, 1), "r", ("i", 0), ("i", peer))
    return xml


def sums_in_turn(ranks: int) -> Xml:
    """Each rank sends to all others at once, and adds what comes from them one after the other."""
    xml = Xml("reducescatter", ranks, ranks, inside=False)
    for rank in range(ranks):
        added = None
        for shift in range(1, ranks):
            peer = (rank + shift) % ranks
            xml.step(xml.block(rank, peer, -1), "s", ("i", peer))
            block = xml.block(rank, -1, (rank - shift) % ranks)
            source = ("i", rank) if added is None else ("o", 0)
            added = block, xml.step(block, "rrc", source, ("o", 0), 1, added)
    return xml


RUN = {
    **FILES,
    "own orders 4": partial(ccl_files.all_pairs_all_reduce, 4, share=3),
    "through its own place": through_its_own_place,
    "in turn 4": partial(in_turn, 4),
    "sums in turn 4": partial(sums_in_turn, 4),
    "two sends first": two_sends_first,
    "unequal swap": unequal_swap,
}


@pytest.mark.parametrize("name", RUN)
def test_every_rank_ends_with_what_the_operation_says(name: str) -> None:
    file, program = program_of(RUN[name]())
    for size in (0, 1, 37, 96):
        for slot, n_slots in ((8, 2), (1 << 30, 2), (8, 5)):
            case = even(file.operation, file.ranks, size, slot=slot, n_slots=n_slots)
            given = draw(case)
            fitted = program.fit(n_slots, slot // case.align, shared=False, linked=False)
            result = execute(fitted, case, given)
            for taken, wanted in zip(result.taken, expected(case, given), strict=True):
                np.testing.assert_array_equal(taken, wanted)


@pytest.mark.parametrize("name", RUN)
def test_sums_are_rounded_in_the_order_of_the_file(
    topology: Callable[[str], Topology], name: str
) -> None:
    xml = RUN[name]()
    file, program = program_of(xml)
    each = 5  # elements of a chunk
    case = even(file.operation, file.ranks, each * file.share)
    given = draw(case, np.float32)
    chosen = chosen_of(program, file)
    taken = simulate(topology("sip8"), chosen, case, given).taken
    inputs = [list(values.reshape(-1, each)) for values in given]
    for got, chunks in zip(taken, outputs_of(xml.root, 2, random.Random(0), inputs), strict=True):
        assert got.tobytes() == np.concatenate(chunks).tobytes()


def chosen_of(program: Program, file: Blocks) -> Chosen:
    module = ModuleType("a")
    setattr(module, file.operation, program)
    return replace(shipped_algorithm(), name="a", module=module, path=Path("x"), align=1)


@pytest.mark.parametrize("name", ["ring 4", "tree 5", "all pairs 4", "hierarchical 2 x 3"])
def test_a_live_run_takes_as_long_as_the_plan(
    topology: Callable[[str], Topology], name: str
) -> None:
    file, program = program_of(FILES[name]())
    chosen = chosen_of(program, file)
    for size in (7, 10_000):
        case = even(file.operation, file.ranks, size)
        times = [
            simulate(topology("sip8"), chosen, case, fidelity=fidelity).ends
            for fidelity in ("kernel", "tile")
        ]
        assert times[0] == times[1]


def test_the_ring_of_a_file_is_the_shipped_one() -> None:
    _, program = program_of(ccl_files.ring_all_reduce(4))
    mine, shipped = planned(program, 4), planned(ring.all_reduce, 4)
    assert mine is not None
    assert shipped is not None
    assert mine.cuts == shipped.cuts
    for table in ("send", "to", "receive", "source", "reduce", "span"):
        np.testing.assert_array_equal(getattr(mine, table), getattr(shipped, table), table)


def test_messages_between_all_pairs_leave_before_any_is_waited_for() -> None:
    """Rank 0 of 3: two sends, two receives into scratch, two sums, and the same back."""
    _, program = program_of(ccl_files.all_pairs_all_reduce(3))
    plan = planned(program, 3)
    assert plan is not None
    steps = [(one.send >= 0, one.receive >= 0) for one in plan.of(0)]
    sends, receives, sums = [(True, False)] * 2, [(False, True)] * 2, [(True, True)] * 2
    assert steps == sends + receives + sums + sends + receives


def test_a_chunk_that_a_block_sends_and_then_overwrites_leaves_first() -> None:
    """Ranks swap their only chunk of an all_reduce of two, through scratch and back."""
    xml = Xml("allreduce", 2, 1)
    xml.scratch(1)
    for rank in range(2):
        block = xml.block(rank, 1 - rank, 1 - rank)
        xml.step(block, "cpy", ("i", 0), ("s", 0))
        xml.step(block, "s", ("i", 0))
        xml.step(block, "r", ("i", 0), ("i", 0))
        xml.step(block, "re", ("s", 0), ("i", 0))
    file, program = program_of(xml)
    case = even(file.operation, 2, 20, slot=8)
    given = draw(case)
    for taken in execute(program, case, given).taken:
        np.testing.assert_array_equal(taken, given[0] + given[1])


# Named in ccl.yaml


def ccl_file(folder: Path, **algorithms: str) -> Path:
    lines = [f"  {name}: {entry}" for name, entry in algorithms.items()]
    path = folder / "ccl.yaml"
    path.write_text("\n".join(["defaults: {algorithm: auto}", "algorithms:", *lines]))
    return path


def test_a_file_is_an_algorithm_of_one_operation(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text(ccl_files.ring_all_reduce(4).text)
    path = ccl_file(tmp_path, mine="{file: a.xml, slot_size: 8 KiB}")
    chosen = choose(load_ccl(path), path, "mine")
    assert chosen.implements("all_reduce")
    assert not chosen.implements("all_gather")
    assert chosen.queue.slot_size == 8192


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    path = ccl_file(tmp_path, mine="{file: a.xml}")
    for ranks in (2, 4):
        (tmp_path / "a.xml").write_text(ccl_files.ring_all_reduce(ranks).text)
        program = choose(load_ccl(path), path, "mine").algorithm("all_reduce")
        assert planned(program, ranks) is not None


def test_another_number_of_ranks_is_told() -> None:
    _, program = program_of(ccl_files.ring_all_reduce(4))
    with pytest.raises(UsageError, match=r"a\.xml is for 4 ranks; the group has 3"):
        planned(program, 3)


def test_another_number_of_ranks_is_told_where_each_pair_has_a_link(
    tmp_path: Path, topology: Callable[[str], Topology]
) -> None:
    chosen = named(tmp_path, EIGHT["all pairs"]())
    for ranks in (2, 5):
        with pytest.raises(UsageError, match=f"is for 8 ranks; the group has {ranks}"):
            time_alone(topology("mi300x8"), chosen, "all_reduce", ranks, 4096)


def test_a_wrong_file_is_not_run(tmp_path: Path) -> None:
    xml = ccl_files.ring_all_reduce(3)
    xml.gpus[1][0][1].set("srcoff", "1")
    (tmp_path / "a.xml").write_text(xml.text)
    path = ccl_file(tmp_path, mine="{file: a.xml}")
    with pytest.raises(UnsupportedError, match="is not run: it is wrong"):
        choose(load_ccl(path), path, "mine")


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("{file: a.xml, module: b}", "expected one of module and file"),
        ("{description: nothing}", "expected one of module and file"),
        ("{file: a.xml, channels: 2}", "expected neither channels, links nor rails"),
    ],
)
def test_an_entry_has_a_module_or_a_file(tmp_path: Path, entry: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_ccl(ccl_file(tmp_path, mine=entry))


def test_auto_takes_a_file_for_its_ranks_and_sizes_alone(
    tmp_path: Path, topology: Callable[[str], Topology]
) -> None:
    """On a switch, two rounds of messages between all pairs are faster than 14 round a ring."""
    xml = ccl_files.all_pairs_all_reduce(8)
    xml.root.attrib.update(minBytes="3000", maxBytes="5000")
    (tmp_path / "a.xml").write_text(xml.text)
    path = ccl_file(tmp_path, mine="{file: a.xml}", slow="{module: kernbench.ccl.algorithms.ring}")
    choices = Choices(path, (), topology("h200x8"))
    taken = {
        size: choices.choose("all_reduce", size, range(8))
        # 3000 and 2999, 5000 and 5001 are between the same powers of two.
        for size in (2999, 3000, 4096, 5000, 5001)
    }
    assert {size: one.name for size, one in taken.items() if one.auto} == {
        2999: "slow",
        3000: "mine",
        4096: "mine",
        5000: "mine",
        5001: "slow",
    }
    assert choices.choose("all_reduce", 4096, range(4)).name == "slow"


def test_a_file_of_another_operation_is_told(
    tmp_path: Path, topology: Callable[[str], Topology]
) -> None:
    (tmp_path / "a.xml").write_text(ccl_files.ring_all_reduce(4).text)
    path = ccl_file(tmp_path, mine="{file: a.xml}")
    choices = Choices(path, ("defaults.operations.all_gather=mine",), topology("sip8"))
    with pytest.raises(ConfigError, match="of all_gather; mine is a file of all_reduce"):
        choices.choose("all_gather", 4096, range(4))


def test_auto_goes_to_the_shipped_algorithms_where_no_file_serves(
    tmp_path: Path, topology: Callable[[str], Topology]
) -> None:
    (tmp_path / "a.xml").write_text(ccl_files.ring_all_reduce(4).text)
    path = ccl_file(tmp_path, mine="{file: a.xml}", other="{file: a.xml, auto: false}")
    choices = Choices(path, (), topology("sip8"))
    assert choices.choose("all_reduce", 4096, range(4)).name == "mine"
    assert choices.choose("all_reduce", 4096, range(8)).path == shipped_ccl_file()


# Over several links at once


@pytest.mark.parametrize(
    ("machine", "name", "channels"),
    [
        ("mi300x8", "all pairs", 14),  # 7 links of a rank, and two channels each
        ("mi300x8", "ring", 1),  # a ring sends over one link
        ("mi300x8", "sums in turn", 14),  # over another in each turn
        ("sip8", "two rings", 4),
        ("sip8", "all pairs", 1),  # most pairs of a ring of SIPs have no link of their own
        ("h200x8", "all pairs", 1),  # a port each
        ("h200x8", "in turn", 4),  # ranks that idle in some rounds
    ],
)
def test_a_file_has_channels_for_its_own_links_and_for_rounds_in_which_ranks_idle(
    tmp_path: Path, topology: Callable[[str], Topology], machine: str, name: str, channels: int
) -> None:
    chosen = named(tmp_path, EIGHT[name]())
    assert channels_of(chosen, topology(machine), tuple(range(8)))[0] == channels


EIGHT: dict[str, Callable[[], Xml]] = {
    "all pairs": lambda: ccl_files.all_pairs_all_reduce(8, "Simple"),
    "all to all": lambda: ccl_files.all_pairs_all_to_all(8),
    "ring": lambda: ccl_files.ring_all_reduce(8),
    "two rings": lambda: ccl_files.ring_all_reduce(8, 2),
    "in turn": lambda: in_turn(8),
    "own orders": lambda: ccl_files.all_pairs_all_reduce(8, "Simple", 4),
    "sums in turn": lambda: sums_in_turn(8),
}


def named(folder: Path, xml: Xml) -> Chosen:
    """Returns a file as an algorithm of a ccl.yaml."""
    (folder / "a.xml").write_text(xml.text)
    path = ccl_file(folder, mine="{file: a.xml, slot_size: 256 KiB}")
    return choose(load_ccl(path), path, "mine")


def test_blocks_side_by_side_get_the_rate_of_all_links(
    tmp_path: Path, topology: Callable[[str], Topology]
) -> None:
    """Of 64 MiB, each of 7 links of 48 GB/s of a rank carries an eighth: 174.8 us."""
    chosen, size = named(tmp_path, EIGHT["all to all"]()), 64 << 20
    time = time_alone(topology("mi300x8"), chosen, "all_to_all", 8, size)
    assert size / 8 / 48e9 * 1e12 <= time < 1.2 * size / 8 / 48e9 * 1e12


@pytest.mark.parametrize(
    ("machine", "name", "each"),  # elements of a chunk
    [
        ("mi300x8", "all pairs", 61),
        ("mi300x8", "all to all", 60),
        ("mi300x8", "own orders", 17),
        ("mi300x8", "sums in turn", 61),
        ("sip8", "two rings", 64),
        ("sip8", "in turn", 32),  # repeated, in waves of several turns
        ("h200x8", "in turn", 33),
    ],
)
def test_channels_over_links_compute_the_same_at_the_same_time_in_a_live_run(
    tmp_path: Path, topology: Callable[[str], Topology], machine: str, name: str, each: int
) -> None:
    xml = EIGHT[name]()
    chosen = named(tmp_path, xml)
    chosen = replace(chosen, queue=replace(chosen.queue, slot_size=8))  # two elements
    blocks = msccl_xml.read("a.xml", xml.text)
    case = even(blocks.operation, 8, each * blocks.share)
    given = draw(case, np.float32)
    runs = [
        simulate(topology(machine), chosen, case, given, fidelity=fidelity)
        for fidelity in ("kernel", "tile")
    ]
    assert runs[0].ends == runs[1].ends
    inputs = [list(values.reshape(-1, each)) for values in given]
    wanted = outputs_of(xml.root, 2, random.Random(0), inputs)
    for run in runs:
        for got, chunks in zip(run.taken, wanted, strict=True):
            assert got.tobytes() == np.concatenate(chunks).tobytes()


def test_chunks_added_in_orders_of_their_own_travel_together(
    tmp_path: Path, topology: Callable[[str], Topology]
) -> None:
    """As long as the shipped algorithm of equal messages, and not a message a chunk and channel."""
    xml = ccl_files.all_pairs_all_reduce(8, "Simple", 64)
    chosen, path = named(tmp_path, xml), shipped_ccl_file()
    shipped = replace(choose(load_ccl(path), path, "two_shot_links"), queue=chosen.queue)
    mine, theirs = (
        time_alone(topology("mi300x8"), one, "all_reduce", 8, 64 << 20) for one in (chosen, shipped)
    )
    assert mine < 1.2 * theirs


def test_sums_in_turn_get_the_rate_of_several_links(
    tmp_path: Path, topology: Callable[[str], Topology]
) -> None:
    """Over one link of 48 GB/s after the other, 7 eighths of 64 MiB take 1223 us."""
    chosen, size = named(tmp_path, EIGHT["sums in turn"]()), 64 << 20
    time = time_alone(topology("mi300x8"), chosen, "reduce_scatter", 8, size)
    assert size / 8 / 48e9 * 1e12 <= time < 3 * size / 8 / 48e9 * 1e12


def test_repetitions_overlap_where_ranks_send_in_turn(
    tmp_path: Path, topology: Callable[[str], Topology]
) -> None:
    """Rank after rank, each chunk would take 7 times 7 messages and then 7: 4 times as long as 14.

    The shipped algorithm of equal messages, `two_shot`, sends 14.
    """
    chosen, path = named(tmp_path, EIGHT["in turn"]()), shipped_ccl_file()
    shipped = replace(choose(load_ccl(path), path, "two_shot"), queue=chosen.queue)
    mine, theirs = (
        time_alone(topology("h200x8"), one, "all_reduce", 8, 64 << 20) for one in (chosen, shipped)
    )
    assert mine < 1.5 * theirs


def test_chunks_that_always_go_together_are_one() -> None:
    """8 chunks for each peer in a row."""
    lowered = lower(msccl_xml.read("a.xml", ccl_files.all_pairs_all_to_all(8, 8).text))
    assert (lowered.parts, lowered.coarse.parts) == (8, 1)
    assert {one.span for each in lowered.coarse.rounds for one in each.touched} == {1}
    xml = ccl_files.all_pairs_all_reduce(8, "LL", 4)  # sums in orders of their own
    lowered = lower(msccl_xml.read("a.xml", xml.text))
    assert (lowered.coarse.parts, lowered.coarse.together) == (32, 4)


def test_parts_of_one_message_are_one_message() -> None:
    """Two blocks of each rank carry two chunks in a row to the same peer, as two instances do."""
    xml = Xml("allgather", 2, 4)
    for rank in range(2):
        for chunk in range(2):
            block = xml.block(rank, 1 - rank, 1 - rank, chunk)
            xml.step(block, "s", ("i", chunk))
            xml.step(block, "r", ("i", 0), ("o", 2 * (1 - rank) + chunk))
    lowered = lower(msccl_xml.read("a.xml", xml.text))
    ((matching,),) = [each.matchings for each in lowered.rounds]
    assert [(one.sender, one.source, one.span) for one in matching] == [(0, 0, 2), (1, 2, 2)]


def test_moves_that_depend_on_each_other_stay_apart() -> None:
    """Chunk 0 of rank 0 goes to scratch 0, and on to scratch 1; both are copies to the next."""
    xml = Xml("allgather", 2, 2)
    xml.scratch(2)
    for rank in range(2):
        block = xml.block(rank, 1 - rank, 1 - rank)
        xml.step(block, "cpy", ("i", 0), ("s", 0))
        xml.step(block, "cpy", ("s", 0), ("s", 1))
        xml.step(block, "s", ("s", 1))
        xml.step(block, "r", ("i", 0), ("o", 1 - rank))
    file, program = program_of(xml)
    case = even(file.operation, 2, 9)
    given = draw(case)
    for taken in execute(program, case, given).taken:
        np.testing.assert_array_equal(taken, np.concatenate(given))
