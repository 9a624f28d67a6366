"""How a call was measured, as code of a rank; each function takes either `torch`."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from kernbench.calibration.lines import DTYPES, REPLAYS

Call = Callable[[], object]

_SPIN: Final = 4_000_000
"""Cycles for which a device spins before ranks meet: until then the host has issued a call."""

FLUSH_BYTES: Final = 256 << 20
"""What was written between calls, so that nothing of a call was left in the L2."""

LEAD: Final = 64
"""Times that it is written: until the last one ends, the host has issued all that follows.

It stands for the spin kernel of the measurements, too. A product would, unlike them, warm the chip.
"""


def new(torch: Any, *shape: int, dtype: str = "bf16", grad: bool = False) -> Any:
    """Returns a tensor on the rank's device.

    Args:
        dtype: Name of its type in tables, or in `torch`.
        grad: Whether it is a leaf that gets a gradient.
    """
    kind = getattr(torch, DTYPES.get(dtype, dtype))
    return torch.zeros(*shape, dtype=kind, device="cuda", requires_grad=grad)


def alone_us(torch: Any, call: Call, calls: int = 1) -> float:
    """Returns the microseconds of a call on a device whose host is ahead, the L2 flushed before.

    Events and what is between them, as the tables have it: the flush, an event, the call, an event.

    Args:
        call: What is timed; called once before.
        calls: How often it is called between the events; the time is of one.
    """
    flush = new(torch, FLUSH_BYTES, dtype="int8")
    return _between_events(torch, [flush.zero_] * LEAD, call, calls)


def replayed_us(torch: Any, call: Call) -> float:
    """Returns the microseconds of a call that a CUDA graph repeats, the L2 flushed before."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPLAYS):
            call()
    return alone_us(torch, graph.replay) / REPLAYS


def ahead_us(torch: Any, call: Call) -> float:
    """Returns the microseconds of a call that a CUDA graph repeats, and that none can hold here.

    Messages are no part of graphs that are simulated: the host is ahead of the same calls.
    """
    return alone_us(torch, call, REPLAYS)


def eager_us(torch: Any, call: Call, calls: int = REPLAYS) -> float:
    """Returns the microseconds of a call in a loop of the host, the device idle before.

    Args:
        call: What is timed; called once before.
        calls: How often it is called between the events; the time is of one.
    """
    return _between_events(torch, [], call, calls)


def met_us(torch: Any, meet: Call, call: Call) -> float:
    """Returns the microseconds of a call that all ranks begin together, the L2 flushed before.

    Args:
        meet: Lets the streams of all ranks wait for each other.
        call: What is timed; called three times before.
    """
    flush = new(torch, FLUSH_BYTES, dtype="int8")
    lead = [flush.zero_, lambda: torch.cuda._sleep(_SPIN), meet]
    return _between_events(torch, lead, call, 1, warm_up=3)


def behind_us(torch: Any, before: Call, call: Call, calls: int) -> float:
    """Returns the microseconds of a call behind others that keep the device busy, back to back.

    Args:
        before: What keeps the device busy; called twice, so that the host has issued all that
            follows before it ends.
        call: What is timed; called three times before.
        calls: How often it is called between the events; the time is of one.
    """
    return _between_events(torch, [before] * 2, call, calls, warm_up=3)


def _between_events(
    torch: Any, lead: Sequence[Call], call: Call, calls: int, warm_up: int = 1
) -> float:
    """Returns the microseconds of a call between two events, behind what keeps the device busy."""
    for _ in range(warm_up):
        call()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for each in lead:
        each()
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return 1e3 * float(begin.elapsed_time(end)) / calls
