"""The command line: arguments, wiring, exit codes.

Nothing heavy is imported before it is needed, so that `--help` is quick.
"""

import gc
import os
import sys
from typing import Final

from kernbench.cli import loading, ownership

_ALLOCATIONS: Final = 50_000
"""Objects made, less objects freed, between two searches for garbage.

Imports of a program make many objects, too, and hardly any garbage.
"""


def main() -> None:
    """Runs `kernbench`; the entry point of the installed script."""
    ownership.take()
    loading.begin()
    if 0 < gc.get_threshold()[0] < _ALLOCATIONS:  # 0: the user has switched the search off
        gc.set_threshold(_ALLOCATIONS)
    # Set before numpy is imported: BLAS takes one thread, since several threads only fight over the
    # cores and make results depend on the machine.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")

    from kernbench.cli.app import app

    try:
        app()
    finally:
        loading.end()
        _flush()


def _flush() -> None:
    """Flushes standard output, whose reader may have closed it, as `head` does."""
    if sys.stdout is None:  # closed before the start
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        from kernbench.cli.failures import Exit, drop_output

        drop_output()
        sys.exit(Exit.BROKEN_PIPE)
