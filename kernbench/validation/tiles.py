"""Kernels of Triton: launches of those in `triton.measured` and `triton.measured_more`."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from kernbench.calibration.lines import known
from kernbench.validation.table import BESIDE, COUNT, FLAG, MEASURED, NOTE, WORD, Row, Table
from kernbench.validation.timing import alone_us, behind_us, new

_WARPS_OF_ADD: Final = 4
"""Triton's default, which the table does not tell."""

_ONLY_PYTORCH: Final = "kernels of Triton run under PyTorch"


def _kernels(module: str = "measured") -> Any:
    """Returns the kernels; only programs that need Triton import it."""
    return importlib.import_module(f"kernbench.triton.{module}")


def _needs(row: Row) -> tuple[str, ...]:
    del row
    return ("triton",)


def _up(value: int, part: int) -> int:
    return -(-value // part)


def _add(torch: Any, row: Row) -> Mapping[str, float]:
    n, block = int(row["n"]), int(row["block"])
    x, y, out = (new(torch, n, dtype="fp32") for _ in range(3))
    launch = _kernels().add[(_up(n, block),)]
    return {"us": alone_us(torch, lambda: launch(x, y, out, n, block, num_warps=_WARPS_OF_ADD))}


def _softmax(torch: Any, row: Row) -> Mapping[str, float]:
    rows, columns, warps = (int(row[name]) for name in ("rows", "cols", "warps"))
    x, out = (new(torch, rows, columns) for _ in range(2))
    launch, block = _kernels().softmax[(rows,)], 1 << (columns - 1).bit_length()
    return {"us": alone_us(torch, lambda: launch(x, out, columns, block, num_warps=warps))}


def _gemm(torch: Any, row: Row) -> Mapping[str, float]:
    m, n, k, *tile = (int(row[name]) for name in ("m", "n", "k", "bm", "bn", "bk"))
    a, b, c = (new(torch, *shape) for shape in ((m, k), (k, n), (m, n)))
    launch = _kernels().gemm[(_up(m, tile[0]) * _up(n, tile[1]),)]
    return {"us": alone_us(torch, lambda: launch(a, b, c, m, n, k, *tile, **_options(row)))}


def _flash(torch: Any, row: Row) -> Mapping[str, float]:
    heads, length, width, *tile = (int(row[name]) for name in ("heads", "seq", "d", "bm", "bn"))
    causal = row["causal"] in ("True", "1")
    q, k, v, out = (new(torch, heads, length, width) for _ in range(4))
    launch = _kernels().flash[(_up(length, tile[0]), heads)]
    given = q, k, v, out, length, width**-0.5, width, *tile, causal
    return {"us": alone_us(torch, lambda: launch(*given, **_options(row)))}


def _options(row: Row) -> Mapping[str, int]:
    return {"num_warps": int(row["warps"]), "num_stages": int(row["stages"])}


_CALLS: Final = 10
_CALLS_OF_FLASH: Final = 5
"""How many launches of `triton_more` follow each other between the two events."""

_PRODUCT: Final = 8192
"""Rows and columns of the two products before them, behind which the host runs ahead."""

_VOCABULARY: Final = 32000
"""Rows of the table in which `gather_rows` looks rows up."""

Launched = tuple[tuple[int, ...], tuple[object, ...]]
"""The grid of a launch, and what the kernel is given."""


class _Sizes(NamedTuple):
    """What a row of `triton_more` tells; 0 or empty is what its kernel has not."""

    m: int
    n: int
    k: int
    bm: int
    bn: int
    bk: int
    group: int
    option: str


def _more(torch: Any, row: Row) -> Mapping[str, float]:
    name = row["kernel"]
    counts = {column: int(row[column]) for column in _Sizes._fields if column != "option"}
    sizes = _Sizes(**counts, option=row["option"])
    grid, given = known(_MORE, name, "kernel")(torch, sizes)
    launch, options = getattr(_kernels("measured_more"), name)[grid], _options(row)
    big, calls = new(torch, _PRODUCT, _PRODUCT), _CALLS_OF_FLASH if name == "flash" else _CALLS
    return {"us": behind_us(torch, lambda: big @ big, lambda: launch(*given, **options), calls)}


def _layer_norm(torch: Any, sizes: _Sizes) -> Launched:
    m, n = sizes[:2]
    x, y, w = new(torch, m, n), new(torch, m, n), new(torch, n)
    return (m,), (x, y, w, w, n, 1e-5, sizes.bn)


def _rms_loop(torch: Any, sizes: _Sizes) -> Launched:
    m, n = sizes[:2]
    x, y, w = new(torch, m, n), new(torch, m, n), new(torch, n)
    return (m,), (x, y, w, n, 1e-5, sizes.bn)


def _swiglu(torch: Any, sizes: _Sizes) -> Launched:
    n, bn = sizes.n, sizes.bn
    a, c = new(torch, n), new(torch, n)
    return (_up(n, bn),), (a, a, c, n, bn)


def _dropout(torch: Any, sizes: _Sizes) -> Launched:
    n, bn = sizes.n, sizes.bn
    x, y = new(torch, n), new(torch, n)
    return (_up(n, bn),), (x, y, n, 0.1, 7, bn)


def _transpose(torch: Any, sizes: _Sizes) -> Launched:
    m, n, _, side, *_ = sizes
    x, y = new(torch, m, n), new(torch, n, m)
    return (m // side, n // side), (x, y, m, n, side)


def _column_sum(torch: Any, sizes: _Sizes) -> Launched:
    m, n, _, bm, bn, *_ = sizes
    x, out = new(torch, m, n), new(torch, n, dtype="fp32")
    return (n // bn, sizes.group), (x, out, m, n, bm, bn)


def _scan_rows(torch: Any, sizes: _Sizes) -> Launched:
    m, n = sizes[:2]
    x, y = new(torch, m, n, dtype="fp32"), new(torch, m, n, dtype="fp32")
    return (m,), (x, y, n, sizes.bn)


def _gather_rows(torch: Any, sizes: _Sizes) -> Launched:
    m, n = sizes[:2]
    table, out = new(torch, _VOCABULARY, n), new(torch, m, n)
    ids = (torch.arange(m, device="cuda") * 7919) % _VOCABULARY
    return (m,), (ids, table, out, n, sizes.bn)


def _grouped_gemm(torch: Any, sizes: _Sizes) -> Launched:
    m, n, k, bm, bn, bk, group, option = sizes
    a, b, c = (new(torch, *shape) for shape in ((m, k), (k, n), (m, n)))
    given = a, b, c, m, n, k, bm, bn, bk, group, option == "act"
    return (_up(m, bm) * _up(n, bn),), given


def _more_flash(torch: Any, sizes: _Sizes) -> Launched:
    heads, length, width, bm, bn, *_, option = sizes
    q, o = new(torch, heads, length, width), new(torch, heads, length, width)
    return (length // bm, heads), (q, q, q, o, length, 0.1, width, bm, bn, option == "causal")


def _fma_turns(torch: Any, sizes: _Sizes) -> Launched:
    return (sizes.m,), (new(torch, sizes.m * sizes.bn, dtype="fp32"), sizes.k, sizes.bn)


def _store_turns(torch: Any, sizes: _Sizes) -> Launched:
    m, k, bn = sizes.m, sizes.k, sizes.bn
    return (m,), (new(torch, m * k * bn, dtype="fp32"), k, bn)


def _copy_turns(torch: Any, sizes: _Sizes) -> Launched:
    m, k, bn = sizes.m, sizes.k, sizes.bn
    x, y = new(torch, m * k * bn, dtype="fp32"), new(torch, m * k * bn, dtype="fp32")
    return (m,), (x, y, k, bn)


def _chase(torch: Any, sizes: _Sizes) -> Launched:
    m, n, k = sizes[:3]
    step = 7919 * 32
    if sizes.option == "lines":  # never the same one twice before all have been seen
        step = _LINE * (int(n // _LINE * 0.6180339) | 1)
    following = (torch.arange(n, device="cuda") + step) % n
    return (m,), (following, torch.empty(m, dtype=following.dtype, device="cuda"), k)


def _add_at(torch: Any, sizes: _Sizes) -> Launched:
    m, n, bn = sizes.m, sizes.n, sizes.bn
    return (m,), (new(torch, n, dtype="fp32"), n, bn)


def _add_apart(torch: Any, sizes: _Sizes) -> Launched:
    n, step = sizes.n, sizes.k
    return (sizes.m,), (new(torch, n * step, dtype="fp32"), n, step, sizes.bn)


def _count_ids(torch: Any, sizes: _Sizes) -> Launched:
    m, n, bn = sizes.m, sizes.n, sizes.bn
    drawn = torch.randint(0, n, (m * bn,), device="cuda", dtype=torch.int32)
    ids = drawn.sort()[0] if sizes.option == "sorted" else drawn
    return (m,), (ids, new(torch, n, dtype="fp32"), bn)


def _take_tickets(torch: Any, sizes: _Sizes) -> Launched:
    m, n, bn = sizes.m, sizes.n, sizes.bn
    return (m,), (new(torch, n, dtype="fp32"), new(torch, m * bn, dtype="fp32"), n, bn)


def _sum_within(torch: Any, sizes: _Sizes) -> Launched:
    m, n, k, bn = sizes.m, sizes.n, sizes.k, sizes.bn
    return (m,), (new(torch, n, dtype="fp32"), new(torch, m * bn, dtype="fp32"), k, n, bn)


_LINE: Final = 16
"""Numbers of 8 bytes in a line of a GPU's caches."""

_MORE: Final[Mapping[str, Callable[[Any, _Sizes], Launched]]] = {
    "layer_norm": _layer_norm,
    "rms_loop": _rms_loop,
    "swiglu": _swiglu,
    "dropout": _dropout,
    "transpose": _transpose,
    "column_sum": _column_sum,
    "column_sum_late": _column_sum,
    "scan_rows": _scan_rows,
    "gather_rows": _gather_rows,
    "gemm": _grouped_gemm,
    "flash": _more_flash,
    "fma_turns": _fma_turns,
    "store_turns": _store_turns,
    "copy_turns": _copy_turns,
    "chase": _chase,
    "add_at": _add_at,
    "add_apart": _add_apart,
    "count_ids": _count_ids,
    "take_tickets": _take_tickets,
    "sum_within": _sum_within,
}
"""Makes the tensors of a kernel of `triton_more`, by its name."""

_TILED: Final = {"stages": COUNT, "warps": COUNT, "us": MEASURED}

TABLES: Final = (
    Table(
        name="triton_add",
        about="a sum of vectors in float32 by a kernel of Triton",
        columns={"n": COUNT, "block": COUNT, "us": MEASURED},
        program=_add,
        only_pytorch=_ONLY_PYTORCH,
        needs=_needs,
    ),
    Table(
        name="triton_softmax",
        about="softmax of rows by a kernel of Triton",
        columns={"rows": COUNT, "cols": COUNT, "warps": COUNT, "us": MEASURED},
        program=_softmax,
        only_pytorch=_ONLY_PYTORCH,
        needs=_needs,
    ),
    Table(
        name="triton_gemm",
        about="products by a kernel of Triton, an output tile each program",
        columns={
            **dict.fromkeys(("m", "n", "k", "bm", "bn", "bk"), COUNT),
            **_TILED,
            "tflops": BESIDE,
        },
        program=_gemm,
        only_pytorch=_ONLY_PYTORCH,
        needs=_needs,
    ),
    Table(
        name="triton_flash",
        about="attention forward by a kernel of Triton",
        columns={
            **dict.fromkeys(("heads", "seq", "d"), COUNT),
            "causal": FLAG,
            **dict.fromkeys(("bm", "bn"), COUNT),
            **_TILED,
        },
        program=_flash,
        only_pytorch=_ONLY_PYTORCH,
        needs=_needs,
    ),
    Table(
        name="triton_more",
        about="kernels of Triton that were predicted before they were measured",
        columns={
            "kernel": WORD,
            **dict.fromkeys(("m", "n", "k", "bm", "bn", "bk"), COUNT),
            **dict.fromkeys(("stages", "warps", "group"), COUNT),
            "option": NOTE,
            "us": MEASURED,
        },
        program=_more,
        only_pytorch=_ONLY_PYTORCH,
        needs=_needs,
        part=lambda row, column: row["kernel"],
    ),
)
"""The tables of kernels of Triton."""
