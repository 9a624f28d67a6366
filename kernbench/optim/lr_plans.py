"""Schedulers whose rates are a function of the step."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

from kernbench.errors import OperandError, call_site, site_fact
from kernbench.optim.lr_scheduler import LRScheduler, Rate, need, need_optimizer, rates
from kernbench.optim.optimizer import Optimizer
from kernbench.tensors.operands import type_name

__all__ = [
    "ConstantLR",
    "CosineAnnealingLR",
    "ExponentialLR",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "PolynomialLR",
    "StepLR",
]

_Law = Callable[[int], float]


class _ByFunction(LRScheduler):
    """A scheduler that calls the user's functions, one a group."""

    def __init__(
        self, optimizer: Optimizer, lr_lambda: _Law | list[_Law], last_epoch: int = -1
    ) -> None:
        need_optimizer(optimizer)
        count = len(optimizer.param_groups)
        given = isinstance(lr_lambda, list | tuple)
        laws: list[Any] = list(lr_lambda) if given else [lr_lambda] * count  # type: ignore[arg-type]
        need(len(laws) == count, f"Expected {count} lr_lambdas, but got {len(laws)}")
        for law in laws:
            if not callable(law):
                raise OperandError(
                    f"lr_lambda should be a function, but got {type_name(law)}",
                    [site_fact(call_site())],
                )
        self.lr_lambdas: list[_Law] = laws
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> dict[str, Any]:
        """Returns everything but the optimizer; of callable objects their attributes.

        Functions and lambdas are not saved: the scheduler that loads the state has its own.
        """
        state = super().state_dict()
        state["lr_lambdas"] = [
            None if isinstance(law, FunctionType) else dict(law.__dict__) for law in self.lr_lambdas
        ]
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over the result of `state_dict`."""
        own = self.lr_lambdas
        super().load_state_dict({**state_dict, "lr_lambdas": own})
        for law, saved in zip(own, state_dict["lr_lambdas"], strict=True):
            if saved is not None:
                law.__dict__.update(saved)


class LambdaLR(_ByFunction):
    """`torch.optim.lr_scheduler.LambdaLR`: the first rate times a function of the step.

    Args:
        optimizer: The optimizer whose rates change.
        lr_lambda: Takes the number of the step, returns the factor; or a list with one a group.
        last_epoch: See `LRScheduler`.

    Raises:
        OptionError: If there are not as many functions as groups.
        OperandError: If `lr_lambda` is no function.
    """

    def get_lr(self) -> list[Rate]:
        """Returns the rate of each group at `last_epoch`."""
        self._note_use()
        return [
            base * law(self.last_epoch)
            for law, base in zip(self.lr_lambdas, self.base_lrs, strict=True)
        ]


class MultiplicativeLR(_ByFunction):
    """`torch.optim.lr_scheduler.MultiplicativeLR`: each step multiplies with a function of it.

    Args:
        optimizer: The optimizer whose rates change.
        lr_lambda: Takes the number of the step, returns the factor; or a list with one a group.
        last_epoch: See `LRScheduler`.

    Raises:
        OptionError: If there are not as many functions as groups.
        OperandError: If `lr_lambda` is no function.
    """

    def get_lr(self) -> list[Rate]:
        """Returns the rate of each group at `last_epoch`."""
        self._note_use()
        if self._is_initial:
            return rates(self.optimizer)
        return [
            group["lr"] * law(self.last_epoch)
            for law, group in zip(self.lr_lambdas, self.optimizer.param_groups, strict=True)
        ]


class StepLR(LRScheduler):
    """`torch.optim.lr_scheduler.StepLR`: a factor every so many steps.

    Args:
        step_size: Steps between two changes.
        gamma: The factor.
        last_epoch: See `LRScheduler`.
    """

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Rate]:
        """Returns the rate of each group at `last_epoch`."""
        self._note_use()
        if self.last_epoch == 0 or self.last_epoch % self.step_size != 0:
            return rates(self.optimizer)
        return self._times(self.gamma)

    def _get_closed_form_lr(self) -> list[Rate]:
        factor = self.gamma ** (self.last_epoch // self.step_size)
        return [base * factor for base in self.base_lrs]


class MultiStepLR(LRScheduler):
    """`torch.optim.lr_scheduler.MultiStepLR`: a factor at each of some steps.

    Args:
        milestones: Numbers of these steps.
        gamma: The factor.
        last_epoch: See `LRScheduler`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Iterable[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        self.milestones = Counter(milestones)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Rate]:
        """Returns the rate of each group at `last_epoch`."""
        self._note_use()
        if self.last_epoch not in self.milestones:
            return rates(self.optimizer)
        return self._times(self.gamma ** self.milestones[self.last_epoch])

    def _get_closed_form_lr(self) -> list[Rate]:
        passed = bisect_right(sorted(self.milestones.elements()), self.last_epoch)
        return [base * self.gamma**passed for base in self.base_lrs]


