"""What the table of docs/limits.md says of programs of the real PyTorch."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernbench
from kernbench.errors import UnsupportedError
from kernbench.runtime_api.multiprocessing import SpawnException

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch")


def on_ranks(worker: Callable[[int], Any], nprocs: int = 1) -> list[Any]:
    def rank_main(rank: int) -> Any:
        torch.cuda.set_device(rank)
        return worker(rank)

    return kernbench.torchrun_spawn(rank_main, nprocs=nprocs).returned


def test_layers_and_operations_that_the_own_torch_lacks() -> None:
    def worker(rank: int) -> None:
        image = torch.ones(1, 3, 8, 8, device="cuda")
        assert torch.nn.Conv2d(3, 4, 3, device="cuda")(image).shape == (1, 4, 6, 6)
        rows = torch.ones(2, 3, 4, device="cuda")
        assert torch.nn.LSTM(4, 4, device="cuda")(rows)[0].shape == (2, 3, 4)
        assert torch.nn.functional.dropout(rows, inplace=True) is rows
        assert torch.cuda.Stream(priority=-1).priority == -1
        torch.cuda.Event(interprocess=True)
        turned = torch.randn(2, 2, dtype=torch.complex64, device="cuda", requires_grad=True)
        (turned @ turned).abs().sum().backward()
        assert turned.grad.shape == (2, 2)

    on_ranks(worker)


def test_gradients_as_in_pytorch() -> None:
    def worker(rank: int) -> None:
        x = torch.full((2,), 2.0, device="cuda", requires_grad=True)
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        first.sum().backward()
        assert x.grad.tolist() == [12, 12]  # 6 x
        (rows,) = torch.autograd.grad(x * x, x, torch.eye(2, device="cuda"), is_grads_batched=True)
        assert rows.tolist() == [[4, 0], [0, 4]]
        y = torch.ones(2, device="cuda", requires_grad=True)
        square = y * y
        y.data.zero_()
        square.sum().backward()
        assert y.grad.tolist() == [0, 0]

    on_ranks(worker)


def test_an_optimizer_and_ddp_take_what_the_own_torch_refuses() -> None:
    def worker(rank: int) -> None:
        torch.distributed.init_process_group("nccl")
        layer = torch.nn.Linear(2, 2, device="cuda")
        model = torch.nn.parallel.DistributedDataParallel(layer, static_graph=True)
        optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)
        for _ in range(2):
            model(torch.ones(1, 2, device="cuda")).sum().backward()
            optimizer.step()
        uneven = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2, device="cuda"))
        with uneven.join():
            for _ in range(rank + 1):
                uneven(torch.ones(1, 2, device="cuda")).sum().backward()
        torch.distributed.destroy_process_group()

    on_ranks(worker, 2)


def test_random_numbers_of_the_host_are_pytorchs_and_generators_are_a_ranks_own() -> None:
    def worker(rank: int) -> tuple[list[float], list[float], float, float]:
        torch.manual_seed(7)
        random.seed(rank)
        np.random.seed(rank)
        host, device = torch.rand(2).tolist(), torch.rand(2, device="cuda").tolist()
        torch.distributed.init_process_group("nccl")
        torch.distributed.barrier()
        torch.cuda.synchronize()  # lets the other rank draw
        torch.distributed.destroy_process_group()
        return host, device, random.random(), np.random.random()

    generator = torch.Generator().manual_seed(7)
    expected = torch.rand(2, generator=generator).tolist()
    for rank, (host, device, ours, numpys) in enumerate(on_ranks(worker, 2)):
        assert host == expected
        assert all(0 <= value < 1 for value in device)
        assert ours == random.Random(rank).random()
        assert numpys == np.random.RandomState(rank).random_sample()


def test_where_tensors_are_and_what_is_a_view() -> None:
    def worker(rank: int) -> None:
        assert torch.ones(1).device.type == "cpu"
        x = torch.tensor([1j], device="cuda")
        y = x.conj()
        x.zero_()
        assert y.tolist() == [0]
        with pytest.raises(ValueError, match="has not been initialized"):
            torch.distributed.get_rank()

    on_ranks(worker)


def test_a_forgotten_set_device_is_found() -> None:
    def worker(rank: int) -> None:
        torch.ones(1, device="cuda")

    with pytest.raises(SpawnException, match=r"\[M14\] rank 1 used cuda:0"):
        kernbench.torchrun_spawn(worker, nprocs=2)


def test_gloo_waits_for_results_on_devices() -> None:
    def worker(rank: int) -> None:
        torch.distributed.init_process_group("gloo")
        end = torch.cuda.Event()
        torch.distributed.all_reduce(torch.ones(1 << 16, device="cuda"))
        end.record()
        assert end.query()
        torch.distributed.destroy_process_group()

    on_ranks(worker, 2)


def test_what_is_refused_by_name() -> None:
    def worker(rank: int) -> None:
        x = torch.ones(2, 2, device="cuda")
        for call in (torch.cuda.MemPool, x.to_sparse):
            with pytest.raises(UnsupportedError):
                call()
        assert torch.ones(2, 2).to_sparse().to_dense().tolist() == [[1, 1], [1, 1]]
        assert torch.quantize_per_tensor(x.cpu(), 0.1, 0, torch.qint8).is_quantized
        with pytest.raises(RuntimeError, match="quantized"):
            torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)

    on_ranks(worker)
