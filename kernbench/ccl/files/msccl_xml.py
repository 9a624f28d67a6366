"""Reads MSCCL's XML, as msccl-tools, TACCL and TE-CCL write it and RCCL reads it.

Every attribute keeps its line and column. The text is read in one pass of expat, which expands no
entity here: a file that declares one is refused.
"""

from dataclasses import dataclass, field
from typing import Any, Final
from xml.parsers import expat

from kernbench.ccl.files.blocks import (
    KINDS,
    NOBODY,
    Block,
    Blocks,
    Event,
    Extents,
    Mode,
    Place,
    Step,
)
from kernbench.ccl.files.problems import Mark, Problems
from kernbench.ccl.files.structure import check_structure
from kernbench.config.problems import short

OPERATIONS: Final = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
NAMES: Final = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "all_to_all": "alltoall",
}
"""The file's name of each operation."""

_PROTOCOLS: Final = ("Simple", "LL", "LL128")

_REDUCTIONS: Final = ("", "nop", "sum")
"""Values of `redop`: none, what msccl-tools writes where nothing is added, and sums."""

_NEEDED: Final = {
    "algo": ("name", "proto", "nchunksperloop", "ngpus", "coll"),
    "gpu": ("id", "i_chunks", "o_chunks", "s_chunks"),
    "tb": ("id", "send", "recv", "chan"),
    "step": ("s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt"),
    "copy": (),
}
_OPTIONAL: Final = {
    "algo": (
        *("nchannels", "inplace", "outofplace", "minBytes", "maxBytes", "redop", "nthreadblocks"),
        "maxcount",
    ),
    "gpu": (),
    "tb": (),
    "step": ("depid", "deps", "hasdep"),
    "copy": ("i_off", "o_off"),
}
_INSIDE: Final = {
    "algo": ("",),
    "gpu": ("algo",),
    "tb": ("gpu",),
    "step": ("tb",),
    "copy": ("gpu", "tb"),
}

_LIMITS: Final = (
    ("blocks of a rank", 64),
    ("steps of a block", 64),
    ("blocks of a channel", 32),
    ("chunks of a step", 71),
)
"""What RCCL's kernel has room for (`msccl_struct.h` of 0cbce2a7)."""

_NO_LIMIT: Final = 1 << 62
"""Bytes that no call has: `maxBytes` of 0, as RCCL reads it (`msccl_lifecycle.cc`), or none."""

_DIGITS: Final = 20
"""Digits that no number of a file needs."""

MOST_CHUNKS: Final = 1 << 22
"""Chunks of the buffers of all ranks together that a proof has memory for."""


@dataclass(slots=True)
class _Element:
    tag: str
    mark: Mark
    given: dict[str, str]
    inside: list["_Element"] = field(default_factory=list)

    def all(self, tag: str) -> list["_Element"]:
        """Returns the elements of a kind that stand right inside it."""
        return [one for one in self.inside if one.tag == tag]


