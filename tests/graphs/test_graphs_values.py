"""What replays of CUDA graphs compute, of the own torch."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.graphs.capture import CaptureError
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.testing import Kernbench

F = torch.nn.functional
Step = Callable[[Any, Any], Any]


@pytest.fixture(autouse=True)
def _on_the_device(kernbench: Kernbench) -> None:
    kernbench.context()
    torch.set_default_device("cuda")


def _model() -> Any:
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(16, 1)
    return torch.nn.Sequential(*layers).to("cuda")


def _training() -> Step:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def test_training_steps_from_a_graph_are_those_without(kernbench: Kernbench) -> None:
    data = [(torch.randn(4, 8), torch.randn(4, 1)) for _ in range(6)]
    step, expected = _training(), []
    torch.manual_seed(1)
    for x, y in data:
        expected.append(step(x, y).item())
    step, found = _training(), []
    torch.manual_seed(1)
    x, y = torch.zeros(4, 8), torch.zeros(4, 1)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for given in data[:2]:  # the momentum exists afterwards
            x.copy_(given[0])
            y.copy_(given[1])
            found.append(step(x, y).item())
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(x, y)
    for given in data[2:]:
        x.copy_(given[0])
        y.copy_(given[1])
        graph.replay()
        found.append(loss.item())
    assert found == expected


def test_random_numbers_go_on_as_without_a_graph(kernbench: Kernbench) -> None:
    def draw() -> list[Any]:
        return [torch.randn(3), torch.bernoulli(torch.full((8,), 0.5)), torch.rand(2)]

    torch.manual_seed(1)
    expected = [[one.tolist() for one in draw()] for _ in range(3)]
    graph = torch.cuda.CUDAGraph()
    torch.manual_seed(1)
    with torch.cuda.graph(graph):
        made = draw()
    found = []
    for replays in (True, False, True):
        if replays:
            graph.replay()
        found.append([one.tolist() for one in (made if replays else draw())])
    assert found == expected


def test_graphed_callables_have_the_gradients_of_the_module(kernbench: Kernbench) -> None:
    module, graphed = _model().eval(), _model().eval()
    graphed = torch.cuda.make_graphed_callables(graphed, (torch.zeros(4, 8, requires_grad=True),))
    for seed in range(2):
        torch.manual_seed(seed)
        x: Any = torch.randn(4, 8).requires_grad_()
        z: Any = x.detach().clone().requires_grad_()
        module.zero_grad()
        graphed.zero_grad()
        (module(x) * 3).sum().backward()
        (graphed(z) * 3).sum().backward()
        assert z.grad.tolist() == x.grad.tolist()
        for ours, theirs in zip(graphed.parameters(), module.parameters(), strict=True):
            assert ours.grad.tolist() == theirs.grad.tolist()
    graphed.train()  # it was captured in evaluation
    assert graphed(torch.ones(2, 8)).shape == (2, 1)
    torch.cuda.synchronize()


def test_a_function_of_several_results_is_graphed(kernbench: Kernbench) -> None:
    samples = torch.zeros(3), torch.zeros(3)
    both = torch.cuda.make_graphed_callables(lambda a, b: (a * b, a + b), samples)
    product, total = both(torch.full((3,), 2.0), torch.full((3,), 5.0))
    assert (product.tolist(), total.tolist()) == ([10.0] * 3, [7.0] * 3)


def test_collectives_are_joined_at_each_replay(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.full((4,), float(rank + 1))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
            work = dist.all_reduce(y, async_op=True)
            z = x + 1
            work.wait()
            y += z
        for _ in range(2):
            graph.replay()
            assert y.tolist() == [2.0 * 3 + rank + 2] * 4
        x.fill_(1)
        graph.replay()
        assert y.tolist() == [2.0 * 2 + 2] * 4

    kernbench.spawn(worker, nprocs=2)


def test_a_rank_that_does_not_replay_is_explained(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(4)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            dist.all_reduce(x)
        if rank == 0:
            graph.replay()  # by one rank
            torch.cuda.synchronize()

    with pytest.raises(SpawnException, match="CollectiveMismatchError") as raised:
        kernbench.spawn(worker, nprocs=2)
    text = str(raised.value)
    assert "all_reduce #1 of group WORLD: rank 0 waits for rank 1" in text
    place = re.search(r"of a CUDA graph \(captured at .*test_graphs_values.py:(\d+):13\)", text)
    assert place is not None
    assert "dist.all_reduce(x)" in Path(__file__).read_text().splitlines()[int(place[1]) - 1]
    assert "graph.replay()  # by one rank" in text
    assert "every rank of the group must replay its graph as often" in text


def test_memory_of_a_capture_is_kept_until_the_graph_is_gone(kernbench: Kernbench) -> None:
    x = torch.zeros(1 << 18)  # 1 MiB
    before = torch.cuda.memory_allocated()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ((x + 1) + 2) + 3  # at most two results at one time, of which one stays
    assert torch.cuda.memory_allocated() - before == 1 << 20
    assert torch.cuda.memory_reserved() - before == 2 << 20
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, pool=graph.pool()):
        z = ((x + 1) + 2) + 3  # the second takes what the first has left, and 1 MiB more
    assert torch.cuda.memory_reserved() - before == 3 << 20
    free, total = torch.cuda.mem_get_info()
    assert total - free == torch.cuda.memory_reserved()
    del graph, second, y, z
    assert torch.cuda.memory_reserved() == before


def _item(x: Any) -> object:
    return x.sum().item()


def _copied_back(x: Any) -> object:
    return x.cpu()


def _synchronized(x: Any) -> None:
    torch.cuda.synchronize()


def _uploaded(x: Any) -> object:
    return x.copy_(torch.ones(4, device="cpu"))


def _asked(x: Any) -> object:
    return torch.cuda.current_stream().query()


def _branched(x: Any) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        x + 1


def _left(x: Any) -> None:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x + 1


def _nested(x: Any) -> None:
    torch.cuda.CUDAGraph().capture_begin()


def _drawn(x: Any) -> object:
    return torch.randn(3, generator=torch.Generator("cuda"))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (_item, "waits for the stream: operation not permitted when stream is capturing"),
        (_copied_back, "waits for the stream: operation not permitted when stream is capturing"),
        (_synchronized, "waits for the device: operation not permitted when stream is capturing"),
        (_uploaded, "operation not permitted when stream is capturing"),
        (_asked, "asks whether the device is done: operation not permitted"),
        (_branched, "does not follow the stream that captures"),
        (_left, "nobody waits for aten::add"),
        (_nested, "capture_begin() inside of a capture"),
        (_drawn, "Attempt to increase offset for a CUDA generator not in capture mode"),
    ],
)
def test_what_cuda_does_not_permit_names_the_line_and_the_way_out(
    kernbench: Kernbench, call: Callable[[Any], object], said: str
) -> None:
    x = torch.zeros(4)
    graph = torch.cuda.CUDAGraph()

    def capture() -> None:
        with torch.cuda.graph(graph):
            x + 1
            call(x)

    with pytest.raises(CaptureError) as raised:
        capture()
    assert said in str(raised.value)
    assert "test_graphs_values.py" in str(raised.value)
    assert "hint: " in str(raised.value)
    assert isinstance(raised.value, RuntimeError)
    with pytest.raises(CaptureError, match="without a preceding successful capture"):
        graph.replay()
    assert (x + 1).tolist() == [1.0] * 4  # the stream goes on as before
    assert not torch.cuda.is_current_stream_capturing()


def test_a_wait_for_what_is_no_part_of_the_graph_is_refused(kernbench: Kernbench) -> None:
    x, side, event = torch.zeros(4), torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
    event.record(side)

    def capture() -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.cuda.current_stream().wait_event(event)
            x + 1

    with pytest.raises(CaptureError, match="cudaErrorStreamCaptureIsolation"):
        capture()
    other = torch.cuda.CUDAGraph()
    with torch.cuda.graph(other):
        x.add_(1)
        event.record()
    for ask in (event.query, event.synchronize, lambda: event.elapsed_time(event)):
        with pytest.raises(CaptureError, match="a moment that no replay tells"):
            ask()


def test_a_static_input_that_is_gone_is_named(kernbench: Kernbench) -> None:
    x = torch.zeros(4)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
    del x
    with pytest.raises(CaptureError, match=r"uses tensor \[4\] torch.float32, which is gone"):
        graph.replay()
    del y


def test_the_life_of_a_graph(kernbench: Kernbench) -> None:
    x, graph = torch.zeros(4), torch.cuda.CUDAGraph()
    with pytest.raises(CaptureError, match="non-default stream"):
        graph.capture_begin()
    with pytest.raises(CaptureError, match="Unknown capture error mode"):
        torch.cuda.graph(graph, capture_error_mode="never").__enter__()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        assert torch.cuda.is_current_stream_capturing()
        x.add_(1)
    with pytest.raises(CaptureError, match="already owns a captured graph"):
        torch.cuda.graph(graph).__enter__()
    graph.replay()
    graph.reset()
    with torch.cuda.graph(graph):
        x.add_(10)
    graph.replay()
    assert x.tolist() == [11.0] * 4
    empty = torch.cuda.graph(torch.cuda.CUDAGraph())
    with pytest.warns(UserWarning, match="The CUDA Graph is empty"), empty:
        pass
