"""Clock, events, tasks: a discrete-event engine that knows no hardware."""

from kernbench.des.carrier import POOL, Carriers, Killed, current_carrier
from kernbench.des.core import (
    Call,
    DeadlockError,
    Event,
    EventLoop,
    Owner,
    SwallowedAbortError,
    Task,
    current_task,
    turn,
)
from kernbench.des.fifo import Fifo
from kernbench.des.holds import Beside, Guest, Holds
from kernbench.des.interrupts import InterruptedContextError, cut_short
from kernbench.des.stacks import stacks
from kernbench.des.threads import ThreadCarrier, ThreadPool, is_outermost, raise_in

__all__ = [
    "POOL",
    "Beside",
    "Call",
    "Carriers",
    "DeadlockError",
    "Event",
    "EventLoop",
    "Fifo",
    "Guest",
    "Holds",
    "InterruptedContextError",
    "Killed",
    "Owner",
    "SwallowedAbortError",
    "Task",
    "ThreadCarrier",
    "ThreadPool",
    "current_carrier",
    "current_task",
    "cut_short",
    "is_outermost",
    "raise_in",
    "stacks",
    "turn",
]
