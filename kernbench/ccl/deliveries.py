"""Follows the ranks of a plan through queues without end; nothing takes time."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from kernbench.ccl.plan import NOTHING, Exchange

M = TypeVar("M")


def follow(
    steps: Sequence[Sequence[Exchange]],
    send: Callable[[int, int], M],
    receive: Callable[[int, int, M], None],
) -> tuple[list[int], dict[tuple[int, int], deque[M]]]:
    """Follows all ranks, each until it must wait for a message, or has ended.

    Args:
        steps: What each rank exchanges, in order.
        send: Returns what a rank sends in an exchange, by its number.
        receive: Takes what arrives for a rank in an exchange.

    Returns:
        How many exchanges each rank has done, and what nobody has received, by sender and receiver.
    """
    queues: dict[tuple[int, int], deque[M]] = {}
    done = [0] * len(steps)
    sent = [0] * len(steps)  # exchanges of each rank whose message has left
    ready = deque(range(len(steps)))
    while ready:
        rank = ready.popleft()
        while (number := done[rank]) < len(steps[rank]):
            step = steps[rank][number]
            if step.send != NOTHING and sent[rank] <= number:
                sent[rank] = number + 1
                queues.setdefault((rank, step.to), deque()).append(send(rank, number))
                if step.to != rank:
                    ready.append(step.to)
            if step.receive != NOTHING:
                queue = queues.get((step.source, rank))
                if not queue:
                    break
                receive(rank, number, queue.popleft())
            done[rank] += 1
    return done, queues
