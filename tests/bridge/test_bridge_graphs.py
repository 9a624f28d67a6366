"""CUDA graphs of the real PyTorch: numbers, times, collectives, mistakes."""

from collections.abc import Callable
from typing import Any

import pytest
from bridge_devices import machine, on_ranks

from kernbench.bridge.base.here import this_rank
from kernbench.graphs.capture import CaptureError
from kernbench.memory import UninitialisedReadError
from kernbench.ranks.spawn_errors import SpawnException

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
dist: Any = torch.distributed
F: Any = torch.nn.functional

US = 1_000_000
"""Picoseconds."""


def _clock() -> int:
    return int(this_rank().process.host.clock)


def _training(make: Callable[[Any], Any]) -> tuple[Any, Callable[[Any], Any]]:
    torch.manual_seed(0)
    parts = torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(16, 1)
    model = torch.nn.Sequential(*parts).cuda()
    optimizer = make(model.parameters())

    def step(x: Any) -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return model, step


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda given: torch.optim.SGD(given, lr=0.1, momentum=0.9),
    "adam": lambda given: torch.optim.Adam(given, lr=0.1, capturable=True),
    "fused": lambda given: torch.optim.AdamW(given, lr=0.1, capturable=True, fused=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_steps_from_a_graph_are_those_without(name: str) -> None:
    def worker(rank: int) -> None:
        data = [torch.randn(4, 8, device="cuda") for _ in range(6)]
        _, step = _training(OPTIMIZERS[name])
        torch.cuda.manual_seed(1)
        expected = [step(given).item() for given in data]
        model, step = _training(OPTIMIZERS[name])
        torch.cuda.manual_seed(1)
        x, side, found = torch.zeros(4, 8, device="cuda"), torch.cuda.Stream(), []
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for given in data[:2]:
                x.copy_(given)
                found.append(step(x).item())
        torch.cuda.current_stream().wait_stream(side)
        graph, before = torch.cuda.CUDAGraph(), [one.clone() for one in model.parameters()]
        with torch.cuda.graph(graph):
            loss = step(x)
        for ours, theirs in zip(model.parameters(), before, strict=True):
            assert torch.equal(ours, theirs)  # nothing runs at the capture
        for given in data[2:]:
            x.copy_(given)
            graph.replay()
            found.append(loss.item())
        assert found == expected

    on_ranks(worker)


@pytest.mark.parametrize("data", [True, False])
def test_a_replay_takes_one_launch_of_the_host_and_its_kernels_no_more(data: bool) -> None:
    def worker(rank: int) -> list[int]:
        x = torch.zeros(1024, device="cuda")
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin = _clock()
        for _ in range(10):
            x.add_(1)
        eager = _clock() - begin
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(10):
                x.add_(1)
        torch.cuda.synchronize()
        begin = _clock()
        graph.replay()
        replay = _clock() - begin
        torch.cuda.synchronize()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if data:
            assert x.tolist() == [30.0] * 1024
        return [eager, replay, round(start.elapsed_time(end) * 1000)]

    (found,) = on_ranks(worker, data=data)
    # h200x8: 9.3 us a dispatch with autograd's 2 beside, and 8 us for the first one, behind zeros;
    # 12 us a launch; 1.3 us a small kernel.
    assert found[:2] == [121 * US, 12 * US]
    assert 12 + 10 * 1.3 <= found[2] < 12 + 10 * 2


@pytest.mark.parametrize("data", [True, False], ids=["numbers", "shapes"])
def test_kernels_of_a_graph_find_in_the_l2_what_was_touched_before(data: bool) -> None:
    def worker(rank: int) -> float:
        x, y = (torch.zeros(1 << 20, device="cuda") for _ in range(2))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(4):
                y.copy_(x)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        torch.cuda.synchronize()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1000

    (found,) = on_ranks(worker, data=data)
    # h200x8: 96 % of 4.45 TB/s, then of 8 TB/s, 1.3 us a launch, and 12 us of the host before.
    moved = 2 * 4 * (1 << 20) / 0.96 / 1e6
    kernels = moved / 4.45 + 3 * moved / 8 + 4 * 1.3
    assert found == pytest.approx(12 + kernels, abs=0.0001)


def test_graphed_callables_have_the_gradients_of_the_module() -> None:
    def worker(rank: int) -> None:
        module, _ = _training(OPTIMIZERS["sgd"])
        other, _ = _training(OPTIMIZERS["sgd"])
        sample = torch.zeros(4, 8, device="cuda", requires_grad=True)
        graphed = torch.cuda.make_graphed_callables(other, (sample,))
        for seed in range(3):
            x = torch.randn(4, 8, device="cuda", requires_grad=True)
            z = x.detach().clone().requires_grad_()
            for model, given in ((module, x), (graphed, z)):
                torch.cuda.manual_seed(seed)
                model.zero_grad()
                (model(given) * 3).sum().backward()
            assert torch.equal(x.grad, z.grad)
            for ours, theirs in zip(graphed.parameters(), module.parameters(), strict=True):
                assert torch.equal(ours.grad, theirs.grad)

    on_ranks(worker)


def test_collectives_are_joined_at_each_replay() -> None:
    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=2)
        x = torch.full((4,), float(rank + 1), device="cuda")
        all_of_z = torch.empty(8, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
            work = dist.all_reduce(y, async_op=True)
            z = x + 1
            work.wait()
            y += z
            dist.all_gather_single(all_of_z, z)
        for _ in range(2):
            graph.replay()
            assert y.tolist() == [2.0 * 3 + rank + 2] * 4
            assert all_of_z.tolist() == [2.0] * 4 + [3.0] * 4
        x.fill_(1)
        graph.replay()
        assert y.tolist() == [2.0 * 2 + 2] * 4
        dist.destroy_process_group()

    on_ranks(worker, 2)


def test_ddp_trains_from_a_graph_as_without() -> None:
    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=2)
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)).cuda()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.default_stream())
            parallel = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
        torch.cuda.current_stream().wait_stream(side)
        x = torch.zeros(4, 8, device="cuda")

        def step() -> Any:
            parallel.zero_grad(set_to_none=True)
            loss = parallel(x).pow(2).mean()
            loss.backward()
            return loss

        torch.manual_seed(rank)
        data = [torch.randn(4, 8, device="cuda") for _ in range(13)]
        expected = []
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for given in data:  # DDP needs 11 passes before a capture
                x.copy_(given)
                step()
                expected.append([one.grad.tolist() for one in model.parameters()])
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for given, grads in zip(data[-2:], expected[-2:], strict=True):
            x.copy_(given)
            graph.replay()
            assert [one.grad.tolist() for one in model.parameters()] == grads
        dist.destroy_process_group()

    on_ranks(worker, 2)


