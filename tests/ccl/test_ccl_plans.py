"""Execution plans of MSCCL++: what is proved, what is told, and what random schedules say."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import ccl_plans
import numpy as np
import pytest
from ccl_machine import shipped_algorithm
from ccl_operations import draw, even, execute, expected, simulate
from ccl_plans import PLANS, Plan, near, nop, op
from ccl_plans_run import WrongEndError, run_once

from kernbench.ccl.config import Chosen
from kernbench.ccl.files import mscclpp_json
from kernbench.ccl.files.blocks import Blocks
from kernbench.ccl.files.load import load
from kernbench.ccl.files.lower import lower
from kernbench.ccl.files.one_sided_blocks import as_blocks
from kernbench.ccl.files.picture import as_text
from kernbench.ccl.files.program import Program
from kernbench.ccl.files.prove import prove
from kernbench.ccl.files.rounds import Transfer
from kernbench.ccl.files.verdict import Verdict
from kernbench.config.problems import ConfigError
from kernbench.errors import UnsupportedError
from kernbench.topology import Topology


def blocks_of(root: dict[str, Any]) -> Blocks:
    return as_blocks(*mscclpp_json.read("a.json", json.dumps(root)))


def verdict_of(plan: Plan) -> Verdict:
    return prove(blocks_of(plan.root))


def kinds_of(plan: Plan) -> set[str]:
    return {finding.kind for finding in verdict_of(plan).findings}


def ops_of(plan: Plan, rank: int, block: int = 0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = plan.gpus[rank]["threadblocks"][block]["ops"]
    return found


@pytest.mark.parametrize("name", PLANS)
def test_right_plans_are_proved(name: str) -> None:
    assert verdict_of(PLANS[name]()).findings == ()


@pytest.mark.parametrize("name", PLANS)
def test_what_sends_and_receives_in_place_of_a_plan_is_proved_too(name: str) -> None:
    """The proof of files with connections shares no rule of memory with that of plans."""
    assert prove(replace(blocks_of(PLANS[name]().root), plan=None), 1 << 10).findings == ()


def test_the_report_counts_what_was_proved() -> None:
    found = verdict_of(ccl_plans.put_all_gather(3))
    # A rank has two meetings of 2 nops, a signal and a wait, and 2 puts: 2 reads and 2 writes.
    assert (found.steps, found.accesses, found.chunks) == (3 * (8 + 2), 3 * 4, 3 * 2)


# What is told


def test_a_put_that_nothing_ends_before_the_signal_is_a_race() -> None:
    plan = ccl_plans.get_all_gather(2)
    # Rank 1 overwrites its input, which rank 0 reads; no meeting is between them.
    copied = plan.gpus[1]["threadblocks"][1]
    op(copied, "copy", [near(("o", 0))], [near(("i", 0))])
    (first, *_) = [f for f in verdict_of(plan).findings if f.kind == "race"]
    assert "rank 1 block 1 step 4 (copy o[0] -> i[0]) writes i[0], which rank 0 block 0" in (
        first.text
    )


def test_an_operation_whose_source_and_target_overlap_is_a_race() -> None:
    plan = Plan("allgather", 1, (2, 2, 3), inside=False)
    block = plan.block(0)
    op(block, "copy", [near(("i", 0), 2)], [near(("s", 0), 2)])
    nop(block)
    op(block, "copy", [near(("s", 0), 2)], [near(("s", 1), 2)])
    nop(block)
    op(block, "copy", [near(("s", 1), 2)], [near(("o", 0), 2)])
    (found,) = verdict_of(plan.done()).findings
    assert found.kind == "race"
    assert "step 2 (copy s[0] x2 -> s[1] x2) writes s[1], which it reads, in any order" in (
        found.text
    )
    ops_of(plan, 0)[2]["dst_buff"] = ops_of(plan, 0)[2]["src_buff"]  # each chunk onto itself
    ops_of(plan, 0)[4]["src_buff"] = ops_of(plan, 0)[2]["src_buff"]
    assert kinds_of(plan) == set()


def test_an_output_that_nobody_writes_names_no_step() -> None:
    plan = Plan("allgather", 1, (2, 2, 0), inside=False)
    op(plan.block(0), "copy", [near(("i", 0))], [near(("o", 0))])
    (found,) = verdict_of(plan.done()).findings
    assert found.text == "a.json: rank 0 ends with a wrong o[1]: nobody wrote it [out of place]"


def test_threads_meet_at_nops_alone() -> None:
    """The last meeting's first nop ends the puts before the signal that tells of them."""
    plan = ccl_plans.put_all_gather(2)
    ops = ops_of(plan, 0)
    assert [each["name"] for each in ops[4:7]] == ["put", "nop", "signal"]
    del ops[5]
    assert kinds_of(plan) == {"late"}


