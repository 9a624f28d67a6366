"""Random correct programs compute what numpy computes, with equal bits where that is promised."""

import pytest
from programs_model import differences, expected
from programs_random import random_program
from programs_source import run, source_of

from kernbench.testing import Kernbench

PROGRAMS = 2000
CHUNK = 250


@pytest.mark.parametrize("first", range(0, PROGRAMS, CHUNK))
def test_random_programs_are_right(kernbench: Kernbench, first: int) -> None:
    machines = {name: kernbench.context(name) for name in ("sip8", "torus4x4")}
    for seed in range(first, first + CHUNK):
        program = random_program(seed)
        source = source_of(program)
        ctx = machines["sip8" if program.ranks <= 8 else "torus4x4"]
        try:
            wrong = differences(expected(program), run(ctx, program, source))
        except Exception as error:
            wrong = [f"{type(error).__name__}: {error}"]
        if wrong:
            pytest.fail(f"seed {seed}:\n" + "\n".join(wrong) + f"\n\n{source.text}", pytrace=False)
