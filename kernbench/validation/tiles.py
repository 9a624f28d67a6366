"""Kernels of Triton: tables of launches of the kernels in `kernbench.triton.measured`."""

import importlib
from collections.abc import Mapping
from typing import Any, Final

from kernbench.validation.table import BESIDE, COUNT, FLAG, MEASURED, Row, Table
from kernbench.validation.timing import alone_us, new

_WARPS_OF_ADD: Final = 4
"""Triton's default, which the table does not tell."""

_ONLY_PYTORCH: Final = "kernels of Triton run under PyTorch"


def _kernels() -> Any:
    """Returns the kernels; only programs that need Triton import it."""
    return importlib.import_module("kernbench.triton.measured")


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
)
"""The tables of kernels of Triton."""
