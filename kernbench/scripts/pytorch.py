"""Programs of the real PyTorch: whether it is there, and how they run. See ADR 0037."""

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Final

from kernbench.caches import cached
from kernbench.errors import UsageError
from kernbench.following.witnesses import witnesses_of
from kernbench.process.disorder import disorder_line, disorders
from kernbench.process.process import MAIN
from kernbench.ranks.ranges import folded
from kernbench.report.explanation_lines import much_by_bytes
from kernbench.run_spec import PytorchRun, RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.engines import load_machine
from kernbench.runtime_api.pytorch_versions import check_version
from kernbench.topology import Topology
from kernbench.units import PS_PER_US, format_bytes, format_time


@cached("scripts.versions")
def _version_of(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def the_bridge() -> Any:
    """Returns the room `bridge`, which imports PyTorch.

    Raises:
        UsageError: If PyTorch is not installed, or is of another version.
    """
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            "the program is one of PyTorch, which is not installed",
            hint="pip install torch --index-url https://download.pytorch.org/whl/cpu; or "
            "`kernbench run --as-torch`, for which kernbench.torch stands in",
        )
    check_version(_version_of("torch"))
    from kernbench import bridge

    return bridge


def file_of_module(name: str) -> Path:
    """Returns the file that `python -m NAME` runs; no package of it is imported.

    Args:
        name: Name of a module or package, found from the working directory first.

    Raises:
        UsageError: If there is no such module (F11).
    """
    path: list[str] | None = [os.getcwd(), *sys.path]
    spec = None
    parts = name.split(".")
    for number, _ in enumerate(parts, 1):
        spec = PathFinder.find_spec(".".join(parts[:number]), path)
        if spec is None:
            break
        path = list(spec.submodule_search_locations or ())
    if spec is not None and spec.submodule_search_locations is not None:
        spec = PathFinder.find_spec(f"{name}.__main__", path)
    if spec is None or spec.origin is None:
        raise UsageError(
            f"-m {name}: there is no such module",
            hint="name it as `python -m` takes it, from the folder that holds its package",
            code="F11",
        )
    return Path(spec.origin)


def check_pytorch(spec: RunSpec, pytorch: PytorchRun) -> None:
    """Checks that what a run says of its program of PyTorch can hold together.

    Args:
        pytorch: What it says of the program.

    Raises:
        UsageError: If ranks that do the same have numbers, which differ from rank to rank, if the
            run has not the ranks that it names, or if it compares replicas without numbers.
    """
    if pytorch.witnesses is not None and not pytorch.same_ranks:
        raise UsageError(
            "--witnesses without --same-ranks: every rank runs the program then",
            hint="add --same-ranks; in code, same_ranks=True",
        )
    if pytorch.same_ranks and spec.data:
        raise UsageError(
            "--same-ranks: ranks that have numbers each have their own",
            hint="--data off, or --data fake; in code, data=False or data='fake'",
        )
    if spec.nproc_per_node is not None:
        witnesses_of(pytorch.witnesses, spec.nproc_per_node * pytorch.nodes)
    if pytorch.check_replicas and not spec.data:
        raise UsageError(
            "--check-replicas: without numbers there is nothing to compare",
            hint="--data on; in code, data=True",
        )


def check_ranks(spec: RunSpec, ctx: RuntimeContext) -> None:
    """Checks that the ranks of each node have devices of one node of the machine.

    Args:
        spec: Specification of the run, with a number of ranks.

    Raises:
        UsageError: If the machine has fewer nodes or devices, or others than the ranks need.
    """
    each, nodes = spec.nproc_per_node, _nodes_of(spec)
    assert each is not None
    devices = ctx.devices
    topology = ctx.engine.topology
    by_node = _by_node(topology, devices)
    wanted = _wanted(by_node, each, nodes)
    asked = f"--nnodes {nodes} --nproc-per-node {each}"
    if wanted is None:
        largest = max(map(len, by_node.values()))
        usual = (
            f"--topology h200x8_x4_nodes --set system.sips.count={8 * nodes}, which has {nodes} "
            "nodes of 8"
            if nodes > 1
            else f"--set system.sips.count={each}; or --nnodes 2"
        )
        named = spec.devices != "all"
        if named:
            of_all = _wanted(_by_node(topology, range(topology.world_size)), each, nodes)
            usual = f"leave --devices out, and {usual}" if of_all is None else _devices(of_all)
        raise UsageError(
            f"{asked}: {spec.topology} has {len(by_node)} "
            f"node{'s' if len(by_node) > 1 else ''} with {largest} devices for ranks"
            + (", which --devices names" if named else ""),
            hint=f"ask for no more; or {usual}",
        )
    if wanted != list(devices[: nodes * each]):
        raise UsageError(
            f"{asked}: the first {nodes * each} devices of {spec.topology} are not {each} of each "
            "node",
            hint=_devices(wanted),
        )


def _devices(sips: Iterable[int]) -> str:
    return f"--devices {','.join(map(str, sips))}"


def with_devices(spec: RunSpec) -> RunSpec:
    """Returns a specification whose ranks of each node have devices of one node of the machine.

    Args:
        spec: Specification of a run; if it names devices, they stay.

    Raises:
        ConfigError: If something is wrong with the file of the machine.
    """
    each, nodes = spec.nproc_per_node, _nodes_of(spec)
    if spec.devices != "all" or each is None or nodes == 1:
        return spec
    topology = load_machine(spec)
    wanted = _wanted(_by_node(topology, range(topology.world_size)), each, nodes)
    if wanted is None or wanted == [*range(nodes * each)]:
        return spec
    return replace(spec, devices=tuple(wanted))


def _nodes_of(spec: RunSpec) -> int:
    return 1 if spec.pytorch is None else spec.pytorch.nodes


