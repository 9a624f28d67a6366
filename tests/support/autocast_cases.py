"""Calls of every operation that autocast knows, and of every function of PyTorch that calls some.

A case takes a maker of tensors and calls something; what is compared is the types that come out.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from autocast_oracle import ATEN, Make
from torch import nn

Case = Callable[[Make], Any]


def _words(text: str) -> list[str]:
    return text.split()


def _of(name: str, *shape: int, **named: Any) -> Case:
    """Returns a call of a function of `functional` on one tensor."""
    return lambda t: getattr(F, name)(t(*shape), **named)


def _one(name: str) -> Case:
    packet, _, overload = name.partition(".")
    return lambda t: getattr(getattr(ATEN, packet), overload or "default")(t(4, 4))


def _conv(dim: int, *, transposed: bool = False) -> Case:
    name = f"conv_transpose{dim}d" if transposed else f"conv{dim}d"
    return lambda t: getattr(F, name)(t(1, 2, *[4] * dim), t(2, 2, *[3] * dim), t(2))


def _cell(name: str, rows: int, *, cell: bool = False) -> Case:
    def call(t: Make) -> Any:
        state = [t(2, 4), t(2, 4)] if cell else t(2, 4)
        weights = t(rows * 4, 4), t(rows * 4, 4), t(rows * 4), t(rows * 4)
        return getattr(torch, name)(t(2, 4), state, *weights)

    return call


def _convolution(t: Make, name: str) -> Any:
    rest = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    flags = {"convolution": (), "_convolution": (False, False, False, False)}
    if name == "_convolution.deprecated":
        return ATEN._convolution.deprecated(
            t(1, 2, 4, 4), t(2, 2, 3, 3), None, *rest, False, False, False
        )
    return getattr(ATEN, name)(t(1, 2, 4, 4), t(2, 2, 3, 3), None, *rest, *flags[name])


def _upsample(name: str, dim: int) -> Case:
    def call(t: Make) -> Any:
        sizes = [8] * dim
        aligned = () if "nearest" in name else (False,)
        return getattr(ATEN, name).default(t(1, 2, *[4] * dim), sizes, *aligned)

    return call


OPERATIONS: dict[str, Case] = {
    **{
        name: _one(name)
        for name in _words(
            "acos asin cosh erfinv exp expm1 log log10 log1p log2 reciprocal rsqrt sinh softplus "
            "tan prod sum linalg_vector_norm nuclear_norm pdist"
        )
    },
    **{
        f"{name}": _upsample(name, dim)
        for name, dim in (
            ("_upsample_bicubic2d_aa", 2),
            ("_upsample_bilinear2d_aa", 2),
            ("_upsample_nearest_exact1d", 1),
            ("_upsample_nearest_exact2d", 2),
            ("_upsample_nearest_exact3d", 3),
            ("upsample_bicubic2d", 2),
            ("upsample_bilinear2d", 2),
            ("upsample_linear1d", 1),
            ("upsample_nearest1d", 1),
            ("upsample_nearest2d", 2),
            ("upsample_nearest3d", 3),
            ("upsample_trilinear3d", 3),
        )
    },
    "_convolution": lambda t: _convolution(t, "_convolution"),
    "_convolution.deprecated": lambda t: _convolution(t, "_convolution.deprecated"),
    "convolution": lambda t: _convolution(t, "convolution"),
    "conv1d": _conv(1),
    "conv2d": _conv(2),
    "conv3d": _conv(3),
    "conv_tbc": lambda t: torch.conv_tbc(t(4, 1, 2), t(3, 2, 2), t(2)),
    "conv_transpose1d": _conv(1, transposed=True),
    "conv_transpose2d.input": _conv(2, transposed=True),
    "conv_transpose3d.input": _conv(3, transposed=True),
    "addbmm": lambda t: torch.addbmm(t(4, 4), t(2, 4, 4), t(2, 4, 4)),
    "addmm": lambda t: torch.addmm(t(4, 4), t(4, 4), t(4, 4)),
    "addmv": lambda t: torch.addmv(t(4), t(4, 4), t(4)),
    "addr": lambda t: torch.addr(t(4, 4), t(4), t(4)),
    "baddbmm": lambda t: torch.baddbmm(t(2, 4, 4), t(2, 4, 4), t(2, 4, 4)),
    "bmm": lambda t: torch.bmm(t(2, 4, 4), t(2, 4, 4)),
    "chain_matmul": lambda t: ATEN.chain_matmul([t(4, 4), t(4, 4), t(4, 4)]),
    "einsum": lambda t: torch.einsum("ij,jk->ik", t(4, 4), t(4, 4)),
    "gru_cell": _cell("gru_cell", 3),
    "lstm_cell": _cell("lstm_cell", 4, cell=True),
    "rnn_relu_cell": _cell("rnn_relu_cell", 1),
    "rnn_tanh_cell": _cell("rnn_tanh_cell", 1),
    "linalg_multi_dot": lambda t: torch.linalg.multi_dot([t(4, 4), t(4, 4), t(4, 4)]),
    "linalg_vecdot": lambda t: torch.linalg.vecdot(t(4, 4), t(4, 4)),
    "linear": lambda t: F.linear(t(4, 4), t(4, 4), t(4)),
    "matmul": lambda t: t(4, 4) @ t(4, 4),
    "mm": lambda t: t(4, 4).mm(t(4, 4)),
    "mv": lambda t: torch.mv(t(4, 4), t(4)),
    "prelu": lambda t: F.prelu(t(4, 4), t(4)),
    "scaled_dot_product_attention": lambda t: ATEN.scaled_dot_product_attention(
        t(1, 2, 4, 8), t(1, 2, 4, 8), t(1, 2, 4, 8)
    ),
    "binary_cross_entropy": lambda t: F.binary_cross_entropy(t(4), t(4)),
    "binary_cross_entropy_with_logits": lambda t: F.binary_cross_entropy_with_logits(t(4), t(4)),
    "cdist": lambda t: torch.cdist(t(4, 4), t(4, 4)),
    "cosine_embedding_loss": lambda t: F.cosine_embedding_loss(t(4, 4), t(4, 4), t.whole(4) + 1),
    "cosine_similarity": lambda t: F.cosine_similarity(t(4, 4), t(4, 4)),
    "dist": lambda t: torch.dist(t(4), t(4)),
    "frobenius_norm.dim": lambda t: ATEN.frobenius_norm.dim(t(4, 4), [1]),
    "nuclear_norm.dim": lambda t: ATEN.nuclear_norm.dim(t(4, 4), [0, 1]),
    "group_norm": lambda t: F.group_norm(t(2, 4, 4), 2, t(4), t(4)),
    "hinge_embedding_loss": lambda t: F.hinge_embedding_loss(t(4), t.whole(4) + 1),
    "huber_loss": lambda t: F.huber_loss(t(4), t(4)),
    "kl_div": lambda t: F.kl_div(t(4, 4), t(4, 4), reduction="batchmean"),
    "l1_loss": lambda t: F.l1_loss(t(4), t(4)),
    "layer_norm": lambda t: F.layer_norm(t(4, 4), [4], t(4), t(4)),
    "native_layer_norm": lambda t: torch.native_layer_norm(t(4, 4), [4], t(4), t(4), 1e-5),
    "rms_norm": lambda t: F.rms_norm(t(4, 4), [4], t(4)),
    "logsumexp": lambda t: torch.logsumexp(t(4, 4), 1),
    "margin_ranking_loss": lambda t: F.margin_ranking_loss(t(4), t(4), t.whole(4) + 1),
    "mse_loss": lambda t: F.mse_loss(t(4), t(4)),
    "multi_margin_loss": lambda t: F.multi_margin_loss(t(4, 4), t.whole(4)),
    "multilabel_margin_loss": lambda t: F.multilabel_margin_loss(t(4, 4), t.whole(4, 4)),
    "nll_loss": lambda t: F.nll_loss(t(4, 4), t.whole(4)),
    "nll_loss2d": lambda t: F.nll_loss(t(2, 4, 4, 4), t.whole(2, 4, 4)),
    "poisson_nll_loss": lambda t: F.poisson_nll_loss(t(4), t(4)),
    "pow.Scalar": lambda t: 2 ** t(4),
    "pow.Tensor_Scalar": lambda t: t(4) ** 3,
    "pow.Tensor_Tensor": lambda t: t(4) ** t(4),
    "renorm": lambda t: torch.renorm(t(4, 4), 2, 0, 1.0),
    "smooth_l1_loss": lambda t: F.smooth_l1_loss(t(4), t(4)),
    "soft_margin_loss": lambda t: F.soft_margin_loss(t(4), t(4)),
    "triplet_margin_loss": lambda t: F.triplet_margin_loss(t(4, 4), t(4, 4), t(4, 4)),
    "cumprod": lambda t: torch.cumprod(t(4, 4), 0),
    "cumsum": lambda t: torch.cumsum(t(4, 4), 0),
    "linalg_matrix_norm": lambda t: torch.linalg.matrix_norm(t(4, 4), 2),
    "linalg_matrix_norm.str_ord": lambda t: torch.linalg.matrix_norm(t(4, 4), "fro"),
    "log_softmax.int": lambda t: F.log_softmax(t(4, 4), -1),
    "softmax.int": lambda t: t(4, 4).softmax(-1),
    "prod.dim_int": lambda t: t(4, 4).prod(0),
    "sum.dim_IntList": lambda t: t(4, 4).sum((0, 1)),
    "norm.Scalar": lambda t: ATEN.norm.Scalar(t(4, 4), 3),
    "norm.ScalarOpt_dim": lambda t: ATEN.norm.ScalarOpt_dim(t(4, 4), 2, [1]),
    "addcdiv": lambda t: torch.addcdiv(t(4), t(4), t(4, dtype=torch.float32)),
    "addcmul": lambda t: t(4).addcmul(t(4), t(4, dtype=torch.float32), value=2),
    "atan2": lambda t: torch.atan2(t(4), t(4, dtype=torch.float32)),
    "bilinear": lambda t: F.bilinear(t(2, 4), t(2, 4), t(3, 4, 4), t(3, dtype=torch.float32)),
    "cross": lambda t: torch.cross(t(4, 3), t(4, 3, dtype=torch.float32), dim=1),
    "dot": lambda t: torch.dot(t(4), t(4, dtype=torch.float32)),
    "vdot": lambda t: torch.vdot(t(4), t(4, dtype=torch.float32)),
    "grid_sampler": lambda t: F.grid_sample(
        t(1, 2, 4, 4), t(1, 4, 4, 2, dtype=torch.float32), align_corners=False
    ),
    "index_put": lambda t: t(4).index_put([t.whole(2)], t(2, dtype=torch.float32)),
    "scatter_add": lambda t: t(4).scatter_add(0, t.whole(2), t(2, dtype=torch.float32)),
    "tensordot": lambda t: torch.tensordot(t(4, 4), t(4, 4, dtype=torch.float32), 1),
}
"""Of each operation in PyTorch's lists."""

