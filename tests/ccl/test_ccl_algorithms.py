"""The shipped algorithms: what they compute, what they send, and that they never jam."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any, Final

import numpy as np
import pytest
from ccl_operations import (
    Case,
    Program,
    Rank,
    draw,
    even,
    execute,
    expected,
    simulate,
    uneven,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernbench.ccl.algorithms import (
    chain,
    dimension_wise,
    direct,
    double_binary_tree,
    halving_doubling,
    pairwise,
    ring,
    two_level,
    two_shot,
)
from kernbench.ccl.config import Chosen, choose, load_ccl, shipped_ccl_file
from kernbench.ccl.operations import OPERATIONS
from kernbench.memory import DType, dtypes
from kernbench.sim_engine.engine import Fidelity
from kernbench.topology import Topology

FIDELITIES: Final[tuple[Fidelity, ...]] = ("kernel", "tile")
MODULES = (
    ring,
    halving_doubling,
    double_binary_tree,
    direct,
    two_shot,
    chain,
    pairwise,
    dimension_wise,
    two_level,
)
RANKS = (*range(1, 18), 64)
SPANS_BLOCKS = {(halving_doubling, "all_gather"), (halving_doubling, "reduce_scatter")}
"""What sends blocks in a row and so works with one channel only."""

PAIRS = [
    pytest.param(module, operation, id=f"{module.__name__.rpartition('.')[2]}-{operation}")
    for module in MODULES
    for operation in OPERATIONS
    if hasattr(module, operation)
]


def channels(module: ModuleType, operation: str) -> tuple[int, ...]:
    return (1,) if (module, operation) in SPANS_BLOCKS else (1, 3)


def ranks_of(operation: str, *ranks: int) -> tuple[int, ...]:
    return (2,) if operation == "send_recv" else ranks


def grids(ranks: int) -> Iterator[tuple[int, ...]]:
    yield (ranks,)
    for inner in range(2, ranks):
        if ranks % inner == 0:
            yield inner, ranks // inner
    if ranks == 12:
        yield 2, 3, 2


def roots(operation: str, ranks: int) -> range | tuple[int, ...]:
    if not OPERATIONS[operation].rooted:
        return (0,)
    return range(ranks) if ranks < 8 else (0, ranks // 2, ranks - 1)


def check(module: ModuleType, case: Case) -> None:
    given = draw(case)
    result = execute(getattr(module, case.operation), case, given)
    for taken, wanted in zip(result.taken, expected(case, given), strict=True):
        np.testing.assert_array_equal(taken, wanted)


@pytest.mark.parametrize(("module", "operation"), PAIRS)
def test_every_rank_ends_with_what_the_operation_says(module: ModuleType, operation: str) -> None:
    for ranks in ranks_of(operation, *RANKS):
        for number, root in enumerate(roots(operation, ranks)):
            for size in (0, 1, 37) if ranks < 9 else (37,):
                check(
                    module, even(operation, ranks, size, root=root, slot=8, n_slots=1 + number % 3)
                )


@pytest.mark.parametrize(("module", "operation"), PAIRS)
@pytest.mark.parametrize("align", [1, 4])
def test_blocks_may_differ_and_channels_share_them(
    module: ModuleType, operation: str, align: int
) -> None:
    for ranks in ranks_of(operation, 1, 2, 5, 8, 11):
        for root in {0, ranks - 1}:
            for number in channels(module, operation):
                for size in (5, 100):
                    check(
                        module,
                        uneven(
                            operation, ranks, size, root=root, channels=number, slot=16, align=align
                        ),
                    )


@pytest.mark.parametrize(
    ("module", "operation"),
    [param for param in PAIRS if param.values[0] in {dimension_wise, two_level}],
)
def test_every_grid(module: ModuleType, operation: str) -> None:
    for ranks in (4, 6, 12, 15):
        for grid in grids(ranks):
            for root in roots(operation, ranks):
                check(module, uneven(operation, ranks, 150, root=root, grid=grid, slot=32))
            check(module, uneven(operation, ranks, 150, grid=grid, channels=4))
    for grid in (8, 8), (4, 4, 4):
        check(module, even(operation, 64, 100, root=roots(operation, 64)[-1], grid=grid))


@pytest.mark.parametrize(("module", "operation"), PAIRS)
def test_a_large_buffer_never_jams(module: ModuleType, operation: str) -> None:
    """Far more messages than slots, even with a single slot."""
    for ranks in ranks_of(operation, 2, 3, 5, 8):
        for n_slots in (1, 2, 5):
            case = even(operation, ranks, 1009, slot=7, n_slots=n_slots, root=ranks - 1)
            check(module, case)


@pytest.mark.parametrize("module", [module for module in MODULES if hasattr(module, "all_reduce")])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_all_ranks_end_bitwise_equal(module: ModuleType, dtype: Any) -> None:
    for ranks in (2, 3, 7, 8, 12):
        case = even("all_reduce", ranks, 203, slot=16, channels=2, grid=[*grids(ranks)][-1])
        result = execute(module.all_reduce, case, draw(case, dtype, seed=ranks))
        assert len({taken.tobytes() for taken in result.taken}) == 1


def test_one_shot_adds_in_the_order_of_ranks() -> None:
    case = even("all_reduce", 7, 50, slot=9)
    given = draw(case, np.float32)
    total = given[0]
    for values in given[1:]:
        total = total + values
    assert execute(direct.all_reduce, case, given).taken[3].tobytes() == total.tobytes()


# What is sent, in units of the buffer over the number of ranks, or of a block


def power(ranks: int) -> int:
    return 1 << (ranks.bit_length() - 1)


def halving(ranks: int, rank: int, operation: str) -> float:
    """Of Rabenseifner's fold: even ranks of a pair work for odd ones."""
    p, pairs = power(ranks), ranks - power(ranks)
    paired, odd = rank < 2 * pairs, rank % 2
    if operation == "all_reduce":
        share = ranks / p
        own = 0.0 if paired and odd else 2 * (p - 1) * share
        return own + (ranks if odd else 1.5 * ranks) * paired
    mine = 2 if paired else 1
    if operation == "reduce_scatter":
        low, high = ranks // 2, ranks - ranks // 2
        if paired and odd:
            return low + high
        return ranks - mine + (high + 1 if paired else 0)
    if paired and odd:
        return 1
    # Doubling: all that this rank has, to each partner; it depends on whom the partners work for.
    sent, actor = 0, rank // 2 if paired else rank - pairs
    part = range(actor, actor + 1)
    for bit in range(p.bit_length() - 1):
        size = 1 << bit
        first = actor // size * size
        part = range(first, first + size)
        sent += sum(2 if a < pairs else 1 for a in part)
    return sent + (ranks - 1 if paired else 0)


