"""The line on a terminal that says how far a run is."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernbench.cli.status_line import StatusLine
from kernbench.cli.steps_ahead import steps_ahead
from kernbench.process.process import current_process
from kernbench.run_spec import RunSpec
from kernbench.runtime_api import ranges
from kernbench.runtime_api.context import RuntimeContext
from kernbench.units import format_time

ROOT = Path(__file__).parents[2]


class Clock:
    """Wall time that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_line_tells_wall_and_simulated_time_and_the_rate() -> None:
    clock = Clock()
    line = StatusLine(clock)
    assert line.text() == "0 s"
    with RuntimeContext(RunSpec(data=False), quiet=True) as ctx:
        line.context = ctx
        assert line.text() == "0 s, simulated 0 ps, 0 commands/s"

        def worker(rank: int) -> None:
            ones = ctx.ones(4)
            for _ in range(9):
                ones.add_(1)
            ctx.cuda.synchronize()
            clock.now += 0.25

        ctx.multiprocessing.spawn(worker, nprocs=4)
        end = max(process.host.clock for process in ctx.processes)
    # Four ranks with ten commands each, in a second.
    assert line.text() == f"1 s, simulated {format_time(end)}, 40 commands/s"


def test_steps_of_optimizers_are_counted_and_memory_is_shown_after_a_while() -> None:
    clock = Clock()
    line = StatusLine(clock)
    with RuntimeContext(RunSpec(data=False), quiet=True) as ctx:
        line.context = ctx

        def worker(rank: int) -> None:
            for name in ("Optimizer.step#SGD.step", "forward", "Optimizer.step#SGD.step"):
                ranges.enter(current_process(), name)
                ranges.leave(current_process())

        ctx.multiprocessing.spawn(worker, nprocs=2)
        assert line.text() == "0 s, simulated 0 ps, 0 commands/s, optimizer steps 2"
        clock.now += 3
        assert "optimizer steps 2, memory " in line.text()


def test_the_time_left_is_told_where_the_number_of_steps_is_known() -> None:
    clock = Clock()
    line = StatusLine(clock, steps=4)
    told = []
    with RuntimeContext(RunSpec(data=False), quiet=True) as ctx:
        line.context = ctx

        def worker(rank: int) -> None:
            for _ in range(3):
                ranges.enter(current_process(), "Optimizer.step#SGD.step")
                ranges.leave(current_process())
                clock.now += 10
                told.append(re.sub(r".*optimizer |, memory [0-9.]+ .iB", "", line.text()))
            clock.now += 3
            told.append(re.sub(r".*optimizer |, memory [0-9.]+ .iB", "", line.text()))

        ctx.multiprocessing.spawn(worker, nprocs=1)
    # The first step holds the set-up, too: that a step takes 10 s is known from the second one on.
    assert told == [
        "steps 1 of 4",
        "steps 2 of 4, about 20 s left",
        "steps 3 of 4, about 10 s left",
        "steps 3 of 4, about 7 s left",
    ]


@pytest.mark.parametrize(
    ("text", "arguments", "steps"),
    [
        ("", ("--steps", "10"), 10),
        ("", ("--max_steps=7", "x"), 7),
        ("", ("--steps", "many"), None),
        ("for _ in range(3):\n    optimizer.step()\n    scheduler.step()", (), 3),
        (
            "N = 5\nfor _ in range(2):\n  for i in range(N):\n    o.step()",
            (),
            10,
        ),
        ("N = 5\nN = 6\nfor _ in range(N):\n    o.step()", (), None),
        ("for batch in loader:\n    o.step()", (), None),
        ("for _ in range(3):\n    o.step()\nfor _ in range(4):\n    o.step()", (), None),
        ("o.step()", (), None),
        ("while True:\n    for _ in range(3):\n        o.step()", (), None),
        ("for _ in range(3)", (), None),
    ],
)
def test_steps_are_known_by_a_flag_or_by_loops(
    text: str, arguments: tuple[str, ...], steps: int | None, tmp_path: Path
) -> None:
    file = tmp_path / "program.py"
    file.write_text(text)
    assert steps_ahead(str(file), arguments) == steps


@pytest.mark.parametrize(("alike", "left"), [(True, ", about 6 s left"), (False, "")])
def test_the_time_left_is_told_where_items_are_alike(alike: bool, left: str) -> None:
    clock = Clock()
    line = StatusLine(clock)
    seen = []
    for _ in line.track(range(4), "step", alike=alike):
        seen.append(line.text())
        clock.now += 2
    assert seen == [
        "0 s, step 1 of 4",
        f"2 s, step 2 of 4{left}",
        f"4 s, step 3 of 4{left.replace('6', '4')}",
        f"6 s, step 4 of 4{left.replace('6', '2')}",
    ]
    assert line.text() == "8 s"


def test_a_functional_run_has_no_simulated_time() -> None:
    line = StatusLine(Clock())
    line.context = RuntimeContext(RunSpec(fidelity="functional"), quiet=True)
    assert line.text() == "0 s, 0 commands/s"


def _on_a_terminal(*arguments: str, stdout: int | None = None) -> str:
    """Returns what a terminal of 40 columns gets from a run of `ccl_allreduce`."""
    master, slave = pty.openpty()
    bench = [sys.executable, "-m", "kernbench", "run", "ccl_allreduce", "--data", "off"]
    flags = ["--", "-b", "1K", "-e", "4K"]
    environment = {**os.environ, "COLUMNS": "40", "TERM": "xterm"}
    process = subprocess.Popen(
        [*bench, *arguments, *flags],
        stdout=slave if stdout is None else stdout,
        stderr=slave,
        env=environment,
        cwd=ROOT,
    )
    os.close(slave)
    chunks = []
    while True:
        try:
            chunk = os.read(master, 1 << 16)
        except OSError:  # how a terminal says that nobody is left
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(master)
    assert process.wait() == 0
    return b"".join(chunks).decode()


@pytest.mark.skipif(sys.platform == "win32", reason="no terminals")
def test_a_terminal_gets_the_line_and_whole_rows(tmp_path: Path) -> None:
    shown = _on_a_terminal()
    assert "commands/s" in shown
    rows = [line for line in shown.replace("\r", "\n").split("\n") if " float " in line]
    assert len(rows) == 3  # 1, 2 and 4 KiB
    assert all(len(row.split()) >= 13 for row in rows)
    with (tmp_path / "table").open("wb") as table:
        shown = _on_a_terminal(stdout=table.fileno())
    assert "commands/s" in shown
    assert " float " not in shown
    assert (tmp_path / "table").read_text().count(" float ") == 3
    assert "commands/s" not in _on_a_terminal("--quiet")