NOT_CALLED = {
    "_scaled_dot_product_flash_attention": "PyTorch has no shapes of it without CUDA",
    "_thnn_fused_gru_cell": "of CUDA alone",
    "_thnn_fused_lstm_cell": "of CUDA alone",
    "cudnn_convolution": "of CUDA alone",
    "cudnn_convolution_transpose": "of CUDA alone",
    "_cudnn_rnn": "of CUDA alone",
    "linalg_matrix_sqrth": "only in newer versions",
}
"""Operations in the lists without a case, and why."""


def _pool(name: str, dim: int, *more: Any) -> Case:
    return lambda t: getattr(F, name)(t(1, 2, *[4] * dim), *more)


def _fractional(dim: int) -> Case:
    return lambda t: getattr(F, f"fractional_max_pool{dim}d")(
        t(1, 2, *[4] * dim), 2, output_size=2, _random_samples=t(1, 2, dim)
    )


def _by(name: str) -> Case:
    return lambda t: getattr(t(4), name)(2)


def _unpool(dim: int) -> Case:
    def call(t: Make) -> Any:
        places = torch.arange(2**dim, device="cuda").reshape(1, 1, *[2] * dim)
        return getattr(F, f"max_unpool{dim}d")(t(1, 1, *[2] * dim), places, 2)

    return call


