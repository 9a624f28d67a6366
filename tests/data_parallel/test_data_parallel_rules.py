"""DistributedDataParallel keeps PyTorch's rules: the same programs, the same gradients."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ddp_programs import EXPECTED, PROGRAMS, RAISES

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.data_parallel.replicas import DataParallelError
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench
from kernbench.torch import nn
from kernbench.torch.nn.parallel import DistributedDataParallel


def test_each_program_has_its_results() -> None:
    assert {*PROGRAMS} == {*EXPECTED}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_finds_what_it_finds_in_pytorch(kernbench: Kernbench, name: str) -> None:
    told: list[list[Any]] = [[], []]

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        # Late enough for the other rank to wait.
        for _ in range(20 * rank):
            torch.ones(2, device="cuda")
        try:
            PROGRAMS[name](torch, DistributedDataParallel, rank, told[rank].append)
        except RuntimeError:
            told[rank].append(RAISES)
            raise

    expected = EXPECTED[name]
    if RAISES not in expected[0]:
        kernbench.spawn(worker, nprocs=2)
        assert told == expected
    else:
        with pytest.raises(SpawnException):
            kernbench.spawn(worker, nprocs=2)
        # The first rank that raises ends the other.
        both = [*zip(expected, told, strict=True)]
        assert any(rows == mine for rows, mine in both)
        assert all(rows[: len(mine)] == mine for rows, mine in both)


_REAL = """
import datetime, json, os, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from ddp_programs import PROGRAMS, RAISES

def worker(rank, place):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"file://{place}/meet", rank=rank, world_size=2,
        timeout=datetime.timedelta(seconds=30),
    )
    told = {}
    for name, program in PROGRAMS.items():
        told[name] = []
        try:
            program(torch, DistributedDataParallel, rank, told[name].append)
        except RuntimeError:
            told[name].append(RAISES)
        dist.barrier()
    with open(f"{place}/{rank}.json", "w") as file:
        json.dump(told, file)
    # What failed passes left behind aborts a process that is taken down.
    dist.barrier()
    os._exit(0)

if __name__ == "__main__":
    torch.multiprocessing.spawn(worker, args=(sys.argv[1],), nprocs=2)
"""


@pytest.mark.torch
def test_pytorch_finds_what_is_written_here(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "real.py").write_text(_REAL)
    here = str(Path(__file__).parent)
    subprocess.run(
        [sys.executable, str(tmp_path / "real.py"), str(tmp_path)],
        check=True,
        env={"PYTHONPATH": here, "OMP_NUM_THREADS": "1"},
    )
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert {name: [told[name] for told in found] for name in PROGRAMS} == EXPECTED


# Parts that ranks hold on purpose


class Experts(nn.Module):
    """A dense layer, and an expert's weight marked as Megatron-Core marks them."""

    dense: Any
    expert: Any

    def __init__(self, rank: int, *, dense: bool) -> None:
        super().__init__()
        if dense:
            self.dense = nn.Linear(2, 2)
        self.expert = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.expert.weight.fill_(rank)
        self.expert.weight.allreduce = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.expert(self.dense(x))
        return out


def test_an_experts_weight_among_others_is_refused(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        model = Experts(rank, dense=True)
        with pytest.raises(DataParallelError) as caught:
            DistributedDataParallel(model)
        assert model.expert.weight.tolist() == [[rank, rank]] * 2
        text = str(caught.value)
        assert "would overwrite expert.weight of rank" in text
        assert "its mark allreduce = False says that it is an expert's" in text
        assert "_set_params_and_buffers_to_ignore_for_model(module, names)" in text

    kernbench.spawn(worker, nprocs=3)


def test_an_experts_weight_is_left_alone_if_asked_and_averaged_over_its_own_group(
    kernbench: Kernbench,
) -> None:
    """As the report advises: experts 0 and 1 on ranks 0, 2 and 1, 3."""

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        pair, *_ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
        model = Experts(rank, dense=True)
        model.expert = DistributedDataParallel(model.expert, process_group=pair)
        names = ["expert.module.weight"]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
        ddp = DistributedDataParallel(model)
        with torch.no_grad():
            model.dense.weight.fill_(1)
            model.dense.bias.fill_(0)
        ddp(torch.full((1, 2), rank + 1.0, device="cuda")).sum().backward()
        expert = model.expert.module.weight
        # Of ranks 0 and 1, the first ranks of their pairs.
        assert expert.tolist() == [[rank % 2] * 2] * 2
        # Each rank's input is 2 (rank + 1): the means of ranks 0 and 2, and of 1 and 3.
        assert expert.grad.tolist() == [[[4.0, 4.0], [6.0, 6.0]][rank % 2]] * 2
        dist.destroy_process_group(pair)
        # The dense weight's is 2 value (rank + 1), over all ranks: (0 + 4 + 0 + 8) / 4.
        assert model.dense.weight.grad.tolist() == [[3.0, 3.0]] * 2

    kernbench.spawn(worker, nprocs=4)


def test_experts_by_themselves_are_averaged(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        model = Experts(rank, dense=False)
        DistributedDataParallel(model)
        assert model.expert.weight.tolist() == [[0, 0]] * 2

    kernbench.spawn(worker, nprocs=2)


def test_experts_over_the_group_of_dense_layers_are_refused(kernbench: Kernbench) -> None:
    """Ranks 0 and 1 hold one expert, 2 and 3 another, as Megatron-Core describes its groups."""

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        mine = None
        for ranks in ([0, 1], [2, 3]):
            made = dist.new_group(ranks, group_desc="EXPERT_DATA_PARALLEL_GROUP")
            mine = made if rank in ranks else mine
        model = Experts(rank, dense=False)
        with pytest.raises(DataParallelError, match=r"would overwrite expert\.weight") as caught:
            DistributedDataParallel(model)
        others = "ranks 2-3" if rank < 2 else "ranks 0-1"
        assert f"{others} of the group hold another part" in str(caught.value)
        assert model.expert.weight.tolist() == [[rank, rank]] * 2
        DistributedDataParallel(model, process_group=mine)
        assert model.expert.weight.tolist() == [[rank // 2 * 2] * 2] * 2
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=4)


def test_a_parameter_of_the_wrapped_module_cannot_be_ignored(kernbench: Kernbench) -> None:
    """PyTorch leaves its values alone but averages its gradient."""

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        layer = nn.Linear(2, 2)
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(layer, ["bias"])
        with pytest.raises(DataParallelError, match="cannot ignore bias"):
            DistributedDataParallel(layer)

    kernbench.spawn(worker, nprocs=2)
