"""Programs with exactly one mistake, and what the report of each must say.

Each kind of mistake is a function that looks at one place of a correct program and returns None if
it does not fit there. It fits only where what must follow is known: not, for example, where a call
that is left out is followed by an identical one, which the other ranks would take for it.
"""

import random
from collections.abc import Callable
from dataclasses import replace

from programs_places import ONE_TENSOR, Mark, Mutant, Place
from programs_steps import (
    COMPLEX,
    FLOATS,
    INEXACT,
    INTEGERS,
    OBJECTS,
    Call,
    Program,
    Ref,
    Stop,
    Wait,
    independent,
)

_CYCLES = frozenset({"C10", "P4"})
"""What is said of ranks that wait for each other after one of them has gone another way."""


def random_mutant(program: Program, rng: random.Random, kind: "Kind") -> Mutant | None:
    """Returns a program with one mistake of a kind; None if there is no place for it."""
    places = [
        Place(program, rank, index)
        for rank, steps in enumerate(program.steps)
        for index in range(len(steps))
    ]
    return next(filter(None, (kind(p, rng) for p in rng.sample(places, len(places)))), None)


def _missing(call: Call) -> frozenset[str]:
    """Returns as codes what is said of those who wait for a call that never comes."""
    parts = call.parts if call.is_message and call.parts else (call,)
    if not call.is_message:
        return frozenset({"C1"})
    # The other side of a send receives, which may also be told of a message with another tag.
    return frozenset(code for p in parts for code in (("P1", "P3") if p.given else ("P2", "P3")))


def _mismatch(place: Place, what: str, call: Call, code: str) -> Mutant:
    """Returns a call that the others of its group, or the other side, must find wrong."""
    assert isinstance(place.step, Call)
    ranks = frozenset(rank for rank, _ in place.parts({place.step.event}))
    return Mutant(what, place.rank, place.with_step(call), frozenset({code}), place.here, ranks)


def _alone(place: Place, what: str, call: Call, code: str) -> Mutant:
    """Returns a call that is wrong whatever the others do."""
    return replace(_mismatch(place, what, call, code), failed=frozenset({place.rank}))


# Collectives


def _other_op(place: Place, rng: random.Random) -> Mutant | None:
    call = place.collective()
    if call is None or not call.op:
        return None
    dtype = place.dtype(call)
    ops = ["SUM"] if dtype in COMPLEX else ["SUM", "MIN", "MAX", "PRODUCT"]
    ops += ["AVG", "PREMUL_SUM(0.5)"] if dtype in INEXACT else ["BAND", "BXOR"]
    op = rng.choice([op for op in ops if op != call.op])
    return _mismatch(place, "another reduce operation", replace(call, op=op), "C5")


def _other_root(place: Place, rng: random.Random) -> Mutant | None:
    call = place.collective()
    if call is None or call.root is None or call.name in OBJECTS:
        return None
    roots = [rank for rank in place.members(call.group) if rank != call.root]
    if call.name not in ONE_TENSOR:
        # Who gives or gets a list would notice without the others.
        roots = [rank for rank in roots if place.rank not in {rank, call.root}]
    if not roots or not _may_swell(place, call):
        return None
    call = replace(_both_ways(call), root=rng.choice(roots))
    return _mismatch(place, "another root", call, "C7")


def _root_outside(place: Place, rng: random.Random) -> Mutant | None:
    call = place.step
    if not isinstance(call, Call) or call.name not in {"broadcast", "reduce"}:
        return None
    members = place.members(call.group)
    outside = [rank for rank in range(place.program.ranks + 2) if rank not in members]
    call = replace(_both_ways(call), root=rng.choice(outside))
    return _alone(place, "a root outside of the group", call, "C7")


def _other_shape(place: Place, rng: random.Random) -> Mutant | None:
    call = place.collective()
    if call is None or call.name not in ONE_TENSOR:
        return None
    (ref, *_) = call.given or call.taken
    if ref.width != 1 and (not ref.size or rng.random() < 0.4):
        changed = Ref(ref.slot, ref.start, ref.stop, 1)
    elif ref.width:
        changed = Ref(ref.slot, ref.start, ref.stop)
    else:
        changed = Ref(ref.slot, ref.start, ref.stop - 1)
    given, taken = (changed,) if call.given else (), (changed,) if call.taken else ()
    return _mismatch(place, "another shape", replace(call, given=given, taken=taken), "C3")


def _other_dtype(place: Place, rng: random.Random) -> Mutant | None:
    call = place.collective()
    if call is None or call.name == "coalesced" or not call.reads() or not _holds_values(place):
        return None
    return _mismatch(place, "another dtype", _cast(place, call, rng), "C4")


