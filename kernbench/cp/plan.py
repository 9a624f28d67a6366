"""What a call of `cp_attention` does, known before it does it."""

from dataclasses import dataclass
from math import prod

import kernbench.torch as torch
from kernbench import extend
from kernbench.cp import gathered, ring
from kernbench.cp.problem import Problem


@dataclass(frozen=True)
class Plan:
    """What one rank computes and sends in a call; the same value whatever the tensors hold.

    Messages and bytes are those of queries, keys, values, outputs and their gradients; what a sink
    and the largest scores take, some bytes a head, is not counted.

    Attributes:
        comm_type: The name of the scheme.
        size: How many ranks share the sequences.
        padding_active: Whether a rank has rows that are no tokens.
        rows_masked: How many rows of the calling rank's queries, in all batch elements, are none.
        messages: What the rank starts going forward: sends of a ring, and collectives.
        messages_backward: The same going back.
        bytes_sent: What the rank sends going forward.
        bytes_sent_backward: The same going back.
        steps: What the rank's queries see, step by step: of a ring the keys of each rank, from its
            own on; of `all_gather` what either chunk sees. Bands of all batch elements, or of each.
        batch: How many batch elements the bands are of, if they are of all.
    """

    comm_type: str
    size: int
    padding_active: bool
    rows_masked: int
    messages: int
    messages_backward: int
    bytes_sent: int
    bytes_sent_backward: int
    steps: tuple[tuple[extend.Bands, ...], ...]
    batch: int

    @property
    def steps_computed(self) -> int:
        """How many steps have a query that sees a key; the others compute nothing."""
        return sum(any(step) for step in self.steps)

    def scores(self) -> tuple[int, ...]:
        """Returns for each step how many pairs of a query and a key see each other, in one head."""
        return tuple(
            sum(band.seen() for bands in step for band in bands)
            * (self.batch if len(step) == 1 else 1)
            for step in self.steps
        )


def plan_of(given: Problem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Plan:
    """Returns what the calling rank does.

    Args:
        given: What is computed.
        q: The rank's queries, before heads are exchanged; so are the others.
        k: Keys.
        v: Values.
    """
    size, parts = given.outer.size, given.inner.size
    values = k.numel() + v.numel()
    pairs = values * q.dtype.itemsize
    outs = (q.numel() + prod(q.shape[:-1]) * v.shape[-1]) * q.dtype.itemsize
    exchanged = (pairs + outs) * (parts - 1) // parts
    around = (size - 1) * pairs
    back = (size - 1) * values * given.message.itemsize
    collectives = 4 if parts > 1 else 0
    if given.comm == "all_gather" and size > 1:
        messages, messages_backward = 2, 4
        steps = tuple(gathered.patterns(given, chunk) for chunk in range(2))
    else:
        messages, messages_backward = size - 1, 2 * (size - 1)
        steps = tuple(
            ring.patterns(given, (given.outer.rank - step) % size) for step in range(size)
        )
    place = given.outer.rank * parts + given.inner.rank
    both = given.queries, given.keys
    return Plan(
        given.comm,
        size * parts,
        any(each.tail or each.used != each.room for each in both),
        given.queries.masked(size * parts, place),
        collectives + messages,
        collectives + messages_backward,
        exchanged + around,
        exchanged + around + back,
        steps,
        1 if given.queries.packed else len(given.queries.room),
    )
