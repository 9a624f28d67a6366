"""Kernels of Triton inside of CUDA graphs."""

from collections.abc import Callable
from typing import Any

import pytest
from bridge_devices import milliseconds, on_ranks

from kernbench.errors import UnsupportedError
from kernbench.memory import UninitialisedReadError
from kernbench.ranks.spawn_errors import SpawnException

torch: Any = pytest.importorskip("torch")
pytest.importorskip("triton.language")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
import launched_kernels as kernels  # noqa: E402 - after the check that Triton is there

dist: Any = torch.distributed
N = 100


def _add(x: Any, y: Any) -> Any:
    """Returns 2 x^2 + y."""
    out = torch.empty_like(x)
    kernels.add[(4,)](x, y, out, N, BLOCK=32)
    return out


def _captured(work: Callable[[], Any]) -> tuple[Any, Any]:
    """Returns a graph, and what the capture has made."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = work()
    return graph, found


def test_a_replay_computes_from_what_is_there_then() -> None:
    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=3)
        x, y, seen = (torch.zeros(N, device="cuda") for _ in range(3))

        def work() -> Any:
            made = _add(x, y) + 1  # of which nothing is left when the graph is replayed
            dist.all_reduce(made)
            kernels.adds_one[(4,)](made, N, BLOCK=32)
            kernels.adds_one[(4,)](seen, N, BLOCK=32)
            return _add(made, made) * 1

        graph, out = _captured(work)
        assert not seen.any()  # nothing runs at the capture
        for turn in range(3):
            x.fill_(turn + rank)
            y.fill_(rank)
            graph.replay()
            made = sum(2 * (turn + each) ** 2 + each + 1 for each in range(3)) + 1
            assert set(out.tolist()) == {2.0 * made**2 + made}
            assert set(seen.tolist()) == {turn + 1.0}

    on_ranks(worker, 3)


@pytest.mark.parametrize("kind", ["custom_op", "triton_op", "function"])
def test_operations_of_libraries_are_captured_by_their_kernels(kind: str) -> None:
    with torch.library._scoped_library("graphed", "FRAGMENT"):
        if kind == "function":
            operation = _add
        else:
            define = getattr(torch.library, kind)

            def inside(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                return _add(x * 1, y) + 1 - 1

            operation = define(f"graphed::{kind}", inside, mutates_args=())

        def worker(rank: int) -> tuple[list[float], list[float]]:
            x, y = torch.zeros(N, device="cuda"), torch.ones(N, device="cuda")
            graph, out = _captured(lambda: operation(operation(x, y), y))
            found, expected = [], []
            for turn in range(3):
                x.fill_(turn)
                graph.replay()
                found.append(out[N - 1].item())
                expected.append(2.0 * (2 * turn**2 + 1) ** 2 + 1)
            return found, expected

        ((found, expected),) = on_ranks(worker)
    assert found == expected


class _Added(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.save_for_backward(x)
        return _add(x, y)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        zero = torch.zeros_like(x)
        # 2 x^2 + 0 at x and at x + 1: their difference is 4 x + 2
        return (_add(x + 1, zero) - _add(x, zero) - 2) * grad, grad


class _Module(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.y = torch.nn.Parameter(torch.ones(N))

    def forward(self, x: Any) -> Any:
        return _Added.apply(x, self.y)


def test_a_graphed_module_has_the_gradients_of_its_kernels() -> None:
    def worker(rank: int) -> None:
        plain, graphed = _Module().cuda(), _Module().cuda()
        sample = torch.zeros(N, device="cuda", requires_grad=True)
        called = torch.cuda.make_graphed_callables(graphed, (sample,))
        for turn in range(3):
            given = [torch.full((N,), float(turn), device="cuda").requires_grad_() for _ in "ab"]
            weights = torch.arange(N, device="cuda", dtype=torch.float32)
            outs = plain(given[0]), called(given[1])
            assert torch.equal(*outs)
            for out in outs:
                (out * weights).sum().backward()
            assert torch.equal(given[0].grad, given[1].grad)
            assert given[1].grad[1].item() == 4 * turn
            assert torch.equal(plain.y.grad, graphed.y.grad)
            plain.y.grad = graphed.y.grad = None  # a graph has its gradients in one place

    on_ranks(worker)


def test_a_kernel_of_a_graph_takes_as_long_as_outside() -> None:
    def worker(rank: int) -> list[float]:
        x = torch.zeros(1 << 22, device="cuda")
        launch = lambda: kernels.adds_one[(1 << 12,)](x, 1 << 22, BLOCK=1024)  # noqa: E731
        graph, _ = _captured(launch)
        return [milliseconds(launch), milliseconds(graph.replay)]

    ((alone, replayed),) = on_ranks(worker)
    assert 0 <= replayed - alone < 0.002  # the start of the graph


def test_what_a_kernel_of_a_graph_prints_is_shown_at_each_replay(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def worker(rank: int) -> None:
        x = torch.full((2,), 7, device="cuda")
        graph, _ = _captured(lambda: kernels.says[(1,)](x))
        for turn in range(2):
            x.fill_(turn)
            graph.replay()

    on_ranks(worker)
    said = [f"pid (0, 0, 0) idx () value: {turn}\n" for turn in range(2)]
    assert capsys.readouterr().out == "".join(said)


def test_a_replay_reads_memory_by_addresses_that_it_loads() -> None:
    def worker(rank: int) -> list[float]:
        parts = [torch.full((1,), 2.0**n, device="cuda") for n in range(4)]
        addresses = torch.tensor([part.data_ptr() for part in parts], device="cuda")
        out, found = torch.zeros(1, device="cuda"), []
        graph, _ = _captured(lambda: kernels.by_addresses[(1,)](addresses, out, 4))
        for part in parts:
            part.add_(1)
            graph.replay()
            found.append(float(out.item()))
        return found

    assert on_ranks(worker) == [[16, 17, 18, 19]]


def test_memory_that_nothing_has_written_is_found_at_the_replay() -> None:
    def worker(rank: int) -> None:
        x, y = torch.empty(N, device="cuda"), torch.zeros(N, device="cuda")
        graph, out = _captured(lambda: _add(x, y))
        with pytest.raises(UninitialisedReadError, match="M5"):
            out.tolist()  # before the first replay
        graph.replay()

    with pytest.raises(SpawnException) as raised:
        on_ranks(worker)
    told = str(raised.value)
    assert "argument x_ptr" in told
    assert "add was launched at" in told
    assert "kernels.add[(4,)](x, y, out, N, BLOCK=32)" in told


def test_stores_of_which_no_capture_knows_where_are_refused() -> None:
    def worker(rank: int) -> None:
        part = torch.zeros(1, device="cuda")
        addresses = torch.tensor([part.data_ptr()], device="cuda")
        with pytest.raises(UnsupportedError, match="stores at addresses that it loads"):
            _captured(lambda: kernels.at_addresses[(1,)](addresses, 1))

    on_ranks(worker)
