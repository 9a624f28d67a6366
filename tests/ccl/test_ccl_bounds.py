"""No collective is faster than the links of its machine, whatever the machine."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from ccl_operations import Case, Program, Rank, even, simulate
from ccl_shipped import ENTRIES, as_run, ranks_of, shipped
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernbench.ccl.operations import OPERATIONS
from kernbench.topology import Topology
from kernbench.topology.links import Link

BANDWIDTHS = st.sampled_from(["2 GB/s", "12.5 GB/s", "50 GB/s", "100 GB/s", "450 GB/s"])
LATENCIES = st.sampled_from(["0 ns", "20 ns", "100 ns", "3 us"])


@pytest.mark.parametrize(("name", "operation"), ENTRIES)
def test_nothing_is_faster_than_the_links(
    topology: Callable[[str], Topology], name: str, operation: str
) -> None:
    for machine_name, ranks in (("sip8", 8), ("torus4x4", 16), ("h200x8", 3)):
        check_bound(
            topology(machine_name), name, operation, 2 if operation == "send_recv" else ranks
        )


def link() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"bandwidth": BANDWIDTHS, "latency": LATENCIES})


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, dict[str, Any]]:
    """A tree, further cables that close circles, and maybe a router; each cable has its speed."""
    count = draw(st.integers(2, 9))
    pairs = {(draw(st.integers(0, sip - 1)), sip) for sip in range(1, count)}
    pairs |= draw(
        st.sets(st.tuples(st.integers(0, count - 2), st.integers(1, count - 1)), max_size=6)
    )
    ends = [[f"sip{a}", f"sip{b}"] for a, b in sorted(pairs) if a < b]
    at_router = draw(st.sets(st.integers(0, count - 1), max_size=4))
    if len(at_router) > 1:
        ends += [[f"sip{sip}", "hub"] for sip in sorted(at_router)]
    edges = [{"ends": pair, **(draw(link()) if draw(st.booleans()) else {})} for pair in ends]
    return count, {"kind": "graph", "edges": edges, **draw(link())}


@st.composite
def regular(draw: st.DrawFn) -> tuple[int, dict[str, Any]]:
    kind = draw(st.sampled_from(["ring", "torus", "switch", "nodes", "fat_tree"]))
    low, high = draw(st.integers(1, 4)), draw(st.integers(2, 4))
    network: dict[str, Any] = {"kind": kind, **draw(link())}
    if kind == "torus":
        network["shape"] = [low, high]
    if kind == "nodes":
        network["node"] = {"size": low, **draw(link())}
    if kind == "fat_tree":
        network["leaf"] = {"size": low}
    if kind in {"nodes", "fat_tree"}:
        network["spine"] = {
            "count": draw(st.integers(1, 3)),
            "latency": draw(LATENCIES),
            "oversubscription": draw(st.sampled_from([1, 2, 4])),
        }
    return low * high, network


@pytest.mark.slow
@given(
    spec=st.one_of(graphs(), graphs(), regular()),
    entry=st.sampled_from([param.values for param in ENTRIES]),
)
@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_is_faster_than_the_links_of_any_machine(
    make_topology: Callable[..., Topology], spec: tuple[int, dict[str, Any]], entry: Any
) -> None:
    count, network = spec
    name, operation = entry
    check_bound(make_topology(count, network), name, operation, *ranks_of(operation, count))


def check_bound(machine: Topology, name: str, operation: str, ranks: int) -> None:
    """What the ranks send cannot be done before the busiest link has carried its share."""
    chosen = shipped(name, machine)
    case = even(operation, ranks, 40_000 if OPERATIONS[operation].blocks == "one" else 5_000)
    case = as_run(case, chosen, machine, 4)
    loads = dict.fromkeys(range(len(machine.links)), 0)
    for channel in range(case.channels):
        for rank in range(ranks):
            program = Program(case, rank, channel)
            getattr(chosen.module, operation)(program)
            place = Rank(case, program, np.empty(0))
            for step in program.exchanges:
                if step.send >= 0 and step.to != rank:
                    pieces = place.pieces(step.send, step.span)
                    for link in machine.sip_route(rank, step.to):
                        loads[link.index] += 4 * sum(p.stop - p.start for p in pieces)
    bound = max(link.bandwidth.duration_ps(loads[link.index]) for link in machine.links)
    time = simulate(machine, chosen, case).time
    assert time >= bound
    check_cuts(machine, case, time)


def check_cuts(machine: Topology, case: Case, time: int) -> None:
    """Whatever the algorithm: what some ranks need of the others goes over the links to them."""
    ranks = range(case.ranks)
    cuts = [{rank} for rank in ranks] + [set(range(some)) for some in range(2, case.ranks)]
    for inside in cuts:
        for leaving in (False, True):
            crossing = [link for link in machine.links if _crosses(link, inside, leaving=leaving)]
            across = inside if leaving else set(ranks) - inside
            moved = 4 * must_move(case, across, set(ranks) - across)
            assert sum(link.bandwidth.per_second for link in crossing) * time >= moved * 10**12


def _crosses(link: Link, inside: Iterable[int], *, leaving: bool) -> bool:
    ends = [any(end.startswith(f"sip{sip}.") for sip in inside) for end in (link.src, link.dst)]
    return ends == [leaving, not leaving]


def must_move(case: Case, senders: set[int], receivers: set[int]) -> int:
    """Returns the elements that must go from some ranks to all others, however it is done."""
    if not senders or not receivers:
        return 0
    size, root = case.blocks(0)[0], case.root
    match case.operation:
        case "all_reduce":
            return size
        case "reduce":
            return size * (root in receivers)
        case "broadcast" | "send_recv":
            return size * (root in senders)
        case "all_gather":
            return size * len(senders)
        case "reduce_scatter":
            return size * len(receivers)
        case "gather":
            return size * len(senders) * (root in receivers)
        case "scatter":
            return size * len(receivers) * (root in senders)
        case "all_to_all":
            return size * len(senders) * len(receivers)
    raise AssertionError(case.operation)
