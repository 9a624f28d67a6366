"""Clock, events, tasks: a discrete-event engine that knows no hardware."""

from kernbench.des.carrier import Killed, current_carrier
from kernbench.des.core import (
    TURN,
    Call,
    DeadlockError,
    Event,
    EventLoop,
    Owner,
    SwallowedAbortError,
    Task,
    current_task,
)
from kernbench.des.fifo import Fifo

__all__ = [
    "TURN",
    "Call",
    "DeadlockError",
    "Event",
    "EventLoop",
    "Fifo",
    "Killed",
    "Owner",
    "SwallowedAbortError",
    "Task",
    "current_carrier",
    "current_task",
]
