"""Plans of all schedules, as lists: what they hold, and a pipeline of numbers that goes through."""

import itertools
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.errors import OptionError
from kernbench.pp import plans
from kernbench.pp.bubble import ideal_bubble_fraction
from kernbench.pp.plans import (
    Action,
    Backward,
    Exchange,
    Forward,
    Message,
    Pass,
    Schedule,
    Size,
    plan,
)

SCHEDULES: dict[str, Schedule] = {
    "forward_only": plans.forward_only,
    "gpipe": plans.gpipe,
    "1f1b": plans.one_forward_one_backward,
    "interleaved": plans.interleaved,
}


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[str, Size]:
    name = draw(st.sampled_from(sorted(SCHEDULES)))
    stages = draw(st.integers(1, 6))
    several = name != "1f1b" and stages > 1
    chunks = draw(st.integers(1, 3)) if several else 1
    microbatches = draw(st.integers(1, 4)) * stages if chunks > 1 else draw(st.integers(1, 12))
    return name, Size(stages, chunks, microbatches)


def plans_of(name: str, size: Size) -> list[tuple[Action, ...]]:
    return [plan(SCHEDULES[name], stage, size) for stage in range(size.stages)]


def passes(actions: tuple[Action, ...]) -> list[Pass]:
    return [each for each in actions if not isinstance(each, Exchange)]


def written(actions: tuple[Action, ...]) -> str:
    """Returns the passes as text: F and B, the chunk as a letter, the microbatch."""
    return " ".join(
        f"{'F' if isinstance(each, Forward) else 'B'}{'ab'[each.chunk]}{each.microbatch}"
        for each in passes(actions)
    )


@given(pipelines())
def test_every_microbatch_goes_forward_once_and_back_once_after_it(case: tuple[str, Size]) -> None:
    name, size = case
    for actions in plans_of(name, size):
        done = passes(actions)
        every = set(itertools.product(range(size.chunks), range(size.microbatches)))
        kinds: tuple[type[Pass], ...] = (Forward, Backward)
        for kind in kinds[: 1 if name == "forward_only" else 2]:
            mine = [(each.chunk, each.microbatch) for each in done if isinstance(each, kind)]
            assert len(mine) == len(every)
            assert set(mine) == every
            for chunk in range(size.chunks):
                assert [m for c, m in mine if c == chunk] == [*range(size.microbatches)]
        for each in done:
            if isinstance(each, Backward):
                assert done.index(Forward(each.chunk, each.microbatch)) < done.index(each)


@given(pipelines())
def test_sends_match_receives_in_order_between_neighbours(case: tuple[str, Size]) -> None:
    name, size = case
    sent: dict[tuple[int, int], list[Message]] = defaultdict(list)
    received: dict[tuple[int, int], list[Message]] = defaultdict(list)
    for stage, actions in enumerate(plans_of(name, size)):
        for action in actions:
            for each in action.messages if isinstance(action, Exchange) else ():
                assert stage in {each.sender, each.receiver}
                way = sent if each.sender == stage else received
                way[each.sender, each.receiver].append(each)
    assert sent == received
    pieces = size.stages * size.chunks
    ways = 1 if name == "forward_only" else 2
    assert sum(map(len, sent.values())) == ways * (pieces - 1) * size.microbatches


@given(pipelines())
def test_a_message_is_sent_after_its_pass_and_received_before(case: tuple[str, Size]) -> None:
    name, size = case
    for stage, actions in enumerate(plans_of(name, size)):
        for place, action in enumerate(actions):
            for each in action.messages if isinstance(action, Exchange) else ():
                if each.sender == stage:
                    assert each.made_by in actions[:place]
                else:
                    assert each.taken_by in actions[place:]


def finished(case: list[tuple[Action, ...]], forward: int, backward: int) -> int:
    """Returns when stages are done that wait in every batch until all its messages are through.

    A message takes no time, and is through when both sides have come to it. Stages that wait in a
    circle fail.
    """
    clocks, places = [0] * len(case), [0] * len(case)
    came: dict[tuple[int, Message], int] = {}
    while any(place < len(actions) for place, actions in zip(places, case, strict=True)):
        before = [*places], len(came)
        for stage, actions in enumerate(case):
            while places[stage] < len(actions):
                action = actions[places[stage]]
                if isinstance(action, Exchange):
                    for each in action.messages:
                        came.setdefault((stage, each), clocks[stage])
                    sides = [(side, each) for each in action.messages for side in each[0:3:2]]
                    if not all(side in came for side in sides):
                        break
                    clocks[stage] = max(came[side] for side in sides)
                else:
                    clocks[stage] += forward if isinstance(action, Forward) else backward
                places[stage] += 1
        assert (places, len(came)) != before, "stages wait in a circle"
    return max(clocks)


