"""What the laws of the simulator say of the lines of a table: no law stands here."""

import csv
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from kernbench.attention.bands import CAUSAL, EVERYTHING, bands
from kernbench.attention.rows import in_order
from kernbench.calibration import collectives, images
from kernbench.calibration.lines import (
    REPLAYS,
    ROW,
    Line,
    attention,
    elements,
    known,
    look_up,
    over_rows,
    product,
    replayed,
    step,
)
from kernbench.config.yaml_file import read_text
from kernbench.errors import KernbenchError, UsageError
from kernbench.hw.attention import Direction
from kernbench.hw.library import Library
from kernbench.hw.warmed import Warmed, WarmedLibrary
from kernbench.kernels import attention as attentions
from kernbench.kernels import lists, products
from kernbench.kernels.operands import Layout, Operand, row_major, total_bytes
from kernbench.kernels.prices import Price, of_sum, priced
from kernbench.kernels.products import Sizes
from kernbench.memory import DType, dtypes
from kernbench.topology.spec import SystemSpec


class Machine:
    """What laws ask: the machine, and the library of one of its SIPs, in and outside of graphs.

    Args:
        system: The machine.
    """

    def __init__(self, system: SystemSpec) -> None:
        self.system: Final = system
        self.library: Final = Library(system.sip)
        warm = system.sip.warm
        self.warmed: Final = None if warm is None else WarmedLibrary(self.library, system.sip, warm)


Law: TypeAlias = Callable[[Machine, Line], int]


def _every(line: Line) -> bool:
    del line
    return True


def _none(line: Line) -> float:
    del line
    return 0.0


def _whole(line: Line) -> float:
    del line
    return 1.0


def _of_graphs(line: Line) -> float:
    return 1 / REPLAYS if replayed(line) else 1.0


class Source(NamedTuple):
    """How a table is read.

    Attributes:
        laws: What the simulator says of each measured column, by its name.
        events: How much of the time of an event pair a line's times hold.
        lines: Which lines there are laws for; by default all.
    """

    laws: Mapping[str, Law]
    events: Callable[[Line], float] = _none
    lines: Callable[[Line], bool] = _every


@dataclass(frozen=True, slots=True)
class Cell:
    """One measured number.

    Attributes:
        table: Name of its table.
        line: The texts of its line, by column.
        column: The measured column.
        us: What was measured, in microseconds.
        law: What the simulator says of it.
    """

    table: str
    line: Line
    column: str
    us: float
    law: Law

    @property
    def aside(self) -> bool:
        """Whether it is kept aside: half of the cells are, by a hash of what names them."""
        measured = {*SOURCES[self.table].laws, "us", "min_us", "gbps", "tflops", "host_us"}
        key = ",".join(value for name, value in self.line.items() if name not in measured)
        return zlib.crc32(key.encode()) % 2 == 1

    def error(self, machine: Machine, event_us: float) -> float:
        """Returns `predicted / measured - 1`.

        Args:
            event_us: What an event pair reads with nothing between.

        Raises:
            UsageError: If the line holds what no law is for (F2).
        """
        try:
            taken = event_us * SOURCES[self.table].events(self.line)
            predicted = self.law(machine, self.line) / 1e6 + taken
        except (KernbenchError, LookupError, ValueError) as error:
            raise wrong(self.table, self.line, error) from error
        return predicted / self.us - 1


def plain(dtype: DType, *shape: int) -> Layout:
    """Returns a tensor that lies row after row."""
    return row_major(Layout(shape, shape, dtype))


_ELEMENTWISE: Final[dict[str, str]] = {
    "add_scalar": "add",
    "zero": "zero_",
    "copy": "copy_",
    "add": "add",
    "mul": "mul",
    **{name: name for name in ("exp", "gelu", "silu", "relu", "normal_", "uniform_")},
    "bernoulli_": "bernoulli_",
}
_ONE_OPERAND: Final = ("add_scalar", "exp", "gelu", "silu", "relu", "copy")


