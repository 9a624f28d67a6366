"""Every way to build the queues, every number of ranks, sizes that divide and that do not.

Each case is run twice: live, as tile programs over queues, and as a plan. Both must agree in bytes
and picoseconds for each rank, though ranks start at different times and join in any order.
"""

from collections.abc import Callable

import numpy as np
import pytest
from ccl_machine import Outcome, ring_order_sum, run, shipped_algorithm, skewed

from kernbench.memory import DType, dtypes
from kernbench.topology import Topology

KINDS = ("tcm", "hbm", "sram")
BACKPRESSURES = ("sleep", "poll")
DTYPES = (dtypes.float32, dtypes.bfloat16, dtypes.int32)


def check_values(outcome: Outcome, dtype: DType, align: int) -> None:
    first = outcome.outputs[0]
    assert all(output.tobytes() == first.tobytes() for output in outcome.outputs)
    if dtype.is_floating_point:
        assert first.tobytes() == ring_order_sum(outcome.inputs, align).tobytes()
    else:
        np.testing.assert_array_equal(first, np.sum(outcome.inputs, axis=0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backpressure", BACKPRESSURES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_the_matrix(
    topology: Callable[[str], Topology], kind: str, backpressure: str, ranks: int, dtype: DType
) -> None:
    machine = topology("sip8")
    for count in (0, 1, 7, 64, 1009):
        chosen = shipped_algorithm(
            "ring_allreduce_tcm",
            f"algorithms.ring_allreduce_tcm.buffer_kind={kind}",
            f"algorithms.ring_allreduce_tcm.backpressure={backpressure}",
            "algorithms.ring_allreduce_tcm.slot_size=96 B",
            "algorithms.ring_allreduce_tcm.n_slots=3",
            "algorithms.ring_allreduce_tcm.n_elem=4",
        )
        starts = skewed(ranks, seed=count)
        planned, live = (
            run(machine, chosen, starts, count, fidelity=fidelity, dtype=dtype, seed=count)
            for fidelity in ("kernel", "tile")
        )
        check_values(planned, dtype, 4)
        live.same(planned)