def textbook(module: ModuleType, case: Case, rank: int) -> float:
    """Returns what a rank sends, in blocks; a single block counts as one for each rank."""
    n, operation = case.ranks, case.operation
    root = rank == case.root
    inner = (case.grid or (n,))[0]
    nodes = n // inner
    match module, operation:
        case (_, "send_recv"):
            return n * root
        case (m, _) if m is halving_doubling:
            return halving(n, rank, operation)
        case (m, "all_reduce") if m is direct:
            return n * (n - 1)
        case (m, "reduce") if m is direct:
            return n * (not root)
        case (m, "broadcast") if m is direct:
            return n * (n - 1) * root
        case (_, "gather"):
            return not root
        case (_, "scatter"):
            return (n - 1) * root
        case (m, "reduce") if m is chain:
            return n * (not root)
        case (m, "broadcast") if m is chain:
            return n * ((rank + 1) % n != case.root)
        case (m, "reduce") if m is two_shot:
            return n - 1 + (not root)
        case (m, "broadcast") if m is two_shot:
            return (n - 1) * (1 + root)
        case (m, "broadcast") if m is two_level:
            home = rank // inner == case.root // inner
            return nodes * (inner - 1) * (1 + root) + nodes * (nodes - 1) * home
        case (_, "all_reduce"):
            return 2 * (n - 1)
    return n - 1


