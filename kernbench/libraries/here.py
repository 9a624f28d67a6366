"""What is asked of the run by the code that stands in place of a library's."""

from collections.abc import Callable
from typing import Any, Protocol

from kernbench.process.process import Process
from kernbench.routing import Routing


class Rank(Protocol):
    """What is asked of a calling rank.

    Attributes:
        numbers: Numbers of its device that are known, where reads are made up; None elsewhere.
    """

    numbers: Any

    @property
    def process(self) -> Process:
        """Its process."""

    @property
    def data(self) -> bool:
        """Whether tensors hold values."""

    @property
    def fake(self) -> bool:
        """Whether values that are read are made up."""


Here = Callable[[], Rank | None]
"""Gives the calling rank; None where code of no rank calls."""


def routing_of(here: Here) -> Routing | None:
    """Returns the routing of the calling rank's run; None if it names none, or no rank calls."""
    rank = here()
    return None if rank is None else rank.process.ctx.routing
