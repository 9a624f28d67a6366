"""What the schema cannot say: whether the parts of a machine fit together."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from kernbench.config import Changes, Loaded, Problem, did_you_mean, value_at
from kernbench.topology.defaults import RATES, with_all_rates
from kernbench.topology.links import leaves_of, sip_name
from kernbench.topology.spec import (
    KERNELS,
    AttentionSpec,
    ChangedSpec,
    EdgeSpec,
    GemmSpec,
    MachineSpec,
    Part,
    SystemSpec,
)
from kernbench.units import FLOP_RATE_UNITS, FlopRate, format_bytes, format_exact

MAX_PES: Final = 20 << 20
# Memory of the simulating process for one PE, once a kernel of tiles runs on it.
_HOST_BYTES_PER_PE: Final = 1 << 12
MAX_LINKS: Final = 1 << 20
# Memory of the simulating process for one link with the texts of its names.
_HOST_BYTES_PER_LINK: Final = 1 << 9

_NETWORK: Final = "system.sips.network"
_CHANGED: Final = "system.sips.changed"
_SHAPE: Final = ("cubes", "shape")
_PES: Final = ("cube", "pes")
_LIBRARY: Final = ("pe", "gemm", "library")
_ATTENTION: Final = ("pe", "attention")
_NODE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_SHOWN_NODES: Final = 8
_KINDS: Final = {
    "ring": "a ring",
    "torus": "a torus",
    "switch": "a switch",
    "graph": "a graph",
    "nodes": "nodes",
    "fat_tree": "a fat tree",
}


def check_machine(loaded: Loaded[MachineSpec]) -> list[Problem]:
    """Returns the problems of a machine that fits the schema."""
    system = loaded.value.system
    if problems := _check_size(loaded, system):
        return problems  # the further checks take time and memory in proportion to the size
    if problems := _check_kernels(loaded, "system.sip.kernels", system.sip.kernels):
        return problems
    if problems := _check_rates(loaded, "system.sip.pe.gemm.rate", system.sip.pe.gemm.rate):
        return problems  # other values follow from rates
    system = with_all_rates(system)
    problems = _check_cubes(loaded, system) + _check_network_fields(loaded, system)
    problems += _check_library(loaded, "system.sip.pe.gemm", system.sip.pe.gemm)
    problems += _check_attention(loaded, "system.sip.pe.attention", system.sip.pe.attention)
    problems += _check_changed(loaded, system)
    if system.sips.network.kind == "graph" and system.sips.network.edges is not None:
        problems += _check_edges(loaded, system) or _check_connected(loaded, system)
    return problems


def _check_size(loaded: Loaded[MachineSpec], system: SystemSpec) -> list[Problem]:
    cubes, each = math.prod(system.sip.cubes.shape), system.sip.cube.pes
    others = [
        (len(entry.which), entry.sip.values[_PES] - each)
        for entry in system.sips.changed
        if _PES in entry.sip.values
    ]
    pes = cubes * (system.sips.count * each + sum(count * more for count, more in others))
    if pes <= MAX_PES:
        return []
    changed = ", some changed," if others else ""
    product = f"{system.sips.count} SIPs x {cubes} cubes x {each} PEs{changed}"
    memory = format_bytes(pes * _HOST_BYTES_PER_PE)
    message = (
        f"expected at most {MAX_PES} PEs in all, got {product} = {pes}, "
        f"which would take about {memory} of memory"
    )
    return [loaded.problem("F4", "system.sips.count", message)]


def _check_cubes(loaded: Loaded[MachineSpec], system: SystemSpec) -> list[Problem]:
    cubes = math.prod(system.sip.cubes.shape)
    if cubes == 1 or system.sip.cubes.link is not None:
        return []
    message = f"expected a link between the {cubes} cubes, got none"
    return [loaded.problem("F5", "system.sip.cubes.link", message)]


def _check_kernels(
    loaded: Loaded[MachineSpec], place: str, kernels: Iterable[str]
) -> list[Problem]:
    """Checks that each kernel with a price is one that there is."""
    return [
        loaded.problem(
            "F1",
            f"{place}.{name}",
            f"expected one of {', '.join(KERNELS)}, got an unknown key",
            did_you_mean(name, KERNELS),
        )
        for name in kernels
        if name not in KERNELS
    ]


def _check_rates(
    loaded: Loaded[MachineSpec], place: str, rate: Mapping[str, FlopRate]
) -> list[Problem]:
    """Checks that there is a rate, and that each is of a type that there is."""
    if not rate:
        return [loaded.problem("F1", place, "expected a rate, such as of bf16, got none")]
    return [
        loaded.problem(
            "F1",
            f"{place}.{name}",
            f"expected one of {', '.join(RATES)}, got an unknown key",
            did_you_mean(name, RATES),
        )
        for name in rate
        if name not in RATES
    ]


def _check_library(loaded: Loaded[MachineSpec], place: str, gemm: GemmSpec) -> list[Problem]:
    """Checks that each type of products has its tiles once, and that there are tiles."""
    problems = []
    first: dict[str, str] = {}
    for number, kernels in enumerate(() if gemm.library is None else gemm.library.kernels):
        field = f"{place}.library.kernels[{number}]"
        if not kernels.tiles:
            problems.append(loaded.problem("F3", f"{field}.tiles", "expected a tile, got none"))
        for dtype in kernels.rate:
            here = f"{field}.rate.{dtype}"
            if dtype not in gemm.rate:
                message = (
                    f"expected one of {', '.join(gemm.rate)}, as in {place}.rate; got {dtype!r}"
                )
                hint = did_you_mean(dtype, gemm.rate)
                problems.append(loaded.problem("F7", here, message, hint))
            elif gemm.rate[dtype] > kernels.rate[dtype] and f"{place}.rate.{dtype}" in loaded.marks:
                most, got = (
                    format_exact(rate[dtype].per_second, FLOP_RATE_UNITS)
                    for rate in (kernels.rate, gemm.rate)
                )
                message = (
                    f"expected at most {most}, what the library reaches without its operands "
                    f"{_line(loaded, here)}, got {got}"
                )
                problems.append(loaded.problem("F7", f"{place}.rate.{dtype}", message))
            elif first.setdefault(dtype, here) != here:
                message = (
                    f"expected each type once, got it again; first {_line(loaded, first[dtype])}"
                )
                problems.append(loaded.problem("F7", here, message))
    return problems


def _check_attention(
    loaded: Loaded[MachineSpec], place: str, kernels: Iterable[AttentionSpec]
) -> list[Problem]:
    """Checks that each kernel of attention is there once."""
    problems = []
    first: dict[tuple[str, str], str] = {}
    for number, kernel in enumerate(kernels):
        here = f"{place}[{number}].backend"
        which = kernel.backend, kernel.direction
        if first.setdefault(which, here) != here:
            message = (
                f"expected each backend and direction once, got {' '.join(which)} again; "
                f"first {_line(loaded, first[which])}"
            )
            problems.append(loaded.problem("F7", here, message))
    return problems


def _check_changed(loaded: Loaded[MachineSpec], system: SystemSpec) -> list[Problem]:
    """Checks the SIPs that differ; afterwards `SystemSpec.sip_of` can be asked for any SIP."""
    problems = []
    usual, port = system.sip, system.sips.network.port
    for number, entry in enumerate(system.sips.changed):
        place = f"{_CHANGED}[{number}]"
        problems += _check_which(loaded, system, place, entry)
        if not {f"{place}.sip", f"{place}.link"} & loaded.marks.keys():
            problems.append(loaded.problem("F1", place, "expected sip or link, got neither"))
        problems += _check_values(loaded, f"{place}.sip", entry.sip, usual, "system.sip")
        problems += _check_values(loaded, f"{place}.link", entry.link, port, _NETWORK)
        shape = entry.sip.values.get(_SHAPE, usual.cubes.shape)
        if shape != usual.cubes.shape:
            expected, got = (
                " x ".join(map(str, extents)) for extents in (usual.cubes.shape, shape)
            )
            message = (
                f"expected {expected} as {_line(loaded, 'system.sip.cubes.shape')}, since links "
                f"leave all SIPs at the same cubes, got {got}"
            )
            problems.append(loaded.problem("F12", f"{place}.sip.cubes.shape", message))
        if not problems and (*_LIBRARY, "kernels") in entry.sip.values:
            gemm = entry.sip.applied(usual).pe.gemm
            problems += _check_library(loaded, f"{place}.sip.pe.gemm", gemm)
        if not problems and _ATTENTION in entry.sip.values:
            kernels = entry.sip.applied(usual).pe.attention
            problems += _check_attention(loaded, f"{place}.sip.pe.attention", kernels)
    return problems or _check_once(loaded, system)


def _check_which(
    loaded: Loaded[MachineSpec], system: SystemSpec, place: str, entry: ChangedSpec
) -> list[Problem]:
    count, field = system.sips.count, f"{place}.which"
    if not entry.which:
        return [loaded.problem("F3", field, "expected at least one SIP, got none")]
    problems = []
    seen: set[int] = set()
    for index, sip in enumerate(entry.which):
        message = ""
        if sip >= count:
            message = f"expected a SIP from 0 to {count - 1}, got {sip}"
        elif sip in seen:
            message = f"expected each SIP once, got {sip} again"
        if message:
            problems.append(loaded.problem("F7", f"{field}[{index}]", message))
        seen.add(sip)
    return problems


def _check_once(loaded: Loaded[MachineSpec], system: SystemSpec) -> list[Problem]:
    """Checks that no two entries change the same value of a SIP."""
    problems = []
    first: dict[tuple[object, ...], str] = {}
    for number, entry in enumerate(system.sips.changed):
        given = [("sip", *names) for names in entry.sip.values]
        given += [("link", *names) for names in entry.link.values]
        for names in given:
            field = ".".join((f"{_CHANGED}[{number}]", *names))
            others = [(sip, first.setdefault((sip, *names), field)) for sip in entry.which]
            again = next((found for found in others if found[1] != field), None)
            if again is not None:
                message = (
                    f"expected each value of a SIP once, got it again for {sip_name(again[0])}; "
                    f"first {_line(loaded, again[1])}"
                )
                problems.append(loaded.problem("F6", field, message))
    return problems


def _check_values(
    loaded: Loaded[MachineSpec], place: str, changes: Changes[Part], base: Part, origin: str
) -> list[Problem]:
    """Checks that the base has a place for every changed value."""
    problems = []
    for names in dict.fromkeys(changes.unknown(base)):
        *path, name = names
        holder, whole = value_at(base, tuple(path)), ".".join((origin, *path))
        if holder is None:
            message, hint = f"expected no {name}, since the machine has no {whole}", ""
        else:
            message = f"expected one of {', '.join(holder)}, as in {whole}; got an unknown key"
            hint = did_you_mean(name, holder)
        problems.append(loaded.problem("F1", ".".join((place, *names)), message, hint))
    return problems


def _check_network_fields(loaded: Loaded[MachineSpec], system: SystemSpec) -> list[Problem]:
    network, count = system.sips.network, system.sips.count
    problems = []
    for field, kinds, value in (
        ("shape", ("torus",), network.shape),
        ("edges", ("graph",), network.edges),
        ("node", ("nodes",), network.node),
        ("leaf", ("fat_tree",), network.leaf),
        ("spine", ("nodes", "fat_tree"), network.spine),
    ):
        place = f"{_NETWORK}.{field}"
        if network.kind not in kinds and value is not None:
            names = " or ".join(_KINDS[kind] for kind in kinds)
            message = f"expected only for {names}, got it for {_KINDS[network.kind]}"
            problems.append(loaded.problem("F1", place, message))
        elif network.kind in kinds and value is None and field != "spine":
            message = f"expected this key for {_KINDS[network.kind]}, got none"
            problems.append(loaded.problem("F1", place, message))
    if problems:
        return problems
    if network.shape is not None and (not network.shape or math.prod(network.shape) != count):
        shape = " x ".join(map(str, network.shape)) or "nothing"
        sips = f"the {count} SIPs {_line(loaded, 'system.sips.count')}"
        message = f"expected extents whose product is {sips}, got {shape}"
        return [loaded.problem("F12", f"{_NETWORK}.shape", message)]
    return _check_leaves(loaded, system)


def _line(loaded: Loaded[MachineSpec], field: str) -> str:
    """Returns the origin of a field's value: `on line 3`, the override, or that it is a default."""
    mark = loaded.marks.get(field)
    if mark is None:
        return "by default"
    return f"on line {mark.line}" if mark.source.lines else f"of {mark.source.name}"


