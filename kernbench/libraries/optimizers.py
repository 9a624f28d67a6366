"""PyTorch's optimisers: what steps and `zero_grad` take of the host beside what they issue."""

from collections.abc import Callable, Iterator
from functools import wraps
from types import ModuleType
from typing import Any

from kernbench.isolation.replaced import Patch, WhenImported
from kernbench.libraries.here import Here


def patches(here: Here) -> Iterator[WhenImported]:
    """Returns what is replaced.

    Args:
        here: Asked at each call of what stands in place of PyTorch's.
    """

    def of_optimizer(module: ModuleType) -> Iterator[Patch]:
        optimizer = module.Optimizer
        yield Patch(optimizer, "zero_grad", _zeroing(here, optimizer.zero_grad, _in_groups))
        # Every step calls it, whatever class it is of.
        yield Patch(optimizer, "_optimizer_step_code", _stepping(here))

    def of_module(module: ModuleType) -> Iterator[Patch]:
        real = module.Module.zero_grad
        yield Patch(module.Module, "zero_grad", _zeroing(here, real, module.Module.parameters))

    yield WhenImported("torch.optim.optimizer", of_optimizer)
    yield WhenImported("torch.nn.modules.module", of_module)


def _in_groups(optimizer: Any) -> Iterator[Any]:
    return (each for group in optimizer.param_groups for each in group["params"])


def _zeroing(
    here: Here, real: Callable[..., None], parameters: Callable[[Any], Iterator[Any]]
) -> Callable[..., None]:
    """Returns a `zero_grad` that takes the host's time.

    Args:
        real: PyTorch's.
        parameters: Gives the parameters of its object.
    """

    @wraps(real)
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        rank = here()
        if rank is not None:
            gradients = [each.grad for each in parameters(self) if each.grad is not None]
            if gradients and gradients[0].is_cuda:
                calls = rank.process.calls
                rank.process.host.clock += calls.zero_grad + calls.zeroed * len(gradients)
        real(self, set_to_none)

    return zero_grad


def _stepping(here: Here) -> Callable[[Any], None]:
    """Returns what a step calls; it takes no time if its parameters are on the host."""

    def step(self: Any) -> None:
        rank = here()
        if rank is not None and any(each.is_cuda for each in _in_groups(self)):
            rank.process.host.clock += rank.process.calls.step

    return step
