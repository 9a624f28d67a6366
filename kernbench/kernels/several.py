"""Operations that kernbench's own torch runs as one command, and PyTorch as several kernels."""

from collections.abc import Callable
from typing import Any, Final

SEVERAL: Final[dict[str, tuple[int, ...]]] = {
    **dict.fromkeys(
        (
            *("abs_backward", "addcmul_backward", "expm1_backward", "log10_backward"),
            *("log1p_backward", "log2_backward", "sin_backward", "sqrt_backward"),
            *("clamp_max_backward", "clamp_min_backward"),
        ),
        (1, 2),
    ),
    **dict.fromkeys(
        (
            *("cos_backward", "pow_backward", "reciprocal_backward", "rsqrt_backward"),
            *("square_backward", "tan_backward"),
        ),
        (1, 1, 2),
    ),
    **dict.fromkeys(("maximum_backward", "minimum_backward"), (1, 2, 3, 2, 2)),
    **dict.fromkeys(("logaddexp_backward", "logaddexp2_backward"), (2, 1, 1, 2)),
    "amax_backward": (2, 1, 2, 2),
    "clamp_backward": (1, 1, 2, 2),
    "div_backward": (2, 2, 1, 2),
    "erf_backward": (1, 1, 1, 1, 2),
}
"""By name, how many operands each of PyTorch's elementwise kernels reads (derivatives.yaml)."""

FURTHER: Final = {f"aten::{name}": len(kernels) - 1 for name, kernels in SEVERAL.items()}
"""By name with `aten::`, how many operations PyTorch's host calls beside one."""


def counted(real: Callable[..., Any], is_ours: Callable[[Any], bool]) -> Callable[..., Any]:
    """Returns `bincount` as CUDA has it: the host reads the least and the greatest value before.

    It refuses the least if that is negative, and makes bins up to the greatest. Source:
    `_bincount_cuda_template` in PyTorch's aten/src/ATen/native/cuda/SummaryOps.cu.

    Args:
        real: PyTorch's function.
        is_ours: Says whether a tensor is on a simulated device.
    """

    def bincount(input: Any, *rest: Any, **named: Any) -> Any:
        if is_ours(input) and input.numel():
            input.min().item()
            input.max().item()
        return real(input, *rest, **named)

    return bincount


def one_hot(torch: Any, is_ours: Callable[[Any], bool]) -> Callable[..., Any]:
    """Returns `one_hot` as CUDA has it: zeros, into which ones are scattered.

    The host reads the greatest value if it is not told how many classes there are. Source:
    `one_hot` in PyTorch's aten/src/ATen/native/Onehot.cpp.

    Args:
        torch: PyTorch, with its own function.
        is_ours: Says whether a tensor is on a simulated device, and stands for itself.

    Returns:
        The function, which raises RuntimeError in PyTorch's words.
    """
    real: Callable[..., Any] = torch.nn.functional.one_hot

    def one_hot(tensor: Any, num_classes: int = -1) -> Any:
        if not is_ours(tensor) or tensor.dtype is not torch.int64:  # which PyTorch refuses
            return real(tensor, num_classes)
        if not tensor.numel():
            if num_classes < 1:
                raise RuntimeError("Can not infer total number of classes from empty tensor.")
            return tensor.new_empty((*tensor.shape, num_classes))
        if num_classes == -1:
            num_classes = tensor.max().item() + 1
        elif num_classes < 1:
            raise RuntimeError("num_classes should be positive")
        shape = *tensor.shape, num_classes
        made = torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
        return made.scatter_(-1, tensor.unsqueeze(-1), 1)

    return one_hot
