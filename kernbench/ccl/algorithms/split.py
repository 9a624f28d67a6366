"""From the root in as many parts as it has ranks to talk to; the parts are passed on at once.

Each other rank gets a part of its own from the root and gives it to all others, so that all links
of a machine with a link between each two ranks carry an equal part of the buffer: the root's links
bound it, `1 / (N - 1)` of the buffer each. The parts come in rounds, so that a rank passes on one
while it gets the next (the pipelined form of the scatter and all-gather of Barnett et al.,
"Interprocessor collective communication library (InterCom)", 1994).
"""

from typing import Final

from kernbench.ccl.algorithms.steps import Trade, only, swap, turns_of
from kernbench.ccl.plan import Comm

_SINGLE: Final = 128
"""Most rounds whose parts are single messages."""

_LONG: Final = 32
"""Rounds with longer parts: more would be hardly quicker, since each step waits once."""


def broadcast(comm: Comm) -> None:
    """Gives the root's buffer to all.

    `k + 1` rounds of `N - 1` steps with `k` parts for each rank; the root sends the buffer once,
    each other rank `(N - 2) / (N - 1)` of it. May wait.
    """
    n, others = comm.world_size, max(1, comm.world_size - 1)
    single = -(-comm.messages // others)
    rounds = single if single <= _SINGLE else _LONG
    comm.cut(rounds * others)
    for turn in range(rounds + 1):
        trades = [_trade(comm, shift, turn, rounds) for shift in turns_of(comm, n - 1)]
        swap(comm, trades, at_once=rounds == single)


def _trade(comm: Comm, shift: int, turn: int, rounds: int) -> Trade:
    """Returns what this rank sends to the rank `shift` further in a round, and gets meanwhile.

    What comes from the root is of this round, what is passed on of the round before.
    """
    n = comm.world_size
    place = (comm.rank - comm.root) % n
    to, source = (place + shift) % n, (place - shift) % n
    new, old = turn * (n - 1) - 1, (turn - 1) * (n - 1) - 1
    starts, begins = (place == 0) & (turn < rounds), (source == 0) & (turn < rounds)
    goes_on = (place > 0) & (to > 0) & (turn > 0)
    comes_on = (source > 0) & (place > 0) & (turn > 0)
    return (
        only(starts | goes_on, starts * (new + to) + goes_on * (old + place)),
        (comm.root + to) % n,
        only(begins | comes_on, begins * (new + place) + comes_on * (old + source)),
        (comm.root + source) % n,
    )
