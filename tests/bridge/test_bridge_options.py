"""Options of `kernbench torchrun`, and how programs of PyTorch start processes."""

import json
import resource
from pathlib import Path
from typing import Any

import pytest
from bridge_devices import on_ranks
from bridge_torchrun import run

import kernbench
from kernbench.ranks.spawn_errors import SpawnException

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

START = """\
import os, sys, torch, torch.distributed as dist
dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
"""

ANY_SOURCE = (
    START
    + """\
x = torch.zeros(1, device="cuda")
if rank == 0:
    assert [dist.recv(x), dist.recv(x)] == [1, 2]
else:
    dist.send(torch.ones(1, device="cuda"), 0)
dist.destroy_process_group()
"""
)

MADE_UP = (
    START
    + """\
x = torch.rand(1, device="cuda")
if rank == 0:
    x.item()
    1 / x.item() if "fails" in sys.argv else 0
dist.destroy_process_group()
"""
)

PROCESSES = """\
import multiprocessing, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
def init(rank, size, run, queue=None):
    dist.init_process_group("nccl", rank=rank, world_size=size, init_method="tcp://localhost:1")
    torch.cuda.set_device(rank)
    run(rank, queue)
    dist.destroy_process_group()
def work(rank, queue):
    x = torch.ones(3, device="cuda")
    dist.all_reduce(x)
    if queue is not None:
        queue.put((rank, x[0].item()))
def nested(rank, queue):
    mp.Process(target=print).start()
class Worker(mp.Process):
    def __init__(self, rank):
        super().__init__(name=f"worker {rank}")
        self.rank = rank
    def run(self):
        init(self.rank, 2, work)
        print(self.name)
if __name__ == "__main__":
    if sys.argv[1:] == ["nested"]:
        mp.spawn(init, args=(2, nested), nprocs=2)
    for one in (mp, multiprocessing, mp.get_context("spawn"), multiprocessing.get_context()):
        started = [one.Process(target=init, args=(rank, 2, work)) for rank in range(2)]
        for each in started:
            each.start()
        for each in started:
            each.join()
        print([each.exitcode for each in started])
    context = mp.get_context("spawn")
    queue = context.Queue()
    for rank in range(2):
        context.Process(target=init, args=(rank, 2, work), kwargs={"queue": queue}).start()
    print(sorted(queue.get() for _ in range(2)))
    with multiprocessing.Manager() as manager:
        print(type(manager.dict()).__name__)
    for rank in range(2):
        Worker(rank).start()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "train.py"


def test_explore_finds_a_receive_that_takes_what_comes(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text(ANY_SOURCE)
    assert run("--nproc-per-node", 3, "--explore", 5, script) == 1
    said = capsys.readouterr().err
    assert "[P8]" in said
    assert "--schedule 2.1 runs the second one again" in said
    assert "train.py:7:13: assert" in said
    assert run("--nproc-per-node", 3, "--schedule", "2.1", script) == 1
    assert "line 7, in <module>" in capsys.readouterr().err


def test_ranks_of_each_node_are_on_a_node_of_their_own(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text(START + "raise ValueError('to see the command')\n")
    assert run("--nnodes", 2, "--nproc-per-node", 2, script) == 1
    assert "--devices 0,1,8,9" in capsys.readouterr().err
    assert run("--nnodes", 2, "--nproc-per-node", 2, "--devices", "0,1,2,8,9", script) == 2
    assert "hint: --devices 0,1,8,9" in capsys.readouterr().err
    assert run("--nnodes", 2, "--nproc-per-node", 9, script) == 2


def test_values_that_were_made_up_are_told_at_the_end(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text(MADE_UP)
    document = tmp_path / "run.json"
    assert run("--nproc-per-node", 2, "--data", "fake", "--json", document, script) == 0
    told = f"made-up values: 1 read gave 0, the first by rank 0 at {script}:7:5: x.item()"
    assert told in capsys.readouterr().out
    (result,) = json.loads(document.read_text())["results"]
    assert result["pytorch"]["made_up_values"]["count"] == 1
    assert run("--nproc-per-node", 2, "--data", "fake", script, "fails") == 1
    assert "made-up values: 2 reads gave 0" in capsys.readouterr().err


def test_processes_that_a_script_starts_are_its_ranks(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text(PROCESSES)
    assert run(script) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == ["[0, 0]"] * 4
    assert lines[4:6] == ["[(0, 2.0), (1, 2.0)]", "DictProxy"]
    assert sorted(lines[6:8]) == ["worker 0", "worker 1"]
    assert run(script, "nested") == 0  # one that touches no device is a process of its own


def test_a_tensor_for_which_the_device_has_no_room_takes_no_memory_of_this_computer() -> None:
    elements = 1 << 29  # of 4 bytes

    def worker(_: int) -> list[int]:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        small = torch.ones(1, device="cuda")
        makers: list[Any] = [
            lambda: torch.zeros(elements, device="cuda"),
            lambda: torch.full((2, elements // 2), 2.0, device="cuda"),
            lambda: torch.randn(elements, device="cuda"),
            lambda: small.new_ones(elements),
            lambda: torch.nn.Linear(1 << 14, 1 << 15, device="cuda"),
        ]
        for make in makers:
            with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 2 GiB on cuda:0"):
                make()
        assert torch.zeros(elements // 64, device="cuda").sum().item() == 0
        return [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before]

    (grown,) = on_ranks(worker, hbm="64MiB")[0]
    assert grown < 1 << 20, "less than 1 GiB, in KiB"


def test_a_rank_that_never_calls_is_stopped_at_its_line() -> None:
    def spins(rank: int) -> None:
        while rank == 1:
            rank += 0  # K5

    with pytest.raises(SpawnException) as failed:
        kernbench.torchrun_spawn(spins, nprocs=2, watchdog_s=0.2)
    assert set(failed.value.errors) == {1}
    assert "[K5] code ran on past the watchdog's 0.2 s" in str(failed.value)
    assert "test_bridge_options.py" in str(failed.value)


@pytest.mark.filterwarnings("ignore:.*Running all_reduce")
def test_a_rank_outside_of_a_group_is_told_as_by_pytorch() -> None:
    import torch.distributed as dist

    def worker(rank: int) -> float:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=2, init_method="tcp://x:1")
        group, x = dist.new_group([0]), torch.ones(1, device="cuda")
        dist.all_reduce(x, group=group)  # PyTorch warns, and does nothing
        if rank == 1:
            with pytest.raises(ValueError, match="Invalid process group specified"):
                dist.get_backend(group)
        dist.destroy_process_group()
        return float(x.item())

    assert on_ranks(worker, 2) == [1.0, 1.0]