def _attention(t: Make) -> Any:
    x = t(3, 2, 8)
    return F.multi_head_attention_forward(
        x, x, x, 8, 2, t(24, 8), t(24), None, None, False, 0.0, t(8, 8), t(8)
    )


def _embedding_bag(t: Make) -> Any:
    return F.embedding_bag(t.whole(2, 2), t(4, 4))


FUNCTIONS: dict[str, Case] = {
    "_threshold": lambda t: F.threshold(t(4), 0.5, 0.1),
    "threshold": lambda t: F.threshold(t(4), 0.5, 0.1),
    **{
        f"{prefix}max_pool{dim}d{suffix}": _pool(f"max_pool{dim}d", dim, 2)
        for dim in (1, 2, 3)
        for prefix, suffix in (("_", ""), ("", "_with_indices"))
    },
    **{
        f"{prefix}adaptive_max_pool{dim}d{suffix}": _pool(f"adaptive_max_pool{dim}d", dim, 2)
        for dim in (1, 2, 3)
        for prefix, suffix in (("_", ""), ("", "_with_indices"))
    },
    **{
        f"{prefix}fractional_max_pool{dim}d{suffix}": _fractional(dim)
        for dim in (2, 3)
        for prefix, suffix in (("_", ""), ("", "_with_indices"))
    },
    "adaptive_avg_pool2d": _pool("adaptive_avg_pool2d", 2, 2),
    "adaptive_avg_pool3d": _pool("adaptive_avg_pool3d", 3, 2),
    **{f"lp_pool{dim}d": _pool(f"lp_pool{dim}d", dim, 2.0, 2) for dim in (1, 2, 3)},
    **{f"max_unpool{dim}d": _unpool(dim) for dim in (1, 2, 3)},
    "affine_grid": lambda t: F.affine_grid(t(1, 2, 3), [1, 1, 4, 4], align_corners=False),
    "alpha_dropout": _of("alpha_dropout", 2, 4, 4),
    "feature_alpha_dropout": lambda t: F.feature_alpha_dropout(t(2, 4, 4)),
    "dropout": lambda t: F.dropout(t(4, 4)),
    "dropout1d": lambda t: F.dropout1d(t(2, 4, 4)),
    "dropout2d": lambda t: F.dropout2d(t(2, 4, 4, 4)),
    "dropout3d": lambda t: F.dropout3d(t(2, 4, 4, 4, 4)),
    "batch_norm": lambda t: F.batch_norm(t(2, 4, 4), None, None, t(4), t(4), training=True),
    "instance_norm": lambda t: F.instance_norm(t(2, 4, 4), weight=t(4), bias=t(4)),
    "local_response_norm": lambda t: F.local_response_norm(t(2, 4, 4), 2),
    "normalize": lambda t: F.normalize(t(4, 4)),
    **{
        name: _of(name, 4, 4)
        for name in _words(
            "celu elu glu hardsigmoid hardswish hardtanh leaky_relu mish relu relu6 rrelu selu "
            "silu softsign tanhshrink"
        )
    },
    **{
        name: _of(name, 4, 4, dim=-1)
        for name in ("softmax", "softmin", "log_softmax", "gumbel_softmax")
    },
    "cross_entropy": lambda t: F.cross_entropy(t(4, 4), t.whole(4)),
    "linear_cross_entropy": lambda t: F.linear_cross_entropy(t(4, 4), t(4, 4), t.whole(4)),
    "gaussian_nll_loss": lambda t: F.gaussian_nll_loss(t(4, 4), t(4, 4), t(4, 4)),
    "multilabel_soft_margin_loss": lambda t: F.multilabel_soft_margin_loss(t(4, 4), t(4, 4)),
    "triplet_margin_with_distance_loss": lambda t: F.triplet_margin_with_distance_loss(
        t(4, 4), t(4, 4), t(4, 4)
    ),
    "embedding": lambda t: F.embedding(t.whole(2), t(4, 4)),
    "embedding_bag": _embedding_bag,
    "fold": lambda t: F.fold(t(1, 8, 4), (4, 4), (2, 2), stride=2),
    "unfold": lambda t: F.unfold(t(1, 2, 4, 4), (2, 2)),
    "pad": lambda t: F.pad(t(1, 2, 4), (1, 1), mode="reflect"),
    "grid_sample": OPERATIONS["grid_sampler"],
    "interpolate": lambda t: (
        F.interpolate(t(1, 2, 4, 4), scale_factor=2),
        F.interpolate(t(1, 2, 4, 4), scale_factor=2, mode="bilinear"),
        F.interpolate(t(1, 2, 4, 4), size=2, mode="bicubic", antialias=True),
        F.interpolate(t(1, 2, 4, 4), size=2, mode="area"),
    ),
    "multi_head_attention_forward": _attention,
    **{
        name: OPERATIONS[name]
        for name in _words(
            "binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss "
            "group_norm hinge_embedding_loss huber_loss kl_div l1_loss layer_norm "
            "margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss nll_loss "
            "poisson_nll_loss rms_norm smooth_l1_loss soft_margin_loss triplet_margin_loss"
        )
    },
    # Of `torch.functional`.
    "atleast_1d": lambda t: torch.atleast_1d(t(4), t(4)),
    "atleast_2d": lambda t: torch.atleast_2d(t(4), t(4)),
    "atleast_3d": lambda t: torch.atleast_3d(t(4), t(4)),
    "block_diag": lambda t: torch.block_diag(t(2, 2), t(2, 2)),
    "broadcast_tensors": lambda t: torch.broadcast_tensors(t(4), t(4, 4)),
    "cartesian_prod": lambda t: torch.cartesian_prod(t(4), t(4)),
    "_meshgrid": lambda t: torch.meshgrid(t(4), t(4), indexing="ij"),
    "cdist": OPERATIONS["cdist"],
    "chain_matmul": OPERATIONS["linalg_multi_dot"],
    "einsum": lambda t: torch.einsum("bij,bjk,bkl->bil", t(2, 4, 4), t(2, 4, 4), t(2, 4, 4)),
    "norm": lambda t: (
        torch.norm(t(4, 4)),
        torch.norm(t(4, 4), dim=1),
        torch.norm(t(4, 4), p=3, dim=(0, 1), keepdim=True),
        t(4, 4).norm(1),
    ),
    "split": lambda t: torch.split(t(4, 4), 2),
    "stft": lambda t: torch.stft(t(16, dtype=torch.float32), 4, return_complex=True).real,
    "tensordot": OPERATIONS["tensordot"],
    # Of `torch.Tensor`.
    **{
        name: _by(name)
        for name in _words("__rsub__ __rdiv__ __rtruediv__ __pow__ __rpow__ __floordiv__")
    },
    "__ipow__": lambda t: t(4).__ipow__(2),
    "__rfloordiv__": lambda t: t(4).__rfloordiv__(2),
    "__rmod__": lambda t: t(4).__rmod__(2),
    "__rmatmul__": lambda t: t(4, 4).__rmatmul__(t(4, 4)),
}
"""Of each function of PyTorch that handles `__torch_function__` itself, by its name."""

