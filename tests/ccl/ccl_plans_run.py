"""An oracle that only runs plans of MSCCL++, in orders that the dice say; it shares no code."""

import random
from collections.abc import Callable, Iterator
from typing import Any

Block = dict[str, Any]


class WrongEndError(Exception):
    """A schedule ended wrong."""


class _Machine:
    """Runs a plan's operations in any order that nops, barriers, signals and packets allow.

    Ranks begin at some time, with rubbish in their inputs until then, and their memory is rubbish
    as soon as all of their blocks have ended. Values are numbers, and sums are Python's.
    """

    def __init__(self, root: dict[str, Any], grain: int, rng: random.Random) -> None:
        self.root, self.grain, self.rng = root, grain, rng
        self.gpus = root["gpus"]
        self.ranks = len(self.gpus)
        coll = root["collective"]
        first = self.gpus[0]
        own, all_of = first["input_chunks"] * grain, first["output_chunks"] * grain
        self.whole = all_of if coll == "allgather" else own
        self.share = self.whole if coll == "allreduce" else self.whole // self.ranks
        self.given = [[rng.getrandbits(60) for _ in range(own)] for _ in range(self.ranks)]
        self.memory: list[dict[Any, Any]] = [{} for _ in range(self.ranks)]
        self.counts: dict[Any, int] = {}
        self.begun: set[int] = set()
        self.taken: dict[int, list[Any]] = {}
        self.blocks = [
            (rank, self._tasks(rank, block))
            for rank, gpu in enumerate(self.gpus)
            for block in gpu["threadblocks"]
        ]
        for rank, gpu in enumerate(self.gpus):
            for number, each in enumerate(gpu["semaphores"]):
                self.counts["device", rank, number] = each["init_value"]
        self.proxies: dict[Any, list[Callable[[], None]]] = {}
        self.barriers: dict[Any, list[Any]] = {}

    def cell(self, rank: int, buffer: str, at: int, packet: bool) -> Any:
        if buffer == "s":
            return "packet" if packet else "s", at
        if not self.root["inplace"]:
            return buffer, at
        coll = self.root["collective"]
        moved = {("allgather", "i"), ("reducescatter", "o")}
        return "io", at + rank * self.share * ((coll, buffer) in moved)

    # Operations as tasks: generators that yield until they may go on

    def _tasks(self, rank: int, block: Block) -> list[list[Iterator[bool]]]:
        """Returns the operations of a block in lists; those of one list are in no order."""
        found: list[list[Iterator[bool]]] = [[]]

        def add(given: dict[str, Any], turn: tuple[int, int] | None) -> None:
            name = given["name"]
            if name == "pipeline":
                turns = given["iter_context"]["num_chunks"] * 3
                for number in range(turns):
                    for inner in given["ops"]:
                        add(inner, (number, turns))
            elif name == "nop":
                found.append([])
            elif name == "barrier":
                found.append([self._barrier(rank, block, given)])
                found.append([])
            else:
                found[-1].append(self._task(rank, block, given, turn))

        for each in block["ops"]:
            add(each, None)
        return found

    def _barrier(self, rank: int, block: Block, given: dict[str, Any]) -> Iterator[bool]:
        key = rank, given["barrier_id"]
        waiting = self.barriers.setdefault(key, [[]])
        mine = next((each for each in waiting if block["id"] not in each), None)
        if mine is None:
            mine = []
            waiting.append(mine)
        mine.append(block["id"])
        while len(mine) < given["num_threadblocks"]:
            yield False

    def _semaphore(self, rank: int, block: Block, given: dict[str, Any], channel: int) -> Any:
        """Returns the two ranks of a channel and its number among theirs."""
        kind = given["channel_type"]
        ids = next(c["channel_ids"] for c in block["channels"] if c["channel_type"] == kind)
        every = next(
            c["connected_to"] for c in self.gpus[rank]["channels"] if c["channel_type"] == kind
        )
        place = ids[channel]
        peer = every[place]
        return kind, rank, peer, every[:place].count(peer)

    def _task(
        self, rank: int, block: Block, given: dict[str, Any], turn: tuple[int, int] | None
    ) -> Iterator[bool]:
        name = given["name"]
        channels = [
            self._semaphore(rank, block, given, one) for one in given.get("channel_ids", ())
        ]
        if name.endswith("signal"):
            for kind, mine, peer, number in channels:
                self._after(rank, (kind, mine, peer, number), kind, peer, mine, number)
        elif name.endswith("wait"):
            for kind, mine, peer, number in channels:
                while not self.counts.get((kind, mine, peer, number)):
                    yield False
                self.counts[kind, mine, peer, number] -= 1
        elif name == "flush":
            for one in channels:
                while self.proxies.get(one):
                    yield False
        elif name == "sem_acquire":
            for number in given["semaphore_ids"]:
                while not self.counts["device", rank, number]:
                    yield False
                self.counts["device", rank, number] -= 1
        elif name == "sem_release":
            for number in given["semaphore_ids"]:
                self.counts["device", rank, number] += 1
        else:
            yield from self._moves(rank, block, given, turn, channels)

    def _after(self, rank: int, port: Any, kind: str, peer: int, mine: int, number: int) -> None:
        def post() -> None:
            key = kind, peer, mine, number
            self.counts[key] = self.counts.get(key, 0) + 1

        if kind == "port":
            self.proxies.setdefault(port, []).append(post)
        else:
            post()

    def _cells(
        self, rank: int, block: Block, given: dict[str, Any], end: dict[str, Any], packet: bool
    ) -> list[tuple[int, Any]]:
        if "type" in end:
            there, buffer = end.get("rank", rank), end["type"]
        else:
            kind = given["channel_type"]
            refs = next(
                each["remote_buffer_ids"]
                for each in block["remote_buffer_refs"]
                if each["access_channel_type"] == kind
            )
            far = self.gpus[rank]["remote_buffers"][refs[end["buffer_id"]]]
            there, buffer = far["rank"], far["type"]
        first, many = end["index"] * self.grain, end["size"] * self.grain
        if "tbg_info" in given:
            many //= given["tbg_info"]["tbg_size"]
            first += given["tbg_info"]["tb_id"] * many
        return [(there, self.cell(there, buffer, first + k, packet)) for k in range(many)]

    def _ends(self, rank: int, block: Block, ends: list[Block]) -> Iterator[Block]:
        """Yields buffers, of a switch that of each member."""
        both: list[Block] = [
            next((one for one in channels if one["channel_type"] == "switch"), {})
            for channels in (block["channels"], self.gpus[rank]["channels"])
        ]
        mine, known = both
        for end in ends:
            if "switch_channel_id" not in end:
                yield end
                continue
            group = known["rank_groups"][mine["channel_ids"][end["switch_channel_id"]]]
            for member in group["ranks"]:
                yield {**end, "rank": member, "type": known["buffer_type"]}

    def _moves(
        self,
        rank: int,
        block: Block,
        given: dict[str, Any],
        turn: tuple[int, int] | None,
        channels: list[Any],
    ) -> Iterator[bool]:
        name = given["name"]
        sums = name.startswith("re") or "re" in name[:3] or name in {"glres", "gstore"}
        packets = name.endswith("pkt")
        sources = [
            self._cells(
                rank, block, given, one, packets and (name != "ppkt") and (not sums or k > 0)
            )
            for k, one in enumerate(self._ends(rank, block, given["src_buff"]))
        ]
        targets = [
            self._cells(rank, block, given, one, packets and name != "upkt" and (not sums or k > 0))
            for k, one in enumerate(self._ends(rank, block, given["dst_buff"]))
        ]
        if turn is not None:
            each = len(sources[0]) // turn[1]
            part = slice(turn[0] * each, (turn[0] + 1) * each)
            sources, targets = [s[part] for s in sources], [t[part] for t in targets]
        pairs = zip(sources, targets, strict=not sums)
        moves = [(sources, targets)] if sums else [([s], [t]) for s, t in pairs]
        for number, (reads, writes) in enumerate(moves):
            if channels and name in {"put", "pws"} and given["channel_type"] == "port":
                kind, mine, peer, at = channels[number]
                move = self._atomic(reads, writes)
                self.proxies.setdefault(channels[number], []).append(move)
                if name == "pws":
                    self._after(rank, channels[number], kind, peer, mine, at)
                continue
            for cells in zip(*reads, strict=True):
                for there, cell in cells:
                    while cell[0] == "packet" and cell not in self.memory[there]:
                        yield False
            values = [self._sum(cells) for cells in zip(*reads, strict=True)]
            yield True  # what is read now may be overwritten before the sum is stored
            for target in writes:
                for (there, cell), value in zip(target, values, strict=True):
                    self.memory[there][cell] = value
                yield True

    def _sum(self, cells: Any) -> Any:
        try:
            return sum(self.memory[there][cell] for there, cell in cells)
        except KeyError:
            raise WrongEndError from None

    def _atomic(self, reads: Any, writes: Any) -> Callable[[], None]:
        def move() -> None:
            values = [self._sum(cells) for cells in zip(*reads, strict=True)]
            for target in writes:
                for (there, cell), value in zip(target, values, strict=True):
                    self.memory[there][cell] = value

        return move

    # The run

    def run(self) -> None:
        rubbish = [[self.rng.getrandbits(60) for _ in g] for g in self.given]
        for rank, values in enumerate(rubbish):
            self._give(rank, values)
        while len(self.taken) < self.ranks:
            if not self._turn():
                raise WrongEndError
        for rank in range(self.ranks):
            if self.taken[rank] != self._wanted(rank):
                raise WrongEndError

    def _give(self, rank: int, values: list[int]) -> None:
        for at, value in enumerate(values):
            self.memory[rank][self.cell(rank, "i", at, False)] = value

    def _turn(self) -> bool:
        """Lets some of what can happen happen; returns whether anything has."""
        happened = False
        for rank in self.rng.sample(range(self.ranks), self.ranks):
            if rank not in self.begun and self.rng.random() < 0.4:
                self.begun.add(rank)
                self._give(rank, self.given[rank])
                happened = True
        for rank, lists in self.rng.sample(self.blocks, len(self.blocks)):
            for _ in range(self.rng.choice((1, 2, 12)) if rank in self.begun else 0):
                while lists and not lists[0]:
                    lists.pop(0)
                if not lists:
                    break
                task = self.rng.choice(lists[0])
                try:
                    happened |= next(task)
                except StopIteration:
                    lists[0].remove(task)
                    happened = True
        for queue in self.proxies.values():
            if queue and self.rng.random() < 0.5:
                queue.pop(0)()
                happened = True
        for rank in self.begun - set(self.taken):
            if not any(any(lists) for r, lists in self.blocks if r == rank):
                outputs = self.share if self.root["collective"] == "reducescatter" else self.whole
                cells = [self.cell(rank, "o", at, False) for at in range(outputs)]
                self.taken[rank] = [self.memory[rank].get(cell) for cell in cells]
                for cell in [c for c in self.memory[rank] if c[0] in {"i", "o", "io"}]:
                    self.memory[rank][cell] = self.rng.getrandbits(60)
                happened = True
        waiting = len(self.begun) < self.ranks or any(self.proxies.values())
        return happened or waiting or self._could()

    def _could(self) -> bool:
        """Returns whether an operation that the dice passed over could go on."""
        for rank, lists in self.blocks:
            if rank in self.begun and any(lists):
                while not lists[0]:
                    lists.pop(0)
                for task in list(lists[0]):
                    try:
                        if next(task):
                            return True
                    except StopIteration:
                        lists[0].remove(task)
                        return True
        return False

    def _wanted(self, rank: int) -> list[int]:
        coll, share, given = self.root["collective"], self.share, self.given
        if coll == "allgather":
            return [value for values in given for value in values]
        if coll == "alltoall":
            return [v for values in given for v in values[rank * share : (rank + 1) * share]]
        sums = [sum(values) for values in zip(*given, strict=True)]
        return sums if coll == "allreduce" else sums[rank * share : (rank + 1) * share]


def run_once(root: dict[str, Any], grain: int, rng: random.Random) -> None:
    """Runs a plan in one random order, on random numbers; raises if the end is wrong."""
    _Machine(root, grain, rng).run()
