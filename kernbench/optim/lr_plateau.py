"""A scheduler that goes by what training measures."""

import math
from typing import Literal, SupportsFloat

from kernbench.errors import warn_at_call
from kernbench.optim.lr_scheduler import (
    EPOCH,
    LRScheduler,
    Rate,
    need,
    need_optimizer,
    rates,
    set_rate,
)
from kernbench.optim.optimizer import Optimizer

__all__ = ["ReduceLROnPlateau"]


class ReduceLROnPlateau(LRScheduler):
    """`torch.optim.lr_scheduler.ReduceLROnPlateau`: a factor when a metric stops getting better.

    Args:
        mode: `min` if a smaller metric is better, `max` if a larger one is.
        factor: The factor, below 1.
        patience: Steps without improvement before the rate changes.
        threshold: How much better the metric must be to count.
        threshold_mode: `rel`: `threshold` is a share of the best metric; `abs`: a difference.
        cooldown: Steps after a change that do not count.
        min_lr: The lowest rate, or a list with one a group.
        eps: Least change of a rate that is made.

    Raises:
        OptionError: If a value is out of range, or the list has another length than the groups.
        OperandError: If `optimizer` is none.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: Literal["min", "max"] = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: Literal["rel", "abs"] = "rel",
        cooldown: int = 0,
        min_lr: list[float] | float = 0,
        eps: float = 1e-8,
    ) -> None:
        need(factor < 1.0, "Factor should be < 1.0.")
        need_optimizer(optimizer)
        need(mode in {"min", "max"}, f"mode {mode} is unknown!")
        need(threshold_mode in {"rel", "abs"}, f"threshold mode {threshold_mode} is unknown!")
        count, several = len(optimizer.param_groups), isinstance(min_lr, list | tuple)
        lowest: list[float] = list(min_lr) if several else [min_lr] * count  # type: ignore[arg-type,list-item]
        need(len(lowest) == count, f"expected {count} min_lrs, got {len(lowest)}")
        self.factor = factor
        self.optimizer = optimizer
        self.default_min_lr = None if several else min_lr
        self.min_lrs = lowest
        self.patience = patience
        self.cooldown = cooldown
        self.eps = eps
        self.last_epoch = 0
        self._last_lr = rates(optimizer)
        self.mode = mode
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.mode_worse = math.inf if mode == "min" else -math.inf
        self.best = self.mode_worse
        self.cooldown_counter = 0
        self.num_bad_epochs = 0

    def step(  # type: ignore[override]
        self, metrics: SupportsFloat, epoch: int | None = None
    ) -> None:
        """Looks at a metric, and changes the rates if it has not been better for long.

        Args:
            metrics: The metric; a tensor on a device makes the host wait.
            epoch: Number of the step; deprecated in PyTorch.
        """
        current = float(metrics)
        if epoch is not None:
            warn_at_call(EPOCH)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._is_better(current):
            self.best = current
            self.num_bad_epochs = 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0
        self._last_lr = rates(self.optimizer)

    @property
    def in_cooldown(self) -> bool:
        """Whether steps do not count at present."""
        return self.cooldown_counter > 0

    def _is_better(self, current: float) -> bool:
        smaller, share = self.mode == "min", self.threshold_mode == "rel"
        if smaller:
            bound = self.best * (1.0 - self.threshold) if share else self.best - self.threshold
            return current < bound
        bound = self.best * (self.threshold + 1.0) if share else self.best + self.threshold
        return current > bound

    def _reduce(self) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self.min_lrs):
            need(
                self.default_min_lr is not None,
                f"The optimizer has {len(groups)} param groups, and min_lr was given for "
                f"{len(self.min_lrs)}: set min_lrs of the scheduler when a group is added",
            )
            self.min_lrs = [self.default_min_lr] * len(groups)  # type: ignore[list-item]
        for group, lowest in zip(groups, self.min_lrs, strict=True):
            old = float(group["lr"])
            new = max(old * self.factor, lowest)
            if old - new > self.eps:
                set_rate(group, "lr", new)

    def get_lr(self) -> list[Rate]:
        """Returns the present rates, which depend on the metrics."""
        return rates(self.optimizer)
