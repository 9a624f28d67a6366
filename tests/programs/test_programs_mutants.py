"""A random program with one mistake gives one report: its class, its ranks, its line."""

import random
from collections import Counter
from typing import Any

import pytest
from examples import examples, slow_or_at_length
from programs_model import differences, expected
from programs_mutants import KINDS, random_mutant
from programs_places import Mutant
from programs_random import random_program
from programs_source import Source, run, shown_lines, shown_ranks, source_of
from programs_steps import Program

from kernbench.errors import KernbenchError, call_site_of
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench

MUTANTS = 3000
CHUNK = 150
CHUNKS = [pytest.param(first, marks=slow_or_at_length(first)) for first in range(0, MUTANTS, CHUNK)]
ATTEMPTS = 100
"""Programs that are looked through for a place for a mistake of one kind."""

CYCLES = {"C10", "P4"}
"""What ranks are told that wait for each other."""

MISSING = {"C1", "P1", "P2"}
"""What several ranks may be told at once, each its own, that miss one that went another way."""


@pytest.mark.filterwarnings("ignore:.*process groups were made and not destroyed")
@pytest.mark.parametrize("first", CHUNKS)
def test_random_mistakes_are_reported(kernbench: Kernbench, first: int) -> None:
    machines = {name: kernbench.context(name) for name in ("sip8", "torus4x4")}
    reported: Counter[int] = Counter()
    for number in range(first, first + examples(CHUNK)):
        kind = number % len(KINDS)
        for attempt in range(ATTEMPTS):
            seed = number + attempt * MUTANTS
            program = random_program(seed)
            mutant = random_mutant(program, random.Random(seed), KINDS[kind])
            if mutant is None:
                continue
            ctx = machines["sip8" if program.ranks <= 8 else "torus4x4"]
            source = source_of(mutant.program)
            seen, wrong = mistakes_of_report(ctx, mutant, source)
            wrong += _without_it(ctx, program) if number % 2 else []
            if wrong:
                what = f"seed {seed}, rank {mutant.rank}: {mutant.what}"
                pytest.fail("\n".join([what, *wrong, "", source.text]), pytrace=False)
            if seen:
                reported[kind] += 1
                break
    assert reported.total() == examples(CHUNK)
    assert max(reported.values()) - min(reported.values()) <= 1


def _without_it(ctx: RuntimeContext, program: Program) -> list[str]:
    """Runs the correct program where the other one has just failed."""
    try:
        again = run(ctx, program, source_of(program))
        return [f"then, without it: {text}" for text in differences(expected(program), again)]
    except Exception as error:
        return [f"then, without it: {type(error).__name__}: {error}"]


def mistakes_of_report(
    ctx: RuntimeContext, mutant: Mutant, source: Source
) -> tuple[bool, list[str]]:
    """Runs a program with a mistake.

    Returns:
        Whether there is a report, and what it lacks or has too much of.
    """
    try:
        seen = run(ctx, mutant.program, source)
    except SpawnException as failure:
        return True, [f"{text}\n{failure}" for text in _about(mutant, source, failure)]
    except Exception as error:
        return True, [f"the spawn itself failed: {type(error).__name__}: {error}"]
    if not mutant.harmless:
        return False, ["nothing was reported"]
    wanted: list[list[Any]] = expected(mutant.program)
    del wanted[mutant.rank][len(seen[mutant.rank]) :]  # it may have returned early
    return False, differences(wanted, seen)


def _about(mutant: Mutant, source: Source, failure: SpawnException) -> list[str]:
    errors = failure.errors
    wrong = []
    if mutant.planted:
        found = {rank: f"{type(e).__name__}: {e}" for rank, e in errors.items()}
        if found != {mutant.rank: mutant.planted}:
            wrong.append(f"expected {mutant.planted} of rank {mutant.rank}")
        site = call_site_of(errors.get(mutant.rank, ValueError()))
        ((rank, index),) = mutant.marks
        if site is None or site.line != source.line(rank, index):
            wrong.append(f"expected line {source.line(rank, index)}")
        return wrong
    codes = {error.code if isinstance(error, KernbenchError) else "?" for error in errors.values()}
    if (len(codes) > mutant.reports and not codes <= MISSING) or not codes <= mutant.codes:
        wrong.append(f"expected one of {sorted(mutant.codes)}; got {sorted(codes)}")
    if mutant.failed is not None and not set(errors) <= mutant.failed:
        wrong.append(f"expected ranks {sorted(mutant.failed)} to fail; got {sorted(errors)}")
    if mutant.guilty and mutant.rank not in errors:
        wrong.append(f"rank {mutant.rank} has no error")
    for rank, error in errors.items():
        if mutant.rank not in shown_ranks(str(error)) | {rank}:
            wrong.append(f"the error of rank {rank} does not name rank {mutant.rank}")
    shown = shown_lines("\n".join(str(error) for error in errors.values()))
    for marks in (mutant.marks, mutant.also if codes.isdisjoint(CYCLES) else ()):
        lines = {source.line(rank, index) for rank, index in marks}
        if lines and not lines & shown:
            wrong.append(f"expected one of the lines {sorted(lines)}; got {sorted(shown)}")
    # One cause: all ranks have the same report, unless each waits for the one that is missing.
    summaries = {str(error).splitlines()[0] for error in errors.values()}
    if len(summaries) > mutant.reports and not codes <= MISSING | {"C11"}:
        wrong.append(f"expected one report; got {len(summaries)}")
    return wrong
