"""Processes of this computer that a rank starts: they write files, and have no device."""

import os
from pathlib import Path

import pytest
from bridge_torchrun import run

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

PROGRAM = """
import multiprocessing as mp
import os, subprocess, sys
import torch

def tell(path, *words):
    with open(path, "w") as file:
        file.write(" ".join(map(str, words)))

def write(path):
    tell(path, torch.ones(3).sum().item(), os.environ["RANK"])

def use(path, make):
    try:
        make()
    except Exception as error:
        tell(path, str(error).splitlines()[0])

def make():
    torch.ones(3, device="cuda")

class Adds:
    def __init__(self, tensor):
        self.tensor = tensor
    def __call__(self):
        self.tensor + 1

class Own(mp.Process):
    def run(self):
        write(self.name)
        sys.exit(3)

def ended(process):
    process.start()
    process.join()
    assert not process.is_alive()
    return process.exitcode

def main(folder):
    rank = os.environ["RANK"]
    torch.cuda.set_device(int(rank))
    tensor = torch.ones(3, device="cuda")
    for method in ("fork", "spawn"):
        context = mp.get_context(method)
        path = f"{folder}/{method}{rank}"
        assert ended(context.Process(target=write, args=(path,))) == 0
        assert ended(context.Process(target=use, args=(path + ".makes", make))) == 0
    fork = mp.get_context("fork")
    assert ended(fork.Process(target=use, args=(f"{folder}/adds{rank}", Adds(tensor)))) == 0
    assert ended(Own(name=f"{folder}/own{rank}")) == 3
    with subprocess.Popen([sys.executable, "-c", "import os; print(os.environ['RANK'])"],
                          stdout=subprocess.PIPE, text=True) as program:
        tell(f"{folder}/program{rank}", program.stdout.read().strip())
    child = os.fork()
    if child == 0:
        raise SystemExit(7)
    # By its number: what tests in this process did before may have left children, too.
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    queue = fork.Queue()
    filler = fork.Process(target=queue.put, args=(rank,))
    filler.start()
    assert queue.get() == rank
    filler.join()
    assert tensor.sum().item() == 3.0

if __name__ == "__main__":
    main(sys.argv[1])
"""


def test_processes_of_ranks_write_files_and_have_no_device(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    folder = tmp_path / "written"
    folder.mkdir()
    assert not run("--nproc-per-node", 2, script, folder)
    found = {path.name: path.read_text() for path in folder.iterdir()}
    expected = {}
    for rank in range(2):
        refused = f"a process that rank {rank} has started uses a simulated device"
        for method in ("fork", "spawn"):
            expected[f"{method}{rank}"] = f"3.0 {rank}"
            expected[f"{method}{rank}.makes"] = refused
        expected |= {
            f"adds{rank}": refused,
            f"own{rank}": f"3.0 {rank}",
            f"program{rank}": str(rank),
        }
    assert found == expected
    assert os.environ.get("RANK") is None
