"""Collectives of files: how long a proof takes, and a run beside the shipped ring.

`python benchmarks/collective_files.py DIR` also proves every XML file and every plan of MSCCL++
below a folder, such as a checkout of public ones, and says which are not proved, and how many need
more than one slot. `--times DIR` prints the simulated time of the XML files of 8 ranks there, for
64 MiB, beside the shipped algorithm of equal messages over the same queues.
"""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import _measure
import numpy as np
from _allreduce import AllReduce, ring

from kernbench.ccl.algorithms import ring as shipped
from kernbench.ccl.alone import time_alone
from kernbench.ccl.config import choose, find_ccl_file, load_ccl
from kernbench.ccl.files import msccl_xml
from kernbench.ccl.files.load import load
from kernbench.ccl.files.lower import lower
from kernbench.ccl.files.program import Program, module_of
from kernbench.ccl.files.prove import prove
from kernbench.ccl.files.rounds import Lowered
from kernbench.ccl.files.verdict import Verdict
from kernbench.ccl.files.write import as_xml
from kernbench.ccl.plan import Plan, Setting, plan_of
from kernbench.ccl.programs import linked
from kernbench.cli.collective_running import as_algorithm
from kernbench.errors import KernbenchError
from kernbench.topology import load_topology

RANKS = 8
COUNT = (64 << 20) // 4
REPEATS = 5
MOST_SECONDS = 1.0
MOST_RATIO = 1.5
MACHINES = ("h200x8", "sip8", "mi300x8")


def plan(ranks: int) -> Plan:
    found = plan_of(shipped.all_reduce, Setting("all_reduce", ranks, 0, (ranks,)))
    assert found is not None
    return found


def check(text: str) -> None:
    verdict = prove(msccl_xml.read("large.xml", text))
    assert verdict.proved


def runs() -> tuple[float, float]:
    """Returns the seconds of 64 MiB with data: the shipped ring, and that of a file."""
    program = Program(
        lower(msccl_xml.read("ring.xml", as_xml("ring", "all_reduce", [plan(RANKS)])))
    )
    module = ModuleType("ring_of_a_file")
    module.all_reduce = program  # type: ignore[attr-defined]
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(COUNT, np.float32) for _ in range(RANKS)]
    best = []
    for chosen in (ring(), replace(ring(), module=module)):
        machine = AllReduce(load_topology("sip8").topology_obj, chosen, RANKS, COUNT, values)
        times = []
        for repeat in range(REPEATS):
            machine.fill(values)
            starts = [(repeat + 1) * rank * 1000 for rank in range(RANKS)]
            times.append(_measure.seconds(partial(machine.run, starts)))
        best.append(min(times))
    return best[0], best[1]


def prove_all(folder: Path) -> None:
    files = sorted(path for kind in ("xml", "json") for path in folder.rglob(f"*.{kind}"))
    verdicts: list[Verdict] = []

    def prove_each() -> None:
        for path in files:
            try:
                verdict = prove(load(path))
            except KernbenchError as error:
                print(f"{path.name}: {str(error).splitlines()[0]}")
                continue
            verdicts.append(verdict)
            if not verdict.proved:
                print(f"{path.name}: {', '.join({each.kind for each in verdict.findings})}")

    took = _measure.seconds(prove_each)
    proved = sum(verdict.proved for verdict in verdicts)
    more = sum(verdict.least > 1 for verdict in verdicts)
    print(f"{proved} of {len(files)} files proved in {took:.1f} s; {more} need more than one slot")


def shipped_like(lowered: Lowered, sent: int, *, links: bool) -> str:
    """Returns the shipped algorithm whose messages are most like those of a file.

    Args:
        lowered: The file.
        sent: Chunks that all ranks send.
        links: Whether it runs over all links of a rank at once.
    """
    file, pairs = lowered.file, len(lowered.pairs)
    if pairs < file.ranks * (file.ranks - 1) and file.operation != "all_to_all":
        return "ring"
    two = file.operation == "all_reduce" and sent < file.chunks * pairs
    return ("two_shot" if two else "direct") + ("_links" if links else "")


def time_all(folder: Path) -> None:
    rows, path = [], find_ccl_file()
    loaded = load_ccl(path)
    for name in sorted(folder.rglob("*.xml")):
        try:
            file = load(name)
            verdict = prove(file)
        except KernbenchError:
            continue
        if file.ranks != RANKS or not verdict.proved:
            continue
        row = [name.stem[:40], file.operation, file.protocol]
        for machine in MACHINES:
            topology = load_topology(machine).topology_obj
            mine = as_algorithm(file, module_of(name), topology)
            assert mine.scope is not None
            links = linked(mine.scope, topology, tuple(range(RANKS)))
            like = shipped_like(lower(file), verdict.chunks, links=links)
            theirs = replace(
                choose(loaded, path, like, topology.machine.system), queue=mine.queue, inside=None
            )
            times = [
                time_alone(topology, one, file.operation, RANKS, 4 * COUNT)
                for one in (mine, theirs)
            ]
            row += [f"{times[0] / 1e6:.0f} us", f"{times[0] / times[1]:.2f} of {like}"]
        rows.append(tuple(row))
    names = [column for machine in MACHINES for column in (machine, "")]
    _measure.show("64 MiB at 8 ranks, simulated", ("file", "operation", "protocol", *names), rows)


def main() -> None:
    if sys.argv[1:2] == ["--times"]:
        for folder in sys.argv[2:]:
            time_all(Path(folder))
        return
    channels = 13  # of 16 ranks, each with 60 sends and receives
    text = as_xml("large", "all_reduce", [plan(16)] * channels)
    steps = text.count("<step ")
    took = min(_measure.seconds(partial(check, text)) for _ in range(REPEATS))
    theirs, mine = runs()
    rows = [
        (f"check of {steps} steps", "", f"{took:.2f} s", "", f"<= {MOST_SECONDS} s"),
        (
            "64 MiB at 8 ranks, data on",
            f"{1000 * theirs:.0f} ms",
            f"{1000 * mine:.0f} ms",
            f"{mine / theirs:.2f}x",
            f"<= {MOST_RATIO}x",
        ),
    ]
    _measure.show("collectives of files", ("case", "shipped", "file", "ratio", "target"), rows)
    for folder in sys.argv[1:]:
        prove_all(Path(folder))


if __name__ == "__main__":
    main()