@given(pipelines(), st.integers(1, 3), st.integers(1, 3))
def test_equal_stages_take_the_ideal_time_and_nobody_waits_in_a_circle(
    case: tuple[str, Size], forward: int, backward: int
) -> None:
    name, size = case
    each = forward if name == "forward_only" else forward + backward
    slots = size.chunks * size.microbatches + size.stages - 1
    assert finished(plans_of(name, size), forward, backward) == slots * each
    busy = size.chunks * size.microbatches / slots
    ideal = ideal_bubble_fraction(size.stages, size.microbatches, size.chunks)
    assert ideal == pytest.approx(1 - busy)


@given(pipelines())
def test_as_many_activations_are_held_as_the_schedule_promises(case: tuple[str, Size]) -> None:
    name, size = case
    if name == "forward_only":
        return
    stages, chunks, microbatches = size
    for stage, actions in enumerate(plans_of(name, size)):
        steps = [1 if isinstance(each, Forward) else -1 for each in passes(actions)]
        most = max(itertools.accumulate(steps))
        total = chunks * microbatches
        promised = {
            "gpipe": total,
            "1f1b": min(stages - stage, total),
            "interleaved": min(2 * (stages - stage - 1) + (chunks - 1) * stages + 1, total),
        }
        assert most == promised[name]


def test_the_orders_of_the_papers_figures() -> None:
    """Narayanan et al., figures 3 and 4, on fewer stages; the letter is the chunk."""
    one = [written(each) for each in plans_of("1f1b", Size(3, 1, 4))]
    assert one == [
        "Fa0 Fa1 Fa2 Ba0 Fa3 Ba1 Ba2 Ba3",
        "Fa0 Fa1 Ba0 Fa2 Ba1 Fa3 Ba2 Ba3",
        "Fa0 Ba0 Fa1 Ba1 Fa2 Ba2 Fa3 Ba3",
    ]
    assert [written(each) for each in plans_of("interleaved", Size(2, 2, 4))] == [
        "Fa0 Fa1 Fb0 Fb1 Fa2 Bb0 Fa3 Bb1 Fb2 Ba0 Fb3 Ba1 Bb2 Bb3 Ba2 Ba3",
        "Fa0 Fa1 Fb0 Bb0 Fb1 Bb1 Fa2 Ba0 Fa3 Ba1 Fb2 Bb2 Fb3 Bb3 Ba2 Ba3",
    ]
    assert [written(each) for each in plans_of("gpipe", Size(2, 1, 3))] == [
        "Fa0 Fa1 Fa2 Ba0 Ba1 Ba2",
        "Fa0 Fa1 Fa2 Ba0 Ba1 Ba2",
    ]


def test_one_stage_sends_nothing() -> None:
    assert written(plan(plans.one_forward_one_backward, 0, Size(1, 1, 3))) == (
        "Fa0 Ba0 Fa1 Ba1 Fa2 Ba2"
    )
    for schedule in SCHEDULES.values():
        actions = plan(schedule, 0, Size(1, 1, 3))
        assert not any(isinstance(each, Exchange) for each in actions)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (Size(4, 2, 6), r"\(6\) is not divisible by pipeline-model-parallel-size \(4\)"),
        (Size(1, 2, 4), "2 model chunks on 1 pipeline stage"),
        (Size(2, 1, 0), "num_microbatches=0"),
        (Size(2, 1, True), "num_microbatches=True"),
        (Size(0, 1, 1), "pipeline_model_parallel_size=0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_number_and_rule(size: Size, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        plans.check_size(size)
    with pytest.raises(ValueError, match=words):
        ideal_bubble_fraction(size.stages, size.microbatches, size.chunks)


def test_the_formula_of_the_bubble() -> None:
    assert ideal_bubble_fraction(4, 8) == 3 / 11
    assert ideal_bubble_fraction(4, 8, chunks=2) == 3 / 19
    assert ideal_bubble_fraction(1, 8) == 0
