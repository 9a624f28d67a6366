"""Applies data effects: the one place where a command's bytes change."""

from collections.abc import Callable
from contextvars import Context
from typing import Final

import numpy as np

Effect = Callable[[], None]

_QUIETLY: Final = Context()
"""In which numpy keeps silent about overflow and the like, as a device does; cheaper to run in than
`np.errstate` is to enter."""
_QUIETLY.run(np.seterr, all="ignore")


class DataExecutor:
    """Runs effects while data is on, and drops them while it is off.

    Attributes:
        enabled: Whether tensors hold bytes.
        applied: How many effects were run.
    """

    def __init__(self, *, enabled: bool) -> None:
        self.enabled: Final = enabled
        self.applied = 0

    def apply(self, effect: Effect | None) -> None:
        """Applies the effect of a command that is completing (ADR 0002).

        Raises:
            KernbenchError: A fault of the device, such as a read of unwritten memory.
        """
        if effect is not None and self.enabled:
            self.applied += 1
            _QUIETLY.run(effect)
