"""A random program with one mistake gives one report: its class, its ranks, its line."""

import random
from typing import Any

import pytest
from programs_model import differences, expected
from programs_mutants import random_mutant
from programs_places import Mutant
from programs_random import random_program
from programs_source import Source, run, shown_lines, shown_ranks, source_of

from kernbench.errors import KernbenchError, call_site_of
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench

MUTANTS = 3000
CHUNK = 250


@pytest.mark.filterwarnings("ignore:.*process groups were made and not destroyed")
@pytest.mark.parametrize("first", range(0, MUTANTS, CHUNK))
def test_random_mistakes_are_reported(kernbench: Kernbench, first: int) -> None:
    machines = {name: kernbench.context(name) for name in ("sip8", "torus4x4")}
    for seed in range(first, first + CHUNK):
        program = random_program(seed)
        mutant = random_mutant(program, random.Random(seed))
        if mutant is None:
            continue
        ctx = machines["sip8" if program.ranks <= 8 else "torus4x4"]
        source = source_of(mutant.program)
        wrong = mistakes_of_report(ctx, mutant, source)
        try:
            again = run(ctx, program, source_of(program))
            wrong += [f"then, without it: {text}" for text in differences(expected(program), again)]
        except Exception as error:
            wrong.append(f"then, without it: {type(error).__name__}: {error}")
        if wrong:
            what = f"seed {seed}, rank {mutant.rank}: {mutant.what}"
            pytest.fail("\n".join([what, *wrong, "", source.text]), pytrace=False)


def mistakes_of_report(ctx: RuntimeContext, mutant: Mutant, source: Source) -> list[str]:
    """Runs a program with a mistake, and returns what its report lacks or has too much of."""
    try:
        seen = run(ctx, mutant.program, source)
    except SpawnException as failure:
        return [f"{text}\n{failure}" for text in _about(mutant, source, failure)]
    except Exception as error:
        return [f"the spawn itself failed: {type(error).__name__}: {error}"]
    if not mutant.harmless:
        return ["nothing was reported"]
    wanted: list[list[Any]] = expected(mutant.program)
    del wanted[mutant.rank][len(seen[mutant.rank]) :]  # it may have returned early
    return differences(wanted, seen)


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
    # Several messages may miss the rank that went another way.
    if (len(codes) > 1 and not codes <= {"C1", "P1", "P2"}) or not codes <= mutant.codes:
        wrong.append(f"expected one of {sorted(mutant.codes)}; got {sorted(codes)}")
    if mutant.failed is not None and not set(errors) <= mutant.failed:
        wrong.append(f"expected ranks {sorted(mutant.failed)} to fail; got {sorted(errors)}")
    if mutant.guilty and mutant.rank not in errors:
        wrong.append(f"rank {mutant.rank} has no error")
    for rank, error in errors.items():
        if mutant.rank not in shown_ranks(str(error)) | {rank}:
            wrong.append(f"the error of rank {rank} does not name rank {mutant.rank}")
    lines = {source.line(rank, index) for rank, index in mutant.marks}
    if not lines & shown_lines("\n".join(str(error) for error in errors.values())):
        wrong.append(f"expected one of the lines {sorted(lines)}")
    summaries = {str(error).splitlines()[0] for error in errors.values()}
    if len(summaries) > 1 and mutant.failed is not None and not codes <= {"C1", "P1", "P2", "C11"}:
        wrong.append(f"expected one report; got {len(summaries)}")
    return wrong
