"""SIPs that differ: what each has, how fast its links are, and the text of what cannot be."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernbench.config import ConfigError
from kernbench.topology import Topology, load_topology, shipped_machines
from kernbench.units import Bandwidth, FlopRate

SIP8 = shipped_machines()["sip8"].read_text()
Changed = Callable[..., Topology]

SLOW = {"bandwidth": "5 GB/s", "latency": "1 us"}
FAST = {"bandwidth": "500 GB/s", "latency": "10 ns"}


def test_each_sip_has_its_own(changed_topology: Changed) -> None:
    machine = changed_topology(
        "sip8",
        {"which": [3, 5], "sip": {"pe": {"math": "64 GFLOP/s", "gemm": {"tile": [32, 64]}}}},
        {"which": [5], "sip": {"cube": {"pes": 6}}},
        {"which": [6], "sip": {"pe": {"gemm": {"tile": [32, 64]}, "math": "64 GFLOP/s"}}},
        {"which": [7], "sip": {"launch": "1 us"}},  # as all others
    )
    system = machine.machine.system
    slow = replace(
        system.sip,
        pe=replace(
            system.sip.pe,
            math=FlopRate(64 * 10**9),
            gemm=replace(system.sip.pe.gemm, tile=(32, 64)),
        ),
    )
    small = replace(slow, cube=replace(slow.cube, pes=6))
    assert system.kinds == (system.sip, slow, small)
    assert [system.kind_of(sip) for sip in range(8)] == [0, 0, 0, 1, 0, 2, 1, 0]
    # Of SIPs that are alike there is one description.
    assert system.sip_of(3) is system.sip_of(6)
    assert system.sip_of(7) is system.sip_of(0) is system.sip
    assert [machine.num_pes(sip) for sip in (4, 5)] == [32, 24]
    assert (machine.pe_node(4, 6), machine.pe_node(5, 6)) == ("sip4.cube0", "sip5.cube1")
    with pytest.raises(ValueError, match="no cube 4 in SIP 5"):
        machine.pe_node(5, 24)


def test_where_a_value_is_from(changed_topology: Changed) -> None:
    entries = (
        {"which": [1, 2], "sip": {"launch": "2 us"}},
        {"which": [2], "sip": {"pe": {"math": "1 GFLOP/s"}}},
    )
    system = changed_topology("sip8", *entries).machine.system
    assert system.field_of(2, "pe", "math") == "system.sips.changed[1].sip.pe.math"
    assert system.field_of(2, "launch") == "system.sips.changed[0].sip.launch"
    assert system.field_of(1, "pe", "math") == "system.sip.pe.math"


def test_an_override_replaces_the_list(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    listed = "    changed: [{which: [1], sip: {launch: 5 us}}]\n"
    file.write_text(SIP8.replace("  sip:\n", f"{listed}  sip:\n", 1))
    for overrides, changed in (
        ([], 1),
        (["system.sips.changed=[{which: [2], sip: {launch: 5 us}}]"], 2),
        (["system.sips.changed=[]"], None),
    ):
        system = load_topology(file, overrides).topology_obj.machine.system
        expected = [5 * 10**6 if sip == changed else 10**6 for sip in range(3)]
        assert [system.sip_of(sip).launch for sip in range(3)] == expected


def speeds(machine: Topology, sip: int) -> dict[str, tuple[int, int]]:
    """Returns GB/s and ns of each link from or to a SIP."""
    name = f"sip{sip}"
    return {
        link.name: (link.bandwidth.per_second // 10**9, link.latency // 1000)
        for link in machine.links
        if name in link.name.split("->")
    }


NODES = ["system.sips.count=16"]
EDGES = (
    "system.sips.network={kind: graph, bandwidth: 50 GB/s, latency: 100 ns, edges: ["
    "{ends: [sip0, sip1], bandwidth: 2 GB/s}, {ends: [sip1, r]}, {ends: [r, sip2], latency: 3 us}]}"
)


@pytest.mark.parametrize(
    ("name", "overrides", "link", "expected"),
    [
        # A cable is as slow as the slower of its ends, whichever of them it was declared at.
        pytest.param("sip8", [], SLOW, {
            "sip1->sip0": (5, 1000), "sip0->sip1": (5, 1000),
            "sip1->sip2": (5, 1000), "sip2->sip1": (5, 1000),
        }, id="ring"),
        pytest.param("sip8", [], {"latency": "1 us"}, {
            "sip1->sip0": (50, 1000), "sip0->sip1": (50, 1000),
            "sip1->sip2": (50, 1000), "sip2->sip1": (50, 1000),
        }, id="latency"),
        pytest.param("sip8", [], FAST, {
            "sip1->sip0": (50, 100), "sip0->sip1": (50, 100),
            "sip1->sip2": (50, 100), "sip2->sip1": (50, 100),
        }, id="faster"),
        pytest.param("torus4x4", [], {"bandwidth": "5 GB/s"}, {
            f"{a}->{b}": (5, 100)
            for other in ("sip0", "sip2", "sip5", "sip13")
            for a, b in (("sip1", other), (other, "sip1"))
        }, id="torus"),
        pytest.param("sip8", ["system.sips.count=3", EDGES], {"bandwidth": "5 GB/s"}, {
            "sip0->sip1": (2, 100), "sip1->sip0": (2, 100),
            "sip1->r": (5, 100), "r->sip1": (5, 100),
        }, id="graph"),
        # What a port's latency has above that of others delays what comes, too.
        pytest.param("h200x8", [], SLOW, {
            "sip1->switch": (5, 1000), "switch->sip1": (5, 760),
        }, id="switch"),
        pytest.param("h200x8", [], FAST, {
            "sip1->switch": (500, 10), "switch->sip1": (500, 0),
        }, id="faster port"),
        pytest.param("fattree64", NODES, SLOW, {
            "sip1->leaf0": (5, 1000), "leaf0->sip1": (5, 0),
        }, id="NIC of a fat tree"),
        pytest.param("h200x8_x4_nodes", NODES, {"bandwidth": "5 GB/s", "latency": "3 us"}, {
            "sip1->node0": (361, 240), "node0->sip1": (361, 0),
            "sip1->leaf1": (5, 3000), "leaf1->sip1": (5, 800),
        }, id="NIC of a node"),
        pytest.param("h200x8_x4_nodes", NODES, {"node": SLOW}, {
            "sip1->node0": (5, 1000), "node0->sip1": (5, 760),
            "sip1->leaf1": (48, 2200), "leaf1->sip1": (48, 0),
        }, id="port in a node"),
    ],
)  # fmt: skip
def test_a_sip_has_ports_of_its_own(
    changed_topology: Changed,
    name: str,
    overrides: list[str],
    link: Mapping[str, Any],
    expected: dict[str, tuple[int, int]],
) -> None:
    machine = changed_topology(name, {"which": [1], "link": link}, overrides=overrides)
    assert speeds(machine, 1) == expected
    # Nothing else has changed.
    plain = changed_topology(name, overrides=overrides)
    for one, usual in zip(machine.links, plain.links, strict=True):
        assert one == usual or one.name in expected


def test_both_ends_of_a_cable(changed_topology: Changed) -> None:
    machine = changed_topology(
        "sip8", {"which": [1, 2], "link": FAST}, {"which": [3], "link": SLOW}
    )
    assert speeds(machine, 2) == {
        "sip1->sip2": (500, 10), "sip2->sip1": (500, 10),
        "sip2->sip3": (5, 1000), "sip3->sip2": (5, 1000),
    }  # fmt: skip


def test_links_between_the_cubes_of_a_sip(changed_topology: Changed) -> None:
    grid = {"cubes": {"link": {"bandwidth": "20 GB/s"}}}
    machine = changed_topology("sip8", {"which": [2], "sip": grid})
    for sip, rate in ((1, 200), (2, 20)):
        (link,) = machine.route(f"sip{sip}.cube0", f"sip{sip}.cube2")
        assert (link.bandwidth, link.latency) == (Bandwidth(rate * 10**9), 20_000)


def test_routes_of_a_graph_go_by_the_latency_that_there_is(changed_topology: Changed) -> None:
    edges = (
        "[{ends: [sip0, sip1]}, {ends: [sip1, sip2]}, {ends: [sip0, sip3]}, {ends: [sip3, sip2]}]"
    )
    network = (
        f"system.sips.network={{kind: graph, bandwidth: 1 GB/s, latency: 9 ns, edges: {edges}}}"
    )
    for entries, through in ((), "sip1"), (({"which": [1], "link": {"latency": "1 us"}},), "sip3"):
        machine = changed_topology("sip8", *entries, overrides=["system.sips.count=4", network])
        names = [link.name for link in machine.sip_route(0, 2) if "." not in link.name]
        assert names == [f"sip0->{through}", f"{through}->sip2"]


# Mistakes


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Returns what is wrong with `sip8` and entries, each a line from line 17 on."""
    monkeypatch.chdir(tmp_path)

    def error(*entries: str, text: str = SIP8) -> str:
        listed = "".join(f"      - {entry}\n" for entry in entries)
        Path("m.yaml").write_text(text.replace("  sip:\n", f"    changed:\n{listed}  sip:\n", 1))
        with pytest.raises(ConfigError) as caught:
            load_topology("m.yaml")
        return str(caught.value)

    return error