def _by_node(topology: Topology, devices: Iterable[int]) -> dict[int, list[int]]:
    by_node: dict[int, list[int]] = {}
    for sip in devices:
        by_node.setdefault(topology.node_of(sip), []).append(sip)
    return by_node


def _wanted(by_node: Mapping[int, Sequence[int]], each: int, nodes: int) -> list[int] | None:
    """Returns the first SIPs of the first nodes that have enough; None if too few nodes do."""
    roomy = [sips for sips in by_node.values() if len(sips) >= each][:nodes]
    return None if len(roomy) < nodes else [sip for sips in roomy for sip in sips[:each]]


DOCUMENT: Final = "pytorch"
"""The key of the document that a run of a program of PyTorch leaves in `ctx.results`."""


def document_of(ctx: RuntimeContext, spec: RunSpec, run: Any) -> dict[str, Any]:
    """Returns the summary of a run, as plain values.

    Args:
        ctx: The context, after the run.
        run: The run, a `bridge.Run`.
    """
    loop = ctx.engine.loop
    clocks = [process.host.clock for process in (ctx.main, *ctx.processes)]
    end, ranks = max([loop.now, *clocks]), max(len(ctx.processes), 1)
    used = ctx.devices[:ranks]
    ordered = sorted(run.unknown.items(), key=lambda item: (-item[1][1], item[0]))
    replicas = {} if run.replicas is None else {"replicas_compared": run.replicas.compared}
    return {
        DOCUMENT: {
            **replicas,
            "numbers": "CPU" if spec.data else "none",
            "ranks": ranks,
            "time_us": end / 1e6,
            "peak_memory_bytes": max(ctx.engine.devices[sip].hbm.peak for sip in used),
            "late_events": loop.late_calls,
            "made_up_values": run.made_up.as_json(),
            "races": [each.as_json() for each in disorders((ctx.main, *ctx.processes))],
            "unknown_operations": [
                {
                    "name": name,
                    "count": count,
                    "time_us": ps / 1e6,
                    "share": ps / (end * ranks) if end else 0.0,
                }
                for name, (count, ps) in ordered
            ],
        }
    }


def run_lines(ctx: RuntimeContext) -> list[str]:
    """Returns what a command says at the end of a run of a program of PyTorch.

    Args:
        ctx: The context, after the run.
    """
    documents = [each[DOCUMENT] for each in ctx.results if DOCUMENT in each]
    lines = []
    for told in documents:
        peak = format_bytes(told["peak_memory_bytes"])
        time = "N/A (fidelity functional)"
        if ctx.engine.timed:
            time = format_time(round(told["time_us"] * 1e6))
        values = "no values computed" if told["numbers"] == "none" else "values computed on the CPU"
        lines.append(f"simulated time {time}, peak memory {peak}; {values}")
        if not (told["time_us"] or told["peak_memory_bytes"]):
            lines.append(
                "no device was used: move the model and its inputs to one, such as "
                "torch.device('cuda'); what the host computes takes no simulated time"
            )
        if told["late_events"]:
            lines.append(
                f"late events: {told['late_events']} (calls that arrived after the simulated clock "
                "had passed them: times are not exact)"
            )
        compared = told.get("replicas_compared")
        if compared:
            lines.append(f"replicas of DistributedDataParallel: compared {compared} times, alike")
        elif compared is not None:
            lines.append(
                "replicas: nothing was compared; no DistributedDataParallel has several ranks"
            )
        unknown = told["unknown_operations"]
        if unknown:
            shown = ", ".join(f"{each['name']} {each['share']:.1%}" for each in unknown[:_MOST])
            more = f", and {len(unknown) - _MOST} more" if len(unknown) > _MOST else ""
            lines.append(f"timed by their bytes (share of the ranks' time): {shown}{more}")
    busy = sum(
        total.busy_ps
        for (_, category), total in ctx.engine.op_log.totals.items()
        if category not in {"host", "event", "range"}
    )
    if much := much_by_bytes(timed_by_bytes(ctx), busy):
        lines.append(much)
    return lines + made_up_lines(ctx) + race_lines(ctx)


def timed_by_bytes(ctx: RuntimeContext) -> dict[str, int]:
    """Returns the picoseconds of operations without a price, which were timed by their bytes.

    Args:
        ctx: The context, after the run.
    """
    found: dict[str, int] = {}
    for each in ctx.results:
        for told in each[DOCUMENT]["unknown_operations"] if DOCUMENT in each else ():
            name, ps = told["name"], round(told["time_us"] * PS_PER_US)
            found[name] = found.get(name, 0) + ps
    return found


def made_up_lines(ctx: RuntimeContext) -> list[str]:
    """Returns what a command says of values that a program has read and that are not there.

    Args:
        ctx: The context, after the run.
    """
    told = [each[DOCUMENT]["made_up_values"] for each in ctx.results if DOCUMENT in each]
    return [
        f"made-up values: {each['count']} read{'s' if each['count'] > 1 else ''} gave 0, the first "
        f"by {each['first']}"
        for each in told
        if each["count"]
    ]


def race_lines(ctx: RuntimeContext) -> list[str]:
    """Returns what a command says of accesses that nothing orders, after which a run has gone on.

    Args:
        ctx: The context, after the run.
    """
    found = [race for each in ctx.results if DOCUMENT in each for race in each[DOCUMENT]["races"]]
    if not found:
        return []
    lines = [f"races: {len(found)} kind{'s' if len(found) > 1 else ''} of access in no order"]
    for race in found:
        ranks = [rank for rank in race["ranks"] if rank != MAIN]
        lines.append(f"  {disorder_line(race, folded(ranks) if ranks else 'main')}")
    return lines


_MOST: Final = 8
"""Most operations without a known cost that a command names."""
