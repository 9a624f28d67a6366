"""What is computed in rows, all values at once, is what is computed chunk by chunk."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from ccl_machine import shipped_algorithm, values

from kernbench.ccl.config import Chosen, load_ccl
from kernbench.ccl.model import CollectiveModel
from kernbench.ccl.operations import OPERATIONS
from kernbench.ccl.prepared import CollectiveShape, Prepared
from kernbench.ccl.values import Array, Operands, evaluate
from kernbench.config import shipped
from kernbench.memory import DType, dtypes
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import Topology

FILE = load_ccl(shipped("configs") / "ccl.yaml").value
REDUCING = [name for name, operation in OPERATIONS.items() if operation.reduces]
SHIPPED = [
    (name, operation)
    for name in FILE.algorithms
    for operation in REDUCING
    if shipped_algorithm(name).implements(operation)
]


def prepared(
    topology: Topology, chosen: Chosen, operation: str, ranks: int, count: int, dtype: DType
) -> Prepared:
    blocks = OPERATIONS[operation].count(ranks)
    shape = CollectiveShape(chosen, operation, tuple(range(ranks)), (count,) * blocks, dtype)
    return CollectiveModel(GraphEngine(topology)).prepare(shape)


def outcomes(
    what: Prepared, given: Sequence[Array], combine: np.ufunc, *, rows: bool
) -> list[bytes]:
    """Returns what every rank takes, in rows or chunk by chunk; 7 where nothing is written."""
    taken = [np.full(count, 7, given[0].dtype) for _, count in what.taken]
    for number, channel in enumerate(what.channels):
        found = what.rows(number)
        assert found is not None
        runs = [
            (rank, chunks, output[where])
            for rank, output in enumerate(taken)
            for chunks, where in what.runs(number, rank)
        ]
        if runs:
            operands = Operands(channel.layout, given, what.begins)
            if rows:
                found.evaluate(operands, combine, runs)
            else:
                evaluate(what.recipes[number], operands, combine, runs)
    return [output.tobytes() for output in taken]


@pytest.mark.parametrize(("name", "operation"), SHIPPED)
@pytest.mark.parametrize("ranks", [1, 2, 5, 8])
def test_rows_equal_chunks(
    topology: Callable[[str], Topology], name: str, operation: str, ranks: int
) -> None:
    chosen = shipped_algorithm(name)
    for count, dtype in ((1, dtypes.float32), (1000, dtypes.float32), (1009, dtypes.bfloat16)):
        what = prepared(topology("h200x8"), chosen, operation, ranks, count, dtype)
        for combine in (np.add, np.minimum):
            # Twice: rows find whatever the last time has left there.
            for seed in (3, 4):
                size = count * OPERATIONS[operation].count(ranks)
                given = values(dtype, ranks, size, seed)
                expected = outcomes(what, given, combine, rows=False)
                assert outcomes(what, given, combine, rows=True) == expected


def test_what_is_large_is_computed_chunk_by_chunk(topology: Callable[[str], Topology]) -> None:
    machine, ring = topology("sip8"), shipped_algorithm()
    assert prepared(machine, ring, "all_reduce", 8, 1 << 10, dtypes.float32).rows(0) is not None
    assert prepared(machine, ring, "all_reduce", 8, 1 << 20, dtypes.float32).rows(0) is None


def test_runs_cover_what_a_rank_takes(topology: Callable[[str], Topology]) -> None:
    for operation in ("all_reduce", "reduce_scatter"):
        for count in (1, 7, 1000):
            chosen = shipped_algorithm("ring_two_way")
            what = prepared(topology("sip8"), chosen, operation, 5, count, dtypes.float32)
            for rank, (_, taken) in enumerate(what.taken):
                hits = np.zeros(taken, int)
                for number, channel in enumerate(what.channels):
                    for chunks, where in what.runs(number, rank):
                        hits[where] += 1
                        sizes = [np.diff(channel.layout.extent(rank, at))[0] for at in chunks]
                        assert sum(sizes) == where.stop - where.start
                        assert all(size == channel.layout.nominal for size in sizes[:-1])
                assert (hits == 1).all()
