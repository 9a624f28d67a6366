"""The command line: arguments, wiring, exit codes.

Nothing heavy is imported before it is needed, so that `--help` is quick.
"""

import os
import sys

owns_process = False
"""Whether the command owns the process, and so may end it when nothing else stops it."""


def main() -> None:
    """Runs `kernbench`; the entry point of the installed script."""
    global owns_process  # noqa: PLW0603 - one process has one command
    owns_process = True
    # Set before numpy is imported: BLAS takes one thread, since several threads only fight over the
    # cores and make results depend on the machine.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")

    from kernbench.cli.app import app

    try:
        app()
    finally:
        _flush()


def _flush() -> None:
    """Flushes standard output; whoever reads it may have gone, as `head` does."""
    if sys.stdout is None:  # closed before the start
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        from kernbench.cli.failures import Exit, drop_output

        drop_output()
        sys.exit(Exit.BROKEN_PIPE)
