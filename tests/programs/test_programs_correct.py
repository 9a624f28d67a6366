"""Random correct programs compute what numpy computes, with equal bits where that is promised."""

import random
from collections import Counter

import pytest
from examples import examples, slow_or_at_length
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st
from programs_random import random_program
from programs_source import source_of
from programs_steps import DTYPES, Call, Program
from programs_sweep import MACHINES, late, mistakes

from kernbench.testing import Kernbench

PROGRAMS = 2000
CHUNK = 150
CHUNKS = [
    pytest.param(first, marks=slow_or_at_length(first)) for first in range(0, PROGRAMS, CHUNK)
]

TIMED_CHUNK = 10
TIMED = [
    pytest.param(first, marks=slow_or_at_length(10 * first)) for first in range(0, 400, TIMED_CHUNK)
]

CHOICES = st.randoms(use_true_random=False)
"""Choices that hypothesis makes, so that it can look for fewer and smaller ones."""

OPERATIONS = (
    "all_reduce(",
    "broadcast(",
    "reduce(",
    "all_gather(",
    "all_gather_into_tensor(",
    "gather(",
    "scatter(",
    "reduce_scatter(",
    "reduce_scatter_tensor(",
    "all_to_all(",
    "all_to_all_single(",
    "barrier(",
    "send(",
    "recv(",
    "isend(",
    "irecv(",
    "batch_isend_irecv(",
    "all_gather_object(",
    "broadcast_object_list(",
    "gather_object(",
    "scatter_object_list(",
    "_coalescing_manager(",
    "new_group(",
    "split_group(",
    "init_device_mesh(",
    "group_scope(",
    "ReduceOp.SUM",
    "ReduceOp.AVG",
    "ReduceOp.PRODUCT",
    "ReduceOp.MIN",
    "ReduceOp.MAX",
    "ReduceOp.BAND",
    "ReduceOp.BOR",
    "ReduceOp.BXOR",
    "ReduceOp.PREMUL_SUM(",
    "async_op=True",
    "async_ops=True",
)


@pytest.mark.parametrize("first", CHUNKS)
def test_random_programs_are_right(kernbench: Kernbench, first: int) -> None:
    machines = {name: kernbench.context(name) for name in MACHINES}
    for seed in range(first, first + examples(CHUNK)):
        program = random_program(seed)
        if wrong := mistakes(machines, program, source_of(program)):
            pytest.fail(f"seed {seed}:\n{wrong}", pytrace=False)


def test_programs_that_move_their_tensors_to_the_device_are_right(kernbench: Kernbench) -> None:
    """As PyTorch programs do: tensors are made on the host, receive buffers before any write."""
    machines = {
        name: kernbench.context(name, default_device="cpu") for name in ("sip8", "torus4x4")
    }
    for seed in range(20):
        program = random_program(seed)
        source = source_of(program)
        moved = source._replace(text=source.text.replace(', device="cuda")', ").cuda()"))
        assert moved.text.count(").cuda()") > 0
        assert 'device="cuda"' not in moved.text
        if wrong := mistakes(machines, program, moved):
            pytest.fail(f"seed {seed}:\n{wrong}", pytrace=False)


@pytest.mark.parametrize("seed", [2003334, 2007472])
def test_collectives_in_line_that_meet_company_later(kernbench: Kernbench, seed: int) -> None:
    """The first is alone on its links, the next in line is not, and then company comes."""
    machines = {name: kernbench.context(name) for name in MACHINES}
    program = random_program(seed)
    assert not mistakes(machines, program, source_of(program))


@pytest.mark.parametrize("first", TIMED)
def test_random_programs_take_the_same_time_by_plan_and_live(
    kernbench: Kernbench, first: int
) -> None:
    for seed in range(first, first + TIMED_CHUNK):
        program = random_program(seed)
        if wrong := late(kernbench, program, source_of(program)):
            pytest.fail(f"seed {seed}:\n{wrong}", pytrace=False)


def test_two_streams_of_a_rank_begin_at_one_instant(kernbench: Kernbench) -> None:
    """Their first messages ask for one link at one time: the collective issued first has it."""
    program = random_program(4000066)
    assert not late(kernbench, program, source_of(program))


def test_every_program_is_python() -> None:
    nothing = Program(2, ((0, 1),), (), True, (), (), ((), ()))
    # In the last two a rank does nothing inside of a `group_scope`.
    programs = [nothing, *map(random_program, (*range(200), 15768, 50575))]
    for program in programs:
        compile(source_of(program).text, "program.py", "exec")


@pytest.mark.at_length
def test_every_one_of_many_programs_is_python() -> None:
    for seed in range(PROGRAMS, 10 * PROGRAMS):
        compile(source_of(random_program(seed)).text, "program.py", "exec")


@pytest.mark.parametrize("examples", [20, pytest.param(200, marks=pytest.mark.at_length)])
def test_programs_that_shrink_are_right(kernbench: Kernbench, examples: int) -> None:
    """The same with choices of hypothesis: slower, but a failure comes as a short program."""
    machines = {name: kernbench.context(name) for name in MACHINES}

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(choices=CHOICES)
    def check(choices: random.Random) -> None:
        program = random_program(choices)
        wrong = mistakes(machines, program, source_of(program))
        assert not wrong, wrong

    check()


@pytest.mark.slow
def test_a_failure_shrinks_to_a_short_program() -> None:
    """As if every all-reduce of several ranks were wrong."""

    def fails(program: Program) -> bool:
        return any(
            isinstance(step, Call) and step.name == "all_reduce" and len(event) > 1
            for event in program.events
            for step in event.values()
        )

    program = find(
        st.builds(random_program, CHOICES), fails, settings=settings(max_examples=examples(50))
    )
    assert program.ranks == 2
    assert sum(isinstance(s, Call) for event in program.events for s in event.values()) <= 8


def test_programs_use_everything() -> None:
    found: Counter[str] = Counter()
    for seed in range(150):
        program = random_program(seed)
        text = source_of(program).text
        found.update(name for name in OPERATIONS if name in text)
        found.update({slot.dtype for slot in program.slots})
    assert min(found[name] for name in (*OPERATIONS, *DTYPES)) >= 3
