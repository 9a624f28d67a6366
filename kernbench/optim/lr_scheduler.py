"""`torch.optim.lr_scheduler`: learning rates that follow a plan.

Plain arithmetic on the host, without simulated time; every rank computes its own. The formulas are
those of PyTorch 2.13, in its order of roundings, so that a rate is PyTorch's to the last bit.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from types import FunctionType
from typing import Any, Final, Literal, SupportsFloat
from weakref import ref

from kernbench.errors import OperandError, OptionError, call_site, site_fact, warn_at_call
from kernbench.optim.optimizer import CALLED, Group, Optimizer
from kernbench.tensors.operands import type_name
from kernbench.tensors.tensor import Tensor

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]

Rate = Any
"""A learning rate: a number, or a tensor of one element."""

_EARLY: Final = (
    "Detected call of `lr_scheduler.step()` before `optimizer.step()`: the first value of the "
    "learning rate schedule is skipped. Call `optimizer.step()` first"
)
_EPOCH: Final = (
    "The epoch parameter in `scheduler.step()` is deprecated: use `scheduler.step()`. With an "
    "epoch, the closed form is used instead of the chainable form, where there is one"
)


def _note_steps(optimizer: Optimizer) -> None:
    """Notes whether an optimizer makes steps, also one whose class has a `step` of its own."""
    if hasattr(optimizer, CALLED):
        return
    setattr(optimizer, CALLED, False)
    # No reference to the optimizer itself, which would then outlive its last user.
    behind, step = ref(optimizer), type(optimizer).step

    @wraps(step)
    def noted(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        found = behind()
        assert found is not None
        setattr(found, CALLED, True)
        return step(found, *args, **kwargs)

    optimizer.step = noted  # type: ignore[method-assign]


def need(condition: bool, text: str) -> None:
    """Checks an argument of a scheduler.

    Raises:
        OptionError: With `text`, unless the condition holds.
    """
    if not condition:
        raise OptionError(text, [site_fact(call_site())])


def need_optimizer(optimizer: object) -> None:
    """Checks that a scheduler is given an optimizer.

    Raises:
        OperandError: If it is anything else.
    """
    if not isinstance(optimizer, Optimizer):
        raise OperandError(f"{type_name(optimizer)} is not an Optimizer", [site_fact(call_site())])


def set_rate(group: Group, key: str, value: Rate) -> None:
    """Sets an option of a group; an option that is a tensor keeps its memory.

    Args:
        group: The group.
        key: Name of the option.
        value: The new value.
    """
    if isinstance(group[key], Tensor):
        group[key].fill_(value)
    else:
        group[key] = value


def rates(optimizer: Optimizer, key: str = "lr") -> list[Rate]:
    """Returns an option of each group; tensors are copied."""
    return [_copied(group[key]) for group in optimizer.param_groups]


def _copied(value: Rate) -> Rate:
    return value.clone() if isinstance(value, Tensor) else value


def for_each_group(name: str, optimizer: Optimizer, value: Any) -> list[Any]:
    """Returns a value for each group of an optimizer.

    Args:
        name: Name of the argument, for the error.
        optimizer: The optimizer.
        value: One value for all groups, or a list or tuple with one for each.

    Raises:
        OptionError: If a list has another length than there are groups.
    """
    count = len(optimizer.param_groups)
    if not isinstance(value, list | tuple):
        return [_copied(value) for _ in range(count)]
    need(
        len(value) == count,
        f"{name} must have the same length as optimizer.param_groups. {name} has {len(value)} "
        f"values, param_groups has {count}.",
    )
    return [_copied(each) for each in value]


class LRScheduler:
    """`torch.optim.lr_scheduler.LRScheduler`: base of the schedulers.

    A subclass defines `get_lr`, the rates of all groups from `last_epoch`, and may define
    `_get_closed_form_lr`, the same without the rates before.

    Args:
        optimizer: The optimizer whose rates change.
        last_epoch: Number of the last step when training goes on; -1 for a new training.

    Attributes:
        base_lrs: The rate of each group at the beginning.
        last_epoch: Number of the last step.

    Raises:
        OperandError: If `optimizer` is none.
        KeyError: If training goes on, and a group has no `initial_lr`.
    """

    _is_initial = False
    _get_lr_called_within_step = False

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        need_optimizer(optimizer)
        self.optimizer = optimizer
        for index, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", _copied(group["lr"]))
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{index}] when resuming "
                    "scheduler with last_epoch >= 0: load the optimizer's state first"
                )
        self.base_lrs = rates(optimizer, "initial_lr")
        self.last_epoch = last_epoch
        _note_steps(optimizer)
        self._initial_step()

    def _initial_step(self) -> None:
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    def state_dict(self) -> dict[str, Any]:
        """Returns everything but the optimizer."""
        return {key: value for key, value in self.__dict__.items() if key != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over the result of `state_dict`."""
        self.__dict__.update(state_dict)

    def get_last_lr(self) -> list[Rate]:
        """Returns the rate of each group after the last step."""
        return self._last_lr

    def get_lr(self) -> list[Rate]:
        """Returns the rate of each group at `last_epoch`; for subclasses to define."""
        raise NotImplementedError

    def _closed_form(self) -> list[Rate]:
        """Returns the rate of each group at `last_epoch`, whatever was before."""
        closed = getattr(self, "_get_closed_form_lr", self.get_lr)
        found: list[Rate] = closed()
        return found

    def step(self, epoch: int | None = None) -> None:
        """Goes on to the next rates; called after `optimizer.step()`.

        Args:
            epoch: Number of the step to go to; deprecated in PyTorch.
        """
        if self._step_count == 1 and not getattr(self.optimizer, CALLED, False):
            warn_at_call(_EARLY)
        self._step_count += 1
        if epoch is not None:
            warn_at_call(_EPOCH)
        self._update_lr(epoch)

    @contextmanager
    def _within_step(self) -> Iterator[None]:
        self._get_lr_called_within_step = True
        try:
            yield
        finally:
            self._get_lr_called_within_step = False

    def _update_lr(self, epoch: int | None = None) -> None:
        with self._within_step():
            if epoch is None:
                self.last_epoch += 1
                values = self.get_lr()
            else:
                self.last_epoch = epoch
                values = self._closed_form()
        self._set_rates(values)

    def _set_rates(self, values: Sequence[Rate]) -> None:
        for group, value in zip(self.optimizer.param_groups, values, strict=True):
            set_rate(group, "lr", value)
        self._last_lr = rates(self.optimizer)

    def _note_use(self) -> None:
        if not self._get_lr_called_within_step:
            warn_at_call(
                "To get the last learning rate computed by the scheduler, please use "
                "`get_last_lr()`."
            )

    def _times(self, factor: float) -> list[Rate]:
        """Returns the present rates times a factor."""
        return [group["lr"] * factor for group in self.optimizer.param_groups]


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
        optimizer: The optimizer whose rates change.
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
        optimizer: The optimizer whose rates change.
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
        optimizer: The optimizer whose rates change.
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
        optimizer: The optimizer whose rates change.
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
        optimizer: The optimizer whose rates change.
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
        optimizer: The optimizer whose rates change.
        total_iters: Steps until 0.
        power: The power.
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
        optimizer: The optimizer whose rates change.
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


# Several schedulers


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
        optimizer: The optimizer whose rates change.
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


# By what training measures


class ReduceLROnPlateau(LRScheduler):
    """`torch.optim.lr_scheduler.ReduceLROnPlateau`: a factor when a metric stops getting better.

    Args:
        optimizer: The optimizer whose rates change.
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
            warn_at_call(_EPOCH)
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
