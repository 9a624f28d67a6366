"""Where the runs of a sweep take place."""

from collections.abc import Callable, Generator, Iterable
from typing import Literal

from kernbench.errors import UsageError
from kernbench.sweeps.local import Local
from kernbench.sweeps.on_ray import OnRay
from kernbench.sweeps.records import Record, Run

Executor = Callable[[Iterable[Run]], Generator[Record, None, None]]
"""Takes runs one by one, and yields the record of each, in any order; see `local.Local`."""

Where = Literal["local", "ray"]
"""Processes of this machine, or Ray."""


def executor_of(
    on: Where, address: str | None, jobs: int | None, timeout_s: float | None
) -> Executor:
    """Returns what runs the runs of a sweep.

    Args:
        on: Where they take place.
        address: Of a cluster of Ray; None for none, or to start Ray on this machine.
        jobs: Most runs at a time; None for one, or on Ray for as many as it has CPUs.
        timeout_s: Seconds of wall time that a run may take; None for any.

    Raises:
        UsageError: If an argument cannot be used, or Ray is not installed.
    """
    if jobs is not None and (type(jobs) is not int or jobs < 1):
        raise UsageError(f"jobs: expected an integer from 1, got {jobs!r}")
    if timeout_s is not None and not (isinstance(timeout_s, int | float) and timeout_s > 0):
        raise UsageError(f"timeout_s: expected a number above 0, got {timeout_s!r}")
    if on == "ray":
        ray = OnRay(address, jobs, timeout_s)
        ray.check()
        return ray
    if on != "local":
        raise UsageError(f"on: expected local or ray, got {on!r}")
    if address is not None:
        raise UsageError(f"address {address}: only Ray has one", hint="--on ray")
    return Local(jobs or 1, timeout_s)
