"""Which numbers of a machine are fitted on which lines of which table, in which order.

A number more is an entry more: where it stands in the machine's file, and the lines that tell it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from kernbench.calibration.cells import Cell
from kernbench.calibration.images import kind

Lines: TypeAlias = Callable[[Mapping[str, str]], bool]

KERNELS: Final = "sip.kernels."
PRODUCTS: Final = "sip.pe.gemm.library."
ATTENTION: Final = "sip.pe.attention."

BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "share": (1, 100),
    "scores": (1, 100),
    "element": (1, 1 << 16),
    "row": (1, 1 << 28),
    "launches": (1, 1 << 10),
    "alone": (1, 1 << 19),
    "edge": (1, 512),
    "split_k": (1, 64),
    "write_back": (1e4, 1e9),
    "launch": (1e5, 2e7),
    "start": (1e4, 2e8),
    "program": (1e4, 1e8),
    "adding": (1e5, 1e8),
    "bandwidth": (1e9, 1e14),
    "latency": (1e3, 1e8),
    "kept": (1e5, 1e10),
}
"""Least and most of a number, by its name, in picoseconds, bytes, or so much a second."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Numbers that are fitted together.

    Attributes:
        stage: Which step of the order it is of.
        table: The table.
        numbers: Where they stand under `system`, those first that matter most: with few cells the
            last ones stay the base's. Numbers joined by `+` keep their proportions.
        lines: Which lines of the table tell them.
        column: The measured column; empty for all.
    """

    stage: str
    table: str
    numbers: tuple[str, ...]
    lines: Lines
    column: str = ""

    def holds(self, cell: Cell) -> bool:
        """Returns whether a cell is one of those that tell the numbers."""
        named = cell.table == self.table and self.column in {"", cell.column}
        return named and self.lines(cell.line)


def _is(**texts: str) -> Lines:
    """Returns whether a line has these texts; several for a column are divided by blanks."""
    wanted = {name: frozenset(text.split()) for name, text in texts.items()}
    return lambda line: all(line[name] in some for name, some in wanted.items())


def _kernels(text: str) -> tuple[str, ...]:
    """Returns the places of numbers of kernels, such as `gelu.element softmax.share`."""
    return tuple(
        "+".join(f"{KERNELS}{one}" for one in number.split("+")) for number in text.split()
    )


def _bytes(least: int, most: int = 1 << 62) -> Lines:
    return lambda line: least <= int(line["bytes"]) <= most


def _columns(op: str, least: int, most: int) -> Lines:
    return lambda line: line["op"] == op and least <= int(line["cols"]) <= most


def _both(first: Lines, second: Lines) -> Lines:
    return lambda line: first(line) and second(line)


_MIB: Final = 1 << 20
_STREAMED: Final = "+".join(
    f"{name}.share" for name in ("pointwise", "gelu", "silu", "silu_backward", "dropout")
)

MEMORY: Final = (
    Fit("memory", "memory", ("sip.launch",), _bytes(0, 1 << 16)),
    Fit("memory", "memory", ("sip.cube.hbm.bandwidth",), _bytes(64 * _MIB)),
    Fit("memory", "memory", ("sip.warm.bandwidth", "sip.warm.kept"), _bytes(1 << 17, 16 * _MIB)),
)

ELEMENTWISE: Final = (
    Fit(
        "elementwise",
        "elementwise",
        _kernels(_STREAMED),
        _both(_is(op="add mul add_scalar exp copy relu where"), _bytes(32 * _MIB)),
    ),
    *(
        Fit("elementwise", "elementwise", _kernels(number), _is(op=op))
        for number, op in (
            ("gelu.element+silu.element", "gelu silu"),
            ("normal.element+uniform.element+bernoulli.element", "normal_ uniform_ bernoulli_"),
            (
                "indexed.element+broadcast.element+scattered.element",
                "cast add_bcast transpose_copy",
            ),
            ("gelu.element", "gelu"),
            ("silu.element", "silu"),
            ("dropout.element", "dropout"),
            ("fill.element", "zero"),
            ("normal.element", "normal_"),
            ("uniform.element", "uniform_"),
            ("bernoulli.element", "bernoulli_"),
            ("indexed.element", "cast"),
            ("broadcast.element", "add_bcast"),
            ("scattered.element", "transpose_copy"),
            ("cat.share", "cat"),
        )
    ),
)

ROWS: Final = (
    *(
        Fit("rows", "rowops2", _kernels(numbers), _is(op=op))
        for numbers, op in (
            ("row_sum.share", "sum mean"),
            ("arg_extreme.share", "argmax"),
            ("softmax.element+softmax_warps.element+softmax_registers.element", "softmax"),
            ("softmax_backward.share", "softmax_bwd"),
            ("log_softmax_backward.share", "cross_entropy_bwd"),
            ("rms_norm.share", "rms_norm"),
            ("rms_norm_backward.share", "rms_norm_bwd"),
            ("layer_norm.share", "layer_norm"),
            ("layer_norm_backward.share", "layer_norm_bwd"),
        )
    ),
    Fit(
        "rows",
        "rowops2",
        _kernels("log_softmax_warps.element+log_softmax_registers.element"),
        _columns("cross_entropy", 1, 9216),
    ),
    Fit(
        "rows",
        "rowops2",
        _kernels("log_softmax.share"),
        _columns("cross_entropy", 9217, 1 << 62),
    ),
    *(
        Fit("rows", "rowops3", _kernels(f"{op}{kernel}.element"), _columns(op, least, most))
        for op in ("softmax", "log_softmax")
        for kernel, least, most in (("_warps", 1, 2048), ("_registers", 2049, 9216))
    ),
    Fit(
        "rows",
        "rowops3",
        _kernels("softmax.element softmax.share"),
        _columns("softmax", 9217, 1 << 62),
    ),
    Fit("rows", "embedding", _kernels("embedding.share"), _is(op="embedding")),
    Fit("rows", "embedding", _kernels("embedding_backward.element"), _is(op="embedding_bwd")),
    Fit("rows", "optim", _kernels("foreach.share"), lambda _: True),
)

GEMM: Final = (
    Fit(
        "products",
        "gemm2",
        tuple(
            PRODUCTS + name for name in ("start", "write_back", "kernels.0.edge", "kernels.1.edge")
        ),
        lambda _: True,
    ),
)


def _family(names: str, **texts: str) -> Lines:
    """Returns whether a line of `images.csv` is of these kinds, see `images.kind`."""
    wanted, alike = frozenset(names.split()), _is(**texts)
    return lambda line: kind(line) in wanted and alike(line)


_HALF: Final = "bf16 fp16"
_WINDOWS: Final = (
    *("convolution.share", "convolution.row+convolution_data.row+convolution_weight.row"),
    *("convolution_data.share", "convolution_strided_data.share", "convolution_weight.share"),
    *("convolution_weight_tf32.share", "convolution_layout.share"),
)
_POINTS: Final = (
    *("convolution_point.share", "convolution_point.row", "convolution_point_tf32.share"),
    *("convolution_point_odd.share",),
)

IMAGES: Final = (
    Fit(
        "convolutions",
        "images",
        _kernels(" ".join(_WINDOWS)),
        _family("conv_window_f conv_window_d conv_window_w"),
    ),
    Fit(
        "convolutions",
        "images",
        _kernels(" ".join(_POINTS)),
        _family("conv_point_f conv_point_d conv_point_w"),
    ),
    *(
        Fit("convolutions", "images", _kernels(numbers), _family(kinds, **texts))
        for numbers, kinds, texts in (
            (
                "convolution_few.share convolution_padding.share",
                "conv_few_f conv_few_d conv_few_w",
                {"dtype": _HALF},
            ),
            (
                "convolution_few_tf32.share",
                "conv_few_f conv_few_d conv_few_w",
                {"dtype": "fp32"},
            ),
            ("convolution_grouped.share", "conv_grouped_f conv_grouped_d", {}),
            ("convolution_grouped_weight.share", "conv_grouped_w", {}),
            ("depthwise.element depthwise.row", "conv_depthwise_f", {"last": "0"}),
            ("depthwise_data.element depthwise_data.row", "conv_depthwise_d", {"last": "0"}),
            ("depthwise_weight.element depthwise_weight.row", "conv_depthwise_w", {"last": "0"}),
            ("depthwise_last.element depthwise_last.row", "conv_depthwise_f", {"last": "1"}),
            (
                "depthwise_last_data.element depthwise_last_data.row",
                "conv_depthwise_d",
                {"last": "1"},
            ),
            (
                "depthwise_last_weight.element depthwise_last_weight.row",
                "conv_depthwise_w",
                {"last": "1"},
            ),
            ("batch_norm.share batch_norm.alone", "bn", {"dtype": "fp32", "last": "0"}),
            ("batch_norm_last.share", "bn", {"dtype": "fp32", "last": "1"}),
            ("batch_norm_apply.share batch_norm_apply.row", "bn_eval", {}),
            (
                "batch_norm_stats.element batch_norm_stats.alone",
                "bn",
                {"dtype": "bf16", "last": "0"},
            ),
            ("batch_norm_own_last.element", "bn", {"dtype": "bf16", "last": "1"}),
            (
                "batch_norm_backward.share batch_norm_backward.alone",
                "bn_bwd",
                {"dtype": "fp32", "last": "0"},
            ),
            ("batch_norm_last_backward.share", "bn_bwd", {"dtype": "fp32", "last": "1"}),
            (
                "batch_norm_own_backward.element batch_norm_own_backward.alone",
                "bn_bwd",
                {"dtype": "bf16", "last": "0"},
            ),
            ("batch_norm_own_last_backward.element", "bn_bwd", {"dtype": "bf16", "last": "1"}),
            ("group_norm.share group_norm.element", "gn", {}),
            ("group_norm_backward.share group_norm_backward.element", "gn_bwd", {}),
            ("layer_norm.row", "ln", {}),
            ("layer_norm_backward.row layer_norm_weights.row", "ln_bwd", {}),
            ("max_pool.element max_pool.row", "maxpool2 maxpool3s2", {}),
            (
                "max_pool_backward.element max_pool_backward.row",
                "maxpool2_bwd maxpool3s2_bwd",
                {"last": "0"},
            ),
            (
                "max_pool_last_backward.element max_pool_last_backward.row",
                "maxpool2_bwd maxpool3s2_bwd",
                {"last": "1"},
            ),
            ("avg_pool.row", "avgpool2", {"last": "0"}),
            ("avg_pool_last.row", "avgpool2", {"last": "1"}),
            ("avg_pool_backward.row", "avgpool2_bwd", {}),
            ("adaptive_pool.element adaptive_pool.row", "adaptive7", {}),
            ("adaptive_pool_backward.element adaptive_pool_backward.row", "adaptive7_bwd", {}),
            ("nearest.element", "nearest2", {"last": "0"}),
            ("nearest_last.element", "nearest2", {"last": "1"}),
            ("nearest_backward.element", "nearest2_bwd", {"last": "0"}),
            ("nearest_last_backward.element", "nearest2_bwd", {"last": "1"}),
            ("bilinear.element bilinear.row", "bilinear2", {"last": "0"}),
            ("bilinear_last.element", "bilinear2", {"last": "1"}),
            ("bilinear_backward.element", "bilinear2_bwd", {"last": "0"}),
            ("bilinear_last_backward.element", "bilinear2_bwd", {"last": "1"}),
            ("sort.element sort.launches", "sort", {}),
            ("topk.row topk.launches", "topk", {}),
            ("nll_loss_backward.row", "nll_bwd", {}),
            ("embedding_bag.share", "bag", {}),
            ("embedding_bag_backward.launches", "bag_bwd", {}),
        )
    ),
)

_NUMBERS: Final = ("share", "start", "program", "scores")
_ADDS: Final = ("flash2", "fwd_us")
"""A second kernel of FlashAttention adds what parts of a query's keys gave."""

ATTENTIONS: Final = tuple(
    Fit(
        "attention",
        "attention2",
        tuple(
            f"{ATTENTION}{place}.{name}"
            for name in (*_NUMBERS, *(("adding",) if (backend, column) == _ADDS else ()))
        ),
        _is(backend=backend),
        column,
    )
    for place, (backend, column) in enumerate(
        (backend, column) for backend in ("flash2", "cudnn") for column in ("fwd_us", "bwd_us")
    )
)

_LARGE: Final = 256 * _MIB
_LEAST: Final = 16 << 10

COLLECTIVES: Final = (
    Fit("collectives", "collectives", ("sips.network.bandwidth",), _bytes(_LARGE)),
    Fit(
        "collectives",
        "collectives",
        ("sips.network.latency",),
        lambda line: int(line["n"]) > 2 and int(line["bytes"]) <= _LEAST,
    ),
)

FITS: Final = (*MEMORY, *ELEMENTWISE, *ROWS, *GEMM, *IMAGES, *ATTENTIONS, *COLLECTIVES)
"""All of them, in order: what a later one needs, an earlier one has fitted."""
