"""`kernbench collective`: its commands and options."""

from pathlib import Path
from typing import Annotated

import typer

from kernbench.cli.program_command import Plain

app = typer.Typer(
    help="Prove, show, time, write and search collectives in files of MSCCL XML or MSCCL++.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="A file of MSCCL XML, or a plan of MSCCL++.")
]


@app.command(cls=Plain)
def check(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILES", help="Files of MSCCL XML, or plans of MSCCL++.")
    ],
    slots: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Places of each connection.",
            show_default="as many as the file's protocol has",
        ),
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Writes all of it as JSON, too.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Names the waits that order nothing new.")
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


@app.command(cls=Plain)
def show(
    file: File,
    rank: Annotated[
        int | None,
        typer.Option(metavar="R", min=0, help="Shows one rank.", show_default="all ranks"),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", metavar="FILE", help="Writes a picture, in place of text."),
    ] = None,
) -> None:
    """Show the blocks of a file over the levels of their steps.

    \f
    Args:
        file: What to show.
        rank: Whose blocks; None for all.
        svg: The picture's file; None for text.

    Raises:
        typer.Exit: Always at the end, with the exit code.
    """  # noqa: D301
    from kernbench.cli.collective_running import show_file, told

    raise typer.Exit(told(lambda: show_file(file, rank, svg)))


Machine = Annotated[
    str, typer.Option("--topology", metavar="MACHINE", help="A YAML file, or a shipped machine.")
]


Ccl = Annotated[
    Path | None,
    typer.Option(
        "--ccl",
        metavar="FILE",
        help="Algorithms and their queues.",
        show_default="ccl.yaml here, else the shipped one",
    ),
]


@app.command("time", cls=Plain)
def time_(
    file: File,
    topology: Machine = "h200x8",
    begin: Annotated[str, typer.Option("-b", metavar="BYTES", help="Smallest size.")] = "1K",
    end: Annotated[str, typer.Option("-e", metavar="BYTES", help="Largest size.")] = "64M",
    factor: Annotated[
        int, typer.Option("-f", metavar="FACTOR", min=2, help="Factor between sizes.")
    ] = 8,
    ccl: Ccl = None,
) -> None:
    """Show how long a file takes on a machine, beside what the library chooses.

    \f
    Args:
        file: What to time.
        topology: A YAML file, or the name of a shipped machine.
        begin: Smallest size, such as `1K`.
        end: Largest size.
        factor: Between sizes.
        ccl: The `ccl.yaml`.

    Raises:
        typer.Exit: Always at the end, with the exit code.
    """  # noqa: D301
    from kernbench.cli.collective_running import time_file, told

    raise typer.Exit(told(lambda: time_file(file, topology, (begin, end, factor), ccl)))


@app.command(cls=Plain)
def write(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="An algorithm of `ccl.yaml`; `kernbench list` shows them."
        ),
    ],
    ranks: Annotated[int, typer.Option(metavar="N", min=2, help="Ranks of the group.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write.")],
    operation: Annotated[
        str, typer.Option(metavar="NAME", help="The operation, such as `all_gather`.")
    ] = "all_reduce",
    topology: Machine = "h200x8",
    ccl: Ccl = None,
) -> None:
    """Write an algorithm of ccl.yaml as MSCCL XML.

    \f
    Args:
        name: Of the algorithm.
        ranks: The group is the machine's first SIPs.
        out: Takes the place of a file that is there.
        operation: PyTorch's name of the operation.
        topology: A YAML file, or the name of a shipped machine.
        ccl: The `ccl.yaml`.

    Raises:
        typer.Exit: Always at the end, with the exit code.
    """  # noqa: D301
    from kernbench.cli.collective_running import told, write_algorithm

    raise typer.Exit(told(lambda: write_algorithm(name, operation, ranks, topology, out, ccl)))


@app.command(cls=Plain)
def search(
    ranks: Annotated[int, typer.Option(metavar="N", min=2, help="Ranks of the group, at most 16.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write.")],
    operation: Annotated[
        str,
        typer.Option(metavar="NAME", help="`all_gather`, `reduce_scatter` or `all_reduce`."),
    ] = "all_reduce",
    topology: Machine = "h200x8",
    size: Annotated[str, typer.Option("-b", metavar="BYTES", help="Size to time.")] = "64M",
    ccl: Ccl = None,
) -> None:
    """Search a schedule for a machine, prove it, and show its time beside the cut bound.

    \f
    Args:
        ranks: The group is the machine's first SIPs.
        out: Takes the place of a file that is there.
        operation: PyTorch's name of the operation.
        topology: A YAML file, or the name of a shipped machine.
        size: Of all blocks together, such as `64M`.
        ccl: The `ccl.yaml`.

    Raises:
        typer.Exit: Always at the end, with the exit code.
    """  # noqa: D301
    from kernbench.cli.collective_running import search_schedule, told

    raise typer.Exit(told(lambda: search_schedule(operation, ranks, topology, size, out, ccl)))
