"""Where the time of a rank went by name of operation, in the columns of `torch.profiler`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kernbench.errors import OptionError, call_site, site_fact
from kernbench.report.breakdown import host_interval
from kernbench.report.records import is_engine
from kernbench.sim_engine.op_log import Record
from kernbench.units import PS_PER_US


@dataclass
class Average:
    """The calls of one name, with simulated times in microseconds.

    Attributes:
        key: The name.
        count: Number of calls.
        self_cpu_time_total: Time that the host took to issue them, or spent in actions of its own.
        cpu_time_total: The same with all that a range holds; of a range, from its begin to its end.
        self_device_time_total: Time that the device took.
        device_time_total: The same with all that a range holds.
        is_user_annotation: Whether it is a range.
    """

    key: str
    count: int = 0
    self_cpu_time_total: float = 0.0
    cpu_time_total: float = 0.0
    self_device_time_total: float = 0.0
    device_time_total: float = 0.0
    is_user_annotation: bool = False

    @property
    def cpu_time(self) -> float:
        """Mean of `cpu_time_total` in microseconds."""
        return self.cpu_time_total / self.count if self.count else 0.0

    @property
    def device_time(self) -> float:
        """Mean of `device_time_total` in microseconds."""
        return self.device_time_total / self.count if self.count else 0.0

    # Their names before PyTorch 2.6
    @property
    def cuda_time_total(self) -> float:
        """Another name of `device_time_total`."""
        return self.device_time_total

    @property
    def self_cuda_time_total(self) -> float:
        """Another name of `self_device_time_total`."""
        return self.self_device_time_total

    @property
    def cuda_time(self) -> float:
        """Another name of `device_time`."""
        return self.device_time


def averages(records: Iterable[Record], dispatch_ps: int) -> list[Average]:
    """Returns the calls of each name, in the order of their first.

    Args:
        records: Records of one rank.
        dispatch_ps: Host time in picoseconds that issuing a command took, of records that do not
            say themselves.
    """
    rows: dict[str, Average] = {}
    for record in records:
        if is_engine(record.track):
            continue
        row = rows.setdefault(record.name, Average(record.name))
        row.count += 1
        if record.category == "range":
            row.is_user_annotation = True
            row.cpu_time_total += (record.end - record.start) / PS_PER_US
            continue
        begin, end = host_interval(record, dispatch_ps)
        host = (end - begin) / PS_PER_US
        on_device = record.category not in {"host", "event"}
        device = (record.end - record.start) / PS_PER_US if on_device else 0.0
        row.self_cpu_time_total += host
        row.cpu_time_total += host
        row.self_device_time_total += device
        row.device_time_total += device
        for name in dict.fromkeys(record.ranges):
            rows.setdefault(name, Average(name)).device_time_total += device
    return [row for row in rows.values() if row.count]


SORTS: Final = (
    "cpu_time",
    "cpu_time_total",
    "self_cpu_time_total",
    "device_time",
    "device_time_total",
    "self_device_time_total",
    "cuda_time",
    "cuda_time_total",
    "self_cuda_time_total",
    "count",
)
"""What a table can be sorted by."""

_CPU: Final = ("Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg")
_DEVICE: Final = ("Self CUDA", "Self CUDA %", "CUDA total", "CUDA time avg")


def table(
    rows: Sequence[Average],
    *,
    sort_by: str | None = None,
    row_limit: int = 100,
    width: int = 55,
    device: bool = True,
    header: str | None = None,
) -> str:
    """Returns a table of averages in PyTorch's columns.

    Args:
        sort_by: One of `SORTS`, the largest first; None for the order of the rows.
        row_limit: Rows to show; -1 for all.
        width: Most characters of a name.
        device: Whether to show the times of the device.
        header: A line above the table; None for none.

    Raises:
        OptionError: If `sort_by` is none of `SORTS`.
    """
    if sort_by is not None:
        if sort_by not in SORTS:
            raise OptionError(
                f"a table cannot be sorted by {sort_by!r}",
                [site_fact(call_site())],
                hint=f"one of {', '.join(SORTS)}",
            )
        rows = sorted(rows, key=lambda row: -getattr(row, sort_by))
    cpu = sum(row.self_cpu_time_total for row in rows)
    cuda = sum(row.self_device_time_total for row in rows)
    columns = ["Name", *_CPU, *(_DEVICE if device else ()), "# of Calls"]
    lines = [columns]
    for row in rows if row_limit < 0 else rows[:row_limit]:
        name = row.key if len(row.key) <= width else f"{row.key[: width - 3]}..."
        cells = [name, _share(row.self_cpu_time_total, cpu), _time(row.self_cpu_time_total)]
        cells += [_share(row.cpu_time_total, cpu), _time(row.cpu_time_total), _time(row.cpu_time)]
        if device:
            cells += [_time(row.self_device_time_total), _share(row.self_device_time_total, cuda)]
            cells += [_time(row.device_time_total), _time(row.device_time)]
        lines.append([*cells, str(row.count)])
    widths = [max(map(len, column)) + 2 for column in zip(*lines, strict=True)]
    ruler = "  ".join("-" * each for each in widths)
    text = [
        "  ".join(cell.rjust(size) for cell, size in zip(line, widths, strict=True))
        for line in lines
    ]
    shown = [ruler, text[0], ruler, *text[1:], ruler, f"Self CPU time total: {_time(cpu)}"]
    if device:
        shown.append(f"Self CUDA time total: {_time(cuda)}")
    if header is not None:
        shown = ["=" * len(ruler), header, *shown]
    return "\n".join([*shown, ""])


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.2f}%" if whole else "NaN"


def _time(microseconds: float) -> str:
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.3f}s"
    if microseconds >= 1e3:
        return f"{microseconds / 1e3:.3f}ms"
    return f"{microseconds:.3f}us"
