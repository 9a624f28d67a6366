"""`torch.optim`: optimisers. A step is the kernels that PyTorch's are on CUDA.

By default these are operations on lists (`_foreach_*`), with `fused=True` one kernel.
"""

from collections.abc import Iterable, Sequence
from math import sqrt
from typing import Any, Final

import numpy as np

from kernbench.errors import OptionError, UnsupportedError, call_site, site_fact
from kernbench.memory import Array, dtypes
from kernbench.operations.copies import clone
from kernbench.operations.creation import zeros, zeros_like
from kernbench.optim.optimizer import GRADS, PARAMETERS, Group, Optimizer
from kernbench.tensors.errors import refuse
from kernbench.tensors.running import ListKernel
from kernbench.tensors.tensor import Tensor

__all__ = ["SGD", "Adam", "AdamW", "Optimizer"]


def _check(name: str, value: float, low: float = 0.0, high: float = float("inf")) -> None:
    if not low <= value < high:
        raise OptionError(f"Invalid {name}: {value}", [site_fact(call_site())])


_MOMENTUM: Final = "momentum_buffer"
_MEAN: Final = "exp_avg"
_SQUARE: Final = "exp_avg_sq"
_STEPS: Final = "numbers of steps"
_SIZE: Final = "sizes of steps"
"""Name of a list that a step of Adam makes."""

_CHANGED: Final = "changed grads"
"""Name of a list of gradients with weight decay, or turned around."""


def _refuse(name: str, foreach: bool | None, **flags: bool) -> None:
    """Refuses options that change how a step runs."""
    refuse(name, foreach=foreach, **{flag: given or None for flag, given in flags.items()})


def _check_fused(name: str, fused: bool | None) -> None:
    if fused is False:
        raise UnsupportedError(
            f"{name}(fused=False) is not simulated: a step works on lists",
            [site_fact(call_site())],
            hint="None: operations on lists of parameters; True: one kernel",
        )


def _changed_grads(options: Group) -> tuple[list[ListKernel], str]:
    """Returns the kernels that change gradients, if options say so, and which list they make."""
    kernels, grads = [], GRADS
    if options["maximize"]:
        kernels.append(ListKernel("_foreach_neg", (grads,)))
        grads = _CHANGED
    if options["weight_decay"] and not options.get("decoupled_weight_decay"):
        place = "_" if grads is _CHANGED else ""
        writes = (grads,) if place else ()
        kernels.append(ListKernel(f"_foreach_add{place}", (grads, PARAMETERS), writes))
        grads = _CHANGED
    return kernels, grads


