"""`kernbench test`: pytest, told where worlds run, and with a summary of them."""

import sys
from collections.abc import Iterator
from enum import StrEnum
from importlib import metadata, util
from pathlib import Path
from typing import Annotated, Final

import typer

from kernbench.cli import loading, ownership

_PLUGIN: Final = "kernbench.testing.plugin"
"""The plugin by its module; by its name if the package is installed."""

_IMPORTED: Final = (
    "ignore:Module already imported so cannot be rewritten; kernbench"
    ":pytest.PytestAssertRewriteWarning"
)
"""Filter of what pytest says of a plugin's package that was imported before it, as it is here."""

_MISUSED: Final = 4
"""Exit code of pytest for options, files and settings with which it cannot begin."""


class Mode(StrEnum):
    """Where worlds run."""

    inline = "inline"
    pool = "pool"
    batch = "batch"


def run_tests(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="A folder or file of tests, or one test: `test_x.py::test_name`."
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGUMENTS", help="Options for pytest; put them after `--`."),
    ] = None,
    mode: Annotated[
        Mode | None,
        typer.Option(
            metavar="inline|pool|batch",
            help="Where tests run; inline: in the process of pytest; pool: in worker processes, "
            "one by one; batch: there in batches.",
            show_default="`KERNBENCH_TEST_MODE`, else `inline`",
        ),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            metavar="MACHINE",
            help="Machine of cases of `world_batch` that name none: a YAML file, or a shipped "
            "machine.",
            show_default="`sip8`",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=2**32 - 1,
            help="Where random generators start in each case of `world_batch`.",
            show_default="`1234`",
        ),
    ] = None,
    jobs: Annotated[
        str | None,
        typer.Option(
            "--jobs",
            "-n",
            metavar="N",
            help="Processes of pytest-xdist that share the tests, or `auto`.",
            show_default="what pytest is configured to",
        ),
    ] = None,
) -> None:
    """Run tests with pytest, and tell what they have simulated.

    \f
    Args:
        path: A folder or file of tests, or one test.
        arguments: Further arguments of pytest.
        mode: Where worlds run; None for what the environment says.
        machine: Machine of cases of `world_batch` that name none.
        seed: Where random generators start in cases of `world_batch`.
        jobs: Number of processes of pytest-xdist, or `auto`.

    Raises:
        typer.BadParameter: If the path does not exist, or pytest or pytest-xdist is missing.
        typer.Exit: Always at the end, with the exit code.
    """  # noqa: D301
    if util.find_spec("pytest") is None:
        raise typer.BadParameter(
            "pytest is not installed: pip install pytest", param_hint="kernbench test"
        )
    if not Path(path.partition("::")[0]).exists():
        raise typer.BadParameter(f"there is no file or folder {path}", param_hint="PATH")
    options = [] if mode is None else [f"--kb-mode={mode.value}"]
    if machine is not None:
        options.append(f"--kb-machine={_checked_machine(machine)}")
    if seed is not None:
        options.append(f"--kb-seed={seed}")
    if jobs is not None:
        options += _of_jobs(jobs)
    loading.end()  # leaks are looked for among all objects, so none is left out
    given = [*_plugin(), "-W", _IMPORTED, "--kb-summary", *options, path, *(arguments or ())]
    raise typer.Exit(_run(given))


def _run(given: list[str]) -> int:
    """Runs pytest and returns the exit code of the process; SIGTERM ends it as Ctrl-C does."""
    import pytest

    from kernbench.cli.failures import Exit, Terminated, end_at_terminate, failed, terminated

    class Ending:
        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_protocol(self) -> None:
            if terminated():  # a test has caught the exception
                raise Terminated

    owned = ownership.owned()
    if owned:
        end_at_terminate()
    try:
        code = int(pytest.main(given, plugins=[Ending()] if owned else []))
    except KeyboardInterrupt as error:  # before or after the session, which answers it itself
        return failed(error)
    if owned and terminated():
        print("terminated", file=sys.stderr)
        return Exit.TERMINATED
    return Exit.USAGE if code == _MISUSED else code


def _plugin() -> Iterator[str]:
    """Yields the options that load the plugin, whether the package is installed or not."""
    yield "-p"
    yield "kernbench" if metadata.entry_points(group="pytest11", name="kernbench") else _PLUGIN


def _of_jobs(jobs: str) -> list[str]:
    """Returns the options of pytest-xdist.

    Raises:
        typer.BadParameter: If the number cannot be used, or pytest-xdist is missing.
    """
    if jobs != "auto" and not (jobs.isascii() and jobs.isdigit()):
        raise typer.BadParameter(f"expected a number or auto, got {jobs}", param_hint="--jobs")
    if util.find_spec("xdist") is None:
        raise typer.BadParameter(
            "pytest-xdist is not installed: pip install pytest-xdist", param_hint="--jobs"
        )
    return ["-n", jobs]


def _checked_machine(machine: str) -> str:
    """Returns the name or file of a machine that can be made.

    Raises:
        typer.Exit: If it cannot; the reason has been printed.
    """
    from kernbench.cli.failures import failed
    from kernbench.errors import UsageError
    from kernbench.topology import load_topology

    try:
        load_topology(machine)
    except UsageError as error:
        raise typer.Exit(failed(error)) from None
    return machine
