"""Two streams on which the steps of a loop alternate."""

from contextlib import AbstractContextManager, nullcontext

import kernbench.torch as torch


class Lanes:
    """The current stream, and another one for every second step if there is one.

    Args:
        other: The other stream; it waits for what the current one has been given so far.
    """

    def __init__(self, other: "torch.cuda.Stream | None") -> None:
        self._other = other
        self._main = torch.cuda.current_stream()
        self._last: torch.cuda.Event | None = None
        if other is not None:
            other.wait_stream(self._main)

    def at(self, step: int) -> AbstractContextManager[None]:
        """Returns a block whose commands go to the stream of a step."""
        if self._other is None or step % 2 == 0:
            return nullcontext()
        return torch.cuda.stream(self._other)

    def after_last(self) -> None:
        """Lets the current stream wait for what the step before has noted."""
        if self._last is not None:
            self._last.wait()

    def note(self, *made: torch.Tensor | None) -> None:
        """Lets the next step wait for what is in the current stream.

        Args:
            *made: Tensors of this step that the other stream reads, too.
        """
        if self._other is None:
            return
        self._last = torch.cuda.Event()
        self._last.record()
        for each in made:
            if each is not None:
                for stream in (self._main, self._other):
                    each.record_stream(stream)

    def close(self) -> None:
        """Lets the first stream wait for the other one."""
        if self._other is not None:
            self._main.wait_stream(self._other)
