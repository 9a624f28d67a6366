"""Interrupts a call at its n-th bytecode, as a signal's handler or another thread may."""

import gc
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from types import CodeType, FrameType, ModuleType
from typing import Any, cast


class Shot(KeyboardInterrupt):
    """What comes at a bytecode."""


def shoot(call: Callable[[], Any], within: Collection[ModuleType], at: int) -> bool:
    """Calls a function, and raises `Shot` in it before one of its bytecodes runs.

    Args:
        call: The function.
        within: Modules whose bytecodes count; all that they call runs undisturbed.
        at: Number of the bytecode, from 0, in the order in which they run.

    Returns:
        Whether there is such a bytecode. The function may let the shot pass through or not.
    """
    files = {module.__file__ for module in within}
    wanted: dict[CodeType, bool] = {}
    left = at

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        del argument
        if event == "call":
            code = frame.f_code
            if code not in wanted:
                wanted[code] = code.co_filename in files
            if not wanted[code]:
                return None
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
            return trace
        if event == "opcode":
            if not left:
                sys.settrace(None)
                left = -1
                raise Shot
            left -= 1
        return trace

    gc.disable()
    before = sys.gettrace()
    handler = signal.signal(
        signal.SIGUSR1, cast(Any, trace)
    )  # by which its frame is known as from outside
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:  # as it is, or as the interrupt of a spawn
        assert left < 0
    finally:
        sys.settrace(before)
        signal.signal(signal.SIGUSR1, handler)
        gc.enable()
    return left < 0


def shots(
    call: Callable[[], Callable[[], Any]], within: Collection[ModuleType], step: int
) -> Iterator[int]:
    """Interrupts a call at one bytecode after another, and yields the number after each.

    Args:
        call: Makes what is called, anew for each shot.
        within: Modules whose bytecodes count.
        step: 1 for every bytecode; a larger one for every so many-th.
    """
    gc.collect()  # what tests before this one left would be shot where Python collects it
    at = 0
    while shoot(call(), within, at):
        yield at
        at += step
    assert at > step, "it was interrupted at all"
