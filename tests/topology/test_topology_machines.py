"""The shipped machines: what they hold, and how a machine is named."""

from pathlib import Path
from typing import Any

import pytest

from kernbench.config import ConfigError
from kernbench.topology import load_topology, shipped_machines
from kernbench.topology.spec import MachineSpec
from kernbench.units import Bandwidth, Ps


@pytest.mark.parametrize(
    ("name", "sips", "pes", "links"),
    [
        # cube links: 8 SIPs x 4 neighbouring pairs x 2 directions; SIP links: 8 x 2
        ("sip8", 8, 32, 8 * 4 * 2 + 8 * 2),
        ("h200x8", 8, 132, 8 * 2),
        ("h100x8", 8, 132, 8 * 2),
        ("a100x8", 8, 108, 8 * 2),
        ("b200x8", 8, 148, 8 * 2),
        ("gb200_nvl72", 72, 148, 72 * 2),
        # a cable between each two, both ways
        ("mi300x8", 8, 304, 8 * 7),
        ("torus4x4", 16, 8, 16 * 2 * 2),
        ("ring1024", 1024, 8, 1024 * 2),
        # a port of a switch and a NIC each, both ways; leaves x spines, both ways
        ("h200x8_x4_nodes", 32, 132, 32 * 4 + 8 * 4 * 2),
        ("fattree64", 64, 8, 64 * 2 + 8 * 4 * 2),
    ],
)
def test_a_shipped_machine_has_its_parts(name: str, sips: int, pes: int, links: int) -> None:
    handle = load_topology(name)
    topology = handle.topology_obj
    assert handle.path == shipped_machines()[name]
    assert isinstance(topology.machine, MachineSpec)
    assert topology.name == name
    assert topology.spec["system"]["sips"]["count"] == topology.world_size == sips
    assert {topology.num_pes(sip) for sip in range(sips)} == {pes}
    assert len(topology.links) == links
    assert [link.index for link in topology.links] == list(range(links))


def test_these_machines_are_shipped() -> None:
    assert list(shipped_machines()) == [
        "a100x8",
        "b200x8",
        "fattree64",
        "gb200_nvl72",
        "h100x8",
        "h200x8",
        "h200x8_x4_nodes",
        "mi300x8",
        "ring1024",
        "sip8",
        "torus4x4",
    ]


def test_the_nodes_are_the_calibrated_machine_inside() -> None:
    alone, nodes = (
        load_topology(name).topology_obj.machine.system for name in ("h200x8", "h200x8_x4_nodes")
    )
    assert (nodes.sip, nodes.host) == (alone.sip, alone.host)
    node, switch = nodes.sips.network.node, alone.sips.network
    assert node is not None
    assert (node.size, node.bandwidth, node.latency) == (8, switch.bandwidth, switch.latency)


def test_a_path_does_what_a_name_does() -> None:
    path = shipped_machines()["sip8"]
    for given in (path, str(path)):
        handle = load_topology(given)
        assert handle.path == path
        assert handle.topology_obj.machine == load_topology("sip8").topology_obj.machine


def test_a_file_without_a_suffix_outranks_a_shipped_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shipped_machines()["sip8"].read_text()
    (tmp_path / "h200x8").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert load_topology("h200x8").topology_obj.name == "sip8"


@pytest.mark.parametrize("given", [3, None, b"sip8"])
def test_what_is_no_name_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        load_topology(given)
    assert str(caught.value) == (
        "[F2] the machine: 1 problem\n"
        f"  topology: expected a file or the name of a shipped machine, got {given!r} [F2]"
    )


def test_an_unknown_name_shows_what_there_is() -> None:
    with pytest.raises(ConfigError) as caught:
        load_topology("h200x9")
    assert str(caught.value) == (
        "[F11] h200x9: 1 problem\n"
        "  h200x9: expected a file or one of the shipped machines a100x8, b200x8, "
        "fattree64, gb200_nvl72, h100x8, h200x8, h200x8_x4_nodes, mi300x8, ring1024, sip8, "
        "torus4x4, got 'h200x9' [F11]\n"
        "      did you mean `h200x8`?"
    )


def test_overrides_reach_the_machine_and_the_raw_mapping() -> None:
    overrides = ["system.sips.count=4", "system.sips.network.latency=1 us"]
    topology = load_topology("sip8", overrides).topology_obj
    assert topology.world_size == topology.spec["system"]["sips"]["count"] == 4
    (link,) = topology.route("sip0.cube1", "sip1.cube0")
    assert (link.latency, link.bandwidth) == (Ps(10**6), Bandwidth(50 * 10**9))


def test_pes_are_numbered_through_the_cubes_of_a_sip() -> None:
    topology = load_topology("sip8").topology_obj
    assert [topology.pe_node(3, pe) for pe in (0, 7, 8, 31)] == [
        "sip3.cube0",
        "sip3.cube0",
        "sip3.cube1",
        "sip3.cube3",
    ]
    for sip, pe in ((0, 32), (8, 0), (-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="sip8 has SIPs 0 to 7 with cubes 0 to 3"):
            topology.pe_node(sip, pe)
