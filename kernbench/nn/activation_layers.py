"""Modules of activations, and of other functions without parameters."""

from collections.abc import Sequence

from kernbench.nn import functional
from kernbench.nn.module import Module
from kernbench.nn.vectors import PadMode
from kernbench.tensors.errors import refuse
from kernbench.tensors.tensor import Tensor

__all__ = [
    "ELU",
    "GLU",
    "SELU",
    "ConstantPad1d",
    "ConstantPad2d",
    "CosineSimilarity",
    "Flatten",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "Mish",
    "PairwiseDistance",
    "ReLU6",
    "Sigmoid",
    "Softmax",
    "Softmin",
    "Softplus",
    "Softsign",
    "Tanh",
    "Unflatten",
    "ZeroPad2d",
]


class Tanh(Module):
    """`torch.nn.Tanh`: the hyperbolic tangent."""

    def forward(self, input: Tensor) -> Tensor:
        """Returns a tensor of the input's shape."""
        return functional.tanh(input)


class Sigmoid(Module):
    """`torch.nn.Sigmoid`: `1 / (1 + exp(-x))`."""

    def forward(self, input: Tensor) -> Tensor:
        """Returns a tensor of the input's shape."""
        return functional.sigmoid(input)


class LogSigmoid(Module):
    """`torch.nn.LogSigmoid`: the logarithm of the sigmoid."""

    def forward(self, input: Tensor) -> Tensor:
        """Returns a tensor of the input's shape."""
        return functional.logsigmoid(input)


class Softsign(Module):
    """`torch.nn.Softsign`: `x / (1 + |x|)`."""

    def forward(self, input: Tensor) -> Tensor:
        """Returns a tensor of the input's shape."""
        return functional.softsign(input)


class _AlongDim(Module):
    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"dim={self.dim}"


class Softmax(_AlongDim):
    """`torch.nn.Softmax`, see `functional.softmax`."""

    def forward(self, input: Tensor) -> Tensor:
        """Returns a tensor of the input's shape."""
        return functional.softmax(input, self.dim)


class LogSoftmax(_AlongDim):
    """`torch.nn.LogSoftmax`, see `functional.log_softmax`."""

    def forward(self, input: Tensor) -> Tensor:
        """Returns a tensor of the input's shape."""
        return functional.log_softmax(input, self.dim)


class Softmin(_AlongDim):
    """`torch.nn.Softmin`, see `functional.softmin`."""

    def forward(self, input: Tensor) -> Tensor:
        """Returns a tensor of the input's shape."""
        return functional.softmin(input, self.dim)


class GLU(Module):
    """`torch.nn.GLU`, see `functional.glu`."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """Returns a tensor with half of the dimension."""
        return functional.glu(input, self.dim)

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"dim={self.dim}"


class LeakyReLU(Module):
    """`torch.nn.LeakyReLU`, see `functional.leaky_relu`."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        self.negative_slope = negative_slope
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Returns a tensor of the input's shape."""
        return functional.leaky_relu(input, self.negative_slope, self.inplace)

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"negative_slope={self.negative_slope}{_inplace(self.inplace)}"


def _inplace(inplace: bool) -> str:
    return ", inplace=True" if inplace else ""


class ELU(Module):
    """`torch.nn.ELU`, see `functional.elu`."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha = alpha
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Returns a tensor of the input's shape."""
        return functional.elu(input, self.alpha, self.inplace)

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"alpha={self.alpha}{_inplace(self.inplace)}"


class SELU(Module):
    """`torch.nn.SELU`, see `functional.selu`."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Returns a tensor of the input's shape."""
        return functional.selu(input, self.inplace)

    def extra_repr(self) -> str:
        """See `Module`."""
        return "inplace=True" if self.inplace else ""


class Hardtanh(Module):
    """`torch.nn.Hardtanh`, see `functional.hardtanh`.

    Args:
        min_val: The lower bound.
        max_val: The upper bound.
        inplace: Whether to write the result into the input.
        min_value: Must be None: PyTorch's old name for `min_val`.
        max_value: Must be None: PyTorch's old name for `max_val`.

    Raises:
        UnsupportedError: If an argument that must be None is not.
    """

    def __init__(
        self,
        min_val: float = -1.0,
        max_val: float = 1.0,
        inplace: bool = False,
        min_value: None = None,
        max_value: None = None,
    ) -> None:
        super().__init__()
        refuse("Hardtanh", min_value=min_value, max_value=max_value)
        self.min_val = min_val
        self.max_val = max_val
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Returns a tensor of the input's shape."""
        return functional.hardtanh(input, self.min_val, self.max_val, self.inplace)

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"min_val={self.min_val}, max_val={self.max_val}{_inplace(self.inplace)}"


