"""`kernbench collective show`, `time`, `write` and `search`."""

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Final

from kernbench.ccl.alone import block_count, time_alone
from kernbench.ccl.config import (
    Chosen,
    choose,
    find_ccl_file,
    load_ccl,
    local_file_notice,
    shipped_ccl_file,
)
from kernbench.ccl.cut_bound import cut_bound
from kernbench.ccl.files.blocks import Blocks
from kernbench.ccl.files.load import load
from kernbench.ccl.files.picture import as_svg, as_text
from kernbench.ccl.files.program import module_of, scope_of
from kernbench.ccl.files.prove import prove
from kernbench.ccl.files.search import HALVES, gathering_rounds, plan_for
from kernbench.ccl.files.write import as_xml
from kernbench.ccl.operations import OPERATIONS
from kernbench.ccl.programs import programs_of
from kernbench.ccl.tuner import Choices
from kernbench.cli.failures import Exit, failed
from kernbench.config.near import did_you_mean
from kernbench.errors import UnsupportedError, UsageError
from kernbench.memory import dtypes
from kernbench.report import busbw_factor, replacing
from kernbench.topology import Topology, load_topology
from kernbench.units import parse_bytes

_QUEUES: Final = {"Simple": "nccl_simple", "LL": "nccl_ll", "LL128": "nccl_ll128"}
"""Profile of each protocol, for machines of which an algorithm has it."""


def told(work: Callable[[], None]) -> int:
    """Does some work; returns the exit code."""
    try:
        work()
    except Exception as error:  # an algorithm of the user's own may raise anything
        return failed(error)
    return Exit.OK


def show_file(path: Path, rank: int | None, svg: Path | None) -> None:
    """Prints the blocks of a file over the levels of their steps, or writes them as SVG.

    Args:
        rank: Whose blocks; None for all.
        svg: The picture's file; None for text.

    Raises:
        UsageError: If the file has no such rank, or is none of a collective.
    """
    file = load(path)
    if rank is not None and rank >= file.ranks:
        raise UsageError(f"--rank: expected a rank up to {file.ranks - 1}; got {rank}")
    ranks = range(file.ranks) if rank is None else (rank,)
    if svg is None:
        print(f"{file.name}: {file.operation} of {file.ranks} ranks, steps by level")
        print("\n".join(as_text(file, ranks)))
        return
    with replacing(svg) as out:
        out.write(as_svg(file, ranks))
    print(f"wrote {svg}")


def write_algorithm(
    name: str, operation: str, ranks: int, machine: str, out: Path, ccl: Path | None = None
) -> None:
    """Writes an algorithm of `ccl.yaml` as MSCCL XML, as it is for small sizes.

    Args:
        operation: A key of `OPERATIONS`.
        ranks: Ranks, on the machine's first SIPs.
        machine: A topology file, or the name of a shipped machine.
        out: The file to write.
        ccl: The `ccl.yaml`; None for the working directory's, else the shipped one.

    Raises:
        UsageError: If there is no such algorithm, operation or machine.
        UnsupportedError: If the algorithm has no plan.
    """
    _check_operation(operation, OPERATIONS)
    topology = load_topology(machine).topology_obj
    _check_ranks(ranks, topology, "the group")
    _tell_local_file(ccl)
    path = find_ccl_file(ccl)
    loaded = load_ccl(path)
    chosen = choose(loaded, path, name, topology.machine.system)
    profile = loaded.value.algorithms[name].queue
    protocol = next((one for one, queue in _QUEUES.items() if queue == profile), "Simple")
    sips = tuple(range(ranks))
    programs = programs_of(chosen, operation, topology, sips, 0, lambda _channels: 1)
    plans = [program.plan for program in programs]
    known_plans = [plan for plan in plans if plan is not None]
    if len(known_plans) < len(plans):
        raise UnsupportedError(
            f"{name} computes its exchanges as it runs",
            hint="choose an algorithm that uses comm.exchange alone",
        )
    text = as_xml(f"{name}_{operation}", operation, known_plans, protocol)
    with replacing(out) as stream:
        stream.write(text)
    print(f"wrote {out}; kernbench collective check {out} proves it")


def search_schedule(
    operation: str, ranks: int, machine: str, size: str, out: Path, ccl: Path | None = None
) -> None:
    """Writes a schedule for a machine, proves it, and prints its time beside the bound.

    Args:
        operation: A key of `HALVES`.
        ranks: On the machine's first SIPs.
        machine: A topology file, or the name of a shipped machine.
        size: Of all blocks together, such as 64M.
        out: The file to write.
        ccl: See `write_algorithm`.

    Raises:
        UsageError: If the machine, the ranks or the size cannot be used.
        UnsupportedError: If the operation is not searched.
    """
    _check_operation(operation, OPERATIONS)
    topology = load_topology(machine).topology_obj
    rounds = gathering_rounds(topology, ranks)
    plan = plan_for(operation, rounds, ranks)
    nbytes = _sizes(size, size, 2, operation, ranks)[0]
    with replacing(out) as stream:
        stream.write(as_xml(f"{operation}_{topology.machine.system.name}", operation, [plan]))
    halves = HALVES[operation]
    verdict = prove(load(out))
    word = "proved" if verdict.proved else "wrong"
    print(f"wrote {out}: {len(rounds) * halves} rounds, {verdict.chunks} chunks sent; {word}")
    bound = cut_bound(topology, operation, nbytes, range(ranks))
    of = "its two halves" if halves > 1 else "the cut"
    assert bound is not None, "there are two ranks, and bytes"
    print(f"bound of {of}, without latencies: {bound.time / 1e6:.2f} us of {nbytes} B")
    time_file(out, machine, (size, size, 2), ccl)


