"""Norms over batches and groups of channels."""

from typing import ClassVar

from kernbench.errors import OptionError, call_site, site_fact
from kernbench.memory import DType, dtypes
from kernbench.nn import functional, init
from kernbench.nn.module import Module, Parameter
from kernbench.operations.creation import empty, ones, zeros
from kernbench.process.process import current_process
from kernbench.process.types import DeviceLike
from kernbench.tensors.nodes import recording
from kernbench.tensors.tensor import Tensor

__all__ = ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "GroupNorm"]


class _Channels(Module):
    """A module with a weight and a bias for each channel."""

    weight: Parameter | None
    bias: Parameter | None

    def _register(
        self,
        channels: int,
        weight: bool,
        bias: bool,
        device: DeviceLike | None,
        dtype: DType | None,
    ) -> None:
        for name, wanted in (("weight", weight), ("bias", bias)):
            value = Parameter(empty(channels, device=device, dtype=dtype)) if wanted else None
            self.register_parameter(name, value)

    def reset_parameters(self) -> None:
        """Sets the weight to 1 and the bias to 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)


class GroupNorm(_Channels):
    """`torch.nn.GroupNorm`, see `functional.group_norm`.

    Args:
        num_groups: Number of groups that the channels are divided into.
        num_channels: Number of channels.
        eps: Number added to the variance.
        affine: Whether to multiply with a weight.
        device: Device of the parameters, as for `Linear`.
        dtype: Type of the parameters; float32 by default.
        bias: Whether to add a bias too.

    Raises:
        OptionError: If the groups do not divide the channels.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: DeviceLike | None = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if num_channels % num_groups:
            raise OptionError(
                f"num_channels ({num_channels}) must be divisible by num_groups ({num_groups})",
                [site_fact(call_site())],
            )
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.affine = affine
        self._register(num_channels, affine, affine and bias, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        """Returns a tensor of the input's shape, `[N, num_channels, ...]`."""
        return functional.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """See `Module`."""
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


class _BatchNorm(_Channels):
    """Batch norm for any number of dimensions; a subclass says which.

    Args:
        num_features: Number of channels.
        eps: Number added to the variance.
        momentum: Share of a batch in the new running statistics; None for their mean over all
            batches, for which the host waits in each training step.
        affine: Whether to multiply with a weight.
        track_running_stats: Whether to keep running statistics, which evaluation uses; without
            them it uses those of the batch.
        device: Device of parameters and buffers, as for `Linear`.
        dtype: Type of parameters and running statistics; float32 by default.
        bias: Whether to add a bias too.
    """

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    _dimensions: ClassVar[tuple[int, ...]]

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: DeviceLike | None = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        self._register(num_features, affine, affine and bias, device, dtype)
        kept = track_running_stats
        mean = zeros(num_features, device=device, dtype=dtype) if kept else None
        var = ones(num_features, device=device, dtype=dtype) if kept else None
        count = zeros((), device=device, dtype=dtypes.int64) if kept else None
        self.register_buffer("running_mean", mean)
        self.register_buffer("running_var", var)
        self.register_buffer("num_batches_tracked", count)
        super().reset_parameters()

    def reset_running_stats(self) -> None:
        """Sets the running means to 0, the variances to 1, and the number of batches to 0."""
        if self.running_mean is not None and self.running_var is not None:
            self.running_mean.zero_()
            self.running_var.fill_(1)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Sets the weight to 1 and the bias to 0, and resets the running statistics."""
        self.reset_running_stats()
        super().reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        """Returns a tensor of the input's shape, `[N, num_features, ...]`.

        Raises:
            OptionError: If the input has another number of dimensions.
        """
        count = len(input.window.shape)
        if count not in self._dimensions:
            wanted = " or ".join(f"{n}D" for n in self._dimensions)
            raise OptionError(
                f"expected {wanted} input (got {count}D input)", [site_fact(call_site())]
            )
        share = 0.0 if self.momentum is None else self.momentum
        tracked = self.num_batches_tracked
        if self.training and self.track_running_stats and tracked is not None:
            with recording(current_process(), False):
                tracked.add_(1)
            if self.momentum is None:
                share = 1 / float(tracked)
        use = not self.training or self.track_running_stats
        return functional.batch_norm(
            input,
            self.running_mean if use else None,
            self.running_var if use else None,
            self.weight,
            self.bias,
            self.training or (self.running_mean is None and self.running_var is None),
            share,
            self.eps,
        )

    def extra_repr(self) -> str:
        """See `Module`."""
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, "
            f"affine={self.affine}, bias={self.bias is not None}, "
            f"track_running_stats={self.track_running_stats}"
        )


class BatchNorm1d(_BatchNorm):
    """`torch.nn.BatchNorm1d`, of `[N, C]` or `[N, C, L]`; see `functional.batch_norm`."""

    _dimensions = (2, 3)


class BatchNorm2d(_BatchNorm):
    """`torch.nn.BatchNorm2d`, of `[N, C, H, W]`; see `functional.batch_norm`."""

    _dimensions = (4,)


class BatchNorm3d(_BatchNorm):
    """`torch.nn.BatchNorm3d`, of `[N, C, D, H, W]`; see `functional.batch_norm`."""

    _dimensions = (5,)