@pytest.mark.parametrize(
    ("module", "operation"),
    [
        pair for pair in PAIRS if pair.values[0] is not double_binary_tree
    ],  # it has a test of its own
)
def test_each_rank_sends_what_the_textbook_says(module: ModuleType, operation: str) -> None:
    for ranks in ranks_of(operation, 1, 2, 3, 6, 8, 12):
        for grid in grids(ranks):
            block = 8 * power(ranks)
            size = block * ranks if OPERATIONS[operation].blocks == "one" else block
            for root in {0, ranks - 1} if OPERATIONS[operation].rooted else {0}:
                case = even(operation, ranks, size, root=root, grid=grid, slot=8)
                result = execute(getattr(module, operation), case, draw(case))
                said = [textbook(module, case, rank) for rank in range(ranks)]
                assert [sent / block for sent in result.sent] == said


@pytest.mark.parametrize("ranks", [*range(2, 18), 64])
def test_two_trees_use_every_rank_once(ranks: int) -> None:
    """A rank that passes things on in one tree is a leaf of the other."""
    algorithm: Callable[[Any], None] = double_binary_tree.broadcast
    inner: list[set[int]] = []
    for channel in (0, 1):
        case = even("broadcast", ranks, 8, root=ranks // 3)
        passing = set()
        for rank in range(ranks):
            program = Program(case, rank, channel)
            algorithm(program)
            receivers = {step.to for step in program.exchanges if step.send >= 0}
            assert len(receivers) <= (1 if rank == case.root else 2)
            if receivers:
                passing.add(rank)
        inner.append(passing - {case.root})
    assert not inner[0] & inner[1]


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 8, 13])
def test_trees_send_what_the_paper_says(ranks: int) -> None:
    size = 2 * 5 * 64
    for root in (0, ranks - 1):

        def sent(operation: str, root: int = root) -> list[float]:
            case = even(operation, ranks, size, root=root, channels=2, slot=64)
            result = execute(getattr(double_binary_tree, operation), case, draw(case))
            return [count / size for count in result.sent]

        assert sent("reduce") == [float(rank != root) for rank in range(ranks)]
        down = sent("broadcast")
        assert sum(down) == ranks - 1
        assert max(down) <= 1
        both = sent("all_reduce", 0)
        assert sum(both) == 2 * (ranks - 1)
        assert max(both) <= 2


@pytest.mark.parametrize(
    ("operation", "module", "waits"),
    [
        ("all_reduce", ring, lambda n: 2 * (n - 1)),
        ("all_reduce", halving_doubling, lambda n: 2 * (n.bit_length() - 1)),
        ("all_gather", halving_doubling, lambda n: n.bit_length() - 1),
        ("reduce_scatter", ring, lambda n: n - 1),
        ("broadcast", direct, lambda n: 1),
    ],
)
@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_the_number_of_waits(
    operation: str, module: ModuleType, waits: Callable[[int], int], ranks: int
) -> None:
    case = even(operation, ranks, 64)
    programs = [Program(case, rank, 0) for rank in range(ranks)]
    for program in programs:
        getattr(module, operation)(program)
    longest = max(sum(step.receive >= 0 for step in program.exchanges) for program in programs)
    assert longest == waits(ranks)


# Through the engine


def shipped(name: str, machine: Topology, *overrides: str) -> Chosen:
    path = shipped_ccl_file()
    return choose(load_ccl(path, overrides), path, name, machine.machine.system)


def as_run(case: Case, chosen: Chosen, machine: Topology, itemsize: int) -> Case:
    """Returns what the engine is going to do with a collective."""
    return replace(
        case,
        grid=machine.grid(range(case.ranks)),
        channels=chosen.channels,
        slot=chosen.queue.slot_size // itemsize,
        n_slots=chosen.queue.n_slots,
        align=chosen.align,
    )


ENTRIES = [
    pytest.param(name, operation, id=f"{name}-{operation}")
    for name, spec in load_ccl(shipped_ccl_file()).value.algorithms.items()
    for operation in OPERATIONS
    if hasattr(import_module(spec.module), operation)
]


