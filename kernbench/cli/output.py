"""What `kernbench run` shows and writes; nothing here changes what is simulated."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

TRACE_LIMIT: Final = 1_000_000
"""Default of `Output.trace_limit`: some 300 MB, about as much as browsers show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Files and text that a run leaves; see `kernbench run --help`.

    Attributes:
        trace: File for the timeline; None for no file.
        trace_ranks: Ranks that `trace` shows; None for all.
        trace_kineto: Folder for a file of each rank as PyTorch's profiler writes them; None for no
            files.
        report: File for a page that shows the run; None for no file.
        trace_limit: Most records that the log keeps for traces, `report`, `breakdown` and
            `explain_time`; 0 for any number.
        flight_recorder: File for the last calls of each rank, if ranks fail; of a program of
            PyTorch, folder for the files of PyTorch's flight recorder, however ranks end; None for
            none.
        json: File for the results; None for no file.
        breakdown: Whether to print where each rank's time went.
        explain_time: Whether to print what bounds the run, and the kernels that take most time.
        quiet: Whether to print errors and results files only.
        verbose: Whether to print which algorithm each operation is given.
    """

    trace: Path | None = None
    trace_ranks: tuple[int, ...] | None = None
    trace_kineto: Path | None = None
    report: Path | None = None
    trace_limit: int = TRACE_LIMIT
    flight_recorder: Path | None = None
    json: Path | None = None
    breakdown: bool = False
    explain_time: bool = False
    quiet: bool = False
    verbose: bool = False

    @property
    def written(self) -> tuple[Path | None, ...]:
        """Files and folders that the run leaves; None where it leaves none."""
        files = (self.trace, self.report, self.json)
        return (*files, self.trace_kineto, self.flight_recorder)

    @property
    def needs_records(self) -> bool:
        """Whether the log must keep every record."""
        files = (self.trace, self.trace_kineto, self.report)
        printed = self.breakdown or self.explain_time
        return printed or any(file is not None for file in files)


SILENT = Output(quiet=True)
"""Output of a run that is only compared with another run."""
