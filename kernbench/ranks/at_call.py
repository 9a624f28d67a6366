"""Numbers that move when the last rank has called, for hosts that compute at once.

Devices compute in simulated time, and so the bytes of a collective move when it completes. The
tensors of another library are computed when its functions return: the bytes that ranks exchange
must be there by then, however far the simulated time is. `AtCall` stands around whatever ranks do
together. It moves the bytes at the call of the last rank, and leaves the time to what it is around
(ADR 0037).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from kernbench.des import Event
from kernbench.memory import View
from kernbench.ranks.joint import Joint
from kernbench.sim_engine.command import Action
from kernbench.sim_engine.engine import GraphEngine

if TYPE_CHECKING:
    from kernbench.ccl.jams import Jam


class Called(NamedTuple):
    """What one rank gives and takes, see `Joint.join`; a `ccl.delivery.Taker`."""

    rank: int
    sources: Sequence[View]
    targets: Sequence[View]
    sends: Sequence[int]


Move = Callable[[Mapping[int, Called]], None]
"""Writes what all ranks take, from what they give; called with each rank's part, by place."""


class AtCall:
    """A `Joint` whose bytes move when the last rank has called.

    Args:
        joint: What the ranks do; it has the time.
        ranks: Number of ranks that take part.
        move: Moves the bytes of all ranks.
        copies: Whether what a rank gives is copied at its call, so that it need not wait for others
            before it writes there.

    Attributes:
        moved: Settles, at time 0, when the bytes have moved: to wait for it takes no simulated
            time. For a receive from any source it settles when it is known which message it is.
    """

    def __init__(self, joint: Joint, ranks: int, move: Move, *, copies: bool = False) -> None:
        self._joint: Final = joint
        self._ranks: Final = ranks
        self._move: Final = move
        self._copies: Final = copies
        self._calls: dict[int, Called] = {}
        self.moved: Final = Event("the calls of the other ranks")

    @property
    def arrived(self) -> Collection[int]:
        """See `Joint`."""
        return self._joint.arrived

    @property
    def algorithm(self) -> str:
        """See `Joint`."""
        return self._joint.algorithm

    def join(
        self, place: int, gives: Sequence[View], takes: Sequence[View], sends: Sequence[int]
    ) -> Action:
        """See `Joint`; moves the bytes if this is the last rank.

        Args:
            place: Place of the rank.
            gives: Views that the rank gives, in order; they keep their bytes until `moved`.
            takes: Views that receive the rank's results, in order; may be those of `gives`.
            sends: Elements that go to each place, if ranks give sizes of their own; else empty.
        """
        action = self._joint.join(place, gives, takes, sends)
        if self._copies:
            gives = [view.snapshot() for view in gives]
        self._calls[place] = Called(place, gives, takes, sends)
        if len(self._calls) == self._ranks:
            self._move_all()
            self.moved.settle(0)
        return action

    def merge(self, other: "AtCall", now: int) -> None:
        """Takes the calls of another one, which turned out to be the other side of this message.

        Args:
            other: What the receive, from any source, has joined.
            now: Time at which that is known, in picoseconds.
        """
        self._calls |= other._calls
        other._calls.clear()
        self._move_all()
        self.moved.settle(now)
        other.moved.settle(now)

    def _move_all(self) -> None:
        calls = dict(sorted(self._calls.items()))
        self._calls.clear()
        if has_bytes(calls.values()):
            self._move(calls)

    def needs(self, place: int) -> Collection[int] | None:
        """See `Joint`.

        Args:
            place: The place that waits.
        """
        return self._joint.needs(place)

    def jam(self) -> "Jam | None":
        """See `Joint`."""
        return self._joint.jam()

    def drop(self) -> None:
        """See `Joint`."""
        self._calls.clear()
        self._joint.drop()


def at_call(
    joint: Joint,
    engine: GraphEngine,
    ranks: int,
    views: Sequence[View],
    move: Move,
    *,
    copies: bool = False,
) -> Joint:
    """Returns what ranks do together so that bytes that the engine leaves alone move at the call.

    Args:
        joint: What the ranks do.
        engine: Engine that runs it.
        ranks: Number of ranks that take part.
        views: What the first rank gives and takes: without numbers, tensors of the host have bytes,
            and those of devices have none.
        move: Moves the bytes of all ranks.
        copies: As of `AtCall`.
    """
    if not engine.moves_at_call or all(view.buffer.data is None for view in views):
        return joint
    return AtCall(joint, ranks, move, copies=copies)


def has_bytes(calls: Collection[Called]) -> bool:
    """Returns whether there are bytes to move: without numbers, views have none.

    Args:
        calls: Parts of ranks.
    """
    return all(
        view.buffer.data is not None for call in calls for view in (*call.sources, *call.targets)
    )