def _tell_local_file(ccl: Path | None) -> None:
    """Tells that the algorithms are those of a file that only lies in the working directory."""
    notice = local_file_notice([None if ccl is None else str(ccl)])
    if notice is not None:
        print(f"kernbench: {notice}", file=sys.stderr)


def _check_operation(operation: str, known: Collection[str]) -> None:
    if operation not in known:
        hint = did_you_mean(operation, known)
        expected = f"expected one of {', '.join(known)}"
        raise UsageError(f"--operation: {expected}; got {operation!r}", hint=hint)


def _check_ranks(ranks: int, topology: Topology, who: str) -> None:
    if ranks > topology.world_size:
        name = topology.machine.system.name
        raise UsageError(
            f"{name} has {topology.world_size} SIPs; {who} has {ranks} ranks",
            hint="--topology names a larger machine; `kernbench list` shows the shipped ones",
        )


def time_file(
    path: Path, machine: str, sizes: tuple[str, str, int], ccl: Path | None = None
) -> None:
    """Prints how long a file takes for sizes in nccl-tests' manner, beside the library's choice.

    Args:
        machine: A topology file, or the name of a shipped machine.
        sizes: The smallest, the largest, and the factor between them.
        ccl: See `write_algorithm`.

    Raises:
        UsageError: If the file, the machine or a size cannot be used.
        UnsupportedError: If the file is wrong.
    """
    file, topology = load(path), load_topology(machine).topology_obj
    _check_ranks(file.ranks, topology, "the file")
    steps = _sizes(*sizes, file.operation, file.ranks)
    _tell_local_file(ccl)
    chosen = as_algorithm(file, module_of(path, relaxed=True), topology, ccl)
    choices = Choices(ccl, (), topology)
    system = topology.machine.system
    lines = [
        f"# {file.name}: {file.operation} of {file.ranks} ranks on {system.name}, float32",
        f"# queues: {chosen.path.name}, as {chosen.name}; times are simulated, not measured",
        *_doubts(file),
        f"# {'size':>12} {'time':>12} {'busbw':>9}   {'library':<20} {'time':>12}  file/library",
        f"# {'(B)':>12} {'(us)':>12} {'(GB/s)':>9}   {'':<20} {'(us)':>12}",
    ]
    print("\n".join(lines))
    for size in steps:
        mine = time_alone(topology, chosen, file.operation, file.ranks, size)
        library = choices.choose(file.operation, size, range(file.ranks))
        theirs = time_alone(topology, library, file.operation, file.ranks, size)
        busbw = size / mine * 1000 * float(busbw_factor(file.operation, file.ranks))
        inside = file.sizes[0] <= size <= file.sizes[1]
        note = "" if inside else "  outside of minBytes..maxBytes"
        print(
            f"  {size:>12} {mine / 1e6:>12.2f} {busbw:>9.2f}   {library.name:<20} "
            f"{theirs / 1e6:>12.2f}  {mine / theirs:.2f}{note}"
        )


def _doubts(file: Blocks) -> list[str]:
    """Returns what the times of a plan do not have that it has on GPUs."""
    if file.plan is None:
        return []
    found = []
    if file.plan.switched:
        found.append("# no switch adds or multiplies here: a message for each member in its place")
    if not prove(file).proved:
        found.append("# not proved: relaxed signals alone order some accesses; see check")
    return found


def _sizes(least: str, most: str, factor: int, operation: str, ranks: int) -> Sequence[int]:
    """Returns sizes in bytes, each cut to whole elements of float32 for each block.

    Raises:
        UsageError: If a size is none, too small for an element a block, or larger than the last.
    """
    try:
        size, last = int(parse_bytes(_spelt(least))), int(parse_bytes(_spelt(most)))
    except ValueError as error:
        raise UsageError(f"-b, -e: {error}") from None
    unit = dtypes.float32.itemsize * block_count(operation, ranks)
    if size < unit:
        raise UsageError(f"-b: expected at least {unit} bytes, a float32 a block; got {size}")
    if last < size:
        raise UsageError(f"-e: expected at least the size of -b, {size} bytes; got {last}")
    found = []
    while size <= last:
        found.append(size // unit * unit)
        size *= factor
    return found


def _spelt(text: str) -> str:
    """Returns a size of nccl-tests, such as 64M, as files of machines spell it."""
    return (
        f"{text[:-1]} {text[-1].upper()}iB"
        if text[-1:].upper() in {"K", "M", "G"}
        else (f"{text} B" if text.isdecimal() else text)
    )


def as_algorithm(
    file: Blocks, module: ModuleType, topology: Topology, ccl: Path | None = None
) -> Chosen:
    """Returns the file as an algorithm, over the queues of its protocol if the machine has them.

    Args:
        module: What `module_of` returns for the file.
        ccl: See `write_algorithm`.
    """
    system = topology.machine.system
    for path in (find_ccl_file(ccl), shipped_ccl_file()):
        loaded = load_ccl(path)
        algorithms = loaded.value.algorithms
        fitting = [
            name
            for name in system.algorithms
            if name in algorithms and algorithms[name].queue == _QUEUES[file.protocol]
        ]
        plain = [name for name, spec in algorithms.items() if spec.queue is None and not spec.file]
        names = fitting or plain
        if names:  # a file of the user's own may name files alone
            break
    like = choose(loaded, path, names[0], system)
    own = replace(like, module=module, scope=scope_of(module), tuning=None, inside=None)
    return replace(own, channels=1, links=1, rails=1)