def _elementwise(library: Library, line: Line) -> int:
    op, dtype, count = elements(line)
    x, wide = plain(dtype, count), plain(dtype, count // ROW, ROW)
    if op in {"dropout", "where"}:
        mask = plain(dtypes.bool_, count)
        if op == "dropout":
            return priced(library, "aten::native_dropout", None, [x], [x, mask])
        return priced(library, "aten::where", None, [mask, x, x], [x])
    if op == "cat":
        return priced(library, "aten::cat", None, [x, x], [plain(dtype, 2 * count)])
    if op == "cast":
        other = dtypes.float32 if dtype is dtypes.bfloat16 else dtypes.bfloat16
        return priced(library, "aten::copy_", None, [x], [plain(other, count)])
    if op == "add_bcast":
        return priced(library, "aten::add", None, [wide, plain(dtype, ROW)], [wide])
    if op == "transpose_copy":
        turned = Layout((ROW, count // ROW), (1, ROW), dtype)
        return priced(library, "aten::copy_", None, [turned], [plain(dtype, ROW, count // ROW)])
    reads = [x] if op in _ONE_OPERAND else [x, x] if op in {"add", "mul"} else []
    return priced(library, f"aten::{known(_ELEMENTWISE, op)}", None, reads, [x])


def _memory(machine: Machine, line: Line) -> int:
    """A graph's calls find in the L2 what the call before has left, if all of it fits."""
    warm, warmed = machine.system.sip.warm, machine.warmed
    if warm is None or warmed is None or not replayed(line):
        return _elementwise(machine.library, line)
    price = _elementwise(warmed, line)
    nbytes = int(line["bytes"]) * (3 if line["op"] == "add" else 2)
    if nbytes > warm.kept or not isinstance(price, Warmed):
        return price
    return price.lasting(REPLAYS, REPLAYS - 1, 0, warm.kept)


def _rows(library: Library, line: Line) -> int:
    op, dtype, backward, rows, columns = over_rows(line)
    wide = dtypes.float32
    x, w, each = plain(dtype, rows, columns), plain(dtype, columns), plain(wide, rows, 1)
    labels, one = plain(dtypes.int64, rows), plain(dtype)

    def priced_at(name: str, reads: list[Operand], writes: list[Operand]) -> int:
        return priced(library, f"aten::{name}", None, reads, writes)

    out = plain(dtype, rows)
    match op, backward:
        case "softmax", False:
            return priced_at("_softmax", [x], [x])
        case "log_softmax", False:
            return priced_at("_log_softmax", [x], [x])
        case "softmax", True:
            return priced_at("_softmax_backward_data", [x, x], [x])
        case "layer_norm", False:
            return priced_at("native_layer_norm", [x, w, w], [x, each, each])
        case "layer_norm", True:
            reads: list[Operand] = [x, x, each, each, w, w]
            return priced_at("native_layer_norm_backward", reads, [x, w, w])
        case "rms_norm", False:
            return priced_at("_fused_rms_norm", [x, w], [x, each])
        case "rms_norm", True:
            return priced_at("_fused_rms_norm_backward", [x, x, each, w], [x, w])
        case "argmax", False:
            return priced_at("argmax", [x], [plain(dtypes.int64, rows)])
        case "cross_entropy", False:
            losses = priced_at("nll_loss_forward", [x, labels], [one, one])
            return priced_at("_log_softmax", [x], [x]) + losses
        case "cross_entropy", True:
            filled = priced_at("nll_loss_backward", [one, x, labels], [x])
            return filled + priced_at("_log_softmax_backward_data", [x, x], [x])
        case "sum" | "mean", False:
            price: Price = of_sum((1,))
            return priced(library, f"aten::{op}", price, [x], [out])
        case _:
            raise UsageError(f"no law for {line['op']!r}")


def _product(library: Library, line: Line) -> int:
    dtype, tf32, scaled, m, n, k = product(line)
    out = dtypes.bfloat16 if scaled else dtype
    moved = total_bytes((plain(dtype, m, k), plain(dtype, n, k), plain(out, m, n)))
    return products.duration_ps(library, dtype, Sizes(1, m, n, k), moved, tf32=tf32)


def _attention(library: Library, line: Line, *, backward: bool) -> int:
    backend, b, h, hk, sq, s, d, causal = attention(line)
    q, k = plain(dtypes.bfloat16, b, h, sq, d), plain(dtypes.bfloat16, b, hk, s, d)
    lse = plain(dtypes.float32, b, h, sq)
    seen = bands(in_order(sq), in_order(s), CAUSAL if causal else EVERYTHING)
    # Backward: the gradient, the operands, the result and the sums in; three gradients out.
    moved = (q, q, k, k, q, lse, q, k, k) if backward else (q, k, k, q, lse)
    way: Direction = "backward" if backward else "forward"
    return attentions.duration_ps(library, backend, way, (q, k, k), (seen,), total_bytes(moved))


def _forward(library: Library, line: Line) -> int:
    return _attention(library, line, backward=False)


def _backward(library: Library, line: Line) -> int:
    return _attention(library, line, backward=True)


def _embedding(library: Library, line: Line) -> int:
    backward, dtype, vocabulary, hidden, tokens = look_up(line)
    ids = plain(dtypes.int64, tokens)
    out, table = plain(dtype, tokens, hidden), plain(dtype, vocabulary, hidden)
    if not backward:
        return priced(library, "aten::embedding", None, [ids], [out])
    return priced(library, "aten::embedding_dense_backward", None, [out, ids], [table])


def _optimiser(library: Library, line: Line) -> int:
    op, dtype, shapes = step(line)
    sizes = [prod(shape) for shape in shapes]

    def passed(reads: int, writes: int, *, reduces: bool = False) -> int:
        return lists.duration_ps(
            library,
            "foreach",
            sizes,
            (reads + writes) * sum(sizes) * dtype.itemsize,
            lists=max(reads, writes),
            passes=reads + writes,
            reduces=reduces,
        )

    match op:
        case "sgd_foreach":  # momentum *= 0.9; += gradients; parameters += momentum
            return passed(1, 1) + 2 * passed(2, 1)
        case "adamw_fused":
            return passed(4, 3)
        case "foreach_zero":
            return passed(0, 1)
        case "clip_grad_norm_foreach":
            return passed(1, 0, reduces=True) + passed(1, 1)
        case _:
            raise UsageError(f"no law for {op!r}")


def _alone(law: Callable[[Library, Line], int]) -> Law:
    """Returns the law of a table that one SIP tells."""
    return lambda machine, line: law(machine.library, line)


def _collective(machine: Machine, line: Line) -> int:
    return collectives.modelled_ps(machine.system, line)


_COLLECTIVES: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter"})

SOURCES: Final[Mapping[str, Source]] = {
    "memory": Source({"us": _memory}, events=_of_graphs),
    "elementwise": Source({"us": _alone(_elementwise)}, events=_whole),
    "rowops2": Source({"us": _alone(_rows)}, events=_whole),
    "rowops3": Source({"us": _alone(_rows)}, events=_whole),
    "gemm2": Source({"us": _alone(_product)}, events=_whole),
    "attention2": Source({"fwd_us": _alone(_forward), "bwd_us": _alone(_backward)}, events=_whole),
    "embedding": Source({"us": _alone(_embedding)}, events=_whole),
    "optim": Source(
        {"us": _alone(_optimiser)}, events=_whole, lines=lambda line: line["op"] != "adamw_foreach"
    ),
    "images": Source({"us": _alone(images.modelled_ps)}),
    "collectives": Source(
        {"us": _collective},
        lines=lambda line: line["algo"] == "default" and line["op"] in _COLLECTIVES,
    ),
}
"""Tables that numbers are fitted on.

`foreach` AdamW is many operations of lists, which no line of the table tells apart.
"""


def read_cells(folder: Path) -> Iterator[Cell]:
    """Yields the cells of the tables of a folder that are there.

    Args:
        folder: Has files such as `gemm2.csv`; others in it are left alone.

    Raises:
        UsageError: If a file lacks a column, or a line holds what no law is for (F2).
    """
    for name, source in SOURCES.items():
        file = folder / f"{name}.csv"
        if file.exists():
            for line in read_lines(file):
                yield from _cells(file, name, source, line)


def _cells(file: Path, name: str, source: Source, line: Line) -> Iterator[Cell]:
    for column, law in source.laws.items():
        try:
            if line[column] and source.lines(line):
                us = float(line[column])
                if not 0 < us < math.inf:
                    raise ValueError(f"expected {column} above 0, got {us:g}")
                yield Cell(name, line, column, us, law)
        except (KeyError, ValueError) as error:
            raise wrong(str(file.with_suffix("")), line, error) from error


def wrong(table: str, line: Line | None, error: Exception) -> UsageError:
    """Returns the error about a table, or a line of it, that no law is for.

    Args:
        table: The table, without `.csv`.
        line: The line; None if it is not known which.
        error: What went wrong: a `KeyError` is about a column or a word that is missing.
    """
    where = "" if line is None else f" {' '.join(value for value in line.values() if value)}:"
    said = error.summary if isinstance(error, KernbenchError) else str(error)
    if isinstance(error, KeyError):
        is_word = line is not None and error.args[0] in line.values()
        said = f"{error.args[0]!r} is not known" if is_word else f"expected a column {said}"
    return UsageError(f"{table}.csv:{where} {said}", code="F2")


def read_lines(file: Path) -> list[dict[str, str]]:
    """Returns the lines of a table by column; empty if there is no such file.

    Raises:
        UsageError: If the file cannot be read (F11, F9), or is no table (F10).
    """
    if not file.exists():
        return []
    try:
        lines = csv.DictReader(read_text(file).splitlines(), strict=True)
        return [{k: v or "" for k, v in line.items() if k} for line in lines]
    except csv.Error as error:
        raise UsageError(f"{file}: expected comma-separated values: {error}", code="F10") from error
