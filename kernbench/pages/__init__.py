"""Pages: a run or a sweep as one HTML file that opens from disk."""

from kernbench.pages.page import Page
from kernbench.pages.runs import Run, of_run, write_run_page
from kernbench.pages.sweeps import of_sweep, write_sweep_page

__all__ = ["Page", "Run", "of_run", "of_sweep", "write_run_page", "write_sweep_page"]