class SGD(Optimizer):
    """`torch.optim.SGD`: gradient descent, with momentum if wanted.

    Args:
        params: Parameters or groups of them, see `Optimizer`.
        lr: Learning rate.
        momentum: Factor of the last step in the new one.
        dampening: Share of the gradient that does not enter the momentum.
        weight_decay: Factor of the parameter that is added to its gradient.
        nesterov: Whether to use Nesterov's momentum.
        maximize: Whether to maximise the loss.
        foreach: Must be None.
        differentiable: Must be False.
        fused: Whether a step is one kernel, rather than those of `_foreach_*`; None or True.

    Raises:
        OptionError: If a value is out of range.
        UnsupportedError: For other values of arguments that are not simulated.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        _check("learning rate", lr)
        _check("momentum value", momentum)
        _check("weight_decay value", weight_decay)
        _check_fused("SGD", fused)
        self._fused: Final = bool(fused)
        _refuse("SGD", foreach, differentiable=differentiable)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise OptionError(
                "Nesterov momentum requires a momentum and zero dampening",
                [site_fact(call_site())],
            )
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
                "maximize": maximize,
            },
        )

    def _names(self, group: Group) -> Sequence[str]:
        return [_MOMENTUM] if group["momentum"] else []

    def _fresh(self, parameter: Tensor, grad: Tensor) -> Tensor:
        return zeros_like(parameter) if self._fused else clone(grad)

    def _kernels(self, options: Group, first: bool) -> Sequence[ListKernel]:
        momentum = bool(options["momentum"])
        if self._fused:
            writes = (PARAMETERS, _MOMENTUM) if momentum else (PARAMETERS,)
            return [ListKernel("_fused_sgd_", (*writes, GRADS), writes)]
        kernels, grads = _changed_grads(options)
        if momentum:
            if not first:
                kernels.append(ListKernel("_foreach_mul_", (_MOMENTUM,), (_MOMENTUM,)))
                kernels.append(ListKernel("_foreach_add_", (_MOMENTUM, grads), (_MOMENTUM,)))
            if options["nesterov"]:
                kernels.append(ListKernel("_foreach_add_", (_CHANGED, _MOMENTUM), (_CHANGED,)))
                grads = _CHANGED
            else:
                grads = _MOMENTUM
        return [*kernels, ListKernel("_foreach_add_", (PARAMETERS, grads), (PARAMETERS,))]

    def _changed(
        self, values: Array, grad: Array, kept: list[Array], step: int, options: Group
    ) -> tuple[Array, ...]:
        number = values.dtype.type
        if options["weight_decay"]:
            grad = grad + values * number(options["weight_decay"])
        momentum = number(options["momentum"])
        if momentum:
            first = step == 1
            new = grad if first else kept[0] * momentum + grad * number(1 - options["dampening"])
            kept = [new]
            grad = grad + new * momentum if options["nesterov"] else new
        return (values - grad * number(options["lr"]), *kept)


class Adam(Optimizer):
    """`torch.optim.Adam`.

    Args:
        params: Parameters or groups of them, see `Optimizer`.
        lr: Learning rate.
        betas: Factors of the old value in the running means of gradients and of squared gradients.
        eps: Number added to the root of the mean of squares.
        weight_decay: Factor of the parameter that is added to its gradient.
        amsgrad: Must be False.
        foreach: Must be None.
        maximize: Whether to maximise the loss.
        capturable: Must be False.
        differentiable: Must be False.
        fused: Whether a step is one kernel, rather than those of `_foreach_*`; None or True.
        decoupled_weight_decay: Whether weight decay shrinks the parameter itself, as in `AdamW`.

    Raises:
        OptionError: If a value is out of range.
        UnsupportedError: For other values of arguments that are not simulated.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        name = type(self).__name__
        _check("learning rate", lr)
        _check("epsilon value", eps)
        _check("beta parameter at index 0", betas[0], high=1.0)
        _check("beta parameter at index 1", betas[1], high=1.0)
        _check("weight_decay value", weight_decay)
        _check_fused(name, fused)
        self._fused: Final = bool(fused)
        _refuse(
            name, foreach, amsgrad=amsgrad, capturable=capturable, differentiable=differentiable
        )
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "maximize": maximize,
                "decoupled_weight_decay": decoupled_weight_decay,
            },
        )

    def _names(self, group: Group) -> Sequence[str]:
        del group
        return [_MEAN, _SQUARE]

    def _begin(self, parameter: Tensor) -> None:
        if self._fused and parameter.is_cuda:
            zeros((), dtype=dtypes.float32, device=parameter.device)  # PyTorch counts steps there

    def _kernels(self, options: Group, first: bool) -> Sequence[ListKernel]:
        del first
        if self._fused:
            name = "_fused_adamw_" if options["decoupled_weight_decay"] else "_fused_adam_"
            writes = (PARAMETERS, _MEAN, _SQUARE)
            counting = ListKernel("_foreach_add_", (_STEPS,), (_STEPS,), elements=1)
            return [counting, ListKernel(name, (*writes, GRADS), writes)]
        kernels, grads = _changed_grads(options)
        if options["weight_decay"] and options["decoupled_weight_decay"]:
            kernels.append(ListKernel("_foreach_mul_", (PARAMETERS,), (PARAMETERS,)))
        return [
            *kernels,
            ListKernel("_foreach_lerp_", (_MEAN, grads), (_MEAN,)),
            ListKernel("_foreach_mul_", (_SQUARE,), (_SQUARE,)),
            ListKernel("_foreach_addcmul_", (_SQUARE, grads, grads), (_SQUARE,)),
            ListKernel("_foreach_sqrt", (_SQUARE,)),
            ListKernel("_foreach_div_", (_SIZE,), (_SIZE,)),
            ListKernel("_foreach_add_", (_SIZE,), (_SIZE,)),
            ListKernel("_foreach_addcdiv_", (PARAMETERS, _MEAN, _SIZE), (PARAMETERS,)),
        ]

    def _changed(
        self, values: Array, grad: Array, kept: list[Array], step: int, options: Group
    ) -> tuple[Array, ...]:
        number = values.dtype.type
        lr, decay, (first, second) = options["lr"], options["weight_decay"], options["betas"]
        if decay and options["decoupled_weight_decay"]:
            values = values * number(1 - lr * decay)
        elif decay:
            grad = grad + values * number(decay)
        mean = kept[0] + (grad - kept[0]) * number(1 - first)
        square = kept[1] * number(second) + grad * grad * number(1 - second)
        size = np.sqrt(square) / number(sqrt(1 - second**step)) + number(options["eps"])
        return values - mean / size * number(lr / (1 - first**step)), mean, square


class AdamW(Adam):
    """`torch.optim.AdamW`: `Adam` whose weight decay shrinks the parameter itself.

    Args:
        params: Parameters or groups of them, see `Optimizer`.
        lr: Learning rate.
        betas: Factors of the old value in the running means of gradients and of squared gradients.
        eps: Number added to the root of the mean of squares.
        weight_decay: Share of the parameter, times `lr`, that each step takes away.
        amsgrad: Must be False.
        foreach: Must be None.
        maximize: Whether to maximise the loss.
        capturable: Must be False.
        differentiable: Must be False.
        fused: Whether a step is one kernel, rather than those of `_foreach_*`; None or True.

    Raises:
        OptionError: If a value is out of range.
        UnsupportedError: For other values of arguments that are not simulated.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
        )