class ReLU6(Hardtanh):
    """`torch.nn.ReLU6`: each element within 0 and 6."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(0.0, 6.0, inplace)

    def extra_repr(self) -> str:
        """See `Module`."""
        return "inplace=True" if self.inplace else ""


class Softplus(Module):
    """`torch.nn.Softplus`, see `functional.softplus`."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta = beta
        self.threshold = threshold

    def forward(self, input: Tensor) -> Tensor:
        """Returns a tensor of the input's shape."""
        return functional.softplus(input, self.beta, self.threshold)

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"beta={self.beta}, threshold={self.threshold}"


class Mish(Module):
    """`torch.nn.Mish`: `x * tanh(softplus(x))`; `inplace` must be False."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        refuse("Mish", inplace=inplace or None)

    def forward(self, input: Tensor) -> Tensor:
        """Returns a tensor of the input's shape."""
        return functional.mish(input)


class Hardswish(Module):
    """`torch.nn.Hardswish`: `x * relu6(x + 3) / 6`; `inplace` must be False."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        refuse("Hardswish", inplace=inplace or None)

    def forward(self, input: Tensor) -> Tensor:
        """Returns a tensor of the input's shape."""
        return functional.hardswish(input)


class Hardsigmoid(Module):
    """`torch.nn.Hardsigmoid`: `relu6(x + 3) / 6`; `inplace` must be False."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        refuse("Hardsigmoid", inplace=inplace or None)

    def forward(self, input: Tensor) -> Tensor:
        """Returns a tensor of the input's shape."""
        return functional.hardsigmoid(input)


# Shapes


class Flatten(Module):
    """`torch.nn.Flatten`: makes one dimension of several.

    Args:
        start_dim: The first of them.
        end_dim: The last of them.
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim = start_dim
        self.end_dim = end_dim

    def forward(self, input: Tensor) -> Tensor:
        """Returns a view where there is one, else a copy."""
        return input.flatten(self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """`torch.nn.Unflatten`: makes several dimensions of one.

    Args:
        unflattened_size: Extents of the new dimensions.
    """

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        super().__init__()
        self.dim = dim
        self.unflattened_size = unflattened_size

    def forward(self, input: Tensor) -> Tensor:
        """Returns a view."""
        return input.unflatten(self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class _Pad(Module):
    _sides = 2

    def __init__(self, padding: int | Sequence[int], mode: PadMode, value: float) -> None:
        super().__init__()
        self.padding = (padding,) * self._sides if isinstance(padding, int) else tuple(padding)
        self.mode: PadMode = mode
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        """Returns the padded tensor, see `functional.pad`."""
        return functional.pad(input, self.padding, self.mode, self.value)

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_Pad):
    """`torch.nn.ConstantPad1d`: adds a constant around the last dimension."""

    def __init__(self, padding: int | Sequence[int], value: float) -> None:
        super().__init__(padding, "constant", value)


class ConstantPad2d(_Pad):
    """`torch.nn.ConstantPad2d`: adds a constant around the last two dimensions."""

    _sides = 4

    def __init__(self, padding: int | Sequence[int], value: float) -> None:
        super().__init__(padding, "constant", value)


class ZeroPad2d(ConstantPad2d):
    """`torch.nn.ZeroPad2d`: adds zeros around the last two dimensions."""

    def __init__(self, padding: int | Sequence[int]) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        """See `Module`."""
        return f"{self.padding}"


# Vectors


class CosineSimilarity(Module):
    """`torch.nn.CosineSimilarity`, see `functional.cosine_similarity`."""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim = dim
        self.eps = eps

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Returns the cosines."""
        return functional.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    """`torch.nn.PairwiseDistance`, see `functional.pairwise_distance`.

    Args:
        p: Exponent of the norm.
        eps: Number added to each difference.
        keepdim: Whether the dimension stays, with extent 1.
    """

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm = p
        self.eps = eps
        self.keepdim = keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Returns the distances."""
        return functional.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)
