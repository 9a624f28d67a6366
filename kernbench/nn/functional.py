"""`torch.nn.functional`: the operations of layers, fused where PyTorch has one kernel for them."""

from collections.abc import Sequence
from math import prod

import numpy as np

from kernbench.errors import OptionError, call_site, site_fact
from kernbench.memory import Array, DType, dtypes
from kernbench.nn import activations, distances, losses, norms, vectors
from kernbench.nn.activations import *  # noqa: F403 - one namespace for users
from kernbench.nn.activations import chosen_dim
from kernbench.nn.attention import scaled_dot_product_attention
from kernbench.nn.distances import *  # noqa: F403
from kernbench.nn.dropouts import dropout
from kernbench.nn.losses import *  # noqa: F403
from kernbench.nn.norms import *  # noqa: F403
from kernbench.nn.vectors import *  # noqa: F403
from kernbench.operations import reductions, unary
from kernbench.operations.fused import kernel
from kernbench.operations.linalg import product
from kernbench.operations.shaping import check_index, checked
from kernbench.operations.unary import gelu
from kernbench.tensors.errors import TensorError, refuse
from kernbench.tensors.host_time import spend_views
from kernbench.tensors.operands import read_in_cpp
from kernbench.tensors.tensor import Tensor

read_in_cpp(__name__)

__all__ = [
    "dropout",
    "embedding",
    "gelu",
    "layer_norm",
    "linear",
    "log_softmax",
    "relu",
    "rms_norm",
    "scaled_dot_product_attention",
    "silu",
    "softmax",
    "swiglu",
]
__all__ += activations.__all__
__all__ += distances.__all__
__all__ += losses.__all__
__all__ += norms.__all__
__all__ += vectors.__all__


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns `input @ weight.T + bias`: one matrix product, rounded once.

    Args:
        input: Tensor of shape `[..., in]`.
        weight: Tensor of shape `[out, in]`, in the type of `input`.
        bias: Tensor of shape `[out]`; None for no bias.

    Returns:
        A tensor of shape `[..., out]`.

    Raises:
        TensorError: If the shapes do not fit, or the types differ.
    """
    x, w = input.window.shape, weight.window.shape
    if not x or len(w) != 2 or x[-1] != w[1]:
        raise TensorError(
            f"linear: input of shape {list(x)} does not fit a weight of shape {list(w)}",
            [site_fact(call_site()), "expected [..., in] and [out, in]"],
        )
    if bias is not None and bias.window.shape != w[:1]:
        raise TensorError(
            f"linear: a bias of shape {list(bias.window.shape)} does not fit a weight of shape "
            f"{list(w)}",
            [site_fact(call_site()), f"expected {list(w[:1])}"],
        )

    def compute(a: Array, b: Array, c: Array | None = None) -> Array:
        result: Array = np.matmul(a, b.T)
        if c is not None:
            result += c
        return result

    # PyTorch turns the weight, and makes one matrix of a batch.
    spend_views(input, 1 if len(x) == 2 else 3)
    operands = (input, weight) if bias is None else (input, weight, bias)
    sizes = (1, prod(x[:-1]), w[0], w[1])
    kernel = "mm" if bias is None else "addmm"
    return product("linear", operands, (*x[:-1], w[0]), sizes, compute, kernel=kernel)


def refuse_embedding(
    name: str, max_norm: object, norm_type: float, scale_grad_by_freq: bool, sparse: bool
) -> None:
    """Refuses options of embeddings that are not simulated.

    Args:
        name: Name of the function or module, for the error.
        max_norm: Must be None.
        norm_type: Must be 2.
        scale_grad_by_freq: Must be False.
        sparse: Must be False.

    Raises:
        UnsupportedError: If an option has another value; names the first such option.
    """
    refuse(
        name,
        max_norm=max_norm,
        norm_type=None if norm_type == 2 else norm_type,
        scale_grad_by_freq=scale_grad_by_freq or None,
        sparse=sparse or None,
    )


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Returns the rows of `weight` whose numbers are in `input`, as `[*input.shape, width]`.

    Args:
        input: Row numbers: integers, of any shape.
        weight: Table of shape `[rows, width]`.
        padding_idx: Row that gets no gradient; negative numbers count from the end. None for no
            such row.
        max_norm: Must be None.
        norm_type: Must be 2: it belongs to `max_norm`.
        scale_grad_by_freq: Must be False.
        sparse: Must be False.

    Raises:
        IndexOutOfBoundsError: If a row does not exist (M1); found when the kernel runs.
        OptionError: If `padding_idx` is not a row of the table.
        TensorError: If `weight` is no matrix.
        UnsupportedError: For other values of arguments that are not simulated.
    """
    refuse_embedding("embedding", max_norm, norm_type, scale_grad_by_freq, sparse)
    check_index("embedding", input)
    if len(weight.window.shape) != 2:
        raise TensorError(
            f"embedding: 'weight' must be 2-D, got a shape of {list(weight.window.shape)}",
            [site_fact(call_site())],
        )
    rows, width = weight.window.shape
    if padding_idx is not None:
        if not -rows <= padding_idx < rows:
            raise OptionError(
                f"Padding_idx must be within num_embeddings; got {padding_idx} of {rows}",
                [site_fact(call_site())],
            )
        padding_idx %= rows

    def pick(table: Array, ids: Array) -> Array:
        taken: Array = table[checked("embedding", ids, rows, 0, code="M1")]
        return taken

    shape = (*input.window.shape, width)
    return kernel("embedding", pick, (weight, input), shape, weight.dtype, padding_idx=padding_idx)


