"""Collectives from files: what is proved, what is told, and what random schedules say of both."""

import random
import xml.etree.ElementTree as ET

import ccl_files
import pytest
from ccl_files import FILES, WrongEndError, Xml, run_once

from kernbench.ccl.files import msccl_xml
from kernbench.ccl.files.blocks import KINDS, Blocks
from kernbench.ccl.files.prove import prove
from kernbench.ccl.files.verdict import Verdict
from kernbench.config.problems import ConfigError


def blocks_of(xml: Xml) -> Blocks:
    return msccl_xml.read("a.xml", xml.text)


def verdict_of(xml: Xml, slots: int | None = None) -> Verdict:
    return prove(blocks_of(xml), slots)


@pytest.mark.parametrize("name", FILES)
def test_right_files_are_proved(name: str) -> None:
    found = verdict_of(FILES[name]())
    assert found.findings == ()
    # Round a ring all send at once, and the next step sends before anybody has a free place.
    assert found.least == (2 if name.startswith(("ring", "two", "gather", "scatter")) else 1)


def test_the_report_counts_what_was_proved() -> None:
    found = verdict_of(ccl_files.ring_all_reduce(4))
    # A rank has 1 send, 2 rrs, 1 rrcs, 2 rcs and 1 receive; each but the last sends a chunk.
    assert (found.steps, found.chunks) == (4 * 7, 4 * 6)
    # Reads of s, rrs, rrcs; writes of rrcs, rcs, r.
    assert found.accesses == 4 * ((1 + 2 + 1) + (1 + 2 + 1))


def test_a_chunk_that_two_blocks_write_in_any_order_is_a_race() -> None:
    xml = ccl_files.tree_all_reduce(3)
    step = xml.gpus[0][1][0]  # the second child's sum, which waits for the first's
    step.set("depid", "-1")
    (found,) = [f for f in verdict_of(xml).findings if f.kind == "race"][:1]
    assert "rank 0 block 1 step 0 (rrc i[0] -> i[0])" in found.text
    assert "rank 0 block 0 step 0" in found.text


def test_a_step_whose_source_and_target_overlap_is_a_race() -> None:
    """Threads of a block copy side by side: the middle chunk is read and written in no order.

    Copied as a whole, the chunks would go where the output wants them.
    """
    xml = Xml("allgather", 2, 4, inside=False)
    for rank in range(2):
        block = xml.block(rank, 1 - rank, 1 - rank)
        xml.step(block, "s", ("i", 0), ("o", 0), 2)
        xml.step(block, "r", ("i", 0), ("o", 1), 2)
        xml.step(block, "cpy", ("o", 1), ("o", 2 - 2 * rank), 2)
        xml.step(block, "cpy", ("i", 0), ("o", 2 * rank), 2)
    found = verdict_of(xml)
    assert [one.kind for one in found.findings] == ["race", "race"]
    told = {one.text.partition(": ")[2].partition(", in any order")[0] for one in found.findings}
    assert told == {
        "rank 0 block 0 step 2 (cpy o[1] -> o[2] x2) reads and writes o[2]",
        "rank 1 block 0 step 2 (cpy o[1] -> o[0] x2) reads and writes o[1]",
    }
    for gpu in xml.gpus:  # through chunks apart, or chunk by chunk, there is an order
        gpu.set("s_chunks", "2")
        gpu[0][1].attrib.update(dstbuf="s", dstoff="0")
        gpu[0][2].attrib.update(srcbuf="s", srcoff="0")
    assert verdict_of(xml).proved


def test_an_output_of_what_nobody_wrote_names_the_step_that_wrote_it() -> None:
    xml = Xml("allreduce", 2, 1, inside=False)
    for rank in range(2):
        block = xml.block(rank, 1 - rank, 1 - rank)
        xml.step(block, "s", ("o", 0))
        xml.step(block, "rrc", ("i", 0), ("o", 0))
    result = next(one for one in verdict_of(xml).findings if one.kind == "result")
    assert "a wrong o[0]: it depends on what nobody wrote; last written by a.xml:5:7" in result.text
    for gpu in xml.gpus:
        for step in [*gpu[0]]:
            gpu[0].remove(step)
    result, _ = verdict_of(xml).findings
    assert result.text == "a.xml: rank 0 ends with a wrong o[0]: nobody wrote it [out of place]"


def test_a_file_without_nchannels_has_the_channels_of_its_blocks() -> None:
    xml = ccl_files.ring_all_reduce(3, 2)
    del xml.root.attrib["nchannels"]
    assert verdict_of(xml).proved


