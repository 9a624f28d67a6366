"""Measures steps of a model on one rank: losses, memory; the log says where the time went."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.runtime_api.context import RuntimeContext
from kernbench.tp import parallel_state


@dataclass(frozen=True)
class Memory:
    """HBM of one rank, in bytes.

    Attributes:
        parameters: Of the model.
        gradients: Of its parameters, after a backward pass.
        optimizer: What the optimiser keeps.
        activations: The most that forward passes added to what was there before the step: what is
            kept for backward passes, and what is in use for a moment.
        peak: The most that was in use at once, of everything.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    peak: int


@dataclass(frozen=True)
class Measured:
    """What one rank has measured.

    Attributes:
        losses: Of all steps, those that warm up first; empty while data is off.
        memory: Of the counted steps.
    """

    losses: tuple[float, ...]
    memory: Memory


class Watch:
    """Looks at the memory of the calling rank during one step."""

    def __init__(self) -> None:
        self._before = torch.cuda.memory_allocated()
        self._activations = self._peak = 0
        torch.cuda.reset_peak_memory_stats()

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Is around a forward pass."""
        self._peak = max(self._peak, torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()
        yield
        most = torch.cuda.max_memory_allocated() - self._before
        self._activations = max(self._activations, most)

    def most(self) -> tuple[int, int]:
        """Returns the most bytes that forward passes added, and that were in use at once."""
        return self._activations, max(self._peak, torch.cuda.max_memory_allocated())


class Step(Protocol):
    """One step."""

    def __call__(self, watch: Watch) -> torch.Tensor:
        """Returns the loss without its graph; begins without gradients.

        Args:
            watch: Is told of forward passes.
        """
        ...


@contextmanager
def model_parallel(tp: int = 1, **sizes: Any) -> Iterator[None]:
    """Lays the ranks out; takes the groups away at the end.

    Args:
        tp: Ranks that share a layer, next to each other.
        sizes: What else `initialize_model_parallel` is given.
    """
    dist.init_process_group("nccl")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tp, **sizes)
    try:
        yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def measure(
    name: str,
    step: Step,
    steps: Iterable[int],
    warmup: int,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    whole: Callable[[torch.Tensor], torch.Tensor],
    data: bool,
) -> Measured:
    """Runs steps on the calling rank; the host waits before and after the counted ones only.

    Args:
        name: Of the range around the counted steps, which `report.range_breakdown` looks into.
        steps: Counted ones, one by one.
        warmup: Those before.
        model: Whose parameters are counted.
        optimizer: Whose state is counted, if there is one.
        whole: Makes losses of all ranks from those of this one; called once, at the end.
        data: Whether tensors hold values.
    """
    losses: list[torch.Tensor] = []
    looks: list[tuple[int, int]] = []
    for _ in range(warmup):
        model.zero_grad()
        losses.append(step(Watch()))
    torch.cuda.synchronize()
    dist.barrier()
    with torch.profiler.record_function(name):
        for _ in steps:
            model.zero_grad()
            watch = Watch()
            losses.append(step(watch))
            looks.append(watch.most())
    torch.cuda.synchronize()
    parameters = list(model.parameters())
    gradients = [each.grad for each in parameters if each.grad is not None]
    states = [] if optimizer is None else optimizer.state.values()
    kept = [each for state in states for each in state.values() if isinstance(each, torch.Tensor)]
    activations, peak = (max(each) for each in zip(*looks, strict=True))
    memory = Memory(_nbytes(parameters), _nbytes(gradients), _nbytes(kept), activations, peak)
    found = whole(torch.stack(losses).double())
    return Measured(tuple(found.tolist()) if data else (), memory)


def counted(ctx: RuntimeContext, steps: int) -> Iterable[int]:
    """Returns the steps one by one; a terminal shows how many rank 0 has left."""
    numbers = range(steps)
    return ctx.progress(numbers, "step", alike=True) if dist.get_rank() == 0 else numbers


def _nbytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(each.numel() * each.dtype.itemsize for each in tensors)
