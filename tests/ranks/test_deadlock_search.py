"""Every small program hangs here exactly if an independent model says that it hangs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.ranks.schedules import Schedule
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.engines import spec_of
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import Topology

RANKS = 3
GROUPS = ((0, 1, 2), (0, 1), (1, 2), (0, 2))


@dataclass(frozen=True)
class Meet:
    """A collective of one of the groups; each step is done when all members are at it."""

    group: int


@dataclass(frozen=True)
class Send:
    to: int


@dataclass(frozen=True)
class Recv:
    source: int | None


Step = Meet | Send | Recv
Plan = tuple[tuple[Step, ...], ...]


def ends(plan: Plan) -> set[bool]:
    """Returns how a program may end over all interleavings: complete (True), stuck (False)."""
    seen: set[tuple[int, ...]] = set()
    found: set[bool] = set()
    stack = [(0,) * RANKS]
    while stack:
        at = stack.pop()
        if at in seen:
            continue
        seen.add(at)
        following = list(_moves(plan, at))
        stack += following
        if not following:
            found.add(all(place == len(steps) for place, steps in zip(at, plan, strict=True)))
    return found


def _moves(plan: Plan, at: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    now = [
        steps[place] if place < len(steps) else None for place, steps in zip(at, plan, strict=True)
    ]

    def after(*ranks: int) -> tuple[int, ...]:
        return tuple(place + (rank in ranks) for rank, place in enumerate(at))

    for number, members in enumerate(GROUPS):
        if all(now[rank] == Meet(number) for rank in members):
            yield after(*members)
    for rank, step in enumerate(now):
        if isinstance(step, Send) and now[step.to] in {Recv(rank), Recv(None)}:
            yield after(rank, step.to)


@st.composite
def plans(draw: st.DrawFn, *, anybody: bool = False) -> Plan:
    """Makes programs of up to five things that ranks do, some with one side left out or moved."""
    programs: list[list[Step]] = [[] for _ in range(RANKS)]
    for _ in range(draw(st.integers(1, 5))):
        if draw(st.booleans()):
            group = draw(st.integers(0, len(GROUPS) - 1))
            sides: list[tuple[int, Step]] = [(rank, Meet(group)) for rank in GROUPS[group]]
        else:
            source, to = draw(st.permutations(range(RANKS)))[:2]
            known = None if anybody and draw(st.booleans()) else source
            sides = [(source, Send(to)), (to, Recv(known))]
        if draw(st.integers(0, 9)) == 0:
            sides.pop()
        for rank, step in sides:
            place = len(programs[rank]) - draw(st.integers(0, min(1, len(programs[rank]))))
            programs[rank].insert(place, step)
    return tuple(tuple(steps) for steps in programs)


@pytest.fixture(scope="module")
def run(topology: Callable[[str], Topology]) -> Callable[[Plan, bool], bool]:
    """Runs a program on one context, again and again; returns whether it was complete."""
    ctx = RuntimeContext(engine=GraphEngine(topology("sip8"), enable_data=False))

    def run(plan: Plan, blocking: bool) -> bool:
        return _completes(ctx, plan, blocking)

    return cache(run)


def _completes(ctx: RuntimeContext, plan: Plan, blocking: bool) -> bool:
    """Runs a program; returns whether it was complete, else it is told that it hangs."""
    failed: SpawnException | None
    try:
        ctx.multiprocessing.spawn(_worker, args=(plan, blocking), nprocs=RANKS)
    except SpawnException as caught:
        failed = caught
    else:
        failed = None
    assert ctx.engine.loop.idle
    if failed is None:
        return True
    codes = {getattr(error, "code", repr(error)) for error in failed.errors.values()}
    assert codes <= {"C1", "C10", "P1", "P2", "P4"}, failed
    return False


def _worker(rank: int, plan: Plan, blocking: bool) -> None:
    dist.init_process_group("nccl")
    groups = [dist.new_group(list(members)) for members in GROUPS]
    x = torch.zeros(2, device="cuda")
    for step in plan[rank]:
        if isinstance(step, Meet):
            dist.all_reduce(x, group=groups[step.group])
        elif isinstance(step, Send):
            dist.send(x, step.to)
        else:
            dist.recv(x, step.source)
        if blocking:
            torch.cuda.synchronize()
    dist.destroy_process_group()


@settings(max_examples=examples(300))
@given(plan=plans(), blocking=st.booleans())
def test_a_program_hangs_exactly_if_the_model_does(
    run: Callable[[Plan, bool], bool], plan: Plan, blocking: bool
) -> None:
    (complete,) = ends(plan)
    assert run(plan, blocking) is complete


@settings(max_examples=examples(150))
@given(plan=plans(anybody=True), blocking=st.booleans())
def test_a_program_with_receives_from_anybody_ends_as_some_interleaving_does(
    run: Callable[[Plan, bool], bool], plan: Plan, blocking: bool
) -> None:
    assert run(plan, blocking) in ends(plan)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (((Send(1),), (Recv(0),), ()), {True}),
        (((Send(1), Recv(1)), (Send(0), Recv(0)), ()), {False}),
        (((Meet(1), Meet(3)), (Meet(2), Meet(1)), (Meet(3), Meet(2))), {False}),
        (((Recv(None), Recv(1)), (Send(0),), (Send(0),)), {True, False}),
    ],
)
def test_the_model_itself(plan: Sequence[tuple[Step, ...]], expected: set[bool]) -> None:
    assert ends(tuple(plan)) == expected


@settings(max_examples=examples(150))
@given(plan=plans(anybody=True))
def test_schedules_come_to_every_end_that_the_model_knows(
    topology: Callable[[str], Topology], plan: Plan
) -> None:
    """Receives from any source that take every candidate are as good as all interleavings."""
    found: set[bool] = set()
    picks: tuple[int, ...] | None = (1,)
    while picks is not None:
        schedule = Schedule(picks)
        engine = GraphEngine(topology("sip8"), enable_data=False)
        spec = replace(spec_of(engine), schedule=picks)
        ctx = RuntimeContext(spec, engine=engine, schedule=schedule)
        found.add(_completes(ctx, plan, blocking=True))
        picks = schedule.following()
    assert found == ends(plan)
