"""The shipped algorithms: what they compute, what they send, and that they never jam."""

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

import numpy as np
import pytest
from ccl_operations import (
    Case,
    Program,
    draw,
    even,
    execute,
    expected,
    simulate,
    uneven,
)
from ccl_shipped import ENTRIES, as_run, ranks_of, shipped, slots
from examples import examples
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
from kernbench.ccl.operations import OPERATIONS
from kernbench.memory import DType, dtypes
from kernbench.sim_engine.dials import Fidelity
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
FEW = (*range(1, 10), 16)
MANY = (*range(10, 16), 17, 64)
FLOATS = (
    dtypes.float64,
    dtypes.float32,
    dtypes.float16,
    dtypes.bfloat16,
    dtypes.float8_e4m3fn,
    dtypes.float8_e5m2,
)
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


@pytest.mark.parametrize(
    "worlds", [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("module", "operation"), PAIRS)
def test_every_rank_ends_with_what_the_operation_says(
    module: ModuleType, operation: str, worlds: tuple[int, ...]
) -> None:
    for ranks in ranks_of(operation, *worlds):
        for number, root in enumerate(roots(operation, ranks)):
            # What is empty looks alike from every root.
            for size in (0, 1, 37) if ranks < 9 or not number else (37,):
                check(
                    module, even(operation, ranks, size, root=root, slot=8, n_slots=1 + number % 3)
                )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "operation"), ENTRIES)
def test_a_mebi_of_elements(topology: Callable[[str], Topology], name: str, operation: str) -> None:
    """A prime number of them, cut as the engine cuts them, on a number of ranks and one less."""
    machine, many = topology("torus4x4"), 1_048_573
    for most in (4, 7) if OPERATIONS[operation].blocks == "one" else (4,):
        (ranks,) = ranks_of(operation, most)
        size = many if OPERATIONS[operation].blocks == "one" else many // ranks
        case = uneven(operation, ranks, size, root=ranks - 1)
        chosen = shipped(name, machine)
        given = [values.astype(np.int32) for values in draw(case)]
        taken = simulate(machine, chosen, case, given, dtype=dtypes.int32).taken
        for got, wanted in zip(taken, expected(case, given), strict=True):
            np.testing.assert_array_equal(got, wanted)


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
@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
def test_all_ranks_end_bitwise_equal(module: ModuleType, dtype: DType) -> None:
    """Though they add in an order in which the sum depends on it."""
    depends = 0
    for ranks in range(1, 18):
        size, number = (53, 23, 1)[ranks % 3], 1 + ranks % 2
        case = even("all_reduce", ranks, size, slot=16, channels=number, grid=[*grids(ranks)][-1])
        given = [values.astype(dtype.numpy) for values in draw(case, np.float64, seed=ranks)]
        taken = execute(module.all_reduce, case, given, add(dtype)).taken
        assert len({one.tobytes() for one in taken}) == 1
        straight = given[0]
        for values in given[1:]:
            straight = add(dtype)(straight, values)
        depends += taken[0].tobytes() != straight.tobytes()
    assert depends or module is direct


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
        small = shipped(name, machine, *slots(name, 96, 3))
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


@given(
    entry=st.sampled_from(ENTRIES),
    ranks=st.integers(1, 16),
    size=st.sampled_from([0, 1, 2, 53, 1009]),
    dtype=st.sampled_from([*FLOATS, dtypes.int32, dtypes.uint8]),
    place=st.integers(0, 15),
    slot=st.sampled_from([64, 100, 4096]),
    n_slots=st.integers(1, 4),
)
@settings(max_examples=examples(120), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_engine_computes_the_same_on_any_number_of_ranks(
    topology: Callable[[str], Topology],
    entry: Any,
    ranks: int,
    size: int,
    dtype: DType,
    place: int,
    slot: int,
    n_slots: int,
) -> None:
    name, operation = entry.values
    machine, (ranks,) = topology("torus4x4"), ranks_of(operation, ranks)
    chosen = shipped(name, machine, *slots(name, slot, n_slots))
    case = as_run(
        uneven(operation, ranks, size, root=place % ranks), chosen, machine, dtype.itemsize
    )
    given = [values.astype(dtype.numpy) for values in draw(case, seed=size)]
    wanted = execute(getattr(chosen.module, operation), case, given, add(dtype)).taken
    taken = simulate(machine, chosen, case, given, dtype=dtype).taken
    assert [t.tobytes() for t in taken] == [w.tobytes() for w in wanted]
    if operation == "all_reduce":
        assert len({t.tobytes() for t in taken}) == 1
