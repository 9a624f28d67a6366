"""Where the chunks of a file lie in the buffers of a collective."""

from collections.abc import Hashable
from typing import Final

from kernbench.ccl.files.blocks import Blocks, Memory, Mode, Place, lies
from kernbench.ccl.files.rounds import Move
from kernbench.ccl.files.schedule import Event
from kernbench.errors import UnsupportedError


class Origins:
    """Follows which chunk of the operation's blocks lies where.

    Args:
        file: One that is right.
        memory: Where its chunks lie.
        log: What happens in each round.

    Attributes:
        of: The chunk that is the first one of a step, by block, step and whether it is the source.
    """

    def __init__(self, file: Blocks, memory: Memory, log: list[list[Event]]) -> None:
        self.of: Final[dict[tuple[int, int, bool], int]] = {}
        self._file: Final = file
        self._memory: Final = memory
        self._known: Final[list[dict[int, int]]] = []
        self._sent: Final[dict[tuple[int, int], list[int]]] = {}
        gathers = file.operation == "all_gather"
        for rank in range(file.ranks):
            first = memory.at(rank, Place("i", 0))
            base, own = (rank * file.share, file.share) if gathers else (0, file.chunks)
            self._known.append({first + chunk: base + chunk for chunk in range(own)})
        for events in log:
            met = [event for event in events if event.what == "meet"]
            for event in events:
                if event.what == "move":
                    self._receive(event, None)
                elif event.what == "arrive":
                    self._receive(event, self._sent.pop((event.sender, event.sent)))
            leaving = [self._send(event) for event in met]
            for event, chunks in zip(met, leaving, strict=True):
                self._receive(event, chunks)
            for event in events:
                if event.what == "hold":
                    self._sent[event.sender, event.sent] = self._send(event)

    def _at(self, process: int, number: int, source: bool) -> list[int]:
        block = self._file.every[process]
        step = block.steps[number]
        first = self._memory.at(block.rank, step.source if source else step.target)
        known = self._known[block.rank]
        found = [known[at] for at in range(first, first + step.count)]
        self.of[process, number, source] = found[0]
        place = step.source if source else step.target
        if place.buffer == "s" and found != list(range(found[0], found[0] + step.count)):
            raise UnsupportedError(
                f"{self._file.where(block, number)}: chunks in a row of scratch are none of input",
                hint="give each of them a step of its own",
            )
        return found

    def _send(self, event: Event) -> list[int]:
        step = self._file.every[event.sender].steps[event.sent]
        if step.kind.receives:
            return self._sent.pop((event.sender, event.sent))
        return self._at(event.sender, event.sent, source=True)

    def _receive(self, event: Event, chunks: list[int] | None) -> None:
        process, number = event.process, event.step
        block = self._file.every[process]
        step, kind = block.steps[number], block.steps[number].kind
        if kind.reads:
            read = self._at(process, number, source=True)
            chunks = read if chunks is None else chunks
        if chunks is None:
            return  # a nop
        if kind.stores:
            first = self._memory.at(block.rank, step.target)
            self._known[block.rank].update(
                zip(range(first, first + step.count), chunks, strict=True)
            )
            self._at(process, number, source=False)
        if kind.sends:
            self._sent[process, number] = chunks


