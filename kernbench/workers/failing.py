"""How a worker can fail; who decides what to do next looks at the type, never at the text."""

from typing import Any, Final

from kernbench.errors import KernbenchError

Message = dict[str, Any]
"""Plain values by name, as a line of the protocol holds them."""

_HEADING: Final = "--- the end of its standard error ---"


def with_last_words(text: str, tail: str) -> str:
    """Returns a report with the end of what a process wrote to standard error, if anything."""
    return f"{text}\n{_HEADING}\n{tail.rstrip()}" if tail.strip() else text


class WorkerError(KernbenchError):
    """A worker has not answered: it is the process that failed, not what it was asked.

    The text ends with the tail.

    Attributes:
        reason: The kind of failure, in a word.
        tail: The last lines that the process wrote to standard error.
    """

    reason = "failed"
    tail: str = ""

    def __str__(self) -> str:
        return with_last_words(super().__str__(), self.tail)


class PoolDied(WorkerError):  # noqa: N818 - the name that the reports use
    """The process of a worker has ended before its answer."""

    reason = "died"


class PoolTimeout(WorkerError):  # noqa: N818
    """A worker has not answered in time; its process group is killed."""

    reason = "timeout"


class ProtocolError(WorkerError):
    """What came from a worker is not what the protocol allows."""

    reason = "protocol"


class CaseFailed(KernbenchError):  # noqa: N818
    """A worker has answered that what it was asked has failed; the process lives on.

    Attributes:
        response: The same.
    """

    def __init__(self, response: Message) -> None:
        self.response = response
        super().__init__(str(response.get("error", "")))
