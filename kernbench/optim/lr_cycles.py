"""Schedulers that go around: rates, and momentum with them, that rise and fall."""

import math
from collections.abc import Callable
from types import FunctionType
from typing import Any, Literal

from kernbench.optim.lr_scheduler import (
    LRScheduler,
    Rate,
    for_each_group,
    need,
    need_optimizer,
    set_rate,
)
from kernbench.optim.optimizer import Group, Optimizer

__all__ = ["CosineAnnealingWarmRestarts", "CyclicLR", "OneCycleLR"]


class CosineAnnealingWarmRestarts(LRScheduler):
    """`torch.optim.lr_scheduler.CosineAnnealingWarmRestarts`: half cosines down, from the top.

    Args:
        T_0: Steps of the first period.
        T_mult: How many times longer each period is than the one before.
        eta_min: The lowest rate.
        last_epoch: See `LRScheduler`.

    Raises:
        OptionError: If a value is out of range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,  # noqa: N803 - PyTorch's name
        T_mult: int = 1,  # noqa: N803
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        need(isinstance(T_0, int) and T_0 > 0, f"Expected positive integer T_0, but got {T_0}")
        need(
            isinstance(T_mult, int) and T_mult >= 1,
            f"Expected integer T_mult >= 1, but got {T_mult}",
        )
        need(
            isinstance(eta_min, float | int),
            f"Expected float or int eta_min, but got {eta_min} of type {type(eta_min)}",
        )
        self.T_0 = T_0
        self.T_i = T_0
        self.T_mult = T_mult
        self.eta_min = eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Rate]:
        """Returns the rate of each group at `last_epoch`."""
        self._note_use()
        share = 1 + math.cos(math.pi * self.T_cur / self.T_i)
        return [self.eta_min + (base - self.eta_min) * share / 2 for base in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        """Goes on to the next rates, or to those of a step, which may be a fraction.

        Args:
            epoch: Number of the step; None for the next one.

        Raises:
            OptionError: If `epoch` is negative.
        """
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        if epoch is None:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur %= self.T_i
                self.T_i *= self.T_mult
        else:
            need(epoch >= 0, f"Expected non-negative epoch, but got {epoch}")
            self._seek(epoch)
        self.last_epoch = math.floor(epoch)
        with self._within_step():
            values = self.get_lr()
        self._set_rates(values)

    def _seek(self, epoch: float) -> None:
        first, growth = self.T_0, self.T_mult
        if epoch < first:
            self.T_i, self.T_cur = first, epoch
        elif growth == 1:
            self.T_cur = epoch % first
        else:
            period = int(math.log((epoch / first * (growth - 1) + 1), growth))
            self.T_cur = epoch - first * (growth**period - 1) / (growth - 1)
            self.T_i = first * growth**period


def _can_cycle(optimizer: Optimizer) -> bool:
    """Returns whether momentum is the first of `betas`.

    Raises:
        OptionError: If the optimizer has no momentum.
    """
    need(
        "momentum" in optimizer.defaults or "betas" in optimizer.defaults,
        "optimizer must support momentum or beta1 with `cycle_momentum` option enabled",
    )
    return "betas" in optimizer.defaults


def _set_momentum(group: Group, value: float, beta: bool) -> None:
    if beta:
        group["betas"] = (value, *group["betas"][1:])
    else:
        group["momentum"] = value


def _begin_momentum(optimizer: Optimizer, low: list[float], high: list[float], beta: bool) -> None:
    for group, most, least in zip(optimizer.param_groups, high, low, strict=True):
        _set_momentum(group, most, beta)
        group["max_momentum"] = most
        group["base_momentum"] = least


class CyclicLR(LRScheduler):
    """`torch.optim.lr_scheduler.CyclicLR`: up and down between two rates, momentum against them.

    Args:
        base_lr: The lowest rate, or a list with one a group.
        max_lr: The highest rate, or a list with one a group.
        step_size_up: Steps up.
        step_size_down: Steps down; None for as many as up.
        mode: `triangular`; `triangular2`, which halves the height with every cycle; `exp_range`,
            which multiplies it with `gamma` every step.
        gamma: See `mode`.
        scale_fn: Takes the number of the cycle or step, returns the factor of the height; instead
            of `mode`.
        scale_mode: What `scale_fn` takes: `cycle` or `iterations`.
        cycle_momentum: Whether momentum falls while the rate rises.
        base_momentum: The lowest momentum, or a list with one a group.
        max_momentum: The highest momentum, or a list with one a group.
        last_epoch: See `LRScheduler`.

    Raises:
        OptionError: If `mode` is unknown, or the optimizer has no momentum to cycle.
        OperandError: If `optimizer` is none.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | list[float],
        max_lr: float | list[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: Literal["triangular", "triangular2", "exp_range"] = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: Literal["cycle", "iterations"] = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float = 0.8,
        max_momentum: float = 0.9,
        last_epoch: int = -1,
    ) -> None:
        need_optimizer(optimizer)
        base_lrs = for_each_group("base_lr", optimizer, base_lr)
        if last_epoch == -1:
            for rate, group in zip(base_lrs, optimizer.param_groups, strict=True):
                set_rate(group, "lr", rate)
        self.max_lrs = for_each_group("max_lr", optimizer, max_lr)
        up = float(step_size_up)
        down = up if step_size_down is None else float(step_size_down)
        self.total_size = up + down
        self.step_ratio = up / self.total_size
        known = mode in {"triangular", "triangular2", "exp_range"}
        need(known or scale_fn is not None, "mode is invalid and scale_fn is None")
        self.mode = mode
        self.gamma = gamma
        self._scale_fn_custom = scale_fn
        if scale_fn is None:
            scale_mode = "iterations" if mode == "exp_range" else "cycle"
        self.scale_mode = scale_mode
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self.use_beta1 = _can_cycle(optimizer)
            self.base_momentums = for_each_group("base_momentum", optimizer, base_momentum)
            self.max_momentums = for_each_group("max_momentum", optimizer, max_momentum)
            if last_epoch == -1:
                low, high = self.base_momentums, self.max_momentums
                _begin_momentum(optimizer, low, high, self.use_beta1)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = base_lrs

    def scale_fn(self, x: float) -> float:
        """Returns the factor of the height in a cycle, or at a step, by the mode."""
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        if self.mode == "triangular":
            return 1.0
        return float(1 / (2.0 ** (x - 1)) if self.mode == "triangular2" else self.gamma**x)

    def get_lr(self) -> list[Rate]:
        """Returns the rate of each group at `last_epoch`, and sets momentum."""
        self._note_use()
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        ratio = self.step_ratio
        height = x / ratio if x <= ratio else (x - 1) / (ratio - 1)
        scale = self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            for group, low, high in zip(
                self.optimizer.param_groups, self.base_momentums, self.max_momentums, strict=True
            ):
                _set_momentum(group, high - (high - low) * height * scale, self.use_beta1)
        return [
            low + (high - low) * height * scale
            for low, high in zip(self.base_lrs, self.max_lrs, strict=True)
        ]

    def state_dict(self) -> dict[str, Any]:
        """Returns everything but the optimizer; of a callable object its attributes.

        A function or lambda is not saved: the scheduler that loads the state has its own.
        """
        state, law = super().state_dict(), self._scale_fn_custom
        saved = law is not None and not isinstance(law, FunctionType)
        return {**state, "_scale_fn_custom": dict(law.__dict__) if saved else None}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over the result of `state_dict`."""
        own, saved = self._scale_fn_custom, state_dict["_scale_fn_custom"]
        super().load_state_dict({**state_dict, "_scale_fn_custom": own})
        if saved is not None and own is not None:
            own.__dict__.update(saved)


class OneCycleLR(LRScheduler):
    """`torch.optim.lr_scheduler.OneCycleLR`: once up, and down to nearly nothing.

    Args:
        max_lr: The highest rate, or a list with one a group.
        total_steps: Steps of the cycle; None for `epochs * steps_per_epoch`.
        epochs: Number of epochs.
        pct_start: Share of the steps in which the rate rises, a float from 0 to 1.
        anneal_strategy: `cos` or `linear`.
        cycle_momentum: Whether momentum falls while the rate rises.
        base_momentum: The lowest momentum, or a list with one a group.
        max_momentum: The highest momentum, or a list with one a group.
        div_factor: How many times lower than the highest the first rate is.
        final_div_factor: How many times lower than the first the last rate is.
        three_phase: Whether the rate first falls to where it began, and then further.
        last_epoch: See `LRScheduler`.

    Raises:
        OptionError: If a value is out of range, or the optimizer has no momentum to cycle.
        OperandError: If `optimizer` is none.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: Literal["cos", "linear"] = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        need_optimizer(optimizer)
        self.total_steps = _total_steps(total_steps, epochs, steps_per_epoch)
        need(
            isinstance(pct_start, float) and 0 <= pct_start <= 1,
            f"Expected float between 0 and 1 pct_start, but got {pct_start}",
        )
        need(
            anneal_strategy in {"cos", "linear"},
            f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}",
        )
        self._anneal_func_type = anneal_strategy
        self._schedule_phases = _phases(self.total_steps, pct_start, three_phase)
        highest = for_each_group("max_lr", optimizer, max_lr)
        if last_epoch == -1:
            for group, top in zip(optimizer.param_groups, highest, strict=True):
                group["initial_lr"] = top / div_factor
                group["max_lr"] = top
                group["min_lr"] = group["initial_lr"] / final_div_factor
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self.use_beta1 = _can_cycle(optimizer)
            high = for_each_group("max_momentum", optimizer, max_momentum)
            low = for_each_group("base_momentum", optimizer, base_momentum)
            if last_epoch == -1:
                _begin_momentum(optimizer, low, high, self.use_beta1)
        super().__init__(optimizer, last_epoch)

    def _between(self, start: Rate, end: Rate, share: float) -> Rate:
        if self._anneal_func_type == "cos":
            return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)
        return (end - start) * share + start

    def get_lr(self) -> list[Rate]:
        """Returns the rate of each group at `last_epoch`, and sets momentum.

        Raises:
            OptionError: If there are more steps than the cycle has.
        """
        self._note_use()
        step, begin = self.last_epoch, 0.0
        need(
            step <= self.total_steps,
            f"Tried to step {step} times. The specified number of total steps is "
            f"{self.total_steps}",
        )
        phases = self._schedule_phases
        index = next(
            (at for at, each in enumerate(phases) if step <= each["end_step"]), len(phases) - 1
        )
        phase = phases[index]
        if index:
            begin = phases[index - 1]["end_step"]
        share = (step - begin) / (phase["end_step"] - begin)
        found = []
        for group in self.optimizer.param_groups:
            found.append(self._between(group[phase["start_lr"]], group[phase["end_lr"]], share))
            if self.cycle_momentum:
                start, end = group[phase["start_momentum"]], group[phase["end_momentum"]]
                _set_momentum(group, self._between(start, end, share), self.use_beta1)
        return found