def _check_leaves(loaded: Loaded[MachineSpec], system: SystemSpec) -> list[Problem]:
    network, count = system.sips.network, system.sips.count
    part, field = (network.node, "node") if network.node is not None else (network.leaf, "leaf")
    if part is None:
        return []
    if count % part.size:
        sips = f"the {count} SIPs {_line(loaded, 'system.sips.count')}"
        message = f"expected a divisor of {sips}, so that each {field} is full, got {part.size}"
        return [loaded.problem("F12", f"{_NETWORK}.{field}.size", message)]
    leaves = leaves_of(system)
    if leaves.count <= 1:
        return []
    if network.spine is None:
        # The first SIPs of the first two leaves. On rails the two must also be in different nodes,
        # because the switch of a node joins its SIPs.
        other = leaves.count + 1 if leaves.rails else leaves.size
        message = (
            f"expected a spine between the {leaves.count} leaves, got none; "
            f"{sip_name(0)} cannot reach {sip_name(other)}"
        )
        return [loaded.problem("F5", f"{_NETWORK}.spine", message)]
    links = 2 * leaves.count * network.spine.count
    if links > MAX_LINKS:
        memory = format_bytes(links * _HOST_BYTES_PER_LINK)
        message = (
            f"expected at most {MAX_LINKS} links between leaves and spines, got "
            f"2 x {leaves.count} leaves x {network.spine.count} spines = {links}, "
            f"which would take about {memory} of memory"
        )
        return [loaded.problem("F4", f"{_NETWORK}.spine.count", message)]
    return []


