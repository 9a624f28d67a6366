"""`torch.distributed.ProcessGroup`: ranks that call collectives together."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kernbench.caches import Table
from kernbench.errors import CallSite, Fact, KernbenchError, site_fact
from kernbench.process.called import called
from kernbench.process.process import current_process
from kernbench.ranks.gathering import Gathering, Whereabouts
from kernbench.ranks.meeting import Exchange, Meeting
from kernbench.ranks.spawn_state import spawn_state_of
from kernbench.sim_engine.command import Command

if TYPE_CHECKING:
    from kernbench.ccl.prepared import Prepared


class GroupError(KernbenchError, RuntimeError, ValueError):
    """A process group was used where it cannot be (C7, C8, C17, C18).

    PyTorch raises `RuntimeError` for some of these and `ValueError` for others.
    """


class ProcessGroup(Gathering[Exchange]):
    """`torch.distributed.ProcessGroup`: ranks that call collectives together.

    Args:
        name: Unique name while a spawn runs; the group of all ranks is `WORLD`.
        ranks: Global ranks; a rank's place is its rank in the group.
        desc: The user's description of the group's purpose.
        backend: Name of the library; None: the backend given to `init_process_group`.
        callers: See `Gathering`; None for all ranks.

    Attributes:
        last: The latest operation of a rank on a device, by global rank.
        messages: Number of messages that a rank has begun to send or receive, by global rank.
        birth: Meeting in which ranks made the group; None for the group of all ranks.
        destroyed: Where a rank destroyed the group, by global rank.
        sips: Device of each rank; empty until the first collective.
        prepared: Prepared collectives by `Signature`. All else on which they depend belongs to the
            group, or to the context in which the group lives.
    """

    def __init__(
        self,
        name: str,
        ranks: Sequence[int],
        desc: str = "undefined",
        backend: str | None = None,
        callers: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(name, ranks, callers)
        self.desc: Final = desc
        self.backend: Final = backend
        self.last: dict[int, Command] = {}
        self._line: Final = object()  # not the group: its open exchanges would hold it
        self.messages: dict[int, int] = {}
        self.birth: Meeting | None = None
        self.destroyed: dict[int, CallSite | None] = {}
        self.sips: tuple[int, ...] = ()
        self.prepared: Final[Table[object, Prepared]] = Table("distributed.prepared")

    def _begin(self, title: str, number: int) -> Exchange:
        return Exchange(title, number, self.callers, line=self._line, ranks=self.ranks)

    @property
    def group_name(self) -> str:
        """The group's name, under PyTorch's name for it."""
        return self.name

    @property
    def group_desc(self) -> str:
        """The group's description, under PyTorch's name for it."""
        return self.desc

    def size(self) -> int:
        """Returns the number of ranks.

        Raises:
            GroupError: If the calling rank has destroyed the group (C18).
        """
        self._check_not_destroyed("size")
        return len(self.ranks)

    def rank(self) -> int:
        """Returns the calling rank's rank in the group; -1 if it is not a member.

        Raises:
            GroupError: If the calling rank has destroyed the group (C18).
        """
        self._check_not_destroyed("rank")
        return self._places.get(current_process().rank, -1)

    def _check_not_destroyed(self, name: str) -> None:
        process = current_process()
        state, rank = spawn_state_of(process), process.rank
        if rank in self.destroyed:
            site = self.destroyed[rank]
        elif self.birth is None and rank in state.left and rank not in state.backend:
            site = state.left[rank]
        else:
            return
        raise GroupError(
            f"rank {rank} called {name} on group {self.name}, which it has destroyed",
            [called(process, name, self), site_fact(site, "destroyed at"), self.made(rank)],
            hint="ask before destroy_process_group()",
            code="C18",
        )

    def __repr__(self) -> str:
        return f"<group {self.name} of {len(self.ranks)} ranks>"

    def made(self, rank: int) -> str:
        """Returns the line of a report that tells where the rank, else another, made the group."""
        if self.birth is None:
            return f"group {self.name} is that of all ranks"
        call = self.birth.calls.get(rank) or next(iter(self.birth.calls.values()))
        return site_fact(call.site, f"group {self.name} was made by rank {call.rank} at")

    def _destroyed_at(self, rank: int, known: Whereabouts) -> CallSite | None:
        if self.birth is None:
            return super()._destroyed_at(rank, known)
        return self.destroyed.get(rank)

    def _whereabouts(self, rank: int, known: Whereabouts) -> Fact:
        said = super()._whereabouts(rank, known)
        if self.birth is not None and rank not in self.birth.calls:
            text = f"{said}; it has not called {self.birth.title}, which makes this group"
            return Fact(text, said.involved)
        return said
