"""Modules of losses."""

from typing import Literal

from kernbench.nn import functional
from kernbench.nn.losses import Reduction
from kernbench.nn.module import Module
from kernbench.tensors.errors import refuse
from kernbench.tensors.operands import read_in_cpp
from kernbench.tensors.tensor import Tensor

read_in_cpp(__name__)

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "CrossEntropyLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "MSELoss",
    "NLLLoss",
    "SmoothL1Loss",
]


class CrossEntropyLoss(Module):
    """`torch.nn.CrossEntropyLoss`, see `functional.cross_entropy`."""

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: None = None,
        ignore_index: int = -100,
        reduce: None = None,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        refuse("CrossEntropyLoss", size_average=size_average, reduce=reduce)
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        return functional.cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class MSELoss(Module):
    """`torch.nn.MSELoss`, see `functional.mse_loss`."""

    def __init__(
        self,
        size_average: None = None,
        reduce: None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        refuse("MSELoss", size_average=size_average, reduce=reduce)
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        return functional.mse_loss(input, target, reduction=self.reduction)


class NLLLoss(Module):
    """`torch.nn.NLLLoss`, see `functional.nll_loss`."""

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: None = None,
        ignore_index: int = -100,
        reduce: None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        refuse("NLLLoss", size_average=size_average, reduce=reduce)
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        return functional.nll_loss(
            input, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction
        )


class L1Loss(Module):
    """`torch.nn.L1Loss`, see `functional.l1_loss`."""

    def __init__(
        self, size_average: None = None, reduce: None = None, reduction: Reduction = "mean"
    ) -> None:
        super().__init__()
        refuse("L1Loss", size_average=size_average, reduce=reduce)
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        return functional.l1_loss(input, target, reduction=self.reduction)


class SmoothL1Loss(Module):
    """`torch.nn.SmoothL1Loss`, see `functional.smooth_l1_loss`."""

    def __init__(
        self,
        size_average: None = None,
        reduce: None = None,
        reduction: Reduction = "mean",
        beta: float = 1.0,
    ) -> None:
        super().__init__()
        refuse("SmoothL1Loss", size_average=size_average, reduce=reduce)
        self.reduction = reduction
        self.beta = beta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        return functional.smooth_l1_loss(input, target, reduction=self.reduction, beta=self.beta)


class HuberLoss(Module):
    """`torch.nn.HuberLoss`, see `functional.huber_loss`."""

    def __init__(self, reduction: Reduction = "mean", delta: float = 1.0) -> None:
        super().__init__()
        self.reduction = reduction
        self.delta = delta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        return functional.huber_loss(input, target, self.reduction, self.delta)


class BCELoss(Module):
    """`torch.nn.BCELoss`, see `functional.binary_cross_entropy`."""

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: None = None,
        reduce: None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        refuse("BCELoss", size_average=size_average, reduce=reduce)
        self.register_buffer("weight", weight)
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        return functional.binary_cross_entropy(input, target, self.weight, reduction=self.reduction)


class BCEWithLogitsLoss(Module):
    """`torch.nn.BCEWithLogitsLoss`, see `functional.binary_cross_entropy_with_logits`."""

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: None = None,
        reduce: None = None,
        reduction: Reduction = "mean",
        pos_weight: Tensor | None = None,
    ) -> None:
        super().__init__()
        refuse("BCEWithLogitsLoss", size_average=size_average, reduce=reduce)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        return functional.binary_cross_entropy_with_logits(
            input, target, self.weight, reduction=self.reduction, pos_weight=self.pos_weight
        )


class KLDivLoss(Module):
    """`torch.nn.KLDivLoss`, see `functional.kl_div`."""

    def __init__(
        self,
        size_average: None = None,
        reduce: None = None,
        reduction: Literal["none", "mean", "sum", "batchmean"] = "mean",
        log_target: bool = False,
    ) -> None:
        super().__init__()
        refuse("KLDivLoss", size_average=size_average, reduce=reduce)
        self.reduction: Literal["none", "mean", "sum", "batchmean"] = reduction
        self.log_target = log_target

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Returns the loss."""
        return functional.kl_div(
            input, target, reduction=self.reduction, log_target=self.log_target
        )
