"""One run of all blocks, in some order that waits and connections allow."""

from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

from kernbench.ccl.files.blocks import Block, Blocks, Connection

UNBOUNDED: Final = 1 << 60
"""Places of a connection that never fills."""


class Watcher(Protocol):
    """What sees every step as it happens."""

    def __call__(self, process: int, number: int) -> None:
        """Takes a step: its block, as a place in `Blocks.every`, and its number."""
        ...


class Links:
    """How the blocks of a file are wired: by place in `Blocks.every`.

    Attributes:
        into: Queue that each block sends to, as a number; -1 for none.
        out: Queue that each block receives from.
        senders: The block at the sending end of each queue.
        receivers: The block at the other end.
        after: For every step, the (block, step) pairs that it waits for.
        steps: For every step, whether it receives, whether it sends, and `after`.
        connections: The queues.
    """

    def __init__(self, file: Blocks) -> None:
        numbers: dict[Connection, int] = {}
        every = file.every
        self.into: Final = [-1] * len(every)
        self.out: Final = [-1] * len(every)
        bases, base = [], 0
        for blocks in file.blocks:
            bases.append(base)
            base += len(blocks)
        self.after: Final = [
            [
                tuple((bases[block.rank] + one.block, one.step) for one in step.after)
                for step in block.steps
            ]
            for block in every
        ]
        ends: tuple[dict[int, int], dict[int, int]] = {}, {}
        for process, block in enumerate(every):
            if any(step.kind.sends for step in block.steps):
                queue = numbers.setdefault(block.outgoing, len(numbers))
                self.into[process] = queue
                ends[0][queue] = process
            if any(step.kind.receives for step in block.steps):
                queue = numbers.setdefault(block.incoming, len(numbers))
                self.out[process] = queue
                ends[1][queue] = process
        self.steps: Final = [
            [
                (step.kind.receives, step.kind.sends, after)
                for step, after in zip(block.steps, waits, strict=True)
            ]
            for block, waits in zip(every, self.after, strict=True)
        ]
        self.connections: Final = list(numbers)
        self.senders: Final = [ends[0][queue] for queue in range(len(numbers))]
        self.receivers: Final = [ends[1][queue] for queue in range(len(numbers))]


@dataclass(frozen=True)
class Outcome:
    """How a run came to its end.

    Attributes:
        at: The next step of each block.
        filled: Data left in each queue.
        most: Most data that each queue had at a time.
    """

    at: list[int]
    filled: list[int]
    most: int


def run(file: Blocks, links: Links, slots: int, watch: Watcher | None = None) -> Outcome:
    """Runs all blocks until none can go on.

    Which of several blocks goes first changes nothing if chunks have no races: blocks are
    sequential, and each receive names its queue (Kahn, "The semantics of a simple language for
    parallel programming", 1974).

    Args:
        links: How the blocks are wired.
        slots: Places of each queue.
        watch: Sees every step as it happens.
    """
    at = [0] * len(file.every)
    filled = [0] * len(links.connections)
    most = 0
    waiting: dict[int, list[int]] = {}
    ready = deque(range(len(at)))
    while ready:
        process = ready.popleft()
        mine, out, into = links.steps[process], links.out[process], links.into[process]
        number = at[process]
        while number < len(mine):
            receives, sends, after = mine[number]
            held = next((block for block, step in after if at[block] <= step), None)
            if held is not None:
                waiting.setdefault(held, []).append(process)
                break
            if (receives and not filled[out]) or (sends and filled[into] >= slots):
                break  # the block at the other end wakes this one
            if receives:
                filled[out] -= 1
                if filled[out] == slots - 1:
                    ready.append(links.senders[out])
            if watch is not None:
                watch(process, number)
            if sends:
                filled[into] += 1
                most = max(most, filled[into])
                if filled[into] == 1:
                    ready.append(links.receivers[into])
            number += 1
            at[process] = number
            if process in waiting:
                ready.extend(waiting.pop(process))
    return Outcome(at, filled, most)


def blocked_on(file: Blocks, links: Links, outcome: Outcome, process: int) -> int | None:
    """Returns the block that a block waits for; None if it has ended."""
    number = outcome.at[process]
    block = file.every[process]
    if number == len(block.steps):
        return None
    for other, step in links.after[process][number]:
        if outcome.at[other] <= step:
            return other
    kind = block.steps[number].kind
    if kind.receives and not outcome.filled[links.out[process]]:
        return links.senders[links.out[process]]
    return links.receivers[links.into[process]]


def cycle_of(file: Blocks, links: Links, outcome: Outcome) -> list[int]:
    """Returns blocks each of which waits for the next, and the last for the first.

    If the wait is for a block that has ended, the blocks up to that one.
    """
    stuck = next(
        (p for p, block in enumerate(file.every) if outcome.at[p] < len(block.steps)), None
    )
    path: list[int] = []
    while stuck is not None and stuck not in path:
        path.append(stuck)
        stuck = blocked_on(file, links, outcome, stuck)
    return path[path.index(stuck) :] if stuck is not None else path


def least_slots(file: Blocks, links: Links, most: int) -> int:
    """Returns the fewest places of a connection with which all blocks end.

    Args:
        most: Places with which they end.
    """
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2 if low > 1 else 1  # one place is nearly always enough
        ends = finished(file.every, run(file, links, middle))
        low, high = (low, middle) if ends else (middle + 1, high)
    return low


def finished(every: tuple[Block, ...], outcome: Outcome) -> bool:
    """Returns whether all blocks have ended."""
    return all(at == len(block.steps) for at, block in zip(outcome.at, every, strict=True))