def _check_edges(loaded: Loaded[MachineSpec], system: SystemSpec) -> list[Problem]:
    edges = system.sips.network.edges or ()
    sips = {sip_name(sip) for sip in range(system.sips.count)}
    cables = Counter(end for edge in edges for end in edge.ends)
    routers = {name for name, count in cables.items() if count > 1 and not _looks_like_sip(name)}
    known = sorted(sips | routers)
    first: dict[frozenset[str], str] = {}
    problems = []
    for index, edge in enumerate(edges):
        field = f"{_NETWORK}.edges[{index}].ends"
        for end, name in enumerate(edge.ends):
            if name not in sips and (wrong := _wrong_end(name, cables[name], system)):
                place = f"{field}[{end}]"
                problems.append(loaded.problem("F7", place, wrong, did_you_mean(name, known)))
        pair = frozenset(edge.ends)
        if len(pair) == 1:
            message = f"expected two nodes, got a cable from {edge.ends[0]} to itself"
            problems.append(loaded.problem("F7", field, message))
        elif pair in first:
            line = loaded.marks[first[pair]].line
            message = f"duplicate cable from {edge.ends[0]} to {edge.ends[1]}, first on line {line}"
            problems.append(loaded.problem("F7", field, message))
        first.setdefault(pair, field)
    return problems