# Activations


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """Returns the larger one of each element and 0; `inplace` writes the result into `input`."""
    return unary.relu_(input) if inplace else unary.relu(input)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """Returns `x * sigmoid(x)` for each element.

    Raises:
        UnsupportedError: For `inplace`.
    """
    refuse("silu", inplace=inplace or None)
    return unary.silu(input)


def softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None
) -> Tensor:
    """Returns the softmax along a dimension, see `torch.softmax`.

    Args:
        dim: The dimension. Without one PyTorch chooses and warns: dimension 0 of a tensor with 0, 1
            or 3 dimensions, else dimension 1.
        _stacklevel: In PyTorch, the frame that the warning names; here the warning always names the
            user's line.
        dtype: Type to which the elements are converted first; the tensor's own by default.
    """
    del _stacklevel
    return reductions.softmax(input, chosen_dim("softmax", input, dim), dtype)


def log_softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None
) -> Tensor:
    """Returns the logarithm of the softmax along a dimension.

    Args:
        dim: The dimension; None as for `softmax`.
        _stacklevel: Not used, as for `softmax`.
        dtype: Type to which the elements are converted first; the tensor's own by default.
    """
    del _stacklevel
    return reductions.log_softmax(input, chosen_dim("log_softmax", input, dim), dtype)


def swiglu(input: Tensor) -> Tensor:
    """Returns `silu(gate) * up`, where `gate` and `up` are the halves of the last dimension.

    PyTorch has no such function and needs three kernels; here it is one kernel, as in Megatron.

    Raises:
        TensorError: If the last dimension is odd.
    """
    shape = input.window.shape
    if not shape or shape[-1] % 2:
        raise TensorError(
            f"swiglu: the last dimension must be even, got shape {list(shape)}",
            [site_fact(call_site())],
        )

    def compute(x: Array) -> Array:
        gate, up = np.split(x, 2, axis=-1)
        result: Array = gate / (1 + np.exp(-gate)) * up
        return result

    return kernel("swiglu", compute, (input,), (*shape[:-1], shape[-1] // 2), input.dtype)


# Normalisation


def _check_norm(
    name: str, input: Tensor, normalized_shape: Sequence[int], *affine: Tensor | None
) -> tuple[int, ...]:
    """Returns the normalised dimensions, which are the last ones."""
    wanted, shape = tuple(normalized_shape), input.window.shape
    if not wanted or shape[len(shape) - len(wanted) :] != wanted:
        raise TensorError(
            f"Given normalized_shape={list(wanted)}, expected input with shape "
            f"[*, {', '.join(map(str, wanted))}], but got input of size{list(shape)}",
            [site_fact(call_site())],
        )
    for each in affine:
        if each is not None and each.window.shape != wanted:
            raise TensorError(
                f"{name}: expected weight and bias of shape {list(wanted)}, got "
                f"{list(each.window.shape)}",
                [site_fact(call_site())],
            )
    return tuple(range(-len(wanted), 0))


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalises the last dimensions to mean 0 and variance 1, then applies `weight` and `bias`.

    Args:
        input: Tensor whose last dimensions are `normalized_shape`.
        normalized_shape: Extents of the normalised dimensions.
        weight: Factors of shape `normalized_shape`; None for 1.
        bias: Summands of shape `normalized_shape`; None for 0.
        eps: Number added to the variance.

    Raises:
        TensorError: If the shapes do not fit.
    """
    axes = _check_norm("layer_norm", input, normalized_shape, weight, bias)
    return norms.normalised("layer_norm", input, weight, bias, axes, eps)


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Divides the last dimensions by their root mean square, then multiplies with `weight`.

    Args:
        input: Tensor whose last dimensions are `normalized_shape`.
        normalized_shape: Extents of the normalised dimensions.
        weight: Factors of shape `normalized_shape`; None for 1.
        eps: Number added to the mean square; by default the distance from 1 to the next number of
            the type in which the mean is computed: float32 for 16-bit floats.

    Raises:
        TensorError: If the shapes do not fit.
    """
    axes = _check_norm("rms_norm", input, normalized_shape, weight)
    added = _EPSILON[input.dtype] if eps is None else eps

    def compute(x: Array, w: Array | None) -> Array:
        if not x.size:
            return x
        size = np.mean(x * x, axis=axes, keepdims=True) + x.dtype.type(added)
        result: Array = x / np.sqrt(size)
        return result if w is None else result * w

    operands = (input, weight)
    return kernel(
        "rms_norm", compute, operands, input.window.shape, input.dtype, axes=axes, eps=added
    )


_EPSILON = {
    dtypes.float64: 2.0**-52,
    dtypes.float32: 2.0**-23,
    dtypes.float16: 2.0**-23,
    dtypes.bfloat16: 2.0**-23,
}
