"""The page of one run."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kernbench.errors import KernbenchError
from kernbench.pages.bins import Bins
from kernbench.pages.breakdowns import range_charts, rank_charts
from kernbench.pages.commands import command_table
from kernbench.pages.explanations import bound_parts, verdict_parts
from kernbench.pages.html import write_page
from kernbench.pages.page import Code, Facts, Fold, Note, Page, Part, Section
from kernbench.pages.results import (
    busbw_charts,
    names_of,
    result_parts,
    value_text,
    without_folders,
)
from kernbench.pages.timeline import timeline_parts
from kernbench.pages.usage import Ranks, engine_charts, link_charts, memory_charts, span_of
from kernbench.report import breakdown, explanation
from kernbench.report.records import full_records
from kernbench.report.steps import step_times
from kernbench.run_spec import RunSpec
from kernbench.sim_engine.op_log import OpLog
from kernbench.topology import Topology
from kernbench.units import format_time

LONGEST_TEXT: Final = 60_000
"""Most characters of a report of a failure."""

NOT_MODELLED: Final = (
    "Times are simulated, not measured. What is not modelled is listed in docs/limits.md of "
    "kernbench, and how near the rest is to a real host in docs/fidelity.md."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run has left.

    Attributes:
        document: The document that `--json` writes: `run`, `spec`, `results`, and after a failure
            `failure`.
        report: Text of the failure; empty if there was none.
        op_log: Log of the run, with every record; None if no machine ran.
        topology: The machine; None if none ran.
        dispatch_ps: Host time in picoseconds that issuing a command took, of records that do not
            say themselves.
        sips: SIP of each rank whose number differs from that of its SIP.
        by_bytes: Names of operations that were timed by their bytes alone.
        prints: What the program printed, up to some length.
        printed: Characters that it printed.
    """

    document: Mapping[str, Any]
    report: str = ""
    op_log: OpLog | None = None
    topology: Topology | None = None
    dispatch_ps: int = 0
    sips: Mapping[int, int] = field(default_factory=dict)
    by_bytes: Collection[str] = ()
    prints: str = ""
    printed: int = 0


def write_run_page(path: str | Path, run: Run) -> None:
    """Writes the page of a run. Equal runs give equal files, whatever the order of set-up.

    Args:
        path: The HTML file to write; it appears when it is complete.
        run: What the run has left.

    Raises:
        UsageError: If the log does not hold every record, or the file cannot be written.
    """
    write_page(path, of_run(run))


def of_run(run: Run) -> Page:
    """Returns the page of a run.

    Args:
        run: What the run has left.

    Raises:
        UsageError: If the log does not hold every record.
    """
    spec = run.document.get("spec", {})
    results = run.document.get("results", [])
    timed = spec.get("fidelity") != "functional"
    figures = [each for each in results if not _is_internal(each)]
    sections = [Section("Failure", failure_parts(run.report, run.document.get("failure")))]
    of_results = [
        Section("Results", result_parts(figures)),
        Section("Bus bandwidth", busbw_charts([*zip(names_of(figures), figures, strict=True)])),
        Section("What the program printed", print_parts(run.prints, run.printed)),
    ]
    facts = [f"machine {run.topology.name}"] if run.topology is not None else []
    if run.op_log is not None and run.topology is not None:
        facts += _log_facts(run.op_log, timed)
        if not timed:
            sections += [*of_results, Section("Simulated time", [Note(_NO_TIME)])]
        else:
            first, later = _log_sections(
                run.op_log, Ranks(run.topology, run.dispatch_ps, run.sips), run.by_bytes
            )
            sections += [*first, *of_results, *later]
    else:
        sections += of_results
    sections.append(Section("Specification", spec_parts(spec)))
    sections.append(
        Section("What else is known of the run", result_parts([*filter(_is_internal, results)]))
    )
    sections.append(Section("What is not modelled", [Note(NOT_MODELLED)]))
    name = str(run.document.get("run") or "run")
    shown = [section for section in sections if section.parts]
    return Page(name, facts, shown, "failed" if run.report else "")


_NO_TIME: Final = (
    "The run simulated no time (--fidelity functional): there are no breakdowns, no utilisation "
    "and no slowest commands. --fidelity kernel has them."
)


