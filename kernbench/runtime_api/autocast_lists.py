"""What CUDA's autocast does with each operation: the lists of PyTorch's `ATen/autocast_mode.h`.

An operation is named with its overload, as the dispatcher names it. That these are all operations
for which PyTorch has a kernel of autocast, and that the types are CUDA's, is held by
`tests/bridge/test_bridge_autocast.py` against PyTorch's own kernels.
"""

from typing import Final

LOWER: Final = (
    "_convolution",
    "_convolution.deprecated",
    "_scaled_dot_product_flash_attention",
    "_thnn_fused_gru_cell",
    "_thnn_fused_lstm_cell",
    "addbmm",
    "addmm",
    "addmv",
    "addr",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "convolution",
    "cudnn_convolution",
    "cudnn_convolution_transpose",
    "einsum",
    "gru_cell",
    "linalg_multi_dot",
    "linalg_vecdot",
    "linear",
    "lstm_cell",
    "matmul",
    "mm",
    "mv",
    "prelu",
    "rnn_relu_cell",
    "rnn_tanh_cell",
    "scaled_dot_product_attention",
)
"""Operands become the lower type."""

CUDNN: Final = (
    "gru.data",
    "gru.input",
    "lstm.data",
    "lstm.input",
    "rnn_relu.data",
    "rnn_relu.input",
    "rnn_tanh.data",
    "rnn_tanh.input",
)
"""Networks that on CUDA are one operation of cuDNN, whose operands become the lower type.

On a CPU PyTorch takes other operations for them, of which autocast would see some.
"""

FULL: Final = (
    "_upsample_bicubic2d_aa",
    "_upsample_bilinear2d_aa",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "acos",
    "asin",
    "binary_cross_entropy_with_logits",
    "cdist",
    "cosh",
    "cosine_embedding_loss",
    "cosine_similarity",
    "dist",
    "erfinv",
    "exp",
    "expm1",
    "frobenius_norm.dim",
    "group_norm",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "linalg_matrix_sqrth",
    "log",
    "log10",
    "log1p",
    "log2",
    "logsumexp",
    "margin_ranking_loss",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "native_layer_norm",
    "nll_loss",
    "nll_loss2d",
    "nuclear_norm",
    "nuclear_norm.dim",
    "pdist",
    "poisson_nll_loss",
    "pow.Scalar",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "reciprocal",
    "renorm",
    "rms_norm",
    "rsqrt",
    "sinh",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softplus",
    "tan",
    "triplet_margin_loss",
    "upsample_bicubic2d",
    "upsample_bilinear2d",
    "upsample_linear1d",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "upsample_trilinear3d",
)
"""Operands become float32."""

FULL_INSIDE: Final = (
    "cumprod",
    "cumsum",
    "linalg_matrix_norm",
    "linalg_matrix_norm.str_ord",
    "linalg_vector_norm",
    "log_softmax.int",
    "prod",
    "prod.dim_int",
    "softmax.int",
    "sum",
    "sum.dim_IntList",
)
"""Operands stay as they are; the operation is told to compute in float32, unless told otherwise."""

FULL_BY: Final = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
}
"""Likewise, by another overload, whose last argument is the type."""

WIDEST: Final = (
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "grid_sampler",
    "index_put",
    "scatter_add",
    "tensordot",
    "vdot",
)
"""Operands become float32 if one of them is that."""

UNSAFE: Final = "binary_cross_entropy"
"""What CUDA's autocast refuses."""

WORDS: Final = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
    "In this case, combine the two layers using "
    "torch.nn.functional.binary_cross_entropy_with_logits\n"
    "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
    "safe to autocast."
)
"""What it says of that."""

INSIDE: Final = ("_cudnn_rnn",)
"""Operations of cuDNN that no program here reaches: `CUDNN` stands for them."""

KNOWN: Final = frozenset((*LOWER, *FULL, *FULL_INSIDE, *FULL_BY, *WIDEST, UNSAFE, *INSIDE))
"""All of them."""
