"""The command line: arguments, wiring, exit codes.

Nothing heavy is imported before it is needed, so that `--help` is quick.
"""

import os

owns_process = False
"""Whether the process may be ended when nothing else stops it: it is the command's own."""


def main() -> None:
    """Runs `kernbench`; the entry point of the installed script."""
    global owns_process  # noqa: PLW0603 - one process has one command
    owns_process = True
    # Before numpy is imported: its BLAS takes one thread, since more only fight over the cores and
    # make results depend on the machine.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")

    from kernbench.cli.app import app

    app()