def test_a_buffer_without_chunks_is_told() -> None:
    xml = ccl_files.ring_all_reduce(2)
    xml.gpus[1][0][0].set("srcbuf", "s")
    with pytest.raises(ConfigError, match="expected s_chunks of at least 2 for rank 1 block 0"):
        blocks_of(xml)


def test_a_sum_that_misses_a_rank_is_told() -> None:
    xml = ccl_files.ring_all_reduce(3)
    xml.gpus[1][0][1].set("srcoff", "1")  # rank 1 adds chunk 1 in place of chunk 0
    first = next(f for f in verdict_of(xml).findings if f.kind == "result")
    assert first.text == (
        "a.xml: rank 0 ends with a wrong o[0]: misses rank 1's chunk 0; has rank 1's chunk 1; "
        # The first line is algo's, then gpu, tb and a line a step.
        "last written by a.xml:7:7: rank 0 block 0 step 3 (rcs -> o[0]) [in place]"
    )


def two_sends_first(ranks: int = 2) -> Xml:
    """Each rank sends two chunks before it receives: fine with two places, not with one."""
    xml = Xml("allgather", ranks, 2 * ranks)
    for rank in range(ranks):
        block = xml.block(rank, (rank + 1) % ranks, (rank - 1) % ranks)
        for chunk in range(2):
            xml.step(block, "s", ("i", chunk))
        for chunk in range(2):
            xml.step(block, "r", ("i", 0), ("o", 2 * ((rank - 1) % ranks) + chunk))
    return xml


def test_too_few_slots_are_a_deadlock_with_its_cycle() -> None:
    assert verdict_of(two_sends_first(), 2).proved
    found = verdict_of(two_sends_first(), 1)
    assert found.least == 2
    (finding,) = found.findings
    lines = finding.text.splitlines()
    assert lines[0] == "2 blocks wait for ever with 1 slots a connection"
    assert lines[1].endswith("rank 0 block 0 step 1 (s i[1])")
    assert lines[2].endswith("rank 1 block 0 step 1 (s i[1])")
    assert lines[3].strip() == "they end with 2 slots"


def test_blocks_that_wait_for_each_other_never_end() -> None:
    xml = ccl_files.all_pairs_all_to_all(2)
    first, second = xml.gpus[0]
    second[1].set("hasdep", "1")
    first[0].set("hasdep", "1")
    first[0].attrib.update(depid="1", deps="1")
    second[0].attrib.update(depid="0", deps="0")
    found = verdict_of(xml)
    assert [f.kind for f in found.findings] == ["deadlock"]
    assert found.least == 0


def test_data_that_nobody_receives_are_told() -> None:
    xml = ccl_files.ring_all_gather(2)
    xml.step(xml.gpus[0][0], "s", ("o", 0))
    assert [f.kind for f in verdict_of(xml).findings] == ["left"]


def test_a_file_for_calls_in_and_out_of_place_is_proved_for_both() -> None:
    xml = Xml("allgather", 2, 2)
    xml.root.set("outofplace", "1")
    for rank in range(2):
        block = xml.block(rank, 1 - rank, 1 - rank)
        xml.step(block, "s", ("i", 0))
        xml.step(block, "r", ("i", 0), ("o", 1 - rank))
    found = verdict_of(xml)  # out of place, nobody writes a rank's own chunk
    assert found.modes == ("in place", "out of place")
    assert [one.kind for one in found.findings] == ["result"] * 2
    assert all(one.text.endswith("[out of place]") for one in found.findings)
    for rank in range(2):
        xml.step(xml.gpus[rank][0], "cpy", ("i", 0), ("o", rank))
    assert verdict_of(xml).proved


def test_waits_that_order_nothing_new_are_named() -> None:
    xml = ccl_files.all_pairs_all_reduce(2)
    adder = xml.gpus[0][1]
    xml.step(adder, "nop", after=(xml.gpus[0][0], 1))  # the sum before waited for it already
    found = verdict_of(xml)
    assert found.proved
    assert [where.split(": ")[1] for where in found.idle] == ["rank 0 block 1 step 1 (nop)"]