@pytest.mark.parametrize(
    ("entry", "column", "message", "hint"),
    [
        ("{which: [9], sip: {launch: 2 us}}", 18,
         "which[0]: expected a SIP from 0 to 7, got 9 [F7]", ""),
        ("{which: [-1], sip: {launch: 2 us}}", 18,
         "which[0]: expected an integer from 0 to 131071, got -1 [F3]", ""),
        ("{which: [1, 2, 1], sip: {launch: 2 us}}", 24,
         "which[2]: expected each SIP once, got 1 again [F7]", ""),
        ("{which: [], sip: {launch: 2 us}}", 17,
         "which: expected at least one SIP, got none [F3]", ""),
        ("{which: 3, sip: {launch: 2 us}}", 17,
         "which: expected a list, got 3 [F2]", ""),
        ("{sip: {launch: 2 us}}", 9,
         "which: expected this key, got none [F1]", ""),
        ("{which: [1]}", 9,
         "expected sip or link, got neither [F1]", ""),
        ("{which: [1], sips: {launch: 2 us}}", 22,
         "sips: expected one of which, sip, link, got an unknown key [F1]", "sip"),
        ("{which: [1], sip: {pe: {maths: 1 GFLOP/s}}}", 33,
         "sip.pe.maths: expected one of tcm, issue, poll_interval, dma, gemm, math, attention, "
         "programs, got an unknown key [F1]", "math"),
        ("{which: [1], sip: {pe: {gemm: {rate: {bf61: 1 GFLOP/s}}}}}", 53,
         "sip.pe.gemm.rate.bf61: expected one of fp64, fp32, fp16, bf16, fp8, int8, int32, as in "
         "system.sip.pe.gemm.rate; got an unknown key [F1]", "bf16"),
        ("{which: [1], sip: {launch: -2 us}}", 36,
         "sip.launch: expected a time from 0 s to 1 s, got -2 us [F3]", ""),
        ("{which: [1], sip: {cubes: {shape: [1, 4]}}}", 43,
         "sip.cubes.shape: expected 2 x 2 as on line 22, since links leave all SIPs at the same "
         "cubes, got 1 x 4 [F12]", ""),
        ("{which: [1], link: {node: {latency: 1 us}}}", 45,
         "link.node.latency: expected no latency, since the machine has no "
         "system.sips.network.node [F1]", ""),
        ("{which: [1], link: {latencies: 1 us}}", 29,
         "link.latencies: expected one of bandwidth, latency, node, got an unknown key [F1]",
         "latency"),
        ("{which: [1, 2, 3, 4, 5, 6], sip: {cube: {pes: 1000000}}}", 0, "", ""),
    ],
)  # fmt: skip
def test_the_text_of_each_mistake(
    told: Callable[..., str], entry: str, column: int, message: str, hint: str
) -> None:
    if not message:
        assert told(entry).startswith(
            "[F4] m.yaml: 1 problem\n"
            "  m.yaml:11:12: system.sips.count: expected at most 20971520 PEs in all, got 8 SIPs x "
            "4 cubes x 8 PEs, some changed, = 24000064, which would take about 91.55 GiB of memory"
        )
        return
    field, dot = ("", ": ") if message.startswith("expected") else (".", "")
    lines = [
        f"{message.rsplit(' ', 1)[-1]} m.yaml: 1 problem",
        f"  m.yaml:17:{column}: system.sips.changed[0]{dot}{field}{message}",
        f"            - {entry}",
        " " * (column + 5) + "^",
    ]
    if hint:
        lines.append(f"      did you mean `{hint}`?")
    assert told(entry) == "\n".join(lines)


