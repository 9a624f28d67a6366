"""`kernbench torchrun` and `kernbench.torchrun_spawn`: programs of PyTorch as they are."""

import os
import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest
from bridge_torchrun import run

import kernbench
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.run_spec import PytorchRun, RunSpec

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.torch

EACH_RANK = """\
import os, torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
x = torch.ones(4, device="cuda") * dist.get_rank()
dist.all_reduce(x)
print(dist.get_rank(), os.environ["GROUP_RANK"], x.device, x[0].item(), __name__)
dist.destroy_process_group()
"""

SPAWNS = """\
import argparse, torch, torch.distributed as dist, torch.multiprocessing as mp
import config_of_test
SEEN = None
class Options: pass
def work(rank, size, options):
    global SEEN
    assert SEEN is None and config_of_test.rank is None and isinstance(options, Options)
    SEEN = config_of_test.rank = options.rank = rank
    dist.init_process_group("nccl", rank=rank, world_size=size, init_method="tcp://localhost:1")
    torch.manual_seed(rank)
    first = torch.rand(2)
    dist.all_reduce(torch.ones(1, device=rank))
    second = torch.rand(2)
    torch.manual_seed(rank)
    assert torch.equal(torch.rand(2), first) and torch.equal(torch.rand(2), second)
    assert SEEN == config_of_test.rank == options.rank == rank
    print("rank", rank, "of", __name__)
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(work, args=(3, Options()), nprocs=3, join=True)
    assert SEEN is None and config_of_test.rank is None
"""

MISTAKE = """\
import torch, torch.distributed as dist
dist.init_process_group("nccl")
x = torch.ones(4 + dist.get_rank() // 3, device=dist.get_rank())
dist.all_reduce(x)
"""


STARTS = """\
import sys, torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank, size, queue):
    dist.init_process_group("gloo", rank=rank, world_size=size, init_method="tcp://localhost:1")
    x = torch.full((1,), rank + 1.0)
    dist.all_reduce(x)
    queue.put((rank, x.item()))
    dist.destroy_process_group()
class Worker(mp.Process):
    def __init__(self, rank):
        super().__init__(name=f"worker {rank}")
        self.rank = rank
    def run(self):
        print(self.name, "of", __name__)
if __name__ == "__main__":
    module = sys.modules[sys.argv[1]] if sys.argv[1:] else mp.get_context("spawn")
    queue = mp.SimpleQueue()
    started = [module.Process(target=work, args=(rank, 2, queue)) for rank in range(2)]
    for process in started:
        process.start()
    print(sorted(queue.get() for _ in started))
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [0, 0] and not started[0].is_alive()
    spawned = mp.spawn(work, (3, queue), 3, join=False)
    while not spawned.join():
        pass
    print(sorted(queue.get() for _ in range(3)))
    Worker(0).start()
"""


def test_a_script_runs_in_every_rank_of_two_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(EACH_RANK)
    given = ["--standalone", "--rdzv_backend=c10d", "--nnodes", 2, "--nproc_per_node", "gpu"]
    assert run(*given, script, "--lr", "3") == 0
    lines = capsys.readouterr().out.splitlines()
    said = sorted(lines[:-1], key=lambda line: int(line.split()[0]))
    assert said == [f"{r} {r // 8} cuda:{r % 8} 120.0 __main__" for r in range(16)]
    assert lines[-1].endswith("; values computed on the CPU")


def test_run_takes_a_script_of_pytorch_as_torchrun_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(EACH_RANK)
    assert run("--nproc-per-node", 2, script) == 0
    there = capsys.readouterr().out
    assert run("--nproc-per-node", 2, script, command="run") == 0
    assert capsys.readouterr() == (
        there,
        "kernbench: train.py imports PyTorch itself: it runs as with `kernbench torchrun`; "
        "--as-torch lets `import torch` mean kernbench.torch\n",
    )
    quiet = ("-q", "--topology", "sip8", "--json", tmp_path / "run.json")
    assert run(*quiet, script, command="run") == 0
    assert capsys.readouterr().err == ""
    spec = RunSpec.from_file(tmp_path / "run.json")
    assert (spec.topology, spec.nproc_per_node, spec.pytorch) == ("sip8", 1, PytorchRun())