def test_relaxed_signals_order_no_memory() -> None:
    assert kinds_of(ccl_plans.switched_all_reduce(3)) == set()
    found = verdict_of(ccl_plans.switched_all_reduce(3, relaxed=True))
    assert {finding.kind for finding in found.findings} == {"relaxed"}
    assert "which only relaxed signals order before the rank's end" in found.findings[0].text


def test_a_rank_that_may_not_have_begun_is_told() -> None:
    plan = ccl_plans.put_all_gather(2)
    for rank in range(2):
        del ops_of(plan, rank)[:4]  # the first meeting
    assert kinds_of(plan) == {"early"}


def test_inputs_that_are_read_after_their_rank_has_ended_are_told() -> None:
    plan = ccl_plans.get_all_gather(2)
    for rank in range(2):
        del ops_of(plan, rank)[-4:]  # the last meeting
    found = verdict_of(plan)
    assert {finding.kind for finding in found.findings} == {"late"}
    assert "nothing orders before the rank's end" in found.findings[0].text


def test_a_port_reads_until_a_flush() -> None:
    """What a port has not sent yet must not be overwritten; a nop does not wait for it."""
    plan = ccl_plans.port_reduce_scatter(2)
    ops = ops_of(plan, 0)
    assert [each["name"] for each in ops] == ["pws", "nop", "flush", "wait", "nop", "re"]
    del ops[2]
    assert kinds_of(plan) == {"late"}


def test_packets_order_what_their_values_depend_on() -> None:
    """The owner's sum overwrites what it read; a copy of it that nobody waits for is a race."""
    plan = ccl_plans.packet_all_reduce(2)
    block = plan.gpus[0]["threadblocks"][2]
    op(block, "copy", [near(("i", 0))], [near(("s", 3))])
    assert "race" in kinds_of(plan)


def test_packets_that_nobody_writes_are_waited_for_for_ever() -> None:
    plan = ccl_plans.packet_all_reduce(2)
    ops_of(plan, 1, 0).clear()
    (finding,) = verdict_of(plan).findings
    assert finding.kind == "deadlock"
    lines = finding.text.splitlines()
    # So does rank 1's last block, for rank 0's sum.
    assert lines[0] == "2 blocks wait for ever"
    assert "rank 0 block 1 step 0 (respkt s[1] + i[0] -> i[0], rank 1's s[2])" in lines[1]
    assert lines[2].strip().startswith("waits for nobody")


def test_a_circle_of_waits_is_told() -> None:
    plan = ccl_plans.put_all_gather(2)
    for rank in range(2):
        ops = ops_of(plan, rank)
        ops[1], ops[3] = ops[3], ops[1]  # all wait first
        ops[1], ops[2] = ops[2], ops[1]
    (finding,) = verdict_of(plan).findings
    assert finding.kind == "deadlock"
    assert "rank 0 block 0 step 1 (rlxwait for memory channel 0 from rank 1 to rank 0)" in (
        finding.text
    )
    assert "waits for a.json:1:" in finding.text