@pytest.mark.parametrize(("name", "operation"), ENTRIES)
def test_the_engine_computes_the_same_and_every_tier_agrees(
    topology: Callable[[str], Topology], name: str, operation: str
) -> None:
    """Bit for bit, and to the picosecond for each rank, though ranks begin at different times."""
    types = [dtypes.float32, dtypes.bfloat16, dtypes.int32, dtypes.float8_e4m3fn]
    machines = [("sip8", 5), ("torus4x4", 16), ("h200x8", 8)]
    if name in {"two_level", "halving_doubling", "dimension_wise"}:
        machines.append(("h200x8_x4_nodes", 16))
    for number, (machine_name, most) in enumerate(machines):
        machine, (ranks,) = topology(machine_name), ranks_of(operation, most)
        small = shipped(name, machine, "defaults.slot_size=96 B", "defaults.n_slots=3")
        dtype = types[(number + len(operation)) % len(types)]
        for chosen, size in ((small, 67), (shipped(name, machine), 0), (small, 3)):
            case = uneven(operation, ranks, size, root=ranks - 1)
            case = as_run(case, chosen, machine, dtype.itemsize)
            given = [values.astype(dtype.numpy) for values in draw(case, np.float64)]
            wanted = execute(getattr(chosen.module, operation), case, given, add(dtype)).taken
            starts = [(rank * 7919) % 13 * 100_000 for rank in range(ranks)]
            planned, live = (
                simulate(
                    machine, chosen, case, given, dtype=dtype, fidelity=fidelity, starts=starts
                )
                for fidelity in FIDELITIES
            )
            assert [t.tobytes() for t in planned.taken] == [w.tobytes() for w in wanted]
            assert [t.tobytes() for t in live.taken] == [w.tobytes() for w in wanted]
            assert planned.ends == live.ends


def add(dtype: DType) -> Callable[[Any, Any], Any]:
    return lambda a, b: np.add(a, b).astype(dtype.numpy)


@pytest.mark.parametrize(("name", "operation"), ENTRIES)
def test_nothing_is_faster_than_the_links(
    topology: Callable[[str], Topology], name: str, operation: str
) -> None:
    for machine_name, ranks in (("sip8", 8), ("torus4x4", 16), ("h200x8", 3)):
        check_bound(
            topology(machine_name), name, operation, 2 if operation == "send_recv" else ranks
        )


@given(
    data=st.data(),
    count=st.integers(2, 9),
    entry=st.sampled_from([param.values for param in ENTRIES]),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_is_faster_than_the_links_of_any_machine(
    make_topology: Callable[..., Topology],
    data: st.DataObject,
    count: int,
    entry: tuple[str, str],
) -> None:
    cables = [
        {"ends": [f"sip{data.draw(st.integers(0, sip - 1))}", f"sip{sip}"]}
        for sip in range(1, count)
    ]
    machine = make_topology(count, {"kind": "graph", "edges": cables})
    name, operation = entry
    check_bound(machine, name, operation, *ranks_of(operation, count))


def check_bound(machine: Topology, name: str, operation: str, ranks: int) -> None:
    """What the ranks send cannot be done before the busiest link has carried its share."""
    chosen = shipped(name, machine)
    case = even(operation, ranks, 40_000 if OPERATIONS[operation].blocks == "one" else 5_000)
    case = as_run(case, chosen, machine, 4)
    loads = dict.fromkeys(range(len(machine.links)), 0)
    for channel in range(chosen.channels):
        for rank in range(ranks):
            program = Program(case, rank, channel)
            getattr(chosen.module, operation)(program)
            place = Rank(case, program, np.empty(0))
            for step in program.exchanges:
                if step.send >= 0 and step.to != rank:
                    pieces = place.pieces(step.send, step.span)
                    for link in machine.sip_route(rank, step.to):
                        loads[link.index] += 4 * sum(p.stop - p.start for p in pieces)
    bound = max(link.bandwidth.duration_ps(loads[link.index]) for link in machine.links)
    assert simulate(machine, chosen, case).time >= bound