def _other_splits(place: Place, rng: random.Random) -> Mutant | None:
    call = place.collective()
    if call is None or call.sends is None or call.receives is None:
        return None
    sends, receives = list(call.sends), list(call.receives)
    here = place.members(call.group).index(place.rank)
    one, *more = rng.sample([i for i in range(len(sends)) if i != here], len(sends) - 1)
    if not sends[one]:
        return None
    sends[one] -= 1
    if more and rng.random() < 0.5:
        sends[more[0]] += 1
    elif receives[one]:
        # What it keeps for itself grows, at the cost of what goes to and comes from the other.
        receives[one] -= 1
        sends[here] += 1
        receives[here] += 1
    else:
        return None
    call = replace(call, sends=tuple(sends), receives=tuple(receives))
    return _mismatch(place, "other split sizes", call, "C11")


def _other_function(place: Place, rng: random.Random) -> Mutant | None:
    call = place.collective()
    if call is None or call.name == "barrier":
        return None
    if call.name not in ONE_TENSOR or not _may_swell(place, call) or rng.random() < 0.2:
        call = Call(call.event, "barrier", call.group, handle=call.handle)
        return _mismatch(place, "another collective", call, "C2")
    name = rng.choice([name for name in ONE_TENSOR if name != call.name])
    root = None if name == "all_reduce" else rng.choice(place.members(call.group))
    op = "" if name == "broadcast" else "SUM"
    call = replace(_both_ways(call), name=name, root=root, op=op)
    return _mismatch(place, "another collective", call, "C2")


def _other_group(place: Place, rng: random.Random) -> Mutant | None:
    call = place.collective()
    if call is None or call.name not in {"all_reduce", "barrier"}:
        return None
    groups = [
        index
        for index, ranks in enumerate(place.program.groups)
        # A call on a group of others only warns.
        if index != call.group and len(ranks) > 1 and place.rank in ranks
    ]
    if not groups:
        return None
    other = replace(call, group=rng.choice(groups))
    codes = {"C1", *_CYCLES}
    # The others may meet it in the other group, or miss it in its own.
    for mine in (other, call):
        following = place.following(mine.group)
        if following is not None:
            found = place.differing(mine, following)
            if not found:
                return None
            codes |= found
    marks = place.parts({call.event})
    program = place.with_step(other)
    # It is missing in one group, not expected in the other, and awaited in what comes behind.
    return Mutant(
        "another group", place.rank, program, frozenset(codes), marks, guilty=False, reports=3
    )


def _both_ways(call: Call) -> Call:
    """Returns a collective of one tensor that may both read and write it."""
    if call.name not in ONE_TENSOR:
        return call
    return replace(call, given=call.given or call.taken, taken=call.taken or call.given)


def _may_swell(place: Place, call: Call) -> bool:
    """Returns whether a call may become one that does both, without a second mistake."""
    both = _both_ways(call)
    return both == call or place.is_free(both)


def _holds_values(place: Place) -> bool:
    """Returns whether there is something in the tensors that the step would write."""
    assert isinstance(place.step, Call)
    return all(place.program.slots[ref.slot].values is not None for ref in place.step.writes())


_LIKE = (INTEGERS, FLOATS, ("complex64", "complex128"), ("bool", "uint8"))
"""Types that tensors of which may be converted to each other without a further mistake."""


def _cast(place: Place, call: Call, rng: random.Random) -> Call:
    dtype = place.dtype(call)
    dtypes = next(kinds for kinds in _LIKE if dtype in kinds)
    return replace(call, cast=rng.choice([other for other in dtypes if other != dtype]))


# Messages


def _other_tag(place: Place, rng: random.Random) -> Mutant | None:
    call = place.message()
    # With another message on the same way, it would be open which of both has the wrong tag.
    if call is None or not place.is_clear(call, tags=False):
        return None
    mutant = _mismatch(place, "another tag", replace(call, tag=call.tag + 5000), "P3")
    return replace(mutant, failed=None)


def _other_peer(place: Place, rng: random.Random) -> Mutant | None:
    call = place.message()
    if call is None or call.peer is None:
        return None
    if rng.random() < 0.2:
        return _alone(place, "a message to itself", replace(call, peer=place.rank), "P6")
    if rng.random() < 0.2:
        nobody = place.program.ranks + 3
        return _alone(place, "a message to nobody", replace(call, peer=nobody), "P9")
    members = place.members(call.group)
    peers = [rank for rank in members if rank not in {place.rank, call.peer}]
    if not peers:
        return None
    other = replace(call, peer=rng.choice(peers))
    if not place.is_clear(call) or not place.is_clear(other):
        return None
    marks, program = place.parts({call.event}), place.with_step(other)
    codes = frozenset({"P1", "P2", "P4"})
    return Mutant("another peer", place.rank, program, codes, marks, guilty=False)


def _other_message(place: Place, rng: random.Random) -> Mutant | None:
    """Sends or receives another type, or fewer elements."""
    call = place.message()
    if call is None:
        return None
    (ref,) = call.given or call.taken
    if ref.size and not ref.width and rng.random() < 0.5:
        less = (replace(ref, stop=ref.stop - 1),)
        other = replace(call, given=less if call.given else (), taken=less if call.taken else ())
    elif _holds_values(place):
        other = _cast(place, call, rng)
    else:
        return None
    return _mismatch(place, "another size or type of a message", other, "P7")


# Steps that are missing or in the wrong order