def _looks_like_sip(name: str) -> bool:
    return re.fullmatch(r"sip[0-9]+", name, re.IGNORECASE) is not None or name == "switch"


def _wrong_end(name: str, cables: int, system: SystemSpec) -> str:
    if _looks_like_sip(name):
        return f"expected sip0 to {sip_name(system.sips.count - 1)} or a router, got {name}"
    if not _NODE.fullmatch(name):
        return f"expected a name of letters, digits, - and _, got {name!r}"
    if cables == 1:
        return f"expected a router with two cables or more, got {name} with this one only"
    return ""


def _check_connected(loaded: Loaded[MachineSpec], system: SystemSpec) -> list[Problem]:
    sips = [sip_name(sip) for sip in range(system.sips.count)]
    parts = _components(sips, system.sips.network.edges or ())
    if len(parts) == 1:
        return []
    shown = "; ".join(_folded(part) for part in parts[:_SHOWN_NODES])
    more = f"; and {len(parts) - _SHOWN_NODES} more" if len(parts) > _SHOWN_NODES else ""
    message = (
        f"expected a connected machine, got {len(parts)} parts: {shown}{more}; "
        f"{parts[0][0]} cannot reach {parts[1][0]}"
    )
    return [loaded.problem("F5", f"{_NETWORK}.edges", message)]


def _components(sips: list[str], edges: tuple[EdgeSpec, ...]) -> list[list[str]]:
    """Returns the connected parts, in order of their first nodes."""
    neighbours: dict[str, list[str]] = {sip: [] for sip in sips}
    for edge in edges:
        for a, b in (edge.ends, edge.ends[::-1]):
            neighbours.setdefault(a, []).append(b)
    order = {name: place for place, name in enumerate(neighbours)}
    parts: list[list[str]] = []
    seen: set[str] = set()
    for start in neighbours:
        if start in seen:
            continue
        part, stack = [], [start]
        seen.add(start)
        while stack:
            node = stack.pop()
            part.append(node)
            fresh = [name for name in dict.fromkeys(neighbours[node]) if name not in seen]
            seen.update(fresh)
            stack += fresh
        parts.append(sorted(part, key=order.__getitem__))
    return parts


def _folded(part: list[str]) -> str:
    names = ", ".join(part[:_SHOWN_NODES])
    more = f", and {len(part) - _SHOWN_NODES} more" if len(part) > _SHOWN_NODES else ""
    return f"{{{names}{more}}}"
