"""Schedulers that are made of schedulers: one after the other, or all in every step."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from kernbench.errors import OperandError, call_site, site_fact
from kernbench.optim.lr_plateau import ReduceLROnPlateau
from kernbench.optim.lr_scheduler import LRScheduler, need, rates, set_rate
from kernbench.optim.optimizer import Optimizer
from kernbench.tensors.operands import type_name

__all__ = ["ChainedScheduler", "SequentialLR"]


class _OfSchedulers(LRScheduler):
    """A scheduler that holds schedulers of one optimizer."""

    _schedulers: Sequence[LRScheduler]

    def _check(self, optimizer: Optimizer, schedulers: Sequence[Any], wish: str) -> None:
        name = type(self).__name__
        for index, each in enumerate(schedulers):
            if not hasattr(each, "optimizer"):
                raise OperandError(
                    f"{name} at index {index} should have `optimizer` as its attribute.",
                    [site_fact(call_site()), f"got {type_name(each)}"],
                )
            need(
                not isinstance(each, ReduceLROnPlateau),
                f"{name} does not support `ReduceLROnPlateau`, whose `step` takes a metric, but "
                f"got one at index {index} {wish}",
            )
            need(
                each.optimizer is optimizer,
                f"{name} expects all schedulers to belong to the same optimizer, but scheduler "
                f"{type(each).__name__} at index {index} has another one",
            )

    def state_dict(self) -> dict[str, Any]:
        """Returns everything but the optimizer; of the schedulers their states."""
        state = super().state_dict()
        state["_schedulers"] = [each.state_dict() for each in self._schedulers]
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over the result of `state_dict`."""
        super().load_state_dict({**state_dict, "_schedulers": self._schedulers})
        for each, saved in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            each.load_state_dict(saved)


class SequentialLR(_OfSchedulers):
    """`torch.optim.lr_scheduler.SequentialLR`: schedulers one after the other.

    Args:
        schedulers: The schedulers, in order.
        milestones: The step at which each scheduler but the first begins.
        last_epoch: Number of the last step.

    Raises:
        OptionError: If there is no scheduler, or not one more than milestones; if one is a
            `ReduceLROnPlateau` or has another optimizer.
        OperandError: If one is no scheduler.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: list[LRScheduler],
        milestones: list[int],
        last_epoch: int = -1,
    ) -> None:
        need(
            len(schedulers) >= 1,
            "SequentialLR expects at least one scheduler, but got no scheduler.",
        )
        self._check(optimizer, schedulers, "in the given schedulers sequence.")
        need(
            len(milestones) == len(schedulers) - 1,
            "Sequential Schedulers expects number of schedulers provided to be one more than the "
            f"number of milestone points, but got number of schedulers {len(schedulers)} and the "
            f"number of milestones to be equal to {len(milestones)}",
        )
        self._schedulers = schedulers
        self._milestones = milestones
        self.last_epoch = last_epoch + 1
        self.optimizer = optimizer
        # Making each scheduler has made a step of it.
        for group in optimizer.param_groups:
            set_rate(group, "lr", group["initial_lr"])
        _take_back(self)
        first = schedulers[bisect_right(milestones, 0)]
        first._initial_step()
        self._last_lr = first.get_last_lr()

    def step(self) -> None:  # type: ignore[override]
        """Goes on to the next rates; called after `optimizer.step()`."""
        self.last_epoch += 1
        index = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[index]
        if index > 0 and self._milestones[index - 1] == self.last_epoch:
            scheduler._update_lr(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


def _take_back(scheduler: LRScheduler) -> None:
    if isinstance(scheduler, _OfSchedulers):
        for each in scheduler._schedulers:
            _take_back(each)
    else:
        scheduler.last_epoch -= 1


class ChainedScheduler(_OfSchedulers):
    """`torch.optim.lr_scheduler.ChainedScheduler`: schedulers that all act in every step.

    Args:
        schedulers: The schedulers, in order.
        optimizer: Their optimizer; None for that of the first.

    Raises:
        OptionError: If there is no scheduler; if one is a `ReduceLROnPlateau` or has another
            optimizer.
        OperandError: If one is no scheduler.
    """

    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        need(
            len(schedulers) >= 1,
            "ChainedScheduler expects at least one scheduler to be chained, but got no scheduler.",
        )
        found = optimizer or getattr(schedulers[0], "optimizer", None)
        self._check(found, schedulers, "in the given schedulers sequence.")  # type: ignore[arg-type]
        self._schedulers = schedulers
        self.optimizer = found  # type: ignore[assignment]
        self._last_lr = rates(self.optimizer)

    def step(self) -> None:  # type: ignore[override]
        """Goes on to the next rates; called after `optimizer.step()`."""
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = rates(self.optimizer)
