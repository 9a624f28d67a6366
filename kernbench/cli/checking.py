"""`kernbench check`."""

from collections.abc import Sequence
from pathlib import Path

from kernbench.cli.failures import Exit, failed
from kernbench.errors import UsageError
from kernbench.scripts.checking import check_files


def print_check(files: Sequence[Path], *, torchrun: bool = False) -> int:
    """Prints the names of torch that files use and that are not there; returns the exit code.

    Args:
        torchrun: Whether to print what `kernbench torchrun` refuses, and nothing else.
    """
    try:
        findings, read = check_files(files, torchrun=torchrun)
    except UsageError as error:
        return failed(error)
    for finding in findings:
        print(finding)
    number = len(findings)
    many = f"{len(read)} file{'s' if len(read) > 1 else ''}"
    if not number:
        print(
            f"kernbench torchrun refuses no name in {many}"
            if torchrun
            else f"all names of torch in {many} are there"
        )
        return Exit.OK
    print(f"{number} name{'s' if number > 1 else ''} in {many} to change")
    return Exit.FAILED
