"""Same input, same trace, byte for byte; and the records that are known to be right."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from replay_program import golden, run

from kernbench.report import write_trace
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.dials import Fidelity

HERE = Path(__file__).parent


def test_the_trace_does_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    traces = set()
    for seed in ("0", "1", "4242"):
        file = tmp_path / f"{seed}.json"
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(HERE.parents[1])}
        subprocess.run(
            [sys.executable, str(HERE / "replay_program.py"), str(file)],
            env=environment,
            check=True,
            timeout=60,
        )
        traces.add(file.read_bytes())
    assert len(traces) == 1
    assert len(traces.pop()) > 10_000


def test_a_second_run_in_the_same_process_is_the_same() -> None:
    assert golden("kernel") == golden("kernel")


@pytest.mark.parametrize("fidelity", ["kernel", "tile"])
def test_golden_records(fidelity: Fidelity) -> None:
    """To bless a change: `KERNBENCH_BLESS=1 pytest tests/replay`, and say why in the commit."""
    file = HERE / f"golden_{fidelity}.jsonl"
    records = golden(fidelity)
    if os.environ.get("KERNBENCH_BLESS"):
        file.write_text(records)
    assert records == file.read_text()


def test_tile_and_kernel_fidelity_take_the_same_time() -> None:
    ends = {fidelity: run(fidelity).engine.loop.now for fidelity in ("kernel", "tile")}
    assert ends["kernel"] == ends["tile"] > 0


def trace_of(ctx: RuntimeContext, file: Path) -> bytes:
    engine = ctx.engine
    write_trace(engine.op_log, engine.topology, file, dispatch_ps=engine.dispatch_ps)
    return file.read_bytes()


@pytest.mark.parametrize("fidelity", ["kernel", "tile"])
def test_looking_again_changes_nothing(fidelity: Fidelity) -> None:
    assert golden(fidelity, shadow=True) == golden(fidelity)


@pytest.mark.parametrize("fidelity", ["kernel", "tile"])
def test_changes_that_change_nothing_leave_no_trace(fidelity: Fidelity, tmp_path: Path) -> None:
    usual = (
        "[{which: [1, 4], sip: {launch: 1 us, pe: {math: 128 GFLOP/s, gemm: {tile: [64, 64]}}}, "
        "link: {bandwidth: 50 GB/s}}, {which: [2], sip: {}, link: {latency: 100 ns}}]"
    )
    traces = {trace_of(run(fidelity, changed), tmp_path / "t") for changed in ("[]", usual)}
    assert len(traces) == 1
    assert len(traces.pop()) > 10_000


def test_unlike_sips_take_the_same_time_at_either_fidelity() -> None:
    slow = (
        "[{which: [1], sip: {launch: 3 us, cube: {pes: 5}, pe: {math: 9 GFLOP/s, dma: 30 GB/s}}}, "
        "{which: [2], sip: {cube: {hbm: {bandwidth: 20 GB/s}}}, link: {latency: 1 us}}]"
    )
    times = {run(fidelity, slow).engine.loop.now for fidelity in ("kernel", "tile")}
    assert len(times) == 1
    assert times.pop() > run("kernel").engine.loop.now
