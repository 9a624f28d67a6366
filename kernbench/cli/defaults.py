"""What the command line assumes when it is not told."""

from typing import Final

MACHINE: Final = "sip8"
"""Name of the shipped machine that `kernbench run` takes."""
