"""Reports of a run: tables, traces, breakdowns. They read the log and nothing else."""

from kernbench.report.breakdown import RankBreakdown, breakdown, print_breakdown
from kernbench.report.explanation import Explanation, explanation
from kernbench.report.explanation_lines import explanation_lines
from kernbench.report.files import check_apart, check_writable, make_folder, replacing
from kernbench.report.golden import dump_records
from kernbench.report.kineto import write_kineto_files, write_kineto_rank
from kernbench.report.moe import LoadRow, load_rows, print_loads
from kernbench.report.nccl_table import (
    Header,
    Measurement,
    Timing,
    as_json,
    average_busbw,
    busbw_factor,
    footer_lines,
    header_lines,
    row_line,
    timing,
    total_wrong,
)
from kernbench.report.ranges import RangeBreakdown, mean_of_ranks, range_breakdown
from kernbench.report.trace import write_trace

__all__ = [
    "Explanation",
    "Header",
    "LoadRow",
    "Measurement",
    "RangeBreakdown",
    "RankBreakdown",
    "Timing",
    "as_json",
    "average_busbw",
    "breakdown",
    "busbw_factor",
    "check_apart",
    "check_writable",
    "dump_records",
    "explanation",
    "explanation_lines",
    "footer_lines",
    "header_lines",
    "load_rows",
    "make_folder",
    "mean_of_ranks",
    "print_breakdown",
    "print_loads",
    "range_breakdown",
    "replacing",
    "row_line",
    "timing",
    "total_wrong",
    "write_kineto_files",
    "write_kineto_rank",
    "write_trace",
]
