"""Products of matrices."""

from collections.abc import Mapping
from typing import Any, Final

from kernbench.calibration import lines
from kernbench.validation.table import BESIDE, COUNT, MEASURED, WORD, Row, Table
from kernbench.validation.timing import Call, ahead_us, alone_us, new

_SUSTAINED: Final = 8
"""Products of 8192 cubed before a call that is measured under load: about 11 ms of an H200."""


def product(torch: Any, row: Row) -> Call:
    """Returns `a[m, k] @ b[n, k].T` as a call, in the row's type."""
    dtype, tf32, scaled, m, n, k = lines.product(row)
    torch.backends.cuda.matmul.allow_tf32 = tf32
    a, b = new(torch, m, k, dtype=dtype.name), new(torch, n, k, dtype=dtype.name)
    if scaled:
        one = torch.ones((), device="cuda")
        multiply = torch._scaled_mm
        return lambda: multiply(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    return lambda: torch.matmul(a, b.t())


def _gemm(torch: Any, row: Row) -> Mapping[str, float]:
    return {"us": alone_us(torch, product(torch, row))}


def _chain(torch: Any, row: Row) -> Mapping[str, float]:
    return {"us": ahead_us(torch, product(torch, row))}


def _sustained(torch: Any, row: Row) -> Mapping[str, float]:
    big = product(torch, {"dtype": "bf16", "m": "8192", "n": "8192", "k": "8192"})
    call = product(torch, row)  # last, as it sets whether float32 may be tf32
    flushed, first = alone_us(torch, call), alone_us(torch, call, 20)
    call()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(_SUSTAINED):
        big()
    begin.record()
    for _ in range(20):
        call()
    end.record()
    torch.cuda.synchronize()
    us = 1e3 * float(begin.elapsed_time(end)) / 20
    return {"us": us, "first_us": first, "mid_us": us, "flushed_us": flushed}


_SIZES: Final = {"dtype": WORD, "m": COUNT, "n": COUNT, "k": COUNT}

GEMM: Final = Table(
    name="gemm",
    about="torch.matmul of a[m, k] and b[n, k].T",
    columns={**_SIZES, "us": MEASURED, "tflops": BESIDE},
    program=_gemm,
)
GEMM2: Final = Table(
    name="gemm2",
    about="products in more types",
    columns={**_SIZES, "us": MEASURED, "tflops": BESIDE},
    program=_gemm,
)
CHAIN: Final = Table(
    name="gemm_chain",
    about="products of few rows back to back, without a graph, each with other weights",
    columns={**_SIZES, "us": MEASURED},
    program=_chain,
)
SUSTAINED: Final = Table(
    name="gemm_sustained",
    about="products back to back: at first, and under load",
    columns={
        **_SIZES,
        "us": MEASURED,
        "first_us": MEASURED,
        "mid_us": MEASURED,
        "flushed_us": MEASURED,
        "mhz": BESIDE,
        "watts": BESIDE,
    },
    program=_sustained,
)
