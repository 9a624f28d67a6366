"""What a run says about itself: tables, traces, breakdowns. Reads the log and nothing else."""

from kernbench.report.breakdown import RankBreakdown, breakdown, print_breakdown
from kernbench.report.files import check_writable, replacing
from kernbench.report.golden import dump_records
from kernbench.report.nccl_table import (
    Header,
    Measurement,
    Timing,
    all_reduce_busbw_factor,
    as_json,
    average_busbw,
    footer_lines,
    header_lines,
    row_line,
    timing,
    total_wrong,
)
from kernbench.report.trace import write_trace

__all__ = [
    "Header",
    "Measurement",
    "RankBreakdown",
    "Timing",
    "all_reduce_busbw_factor",
    "as_json",
    "average_busbw",
    "breakdown",
    "check_writable",
    "dump_records",
    "footer_lines",
    "header_lines",
    "print_breakdown",
    "replacing",
    "row_line",
    "timing",
    "total_wrong",
    "write_trace",
]
