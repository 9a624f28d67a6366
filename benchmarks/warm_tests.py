"""A suite of 500 cases of 8 ranks with one all-reduce, in each mode of `world_batch`, and PyTorch's
`MultiProcContinuousTest` with gloo doing the same; then what a worker process costs by itself.

A figure is the wall time of all of `pytest`, over the cases; the slope leaves out what a run costs
once: it is the time that more cases add to that of fewer ones. Other plugins that are installed are
left out on both sides. PyTorch's class needs its package `expecttest`, too; without the two its
figures are left out.
"""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import _measure

from kernbench.workers.worker import Worker

ROOT = Path(__file__).parent.parent
RANKS = 8
CASES = 500
FEWER = 100
REPEATS = 3
LIMITS_MS = {"inline": 5.0, "pool": 8.0, "batch": 8.0}
START_LIMIT_S = 0.5
REQUESTS = 50
ROUNDS = 20
LINES = 100

OURS = f"""\
import os

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.testing import dist_case


@dist_case
def one_all_reduce(ctx, rank, number):
    dist.init_process_group("nccl")
    x = torch.full((1024,), float(rank), device="cuda")
    dist.all_reduce(x)
    assert x[0].item() == sum(range({RANKS}))
    dist.destroy_process_group()


@pytest.mark.parametrize("number", range(int(os.environ["CASES"])))
def test_all_reduce(request, world_batch, number):
    world_batch.run(request, case="one_all_reduce", world_size={RANKS}, number=number)
"""

THEIRS = f"""\
import os

import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcContinuousTest


class AllReduce(MultiProcContinuousTest):
    world_size = {RANKS}

    @classmethod
    def backend_str(cls):
        return "gloo"

    @classmethod
    def device_type(cls):
        return "cpu"


def one_all_reduce(self):
    x = torch.full((1024,), float(self.rank))
    dist.all_reduce(x)
    assert x[0].item() == sum(range({RANKS}))


for number in range(int(os.environ["CASES"])):
    setattr(AllReduce, f"test_{{number:04}}", one_all_reduce)
"""

HANDLERS = f"""\
def speak(request):
    print("a line of some length, as programs print them\\n" * {LINES}, end="")
    return {{}}


HANDLERS = {{"speak": speak}}
"""


def environment(folder: Path) -> dict[str, str]:
    """Returns an environment in which modules are compiled once, wherever the script is run."""
    path = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
    own = {
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(folder),
    }
    kept = {name: v for name, v in os.environ.items() if not name.startswith("KERNBENCH_")}
    return {**kept, **own}


def pytest_s(folder: Path, file: str, cases: int, *options: str) -> float:
    """Returns the seconds of a run of pytest."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, file]
    # All of PyTorch has been compiled where it is.
    around = environment(folder) if file == "test_ours.py" else os.environ
    begin = time.perf_counter()
    done = subprocess.run(
        command,
        cwd=folder,
        check=False,
        capture_output=True,
        env={**around, "CASES": str(cases), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    took = time.perf_counter() - begin
    assert f"{cases} passed" in done.stdout.decode(), (done.stdout + done.stderr).decode()
    return took


def per_case_ms(
    folder: Path, file: str, runs: dict[str, tuple[str, ...]]
) -> dict[str, tuple[float, float]]:
    """Returns ms a case by name of a run: that of the whole, and that of one case more."""
    found = {}
    few: dict[str, list[float]] = {name: [] for name in runs}
    all_of_them: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(REPEATS if len(runs) > 1 else 1):
        for name, options in runs.items():
            few[name].append(pytest_s(folder, file, FEWER, *options))
            all_of_them[name].append(pytest_s(folder, file, CASES, *options))
    for name in runs:
        whole = min(all_of_them[name])
        found[name] = whole / CASES * 1e3, (whole - min(few[name])) / (CASES - FEWER) * 1e3
    return found


def start_s(folder: Path) -> float:
    """Returns the seconds until a fresh worker of cases gives its first answer."""
    times = []
    for _ in range(7):
        begin = time.perf_counter()
        with Worker("kernbench.testing.worker", environment=environment(folder)) as worker:
            worker.call("ping")
            times.append(time.perf_counter() - begin)
    return min(times)


def requests_us(folder: Path) -> tuple[float, float, float]:
    """Returns the time of a request, of a printed line, and of one that is also echoed."""
    sys.path.insert(0, str(folder))
    found = []
    for echo in (False, True):
        with (
            contextlib.redirect_stderr(io.StringIO()),
            Worker("speaking", environment=environment(folder), echo=echo) as worker,
        ):
            for op in ("ping", "speak"):
                found += [min(_request_us(worker, op) for _ in range(ROUNDS))]
    ping, silent, ping_of_echo, echoed = found
    return ping, (silent - ping) / LINES, (echoed - ping_of_echo) / LINES


def _request_us(worker: Worker, op: str) -> float:
    begin = time.perf_counter()
    for _ in range(REQUESTS):
        worker.call(op)
    return (time.perf_counter() - begin) / REQUESTS * 1e6


def row(name: str, limit: float, value: float) -> list[object]:
    verdict = _measure.verdict(value / limit, 1, at_least=False)
    return [name, f"{limit:g}", f"{value:.2f}", f"{value / limit:.2f}x", verdict]


def main() -> None:
    plugin: tuple[str, ...] = ("-p", "kernbench.testing.plugin")
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in (
            ("test_ours.py", OURS),
            ("test_theirs.py", THEIRS),
            ("speaking.py", HANDLERS),
        ):
            (folder / file).write_text(text, encoding="utf-8")
        peer = None
        if find_spec("torch") is not None and find_spec("expecttest") is not None:
            theirs: dict[str, tuple[str, ...]] = {"gloo": ()}
            peer = per_case_ms(folder, "test_theirs.py", theirs)["gloo"]
        modes = {mode: (*plugin, f"--kb-mode={mode}") for mode in LIMITS_MS}
        pytest_s(folder, "test_ours.py", 1, *plugin)  # compiles
        for mode, (whole, slope) in per_case_ms(folder, "test_ours.py", modes).items():
            rows.append(row(f"{mode}: pytest as a whole, a case", LIMITS_MS[mode], whole))
            rows.append([f"{mode}: one case more", "", f"{slope:.2f}", "", ""])
            if peer is not None:
                rows[-2][0] = f"{rows[-2][0]} (PyTorch {peer[0]:.1f})"
                rows[-1][0] = f"{rows[-1][0]} (PyTorch {peer[1]:.1f})"
        rows.append(row("start of a worker of cases", START_LIMIT_S * 1e3, start_s(folder) * 1e3))
        ping, printed, echoed = requests_us(folder)
    rows.append(["a request and its answer", "", f"{ping / 1e3:.3f}", "", ""])
    rows.append(["a line that a worker prints", "", f"{printed / 1e3:.4f}", "", ""])
    rows.append(["the same, echoed", "", f"{echoed / 1e3:.4f}", "", ""])
    title = f"{CASES} cases of {RANKS} ranks with one all-reduce, ms"
    _measure.show(title, ["", "limit", "kernbench", "ratio", "target"], rows)


if __name__ == "__main__":
    main()
