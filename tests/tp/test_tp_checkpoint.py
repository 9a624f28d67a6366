"""Recomputing: the same values, gradients and random numbers, and less memory."""

import warnings
from typing import Any

import pytest
from tp_cases import draw, grad_of, leaf, spawn

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.errors import KernbenchError
from kernbench.parallel import parallel_state as ps
from kernbench.parallel.data_parallel import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
)
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench
from kernbench.tp.config import ModelParallelConfig
from kernbench.tp.random import (
    checkpoint,
    get_cuda_rng_tracker,
    model_parallel_cuda_manual_seed,
)
from kernbench.tp.utils import Group


def noisy(x: torch.Tensor, scale: Any = 1.0) -> torch.Tensor:
    """Draws from the default stream and from that of shards."""
    x = torch.nn.functional.dropout(x, 0.5)
    with get_cuda_rng_tracker().fork():
        out: torch.Tensor = (torch.nn.functional.dropout(x, 0.5) * scale).exp()
        return out


@pytest.mark.parametrize("distribute", [None, True])
@pytest.mark.parametrize(("ranks", "default_device"), [(1, "cuda"), (3, "cuda"), (3, "cpu")])
def test_backward_draws_the_numbers_of_forward(
    kernbench: Kernbench, ranks: int, default_device: str, distribute: bool | None
) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        ps.initialize_model_parallel(ranks)
        found = []
        for again in (False, True):
            model_parallel_cuda_manual_seed(3)
            x = leaf(6, 8, seed=1)
            scale = leaf(1, seed=2)
            torch.rand(rank, device="cuda")  # ranks stand at different places of their streams
            y = checkpoint(noisy, distribute, x, scale) if again else noisy(x, scale)
            middle = torch.rand(3, device="cuda").tolist()
            with get_cuda_rng_tracker().fork():
                middle += torch.rand(3, device="cuda").tolist()
            y.backward(draw(6, 8, seed=3))
            after = torch.rand(3, device="cuda").tolist()
            with get_cuda_rng_tracker().fork():
                after += torch.rand(3, device="cuda").tolist()
            found.append((y.tolist(), grad_of(x).tolist(), grad_of(scale).tolist(), middle, after))
        assert found[0] == found[1]
        ps.destroy_model_parallel()

    kernbench.spawn(worker, nprocs=ranks, default_device=default_device)


@pytest.mark.parametrize(("distribute", "copies"), [(False, 1.0), (True, 0.25)])
def test_what_is_kept(kernbench: Kernbench, distribute: bool, copies: float) -> None:
    """The input; or with activations in parts, the calling rank's part of it."""

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        ps.initialize_model_parallel(4)
        source = leaf(4096, seed=1)
        before = torch.cuda.memory_allocated()
        x = source * 2
        size = x.numel() * 4
        y = checkpoint(lambda t: (t.exp().sin() + t.sin()).sum(), distribute, x)
        del x
        assert torch.cuda.memory_allocated() - before == pytest.approx(copies * size, abs=1024)
        y.backward()
        expected = source.detach().cpu().double() * 2
        grad = 2 * (expected.exp() * expected.exp().cos() + expected.cos())
        torch.testing.assert_close(grad_of(source).cpu().double(), grad, rtol=1e-3, atol=1e-2)
        ps.destroy_model_parallel()

    kernbench.spawn(worker, nprocs=4)


