"""What must divide to evaluate in another layout, how much work it is, and whose loss it is."""

from typing import Any

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.parallel.evaluation import (
    average_loss,
    check_evaluation,
    evaluating,
    microbatches,
)
from kernbench.parallel.groups import GroupGrid, ProcessGroupCollection
from kernbench.testing import Kernbench

FITS = {
    "world_size": 16,
    "seq_length": 48,
    "train_cp": 1,
    "eval_cp": 2,
    "tp": 2,
    "pp": 2,
    "eval_global_batch_size": 8,
    "micro_batch_size": 2,
}


def test_a_layout_that_fits() -> None:
    assert check_evaluation(**FITS) == 2
    assert check_evaluation(**{**FITS, "eval_cp": 4}) == 1
    # The specification's case of 8192 ranks: as many samples, four times the microbatches.
    case = {"world_size": 8192, "seq_length": 8192, "tp": 2, "pp": 4}
    alone = check_evaluation(**case, train_cp=1, eval_cp=1, eval_global_batch_size=4096)
    shared = check_evaluation(**case, train_cp=1, eval_cp=4, eval_global_batch_size=1024)
    assert (alone, shared) == (1024, 256)
    assert microbatches(4096, 1, alone) == microbatches(1024, 1, shared) == 4


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seq_length": 50}, r"seq_length=50 is not divisible by 2 \* max\(.*\) = 4"),
        ({"train_cp": 4, "seq_length": 44}, r"seq_length=44 is not divisible by .* = 8"),
        ({"world_size": 12}, r"world_size=12 is not divisible by tp \* pp \* eval_cp = 8"),
        (
            {"train_cp": 3, "world_size": 16},
            r"world_size=16 is not divisible by tp \* pp \* train_cp = 12",
        ),
        (
            {"eval_global_batch_size": 6},
            r"eval_global_batch_size=6 is not divisible by micro_batch_size \* dp = 4",
        ),
        ({"eval_cp": 0}, r"check_evaluation\(eval_cp=0\)"),
        ({"tp": 1.5}, r"check_evaluation\(tp=1.5\)"),
        ({"micro_batch_size": -1}, r"microbatches\(micro_batch_size=-1\)"),
    ],
)
def test_a_layout_that_does_not_fit(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        check_evaluation(**{**FITS, **changed})
    assert "test_parallel_evaluation.py" in str(caught.value)


def test_microbatches_of_a_rank() -> None:
    assert [microbatches(8, 2, dp) for dp in (1, 2, 4)] == [4, 2, 1]
    with pytest.raises(ValueError, match="the next multiple is 12"):
        microbatches(8, 2, 3)


def test_the_mean_over_all_tokens_of_a_layout(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        grid = GroupGrid([2, 2], ["tp", "dp"])
        grid.create_pg("tp")
        groups = ProcessGroupCollection(dp_cp=grid.create_pg("dp"))
        # Ranks 0 and 1 have 1 token each, ranks 2 and 3 have 3.
        loss_sum = torch.tensor(2.0 + rank, device="cuda", dtype=torch.float64, requires_grad=True)
        mean = average_loss(loss_sum, 1 + 2 * (rank // 2), groups)
        assert mean.item() == (6.0 + 2 * (rank % 2)) / 4
        assert mean.dtype == torch.float64
        assert not mean.requires_grad
        alone = ProcessGroupCollection(dp_cp=dist.new_subgroups(1)[0])
        assert average_loss(loss_sum, torch.tensor(2), alone).item() == (2.0 + rank) / 2
        with pytest.raises(ValueError, match="the layout has no group 'dp_cp'"):
            average_loss(loss_sum, 1, ProcessGroupCollection())
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=4)


def test_modules_are_set_back_each_as_it_was() -> None:
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Dropout())
    model[1].eval()

    def fail() -> None:
        with evaluating([model]):
            assert not any(module.training for module in model.modules())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [module.training for module in model.modules()] == [True, True, False]
    with evaluating(model):
        model.train()
    assert [module.training for module in model.modules()] == [True, True, False]