def test_a_rank_that_does_not_replay_is_explained() -> None:
    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=2)
        x = torch.ones(4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            dist.all_reduce(x)
        if rank == 0:
            graph.replay()  # by one rank
        dist.destroy_process_group()

    with pytest.raises(SpawnException) as raised:
        on_ranks(worker, 2)
    text = str(raised.value)
    assert "all_reduce #1 of group WORLD: rank 0 waits for rank 1" in text
    assert "of a CUDA graph (captured at " in text
    assert "graph.replay()  # by one rank" in text
    assert "every rank of the group must replay its graph as often" in text


def _item(x: Any) -> object:
    return x.sum().item()


def _copied_back(x: Any) -> object:
    return x.cpu()


def _synchronized(x: Any) -> None:
    torch.cuda.synchronize()


def _uploaded(x: Any) -> object:
    return x.copy_(torch.ones(4))


def _asked(x: Any) -> object:
    return torch.cuda.current_stream().query()


def _sized_by_values(x: Any) -> object:
    return x[x > 0]


def _drawn(x: Any) -> object:
    return torch.randn(3, device="cuda", generator=torch.Generator("cuda"))


def _seeded(x: Any) -> None:
    torch.cuda.manual_seed(17)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (_item, "waits for the stream: operation not permitted when stream is capturing"),
        (_copied_back, "waits for the stream: operation not permitted when stream is capturing"),
        (_synchronized, "waits for the device: operation not permitted when stream is capturing"),
        (_uploaded, "waits for the stream: operation not permitted when stream is capturing"),
        (_asked, "asks whether the device is done: operation not permitted"),
        (_sized_by_values, "operation not permitted when stream is capturing"),
        (_drawn, "Attempt to increase offset for a CUDA generator not in capture mode"),
        (_seeded, "seeds a generator anew: operation not permitted"),
    ],
)
def test_what_cuda_does_not_permit_is_pytorchs_error(
    call: Callable[[Any], object], said: str
) -> None:
    def worker(rank: int) -> None:
        x = torch.zeros(4, device="cuda")
        graph = torch.cuda.CUDAGraph()

        def capture() -> None:
            with torch.cuda.graph(graph):
                x.add_(1)
                call(x)

        with pytest.raises(torch.AcceleratorError) as raised:
            capture()
        assert isinstance(raised.value, CaptureError)
        text = str(raised.value)
        assert said in text
        assert "test_bridge_graphs.py" in text
        assert "hint: " in text
        assert (x + 1).tolist() == [1.0] * 4  # nothing has run, and the stream goes on
        assert not torch.cuda.is_current_stream_capturing()

    on_ranks(worker)


