"""When kernels are done: closed forms, contention at the HBM port, the memo, data on and off."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tl_machine import Machine

from kernbench import tl
from kernbench.sim_engine.dials import Fidelity
from kernbench.sim_engine.op_log import Record
from kernbench.tl.launch import jit
from kernbench.topology import Topology

# sip8: 8 PEs a cube; HBM 400 GB/s (2.5 ps a byte) after 200 ns, DMA 200 GB/s (5 ps a byte), issue
# 2 ns, launch 1 us, fp32 GEMM 0.5 TFLOP/s, maths 128 GFLOP/s, TCM 1 TB/s after 5 ns.
LAUNCH, ISSUE, LATENCY = 1_000_000, 2_000, 200_000


@pytest.fixture(scope="session")
def sip8(topology: Callable[[str], Topology]) -> Topology:
    return topology("sip8")


@pytest.fixture
def machine(sip8: Topology) -> Machine:
    return Machine(sip8)


@jit
def copy(x: Any, y: Any, block: tl.constexpr) -> None:
    lanes = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + lanes, tl.load(x + lanes))


def contended_copy(programs: int, nbytes: int) -> int:
    """The loads of a cube's programs pass its port one after the other, then their stores do."""
    ends = []
    for k in range(1, programs + 1):
        loaded = max(ISSUE + 5 * nbytes, ISSUE + k * nbytes * 5 // 2) + LATENCY
        through = ISSUE + (programs + k) * nbytes * 5 // 2
        ends.append(max(loaded + 5 * nbytes, through) + LATENCY)
    return max(ends)


@pytest.mark.parametrize("programs", [1, 2, 3, 5, 8])
def test_programs_of_one_cube_contend_for_its_hbm(machine: Machine, programs: int) -> None:
    block = 1024
    x = machine.tensor(np.zeros(programs * block, np.float32))
    y = machine.tensor(np.zeros(programs * block, np.float32))
    time = machine.launch(copy, (programs,), x=x, y=y, block=block)
    assert time == LAUNCH + contended_copy(programs, 4 * block)


@pytest.mark.parametrize(("programs", "slowest"), [(9, 8), (16, 8), (32, 8)])
def test_programs_of_different_cubes_do_not(machine: Machine, programs: int, slowest: int) -> None:
    block = 1024
    x = machine.tensor(np.zeros(programs * block, np.float32))
    y = machine.tensor(np.zeros(programs * block, np.float32))
    time = machine.launch(copy, (programs,), x=x, y=y, block=block)
    assert time == LAUNCH + contended_copy(slowest, 4 * block)


def test_more_programs_than_pes_take_turns(machine: Machine) -> None:
    @jit
    def think(x: Any) -> None:
        tl.store(x + tl.program_id(0), tl.sum(tl.exp(tl.load(x + tl.program_id(0)))))

    x = machine.tensor(np.zeros(96, np.float64))
    one, two, three = (machine.launch(think, (n,), x=x) - LAUNCH for n in (32, 64, 96))
    assert two > one
    # Rounds do not overlap: a PE ends a program before it begins the next one.
    assert three - two == two - one


def test_engines_overlap_and_wait_for_their_operands(machine: Machine) -> None:
    @jit
    def work(x: Any) -> None:
        lanes = tl.arange(0, 16)
        index = lanes[:, None] * 16 + lanes[None, :]
        a, b = tl.load(x + index), tl.load(x + index)
        tl.store(x + index, tl.exp(tl.dot(a, b)))

    x = machine.tensor(np.zeros((16, 16), np.float32))
    nbytes = 16 * 16 * 4
    first = max(ISSUE + 5 * nbytes, ISSUE + nbytes * 5 // 2)
    second = max(max(2 * ISSUE, first) + 5 * nbytes, 2 * ISSUE) + LATENCY
    multiplied = second + 2 * 16**3 * 2
    raised = multiplied + 256 * 10**12 // (128 * 10**9)
    assert machine.launch(work, x=x) == LAUNCH + raised + 5 * nbytes + LATENCY


def test_a_message_between_pes_of_a_cube_takes_dma_and_slot(machine: Machine) -> None:
    @jit
    def pass_on(x: Any) -> None:
        if tl.program_id(0) == 0:
            tl.send(tl.zeros((64,)), 1)
        else:
            tl.store(x + tl.arange(0, 64), tl.recv(0))

    x = machine.tensor(np.zeros(64, np.float32))
    arrival = ISSUE + 5 * 256 + 5_000  # into TCM
    received = arrival + 256 + 5_000  # out of it at 1 TB/s
    assert machine.launch(pass_on, (2,), x=x) == LAUNCH + received + 5 * 256 + LATENCY


def test_a_message_to_another_cube_flies_over_the_link_between(machine: Machine) -> None:
    @jit
    def pass_on(x: Any) -> None:
        if tl.program_id(0) == 0:
            tl.send(tl.zeros((64,)), 8)
        if tl.program_id(0) == 8:
            tl.store(x + tl.arange(0, 64), tl.recv(0))

    x = machine.tensor(np.zeros(64, np.float32))
    arrival = ISSUE + 5 * 256 + 20_000 + 5_000
    received = arrival + 256 + 5_000
    assert machine.launch(pass_on, (9,), x=x) == LAUNCH + received + 5 * 256 + LATENCY


def test_masked_lanes_cost_nothing(machine: Machine) -> None:
    @jit
    def part(x: Any, n: int) -> None:
        lanes = tl.arange(0, 1024)
        tl.store(x + lanes, tl.load(x + lanes, mask=lanes < n), mask=lanes < n)

    x = machine.tensor(np.zeros(1024, np.float32))
    for n in (1024, 100, 0):
        assert machine.launch(part, x=x, n=n) == LAUNCH + contended_copy(1, 4 * n)


@pytest.mark.parametrize("fidelity", ["kernel", "tile"])
def test_the_memo_and_data_do_not_change_the_time(sip8: Topology, fidelity: Fidelity) -> None:
    times = set()
    for data in (True, False):
        machine = Machine(sip8, data=data, fidelity=fidelity)
        x = machine.tensor(np.arange(4096, dtype=np.float32))
        y = machine.tensor(np.zeros(4096, np.float32))
        for _ in range(3):
            times.add(machine.launch(copy, (16,), x=x, y=y, block=256))
        times.add(machine.launch(copy, (16,), x=y, y=x, block=256))
    assert len(times) == 1


class Ran:
    """Counts programs; a class is plain to a kernel that finds it outside of itself."""

    times = 0


@jit
def count(x: Any) -> None:
    Ran.times += 1
    tl.store(x + tl.program_id(0), 1.0)


@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize(("fidelity", "runs"), [("kernel", 3), ("tile", 9)])
def test_a_known_launch_is_not_run_again(
    sip8: Topology, fidelity: Fidelity, runs: int, data: bool
) -> None:
    machine = Machine(sip8, data=data, fidelity=fidelity)
    x = machine.tensor(np.zeros(3))
    Ran.times = 0
    times = {machine.launch(count, (3,), x=x) for _ in range(3)}
    assert (Ran.times, len(times)) == (runs, 1)
    if data:
        assert x.read().tolist() == [1, 1, 1]


def test_times_that_depend_on_data_are_never_remembered(machine: Machine) -> None:
    @jit
    def by_mask(x: Any, y: Any) -> None:
        lanes = tl.arange(0, 1024)
        values = tl.load(x + lanes)
        tl.store(y + lanes, values, mask=values > 0)

    @jit
    def by_branch(x: Any, y: Any) -> None:
        if tl.load(x + 0) > 0:
            tl.store(y + tl.arange(0, 1024), 1.0)

    y = machine.tensor(np.zeros(1024, np.float32))
    full, none = (machine.tensor(np.full(1024, value, np.float32)) for value in (1, 0))
    for kernel in (by_mask, by_branch):
        assert machine.launch(kernel, x=full, y=y) > machine.launch(kernel, x=none, y=y)
        assert machine.launch(kernel, x=full, y=y) > machine.launch(kernel, x=none, y=y)


def test_launches_of_a_stream_come_one_after_the_other(machine: Machine) -> None:
    x, y = (machine.tensor(np.zeros(1024, np.float32)) for _ in range(2))
    for _ in range(3):
        machine.launch(copy, x=x, y=y, block=1024)
    launches = [record for record in machine.engine.op_log.records if record.category == "kernel"]
    each = LAUNCH + contended_copy(1, 4096)
    assert [(r.start, r.end) for r in launches] == [(n * each, (n + 1) * each) for n in range(3)]


def spans(machine: Machine, category: str) -> list[Record]:
    return [record for record in machine.engine.op_log.records if record.category == category]


def test_the_log_has_what_each_engine_did(machine: Machine) -> None:
    @jit
    def talk(x: Any) -> None:
        lanes = tl.arange(0, 64)
        if tl.program_id(0) == 0:
            tl.send(tl.load(x + lanes) * 2, 1)
        else:
            tl.store(x + lanes, tl.recv(0))

    machine.launch(talk, (2,), x=machine.tensor(np.zeros(64, np.float32)))
    (load, store), (send,), (receive,) = (
        sorted(spans(machine, category), key=lambda record: record.start)
        for category in ("copy", "send", "recv")
    )
    assert (load.track, store.track) == ("pe0.dma.load", "pe1.dma.store")
    assert (send.track, receive.track) == ("pe0.dma.send", "pe1.dma.recv")
    assert send.flow == receive.flow > 0
    (math,) = spans(machine, "compute")
    assert load.end == math.start
    assert math.end == send.start
    assert send.end <= receive.start <= receive.end
    assert load.start >= LAUNCH
    (kernel,) = spans(machine, "kernel")
    assert store.end == kernel.end
