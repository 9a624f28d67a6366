"""Applies data effects at completion; only kernel launches write bytes elsewhere (ADR 0009)."""

from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Final

import numpy as np

from kernbench.errors import KernbenchError
from kernbench.sim_engine.shadow import ShadowError

Effect = Callable[[], None]

_INSIDE: Final = ContextVar("inside of an effect", default=False)


class EffectError(KernbenchError, RuntimeError):
    """The computation of a command failed with an error of Python or numpy, which is its cause."""


def in_effect() -> bool:
    """Returns whether an effect is running, in which no host can wait."""
    return _INSIDE.get()


class DataExecutor:
    """Runs effects while data is on, and drops them while it is off.

    Attributes:
        enabled: Whether tensors hold bytes.
        applied: Number of effects that were run.
    """

    def __init__(self, *, enabled: bool) -> None:
        self.enabled: Final = enabled
        self.applied = 0
        # A context in which numpy reports no overflow and no other floating-point fault, as a
        # device does. Running in it costs less than entering `np.errstate`. Each executor has its
        # own, since no two threads may be inside one context.
        self._quietly: Final = Context()
        self._quietly.run(np.seterr, all="ignore")
        self._quietly.run(_INSIDE.set, True)

    def apply(self, effect: Effect | None) -> None:
        """Applies the effect of a command that is completing (ADR 0002).

        Raises:
            KernbenchError: A fault of the device, such as a read of unwritten memory.
            EffectError: If the effect raises anything else.
        """
        if effect is not None and self.enabled:
            self.applied += 1
            try:
                self._quietly.run(effect)
            except (KernbenchError, ShadowError):
                raise
            except Exception as error:
                raise EffectError(
                    f"the computation failed: {type(error).__name__}: {error}",
                    hint="if the operation is kernbench's own, this is a fault of kernbench",
                ) from error