def test_cubes_of_which_the_file_says_nothing_must_stay_too(told: Callable[..., str]) -> None:
    text = shipped_machines()["h200x8"].read_text().replace("    cubes:\n      shape: [1, 1]\n", "")
    assert "cubes:" not in text
    said = told("{which: [1], sip: {cubes: {shape: [2, 2]}}}", text=text)
    assert "sip.cubes.shape: expected 1 x 1 as by default, since links leave all SIPs" in said


def test_one_value_of_a_sip_is_said_once(told: Callable[..., str]) -> None:
    entries = (
        "{which: [1, 2], sip: {launch: 2 us, pe: {issue: 1 ns}}, link: {latency: 1 us}}",
        "{which: [4, 2], sip: {pe: {dma: 1 GB/s, issue: 3 ns}}, link: {latency: 2 us}}",
        "{which: [2], link: {bandwidth: 1 GB/s}}",
    )
    assert told(*entries) == (
        "[F6] m.yaml: 2 problems\n"
        "  m.yaml:18:56: system.sips.changed[1].sip.pe.issue: expected each value of a SIP once, "
        "got it again for sip2; first on line 17 [F6]\n"
        f"            - {entries[1]}\n"
        f"{' ' * 61}^\n"
        "  m.yaml:18:80: system.sips.changed[1].link.latency: expected each value of a SIP once, "
        "got it again for sip2; first on line 17 [F6]\n"
        f"            - {entries[1]}\n"
        f"{' ' * 85}^"
    )


def test_a_link_that_no_sip_has(told: Callable[..., str]) -> None:
    text = SIP8.replace("shape: [2, 2]\n", "shape: [1, 1]\n").replace(
        "      link: {bandwidth: 200 GB/s, latency: 20 ns}\n", ""
    )
    assert told("{which: [1], sip: {cubes: {link: {latency: 1 us}}}}", text=text) == (
        "[F1] m.yaml: 1 problem\n"
        "  m.yaml:17:52: system.sips.changed[0].sip.cubes.link.latency: expected no latency, "
        "since the machine has no system.sip.cubes.link [F1]\n"
        "            - {which: [1], sip: {cubes: {link: {latency: 1 us}}}}\n"
        f"{' ' * 57}^"
    )


def test_an_override_of_a_part_of_the_list_is_refused() -> None:
    for key, message in (
        ("changed.0.sip.launch", "system.sips.changed: expected a list, got a mapping [F2]"),
        (
            "changed[0].sip.launch",
            "system.sips.changed[0]: expected one of count, network, changed, got an unknown key "
            "[F1]\n      did you mean `changed`?",
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            load_topology("sip8", [f"system.sips.{key}=2 us"])
        assert str(caught.value).endswith(message)
