"""Collapsed runs end with the times, records and memory of runs with every rank, or are refused."""

from collections import Counter
from typing import Any

import pytest
from classes_drawn import Case, Step, cases, refused
from hypothesis import given, settings

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.classes.partition import NotAlikeError
from kernbench.errors import UsageError
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext


def _case(
    machine: str,
    mesh: tuple[int, int, int],
    *kinds: str,
    algorithm: str = "auto",
    slow: tuple[tuple[int, int], ...] = (),
) -> Case:
    steps = [Step(kind, along, 1 << 14, False, False, -1) for kind, along in map(str.split, kinds)]
    return Case(machine, algorithm, mesh, tuple(steps), slow)


@pytest.mark.parametrize(
    "case",
    [
        _case("switch", (8, 1, 1), "all_reduce tp", "all_to_all tp", "all_gather tp"),
        _case("switch", (4, 4, 2), "reduce_scatter dp", "message tp", "all_gather tp"),
        _case("nodes of 8", (8, 4, 2), "all_gather tp", "reduce_scatter dp", "message dp"),
        _case("nodes of 8", (8, 4, 2), "all_to_all tp", "all_reduce dp", algorithm="nccl_simple"),
        _case("nodes of 4", (4, 8, 1), "all_reduce dp", "all_reduce tp", algorithm="ring"),
        _case("ring", (1, 8, 1), "all_reduce dp", "all_gather dp", algorithm="ring"),
    ],
    ids=lambda case: f"{case.machine} {case.mesh}",
)
def test_times_records_and_memory_are_those_of_every_rank(case: Case) -> None:
    assert refused(case, split=False) is None


@pytest.mark.parametrize(
    "case",
    [
        # Late ranks, for which others wait, each to another picosecond.
        _case("switch", (8, 1, 1), "all_reduce tp", slow=((3, 50),)),
        _case("switch", (4, 4, 2), "all_gather tp", "message tp", slow=((5, 30), (6, 7))),
        _case("nodes of 8", (8, 4, 2), "all_gather tp", "message dp", slow=((5, 30),)),
        _case(
            "nodes of 4", (4, 8, 1), "all_reduce dp", "work tp", algorithm="ring", slow=((9, 3),)
        ),
        _case("ring", (1, 8, 1), "all_reduce dp", algorithm="ring", slow=((5, 30),)),
        # Ranks whose ports, or whose ends, are told apart by the algorithm alone.
        _case("switch", (8, 1, 1), "broadcast tp", algorithm="ring"),
        _case("switch", (4, 2, 1), "all_reduce tp", algorithm="nccl_tree"),
    ],
    ids=lambda case: f"{case.machine} {case.mesh} {case.slow}",
)
def test_classes_are_split_where_their_ranks_are_told_apart(case: Case) -> None:
    assert refused(case, split=False) is not None
    assert refused(case) is None


@pytest.mark.parametrize(
    ("case", "report"),
    [
        (
            _case("ring", (2, 4, 1), "all_reduce dp", algorithm="ring"),
            "all_reduce by ring goes over link sip0->sip1, which other ranks use, too\n"
            "  2 groups of 4 ranks do the same at once\n"
            "  hint: choose groups inside a node, or on one rail; or an algorithm that sends "
            "between neighbours; or run with --collapse off, which simulates every rank",
        ),
        (
            _case("nodes of 8", (3, 8, 1), "all_gather tp"),
            "groups of 3 ranks lie in different ways on h200x8_x4_nodes\n"
            "  SIPs [0, 1, 2] and [21, 22, 23], for two of them\n"
            "  hint: choose sizes of groups that divide a node, or are divided by one, or run with "
            "--collapse off, which simulates every rank",
        ),
        (
            _case("switch", (8, 1, 1), "broadcast tp", algorithm="ring"),
            "ranks 0 and 1 are of one class, and do not use the same ports in broadcast by direct\n"
            "  hint: choose an algorithm in which ranks do the same, such as a ring (--set "
            "defaults.algorithm=ring), or run with --collapse off, which simulates every rank",
        ),
    ],
    ids=["links of others", "other places", "other ports"],
)
def test_what_is_not_proved_is_refused(case: Case, report: str) -> None:
    error = refused(case, split=False)

    assert error is not None
    assert str(error) == report


