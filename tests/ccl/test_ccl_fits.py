"""Whether plans fit at once, against ranks that are followed through queues."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernbench.ccl.deliveries import follow
from kernbench.ccl.fitting import fits
from kernbench.ccl.layout import Cuts
from kernbench.ccl.plan import NOTHING, Plan

Step = tuple[int, int, int]
"""Whom a rank sends to, whom it hears, and how many chunks; -1 is nobody."""

IDLE: Step = -1, -1, 1


def plan_of(steps: list[list[Step]]) -> Plan:
    """Returns a plan of what each rank does, step by step."""
    length, ranks = max(map(len, steps)), len(steps)
    table = np.full((length, ranks, 3), IDLE)
    for rank, own in enumerate(steps):
        for step, each in enumerate(own):
            table[step, rank] = each
    to, source, span = (table[:, :, column] for column in range(3))
    send, receive = np.where(to < 0, NOTHING, 0), np.where(source < 0, NOTHING, 0)
    reduce = np.zeros(to.shape, np.bool_)
    return Plan(Cuts(1), send, np.maximum(to, 0), receive, np.maximum(source, 0), reduce, span)


def followed(plan: Plan) -> bool:
    """Returns whether every rank ends, and nothing is left or of another size."""
    steps = [plan.of(rank) for rank in range(plan.world_size)]
    alike = []

    def receive(rank: int, number: int, span: int) -> None:
        alike.append(steps[rank][number].span == span)

    done, left = follow(steps, lambda rank, number: steps[rank][number].span, receive)
    return done == [len(own) for own in steps] and not any(left.values()) and all(alike)


@st.composite
def drawn(draw: st.DrawFn) -> Plan:
    """Draws messages in an order in which all of them can go, and then spoils some plans."""
    ranks = draw(st.integers(1, 4))
    place, few = st.integers(0, ranks - 1), st.integers(0, 2)
    steps: list[list[Step]] = [[] for _ in range(ranks)]
    for sender, receiver, span in draw(st.lists(st.tuples(place, place, st.just(1)), max_size=12)):
        steps[draw(place)] += [IDLE] * draw(few)
        if sender == receiver:
            steps[sender].append((receiver, sender, span))
            continue
        steps[sender].append((receiver, -1, span))
        to, source, _ = (steps[receiver] or [IDLE])[-1]
        if steps[receiver] and source < 0 and draw(st.booleans()):
            steps[receiver][-1] = to, sender, span  # it sends and receives in one step
        else:
            steps[receiver].append((-1, sender, span))
    for own in draw(st.lists(st.sampled_from(steps), max_size=2)):
        if own:
            one, two = (draw(st.integers(0, len(own) - 1)) for _ in range(2))
            own[one], own[two] = own[two], own[one]
            to, source, span = own[one]
            own[one] = to, source, span + draw(st.integers(0, 1))
            del own[one : one + draw(st.integers(0, 1))]
    return plan_of(steps)


@given(drawn())
def test_plans_fit_if_ranks_get_all_that_is_sent(plan: Plan) -> None:
    assert fits(plan) == followed(plan)


def test_ranks_that_wait_for_each_other_do_not_fit() -> None:
    assert not fits(plan_of([[(-1, 1, 1), (1, -1, 1)], [(-1, 0, 1), (0, -1, 1)]]))
    assert fits(plan_of([[(1, 1, 1)], [(-1, 0, 1), (0, -1, 1)]]))
    assert not fits(plan_of([[(1, -1, 1)], [(-1, 0, 2)]])), "of another size"