def _total_steps(total: int | None, epochs: int | None, each: int | None) -> int:
    if total is not None:
        whole = isinstance(total, int) and total > 0
        need(whole, f"Expected positive integer total_steps, but got {total}")
        return total
    need(
        epochs is not None and each is not None,
        "You must define either total_steps OR (epochs AND steps_per_epoch)",
    )
    for name, value in (("epochs", epochs), ("steps_per_epoch", each)):
        whole = isinstance(value, int) and value > 0
        need(whole, f"Expected positive integer {name}, but got {value}")
    assert epochs is not None
    assert each is not None
    return epochs * each


def _phase(end: float, rate: tuple[str, str], momentum: tuple[str, str]) -> dict[str, Any]:
    return {
        "end_step": end,
        "start_lr": rate[0],
        "end_lr": rate[1],
        "start_momentum": momentum[0],
        "end_momentum": momentum[1],
    }


def _phases(total: int, share: float, three: bool) -> list[dict[str, Any]]:
    falling, rising = ("max_momentum", "base_momentum"), ("base_momentum", "max_momentum")
    up = _phase(float(share * total) - 1, ("initial_lr", "max_lr"), falling)
    if not three:
        return [up, _phase(total - 1, ("max_lr", "min_lr"), rising)]
    down = _phase(float(2 * share * total) - 2, ("max_lr", "initial_lr"), rising)
    flat = ("max_momentum", "max_momentum")
    return [up, down, _phase(total - 1, ("initial_lr", "min_lr"), flat)]
