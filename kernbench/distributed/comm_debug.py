"""`torch.distributed.comm_debug`: counts collectives, so that a test can say how many there are."""

from collections import Counter
from types import TracebackType
from typing import Final

from kernbench.errors import KernbenchError, call_site, site_fact
from kernbench.process.process import Process, RankLocal, current_process

__all__ = ["CommDebugMode"]


class CommDebugMode:
    """Counts the collectives that are called inside its `with` block.

    Entered in a rank, the mode counts that rank's calls; entered on main, around a spawn, it counts
    the calls of all ranks. Blocks may be nested. Entering the mode again resets the counts. PyTorch
    has the class as `torch.distributed.tensor.debug.CommDebugMode`; here keys are names:
    `all_reduce`, `all_gather` (also for `all_gather_into_tensor`), `barrier` and so on.
    """

    def __init__(self) -> None:
        self._calls: Counter[tuple[int, str, str]] = Counter()
        self._bytes: Counter[tuple[int, str, str]] = Counter()
        self._process: Process | None = None

    def __enter__(self) -> "CommDebugMode":
        if self._process is not None:
            raise KernbenchError("this CommDebugMode is active already", [site_fact(call_site())])
        self._calls.clear()
        self._bytes.clear()
        self._process = current_process()
        _ACTIVE.of(self._process).append(self)
        EVERYWHERE.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process is not None
        _ACTIVE.of(self._process).remove(self)
        EVERYWHERE.remove(self)
        self._process = None

    def _note(self, key: tuple[int, str, str], nbytes: int) -> None:
        self._calls[key] += 1
        self._bytes[key] += nbytes

    def get_total_counts(self) -> int:
        """Returns the number of calls; a collective that n ranks call counts n times."""
        return sum(self._calls.values())

    def get_comm_counts(self, rank: int | None = None) -> dict[str, int]:
        """Returns the number of calls by kind.

        Args:
            rank: Global rank whose calls to return; None for all ranks.
        """
        return _by_kind(self._calls, rank)

    def get_comm_bytes(self, rank: int | None = None) -> dict[str, int]:
        """Returns the bytes of the calls by kind; a call counts as in nccl-tests, with all blocks.

        Args:
            rank: Global rank whose calls to return; None for all ranks.
        """
        return _by_kind(self._bytes, rank)

    def get_group_counts(self, rank: int | None = None) -> dict[str, dict[str, int]]:
        """Returns the number of calls by name of the group, then by kind.

        Args:
            rank: Global rank whose calls to return; None for all ranks.
        """
        groups: dict[str, dict[str, int]] = {}
        for (caller, kind, group), count in sorted(self._calls.items()):
            if rank is None or rank == caller:
                counts = groups.setdefault(group, {})
                counts[kind] = counts.get(kind, 0) + count
        return groups

    def __repr__(self) -> str:
        return f"CommDebugMode(get_total_counts()={self.get_total_counts()})"


_ACTIVE: Final[RankLocal[list[CommDebugMode]]] = RankLocal("modes that count", lambda _: [])

EVERYWHERE: Final[list[CommDebugMode]] = []
"""Active modes of all processes: nearly always none, which a call then knows at once."""


def _by_kind(counter: "Counter[tuple[int, str, str]]", rank: int | None) -> dict[str, int]:
    kinds: dict[str, int] = {}
    for (caller, kind, _), amount in sorted(counter.items()):
        if rank is None or rank == caller:
            kinds[kind] = kinds.get(kind, 0) + amount
    return kinds


def count(process: Process, kind: str, group: str, nbytes: int) -> None:
    """Tells all active modes that a rank has called a collective; needless without `EVERYWHERE`.

    Args:
        kind: Name of the operation in reports.
        group: Name of the process group.
        nbytes: Bytes of the call, as nccl-tests counts them.
    """
    for mode in (*_ACTIVE.of(process), *_ACTIVE.of(process.ctx.main)):
        mode._note((process.rank, kind, group), nbytes)
