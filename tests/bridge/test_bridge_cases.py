"""Test cases of PyTorch that start processes in their own ways, under `on_kernbench`."""

import unittest
from typing import Any

import pytest

from kernbench.testing import on_kernbench

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # which PyTorch's cases import


def _result(*cases: Any) -> unittest.TestResult:
    result = unittest.TestResult()
    for case in cases:
        case.run(result)
    assert not result.errors, result.errors[0][1]
    return result


def test_processes_that_run_test_after_test() -> None:
    import torch.distributed as dist
    from torch.testing._internal.common_distributed import MultiProcContinuousTest

    ran = []

    @on_kernbench(nprocs=2)
    class Continuous(MultiProcContinuousTest):
        @classmethod
        def backend_str(cls) -> str:
            return "nccl"

        def _sums(self: Any) -> None:
            torch.cuda.set_device(self.rank)
            given = torch.full((3,), self.rank + 1.0, device=self.device_type())
            dist.all_reduce(given, group=self.pg)
            ran.append((self.rank, self.world_size, given.tolist()))

        test_sums = test_sums_again = _sums

        def test_fails(self: Any) -> None:
            assert self.rank == 0

        def test_skips(self: Any) -> None:
            raise unittest.SkipTest("not today")

    names = ("test_sums", "test_fails", "test_skips", "test_sums_again")
    Continuous.setUpClass()
    result = _result(*map(Continuous, names))
    Continuous.tearDownClass()
    assert sorted(ran) == sorted([(rank, 2, [3.0] * 3) for rank in range(2)] * 2)
    assert len(result.failures) == 1
    assert [reason for _, reason in result.skipped] == ["not today"]


def test_processes_that_say_themselves_what_is_around_a_test() -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal import common_fsdp

    ran = []
    before = common_fsdp.DEVICE_TYPE

    @on_kernbench(nprocs=2)
    class Sharded(common_fsdp.FSDPTest):
        def test_step(self: Any) -> None:
            assert common_fsdp.DEVICE_TYPE == "cuda"
            assert dist.get_backend(self.process_group) == "nccl"
            model = fully_shard(torch.nn.Linear(4, 4, device="cuda"))
            model(torch.ones(2, 4, device="cuda")).sum().backward()
            ran.append((self.rank, model.weight.grad.full_tensor().sum().item()))

        def test_asks_for_many(self: Any) -> None:
            raise AssertionError(f"rank {self.rank} of {self.world_size}")

    result = _result(Sharded("test_step"), Sharded("test_asks_for_many"))
    assert sorted(ran) == [(0, 32.0), (1, 32.0)]
    assert len(result.failures) == 1
    assert "of 2" in result.failures[0][1]
    assert before == common_fsdp.DEVICE_TYPE

    @on_kernbench(nprocs=2)
    class Continuous(common_fsdp.FSDPTestContinuous):
        def test_step(self: Any) -> None:
            model = fully_shard(torch.nn.Linear(4, 4, device="cuda"))
            ran.append((self.rank, model(torch.ones(2, 4, device="cuda")).device.type))

    ran.clear()
    _result(Continuous("test_step"))
    assert sorted(ran) == [(0, "cuda"), (1, "cuda")]