def _log_facts(op_log: OpLog, timed: bool) -> list[str]:
    ranks = {record.rank for record in op_log.records if record.rank >= 0}
    facts = [f"{len(ranks)} rank{'s' * (len(ranks) != 1)}"] if ranks else []
    if timed and op_log.records:
        facts.append(f"{format_time(max(record.end for record in op_log.records))} simulated")
    return facts


def _log_sections(
    op_log: OpLog, ranks: Ranks, by_bytes: Collection[str]
) -> tuple[list[Section], list[Section]]:
    """Returns what a page says of a log before the results, and after them."""
    topology = ranks.topology
    records = full_records(op_log, "a page")
    start, end = span_of(records, ranks.dispatch_ps)
    if start >= end:
        return [], [Section("Simulated time", [Note("The run issued no command that takes time.")])]
    bins = Bins(start, end)
    rows = breakdown(op_log, ranks.dispatch_ps)
    partial: list[Part] = []
    if op_log.dropped:
        kept = len(records)
        partial.append(
            Note(
                f"Partial: this and all below counts the first {kept} records of "
                f"{kept + op_log.dropped}; --trace-limit 0 counts all."
            )
        )
    memory = memory_charts(op_log.memory, topology, bins)
    if memory and op_log.limit is not None and len(op_log.memory) >= op_log.limit:
        memory.append(
            Note(f"The first {op_log.limit} changes were kept; --trace-limit sets the limit.")
        )
    timeline = timeline_parts(records, ranks, (start, end), bool(op_log.dropped))
    told = explanation(op_log, topology, ranks.dispatch_ps, by_bytes=by_bytes)
    first = [
        Section(
            "Verdict",
            [*verdict_parts(told, len(rows), end - start, step_times(records)), *partial],
        ),
        Section("Timeline", timeline),
    ]
    return first, [
        Section("What bounds the run", bound_parts(told)),
        Section("Where the time went", rank_charts(rows)),
        Section("By range of the program", range_charts(op_log, ranks.dispatch_ps)),
        Section("Slowest commands", _commands(command_table(records))),
        Section("Utilisation of devices over time", engine_charts(records, ranks, bins)),
        Section(
            "Utilisation of links over time",
            link_charts(records, topology, (start, end), len(op_log.unkept)),
        ),
        Section("Memory over time", memory),
    ]


def _commands(table: list[Part]) -> list[Part]:
    if not table:
        return []
    return [
        Note(
            "Commands of streams, by name and line; times are sums over all ranks. A collective "
            "lasts from the arrival of its rank to its end, so it may have waited for others."
        ),
        *table,
    ]


def _is_internal(document: Any) -> bool:
    """Returns whether a result is what kernbench notes of a program, not what the program says."""
    return isinstance(document, Mapping) and document.keys() == {"pytorch"}


def print_parts(text: str, length: int) -> list[Part]:
    """Returns what the program printed; nothing if it printed nothing.

    Args:
        text: The text, or its begin.
        length: Characters of all that it printed.
    """
    if not text.strip():
        return []
    parts: list[Part] = [Code(without_folders(text.rstrip("\n")))]
    if len(text) < length:
        parts.append(Note(f"The first {len(text)} of {length} characters are shown."))
    return parts


def failure_parts(
    report: str, failure: Mapping[str, Any] | None, most: int = LONGEST_TEXT
) -> list[Part]:
    """Returns what a page says of a failure; nothing if there was none.

    Args:
        report: Text of the failure.
        failure: The failure as plain values, which know the command that repeats it.
        most: Most characters of the text to show.
    """
    if not report:
        return []
    text = without_folders(report)
    parts: list[Part] = [Code(text[:most])]
    if len(text) > most:
        parts.append(Note(f"The first {most} of {len(text)} characters are shown."))
    command = ((failure or {}).get("replay") or {}).get("command")
    return [*parts, Code(command, "This command repeats it:")] if command else parts


def spec_parts(spec: Mapping[str, Any]) -> list[Part]:
    """Returns what a page says of a specification: the command that repeats it, and its fields."""
    if not spec:
        return []
    rows = [(name, value_text(value)) for name, value in spec.items()]
    try:
        command = RunSpec.from_json(spec).command()
    except KernbenchError:
        said: Part = Note("Code made the machine or the program, so no command repeats the run.")
    else:
        said = Code(command, "This command repeats the run:")
    return [said, Fold("All fields", [Facts(rows)])]
