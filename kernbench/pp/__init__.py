"""Models in stages, one after the other: schedules of microbatches, and what stages send.

Functions have their names here, too, as in `megatron.core.pipeline_parallel`.
"""

from kernbench.pp import bubble, p2p_communication, plans, schedules
from kernbench.pp.bubble import ideal_bubble_fraction, measured_bubble_fraction
from kernbench.pp.p2p_communication import P2PCommunicator
from kernbench.pp.schedules import get_forward_backward_func

__all__ = [
    "P2PCommunicator",
    "bubble",
    "get_forward_backward_func",
    "ideal_bubble_fraction",
    "measured_bubble_fraction",
    "p2p_communication",
    "plans",
    "schedules",
]
