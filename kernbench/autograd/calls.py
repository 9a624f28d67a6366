"""Numbers of calls, which the second run of a checkpoint finds as the first one did."""

from collections.abc import Iterator
from contextlib import contextmanager

from kernbench.process.process import current_process
from kernbench.tensors.nodes import grad_state_of


class CallCounter:
    """Counts the calls of something on the calling rank.

    A checkpoint runs a part of the program again: its calls have the numbers of the first run.
    """

    @property
    def count(self) -> int:
        """How many there were."""
        return grad_state_of(current_process()).calls.get(self, 0)

    @count.setter
    def count(self, count: int) -> None:
        grad_state_of(current_process()).calls[self] = count


class CallNumbers:
    """What all counters of the calling rank say now."""

    def __init__(self) -> None:
        self._calls = dict(grad_state_of(current_process()).calls)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Lets a block find them so; after it they go on where they stood."""
        state = grad_state_of(current_process())
        before, state.calls = state.calls, dict(self._calls)
        try:
            yield
        finally:
            state.calls = before
