"""`torch.optim.lr_scheduler`: learning rates that follow a plan.

Plain arithmetic on the host, without simulated time; every rank computes its own. The formulas are
those of PyTorch 2.13, in its order of roundings, so that a rate is PyTorch's to the last bit.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final
from weakref import ref

from kernbench.errors import OperandError, OptionError, call_site, site_fact, warn_at_call
from kernbench.optim.optimizer import CALLED, Group, Optimizer
from kernbench.tensors.operands import type_name
from kernbench.tensors.tensor import Tensor

__all__ = ["LRScheduler"]

Rate = Any
"""A learning rate: a number, or a tensor of one element."""

_EARLY: Final = (
    "Detected call of `lr_scheduler.step()` before `optimizer.step()`: the first value of the "
    "learning rate schedule is skipped. Call `optimizer.step()` first"
)
EPOCH: Final = (
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
            warn_at_call(EPOCH)
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
