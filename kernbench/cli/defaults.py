"""What the command line assumes when it is not told."""

from typing import Final

WATCHDOG_S: Final = 30.0
"""Seconds of wall time; what a context assumes, too, without an import of it here."""

MACHINE: Final = "sip8"
"""Name of the shipped machine that `kernbench run` takes."""
