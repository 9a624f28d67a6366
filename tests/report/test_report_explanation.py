"""What bounds a run: against the breakdown, by hand, and for programs of which it is known."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_report_breakdown import log_of, records

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.config import load, shipped
from kernbench.hw.explained import Explained, Resource, Spent
from kernbench.hw.programs import GridPrice, Occupancy
from kernbench.report import Explanation, breakdown, explanation, explanation_lines
from kernbench.report.explanation import MUCH, Gain
from kernbench.report.explanation_lines import WIDTH, much_by_bytes
from kernbench.report.nearness import Laws, Near, Nearness
from kernbench.sim_engine.op_log import OpLog, Record, Unkept
from kernbench.testing import Kernbench
from kernbench.topology import load_topology

_SIP8, _H200 = (load_topology(name).topology_obj for name in ("sip8", "h200x8"))
_US = 10**6


@given(found=records(), dispatch=st.integers(0, 5))
def test_every_picosecond_of_a_rank_is_spent_on_one_thing(
    found: list[Record], dispatch: int
) -> None:
    log = log_of(found)
    rows = breakdown(log, dispatch)
    told = explanation(log, _SIP8, dispatch)

    assert told.span_ps == sum(row.span_ps for row in rows) == sum(told.spent.values())
    assert told.spent.get("host", 0) == sum(row.exposed_host_ps for row in rows)
    assert told.spent.get("host", 0) + told.spent.get("idle", 0) == sum(row.idle_ps for row in rows)
    assert told.device_ps == sum(row.total_ps for row in told.rows)
    assert sum(row.host_ps for row in told.rows) == told.spent.get("host", 0)


def explained(kernbench: Kernbench, program: Callable[[int], None], ranks: int = 1) -> Explanation:
    ctx = kernbench.spawn(program, nprocs=ranks, machine="h200x8", data=False, record="full")
    return explanation(ctx.engine.op_log, ctx.engine.topology, ctx.engine.dispatch_ps)


def _tiny(rank: int) -> None:
    x = torch.ones(16, device="cuda")
    for _ in range(50):
        x = x * 2.0


def _large(rank: int) -> None:
    x = torch.ones(1 << 28, device="cuda")
    for _ in range(20):
        x = x * 2.0


def _products(rank: int) -> None:
    x = torch.zeros(8192, 8192, dtype=torch.bfloat16, device="cuda")
    for _ in range(20):
        x = x @ x


def _random(rank: int) -> None:
    for _ in range(20):
        torch.randn(1 << 26, device="cuda")


def _reduced(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.zeros(1 << 28, device="cuda")
    for _ in range(5):
        dist.all_reduce(x)


def _late(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.ones(1 << 20, device="cuda")
    if rank == 0:
        y = torch.zeros(8192, 8192, device="cuda")
        x = x + (y @ y)[0, 0]
    dist.all_reduce(x)


VERDICTS: dict[Callable[[int], None], tuple[int, str, str]] = {
    _tiny: (1, "host-bound: the device idles ", "host/launch"),
    _large: (1, "bound by HBM: ", "HBM"),
    _products: (1, "bound by the tensor engines: ", "tensor"),
    _random: (1, "bound by the MATH engines: ", "math"),
    _reduced: (4, "bound by the link sip0->switch: ", "link"),
    _late: (4, "bound by waiting for other ranks: ", "ranks"),
}


@pytest.mark.parametrize("program", VERDICTS, ids=lambda program: program.__name__)
def test_the_verdict_changes_with_the_program(
    kernbench: Kernbench, program: Callable[[int], None]
) -> None:
    ranks, verdict, bound = VERDICTS[program]
    lines = explanation_lines(explained(kernbench, program, ranks))

    assert lines[0].startswith(verdict)
    assert f" {bound} " in lines[lines.index("") + 2]  # below the heads of the columns
    assert max(map(len, lines)) <= WIDTH


def test_a_run_takes_as_long_whether_it_can_be_explained_or_not(kernbench: Kernbench) -> None:
    """Thin products leave room for the all-reduce beside them, others hold it up."""

    def program(rank: int) -> None:
        del rank
        dist.init_process_group("nccl")
        gradient = torch.zeros(1 << 24, device="cuda")
        thin = torch.zeros(64, 1024, dtype=torch.bfloat16, device="cuda")
        wide = torch.zeros(1024, 1024, dtype=torch.bfloat16, device="cuda")
        work = dist.all_reduce(gradient, async_op=True)
        for _ in range(4):
            thin = thin @ wide
            wide = torch.relu(wide @ wide)
        assert work is not None
        work.wait()
        torch.cuda.synchronize()

    times = [
        kernbench.spawn(program, nprocs=2, machine="h200x8", data=False, record=record).engine
        for record in ("full", "summary")
    ]
    assert times[0].loop.now == times[1].loop.now > 0
    assert times[0].op_log.totals == times[1].op_log.totals


def test_a_kernel_of_the_machine_of_round_numbers_by_hand(kernbench: Kernbench) -> None:
    """sip8: the host issues in 2 us, a launch takes 1 us, four cubes stream 1600 GB/s together."""

    def program(rank: int) -> None:
        del rank
        x = torch.zeros(2_000_000, device="cuda")  # 8 MB: 5 us
        torch.add(x, x, out=x)  # 24 MB: 15 us

    ctx = kernbench.spawn(program, nprocs=1, data=False, record="full")
    told = explanation(ctx.engine.op_log, ctx.engine.topology, ctx.engine.dispatch_ps)

    assert told.span_ps == (2 + 1 + 5 + 1 + 15) * _US
    assert told.spent == {"launch": 2 * _US, "HBM": 20 * _US, "host": 2 * _US}
    assert told.verdict == "bound by HBM: 83% of the time"
    add, zeros = told.rows
    assert (add.name, add.calls, add.total_ps, add.bound, add.host_ps) == (
        ("aten::add", 1, 16 * _US, "HBM", 0)
    )
    assert (add.share, add.achieved, add.law) == (16 / 22, 15 / 16, "peak rates")
    assert (zeros.name, zeros.host_ps, zeros.near) == ("aten::zeros", 2 * _US, Near())
    assert explanation_lines(told)[3:6] == [
        "kernel       calls  total  share  bound  roof  priced by   measured",
        "aten::add        1  16 us    73%  HBM     94%  peak rates  not measured",
        "aten::zeros      1   6 us    27%  HBM     83%  peak rates  not measured",
    ]


def _collective(rank: int, start: int) -> Record:
    args = {"group": "WORLD", "sequence": 1, "bytes": 3_000_000, "algorithm": "ring"}
    return Record(
        "all_reduce", "collective", rank, f"stream {rank}", start, start, 100 * _US, args=args
    )


def _message(rank: int, issued: int, start: int) -> Record:
    args = {"bytes": 750_000, "links": [f"sip{rank}->sip{1 - rank}"]}
    return Record(
        "send", "send", rank, "dma.send", issued, start, start + 15 * _US, args=args, flow=start
    )


def test_a_collective_waits_then_launches_then_sends() -> None:
    """Rank 1 comes 20 us later, and sends 5 us after that; each link carries 1.5 MB at 50 GB/s."""
    late = 20 * _US
    sends = [
        _message(rank, issued, start * _US)
        for rank, issued in ((0, 0), (1, late))
        for start in (25, 60)
    ]
    told = explanation(log_of([_collective(0, 0), _collective(1, late), *sends]), _SIP8, 0)

    both = 2 * _US
    assert told.spent == {
        "ranks": late,
        "launch": 5 * both,
        "link": 30 * both,
        "protocol": 45 * both,
        "idle": late,  # of rank 1, for whose host nothing is known
    }
    (row,) = told.rows
    assert (row.bound, row.achieved, row.law) == ("protocol", None, "ccl.ring")
    assert told.busiest == ("sip0->sip1", 30 * _US)


def test_a_collective_whose_messages_are_not_kept_is_not_laid_on_its_launch() -> None:
    """Rank 0 stands for others; the last of all comes 20 us after it, and the launch takes 5."""
    log = log_of([_collective(0, 0)])
    log.unkept[0, 0] = Unkept(20 * _US, 25 * _US)
    took = log.records[0].end
    told = explanation(log, _SIP8, 0)

    assert told.spent == {
        "ranks": 20 * _US,
        "launch": 5 * _US,
        "messages": took - 25 * _US,
    }
    (row,) = told.rows
    assert (row.bound, row.achieved, row.law) == ("messages", None, "ccl.ring")
    assert told.verdict.startswith("bound by messages of ranks that stand for others")
    assert told.gains[0] == Gain("communication hidden behind kernels", took - 25 * _US)


def test_a_kernel_of_the_program_is_bound_by_the_engine_that_is_busy_longest() -> None:
    """Of 32 PEs of sip8, 16 multiply for 8 us each; one loads for 9 us. The launch takes 1 us."""
    kernel = Record("mine", "kernel", 0, "stream 0", 0, 0, 11 * _US)
    parts = [Record("dot", "compute", 0, f"pe{pe}.gemm", 0, 2 * _US, 10 * _US) for pe in range(16)]
    load = Record("load", "copy", 0, "pe0.dma.load", 0, _US, 10 * _US)
    told = explanation(log_of([kernel, load, *parts]), _SIP8, 0)

    assert told.spent == {"launch": _US, "tensor": 10 * _US}
    assert told.rows[0].achieved == 8 * 16 / 32 / 11


def test_what_a_kernel_takes_longer_beside_others_is_told_apart() -> None:
    price = Explained(10, {("HBM", "kernels.copy"): Spent(10, 9)})
    slowed = Record("mul", "compute", 0, "stream 0", 0, 0, 14, price=price)
    faster = Record("add", "compute", 0, "stream 0", 0, 14, 22, price=price)
    told = explanation(log_of([slowed, faster]), _SIP8, 0)

    assert told.spent == {"HBM": 18, "beside": 4}
    assert [(row.name, row.bound) for row in told.rows] == [("mul", "HBM"), ("add", "HBM")]


def test_an_empty_log_takes_no_time() -> None:
    told = explanation(OpLog("full"), _SIP8, 1)
    assert explanation_lines(told) == ["the run takes no time", "timed by bytes alone: nothing"]


def test_what_was_timed_by_bytes_alone_is_a_line_of_its_own() -> None:
    records = [
        Record("odd", "compute", 0, "stream 0", 0, 0, 60),
        Record("mul", "compute", 0, "stream 0", 0, 60, 1000),
    ]
    told = explanation(log_of(records), _H200, 0, by_bytes=["odd"])

    assert told.rows[1].law == "bytes alone"
    assert explanation_lines(told)[-1] == (
        "timed by bytes alone: 6.0% of the devices' time: odd 6.0%"
    )


def test_more_than_five_percent_by_bytes_alone_is_said() -> None:
    assert much_by_bytes({"odd": 30, "even": 30}, 1000).startswith("6.0% of the devices' time is")
    assert much_by_bytes({"odd": 50}, 1000) == ""
    assert much_by_bytes({}, 0) == ""
    assert MUCH == 0.05


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    folder = tmp_path / "h200x8"
    folder.mkdir()
    (folder / "laws.yaml").write_text(
        "laws: {pe.gemm: [gemm, gemm2], kernels.softmax: [rows softmax], ccl: [collectives], "
        "host.pcie: [pcie]}"
    )
    cells = [
        {"table": "gemm", "cell": "256", "measured": 10.0, "own": 11.0, "pytorch": 10.5},
        {"table": "gemm2", "cell": "512", "measured": 10.0, "own": None, "pytorch": 7.0},
        {"table": "rows", "cell": "softmax 64", "measured": 4.0, "own": 5.0, "pytorch": 5.0},
        {"table": "rows", "cell": "softmax_bwd 64", "measured": 4.0, "own": 8.0, "pytorch": 8.0},
        {"table": "collectives", "cell": "all_reduce", "measured": 8.0, "own": 9.0},
    ]
    (folder / "result.json").write_text(json.dumps({"cells": cells}))
    return tmp_path


def test_how_near_a_law_was_is_the_mean_of_the_cells_that_judge_it(measured: Path) -> None:
    near = Nearness(_H200, measured)
    of_products = near.of("pe.gemm")

    assert of_products.tables == ("gemm", "gemm2")
    assert of_products.error == pytest.approx((0.1 + 0.05 + 0.3) / 3)
    assert near.of("kernels.softmax") == Near(("rows",), 0.25)
    assert near.of("ccl.nccl_ll") == Near(("collectives",), 0.125)
    assert near.of("host.pcie") == Near(("pcie",), None)
    assert near.of("kernels.gelu") == near.of("peak rates") == Near()


def _launch(ps: int, resident: int, limit: str, *, estimated: bool = False) -> GridPrice:
    percent: dict[Resource, int] = {"HBM": 20, "L2": 94, "math": 26, "tensor": 77}
    roofs = {name: ps * each // 100 for name, each in percent.items()}
    places = 132 * resident
    occupancy = Occupancy(400, 8, resident, 64, places, limit, ps, percent, roofs, estimated)
    return GridPrice.of({("L2", "pe.programs"): Spent(ps, ps // 2)}, occupancy)


def test_how_programs_share_the_pes_is_told_of_the_longest_launch() -> None:
    prices = (_launch(3 * _US, 1, "registers"), _launch(9 * _US, 2, "shared memory"))
    starts = (0, 3 * _US)
    log = log_of(
        [
            Record("gemm", "kernel", 0, "s0", start, start, start + price, price=price)
            for start, price in zip(starts, prices, strict=True)
        ]
    )
    lines = explanation_lines(explanation(log, _H200, 0))

    assert lines[0] == "bound by L2: 100% of the time"
    assert lines[lines.index("") + 2].split() == (
        ["gemm", "2", "12", "us", "100%", "L2", "50%", "pe.programs", "triton_add+4", "8%"]
    )
    begin = next(place for place, line in enumerate(lines) if line.startswith("gemm: "))
    assert lines[begin : begin + 2] == [
        "gemm: 400 programs of 8 warps, 2 at once on a PE (16 of 64 warps; limit: shared memory), "
        "1.5 waves;",
        "  of full rates: HBM 20%, L2 94%, math 26%, tensor 77%",
    ]
    assert str(_launch(_US, 1, "warps", estimated=True).occupancy).endswith(
        "tensor 77% (estimated without machine code)"
    )


def test_laws_that_tables_judge_are_keys_of_the_machine() -> None:
    laws, _ = load(Laws, shipped("validation") / "h200x8" / "laws.yaml")
    kernels = {law for law in laws.laws if law.startswith("kernels.")}

    assert kernels <= {f"kernels.{name}" for name in _H200.machine.system.sip.kernels}
    assert set(laws.laws) - kernels == {
        "pe.gemm",
        "pe.attention",
        "pe.attention.efficient",
        "pe.programs",
        "pe.programs.atomic",
        "host.pcie",
        "ccl",
        "ccl.messages",
    }


def test_a_machine_that_was_changed_is_not_the_one_that_was_measured(measured: Path) -> None:
    def near(*overrides: str, machine: str = "h200x8") -> list[bool]:
        topology = load_topology(machine, overrides).topology_obj
        laws = ("pe.gemm", "ccl.nccl_ll", "host.pcie")
        return [bool(Nearness(topology, measured).of(law).tables) for law in laws]

    assert near() == [True, True, True]
    assert near("system.sip.cube.hbm.bandwidth=8 TB/s") == [False, False, True]
    assert near("system.sips.network.bandwidth=400 GB/s") == [True, False, True]
    assert near("system.host.pcie.latency=1 us") == [True, True, False]
    assert near(machine="h200x8_x4_nodes") == [True, False, True]
    assert near(machine="sip8") == [False, False, False]
