"""What must hold across the blocks of a file before anything runs."""

from kernbench.ccl.files.blocks import NOBODY, Block, Blocks, Connection, Memory, Step
from kernbench.ccl.files.problems import Mark, Problems

Ends = dict[Connection, Block]


def check_structure(file: Blocks, problems: Problems) -> None:
    """Adds what is wrong across blocks: connections and their ends, counts, offsets.

    Args:
        file: A file whose numbers are right each by itself.
        problems: Gets what is wrong.
    """
    senders, receivers = _ends(file, problems)
    for mine, theirs, word in ((senders, receivers, "receives"), (receivers, senders, "sends")):
        for connection, block in mine.items():
            if connection not in theirs:
                text = f"nobody {word} on {connection}"
                problems.add(Mark(block.line, 1), "F12", str(block), text)
    for connection, block in senders.items():
        if connection in receivers:
            _check_counts(connection, block, receivers[connection], problems)
    extents = [Memory.extents(file, rank) for rank in range(file.ranks)]
    for block, number, step in file.steps:
        _check_offsets(extents[block.rank], block, number, step, problems)


def _ends(file: Blocks, problems: Problems) -> tuple[Ends, Ends]:
    """Returns the sending and the receiving block of each connection."""
    senders: Ends = {}
    receivers: Ends = {}
    for block in file.every:
        mark = Mark(block.line, 1)
        sends = any(step.kind.sends for step in block.steps)
        receives = any(step.kind.receives for step in block.steps)
        for uses, peer, connection, ends, word in (
            (sends, block.to, block.outgoing, senders, "send"),
            (receives, block.source, block.incoming, receivers, "receive"),
        ):
            if uses and peer == NOBODY:
                text = f"expected a peer: it has steps that {word}"
                problems.add(mark, "F12", str(block), text)
            elif uses and (other := ends.setdefault(connection, block)) is not block:
                text = f"expected one block; block {other.number} is at this end of {connection}"
                hint = "give one of them another channel"
                problems.add(mark, "F12", str(block), text, hint)
    return senders, receivers


def _check_counts(
    connection: Connection, sender: Block, receiver: Block, problems: Problems
) -> None:
    sent = [step for step in sender.steps if step.kind.sends]
    received = [step for step in receiver.steps if step.kind.receives]
    for number, (leaving, arriving) in enumerate(zip(sent, received, strict=False)):
        if leaving.count != arriving.count:
            text = (
                f"receives a count of {arriving.count}; line {leaving.line} sends {leaving.count}"
            )
            mark = Mark(arriving.line, arriving.column)
            problems.add(mark, "F12", f"data {number} of {connection}", text)
            return  # those after it need not be wrong by themselves


def _check_offsets(
    extents: dict[str, int], block: Block, number: int, step: Step, problems: Problems
) -> None:
    for used, (buffer, first) in ((step.kind.reads, step.source), (step.kind.stores, step.target)):
        last = first + step.count - 1
        if used and last >= extents[buffer]:
            most = extents[buffer]
            text = f"expected chunks of {buffer} up to {most - 1}; got {last}"
            if not most:
                text = f"expected {buffer}_chunks of at least {last + 1} for {block}; got 0"
            problems.add(Mark(step.line, step.column), "F4", f"{block} step {number}", text)