NO_CASE = {
    *_words(
        "__array__ __array_wrap__ __contains__ __deepcopy__ __dir__ __dlpack__ __dlpack_device__ "
        "__format__ __len__ __reduce_ex__ __repr__ __reversed__ __setstate__ _sym_int backward "
        "_clear_non_serializable_cached_data dim_order index is_shared istft lu module_load "
        "register_hook register_post_accumulate_grad_hook resize resize_as share_memory_ storage "
        "storage_type unflatten unique unique_consecutive"
    ),  # methods
    "ctc_loss",  # of types that are not in the lists, and PyTorch has no shapes of it
    "lobpcg",
    "pca_lowrank",
    "svd_lowrank",  # of random numbers; they call matmul as the others do
    "_consecutive_return_counts",
    "_consecutive_return_inverse",
    "_consecutive_return_inverse_and_counts",
    "_consecutive_return_output",
    "_lu_no_infos",
    "_lu_with_infos",
    "_return_counts",
    "_return_inverse",
    "_return_inverse_and_counts",
    "_return_output",
    "_unique_consecutive_torch_function",
    "_unique_torch_function",
    "unravel_index",
    "__rlshift__",
    "__rrshift__",
}
"""Functions that handle it, and of which there is no case; most call nothing that is cast."""


def _of_module(
    module: Callable[[], nn.Module], *shapes: tuple[int, ...], train: bool = True
) -> Case:
    return lambda t: t.module(module, train=train)(*[t(*shape) for shape in shapes])