def test_collectives_of_two_dimensions_may_not_meet_at_a_link() -> None:
    late = (Step("all_reduce", along, 1 << 25, True, True, -1) for along in ("tp", "dp"))

    error = refused(Case("switch", "nccl_simple", (4, 4, 1), tuple(late)))

    assert error is not None
    assert error.summary == (
        "two collectives that stand for those of other ranks share a link at once"
    )


def _drawn(most: int, examples: int, stragglers: int = 0) -> Counter[bool]:
    """Returns how many drawn cases are exact, and how many are refused.

    Args:
        most: Most ranks of a case.
        examples: How many cases.
        stragglers: Most slow ranks of a case.
    """
    found: Counter[bool] = Counter()

    @settings(max_examples=examples)
    @given(cases(most, stragglers))
    def compare(case: Case) -> None:
        found[refused(case) is None] += 1

    compare()
    return found


def test_drawn_programs() -> None:
    assert _drawn(64, 30, 2)[True] >= 15


@pytest.mark.slow
def test_more_drawn_programs() -> None:
    assert _drawn(64, 200)[True] >= 100
    assert _drawn(64, 200, 3)[True] >= 100


@pytest.mark.at_length
def test_many_drawn_programs_on_many_ranks() -> None:
    assert _drawn(1024, 500)[True] >= 150
    assert _drawn(256, 200, 3)[True] >= 60


@pytest.mark.parametrize(
    ("dials", "report"),
    [
        (
            {"collapse": "exact"},
            "--collapse exact and --data on, with which ranks have values of their own\n"
            "  hint: --data off",
        ),
        (
            {"collapse": "exact", "data": False, "fidelity": "tile"},
            "--collapse exact and --fidelity tile, which runs each rank's part\n"
            "  hint: run with --collapse off, which simulates every rank",
        ),
        (
            {"roles": "roles.txt", "data": False},
            "--roles without --collapse exact: every rank is simulated then\n"
            "  hint: add --collapse exact",
        ),
        (
            {"witnesses": (3,), "data": False},
            "--witnesses without --collapse exact: every rank is simulated then\n"
            "  hint: add --collapse exact",
        ),
        (
            {"class_limit": 3, "data": False},
            "--class-limit without --collapse exact: every rank is simulated then\n"
            "  hint: add --collapse exact",
        ),
    ],
    ids=["data", "fidelity", "roles", "witnesses", "class limit"],
)
def test_what_does_not_go_together(dials: dict[str, object], report: str) -> None:
    with pytest.raises(UsageError) as caught:
        RuntimeContext(RunSpec(topology="h200x8", **dials))  # type: ignore[arg-type]

    assert str(caught.value) == report


def _stages(odd: int = -1, *changes: str, **dials: Any) -> RuntimeContext:
    """Runs two stages of 32 ranks each, with groups of 8 along a node and of 4 along the nodes.

    Args:
        odd: Rank that does something more.
        changes: Of the machine.
        dials: Of the run.
    """
    spec = RunSpec(
        topology="h200x8_x4_nodes",
        overrides=("system.sips.count=64", *changes),
        data=False,
        collapse="exact",
        **dials,
    )

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        stage, node, place = rank // 32, rank // 8 * 8, rank % 8
        tp = dist.new_group(range(node, node + 8), use_local_synchronization=True)
        rail = range(32 * stage + place, 32 * stage + 32, 8)
        dp = dist.new_group(rail, use_local_synchronization=True)
        x = torch.ones(1 << 16, device="cuda")
        if stage:
            dist.recv(x, rank - 32)
        dist.all_reduce(x, group=tp)
        if rank == odd:
            x = x + 1
        if not stage:
            dist.send(x, rank + 32)
        dist.all_reduce(x, group=dp)
        torch.cuda.synchronize()
        dist.destroy_process_group()

    with RuntimeContext(spec) as ctx:
        ctx.roles = lambda rank: f"stage {rank // 32}"
        ctx.multiprocessing.spawn(worker, nprocs=64)
        return ctx


def test_witnesses_do_the_same_in_their_own_groups() -> None:
    plain, beside = _stages(), _stages(witnesses=(3, 41))

    assert beside.engine.loop.now == plain.engine.loop.now
    assert beside.collapsed[0].callers == (0, 3, 9, 32, 35, 41)
    ends = {
        rank: sorted(
            (one.start, one.end) for one in beside.engine.op_log.records if one.rank == rank
        )
        for rank in beside.collapsed[0].callers
    }
    assert ends[0] == ends[3] == ends[9]
    assert ends[32] == ends[35] == ends[41]


