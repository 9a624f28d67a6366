"""What issuing each kind of command costs the host, and where reports show it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import tl
from kernbench.process.process import current_process
from kernbench.report.breakdown import breakdown, host_interval
from kernbench.report.trace import write_trace
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext

TIMES = {
    "compute": 11,
    "kernel": 12,
    "copy": 13,
    "collective": 56,
    "message": 46,
    "batch": 100,
    "event": 5,
}
"""Microseconds; all others take the 2 us of sip8."""


def context(*kinds: str, **options: Any) -> RuntimeContext:
    changes = tuple(f"system.host.dispatch_of.{kind}={TIMES[kind]} us" for kind in kinds)
    return RuntimeContext(RunSpec(topology="sip8", overrides=changes, **options))


@tl.jit
def _double(x: Any, size: tl.constexpr) -> None:
    at = x + tl.arange(0, size)
    tl.store(at, 2 * tl.load(at))


def costs(*kinds: str) -> dict[str, float]:
    """Returns the microseconds of the host that each call takes."""
    found: dict[str, float] = {}

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x, y = torch.ones(64, device="cuda"), torch.empty(64, device="cuda")
        data = torch.ones(64, device="cpu").pin_memory()
        event = torch.cuda.Event()
        other = 1 - rank
        host = current_process().host

        def message() -> None:
            dist.send(x, other) if rank == 0 else dist.recv(y, other)

        def batch() -> None:
            ops = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, y, other)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()

        calls: dict[str, Callable[[], object]] = {
            "compute": lambda: x.mul_(1),
            "kernel": lambda: _double[1,](x, 64),
            "copy": lambda: data.to("cuda", non_blocking=True),
            "collective": lambda: dist.all_reduce(x),
            "message": message,
            "batch": batch,
            "event": event.record,
        }
        for name, call in calls.items():
            before = host.clock - host.waited
            call()
            if rank == 0:
                found[name] = (host.clock - host.waited - before) / 1e6

    with context(*kinds) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
    return found


def test_without_kinds_every_command_costs_the_same() -> None:
    # A batch of two is two messages and the command that joins them.
    assert costs() == {**dict.fromkeys(TIMES, 2.0), "batch": 6.0}


def test_each_kind_costs_what_the_machine_says() -> None:
    assert costs(*TIMES) == TIMES


@pytest.mark.parametrize("kind", TIMES)
def test_a_kind_changes_nothing_else(kind: str) -> None:
    batch = {"message": 2 * 46 + 2, "event": 2 * 2 + 5, "batch": 100}.get(kind, 6)
    assert costs(kind) == {**dict.fromkeys(TIMES, 2.0), kind: TIMES[kind], "batch": batch}


def test_hosts_that_talk_among_themselves_pay_no_device_s_collective() -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        host = current_process().host
        before = host.clock - host.waited
        dist.all_reduce(torch.ones(4, device="cpu"))
        assert host.clock - host.waited - before == 2_000_000

    with context("collective") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)


def test_untimed_runs_take_no_time() -> None:
    with context(*TIMES, fidelity="functional") as ctx:
        torch.ones(4, device="cuda").mul_(2)
        assert ctx.main.host.clock == 0


def test_reports_show_each_command_s_own_time(tmp_path: Path) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x, y = torch.ones(64, device="cuda"), torch.empty(64, device="cuda")
        dist.all_reduce(x)
        ops = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        x.mul_(1)

    with context("collective", "batch", record="full") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
        log, usual = ctx.engine.op_log, ctx.engine.dispatch_ps
        rows = breakdown(log, usual)
        write_trace(log, ctx.engine.topology, tmp_path / "t.json", dispatch_ps=usual)
    busy = {
        (record.name, end - start)
        for record in log.records
        if record.rank == 0
        for start, end in [host_interval(record, usual)]
    }
    assert busy >= {
        ("all_reduce", 56_000_000),
        ("send", 100_000_000),
        ("recv", 0),
        ("aten::mul_", 2_000_000),
    }
    # An operation that makes each tensor, all_reduce, the batch, mul_.
    by_rank = {row.rank: row.host_ps for row in rows}
    assert by_rank[0] == by_rank[1]
    fills = sum(record.name.startswith("aten::") for record in log.records if record.rank == 0)
    assert by_rank[0] == (56 + 100 + 2 * fills) * 10**6
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    slices = [e for e in events if e["ph"] == "X" and e["cat"] == "cpu_op" and e["pid"] == 1]
    assert sum(e["args"]["end_ps"] - e["args"]["start_ps"] for e in slices) == by_rank[0]


# Against measurements: microseconds of eager all_reduces on 4 H200 (concurrent.csv)

EAGER = [(65536, 2, 103.9), (1 << 20, 2, 112.8), (65536, 1, 48.3), (1 << 20, 1, 46.2)]


@pytest.mark.parametrize(("nbytes", "groups", "us"), EAGER)
def test_small_collectives_are_bound_by_the_host_as_measured(
    nbytes: int, groups: int, us: float
) -> None:
    times = []

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        halves, _ = dist.new_subgroups_by_enumeration([[0, 1], [2, 3]])
        pairs, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
        x, y = (torch.empty(nbytes // 2, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        dist.all_reduce(x, group=pairs)
        start.record()
        for _ in range(8):
            dist.all_reduce(x, group=pairs)
            if groups == 2:
                dist.all_reduce(y, group=halves)
        end.record()
        end.synchronize()
        times.append(1000 * start.elapsed_time(end) / 8)
        dist.destroy_process_group()

    with RuntimeContext(RunSpec(topology="h200x8", data=False)) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=4)
    assert max(times) == pytest.approx(us, rel=0.25)


def test_an_operation_costs_more_behind_another_one_and_by_its_library() -> None:
    changes = (
        "system.host.eager.among=7 us",
        "system.host.eager.tensor=1 us",
        "system.host.eager.library.product=30 us",
        "system.host.eager.library.sum_product=40 us",
    )
    found = []

    def worker(_: int) -> None:
        x = torch.ones(8, 8, device="cuda")
        weights = [torch.nn.Parameter(torch.ones(8, device="cuda")) for _ in range(3)]
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        step = torch.optim.SGD(weights, lr=0.1).step
        host = current_process().host
        for call in (lambda: x.mul_(1), lambda: x.mul_(1), lambda: x @ x, lambda: x @ x, step):
            before = host.clock
            call()
            found.append((host.clock - before) / 1e6)

    with RuntimeContext(RunSpec(topology="sip8", overrides=changes)) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    # 2 us to issue one, 7 behind another one; a step of SGD is one operation on three tensors.
    assert found == [2 + 7, 2, 2 + 7 + 30, 2 + 30, 2 + 7 + 3]


@pytest.mark.parametrize(("loop", "at_hand"), [(1, 0), (2, 0), (3, 4), (9, 4)])
def test_operations_of_a_short_loop_find_their_code(loop: int, at_hand: int) -> None:
    changes = ("system.host.eager.among=7 us", f"system.host.eager.loop={loop}")
    found = []

    def worker(_: int) -> None:
        x = torch.ones(8, device="cuda")
        host = current_process().host
        for _ in range(3):
            for call in (x.mul_, x.add_, x.div_):
                before = host.clock
                call(2)
                found.append((host.clock - before) / 1e6)

    with RuntimeContext(RunSpec(topology="sip8", overrides=changes)) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    # Three in a row are as three before at the sixth operation; from there on they find it.
    assert found == [2 + 7] * (9 - at_hand) + [2] * at_hand