def test_an_optimizer_that_keeps_steps_on_the_host_is_refused_by_pytorch() -> None:
    def worker(rank: int) -> None:
        _, step = _training(lambda given: torch.optim.Adam(given, lr=0.1))
        step(torch.zeros(4, 8, device="cuda"))
        refused = pytest.raises(RuntimeError, match="Attempting CUDA graph capture of step")
        with refused, torch.cuda.graph(torch.cuda.CUDAGraph()):
            step(torch.zeros(4, 8, device="cuda"))

    on_ranks(worker)


def test_results_are_unwritten_before_the_first_replay() -> None:
    def worker(rank: int) -> None:
        x, graph = torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + 1
        with pytest.raises(UninitialisedReadError, match=r"torch\.cuda\.graph"):
            y.tolist()
        graph.replay()
        assert y.tolist() == [1.0] * 4

    on_ranks(worker)


def test_a_graph_reads_memory_of_another_but_none_that_is_gone() -> None:
    def worker(rank: int) -> None:
        x = torch.zeros(4, device="cuda")
        first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(first):
            y = x + 1
        with torch.cuda.graph(second):
            z = y + 1
        del y  # the graph keeps its memory
        first.replay()
        second.replay()
        assert z.tolist() == [2.0] * 4
        del x
        with pytest.raises(CaptureError, match="uses a tensor of 16 B, which is gone"):
            first.replay()

    on_ranks(worker)


def test_a_replay_that_nothing_orders_behind_its_input_is_a_race() -> None:
    def worker(rank: int) -> None:
        x, side = torch.zeros(4, device="cuda"), torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x + 1
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.default_stream())
            x.fill_(2)
        graph.replay()

    with pytest.raises(SpawnException, match=r"\[M10\] rank 0 read a tensor before aten::fill_"):
        on_ranks(worker)


def test_numbers_that_are_known_without_any_are_forgotten_where_a_graph_writes() -> None:
    def worker(rank: int) -> None:
        counter, graph = torch.zeros(1, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            counter.add_(1)
        counter.fill_(5)
        assert counter.item() == 5
        graph.replay()
        assert counter.item() == 0  # made up

    with machine(data=False, fake=True):
        torch.multiprocessing.spawn(worker, nprocs=1)