def test_a_witness_that_does_something_else_is_told() -> None:
    with pytest.raises(NotAlikeError) as caught:
        _stages(9, witnesses=(9,))

    told = str(caught.value).splitlines()
    assert told[:2] == [
        "rank 9 did not do what rank 0 did, which runs the program for it",
        "  both are of class 'stage 0'",
    ]
    assert told[2].startswith("  rank 0: send, ")
    assert told[2].endswith("dist.send(x, rank + 32)")
    assert told[3].startswith("  rank 9: aten::add, ")
    assert told[3].endswith("x = x + 1")


SLOW = "system.sips.changed=[{which: [5], sip: {launch: 30 us}}]"


@pytest.mark.parametrize(
    ("changes", "limit", "told"),
    [
        ((), 1, "2 roles, of which rank 0 has 'stage 0' and rank 32 has 'stage 1'"),
        (
            (SLOW,),
            2,
            "the first split: rank 5 of class 'stage 0' is 'stage 0, SIP of kind 1'",
        ),
    ],
    ids=["roles", "SIPs"],
)
def test_too_many_classes(changes: tuple[str, ...], limit: int, told: str) -> None:
    with pytest.raises(NotAlikeError) as caught:
        _stages(-1, *changes, class_limit=limit)

    many = limit + 1
    assert str(caught.value).splitlines()[:2] == [
        f"{many} classes of 64 ranks, over --class-limit {limit}",
        f"  {told}",
    ]


def test_the_groups_of_a_straggler_are_not_those_of_others() -> None:
    with pytest.raises(SpawnException) as caught:
        _stages(-1, SLOW)

    assert str(caught.value.__cause__).splitlines()[:3] == [
        "ranks 0, 1, 2, 3, .., 7 and ranks 8, 9, 10, 11, .., 15 are of some common classes, and "
        "not of the same ones place by place",
        "  ranks 0, 1, 2, 3, .., 7: stage 0, SIP of kind 0, stage 0, SIP of kind 1",
        "  ranks 8, 9, 10, 11, .., 15: stage 0, SIP of kind 0",
    ]


INSTANT = (
    "system.sip.collective_launch=0 ns",
    "system.sip.cube.hbm={capacity: 64 GiB, bandwidth: 1000 TB/s, latency: 0 ns}",
    "system.sip.pe.tcm={capacity: 64 MiB, bandwidth: 1000 TB/s, latency: 0 ns}",
    "system.sip.pe.dma=1000 TB/s",
    "system.sip.pe.issue=0 ns",
    "system.sip.pe.math=1000 TFLOP/s",
)
"""Engines that take next to no time, so that a collective takes that of its network."""


@pytest.mark.parametrize(
    ("machine", "changes", "steps"),
    [
        # 2 (N - 1) steps of a chunk of 64 B.
        ("ring1024", ("defaults.algorithm=ring",), [(2 * 65535, 64)]),
        # Along each dimension 2 (256 - 1) steps, in the first of 256 chunks, then of one.
        (
            "torus4x4",
            (
                "system.sips.network.shape=[256, 256]",
                "defaults.algorithm=dimension_wise",
                "algorithms.dimension_wise.channels=1",
            ),
            [(2 * 255, 256 * 64), (2 * 255, 64)],
        ),
    ],
    ids=["ring", "torus"],
)
def test_an_all_reduce_of_65536_ranks_takes_its_latencies_and_its_bytes(
    machine: str, changes: tuple[str, ...], steps: list[tuple[int, int]]
) -> None:
    ranks = 65536
    spec = RunSpec(
        topology=machine,
        overrides=(f"system.sips.count={ranks}", *INSTANT, *changes),
        data=False,
        collapse="exact",
        record="full",
    )

    def worker(rank: int) -> None:
        del rank
        dist.init_process_group("nccl")
        dist.all_reduce(torch.empty(16 * ranks, device="cuda"))
        torch.cuda.synchronize()

    with RuntimeContext(spec) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=ranks)
        (record,) = (one for one in ctx.engine.op_log.records if one.category == "collective")
    # Links of 50 GB/s and 100 ns. An engine that is nearly instant takes a picosecond for 1000 B,
    # and at least one.
    expected = sum(count * (100_000 + 20 * nbytes) for count, nbytes in steps)
    most = sum(count * (4 + 4 * nbytes // 1000) for count, nbytes in steps)
    assert expected <= record.end - record.start <= expected + most