class _Tree:
    """The elements of a text, each with its place."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._parser = parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.StartDoctypeDeclHandler = self._doctype
        parser.CharacterDataHandler = self._words
        self._open: list[_Element] = []
        self.root: _Element | None = None

    def read(self, text: str) -> _Element:
        try:
            self._parser.Parse(text, True)
        except expat.ExpatError as error:
            mark = Mark(error.lineno, error.offset + 1)
            self._problems.stop(mark, "F10", f"expected XML; {expat.ErrorString(error.code)}")
        assert self.root is not None
        return self.root

    def _mark(self) -> Mark:
        return Mark(self._parser.CurrentLineNumber, self._parser.CurrentColumnNumber + 1)

    def _doctype(self, *_: object) -> None:
        text = "expected no document type: entities are not read"
        self._problems.stop(self._mark(), "F13", text, "remove the declaration")

    def _words(self, text: str) -> None:
        if text.strip():
            expected = f"expected elements and nothing between them; got {short(text.strip())!r}"
            self._problems.add(self._mark(), "F1", "", expected)

    def _start(self, tag: str, given: dict[str, str]) -> None:
        element = _Element(tag, self._mark(), given)
        parent = self._open[-1].tag if self._open else ""
        if tag not in _NEEDED:
            self._problems.unknown(element.mark, "", tag, _NEEDED, "an element")
        elif parent not in _INSIDE[tag] and parent in {"", *_NEEDED}:
            text = (
                f"expected <{tag}> inside <{_INSIDE[tag][0]}>"
                if _INSIDE[tag][0]
                else (f"expected <{tag}> outermost")
            )
            self._problems.add(element.mark, "F1", "", text)
        else:
            self._names(element)
        if self._open:
            self._open[-1].inside.append(element)
        else:
            self.root = element
        self._open.append(element)

    def _end(self, _tag: str) -> None:
        self._open.pop()

    def _names(self, element: _Element) -> None:
        tag, given = element.tag, element.given
        needed = _NEEDED[tag]
        for name in needed:
            if name not in given:
                self._problems.add(element.mark, "F1", f"<{tag}>", f"expected an attribute {name}")
        if len(given) > len(needed):
            known = (*needed, *_OPTIONAL[tag])
            for name in given:
                if name not in known:
                    self._problems.unknown(element.mark, f"<{tag}>", name, known, "an attribute")


class _Reader:
    def __init__(self, path: str, text: str) -> None:
        self.problems = Problems(path, text)
        self.root = _Tree(self.problems).read(text)
        self.problems.check()

    def number(
        self, element: _Element, name: str, where: str, least: int = 0, default: int = 0
    ) -> int:
        """Returns a number; `least` if there is none, which is a problem."""
        text = element.given.get(name)
        if text is None:
            return default
        try:
            number = int(text) if len(text) < _DIGITS else None
        except ValueError:
            number = None
        if number is None or number < least:
            code = "F2" if number is None else "F3"
            most = "on" if len(text) < _DIGITS else f"to 10^{_DIGITS - 1}"
            expected = f"expected a number from {least} {most}; got {short(text)!r}"
            self.problems.add(element.mark, code, f"{where} {name}".strip(), expected)
            return least
        return number

    def read(self) -> Blocks:
        problems, root = self.problems, self.root
        given = root.given
        operation = OPERATIONS.get(given["coll"], "")
        if not operation:
            problems.unknown(root.mark, "coll", given["coll"], OPERATIONS, "one")
        if given["proto"] not in _PROTOCOLS:
            problems.unknown(root.mark, "proto", given["proto"], _PROTOCOLS, "one")
        ranks = self.number(root, "ngpus", "", 1)
        chunks = self.number(root, "nchunksperloop", "", 1)
        if operation not in {"", "all_reduce"} and chunks % ranks:
            text = f"expected a multiple of the {ranks} ranks; got {chunks}"
            problems.add(root.mark, "F12", "nchunksperloop", text)
        # Without it, blocks say which there are.
        channels = self.number(root, "nchannels", "", 1) if "nchannels" in given else None
        least = self.number(root, "minBytes", "")
        most = self.number(root, "maxBytes", "") or _NO_LIMIT
        if least > most:
            text = f"expected at least minBytes, {least}; got {most}"
            problems.add(root.mark, "F12", "maxBytes", text)
        reduction = given.get("redop", "")
        if reduction not in _REDUCTIONS:
            text = f"expected a file for every reduction; got one for {short(reduction)!r} alone"
            problems.add(root.mark, "F13", "redop", text, "remove it, or write sum")
        gpus = root.all("gpu")
        notes = self._notes(gpus)
        if reduction == "sum":
            notes.append("redop=sum is passed over: a file serves every reduction here")
        self._ids(gpus, root, ranks)
        problems.check()
        blocks, extents = [], []
        for rank, gpu in enumerate(gpus):
            where = f"rank {rank}"
            extents.append(Extents(*(self.number(gpu, f"{b}_chunks", where) for b in "ios")))
            blocks.append(self._blocks(rank, gpu, ranks))
            self._check_channels(gpu, blocks[-1], channels)
        self._check_room(root, gpus, chunks, extents)
        problems.check()
        file = Blocks(
            problems.path,
            given["name"],
            operation,
            ranks,
            chunks,
            self._modes(),
            (least, most),
            given["proto"],
            tuple(extents),
            tuple(blocks),
            tuple(notes),
        )
        check_structure(file, problems)
        problems.check()
        return file

    def _check_channels(
        self, gpu: _Element, blocks: tuple[Block, ...], channels: int | None
    ) -> None:
        """Checks that blocks that send or receive have one of the channels that are connected."""
        if channels is None:
            return
        for tb, block in zip(gpu.all("tb"), blocks, strict=False):  # none if a number stands twice
            if block.channel >= channels and (block.to, block.source) != (NOBODY, NOBODY):
                text = f"expected a channel up to {channels - 1}, as nchannels says; got"
                self.problems.add(tb.mark, "F4", f"{block} chan", f"{text} {block.channel}")

    def _check_room(
        self, root: _Element, gpus: list[_Element], chunks: int, extents: list[Extents]
    ) -> None:
        most = MOST_CHUNKS // len(gpus)
        expected = f"expected at most {most} chunks for each of {len(gpus)} ranks"
        if chunks > most:
            self.problems.add(root.mark, "F3", "nchunksperloop", f"{expected}; got {chunks}")
        for rank, (gpu, own) in enumerate(zip(gpus, extents, strict=True)):
            for name, many in zip(Extents._fields, own, strict=True):
                if many > most:
                    where = f"rank {rank} {name}_chunks"
                    self.problems.add(gpu.mark, "F3", where, f"{expected}; got {many}")

    def _modes(self) -> tuple[Mode, ...]:
        given, said = self.root.given, {}
        for name in ("inplace", "outofplace"):
            text = given.get(name, "0" if given["inplace"] == "1" else "1")
            if text not in {"0", "1"}:
                expected = f"expected 0 or 1; got {short(text)!r}"
                self.problems.add(self.root.mark, "F2", name, expected)
            said[name] = text != "0"
        inside, outside = said["inplace"], said["outofplace"]
        if not (inside or outside):
            text = "expected inplace or outofplace to be 1"
            self.problems.add(self.root.mark, "F12", "<algo>", text)
        found: list[Mode] = ["in place"] if inside else []
        return (*found, "out of place") if outside else tuple(found)

    def _notes(self, gpus: list[_Element]) -> list[str]:
        inside = [each for gpu in gpus for each in gpu.inside]
        copies = sum(each.tag == "copy" for each in inside)
        copies += sum(each.tag == "copy" for tb in inside for each in tb.inside)
        notes = [f"{copies} <copy> elements are passed over, as RCCL does"] if copies else []
        blocks = [gpu.all("tb") for gpu in gpus]
        tbs = [tb for each in blocks for tb in each]
        channels: dict[tuple[int, str], int] = {}
        for rank, each in enumerate(blocks):
            for tb in each:
                key = rank, tb.given["chan"]
                channels[key] = channels.get(key, 0) + 1
        if any(tb.given["chan"] == "-1" for tb in tbs):
            notes.append("RCCL wants a channel from 0 on, also of blocks that only compute")
        steps = [tb.all("step") for tb in tbs]
        most = (
            max(map(len, blocks), default=0),
            max(map(len, steps), default=0),
            max(channels.values(), default=0),
            max((self._count(one) for each in steps for one in each), default=0),
        )
        alone = sum(self._ends_alone(each) for each in steps)
        if alone:
            text = "RCCL reads no file in which a step after nops waits for nothing itself"
            notes.append(f"{text}; blocks of it: {alone}")
        for (what, limit), number in zip(_LIMITS, most, strict=True):
            if number > limit:
                notes.append(f"RCCL has room for {limit} {what}; the file has {number}")
        return notes

    @staticmethod
    def _ends_alone(steps: list[_Element]) -> bool:
        """Returns whether waits of a `nop` go to a step that has none: see `msccl_parser.cc`."""
        waits = False
        for step in steps:
            own = step.given.get("depid", "-1") != "-1"
            if step.given["type"] == "nop":
                waits = waits or own
            elif waits and not own:
                return True
            else:
                waits = False
        return False

    @staticmethod
    def _count(step: _Element) -> int:
        """Returns the chunks of a step; 0 for what is no number, which is told elsewhere."""
        text = step.given["cnt"]
        return int(text) if text.isdecimal() and len(text) < _DIGITS else 0

    def _ids(self, gpus: list[_Element], root: _Element, ranks: int) -> None:
        ids = [self.number(gpu, "id", "<gpu>") for gpu in gpus]
        for rank, (gpu, number) in enumerate(zip(gpus, ids, strict=True)):
            if number != rank:
                text = f"expected ranks in order, here {rank}; got {number}"
                self.problems.add(gpu.mark, "F12", "<gpu> id", text)
        if len(gpus) != ranks:
            text = f"expected as many <gpu> as ngpus, {ranks}; got {len(gpus)}"
            self.problems.add(root.mark, "F12", "<algo>", text)

    def _blocks(self, rank: int, gpu: _Element, ranks: int) -> tuple[Block, ...]:
        tbs = gpu.all("tb")
        numbers = [self.number(tb, "id", f"rank {rank} <tb>") for tb in tbs]
        place = {number: index for index, number in enumerate(numbers)}
        if len(place) < len(tbs):
            seen: set[int] = set()
            for tb, number in zip(tbs, numbers, strict=True):
                if number in seen:
                    text = f"block {number} stands twice"
                    self.problems.add(tb.mark, "F6", f"rank {rank}", text)
                seen.add(number)
            return ()
        publishers = [
            [s for s, one in enumerate(tb.all("step")) if one.given.get("hasdep") == "1"]
            for tb in tbs
        ]
        found = []
        for index, (tb, number) in enumerate(zip(tbs, numbers, strict=True)):
            where = f"rank {rank} block {number}"
            peers = []
            for name in ("send", "recv"):
                peer = self.number(tb, name, where, NOBODY)
                if peer >= ranks or peer == rank:
                    text = f"expected another rank up to {ranks - 1}, or -1; got {peer}"
                    self.problems.add(tb.mark, "F4", f"{where} {name}", text)
                peers.append(peer)
            steps = tuple(
                self._step(one, f"{where} step {s}", s, place, publishers, index)
                for s, one in enumerate(tb.all("step"))
            )
            # Blocks that only compute have no channel in what msccl-tools wrote in 2021.
            channel = self.number(tb, "chan", where, -1 if peers == [NOBODY, NOBODY] else 0)
            found.append(Block(rank, number, peers[0], peers[1], channel, steps, tb.mark.line))
        return tuple(found)

    def _step(
        self,
        element: _Element,
        where: str,
        number: int,
        place: dict[int, int],
        publishers: list[list[int]],
        own: int,
    ) -> Step:
        given, problems, mark = element.given, self.problems, element.mark
        if self.number(element, "s", where) != number:
            text = f"expected steps in order, here {number}; got {short(given['s'])}"
            problems.add(mark, "F12", where, text)
        name = given["type"]
        if name not in KINDS:
            problems.unknown(mark, f"{where} type", name, KINDS, "one")
            name = "nop"
        kind = KINDS[name]
        places: list[Any] = []
        for end, used in (("src", kind.reads), ("dst", kind.stores)):
            buffer = given[f"{end}buf"]
            if buffer not in {"i", "o", "s"} and used:
                problems.unknown(mark, f"{where} {end}buf", buffer, "ios", "one")
                buffer = "i"
            least = 0 if used else -1
            places.append(Place(buffer, self.number(element, f"{end}off", where, least)))  # type: ignore[arg-type]
        count = self.number(element, "cnt", where, 0 if name == "nop" else 1)
        after: tuple[Event, ...] = ()
        block = self.number(element, "depid", where, NOBODY, NOBODY)
        if block != NOBODY:
            step = self.number(element, "deps", where, NOBODY, NOBODY)
            after = self._after(mark, where, (block, step), place, publishers, (own, number))
        hasdep = given.get("hasdep", "0")
        if hasdep not in {"0", "1"}:
            text = f"expected 0 or 1; got {short(hasdep)!r}"
            problems.add(mark, "F2", f"{where} hasdep", text)
        publishes = hasdep == "1"
        return Step(name, places[0], places[1], count, after, publishes, mark.line, mark.column)

    def _after(
        self,
        mark: Mark,
        where: str,
        waits: tuple[int, int],
        place: dict[int, int],
        publishers: list[list[int]],
        at: tuple[int, int],
    ) -> tuple[Event, ...]:
        """Returns the step that ends a wait: the first published one from a step of a block on.

        Args:
            waits: Number of the block, and its step.
            at: Place of the block that waits, and its step.
        """
        (block, step), (own, number) = waits, at
        index = place.get(block)
        if index is None:
            text = f"expected a block of the same rank; there is no block {block}"
            self.problems.add(mark, "F7", f"{where} depid", text)
            return ()
        found = next((s for s in publishers[index] if s >= step), None)
        if index == own and found is not None and found < number:
            return ()  # a block's steps are in order as they are
        if found is None:
            text = f"expected a step that sets hasdep=1; block {block} has none from {step} on"
            hint = "the wait never ends: set hasdep on the step, or remove depid"
            self.problems.add(mark, "F12", f"{where} deps", text, hint)
            return ()
        if index == own:
            text = f"waits for its own block's step {found}, which comes no earlier: it never ends"
            self.problems.add(mark, "F12", f"{where} depid", text)
            return ()
        return (Event(index, found),)


def read(path: str, text: str) -> Blocks:
    """Returns the collective of an XML text.

    Args:
        path: The file, for places in reports.
        text: What is in it.

    Raises:
        ConfigError: Everything that is wrong with it.
    """
    return _Reader(path, text).read()
