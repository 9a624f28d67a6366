"""An algorithm on ranks that are numbered in another order than the group's."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.ccl.operations import OPERATIONS, Ints
from kernbench.ccl.plan import (
    NOTHING,
    Algorithm,
    AlgorithmError,
    Combine,
    Comm,
    CommBase,
    Plan,
    Setting,
)
from kernbench.errors import call_site, site_fact

if TYPE_CHECKING:
    from kernbench.tl import Program
    from kernbench.tl.tile import Pointer


@dataclass(frozen=True)
class Along:
    """An algorithm whose rank `p` is rank `walk[p]` of the group; itself an algorithm.

    The blocks of ranks are numbered in the same way. Equal ones are one algorithm, whose plan is
    recorded once.

    Attributes:
        algorithm: The algorithm, which sees places on the walk in place of ranks.
        operation: A key of `OPERATIONS`.
        walk: All ranks of the group.
        channels: Channels that go along one walk; the algorithm sees a channel's number among them.
    """

    algorithm: Algorithm
    operation: str
    walk: tuple[int, ...]
    channels: int = 1

    def __call__(self, comm: Comm) -> None:
        """Runs the algorithm; may wait."""
        self.algorithm(_Walker(self, comm))

    def seen(self, setting: Setting) -> Setting:
        """See `Renumbered`."""
        root, channel = int(self.places[setting.root]), setting.channel % self.channels
        return replace(setting, root=root, channel=channel, grid=(len(self.walk),))

    def renumbered(self, plan: Plan) -> Plan | None:
        """See `Renumbered`; None if chunks in a row are not of one block."""
        found = {"to": plan.to, "source": plan.source}
        found = {name: self.ranks.astype(peers.dtype)[peers] for name, peers in found.items()}
        for name in ("send", "receive"):
            found[name] = chunks = getattr(plan, name)
            if plan.widest > 1:
                part = np.where(chunks == NOTHING, 0, chunks % plan.parts + plan.span)
                if (part > plan.parts).any():
                    return None
            if len(self.blocks) > 1:
                block, part = np.divmod(chunks, plan.parts)
                known = (chunks != NOTHING) & (block < len(self.blocks))
                block = self.blocks.astype(chunks.dtype)[np.where(known, block, 0)]
                found[name] = np.where(known, block * plan.parts + part, chunks)
        tables = {**found, "reduce": plan.reduce, "span": plan.span}
        # What is the same for all ranks stays one column.
        moved: dict[str, Any] = {
            name: table if not table.strides[1] else table[:, self.places]
            for name, table in tables.items()
        }
        return replace(plan, turned=False, **moved)

    @cached_property
    def ranks(self) -> Ints:
        """The rank at each place."""
        return np.array(self.walk, np.int64)

    @cached_property
    def places(self) -> Ints:
        """The place of each rank."""
        return np.argsort(self.ranks)

    @cached_property
    def blocks(self) -> Ints:
        """The group's number of each block that the algorithm knows, scratch blocks left out."""
        n, kind = len(self.walk), OPERATIONS[self.operation].blocks
        if kind == "one":
            return np.zeros(1, np.int64)
        return np.concatenate([self.ranks, n + self.ranks]) if kind == "pairs" else self.ranks


class _Walker(CommBase):
    """The `Comm` that an algorithm along a walk sees.

    Args:
        along: The algorithm.
        comm: The collective as its group numbers it.
    """

    def __init__(self, along: Along, comm: Comm) -> None:
        n = comm.world_size
        self.rank = _looked_up(along.places, comm.rank)
        self.world_size = n
        self.root = int(along.places[comm.root])
        self.grid: tuple[int, ...] = (n,)
        self.channel = comm.channel % along.channels
        self._along = along
        self._comm = comm
        self._parts = n if OPERATIONS[along.operation].blocks == "one" else 1

    @property
    def messages(self) -> int:
        """See `Comm`."""
        return self._comm.messages

    @property
    def tl(self) -> "Program":
        """See `Comm`."""
        return self._comm.tl

    @property
    def buffer(self) -> "Pointer":
        """See `Comm`."""
        return self._comm.buffer

    def cut(self, parts: int, scratch: int = 0, *, turns: int = 1, together: int = 1) -> None:
        """See `Comm`."""
        self._comm.cut(parts, scratch, turns=turns, together=together)
        self._parts = parts

    def exchange(
        self,
        *,
        send: Any,
        to: Any,
        receive: Any,
        source: Any,
        combine: Combine = "copy",
        span: Any = 1,
    ) -> None:
        """See `Comm`; chunks in a row must be of one block. May wait.

        Args:
            send: First chunk that leaves; `NOTHING` to only receive.
            to: Place of the rank that gets the chunks that leave.
            receive: First chunk that arrives; `NOTHING` to only send.
            source: Place of the rank that sends the chunks that arrive.
            combine: `reduce` adds arriving values to present ones, `copy` replaces them.
            span: Number of chunks in a row that leave, and that arrive.
        """
        ranks = self._along.ranks
        self._comm.exchange(
            send=self._chunk(send, span),
            to=_looked_up(ranks, to),
            receive=self._chunk(receive, span),
            source=_looked_up(ranks, source),
            combine=combine,
            span=span,
        )

    def _chunk(self, chunk: Any, span: Any) -> Any:
        """Returns the group's number of a chunk; of none and of unknown ones, their own."""
        blocks, parts = self._along.blocks, self._parts
        block, part = np.divmod(chunk, parts)
        if (np.not_equal(chunk, NOTHING) & (part + span > parts)).any():
            raise AlgorithmError(
                "exchange: expected chunks of one block, as ranks are numbered along a walk",
                [site_fact(call_site())],
            )
        known = np.not_equal(chunk, NOTHING) & np.less(block, len(blocks))
        found = np.where(known, blocks[np.where(known, block, 0)] * parts + part, chunk)
        return found if isinstance(chunk, np.ndarray) else int(found)


def _looked_up(table: Ints, index: Any) -> Any:
    """Returns entries of a table; numbers that it does not have stay, for whoever checks them."""
    known = np.greater_equal(index, 0) & np.less(index, len(table))
    found = np.where(known, table[np.where(known, index, 0)], index)
    return found if isinstance(index, np.ndarray) else int(found)