def test_ranks_that_a_script_spawns_have_globals_modules_and_generators_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config_of_test.py").write_text("rank = None\n")
    script = tmp_path / "train.py"
    script.write_text(SPAWNS)
    before = list(sys.argv), torch.initial_seed(), torch.get_num_threads(), os.getcwd()
    assert run(script) == 0
    assert (list(sys.argv), torch.initial_seed(), torch.get_num_threads(), os.getcwd()) == before
    lines = sorted(capsys.readouterr().out.splitlines())
    assert lines[:3] == [f"rank {r} of __mp_main__" for r in range(3)]


@pytest.mark.parametrize("module", ["torch.multiprocessing", "multiprocessing", None])
def test_processes_that_a_script_starts_are_ranks(
    module: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "starts.py"
    script.write_text(STARTS)
    assert run(script, *([module] if module else [])) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["[(0, 3.0), (1, 3.0)]", "[(0, 6.0), (1, 6.0), (2, 6.0)]", lines[2]]
    assert lines[2] == "worker 0 of __mp_main__"
    assert len(lines) == 4, lines


@pytest.mark.parametrize("options", [(), ("--nproc-per-node", 2)])
def test_a_script_with_nothing_but_functions_ends_well_and_is_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[object, ...]
) -> None:
    script = tmp_path / "script.py"
    script.write_text("import torch\n\ndef main():\n    print(1)\n")
    assert run(*options, script) == 0
    assert "kernbench: script.py calls none of its functions\n" in capsys.readouterr().err


def test_a_mistake_is_reported_with_the_lines_of_the_script_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(MISTAKE)
    assert run("--nproc-per-node", 4, script) == 1
    said = capsys.readouterr().err
    assert "[C3] collective #1 of group WORLD" in said
    assert "train.py:4:1: dist.all_reduce(x)" in said
    assert "site-packages" not in said
    replay = f"replay: kernbench torchrun --nproc-per-node 4 --topology h200x8 --seed 0 {script}"
    assert replay in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--node-rank", "1", "x.py"], "one command simulates all nodes"),
        (["--max-restarts=2", "x.py"], "not started again"),
        (["--nnodes", "1:4", "x.py"], "grows or shrinks"),
        (["--nnodes", "9", "x.py"], "system.sips.count=72"),
        (["--nproc-per-node", "many", "x.py"], "expected a number from 1, or gpu"),
        (["-m", "no_such_package.train"], "no such module"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_the_page_shows_what_its_programs_do(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "pytorch.md").read_text(encoding="utf-8")
    programs = ROOT / "docs" / "pytorch"
    assert run("--nproc-per-node", 8, programs / "train.py") == 0
    out = capsys.readouterr().out
    assert re.search(r"step 2: loss 0\.\d+", out)
    assert "; values computed on the CPU\n" in out
    assert run("--nproc-per-node", 8, programs / "skips.py") == 1
    said = capsys.readouterr().err.replace(f"{ROOT}/", "")
    for line in ("all_reduce #9 of group WORLD: ranks 0-4, 6-7 wait for rank 5", "22:5: loss.back"):
        assert line in said
        assert line in page


def test_more_ranks_than_a_node_has_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(EACH_RANK)
    assert run("--nproc-per-node", 9, script) == 2
    assert "has 1 node with 8 devices for ranks" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said", "hint"),
    [
        ("--nproc-per-node 4", "1 node with 2 devices", "--devices 0,1,2,3"),
        ("--nproc-per-node 9", "1 node with 2 devices", "leave --devices out, and --set system."),
        ("--nnodes 2 --nproc-per-node 3", "1 node with 2 devices", "--devices 0,1,2,8,9,10"),
    ],
)
def test_more_ranks_than_devices_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str, said: str, hint: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(EACH_RANK)
    assert run("--devices", "0,1", *options.split(), script) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"has {said} for ranks, which --devices names hint: ask for no more; or {hint}" in told


def returns_a_sum(rank: int, amount: int) -> float:
    import torch.distributed as dist

    dist.init_process_group("nccl", rank=rank, world_size=2, init_method="tcp://localhost:1")
    torch.cuda.set_device(rank)
    value = torch.full((2,), float(rank + amount), device="cuda")
    dist.all_reduce(value)
    return float(value[0].item())


