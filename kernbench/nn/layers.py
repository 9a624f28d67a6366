"""Layers of `torch.nn`."""

from collections.abc import Sequence
from math import sqrt
from typing import Any, Literal

from kernbench.errors import UnsupportedError, call_site, site_fact
from kernbench.memory import DType
from kernbench.nn import (
    activation_layers,
    containers,
    functional,
    init,
    loss_layers,
    norm_layers,
    parameters,
)
from kernbench.nn.activation_layers import *  # noqa: F403 - one namespace for users
from kernbench.nn.containers import *  # noqa: F403
from kernbench.nn.dropouts import check_probability
from kernbench.nn.loss_layers import *  # noqa: F403
from kernbench.nn.module import Module, Parameter
from kernbench.nn.norm_layers import *  # noqa: F403
from kernbench.nn.parameters import *  # noqa: F403
from kernbench.operations.creation import empty
from kernbench.process.process import current_process
from kernbench.process.types import DeviceLike
from kernbench.tensors.errors import refuse
from kernbench.tensors.nodes import recording
from kernbench.tensors.tensor import Tensor

__all__ = [
    "GELU",
    "Dropout",
    "Embedding",
    "Identity",
    "LayerNorm",
    "Linear",
    "RMSNorm",
    "ReLU",
    "SiLU",
]
__all__ += activation_layers.__all__
__all__ += containers.__all__
__all__ += loss_layers.__all__
__all__ += norm_layers.__all__
__all__ += parameters.__all__


def _new(*size: int, device: DeviceLike | None, dtype: DType | None) -> Parameter:
    return Parameter(empty(*size, device=device, dtype=dtype))


class Linear(Module):
    """`torch.nn.Linear`: `x @ weight.T + bias`.

    Args:
        in_features: Width of the input.
        out_features: Width of the output.
        bias: Whether to add a bias.
        device: Device of the parameters; by default the host on main, a rank's device in a worker.
        dtype: Type of the parameters; float32 by default.
    """

    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: DeviceLike | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = _new(out_features, in_features, device=device, dtype=dtype)
        self.register_parameter(
            "bias", _new(out_features, device=device, dtype=dtype) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the parameters anew from the rank's generator, as PyTorch does."""
        init.kaiming_uniform_(self.weight, a=sqrt(5))
        if self.bias is not None:
            bound = 1 / sqrt(self.in_features) if self.in_features else 0.0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        """Returns `[..., out_features]` for an input `[..., in_features]`."""
        return functional.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        """See `Module`."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class Embedding(Module):
    """`torch.nn.Embedding`: rows of a table.

    Args:
        num_embeddings: Number of rows.
        embedding_dim: Width of a row.
        padding_idx: Row that is 0 at first and gets no gradient; None for no such row.
        max_norm: Must be None.
        norm_type: Must be 2.
        scale_grad_by_freq: Must be False.
        sparse: Must be False.
        _weight: Must be None.
        _freeze: Must be False.
        device: Device of the table, as for `Linear`.
        dtype: Type of the table; float32 by default.

    Raises:
        UnsupportedError: For other values of arguments that are not simulated.
    """

    weight: Parameter

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: None = None,
        _freeze: bool = False,
        device: DeviceLike | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        functional.refuse_embedding("Embedding", max_norm, norm_type, scale_grad_by_freq, sparse)
        refuse("Embedding", _weight=_weight, _freeze=_freeze or None)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = padding_idx
        self.weight = _new(num_embeddings, embedding_dim, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the table anew from the standard normal distribution."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with recording(current_process(), False):
                self.weight[self.padding_idx].fill_(0)

    def forward(self, input: Tensor) -> Tensor:
        """Returns the rows with the numbers in `input`, as `[*input.shape, embedding_dim]`."""
        return functional.embedding(input, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        """See `Module`."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


def _shape(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    if isinstance(normalized_shape, int):
        return (normalized_shape,)
    return tuple(normalized_shape)


class LayerNorm(Module):
    """`torch.nn.LayerNorm`: normalises to mean 0 and variance 1.

    Args:
        normalized_shape: Extents of the last dimensions, which are normalised.
        eps: Number added to the variance.
        elementwise_affine: Whether to multiply with a weight.
        bias: Whether to add a bias too.
        device: Device of the parameters, as for `Linear`.
        dtype: Type of the parameters; float32 by default.
    """

    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: DeviceLike | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        for name, wanted in (("weight", elementwise_affine), ("bias", elementwise_affine and bias)):
            value = _new(*self.normalized_shape, device=device, dtype=dtype) if wanted else None
            self.register_parameter(name, value)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the weight to 1 and the bias to 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        """Returns a tensor of the input's shape."""
        return functional.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """See `Module`."""
        return (
            f"{self.normalized_shape}, eps={self.eps}, "
            f"elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}"
        )


class RMSNorm(Module):
    """`torch.nn.RMSNorm`: divides by the root mean square.

    Args:
        normalized_shape: Extents of the last dimensions, which are normalised.
        eps: Number added to the mean square; None: see `functional.rms_norm`.
        elementwise_affine: Whether to multiply with a weight.
        device: Device of the weight, as for `Linear`.
        dtype: Type of the weight; float32 by default.
    """

    weight: Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: DeviceLike | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _shape(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        shape = self.normalized_shape
        self.register_parameter(
            "weight", _new(*shape, device=device, dtype=dtype) if elementwise_affine else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the weight to 1."""
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Returns a tensor of the input's shape."""
        return functional.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """See `Module`."""
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


# Without parameters


class Identity(Module):
    """`torch.nn.Identity`: returns its input; takes the arguments of any layer that it replaces."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        """Returns the input."""
        return input


class ReLU(Module):
    """`torch.nn.ReLU`: the larger one of each element and 0."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Returns a tensor of the input's shape."""
        return functional.relu(input, self.inplace)

    def extra_repr(self) -> str:
        """See `Module`."""
        return "inplace=True" if self.inplace else ""


class SiLU(Module):
    """`torch.nn.SiLU`: `x * sigmoid(x)`; `inplace` must be False."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        refuse("SiLU", inplace=inplace or None)

    def forward(self, input: Tensor) -> Tensor:
        """Returns a tensor of the input's shape."""
        return functional.silu(input)


class GELU(Module):
    """`torch.nn.GELU`: exact, or approximated with `tanh`."""

    def __init__(self, approximate: Literal["none", "tanh"] = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        """Returns a tensor of the input's shape."""
        return functional.gelu(input, approximate=self.approximate)

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"approximate={self.approximate!r}"


class Dropout(Module):
    """`torch.nn.Dropout`: drops elements with probability `p` in training mode.

    Raises:
        OptionError: If `p` is not between 0 and 1.
        UnsupportedError: For `inplace`.
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        check_probability(p)
        if inplace:
            raise UnsupportedError(
                "Dropout(inplace=True) is not simulated", [site_fact(call_site())]
            )
        self.p = p

    def forward(self, input: Tensor) -> Tensor:
        """Returns a tensor of the input's shape."""
        return functional.dropout(input, self.p, self.training)

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"p={self.p}, inplace=False"
