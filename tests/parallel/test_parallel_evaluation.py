"""How much work an evaluation is, whose loss it is, and modules that are set to it."""

from typing import Any

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.parallel.evaluation import average_loss, evaluating, microbatches
from kernbench.parallel.groups import GroupGrid, ProcessGroupCollection
from kernbench.testing import Kernbench


def test_microbatches_of_a_rank() -> None:
    assert [microbatches(8, 2, dp) for dp in (1, 2, 4)] == [4, 2, 1]
    # The specification's case of 8192 ranks: as many microbatches for four times the samples.
    assert microbatches(4096, 1, 8192 // (2 * 4)) == microbatches(1024, 1, 8192 // (2 * 4 * 4)) == 4
    rule = r"eval_global_batch_size=8 is not divisible by micro_batch_size \* dp = 6"
    with pytest.raises(ValueError, match=rule) as caught:
        microbatches(8, 2, 3)
    assert "the next multiple is 12" in str(caught.value)
    assert "test_parallel_evaluation.py" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((8, -1, 1), r"microbatches\(micro_batch_size=-1\)"),
        ((8, 1, 0), r"microbatches\(dp=0\)"),
        ((1.5, 1, 1), r"microbatches\(eval_global_batch_size=1.5\)"),
    ],
)
def test_numbers_that_are_none(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        microbatches(*arguments)


def test_the_mean_over_all_tokens_of_a_layout(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        grid = GroupGrid([2, 2, 2], ["tp", "dp", "pp"])
        last = ProcessGroupCollection(dp_cp=grid.create_pg("dp"))
        layout = ProcessGroupCollection(dp_cp=last.dp_cp, pp=grid.create_pg("pp"))
        tp, dp, stage = rank % 2, rank // 2 % 2, rank // 4
        # In `dp` the first rank has 1 token, the second 3; another stage has no losses.
        sums = [2.0 + tp + 2 * dp, 1.0 + 2 * dp] if stage else [7.0, 0.5]

        def reports() -> torch.Tensor:
            return torch.tensor([sums, [0.0, 1.0]], device="cuda", dtype=torch.float64)

        mean = average_loss(reports(), layout)
        assert mean.tolist() == [(6.0 + 2 * tp) / 4, 0.0]
        assert mean.dtype == torch.float64
        one = average_loss(reports()[0], last)  # no stages are known
        assert one.item() == ((6.0 + 2 * tp) / 4 if stage else 14.0)
        with pytest.raises(ValueError, match="the layout has no group 'dp_cp'"):
            average_loss(reports(), ProcessGroupCollection())
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=8)


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