def test_torchrun_spawn_gives_what_ranks_have_returned() -> None:
    outcome = kernbench.torchrun_spawn(returns_a_sum, nprocs=2, args=(5,))
    assert outcome.returned == [11.0, 11.0]
    assert outcome.document["late_events"] == 0
    assert outcome.document["time_us"] > 0
    assert len(outcome.context.processes) == 2


def test_torchrun_spawn_tells_a_failure_of_a_rank() -> None:
    def fails(rank: int) -> None:
        if rank == 1:
            raise ValueError("rank 1 has had enough")

    with pytest.raises(SpawnException, match="rank 1 has had enough"):
        kernbench.torchrun_spawn(fails, nprocs=2)


def test_a_case_of_pytorch_runs_on_simulated_devices() -> None:
    pytest.importorskip("expecttest")  # which PyTorch's cases import
    import unittest

    import torch.distributed as dist
    from torch.testing._internal.common_distributed import (
        MultiProcessTestCase,
        MultiThreadedTestCase,
    )

    from kernbench.testing import on_kernbench

    ran = []

    @on_kernbench(nprocs=2)
    class Threads(MultiThreadedTestCase):
        def setUp(self: Any) -> None:
            super().setUp()
            self._spawn_threads()

        def test_sum(self: Any) -> None:
            value = torch.ones(3)
            dist.all_reduce(value)
            assert value[0].item() == 2.0
            ran.append(self.rank)

    @on_kernbench(nprocs=2)
    class Processes(MultiProcessTestCase):
        def setUp(self: Any) -> None:
            super().setUp()
            self._spawn_processes()

        def test_fails(self: Any) -> None:
            assert self.rank == 0

        def test_skips(self: Any) -> None:
            raise unittest.SkipTest("not today")

    result = unittest.TestResult()
    for case in (Threads("test_sum"), Processes("test_fails"), Processes("test_skips")):
        case.run(result)
    assert sorted(ran) == [0, 1]
    assert len(result.failures) == 1
    assert not result.errors, result.errors[0][1]
    assert [reason for _, reason in result.skipped] == ["not today"]


def test_what_every_rank_says_of_its_own_device_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "import os, torch\n"
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"
        "x = torch.ones(4, device='cuda')\n"
        "if int(os.environ['RANK']) < 12:\n"
        "    x + torch.ones(4)\n"
        "else:\n"
        "    with torch.cuda.stream(torch.cuda.Stream()):\n"
        "        x + 1\n"
    )
    more = ("--topology", "h200x8_x4_nodes", "--nnodes", 2, "--nproc-per-node", 8)
    assert run(*more, file) == 1
    told = capsys.readouterr().err
    assert len(told.splitlines()) < 25
    assert "ranks 0-11 failed at" in told
    assert "two devices, cuda:<local rank> and cpu!" in told
    assert "[M10] each of ranks 12-15 read a tensor before " in told
    assert "the read on stream <rank>.1" in told


@pytest.mark.parametrize(
    ("package", "way"),
    [
        (
            "triton.language",
            "pip install 'triton>=3.6', which is for Linux; `kernbench torchrun` runs",
        ),
        ("apex.optimizers", "apex has kernels of its own for CUDA, which are not simulated; "),
    ],
)
def test_a_package_that_is_not_installed_is_told_with_the_way_out(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    way: str,
) -> None:
    root = package.partition(".")[0]

    find = PathFinder.find_spec

    def absent(name: str, path: Any = None, target: Any = None) -> Any:
        return None if name.partition(".")[0] == root else find(name, path, target)

    # Whoever looks for modules, as the bridge does for those of Triton, asks this one in the end.
    monkeypatch.setattr(PathFinder, "find_spec", absent)
    for name in [each for each in sys.modules if each.partition(".")[0] == root]:
        monkeypatch.delitem(sys.modules, name)
    file = tmp_path / "train.py"
    file.write_text(f"import torch\nimport {package} as wanted\nprint(wanted)\n")
    assert run("--nproc-per-node", 2, file) == 1
    told = capsys.readouterr().err
    assert f"ModuleNotFoundError: No module named '{root}'\nhint: {way}" in told
    assert f"{file}" in told
