"""Runs the random programs of many seeds: `python tests/programs/programs_sweep.py --help`."""

import argparse
import sys
from collections.abc import Callable

from programs_model import differences, expected
from programs_random import random_program
from programs_source import Source, run, source_of
from programs_steps import Program

from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.dials import Fidelity
from kernbench.testing import Kernbench

MACHINES = ("sip8", "torus4x4")

Check = Callable[[Program, Source], str]
"""Returns what is wrong about a program, and its text; nothing if all is well."""


def machine_of(program: Program) -> str:
    """Returns the name of the machine that a program runs on."""
    return MACHINES[program.ranks > 8]


def mistakes(machines: dict[str, RuntimeContext], program: Program, source: Source) -> str:
    """Runs a program and returns what it computes wrongly; nothing if all is well."""
    try:
        wrong = differences(expected(program), run(machines[machine_of(program)], program, source))
    except Exception as error:
        wrong = [f"{type(error).__name__}: {error}"]
    return "\n".join([*wrong, "", source.text]) if wrong else ""


def late(kernbench: Kernbench, program: Program, source: Source) -> str:
    """Returns which commands take another time where every message goes over the network."""

    def times(fidelity: Fidelity) -> list[tuple[int, str, int, int, str]]:
        ctx = kernbench.context(machine_of(program), fidelity=fidelity, record="full")
        run(ctx, program, source)
        log = ctx.engine.op_log.records
        commands = [record for record in log if not record.track.startswith(("pe", "dma"))]
        return sorted((c.rank, c.track, c.start, c.end, c.name) for c in commands)

    both = zip(times("kernel"), times("tile"), strict=True)
    wrong = [f"{plan} by plan, {live} live" for plan, live in both if plan != live]
    return "\n".join([*wrong, "", source.text]) if wrong else ""


def failing(first: int, count: int, *, tiers: bool) -> list[int]:
    """Returns the seeds whose programs are not right, and prints why.

    Args:
        first: First seed.
        count: Number of seeds.
        tiers: Whether to compare the times of two tiers instead of results with numpy's.
    """
    found = []
    for seed in range(first, first + count):
        if (seed - first) % 100 == 0:
            kernbench = Kernbench()
            machines = {name: kernbench.context(name) for name in MACHINES}
        program = random_program(seed)
        source = source_of(program)
        wrong = late(kernbench, program, source) if tiers else mistakes(machines, program, source)
        if wrong:
            found.append(seed)
            print(f"seed {seed}:\n{wrong}", flush=True)
            machines = {name: kernbench.context(name) for name in MACHINES}
    return found


def main() -> int:
    """Reads the command line; returns the exit code: 1 if a program is not right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int, help="first seed")
    parser.add_argument("count", type=int, help="number of seeds")
    parser.add_argument(
        "--tiers",
        action="store_true",
        help="compare the times by plan with those of a live run, not results with numpy's",
    )
    given = parser.parse_args()
    found = failing(given.first, given.count, tiers=given.tiers)
    print(f"{given.count} programs from seed {given.first}: not right: {found or 'none'}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
