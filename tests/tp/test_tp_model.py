"""A whole model in shards and replicas is the dense one: numbers, gradients, and training."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from tp_model import DIMS, B, Found, Model, S, copied, dense, place, tokens

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.testing import Kernbench
from kernbench.torch.nn.parallel import DistributedDataParallel
from kernbench.tp import parallel_state
from kernbench.tp.gradients import clip_grad_norm_, finalize_model_grads

TOLERANCES = {
    torch.float64: (1e-12, 1e-12),
    torch.float32: (1e-5, 1e-6),
    torch.float16: (5e-3, 5e-3),
    torch.bfloat16: (2.5e-2, 2.5e-2),
}
REPLICAS = 2


def spawn(
    kernbench: Kernbench, size: int, work: Callable[[], object], replicas: int = REPLICAS
) -> None:
    """Calls a worker on each rank of a layout of `size` shards."""

    def run(rank: int) -> None:
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=size)
        assert parallel_state.get_data_parallel_world_size() == replicas
        work()
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()

    kernbench.spawn(run, nprocs=size * replicas, topology="torus4x4")


def given(replica: int, step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    ids, target = (torch.tensor(each.copy(), device="cuda") for each in tokens(replica, step))
    return ids, target


def one_step(kernbench: Kernbench, size: int, dtype: Any, sequence_parallel: bool) -> Found:
    """Returns weights, losses and averaged gradients of all ranks."""
    found = Found()

    def work() -> None:
        model, here = Model(dtype, sequence_parallel), place()
        ddp = DistributedDataParallel(model, process_group=parallel_state.get_data_parallel_group())
        losses = ddp(*given(here[0]))
        losses.sum().backward()
        finalize_model_grads(model)
        found.losses[here] = copied(losses)
        named = dict(model.named_parameters())
        assert {*named} == {*DIMS}
        found.weights[here] = {name: copied(value) for name, value in named.items()}
        found.grads[here] = {name: copied(value.grad) for name, value in named.items()}

    spawn(kernbench, size, work)
    return found


@cache
def _one_rank(dtype: Any) -> dict[str, Any]:
    """Returns the weights of a model on one rank, from the seed of all."""
    harness, weights = Kernbench(), {}

    def work() -> None:
        weights.update({n: copied(p) for n, p in Model(dtype, False).named_parameters()})

    spawn(harness, 1, work, replicas=1)
    harness.check_nothing_left()
    return weights


def assert_near(found: Any, expected: Any, dtype: Any) -> None:
    """Compares with what tensor parallelism promises, of the largest value."""
    rtol, atol = TOLERANCES[dtype]
    largest = np.abs(expected).max()
    np.testing.assert_allclose(
        found.astype(np.float64), expected, rtol=rtol, atol=atol * largest, strict=True
    )


@pytest.mark.parametrize("dtype", [*TOLERANCES])
@pytest.mark.parametrize(
    ("size", "sequence_parallel"),
    [(1, False), (2, False), (4, False), (8, False), (2, True), (4, True), (8, True)],
)
def test_shards_and_replicas_are_the_dense_model(
    kernbench: Kernbench, size: int, sequence_parallel: bool, dtype: Any
) -> None:
    found = one_step(kernbench, size, dtype, sequence_parallel)
    weights = _one_rank(dtype)
    runs = [dense(weights, *tokens(replica)) for replica in range(REPLICAS)]
    for replica, (losses, _) in enumerate(runs):
        mine = [found.losses[replica, shard] for shard in range(size)]
        assert_near(mine[0], losses, dtype)
        assert len({each.tobytes() for each in mine}) == 1
    for name in DIMS:
        expected = sum(grads[name] for _, grads in runs) / REPLICAS
        wholes = [found.whole(found.grads, name, replica) for replica in range(REPLICAS)]
        assert_near(wholes[0], expected, dtype)
        assert wholes[0].tobytes() == wholes[1].tobytes()
        for replica in range(REPLICAS):
            whole = found.whole(found.weights, name, replica)
            assert whole.tobytes() == weights[name].tobytes()


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_gradients_are_finite_differences(kernbench: Kernbench, sequence_parallel: bool) -> None:
    """Along a random direction of each parameter, moved on all ranks at once."""
    step = 1e-5

    def work() -> None:
        model = Model(torch.float64, sequence_parallel)
        ddp = DistributedDataParallel(model, process_group=parallel_state.get_data_parallel_group())
        replica, shard = place()

        def total() -> Any:
            with torch.no_grad():
                losses = model(*given(replica)).sum()
                dist.all_reduce(losses, group=parallel_state.get_data_parallel_group())
                return losses.item() / REPLICAS

        ddp(*given(replica)).sum().backward()
        finalize_model_grads(model)
        for at, (name, parameter) in enumerate(model.named_parameters()):
            dim, grad = DIMS[name], parameter.grad
            seed = [at] if dim is None else [at, shard]
            way = torch.tensor(
                np.random.default_rng(seed).normal(size=tuple(parameter.shape)), device="cuda"
            )
            assert grad is not None
            slope = (grad * way).sum()
            if dim is not None:
                dist.all_reduce(slope, group=parallel_state.get_tensor_model_parallel_group())
            sides = []
            for sign in (1, -1):
                before = parameter.detach().clone()
                with torch.no_grad():
                    parameter.add_(way, alpha=sign * step)
                    sides.append(total())
                    parameter.copy_(before)
            numeric = (sides[0] - sides[1]) / (2 * step)
            np.testing.assert_allclose(slope.item(), numeric, rtol=1e-7, atol=1e-7, err_msg=name)

    spawn(kernbench, 4, work)


# Training

STEPS, LIMIT = 50, 1.0
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.05, "momentum": 0.9},
    "AdamW": {"lr": 0.01, "weight_decay": 0.1},
}


def _dense_losses(weights: dict[str, Any], optimizer: str) -> list[float]:
    """Returns the mean losses of training in numpy, on the batches of all replicas."""
    options = OPTIMIZERS[optimizer]
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    mean = {name: np.zeros_like(value) for name, value in w.items()}
    square = {name: np.zeros_like(value) for name, value in w.items()}
    found = []
    for step in range(STEPS):
        runs = [dense(w, *tokens(replica, step)) for replica in range(REPLICAS)]
        found.append(float(np.mean([losses for losses, _ in runs])))
        grads = {n: np.mean([grads[n] for _, grads in runs], axis=0) / (S * B) for n in w}
        norm = np.sqrt(sum((grad**2).sum() for grad in grads.values()))
        factor = min(1.0, LIMIT / (norm + 1e-6))
        for name, grad in grads.items():
            g = grad * factor
            if optimizer == "SGD":
                mean[name] = options["momentum"] * mean[name] + g
                w[name] = w[name] - options["lr"] * mean[name]
                continue
            mean[name] = 0.9 * mean[name] + 0.1 * g
            square[name] = 0.999 * square[name] + 0.001 * g * g
            first = mean[name] / (1 - 0.9 ** (step + 1))
            second = square[name] / (1 - 0.999 ** (step + 1))
            w[name] = w[name] * (1 - options["lr"] * options["weight_decay"])
            w[name] = w[name] - options["lr"] * first / (np.sqrt(second) + 1e-8)
    return found


@pytest.mark.parametrize(
    ("optimizer", "sequence_parallel"),
    [("SGD", False), pytest.param("AdamW", True, marks=pytest.mark.slow)],
)
def test_training_follows_the_dense_model(
    kernbench: Kernbench, optimizer: str, sequence_parallel: bool
) -> None:
    losses: dict[tuple[int, int], list[float]] = {}

    def work() -> None:
        model, here = Model(torch.float32, sequence_parallel), place()
        ddp = DistributedDataParallel(
            model, process_group=parallel_state.get_data_parallel_group(), bucket_cap_mb=1e-3
        )
        make: Any = getattr(torch.optim, optimizer)
        steps = make(ddp.parameters(), **OPTIMIZERS[optimizer])
        kept = []
        for step in range(STEPS):
            steps.zero_grad()
            loss = ddp(*given(here[0], step)).mean()
            loss.backward()
            finalize_model_grads(model)
            clip_grad_norm_(model.parameters(), LIMIT)
            steps.step()
            kept.append(loss.detach())
        losses[here] = [each.item() for each in kept]

    spawn(kernbench, 4, work)
    for (replica, _), found in losses.items():
        assert found == losses[replica, 0]
    means = [np.mean([losses[r, 0][step] for r in range(REPLICAS)]) for step in range(STEPS)]
    np.testing.assert_allclose(means, _dense_losses(_one_rank(torch.float32), optimizer), rtol=1e-5)
    assert means[-1] < 0.5 * means[0]