def test_several_outputs_and_arguments_that_are_no_tensors(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        def run(x: torch.Tensor, factor: float, y: torch.Tensor | None) -> Any:
            assert y is None
            return x * factor, x.detach(), "text"

        x = leaf(3, seed=1)
        double, plain, text = checkpoint(run, False, x, 2.0, None)
        assert text == "text"
        assert plain.tolist() == x.tolist()
        double.sum().backward()
        assert grad_of(x).tolist() == [2.0, 2.0, 2.0]

    spawn(kernbench, 1, worker)


def test_gradients_of_parameters_and_collectives_of_layers(kernbench: Kernbench) -> None:
    from kernbench.torch.distributed.comm_debug import CommDebugMode
    from kernbench.torch.nn.init import normal_
    from kernbench.tp.layers import ColumnParallelLinear, RowParallelLinear

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        ps.initialize_model_parallel(2)
        config = ModelParallelConfig()
        up: Any = ColumnParallelLinear(4, 8, config=config, init_method=normal_)
        down: Any = RowParallelLinear(
            8,
            4,
            config=config,
            init_method=normal_,
            bias=True,
            input_is_parallel=True,
            skip_bias_add=False,
        )

        def block(x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = down(up(x)[0].relu())[0]
            return out

        found = []
        for again in (False, True):
            for param in (*up.parameters(), *down.parameters()):
                param.grad = None
            x = leaf(3, 1, 4, seed=1)
            with CommDebugMode() as mode:
                y = checkpoint(block, False, x) if again else block(x)
                y.pow(2).sum().backward()
            params = (*up.parameters(), *down.parameters())
            grads = [grad_of(each).tolist() for each in (x, *params)]
            found.append((y.tolist(), grads, mode.get_comm_counts()))
        assert found[0][:2] == found[1][:2]
        # Forward sums once, and so does backward; the second forward sums again.
        assert [each[2] for each in found] == [{"all_reduce": 2}, {"all_reduce": 3}]
        ps.destroy_model_parallel()

    kernbench.spawn(worker, nprocs=2)


@pytest.mark.parametrize("wrapper", ["torch", "megatron"])
def test_under_data_parallelism(kernbench: Kernbench, wrapper: str) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        ps.initialize_model_parallel()
        found = []
        for again in (False, True):
            torch.manual_seed(1)
            inner = torch.nn.Linear(3, 3).cuda()
            outer = torch.nn.Linear(3, 3).cuda()

            class Model(torch.nn.Module):
                def __init__(self, first: Any, second: Any, again: bool) -> None:
                    super().__init__()
                    self.first, self.second, self.again = first, second, again

                def forward(self, x: torch.Tensor) -> Any:
                    x = self.second(x)
                    return checkpoint(self.first, False, x) if self.again else self.first(x)

            model: Any = Model(inner, outer, again)
            if wrapper == "torch":
                wrapped: Any = torch.nn.parallel.DistributedDataParallel(model)
            else:
                wrapped = DistributedDataParallel(
                    ModelParallelConfig(), DistributedDataParallelConfig(), model
                )
            wrapped(draw(2, 3, seed=rank)).pow(2).sum().backward()
            if wrapper == "megatron":
                wrapped.finish_grad_sync()
            name = "main_grad" if wrapper == "megatron" else "grad"
            found.append([getattr(param, name).tolist() for param in model.parameters()])
        assert found[0] == found[1]
        ps.destroy_model_parallel()

    kernbench.spawn(worker, nprocs=3)


def test_an_input_without_gradient_is_told(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
            y = checkpoint(torch.exp, False, draw(3, seed=1))
        assert not y.requires_grad
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("error")
            checkpoint(torch.exp, None, draw(3, seed=1))

    spawn(kernbench, 1, worker)


def test_gradients_of_chosen_tensors_are_refused(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        x = leaf(3, seed=1)
        other = leaf(3, seed=2)
        y = checkpoint(torch.exp, False, x).sum()
        for run in (
            lambda: torch.autograd.grad(y, [x], retain_graph=True),
            lambda: y.backward(inputs=[x], retain_graph=True),
        ):
            with pytest.raises(RuntimeError, match=r"not compatible with \.grad\(\)") as caught:
                run()
            assert isinstance(caught.value, KernbenchError)
        y.backward()
        assert grad_of(x).tolist() == x.exp().tolist()
        assert other.grad is None

    spawn(kernbench, 1, worker)


def test_one_inside_of_another(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        model_parallel_cuda_manual_seed(3, tp_rank=rank, ep_rank=0, etp_rank=0)
        state, states = torch.get_rng_state(), get_cuda_rng_tracker().get_states()
        found = []
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for again in (False, True):
                torch.set_rng_state(state)
                get_cuda_rng_tracker().set_states(states)

                def inner(x: torch.Tensor) -> torch.Tensor:
                    return noisy(noisy(x) * 0.1)

                def outer(x: torch.Tensor, again: bool) -> torch.Tensor:
                    y: torch.Tensor = checkpoint(inner, False, x) if again else inner(x)
                    return noisy(y * 0.1)

                x = leaf(5, seed=1)
                y = checkpoint(outer, False, x, True) if again else outer(x, False)
                y.sum().backward()
                found.append((y.tolist(), grad_of(x).tolist()))
        assert found[0] == found[1]

    kernbench.spawn(worker, nprocs=2)


def test_functions_that_give_backward_nothing_are_refused(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        x = leaf(3, seed=1)
        y = checkpoint(lambda t: t.detach() * 2, False, x)
        with pytest.raises(RuntimeError, match=r"this checkpoint\(\) is not necessary"):
            y.sum().backward()
        calls: list[int] = []

        def shrinking(t: torch.Tensor) -> Any:
            calls.append(1)
            return (t * 2, t * 3) if len(calls) == 1 else t * 2

        first, _ = checkpoint(shrinking, False, x)
        with pytest.raises(RuntimeError, match="returned 2 values the first time and 1 the second"):
            first.sum().backward()

    spawn(kernbench, 1, worker)


@pytest.mark.parametrize("distribute", [False, True])
def test_a_function_that_writes_its_argument_is_refused(
    kernbench: Kernbench, distribute: bool
) -> None:
    """The second call would begin with what the first one left."""

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        ps.initialize_model_parallel(2)
        x = leaf(4, seed=1) * 1

        def run(t: torch.Tensor) -> torch.Tensor:
            return t.mul_(2).exp()

        with pytest.raises(RuntimeError, match="writes its argument 0 in place") as caught:
            checkpoint(run, distribute, x)
        assert isinstance(caught.value, KernbenchError)
        with torch.no_grad():
            checkpoint(run, distribute, x)
        ps.destroy_model_parallel()

    kernbench.spawn(worker, nprocs=2)


def test_parts_that_do_not_divide_are_refused_at_once(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        ps.initialize_model_parallel(3)
        with pytest.raises(AssertionError, match="8 is not divisible by 3"):
            checkpoint(torch.exp, True, leaf(8, seed=1))
        with pytest.raises(AssertionError, match="the first argument is no tensor"):
            checkpoint(lambda x: x, True, 3)
        ps.destroy_model_parallel()

    kernbench.spawn(worker, nprocs=3)


def test_an_error_of_the_function_comes_out(kernbench: Kernbench) -> None:
    def worker(group: Group) -> None:
        calls = []

        def run(x: torch.Tensor) -> torch.Tensor:
            calls.append(x)
            if len(calls) == 2:
                raise ValueError("the second time")
            return x.exp()

        x = leaf(3, seed=1)
        torch.manual_seed(1)
        y = checkpoint(run, False, x)
        before = torch.rand(2).tolist()
        try:
            y.sum().backward()
        finally:
            expected = torch.rand(4, generator=torch.Generator().manual_seed(1)).tolist()
            assert before + torch.rand(2).tolist() == expected

    with pytest.raises(SpawnException, match="the second time"):
        spawn(kernbench, 1, worker)
