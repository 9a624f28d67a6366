"""Random correct programs: every step is a part of an event of the whole machine.

Since all ranks do their parts of the events in the order of the events, a program cannot block, and
since no step touches a tensor that an asynchronous call still uses, its results do not depend on
timing. The steps of a rank are put in another order afterwards, where that changes nothing.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from programs_state import State, blocks
from programs_steps import INEXACT, OBJECTS, Call, Delay, Event, Local, Program, Read, Ref

Shares = dict[int, tuple[tuple[Ref, ...], tuple[Ref, ...]]]
"""By rank, the tensors that it gives and those that it takes."""


def random_program(choices: int | random.Random) -> Program:
    """Returns the program of a seed, or of who makes its choices."""
    state = State(random.Random(choices) if isinstance(choices, int) else choices)
    makers, weights = list(_MENU), list(_MENU.values())
    for _ in range(state.rng.randint(3, 10)):
        state.rng.choices(makers, weights)[0](state)
        state.wait_for_some(0.2)
    return state.finished()


def _group(state: State, least: int = 1) -> int:
    fitting = [index for index, ranks in enumerate(state.groups) if len(ranks) >= least]
    return state.rng.choice(fitting)


def _some_ranks(state: State) -> tuple[int, ...]:
    if state.rng.random() < 0.5:
        return state.groups[0]
    count = state.rng.randint(1, state.ranks)
    return tuple(sorted(state.rng.sample(state.groups[0], count)))


def _split(state: State, total: int, count: int) -> list[int]:
    """Returns sizes whose sum is not above `total`."""
    cuts = sorted(state.rng.randint(0, total) for _ in range(count))
    return [high - low for low, high in zip([0, *cuts], cuts, strict=False)]


# What each rank does alone


def _local(state: State) -> None:
    rng, ranks = state.rng, _some_ranks(state)
    ref = state.source(ranks)
    dtype = state.slots[ref.slot].dtype
    method = rng.choice(("mul_", "add_", "sub_", "fill_", "copy_", "add_"))
    if state.is_large(ref) or dtype == "bool":
        method = "fill_" if method != "copy_" else method
    numbers = (True, False) if dtype == "bool" else (2, 3) if dtype == "uint8" else (2, 3, -1)
    other: float | Ref = rng.choice(numbers if dtype not in INEXACT else (0.5, -1.5, 0.75, 2.0))
    others = state.slots_with(ranks, dtype, ref.size, (ref,))
    if others and method in {"copy_", "add_"}:
        ref = replace(ref, width=0)
        other = state.region(rng.choice(others), ref.size)
        state.grow(ref, state.bound(ref) + state.bound(other))
    else:
        method = "fill_" if method == "copy_" else method
        state.grow(ref, state.bound(ref) * 2 + 2)
    state.add({rank: Local(ref, method, other) for rank in ranks})


def _delay(state: State) -> None:
    count = state.rng.randint(1, min(3, state.ranks))
    ranks = state.rng.sample(state.groups[0], count)
    state.add({rank: Delay(state.rng.choice((1, 3, 9))) for rank in ranks})


def _read(state: State) -> None:
    ranks = _some_ranks(state)
    ref = state.source(ranks)
    state.add({rank: Read(ref) for rank in ranks})


# Collectives


def _barrier(state: State) -> None:
    group, handle = _group(state), state.rng.random() < 0.3
    call = Call(state.number(), "barrier", group, handle=handle)
    state.add(dict.fromkeys(state.groups[group], call))


def _collective(name: str, share: Callable[[State, Sequence[int], Ref, int], Shares]) -> "_Maker":
    """Returns what adds a collective, given who has what part in it."""
    reduces, rooted = "reduce" in name, name in {"broadcast", "reduce", "gather", "scatter"}

    def make(state: State) -> None:
        group = _group(state)
        members = state.groups[group]
        ref = state.source(members)
        op = state.operation(ref, len(members)) if reduces else ""
        if reduces and not op:
            return
        root = state.rng.choice(members) if rooted else None
        bound = state.combined_bound(ref, op, len(members))
        shares = share(state, members, ref, -1 if root is None else root)
        for _, taken in shares.values():
            for target in taken:
                state.grow(target, bound)
        number, handle = state.number(), state.rng.random() < 0.35
        event: Event = {
            rank: Call(number, name, group, given, taken, op=op, root=root, handle=handle)
            for rank, (given, taken) in shares.items()
        }
        state.add(event)

    return make


def _all_reduce(state: State, members: Sequence[int], ref: Ref, root: int) -> Shares:
    return dict.fromkeys(members, ((ref,), (ref,)))


def _reduce(state: State, members: Sequence[int], ref: Ref, root: int) -> Shares:
    return {rank: ((ref,), (ref,) if rank == root else ()) for rank in members}


def _broadcast(state: State, members: Sequence[int], ref: Ref, root: int) -> Shares:
    return {rank: ((ref,) if rank == root else (), (ref,)) for rank in members}


def _gather(state: State, members: Sequence[int], ref: Ref, root: int) -> Shares:
    sizes = [ref.size] * len(members)
    whole = state.target(members, state.slots[ref.slot].dtype, sum(sizes), (ref,))
    taken = blocks(whole, sizes, ref.width)
    return {rank: ((ref,), taken if root in {-1, rank} else ()) for rank in members}


def _gather_whole(state: State, members: Sequence[int], ref: Ref, root: int) -> Shares:
    flat = replace(ref, width=0)
    dtype = state.slots[ref.slot].dtype
    whole = state.target(members, dtype, flat.size * len(members), (ref,))
    return dict.fromkeys(members, ((flat,), (whole,)))


def _scatter(state: State, members: Sequence[int], ref: Ref, root: int) -> Shares:
    sizes = [ref.size // len(members)] * len(members)
    taken = state.target(members, state.slots[ref.slot].dtype, sizes[0], (ref,))
    given = blocks(ref, sizes)
    return {rank: (given if rank == root else (), (taken,)) for rank in members}


def _reduce_scatter(state: State, members: Sequence[int], ref: Ref, root: int) -> Shares:
    sizes = _split(state, ref.size, len(members))
    taken = [state.new(state.slots[ref.slot].dtype, size) for size in sizes]
    given = blocks(ref, sizes)
    return {rank: (given, (mine,)) for rank, mine in zip(members, taken, strict=True)}


def _reduce_scatter_whole(state: State, members: Sequence[int], ref: Ref, root: int) -> Shares:
    size = ref.size // len(members)
    taken = state.target(members, state.slots[ref.slot].dtype, size, (ref,))
    given = Ref(ref.slot, ref.start, ref.start + size * len(members))
    return dict.fromkeys(members, ((given,), (taken,)))


def _all_to_all(state: State) -> None:
    """Adds an exchange between each two ranks: with lists, or in two tensors."""
    rng, group = state.rng, _group(state)
    members = state.groups[group]
    count, lists, uneven = len(members), rng.random() < 0.4, rng.random() < 0.6
    ref = state.source(members)
    dtype, bound = state.slots[ref.slot].dtype, state.bound(ref)
    even = [ref.size // count] * count
    rows = [_split(state, ref.size, count) if uneven else even for _ in members]
    number, handle = state.number(), rng.random() < 0.35
    event: Event = {}
    for place, rank in enumerate(members):
        row, column = rows[place], [row[place] for row in rows]
        given, taken = Ref(ref.slot, ref.start, ref.start + sum(row)), state.new(dtype, sum(column))
        state.grow(taken, bound)
        if lists:
            parts = (blocks(given, row), blocks(taken, column))
            event[rank] = Call(number, "all_to_all", group, *parts, handle=handle)
            continue
        call = Call(number, "all_to_all_single", group, (given,), (taken,), handle=handle)
        if uneven:
            call = replace(call, sends=tuple(row), receives=tuple(column))
        event[rank] = call
    state.add(event)


def _coalesced(state: State) -> None:
    """Adds collectives of one kind that are issued as one."""
    rng, group, number = state.rng, _group(state), state.number()
    members = state.groups[group]
    name = rng.choice(("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"))
    first = replace(state.source(members), width=0)
    dtype = state.slots[first.slot].dtype
    op = "" if name == "all_gather_into_tensor" else state.operation(first, len(members))
    if not op and name != "all_gather_into_tensor":
        return
    refs = [first]
    for slot in state.slots_with(members, dtype, 0, (first,)):
        ref = state.region(slot, state.slots[slot].size)
        if state.bound(ref) <= state.bound(first) and rng.random() < 0.7:
            refs.append(ref)
    parts = []
    for ref in refs:
        bound = state.combined_bound(first, op, len(members))
        if name == "all_reduce":
            given, taken = ref, ref
        elif op:
            size = ref.size // len(members)
            given = replace(ref, stop=ref.start + size * len(members))
            taken = state.new(dtype, size)
        else:
            given, taken = ref, state.new(dtype, ref.size * len(members))
        state.grow(taken, bound)
        parts.append(Call(number, name, group, (given,), (taken,), op=op))
    handle = rng.random() < 0.4
    call = Call(number, "coalesced", group, parts=tuple(parts), handle=handle)
    state.add(dict.fromkeys(members, call))


def _objects(state: State) -> None:
    rng, group, number = state.rng, _group(state), state.number()
    members = state.groups[group]
    name = rng.choice(OBJECTS)
    root = None if name == "all_gather_object" else rng.choice(members)
    event: Event = {}
    for rank in members:
        objects: tuple[object, ...] = (rng.choice(((rank, "x" * rank), {"rank": rank}, None)),)
        if name == "scatter_object_list":
            objects = tuple((rank, to) for to in members) if rank == root else ()
        elif name == "broadcast_object_list":
            objects = (number, f"from {rank}")
        event[rank] = Call(number, name, group, root=root, objects=objects)
    state.add(event)


# Messages


def _message(state: State) -> None:
    """Adds a message; each side may be asynchronous."""
    if state.ranks == 1:
        return
    rng, group, number = state.rng, _group(state, 2), state.number()
    source, destination = rng.sample(state.groups[group], 2)
    given = state.source((source,))
    dtype = state.slots[given.slot].dtype
    taken = state.target((destination,), dtype, given.size, ())
    taken = replace(taken, width=given.width)
    state.grow(taken, state.bound(given))
    anybody = rng.random() < 0.15
    # A receive from anybody has a tag of its own, so that it has one candidate.
    tag = 1000 + number if anybody else rng.choice((0, 0, 7, 8, 500 + number))
    send, recv = rng.choice(("send", "isend")), rng.choice(("recv", "irecv"))
    call = Call(number, send, group, (given,), peer=destination, tag=tag, handle=send == "isend")
    answer = Call(number, recv, group, (), (taken,), tag=tag, handle=recv == "irecv")
    state.add({source: call, destination: replace(answer, peer=None if anybody else source)})


def _batch(state: State) -> None:
    """Adds messages between some ranks that all start at once: around a ring, or any."""
    if state.ranks == 1:
        return
    rng, group, number = state.rng, _group(state, 2), state.number()
    members = state.groups[group]
    pairs = list(zip(members, members[1:] + members[:1], strict=True))
    if rng.random() < 0.5:
        pairs = [_pair(state, members) for _ in members]
    parts: dict[int, list[Call]] = {}
    for index, (source, destination) in enumerate(pairs):
        tag = index if len(set(pairs)) < len(pairs) else 0
        written = [ref for part in parts.get(source, ()) for ref in part.taken]
        slot = rng.choice(state.slots_with((source,), avoid=written))
        given = state.region(slot, state.slots[slot].size)
        taken = state.new(state.slots[slot].dtype, given.size)
        state.grow(taken, state.bound(given))
        call = Call(number, "isend", group, (given,), peer=destination, tag=tag)
        parts.setdefault(source, []).append(call)
        call = Call(number, "irecv", group, (), (taken,), peer=source, tag=tag)
        parts.setdefault(destination, []).append(call)
    event: Event = {}
    for rank in sorted(parts):
        rng.shuffle(parts[rank])
        call = Call(number, "batch_isend_irecv", group, parts=tuple(parts[rank]), handle=True)
        event[rank] = call
    state.add(event)


def _pair(state: State, members: Sequence[int]) -> tuple[int, int]:
    source, destination = state.rng.sample(members, 2)
    return source, destination


_Maker = Callable[[State], None]

_MENU: dict[_Maker, int] = {
    _collective("all_reduce", _all_reduce): 5,
    _collective("broadcast", _broadcast): 3,
    _collective("reduce", _reduce): 3,
    _collective("all_gather", _gather): 2,
    _collective("all_gather_into_tensor", _gather_whole): 2,
    _collective("gather", _gather): 2,
    _collective("scatter", _scatter): 2,
    _collective("reduce_scatter", _reduce_scatter): 2,
    _collective("reduce_scatter_tensor", _reduce_scatter_whole): 2,
    _all_to_all: 5,
    _coalesced: 2,
    _barrier: 2,
    _objects: 2,
    _message: 8,
    _batch: 4,
    _local: 7,
    _delay: 4,
    _read: 3,
}
"""What a program is made of, and how often."""
