"""Interrupts from outside: whether one has cut something of kernbench short.

Ctrl-C, the handler of a signal and a watchdog raise between any two bytecodes. In the user's code
that is an error like any other. In the code of kernbench a change may be half done, and what is
simulated afterwards would be wrong in silence: so nothing is.
"""

import signal
from types import CodeType

from kernbench.errors import KernbenchError, is_of_python, is_ours


class InterruptedContextError(KernbenchError):
    """A context is used after an interrupt has cut it short."""

    def __init__(self) -> None:
        super().__init__(
            "this context was interrupted inside of kernbench, and cannot go on",
            hint="make a new context: what this one would simulate might be wrong",
        )


def cut_short(error: BaseException, *, outside: bool = False) -> bool:
    """Returns whether an exception came from outside, while code of kernbench was running.

    Args:
        error: The exception, with its traceback.
        outside: Whether it is known to come from outside; else what it is, and whether the handler
            of a signal has raised it, says so.
    """
    handlers = _handlers()
    own = type(error).__module__.startswith("kernbench.")  # such as what ends a rank
    outside = outside or not (own or isinstance(error, Exception))
    inside, traceback = True, error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code in handlers:
            return inside
        if is_ours(frame):
            inside = True
        elif not is_of_python(frame):
            inside = False
        traceback = traceback.tb_next
    return outside and inside


def _handlers() -> set[CodeType]:
    """Returns the code of all handlers of signals that are functions of Python."""
    found = (getattr(signal.getsignal(each), "__code__", None) for each in signal.valid_signals())
    return {code for code in found if isinstance(code, CodeType)}
