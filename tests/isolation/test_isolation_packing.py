"""Arguments of `torch.multiprocessing.spawn`: processes share memory of tensors, not objects."""

from pathlib import Path

import pytest
from bridge_torchrun import run

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

BEGIN = """\
import torch, torch.distributed as dist, torch.multiprocessing as mp, torch.nn as nn
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.second = nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("ones", torch.ones(2))
"""

OWN = """
def work(rank, model):
    assert model.first.weight is model.second.weight and type(model.first.weight) is nn.Parameter
    assert model.first.weight.requires_grad and model.first.weight.grad is None
    torch.cuda.set_device(rank)
    model.to("cuda")
    model.second(model.ones).sum().backward()
    print(rank, model.ones.device, model.first.weight.grad.tolist())
if __name__ == "__main__":
    model = Tied()
    model.first(model.ones).sum().backward()
    mp.spawn(work, args=(model,), nprocs=2)
    print(model.ones.device, type(model.first.weight.grad))
"""

SHARED = """
def work(rank, whole, part):
    dist.init_process_group("gloo", init_method="tcp://localhost:1", rank=rank, world_size=2)
    whole[rank] += rank + 1
    dist.barrier()
    print(rank, whole.tolist(), part.tolist(), part.requires_grad)
if __name__ == "__main__":
    whole = torch.zeros(2)
    mp.spawn(work, args=(whole, whole[1:]), nprocs=2)
    print(whole.tolist())
"""

NO_LEAF = """
def work(rank, value): pass
if __name__ == "__main__":
    mp.spawn(work, args=(torch.ones(2, requires_grad=True) * 2,), nprocs=2)
"""


def told(path: Path, program: str, capsys: pytest.CaptureFixture[str], code: int) -> list[str]:
    path.write_text(BEGIN + program, encoding="utf-8")
    assert run(path) == code
    captured = capsys.readouterr()
    return sorted((captured.err if code else captured.out).splitlines())


def test_each_rank_has_parameters_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(tmp_path / "own.py", OWN, capsys, 0)[:3] == [
        "0 cuda:0 [[1.0, 1.0], [1.0, 1.0]]",
        "1 cuda:1 [[1.0, 1.0], [1.0, 1.0]]",
        "cpu <class 'torch.Tensor'>",
    ]


def test_all_see_what_one_writes_into_the_memory_of_a_tensor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(tmp_path / "shared.py", SHARED, capsys, 0)[:3] == [
        "0 [1.0, 2.0] [2.0] False",
        "1 [1.0, 2.0] [2.0] False",
        "[1.0, 2.0]",
    ]


def test_what_has_a_gradient_to_pass_on_is_refused_in_pytorchs_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = told(tmp_path / "no_leaf.py", NO_LEAF, capsys, 1)
    (line,) = [each for each in lines if "Cowardly" in each]
    assert line.startswith("RuntimeError: Cowardly refusing to serialize non-leaf tensor")
