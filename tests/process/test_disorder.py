"""Accesses that nothing orders, noted where a run goes on after them."""

import pytest

from kernbench.errors import KernbenchError
from kernbench.process.disorder import ORDER_STREAMS, disorder_line, disorders, hint, refuse
from kernbench.process.process import Process
from kernbench.run_spec import PytorchRun, RunSpec
from kernbench.runtime_api.context import RuntimeContext


def _touches(process: Process, what: str) -> None:
    refuse(process, KernbenchError("too early", code="M10"), what, None)


def test_an_access_that_nothing_orders_ends_a_run() -> None:
    ctx = RuntimeContext(RunSpec())

    def worker(rank: int) -> None:
        if rank:
            with pytest.raises(KernbenchError, match="too early"):
                _touches(ctx.processes[rank], "read x")

    ctx.multiprocessing.spawn(worker, nprocs=2)
    assert disorders(ctx.processes) == []


def test_what_is_only_warned_of_is_noted_once_for_equal_accesses() -> None:
    ctx = RuntimeContext(RunSpec(pytorch=PytorchRun(races="warn")))

    def worker(rank: int) -> None:
        for _ in range(rank + 1):
            _touches(ctx.processes[rank], "read x")
        if rank == 1:
            _touches(ctx.processes[rank], "wrote y")

    ctx.multiprocessing.spawn(worker, nprocs=3)

    found = sorted(disorders(ctx.processes), key=lambda entry: entry.what)
    assert [(entry.what, entry.count, entry.ranks) for entry in found] == [
        ("read x", 6, {0, 1, 2}),
        ("wrote y", 1, {1}),
    ]
    line = disorder_line(found[0].as_json(), "ranks 0-2")
    assert line.startswith("[M10] ranks 0-2 read x: 6 times, first at 0 ps, at ")
    assert "test_disorder.py" in line
    assert ", first" not in disorder_line(found[1].as_json(), "rank 1")


def test_only_a_program_of_pytorch_is_told_how_to_go_on() -> None:
    own, real = RuntimeContext(RunSpec()), RuntimeContext(RunSpec(pytorch=PytorchRun()))
    assert hint(own.main, ORDER_STREAMS) == ORDER_STREAMS
    assert "--races warn goes on" in hint(real.main, ORDER_STREAMS)