def _left_out(place: Place, rng: random.Random) -> Mutant | None:
    call = place.step
    if not isinstance(call, Call):
        return None
    codes = set(_CYCLES | _missing(call))
    also: frozenset[Mark] = frozenset()
    if call.is_message:
        if not all(place.is_clear(part) for part in call.parts or (call,)):
            return None
    elif place.collective() is None:
        return None
    elif (following := place.following(call.group)) is not None:
        found = place.differing(call, following)
        if not found:
            return None
        # Those of its group tell the next call from this one, unless all wait before that.
        codes = set(found) | _CYCLES
    if place.is_missed():
        codes.add("M5")
    others = [
        step
        for step in place.steps
        if step is not call and not (isinstance(step, Wait) and step.event == call.event)
    ]
    waiting = frozenset(mark for mark in place.parts({call.event}) if mark[0] != place.rank)
    # Where the rank goes on without.
    marks = frozenset((place.rank, index) for index in range(place.index, len(others) + 1))
    if place.is_missed():
        marks |= waiting
    else:
        marks, also = waiting, marks if codes.isdisjoint({"C1", "P1", "P2", "P3"}) else also
    return Mutant(
        "a call left out",
        place.rank,
        place.with_steps(tuple(others)),
        frozenset(codes),
        marks,
        guilty=False,
        also=also,
    )


def _swapped(place: Place, rng: random.Random) -> Mutant | None:
    first = place.collective()
    second = (
        Place(place.program, place.rank, place.index + 1).collective() if place.behind else None
    )
    if first is None or second is None or not independent(first, second):
        return None
    if first.notes and second.notes:
        return None  # what they return would be noted in another order
    ranks: frozenset[int] | None = None
    if first.group == second.group:
        codes = place.differing(first, second)
        ranks = frozenset(place.members(first.group))
        harmless = first.name == second.name == "barrier"
        if not codes and not harmless:
            return None
    else:
        # Whether ranks wait for each other depends on who waits for what in each of both.
        codes, harmless = frozenset({"C10"}), True
    steps = (*place.before, second, first, *place.behind[1:])
    return Mutant(
        "two collectives swapped",
        place.rank,
        place.with_steps(steps),
        codes,
        place.parts({first.event, second.event}),
        ranks,
        guilty=first.group == second.group,
        harmless=harmless,
    )


def _wait_left_out(place: Place, rng: random.Random) -> Mutant | None:
    wait = place.step
    if not isinstance(wait, Wait):
        return None
    (issued,) = (i for rank, i in place.parts({wait.event}) if rank == place.rank)
    return Mutant(
        "a wait left out",
        place.rank,
        place.with_steps((*place.before, *place.behind)),
        place.collision(issued),
        frozenset({(place.rank, issued)}),
        frozenset({place.rank}),
        harmless=place.is_covered(issued),
    )


# Ranks that end

_PLANTED = {
    'raise ValueError("planted")': "ValueError: planted",
    'raise KeyError("planted")': "KeyError: 'planted'",
    "sys.exit(3)": "SystemExit: 3",
    'sys.exit("planted")': "SystemExit: planted",
}


def _stopped(place: Place, rng: random.Random) -> Mutant | None:
    statement, text = rng.choice(list(_PLANTED.items()))
    program = place.with_steps((*place.before, Stop(statement), place.step, *place.behind))
    only, none = frozenset({place.rank}), frozenset[str]()
    return Mutant(statement, place.rank, program, none, place.here, only, planted=text)


def _returned(place: Place, rng: random.Random) -> Mutant | None:
    statement = rng.choice(("return", "sys.exit(0)", "sys.exit()"))
    what = f"{statement} too early"
    program = place.with_steps((*place.before, Stop(statement), place.step, *place.behind))
    pending = frozenset(
        (place.rank, index)
        for index, step in enumerate(place.before)
        if isinstance(step, Call) and step.handle
        if not place.is_waited_for(index, place.before[index + 1 :])
    )
    if pending:
        only = frozenset({place.rank})
        return Mutant(what, place.rank, program, frozenset({"C13"}), pending, only)
    missed = [
        step
        for step in (place.step, *place.behind)
        if isinstance(step, Call) and (step.is_message or len(place.members(step.group)) > 1)
    ]
    codes = {code for step in missed for code in (("P1", "P2") if step.is_message else ("C1",))}
    marks = {mark for mark in place.parts({step.event for step in missed}) if mark[0] != place.rank}
    return Mutant(
        what,
        place.rank,
        program,
        frozenset(codes),
        frozenset(marks),
        frozenset(rank for rank, _ in marks),
        guilty=False,
        harmless=not missed,
        also=place.here if statement != "return" else frozenset(),
    )


Kind = Callable[[Place, random.Random], Mutant | None]

KINDS: tuple[Kind, ...] = (
    _other_op,
    _other_root,
    _root_outside,
    _other_shape,
    _other_dtype,
    _other_splits,
    _other_function,
    _other_group,
    _other_tag,
    _other_peer,
    _other_message,
    _left_out,
    _swapped,
    _wait_left_out,
    _stopped,
    _returned,
)
"""All kinds of mistakes."""
