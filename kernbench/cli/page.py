"""`kernbench run --report`: the page of a run, also of one that failed."""

import sys
from pathlib import Path
from typing import Any

from kernbench.cli.failures import report_of
from kernbench.cli.prints import Prints
from kernbench.errors import UsageError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.scripts.pytorch import timed_by_bytes


def write_page(
    path: Path,
    document: dict[str, Any],
    ctx: RuntimeContext | None,
    report: str = "",
    prints: Prints | None = None,
) -> None:
    """Writes the page of a run.

    Args:
        path: The HTML file.
        document: What `--json` writes of the run.
        ctx: Context of the run; None if the page is about several runs together.
        report: Text of the failure; empty if there was none.
        prints: What the program printed, if it was kept.

    Raises:
        UsageError: If the file cannot be written (F15).
    """
    from kernbench.pages import Run, write_run_page

    if ctx is None:
        run = Run(document=document, report=report)
    else:
        engine = ctx.engine
        run = Run(
            document=document,
            report=report,
            op_log=engine.op_log,
            topology=engine.topology,
            dispatch_ps=engine.dispatch_ps,
            sips=dict(enumerate(ctx.devices)),
            by_bytes=timed_by_bytes(ctx),
            prints="" if prints is None else prints.text,
            printed=0 if prints is None else prints.length,
        )
    write_run_page(path, run)


def write_page_of_failure(
    path: Path,
    document: dict[str, Any],
    error: BaseException,
    ctx: RuntimeContext | None = None,
    prints: Prints | None = None,
) -> None:
    """Writes the page of a failure and prints its path; an unwritable file hides no failure.

    Args:
        path: The HTML file.
        document: What `--json` writes of the run.
        error: The failure.
        ctx: Context of the run; None if several runs have shown the failure together.
        prints: What the program printed, if it was kept.
    """
    try:
        write_page(path, document, ctx, report_of(error), prints)
    except UsageError as unwritable:
        print(f"kernbench: {unwritable}", file=sys.stderr)
    else:
        print(f"kernbench: a page about the failure is in {path}", file=sys.stderr)