class Chunks:
    """Numbers of chunks in a rank's buffer: the operation's blocks, then images of them.

    What lies in a file's scratch may be any chunk, and the last chunks of a block may be short. So
    scratch is made of images of all blocks, and chunk `c` lies in scratch `s` where `c` lies in the
    image number `s - c`: it is as long there, and chunks in a row stay in a row.

    Args:
        file: One that is right.
        mode: Whether input and output are one buffer.
        origins: Which chunk a step's first one is, by block, step and whether it is the source.
    """

    def __init__(self, file: Blocks, mode: Mode, origins: "Origins") -> None:
        self._file: Final = file
        self._inside: Final = mode == "in place"
        self._memory: Final = Memory(file, mode)
        self._origins: Final = origins
        pairs = file.operation == "all_to_all"
        self.blocks: Final = file.chunks * (2 if pairs else 1)
        self._apart: Final = not self._inside and not pairs
        self._images: Final[list[dict[Hashable, int]]] = [
            {"outputs": 0} if self._apart else {} for _ in range(file.ranks)
        ]

    @property
    def scratch(self) -> int:
        """Scratch blocks that are used."""
        return max(map(len, self._images)) * self._file.chunks // self._file.share

    def _image(self, rank: int, key: Hashable, chunk: int) -> int:
        images = self._images[rank]
        number = images.setdefault(key, len(images))
        return self.blocks + number * self._file.chunks + chunk

    def at(self, process: int, number: int, *, source: bool) -> int:
        """Returns the first chunk that a step of a block reads, or writes.

        Args:
            number: Of the step.
        """
        file, block = self._file, self._file.every[process]
        step = block.steps[number]
        place = step.source if source else step.target
        if place.buffer == "s":
            origin = self._origins.of[process, number, source]
            return self._image(block.rank, place.chunk - origin, origin)
        if self._inside:
            return self._memory.at(block.rank, place)
        if place.buffer == "i":
            own = block.rank * file.share if file.operation == "all_gather" else 0
            return own + place.chunk
        if self._apart:
            return self._image(block.rank, "outputs", place.chunk)
        return file.chunks + place.chunk

    def temporary(self, process: int, number: int) -> int:
        """Returns where the sum of an `rrs` lies that replaces nothing."""
        block = self._file.every[process]
        return self._image(block.rank, ("sum of", process), self._origins.of[process, number, True])

    def ending(self) -> list[Move]:
        """Returns the moves of outputs into the operation's blocks, where they end."""
        file = self._file
        if not self._apart:
            return []
        scatters = file.operation == "reduce_scatter"
        span = file.share if scatters else file.chunks
        return [
            Move(rank, self.blocks, rank * file.share if scatters else 0, span, adds=False)
            for rank in range(file.ranks)
        ]


class Sums:
    """Says for each `rrs` whether its sum may replace the chunks that it reads.

    It may if nobody reads these chunks before they are written, in the order of the rounds.

    Args:
        file: One that is right.
        memory: Where its chunks lie.
        log: What happens in each round.

    Attributes:
        kept: Block and step of each sum that may not.
    """

    def __init__(self, file: Blocks, memory: Memory, log: list[list[Event]]) -> None:
        self._file: Final = file
        self._memory: Final = memory
        self.kept: Final[set[tuple[int, int]]] = set()
        outputs = file.share if file.operation == "reduce_scatter" else file.chunks
        firsts = [memory.at(rank, Place("o", 0)) for rank in range(file.ranks)]
        wanted = [set(range(first, first + outputs)) for first in firsts]
        for events in reversed(log):
            met = [event for event in events if event.what == "meet"]
            # What leaves in a round may leave last, so it counts as read after what arrives.
            for event in met:
                self._stores(event, wanted)
            for event in events:
                if event.what in {"meet", "hold"}:
                    self._sends(event, wanted)
            for event in met:
                self._reads(event, wanted)
            for event in reversed(events):
                if event.what in {"move", "arrive"}:
                    self._stores(event, wanted)
                    self._reads(event, wanted)

    def _sends(self, event: Event, wanted: list[set[int]]) -> None:
        block = self._file.every[event.sender]
        step = block.steps[event.sent]
        if step.name != "rrs":
            first = self._memory.at(block.rank, lies(step))
            wanted[block.rank].update(range(first, first + step.count))

    def _stores(self, event: Event, wanted: list[set[int]]) -> None:
        block = self._file.every[event.process]
        step = block.steps[event.step]
        if step.kind.stores:
            first = self._memory.at(block.rank, step.target)
            wanted[block.rank].difference_update(range(first, first + step.count))

    def _reads(self, event: Event, wanted: list[set[int]]) -> None:
        block = self._file.every[event.process]
        step, mine = block.steps[event.step], wanted[block.rank]
        if step.kind.adds:
            first = self._memory.at(block.rank, step.target)
            mine.update(range(first, first + step.count))
        if step.kind.reads and (step.kind.receives or not step.kind.sends):
            first = self._memory.at(block.rank, step.source)
            read = set(range(first, first + step.count))
            if step.name == "rrs" and mine & read:
                self.kept.add((event.process, event.step))
            mine |= read
