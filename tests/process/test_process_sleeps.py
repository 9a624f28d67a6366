"""A kernel that counts cycles of its device's clock."""

import pytest

import kernbench.torch as torch
from kernbench.errors import UnsupportedError
from kernbench.process.process import current_process
from kernbench.process.sleeps import sleep
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology

LAUNCH_MS = 1e-3
"""Of sip8."""


def slept_ms(cycles: int, *overrides: str) -> float:
    engine = GraphEngine(load_topology("sip8", overrides).topology_obj)
    with RuntimeContext(engine=engine, quiet=True):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        sleep(current_process(), 0, 10**6)  # the host gets ahead
        first.record()
        sleep(current_process(), 0, cycles)
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last)


@pytest.mark.parametrize(
    ("cycles", "ms"), [(-3, 0.0), (0, 0.0), (1, 0.5e-6), (3_000, 1.5e-3), (2 * 10**9, 1e3)]
)
def test_a_stream_waits_for_a_launch_and_its_cycles(cycles: int, ms: float) -> None:
    assert slept_ms(cycles, "system.sip.clock=2 GHz") == pytest.approx(LAUNCH_MS + ms)


def test_a_device_without_a_clock_is_refused_with_the_way_out() -> None:
    with pytest.raises(
        UnsupportedError, match="_sleep on sip8, whose file gives no clock"
    ) as raised:
        slept_ms(1)
    assert "hint: give system.sip.clock" in str(raised.value)