def test_signals_of_two_blocks_are_known_when_all_have_come() -> None:
    """Two blocks of rank 0 fill its scratch and count one semaphore up; a third waits for both."""
    plan = Plan("allgather", 1, (2, 2, 2))
    plan.gpus[0]["semaphores"].append({"init_value": 0})
    for half in range(2):
        block = plan.block(0)
        op(block, "copy", [near(("i", half))], [near(("s", half))])
        nop(block)
        block["ops"].append({"name": "sem_release", "semaphore_ids": [0]})
    last = plan.block(0)
    for half in range(2):
        last["ops"].append({"name": "sem_acquire", "semaphore_ids": [0]})
        nop(last)
        op(last, "copy", [near(("s", half))], [near(("o", half))])
    assert kinds_of(plan.done()) == {"race"}  # the first signal may be the second block's
    ops = ops_of(plan, 0, 2)
    ops[:] = [ops[0], ops[3], *(o for o in ops if o["name"] != "sem_acquire")]
    assert kinds_of(plan) == set()


def test_groups_of_blocks_need_a_barrier_as_all_blocks_do() -> None:
    """A group's block 0 writes one chunk of a span of two; its signal says nothing of block 1."""
    plan = Plan("allgather", 2, (2, 4, 4))
    for rank in range(2):
        for half in range(2):
            block = plan.block(rank)
            channel = plan.channel(block, 1 - rank)
            group = {"tb_id": half, "tbg_size": 2}
            place = ("s", 2 * rank)
            op(block, "copy", [near(("i", 0), 2)], [near(place, 2)], tbg_info=group)
            ccl_plans.meet(block, [channel])
            far = ("s", 2 * (1 - rank))
            for chunk in range(2):  # half of each chunk: the other block's copy has one of them
                source = plan.far(block, 1 - rank, (far[0], far[1] + chunk))
                target = near(("o", far[1] + chunk))
                op(block, "get", [source], [target], tbg_info=group)
            ccl_plans.meet(block, [channel])
    found = verdict_of(plan.done())
    assert {finding.kind for finding in found.findings} == {"race"}
    assert "s[1] part 0 of 2, which rank 0 block 1 step 0 (copy) writes, in any order" in (
        found.findings[0].text
    )


# What is refused


def changed(place: tuple[Any, ...], value: Any) -> str:
    """Returns a plan of two ranks with a value in place of another; None takes a key away."""
    plan = ccl_plans.put_all_gather(2)
    at: Any = plan.root
    for key in place[:-1]:
        at = at[key]
    if value is None:
        del at[place[-1]]
    else:
        at[place[-1]] = value
    return plan.text


