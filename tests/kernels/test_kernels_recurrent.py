"""Prices of recurrent networks."""

import pytest

from kernbench.hw.library import Library
from kernbench.kernels.recurrent import Recurrent, recurrent_ps
from kernbench.memory import dtypes
from kernbench.topology import load_topology

WIDE = Recurrent(4, 35, 35 * 20, 650, 650, 2, 1, dtypes.float32, tf32=True)
NARROW = WIDE._replace(hidden=128)


def _library(machine: str) -> Library:
    return Library(load_topology(machine).topology_obj.machine.system.sip)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("machine", ["h200x8", "sip8", "torus4x4"])
def test_more_of_anything_takes_no_less(machine: str, backward: bool) -> None:
    library = _library(machine)

    def ps(network: Recurrent) -> int:
        return recurrent_ps(library, network, backward=backward)

    for network in (WIDE, NARROW):
        alone = ps(network)
        assert alone > 0
        longer = network._replace(steps=70, rows=70 * 20)
        assert ps(longer) > alone
        assert ps(longer) < 2.01 * alone
        assert ps(network._replace(layers=4)) > alone
        assert ps(network._replace(directions=2)) > alone
        assert ps(network._replace(rows=35 * 2000)) > alone


def test_a_narrow_state_stays_on_the_device_unless_in_bfloat16() -> None:
    library = _library("h200x8")

    def step_ps(network: Recurrent) -> int:
        longer = network._replace(steps=1035, rows=1035 * 20)
        both = [recurrent_ps(library, each, backward=False) for each in (longer, network)]
        return (both[0] - both[1]) // 2000

    launches = 11 * library.sip.launch
    assert step_ps(WIDE) == pytest.approx(launches, rel=0.1)
    assert step_ps(NARROW) < launches / 2
    assert step_ps(NARROW._replace(dtype=dtypes.bfloat16)) == pytest.approx(launches, rel=0.1)
    plain = WIDE._replace(gates=1, hidden=256)
    assert step_ps(plain) < launches / 2
    assert step_ps(plain._replace(hidden=257)) == pytest.approx(launches, rel=0.1)
