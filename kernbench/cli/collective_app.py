"""`kernbench collective`: its commands and options."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Prove, show, time, write and search collective algorithms in files of MSCCL XML.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A file of MSCCL XML.")]


@app.command()
def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILES", help="Files of MSCCL XML.")],
    slots: Annotated[
        int | None,
        typer.Option(min=1, help="Places of a connection; default: what the file's protocol has."),
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Writes all as JSON, too.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Names the waits that order nothing new.")
    ] = False,
) -> None:
    """Prove that files are right for every schedule, or say what is wrong.

    \f
    Args:
        files: Each may be of another library.
        slots: Places of each connection; None for as many as a file's protocol has.
        json: Gets all as JSON; None for no file.
        verbose: Whether to name waits that order nothing new.

    Raises:
        typer.Exit: Always at the end: 0 if all are proved, 1 if one is wrong, 2 if one is no file
            of a collective.
    """  # noqa: D301
    from kernbench.cli.collective_checking import check_files

    raise typer.Exit(check_files(files, slots, json, verbose=verbose))