OP = ("gpus", 0, "threadblocks", 0, "ops", 4)
CHANGES: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "typo": (("colective",), "x", "did you mean `collective`?"),
    "missing": (("collective",), None, "expected a key collective"),
    "operation": (("collective",), "allgathr", "did you mean `allgather`?"),
    "protocol": (("protocol",), "LL128", "expected one of Simple, LL; got 'LL128'"),
    "inplace": (("inplace",), 1, "inplace: expected true or false"),
    "sizes": (("max_message_size",), -1, "max_message_size: expected a number from 0 on; got -1"),
    "rank": (("gpus", 1, "id"), 2, "expected ranks in order, here 1; got 2"),
    "chunks": (("gpus", 1, "input_chunks"), 2, "rank 1 has others"),
    "many chunks": (("gpus", 1, "scratch_chunks"), 1 << 40, "from 0 to 524288"),
    "name": ((*OP, "name"), "putt", "did you mean `put`?"),
    "index": ((*OP, "src_buff", 0, "index"), 9, "expected chunks of o up to 1; got 9"),
    "buffer": ((*OP, "src_buff", 0, "type"), "x", "src_buff type: expected one of i, o, s"),
    "far buffer": ((*OP, "dst_buff", 0, "buffer_id"), 1, "expected a number from 0 to 0; got 1"),
    "no far one": ((*OP, "dst_buff", 0), near(("o", 0)), "of another at the other"),
    "no source": ((*OP, "src_buff"), [], "expected src_buff and dst_buff"),
    "size": ((*OP, "src_buff", 0, "size"), 2, "source and target differ in size"),
    "sum": ((*OP, "reduce_op"), "min", "expected sum; got 'min'"),
    "channel": ((*OP[:-1], 1, "channel_ids"), [3], "expected a number from 0 to 0; got 3"),
    "peer": (("gpus", 0, "channels", 0, "connected_to"), [0], "expected another rank"),
    "no list": (("gpus", 0, "threadblocks", 0, "ops"), 1, "ops: expected a list; got '1'"),
    "no object": (("gpus", 0, "threadblocks", 0, "ops", 0), 1, "expected an object; got '1'"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_wrong_values_are_told_with_their_places(case: str) -> None:
    place, value, told = CHANGES[case]
    with pytest.raises(ConfigError) as caught:
        mscclpp_json.read("a.json", changed(place, value))
    assert told in str(caught.value)
    assert all(problem.where.startswith("a.json:") for problem in caught.value.problems)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": [1, 2', "a.json:1:12: expected ']' of JSON"),
        ('{\n "a": nul}', "a.json:2:7: expected a value of JSON"),
        ('{"a": 1, "a": 2}', "a.json:1:10: a: the key stands twice"),
        ('{"a": "\x01"}', "a.json:1:7: expected a text of JSON"),
        ("{} x", "a.json:1:4: expected nothing after the outermost value"),
        ('{"a": ' + "[" * 40, "expected at most 32 levels"),
    ],
)
def test_what_is_no_json_is_told_with_its_place(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        mscclpp_json.read("a.json", text)
    assert told in str(caught.value)


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields every object or list below a value, with each of its keys or numbers."""
    keys = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in list(keys):
        yield value, key
        if isinstance(each, dict | list):
            yield from places_in(each)


def test_any_value_in_place_of_another_is_read_or_told() -> None:
    rng, told = random.Random(0), 0
    values = [None, True, -1, 0, 3, 10**6, 1.5, "x", "", [], {}, [1], {"a": 1}]
    for _ in range(400):
        root = json.loads(PLANS[rng.choice(list(PLANS))]().text)
        at, key = rng.choice(list(places_in(root)))
        at[key] = copy.deepcopy(rng.choice(values))
        try:
            prove(blocks_of(root))
        except (ConfigError, UnsupportedError):
            told += 1
    assert told > 200


def test_all_problems_of_a_plan_are_told_at_once() -> None:
    plan = ccl_plans.put_all_gather(2)
    ops_of(plan, 0)[4]["name"] = "putt"
    ops_of(plan, 1)[4]["src_buff"][0]["type"] = "x"
    with pytest.raises(ConfigError) as caught:
        mscclpp_json.read("a.json", plan.text)
    assert len(caught.value.problems) == 2


def test_blocks_that_wait_on_one_channel_are_refused() -> None:
    plan = ccl_plans.put_all_gather(2)
    plan.gpus[0]["threadblocks"].append(copy.deepcopy(plan.gpus[0]["threadblocks"][0]))
    plan.gpus[0]["threadblocks"][1]["id"] = 1
    with pytest.raises(ConfigError, match="block 0 waits on memory channel 0 from rank 1 to rank"):
        mscclpp_json.read("a.json", plan.text)


def test_a_barrier_of_other_blocks_than_it_says_is_told() -> None:
    plan = ccl_plans.get_all_gather(2)
    for each in (*ops_of(plan, 0, 0), *ops_of(plan, 0, 1)):
        if each["name"] == "barrier":
            each["num_threadblocks"] = 3
    with pytest.raises(ConfigError, match="expected 3 blocks at barrier 0; 2 meet there"):
        mscclpp_json.read("a.json", plan.text)


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        (("gpus", 0, "inputChunks"), 1, "of an older MSCCL\\+\\+: it has inputChunks"),
        (("gpus", 0, "channels", 0, "buff"), "s", "of an older MSCCL\\+\\+: it has buff"),
        (("reuse_resources",), True, "reuse_resources is not simulated"),
    ],
)
def test_what_is_not_simulated_is_refused_by_name(
    place: tuple[Any, ...], value: Any, told: str
) -> None:
    with pytest.raises(UnsupportedError, match=told):
        mscclpp_json.read("a.json", changed(place, value))


def test_a_get_whose_ends_the_executor_exchanges_is_noted() -> None:
    (note,) = blocks_of(ccl_plans.get_all_gather(2).root).notes
    assert "source and target have other chunks; MSCCL++'s executor exchanges them" in note


def test_what_the_executor_has_no_room_for_is_noted() -> None:
    plan = ccl_plans.put_all_gather(2)
    ops_of(plan, 0)[:0] = [{"name": "nop"}] * 60
    (note,) = blocks_of(plan.root).notes
    assert note == "MSCCL++'s executor has room for 64 operations of a block; the file has 69"


# Run and drawn


def program_of(plan: Plan) -> tuple[Blocks, Program]:
    file = blocks_of(plan.root)
    return file, Program(lower(file))


def chosen_of(program: Program, file: Blocks) -> Chosen:
    module = ModuleType("a")
    setattr(module, file.operation, program)
    return replace(shipped_algorithm(), name="a", module=module, path=Path("x"), align=1)


@pytest.mark.parametrize("name", PLANS)
def test_every_rank_ends_with_what_the_operation_says(name: str) -> None:
    file, program = program_of(PLANS[name]())
    for size in (0, 1, 37, 96):
        for slot in (8, 1 << 30):
            case = even(file.operation, file.ranks, size, slot=slot)
            given = draw(case)
            result = execute(program, case, given)
            for taken, wanted in zip(result.taken, expected(case, given), strict=True):
                np.testing.assert_array_equal(taken, wanted)


def test_packets_are_added_before_the_ranks_own(topology: Callable[[str], Topology]) -> None:
    """As the kernel does: rank r has ((x + y) + z) + own, in the order of its sources."""
    file, program = program_of(ccl_plans.packet_all_reduce(4))
    case = even(file.operation, 4, 4)
    given = draw(case, np.float32)
    taken = simulate(topology("sip8"), chosen_of(program, file), case, given).taken
    for owner in range(4):
        first, *others = [given[rank][owner] for rank in range(4) if rank != owner]
        for one in (*others, given[owner][owner]):
            first = np.float32(first + one)
        assert {values[owner].tobytes() for values in taken} == {first.tobytes()}


@pytest.mark.parametrize("name", ["put 4", "packets 4", "read 3", "pipeline 3"])
def test_a_live_run_takes_as_long_as_the_plan(
    topology: Callable[[str], Topology], name: str
) -> None:
    file, program = program_of(PLANS[name]())
    case = even(file.operation, file.ranks, 10_000)
    times = [
        simulate(topology("sip8"), chosen_of(program, file), case, fidelity=fidelity).ends
        for fidelity in ("kernel", "tile")
    ]
    assert times[0] == times[1]


def test_messages_take_the_place_of_a_switch() -> None:
    """Rank r reads the others' in order of the ranks after it, then writes to all: two shots."""
    lowered = lower(blocks_of(ccl_plans.switched_all_reduce(4).root))
    matchings = [found for each in lowered.rounds for found in each.matchings]
    reads = [Transfer((r + 1) % 4, r, r, r, 1, adds=True) for r in range(4)]
    assert sorted(matchings[0]) == sorted(reads)
    writes = {Transfer(r, p, r, r, 1, adds=False) for r in range(4) for p in range(4) if p != r}
    assert {one for found in matchings[3:] for one in found} == writes
    assert [len(found) for found in matchings] == [4] * 6
    relaxed = blocks_of(ccl_plans.switched_all_reduce(4, relaxed=True).root)
    with pytest.raises(UnsupportedError, match="is not run: it is wrong"):
        lower(relaxed)
    assert lower(relaxed, relaxed=True).rounds == lowered.rounds


def test_a_picture_has_the_blocks_of_the_plan() -> None:
    file = blocks_of(ccl_plans.packet_all_reduce(2).root)
    # The packets of rank 1 leave at level 0, and the sum at level 1.
    assert as_text(file, [0]) == [
        "rank 0 block 0                             ppkt",
        "rank 0 block 1                             .      respkt",
        "rank 0 block 2                             .      .      upkt",
    ]


def test_a_plan_is_loaded_by_its_first_character(tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    path.write_text("\n" + ccl_plans.put_all_gather(2).text)
    file = load(path)
    assert (file.operation, file.ranks, file.modes) == ("all_gather", 2, ("in place",))


def test_inputs_that_a_call_out_of_place_would_lose_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    plan = ccl_plans.get_all_gather(2)
    path.write_text(plan.text)
    before = load(path).notes
    assert not any("loses its input" in note for note in before)
    op(plan.gpus[1]["threadblocks"][1], "copy", [near(("o", 0))], [near(("i", 0))])
    path.write_text(plan.text)
    (note,) = load(path).notes[len(before) :]
    assert note.startswith("a call out of place loses its input, which is kept here: ")
    assert "rank 1 block 1 step 4 (copy o[0] -> i[0])" in note


# Mutants


def mutated(plan: Plan, rng: random.Random) -> None:
    """Drops, repeats or swaps operations, or changes an index, a peer, a channel or a strength."""
    blocks = [block for gpu in plan.gpus for block in gpu["threadblocks"]]
    lists = [block["ops"] for block in blocks]
    lists += [each["ops"] for ops in lists for each in ops if "ops" in each]
    ops = rng.choice([ops for ops in lists if ops])
    at = rng.randrange(len(ops))
    one, what = ops[at], rng.choice(["drop", "drop", "swap", "index", "peer", "channel", "relax"])
    if what == "drop":
        del ops[at]
    elif what == "swap" and at:
        ops[at - 1], ops[at] = ops[at], ops[at - 1]
    elif what == "index" and "src_buff" in one:
        end = rng.choice([*one["src_buff"], *one["dst_buff"]])
        end["index"] += rng.choice([-1, 1])
    elif what == "peer":
        buffers = [each for gpu in plan.gpus for each in gpu["remote_buffers"]]
        if buffers:
            rng.choice(buffers)["rank"] = rng.randrange(len(plan.gpus))
    elif what == "channel" and one.get("channel_ids"):
        rng.choice([one["channel_ids"].pop, one["channel_ids"].reverse])()
    elif what == "relax" and one["name"] in {"signal", "wait"}:
        one["name"] = f"rlx{one['name']}"


def is_wrong_in_any_of(plan: Plan, grain: int, schedules: int, rng: random.Random) -> bool:
    try:
        for _ in range(schedules):
            run_once(plan.root, grain, rng)
    except WrongEndError:
        return True
    return False


CERTAIN = {"result", "deadlock"}
"""Findings that every schedule shows, where none of another kind is beside them."""


def check_mutants(name: str, mutants: int, schedules: int) -> None:
    rng, seen = random.Random(name), {PLANS[name]().text}
    proved = told = 0
    for _ in range(mutants):
        plan = PLANS[name]()
        mutated(plan, rng)
        if plan.text in seen:
            continue
        seen.add(plan.text)
        try:
            file, program = mscclpp_json.read("a.json", plan.text)
        except ConfigError:
            continue
        found = prove(replace(file, plan=program))
        if found.proved:
            proved += 1
            wrong = is_wrong_in_any_of(plan, program.grain, schedules, rng)
            assert not wrong, plan.text
        elif {finding.kind for finding in found.findings} <= CERTAIN:
            told += 1
            assert is_wrong_in_any_of(plan, program.grain, 1, rng), plan.text
    assert proved + told > 0


@pytest.mark.parametrize("name", PLANS)
def test_mutants_are_told_or_right_in_every_schedule(name: str) -> None:
    check_mutants(name, mutants=40, schedules=10)


@pytest.mark.parametrize(
    "mutants",
    [pytest.param(100, marks=pytest.mark.slow), pytest.param(400, marks=pytest.mark.at_length)],
)
@pytest.mark.parametrize("name", PLANS)
def test_thousands_of_mutants_are_told_or_right_in_every_schedule(name: str, mutants: int) -> None:
    check_mutants(name, mutants=mutants, schedules=100)
