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

FILLS: Final = {
    **dict.fromkeys(("normal_", "randn", "randn_like", "exponential_", "log_normal_"), "normal"),
    **dict.fromkeys(("cauchy_", "geometric_", "normal"), "normal"),
    **dict.fromkeys(("uniform_", "rand", "rand_like", "random_", "randint"), "uniform"),
    "randint_like": "uniform",
    **dict.fromkeys(("bernoulli_", "bernoulli"), "bernoulli"),
    **dict.fromkeys(("zero_", "fill_", "zeros", "zeros_like", "ones", "ones_like"), "fill"),
    **dict.fromkeys(("full", "full_like", "new_zeros", "new_ones", "new_full"), "fill"),
    **dict.fromkeys(("scalar_tensor", "arange", "eye", "linspace", "logspace"), "fill"),
    **dict.fromkeys(("tril_indices", "triu_indices"), "fill"),
}
"""Operators that read no operand, with the kernel of machines' files that writes their result."""

REDUCTIONS: Final = (
    *("sum", "mean", "prod", "amax", "amin", "any", "all", "std", "var", "std_mean", "var_mean"),
    *("norm", "linalg_vector_norm", "logsumexp", "nansum", "count_nonzero", "aminmax"),
    *("bincount", "histc"),
)
"""Operators that reduce dimensions."""

LOOK_UPS: Final = (*("index", "gather", "take", "take_along_dim", "masked_select", "nonzero"),)
"""Operators that read elements whose places are given."""

SCATTERS: Final = (
    *("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put", "scatter", "scatter_"),
    *("scatter_add", "scatter_add_", "scatter_reduce", "index_add", "index_add_", "index_copy"),
    *("index_copy_", "index_fill", "index_fill_", "slice_scatter", "select_scatter"),
    *("masked_scatter", "masked_scatter_"),
)
"""Operators that write elements to places that are given."""

FREE_NAMES: Final = frozenset(
    (
        *("detach", "empty", "empty_strided", "empty_like", "empty_permuted", "_unsafe_view"),
        *("new_empty", "lift", "lift_fresh", "set_", "resize_", "resize_as_", "alias"),
        *("new_empty_strided", "record_stream", "_reshape_alias", "is_same_size", "is_pinned"),
        *("_pin_memory", "sym_size", "sym_stride", "resize_storage_bytes_", "_version"),
        *("detach_", "squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_", "as_strided_"),
        *("_nested_tensor_size", "_assert_tensor_metadata", "_has_compatible_shallow_copy_type"),
    )
)
"""Operators that run no kernel."""

COPIES: Final = frozenset(("clone", "_to_copy", "copy_", "copy", "contiguous", "to_sparse"))
"""Operators that write each element of a tensor elsewhere, maybe as another type."""

FREE_SPACES: Final = frozenset(
    ("_c10d_functional", "c10d", "_c10d_functional_autograd", "profiler", "prim", "_dtensor")
)
"""Libraries of operators that run no kernel, or whose commands others issue."""