def _sequence(t: Make, kind: Any) -> Any:
    out, state = t.module(lambda: kind(4, 4, num_layers=2, bidirectional=True))(t(3, 2, 4))
    return out, state


MODULES: dict[str, Case] = {
    "MultiheadAttention": lambda t: t.module(lambda: nn.MultiheadAttention(8, 2))(
        *[t(3, 2, 8)] * 3
    ),
    "MultiheadAttention without weights": lambda t: t.module(lambda: nn.MultiheadAttention(8, 2))(
        *[t(3, 2, 8)] * 3, need_weights=False
    ),
    "MultiheadAttention, evaluated": lambda t: t.module(
        lambda: nn.MultiheadAttention(8, 2, batch_first=True), train=False
    )(*[t(3, 2, 8)] * 3, need_weights=False),
    "TransformerEncoderLayer": _of_module(
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (3, 2, 8)
    ),
    "TransformerEncoderLayer, evaluated": _of_module(
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (3, 2, 8), train=False
    ),
    "TransformerEncoder, evaluated": _of_module(
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
        ),
        (3, 2, 8),
        train=False,
    ),
    "Transformer": _of_module(
        lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True), (2, 3, 8), (2, 3, 8)
    ),
    "LSTM": lambda t: _sequence(t, nn.LSTM),
    "LSTMCell": _of_module(lambda: nn.LSTMCell(4, 4), (2, 4)),
    "Conv2d": _of_module(lambda: nn.Conv2d(2, 2, 3), (1, 2, 4, 4)),
    "BatchNorm2d": _of_module(lambda: nn.BatchNorm2d(2), (1, 2, 4, 4)),
    "LayerNorm": _of_module(lambda: nn.LayerNorm(4), (4, 4)),
    "RMSNorm": _of_module(lambda: nn.RMSNorm(4), (4, 4)),
    "GroupNorm": _of_module(lambda: nn.GroupNorm(2, 4), (2, 4, 4)),
    "Embedding": lambda t: t.module(lambda: nn.Embedding(4, 4))(t.whole(2)),
    "Bilinear": _of_module(lambda: nn.Bilinear(4, 4, 2), (2, 4), (2, 4)),
    "PReLU": _of_module(nn.PReLU, (2, 4)),
    "Upsample": _of_module(lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (1, 2, 4, 4)),
    "CrossEntropyLoss": lambda t: nn.CrossEntropyLoss()(t(4, 4), t.whole(4)),
    "CosineSimilarity": lambda t: nn.CosineSimilarity()(t(4, 4), t(4, 4)),
    "PairwiseDistance": lambda t: nn.PairwiseDistance()(t(4, 4), t(4, 4)),
    "GRUCell": _of_module(lambda: nn.GRUCell(4, 4), (2, 4)),
    "vmap": lambda t: torch.func.vmap(torch.dot)(t(3, 4), t(3, 4)),
    "vmap of softmax": lambda t: torch.func.vmap(lambda x: x.softmax(0) @ x)(t(3, 4)),
    "cat": lambda t: torch.cat([t(4), t(4, dtype=torch.float32)]),
    "stack": lambda t: torch.stack([t(4), t(4, dtype=torch.float32)]),
    "told": lambda t: (t(4).sum(dtype=torch.float64), t(4).softmax(0, dtype=torch.float16)),
    "out": lambda t: torch.mm(t(4, 4), t(4, 4), out=t(4, 4)),
    "in place": lambda t: t(4, 4).addmm_(t(4, 4), t(4, 4)),
}
"""Of modules, and of other ways to call operations."""