class ConstantLR(LRScheduler):
    """`torch.optim.lr_scheduler.ConstantLR`: a factor for the first steps.

    Args:
        factor: The factor, from 0 to 1.
        total_iters: Steps for which it holds.
        last_epoch: See `LRScheduler`.

    Raises:
        OptionError: If the factor is out of range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1.0 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        need(0 <= factor <= 1, "Constant multiplicative factor expected to be between 0 and 1.")
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Rate]:
        """Returns the rate of each group at `last_epoch`."""
        self._note_use()
        if self.last_epoch == 0:
            return self._times(self.factor)
        if self.last_epoch != self.total_iters:
            return rates(self.optimizer)
        return self._times(1.0 / self.factor)

    def _get_closed_form_lr(self) -> list[Rate]:
        factor = self.factor + (self.last_epoch >= self.total_iters) * (1 - self.factor)
        return [base * factor for base in self.base_lrs]


class LinearLR(LRScheduler):
    """`torch.optim.lr_scheduler.LinearLR`: a factor that changes evenly over the first steps.

    Args:
        start_factor: The factor at first, above 0 and at most 1.
        end_factor: The factor at last, from 0 to 1.
        total_iters: Steps from the first to the last.
        last_epoch: See `LRScheduler`.

    Raises:
        OptionError: If a factor is out of range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        need(
            0 < start_factor <= 1,
            "Starting multiplicative factor expected to be greater than 0 and less or equal to 1.",
        )
        need(
            0 <= end_factor <= 1,
            "Ending multiplicative factor expected to be between 0 and 1.",
        )
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Rate]:
        """Returns the rate of each group at `last_epoch`."""
        self._note_use()
        if self.last_epoch == 0:
            return self._times(self.start_factor)
        if self._is_initial or self.last_epoch > self.total_iters:
            return rates(self.optimizer)
        gap = self.end_factor - self.start_factor
        before = self.total_iters * self.start_factor + (self.last_epoch - 1) * gap
        return self._times(1.0 + gap / before)

    def _get_closed_form_lr(self) -> list[Rate]:
        gap, done = self.end_factor - self.start_factor, min(self.total_iters, self.last_epoch)
        return [
            base * (self.start_factor + gap * done / self.total_iters) for base in self.base_lrs
        ]


class ExponentialLR(LRScheduler):
    """`torch.optim.lr_scheduler.ExponentialLR`: a factor every step.

    Args:
        gamma: The factor.
        last_epoch: See `LRScheduler`.
    """

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Rate]:
        """Returns the rate of each group at `last_epoch`."""
        self._note_use()
        return rates(self.optimizer) if self._is_initial else self._times(self.gamma)

    def _get_closed_form_lr(self) -> list[Rate]:
        return [base * self.gamma**self.last_epoch for base in self.base_lrs]


class PolynomialLR(LRScheduler):
    """`torch.optim.lr_scheduler.PolynomialLR`: falls to 0 as a power of the steps that are left.

    Args:
        total_iters: Steps until 0.
        last_epoch: See `LRScheduler`.
    """

    def __init__(
        self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1
    ) -> None:
        self.total_iters = total_iters
        self.power = power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Rate]:
        """Returns the rate of each group at `last_epoch`."""
        self._note_use()
        if self._is_initial or self.last_epoch > self.total_iters:
            return rates(self.optimizer)
        left = 1.0 - self.last_epoch / self.total_iters
        before = 1.0 - (self.last_epoch - 1) / self.total_iters
        return self._times((left / before) ** self.power)

    def _get_closed_form_lr(self) -> list[Rate]:
        done = min(self.total_iters, self.last_epoch)
        return [base * (1.0 - done / self.total_iters) ** self.power for base in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    """`torch.optim.lr_scheduler.CosineAnnealingLR`: half a cosine down, and up again.

    Args:
        T_max: Steps from the highest rate to the lowest.
        eta_min: The lowest rate.
        last_epoch: See `LRScheduler`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_max: int,  # noqa: N803 - PyTorch's name
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Rate]:
        """Returns the rate of each group at `last_epoch`."""
        self._note_use()
        low, epoch, half = self.eta_min, self.last_epoch, self.T_max
        if self._is_initial:
            return rates(self.optimizer)
        if self._step_count == 1 and epoch > 0:
            return [
                low + (base - low) * (1 + math.cos(epoch * math.pi / half)) / 2
                for base in self.base_lrs
            ]
        groups = self.optimizer.param_groups
        if (epoch - 1 - half) % (2 * half) == 0:
            return [
                group["lr"] + (base - low) * (1 - math.cos(math.pi / half)) / 2
                for base, group in zip(self.base_lrs, groups, strict=True)
            ]
        now, before = (1 + math.cos(math.pi * each / half) for each in (epoch, epoch - 1))
        return [now / before * (group["lr"] - low) + low for group in groups]

    def _get_closed_form_lr(self) -> list[Rate]:
        low, share = self.eta_min, 1 + math.cos(math.pi * self.last_epoch / self.T_max)
        return [low + (base - low) * share / 2 for base in self.base_lrs]