WRONG = {
    "no xml": ("<algo", "expected XML"),
    "an entity": ('<!DOCTYPE a [<!ENTITY b "c">]><algo/>', "expected no document type"),
    "another element": ("<alg/>", "did you mean `algo`?"),
    "words": ("<algo>a word</algo>", "expected elements and nothing between them; got 'a word'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_file_of_a_collective_is_told(case: str) -> None:
    text, told = WRONG[case]
    with pytest.raises(ConfigError) as caught:
        msccl_xml.read("a.xml", text)
    assert told in str(caught.value)


CHANGES = {
    "unknown type": ((1, 0, 0), {"type": "rrx"}, "rank 1 block 0 step 0 type: expected one of nop"),
    "unknown buffer": ((1, 0, 0), {"srcbuf": "x"}, "expected one of i, o, s; got 'x'"),
    "no number": ((1, 0, 0), {"srcoff": "one"}, "expected a number from 0 on; got 'one'"),
    "offset": ((1, 0, 0), {"srcoff": "4"}, "expected chunks of i up to 3; got 4"),
    "count": ((1, 0, 0), {"cnt": "2", "srcoff": "3"}, "expected chunks of i up to 3; got 4"),
    "counts differ": ((1, 0, 0), {"cnt": "2", "srcoff": "1"}, "receives a count of 1; line"),
    "step order": ((1, 0, 0), {"s": "1"}, "expected steps in order, here 0; got 1"),
    "no such block": ((1, 0, 0), {"depid": "7"}, "there is no block 7"),
    "peer": ((1, 0), {"send": "4"}, "expected another rank up to 3, or -1; got 4"),
    "itself": ((1, 0), {"send": "1"}, "expected another rank up to 3, or -1; got 1"),
    "one end": ((1, 0), {"chan": "3"}, "nobody sends on rank 0 -> rank 1, channel 3"),
    "rank": ((1,), {"id": "2"}, "expected ranks in order, here 1; got 2"),
    "typo": ((1, 0), {"chann": "0"}, "did you mean `chan`?"),
    "operation": ((), {"coll": "allreduc"}, "did you mean `allreduce`?"),
    "flag": ((1, 0, 0), {"hasdep": "yes"}, "step 0 hasdep: expected 0 or 1; got 'yes'"),
    "long number": (
        (1, 0, 0),
        {"cnt": "9" * 5000},
        "step 0 cnt: expected a number from 1 to 10^19",
    ),
    "chunks": ((), {"nchunksperloop": "4000000000000"}, "1048576 chunks for each of 4 ranks"),
    "scratch": ((1,), {"s_chunks": "4000000000000"}, "rank 1 s_chunks: expected at most 1048576"),
    "sizes": ((), {"minBytes": "9", "maxBytes": "8"}, "maxBytes: expected at least minBytes, 9"),
    "reduction": ((), {"redop": "max"}, "expected a file for every reduction; got one for 'max'"),
    "mode": ((), {"inplace": "0"}, "expected inplace or outofplace to be 1"),
    "no mode": ((), {"inplace": "2"}, "inplace: expected 0 or 1; got '2'"),
    "channel": ((1, 0), {"chan": "4"}, "expected a channel up to 3, as nchannels says; got 4"),
    "no channels": ((), {"nchannels": "0"}, "nchannels: expected a number from 1 on; got '0'"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_wrong_values_are_told_with_their_places(case: str) -> None:
    place, given, told = CHANGES[case]
    xml = ccl_files.ring_all_reduce(4)
    xml.root.set("nchannels", "4")
    element = xml.root
    for index in place:
        element = element[index]
    element.attrib.update(given)
    with pytest.raises(ConfigError) as caught:
        blocks_of(xml)
    assert told in str(caught.value)
    assert all(problem.where.startswith("a.xml:") for problem in caught.value.problems)


def test_all_problems_of_a_file_are_told_at_once() -> None:
    xml = ccl_files.ring_all_reduce(4)
    xml.gpus[0][0][0].set("type", "x")
    xml.gpus[2][0].set("send", "9")
    with pytest.raises(ConfigError) as caught:
        blocks_of(xml)
    assert [problem.where for problem in caught.value.problems] == ["a.xml:4:7", "a.xml:25:5"]


def test_two_blocks_at_one_end_are_told() -> None:
    xml = ccl_files.ring_all_reduce(2, 2)
    for gpu in xml.gpus:
        gpu[1].set("chan", "0")
    with pytest.raises(ConfigError, match="block 0 is at this end of rank 0 -> rank 1, channel 0"):
        blocks_of(xml)


def test_a_wait_for_a_step_that_nobody_publishes_is_told() -> None:
    xml = ccl_files.all_pairs_all_reduce(2)
    for step in xml.gpus[0][0]:
        step.set("hasdep", "0")
    with pytest.raises(ConfigError, match="block 0 has none from 1 on"):
        blocks_of(xml)


def test_what_older_files_say_in_another_way_is_read() -> None:
    xml = ccl_files.all_pairs_all_reduce(2)
    plain = blocks_of(xml)
    xml.root.set("maxBytes", "0")  # no limit
    for gpu in xml.gpus:
        gpu[1].set("chan", "-1")  # this block only adds
        gpu[1].append(
            ET.Element("step", {**gpu[1][-1].attrib, "s": str(len(gpu[1])), "type": "nop"})
        )
        gpu[1][-2].set("hasdep", "1")
        gpu[1][-1].set("depid", "1")  # its own step before
        gpu[1][-1].set("deps", str(len(gpu[1]) - 2))
    found = blocks_of(xml)
    assert found.sizes[1] > plain.sizes[1]
    assert found.blocks[0][1].steps[-1].after == ()
    assert found.notes == ("RCCL wants a channel from 0 on, also of blocks that only compute",)
    assert prove(found).proved
    xml.gpus[0][1][0].set("depid", "1")
    with pytest.raises(ConfigError, match="waits for its own block's step"):
        blocks_of(xml)


def test_copies_inside_a_block_are_passed_over_and_move_no_step() -> None:
    xml = ccl_files.all_pairs_all_reduce(2)  # its blocks wait for each other's steps
    plain = blocks_of(xml)
    for gpu in xml.gpus:
        for tb in gpu:
            tb.insert(0, ET.Element("copy", i_off="0", o_off="0"))
    found = blocks_of(xml)
    assert found.notes == ("4 <copy> elements are passed over, as RCCL does",)
    after = [[step.after for _, _, step in file.steps] for file in (plain, found)]
    assert after[0] == after[1]
    assert any(after[0])


def test_limits_of_a_library_are_notes() -> None:
    xml = ccl_files.ring_all_reduce(40)
    notes = blocks_of(xml).notes
    assert notes == ("RCCL has room for 64 steps of a block; the file has 79",)


def test_a_step_that_a_library_does_not_read_after_nops_is_a_note() -> None:
    xml = ccl_files.all_pairs_all_reduce(3)  # its adders wait for one block in each step
    assert blocks_of(xml).notes == ()
    adder = xml.gpus[0][2]
    adder[0].set("type", "nop")
    assert blocks_of(xml).notes == ()
    adder[1].set("depid", "-1")
    text = "RCCL reads no file in which a step after nops waits for nothing itself; blocks of it: 1"
    assert blocks_of(xml).notes == (text,)


# Mutants


def mutated(root: ET.Element, rng: random.Random) -> None:
    """Changes an offset, a type, an order, a peer, a channel or a wait, or drops a step."""
    gpu = rng.choice([each for each in root if len(each)])
    tb = rng.choice([each for each in gpu if len(each)])
    at = rng.randrange(len(tb))
    step, what = tb[at], rng.choice(["offset", "type", "drop", "swap", "peer", "chan", "wait"])
    if what == "offset":
        name = rng.choice(["srcoff", "dstoff"])
        step.set(name, str(int(step.attrib[name]) + rng.choice([-1, 1])))
    elif what == "type":
        step.set("type", rng.choice([k for k in KINDS if k != step.get("type")]))
    elif what == "drop":
        tb.remove(step)
    elif what == "swap" and at:
        other = tb[at - 1]
        step.attrib, other.attrib = other.attrib, step.attrib
    elif what == "peer":
        tb.set(rng.choice(["send", "recv"]), str(rng.randrange(len(root))))
    elif what == "chan":
        tb.set("chan", "1")
    else:
        waiting = [s for s in tb if int(s.attrib["depid"]) >= 0]
        if waiting:
            rng.choice(waiting).set("depid", "-1")
    for number, each in enumerate(tb):
        each.set("s", str(number))


def is_wrong_in_any_of(root: ET.Element, schedules: int, rng: random.Random) -> bool:
    try:
        for _ in range(schedules):
            run_once(root, 2, rng)
    except WrongEndError:
        return True
    return False


def check_mutants(name: str, mutants: int, schedules: int) -> None:
    rng, seen = random.Random(name), {FILES[name]().text}
    for _ in range(mutants):
        xml = FILES[name]()
        mutated(xml.root, rng)
        if xml.text in seen:
            continue
        seen.add(xml.text)
        try:
            found = prove(blocks_of(xml), 2)
        except ConfigError:
            continue
        if found.proved:
            assert not is_wrong_in_any_of(xml.root, schedules, rng), xml.text
        elif all(finding.kind != "race" for finding in found.findings):
            # Without races, one schedule is as good as all.
            assert is_wrong_in_any_of(xml.root, 1, rng), xml.text


@pytest.mark.parametrize("name", FILES)
def test_mutants_are_told_or_right_in_every_schedule(name: str) -> None:
    check_mutants(name, mutants=25, schedules=10)


@pytest.mark.parametrize(
    "mutants",
    [pytest.param(60, marks=pytest.mark.slow), pytest.param(650, marks=pytest.mark.at_length)],
)
@pytest.mark.parametrize("name", FILES)
def test_thousands_of_mutants_are_told_or_right_in_every_schedule(name: str, mutants: int) -> None:
    check_mutants(name, mutants=mutants, schedules=200)
