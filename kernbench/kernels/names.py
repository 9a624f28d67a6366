"""What a kernel is called: the operator of PyTorch that runs it, as PyTorch's profiler writes it.

Traces, tables, reports of mistakes and prices know a kernel by this name, under both torches.
"""

from typing import Final

from kernbench.caches import cached


@cached("kernels.names")
def kernel_name(operator: str, library: str = "aten") -> str:
    """Returns the name of a kernel, such as `aten::_softmax`.

    Args:
        operator: PyTorch's name of the operator; with `_` at the end, it works in place.
        library: Library of operators that has it.
    """
    return f"{library}::{operator}"


_OPERATORS: Final = {
    # Functions that call an operator of another name.
    "batch_norm": "native_batch_norm",
    "batch_norm_elemt": "native_batch_norm",
    "clamp_min": "clamp",
    "clamp_max": "clamp",
    "clamp_min_": "clamp_",
    "clamp_max_": "clamp_",
    "group_norm": "native_group_norm",
    "layer_norm": "native_layer_norm",
    "linear": "addmm",
    "log_softmax": "_log_softmax",
    "nll_loss": "nll_loss_forward",
    "nll_loss2d": "nll_loss2d_forward",
    "norm": "linalg_vector_norm",
    "rms_norm": "_fused_rms_norm",
    "softmax": "_softmax",
    "repeat_interleave": "clone",
    "square": "pow",
    # Gradients.
    "batch_norm_backward": "native_batch_norm_backward",
    "batch_norm_elemt_backward": "native_batch_norm_backward",
    "group_norm_backward": "native_group_norm_backward",
    "layer_norm_backward": "native_layer_norm_backward",
    "log_sigmoid_forward_backward": "log_sigmoid_backward",
    "log_softmax_backward": "_log_softmax_backward_data",
    "relu_backward": "threshold_backward",
    "rms_norm_backward": "_fused_rms_norm_backward",
    "softmax_backward": "_softmax_backward_data",
}

OPERATORS: Final = {kernel_name(name): kernel_name(to) for name, to in _OPERATORS.items()}
"""Kernels of the operations of `kernbench.torch` that PyTorch knows by other names."""
