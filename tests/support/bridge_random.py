"""Random programs of streams, events, views and collectives, and what each of them should give.

A program is a list of instructions that all ranks run. While it is made, `Order` keeps which
stream knows of which command, by the rules of CUDA alone: two accesses of one element, at least one
of them a write, must be ordered. Where they are not, a wait is put in before; a program with a
mistake leaves one out.
"""

import random
from typing import Any, NamedTuple

SIZE = 12
BUFFERS = 3
STREAMS = 3
GROUPS = 2


class View(NamedTuple):
    """Some elements of a buffer: `buffer[start:stop:step]`."""

    buffer: int
    start: int
    stop: int
    step: int

    @property
    def elements(self) -> frozenset[tuple[int, int]]:
        """The elements, as buffer and index."""
        return frozenset((self.buffer, at) for at in range(self.start, self.stop, self.step))


class Access(NamedTuple):
    """What a command did: on which stream, as which of its commands."""

    stream: str
    number: int
    reads: frozenset[tuple[int, int]]
    writes: frozenset[tuple[int, int]]
    work: int | None
    kind: str


class Order:
    """Which commands the host and each stream know to be over."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, int]] = {}
        self.count: dict[str, int] = {}
        self.accesses: list[Access] = []
        self.before: dict[tuple[str, int], dict[str, int]] = {}

    def learn(self, who: str, of: dict[str, int]) -> None:
        """Lets a stream, or the host, know what is known elsewhere."""
        mine = self.known.setdefault(who, {})
        for stream, number in of.items():
            mine[stream] = max(mine.get(stream, 0), number)

    def at(self, stream: str) -> dict[str, int]:
        """Returns what is over once a stream is where it is now."""
        return {**self.known.get(stream, {}), stream: self.count.get(stream, 0)}

    def conflicts(self, stream: str, line: str, reads: Any, writes: Any) -> list[Access]:
        """Returns earlier accesses that a command would race with.

        Args:
            stream: The current stream.
            line: The stream of the command, which comes after the current one.
            reads: Elements that it reads.
            writes: Elements that it writes.
        """
        known = [self.known.get(who, {}) for who in ("host", stream, line)]
        return [
            one
            for one in self.accesses
            if one.stream not in {stream, line}
            and max(each.get(one.stream, 0) for each in known) < one.number
            and (one.writes & (reads | writes) or one.reads & writes)
        ]

    def issue(
        self, stream: str, reads: Any, writes: Any, kind: str, work: int | None = None
    ) -> None:
        """Notes a command."""
        number = self.count[stream] = self.count.get(stream, 0) + 1
        self.before[stream, number] = dict(self.known.get(stream, {}))
        self.accesses.append(Access(stream, number, reads, writes, work, kind))


class Program(NamedTuple):
    """A program, and what should come of it.

    Attributes:
        ranks: Number of ranks.
        instructions: What each rank does.
        wrong: Index of the instruction that is a mistake; None for a correct program.
        codes: Codes of which a report may have any.
    """

    ranks: int
    instructions: list[tuple[Any, ...]]
    wrong: int | None
    codes: frozenset[str]


def make(seed: int, *, planted: bool, length: int = 14) -> Program:
    """Returns a program.

    Args:
        seed: Says which.
        planted: Whether a wait is left out somewhere.
        length: Number of instructions, without waits.
    """
    pick = random.Random(seed)
    order, works = Order(), 0
    done: list[tuple[Any, ...]] = []
    mistake = pick.randrange(length // 2) if planted else None
    hazards = 0
    for _ in range(length):
        stream = f"s{pick.randrange(STREAMS)}"
        done.append(("stream", stream))
        kind, group = pick.choice("cccccaasgpi"), pick.randrange(GROUPS)
        views = [_view(pick, contiguous=kind in "asgp") for _ in range(3)]
        if kind in "gp" and views[0].elements & views[1].elements:
            kind = "a"
        reads, writes = _touched(kind, views)
        parts = _parts(kind, stream, group, reads, writes)
        # A message is one more use of its tensor, in whatever order messages are sent.
        line = stream if kind == "p" else parts[0][0]
        while found := order.conflicts(stream, line, reads, writes):
            if mistake is not None and hazards >= mistake:
                done.append((kind, stream, views, group, works, pick.randrange(4)))
                return Program(
                    pick.choice((2, 3, 4)), done, len(done) - 1, _codes(found, reads, writes)
                )
            hazards += 1
            _wait(pick, order, done, stream, pick.choice(found))
        done.append((kind, stream, views, group, works, pick.randrange(4)))
        if kind in "ap":
            for line, *_ in parts:
                order.learn(line, order.at(stream))
            for line, given, taken in parts:
                order.issue(line, given, taken, kind, works)
            works += 1
        else:
            order.issue(stream, reads, writes, kind)
            if kind == "i":
                order.learn("host", order.at(stream))
    done.append(("end",))
    return Program(pick.choice((2, 3, 4)), done, None, frozenset())


def _parts(kind: str, stream: str, group: int, reads: Any, writes: Any) -> list[Any]:
    """Returns the commands of an instruction: the stream, and what it reads and writes."""
    if kind == "p":
        return [("message 0", reads, frozenset()), ("message 1", frozenset(), writes)]
    return [(f"comm{group}" if kind == "a" else stream, reads, writes)]


def _view(pick: random.Random, *, contiguous: bool) -> View:
    buffer = pick.randrange(BUFFERS)
    if contiguous or pick.random() < 0.5:
        start = pick.randrange(SIZE - 3)
        return View(buffer, start, start + 4, 1)
    return View(buffer, pick.randrange(3), SIZE, 3)


def _touched(kind: str, views: list[View]) -> tuple[Any, Any]:
    """Returns the elements that an instruction reads and writes."""
    first, second, third = (view.elements for view in views)
    if kind == "c":
        return first | second | third, first
    if kind in "as":
        return first, first
    if kind == "i":
        return first, frozenset()
    return second, first | second if kind == "g" else first


def _wait(pick: random.Random, order: Order, done: Any, stream: str, one: Access) -> None:
    """Puts a wait into a program, so that a stream comes after an access."""
    ways = ["synchronize"]
    if one.work is not None:
        ways += ["work", "work", "future" if one.stream.startswith("comm") else "work"]
    else:
        ways += ["wait_stream", "event", "host"]
    way = pick.choice(ways)
    done.append((way, stream, one.stream, one.work))
    if way == "synchronize":
        for each in list(order.count):
            order.learn("host", order.at(each))
    elif way == "host":
        order.learn("host", order.at(one.stream))
    elif one.work is not None:
        for part in order.accesses:
            if part.work == one.work:
                known = order.before[part.stream, part.number]
                order.learn(stream, {**known, part.stream: part.number})
    else:
        order.learn(stream, order.at(one.stream))


def _codes(found: list[Access], reads: Any, writes: Any) -> frozenset[str]:
    codes = set()
    for one in found:
        if one.kind in "cig":
            codes.add("M10")
        if one.kind in "ci":
            continue
        if writes & (one.reads | one.writes):
            codes.add("C14")
        if reads & one.writes:
            codes.add("C15")
    return frozenset(codes)


def first_values(rank: int) -> Any:
    """Returns the buffers of a rank as they are at first."""
    return [
        [float((7 * rank + 5 * buffer + 3 * at) % 7) for at in range(SIZE)]
        for buffer in range(BUFFERS)
    ]


def run(program: Program, rank: int, reached: list[int]) -> Any:
    """Runs a program as a rank of PyTorch; returns its buffers.

    Args:
        reached: Takes the index of the instruction that the rank has begun last.
    """
    import torch
    import torch.distributed as dist

    cuda = torch.cuda
    buffers = [torch.tensor(one, device="cuda") for one in first_values(rank)]
    groups = [dist.group.WORLD, dist.new_group()]
    streams = {"s0": cuda.current_stream()} | {f"s{at}": cuda.Stream() for at in range(1, STREAMS)}
    cuda.synchronize()
    works: dict[int, list[Any]] = {}
    for at, (kind, *rest) in enumerate(program.instructions):
        reached[rank] = at
        if kind == "stream":
            cuda.set_stream(streams[rest[0]])
        elif kind == "synchronize":
            cuda.synchronize()
        elif kind == "host":
            streams[rest[1]].synchronize()
        elif kind == "wait_stream":
            streams[rest[0]].wait_stream(streams[rest[1]])
        elif kind == "event":
            streams[rest[0]].wait_event(streams[rest[1]].record_event())
        elif kind == "work":
            for work in works[rest[2]]:
                work.wait()
        elif kind == "future":
            works[rest[2]][0].get_future().wait()
        elif kind == "end":
            for each in works.values():
                for work in each:
                    work.wait()
            cuda.synchronize()
        else:
            _, views, group, number, variant = rest
            a, b, c = (buffers[v.buffer][v.start : v.stop : v.step] for v in views)
            _do(kind, (a, b, c), groups[group], (works, number), variant)
    return [one.tolist() for one in buffers] if program.wrong is None else None


def _do(kind: str, views: Any, group: Any, works: Any, variant: int) -> None:
    """Does an instruction that touches elements."""
    import torch
    import torch.distributed as dist

    a, b, c = views
    handles, number = works
    if kind == "c":
        if variant == 0:
            a.copy_((a + b * c) % 7)
        elif variant == 1:
            a.add_(b * c).remainder_(7)
        elif variant == 2:
            a.addcmul_(b.clone(), c.clone()).fmod_(7)
        else:
            torch._foreach_add_([a], [b * c])
            a %= 7
    elif kind == "a":
        handles[number] = [dist.all_reduce(a, dist.ReduceOp.MAX, group, async_op=True)]
    elif kind == "s":
        dist.all_reduce(a, dist.ReduceOp.MIN, group)
    elif kind == "g":
        dist.broadcast(b, 0, group)
        a.copy_(b.flip(0) if variant else b)
    elif kind == "p":
        rank, size = dist.get_rank(), dist.get_world_size()
        handles[number] = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, b, (rank + 1) % size),
                dist.P2POp(dist.irecv, a, (rank - 1) % size),
            ]
        )
    else:
        a.sum().item()


def expected(program: Program) -> list[Any]:
    """Returns the buffers of each rank after a correct program, one instruction after the other."""
    ranks = [first_values(rank) for rank in range(program.ranks)]
    for kind, *rest in program.instructions:
        if kind not in "casgp":
            continue
        _, views, _, _, variant = rest
        given = [[[one[v.buffer][i] for i in _indices(v)] for v in views] for one in ranks]
        for rank, buffers in enumerate(ranks):
            first, second, third = given[rank]
            if kind == "c":
                result = [(x + y * z) % 7 for x, y, z in zip(first, second, third, strict=True)]
            elif kind in "as":
                combine = max if kind == "a" else min
                result = [combine(each) for each in zip(*(one[0] for one in given), strict=True)]
            elif kind == "g":
                for i, value in zip(_indices(views[1]), given[0][1], strict=True):
                    buffers[views[1].buffer][i] = value
                result = given[0][1][::-1] if variant else given[0][1]
            else:
                result = given[rank - 1][1]
            for i, value in zip(_indices(views[0]), result, strict=True):
                buffers[views[0].buffer][i] = value
    return ranks


def _indices(view: View) -> range:
    return range(view.start, view.stop, view.step)
