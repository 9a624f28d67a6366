"""Machines whose parts do not fit together: the full text of each error, with its place."""

from pathlib import Path

import pytest

from kernbench.config import ConfigError
from kernbench.topology import load_topology, shipped_machines

SIP8 = shipped_machines()["sip8"].read_text()
CUBE_LINK = "      link: {bandwidth: 200 GB/s, latency: 20 ns}\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def error(text: str, *overrides: str) -> str:
    assert text != SIP8 or overrides
    Path("m.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_topology("m.yaml", overrides)
    return str(caught.value)


def graph(*edges: str) -> str:
    listed = "".join(f"        - {{ends: {ends}}}\n" for ends in edges)
    return SIP8.replace("kind: ring\n", f"kind: graph\n      edges:\n{listed}")


def test_more_pes_than_can_be_simulated() -> None:
    assert error(SIP8, "system.sip.cube.pes=1000000") == (
        "[F4] m.yaml: 1 problem\n"
        "  m.yaml:11:12: system.sips.count: expected at most 20971520 PEs in all, got 8 SIPs "
        "x 4 cubes x 1000000 PEs = 32000000, which would take about 122.1 GiB of memory [F4]\n"
        "          count: 8\n"
        "                 ^"
    )


def test_cubes_without_a_link_between_them() -> None:
    assert error(SIP8.replace(CUBE_LINK, "")) == (
        "[F5] m.yaml: 1 problem\n"
        "  m.yaml:19:5: system.sip.cubes.link: expected a link between the 4 cubes, got none [F5]\n"
        "          cubes:\n"
        "          ^"
    )


def test_all_problems_of_a_machine_are_told_at_once() -> None:
    text = SIP8.replace(CUBE_LINK, "").replace("kind: ring", "kind: torus\n      shape: [3, 3]")
    assert error(text) == (
        "m.yaml: 2 problems\n"
        "  m.yaml:14:14: system.sips.network.shape: expected extents whose product is the 8 SIPs "
        "on line 11, got 3 x 3 [F12]\n"
        "            shape: [3, 3]\n"
        "                   ^\n"
        "  m.yaml:20:5: system.sip.cubes.link: expected a link between the 4 cubes, got none [F5]\n"
        "          cubes:\n"
        "          ^"
    )


NODE = "node: {size: 3, bandwidth: 1 GB/s, latency: 1 ns}"
SPINE = "spine: {count: 2, latency: 1 ns}"


@pytest.mark.parametrize(
    ("kind", "where", "message"),
    [
        ("torus", "12:5", "shape: expected this key for a torus, got none [F1]"),
        ("graph", "12:5", "edges: expected this key for a graph, got none [F1]"),
        ("nodes", "12:5", "node: expected this key for nodes, got none [F1]"),
        ("fat_tree", "12:5", "leaf: expected this key for a fat tree, got none [F1]"),
        (
            "torus\n      shape: []",
            "14:14",
            "shape: expected extents whose product is the 8 SIPs on line 11, got nothing [F12]",
        ),
        (
            "ring\n      shape: [8]",
            "14:14",
            "shape: expected only for a torus, got it for a ring [F1]",
        ),
        (
            "switch\n      edges: []",
            "14:14",
            "edges: expected only for a graph, got it for a switch [F1]",
        ),
        (f"torus\n      shape: [8]\n      {NODE}", "15:13", "node: expected only for nodes, "
         "got it for a torus [F1]"),
        (f"ring\n      {SPINE}", "14:14", "spine: expected only for nodes or a fat tree, "
         "got it for a ring [F1]"),
        ("nodes\n      leaf: {size: 8}\n      " + NODE, "14:13", "leaf: expected only for "
         "a fat tree, got it for nodes [F1]"),
        # F12: the two places that do not fit each other
        (f"nodes\n      {NODE}", "14:20", "node.size: expected a divisor of the 8 SIPs on line 11, "
         "so that each node is full, got 3 [F12]"),
        ("fat_tree\n      leaf: {size: 16}", "14:20", "leaf.size: expected a divisor of the 8 SIPs "
         "on line 11, so that each leaf is full, got 16 [F12]"),
        # F5: a pair without a way
        (f"nodes\n      {NODE.replace('3', '2')}", "12:5", "spine: expected a spine between the 2 "
         "leaves, got none; sip0 cannot reach sip3 [F5]"),
        ("fat_tree\n      leaf: {size: 2}", "12:5", "spine: expected a spine between the 4 leaves, "
         "got none; sip0 cannot reach sip2 [F5]"),
    ],
)  # fmt: skip
def test_keys_belong_to_their_kind_of_network(kind: str, where: str, message: str) -> None:
    text = SIP8.replace("kind: ring", f"kind: {kind}")
    line, column = map(int, where.split(":"))
    code = message.rsplit("[", maxsplit=1)[-1]
    assert error(text) == (
        f"[{code} m.yaml: 1 problem\n"
        f"  m.yaml:{where}: system.sips.network.{message}\n"
        f"      {text.splitlines()[line - 1]}\n"
        f"      {' ' * (column - 1)}^"
    )


def test_an_override_that_does_not_fit_the_file_is_named() -> None:
    text = SIP8.replace("kind: ring", "kind: fat_tree\n      leaf: {size: 4}\n      " + SPINE)
    assert error(text, "system.sips.count=6") == (
        "[F12] m.yaml: 1 problem\n"
        "  m.yaml:14:20: system.sips.network.leaf.size: expected a divisor of the 6 SIPs of --set "
        "system.sips.count=6, so that each leaf is full, got 4 [F12]\n"
        "            leaf: {size: 4}\n"
        "                         ^"
    )


def test_more_links_than_can_be_simulated() -> None:
    spine = "spine: {count: 1024, latency: 1 ns}"
    text = SIP8.replace("kind: ring", "kind: fat_tree\n      leaf: {size: 1}\n      " + spine)
    assert error(text, "system.sips.count=1000") == (
        "[F4] m.yaml: 1 problem\n"
        "  m.yaml:15:22: system.sips.network.spine.count: expected at most 1048576 links between "
        "leaves and spines, got 2 x 1000 leaves x 1024 spines = 2048000, "
        "which would take about 1000 MiB of memory [F4]\n"
        "            spine: {count: 1024, latency: 1 ns}\n"
        "                           ^"
    )


def test_what_a_small_machine_leaves_unused_is_no_mistake() -> None:
    Path("m.yaml").write_text(shipped_machines()["h200x8_x4_nodes"].read_text())
    for count, links in ((8, 16), (16, 16 * 4 + 2 * 8 * 4)):
        topology = load_topology("m.yaml", [f"system.sips.count={count}"]).topology_obj
        assert len(topology.links) == links


def test_cables_that_lead_nowhere_or_twice_to_the_same_place() -> None:
    text = graph("[sip0, spine]", "[spine, sip1]", "[sip1, spine]", "[sip2, sip9]", "[sip3, sip3]",
                 "[sip4, spin]", "[sip5, a.b]", "[sip6, switch]")  # fmt: skip
    assert error(text) == (
        "[F7] m.yaml: 6 problems\n"
        "  m.yaml:17:18: system.sips.network.edges[2].ends: duplicate cable from sip1 to spine, "
        "first on line 16 [F7]\n"
        "              - {ends: [sip1, spine]}\n"
        "                       ^\n"
        "  m.yaml:18:25: system.sips.network.edges[3].ends[1]: expected sip0 to sip7 or a router, "
        "got sip9 [F7]\n"
        "              - {ends: [sip2, sip9]}\n"
        "                              ^\n"
        "      did you mean `sip7`?\n"
        "  m.yaml:19:18: system.sips.network.edges[4].ends: expected two nodes, "
        "got a cable from sip3 to itself [F7]\n"
        "              - {ends: [sip3, sip3]}\n"
        "                       ^\n"
        "  m.yaml:20:25: system.sips.network.edges[5].ends[1]: expected a router with two cables "
        "or more, got spin with this one only [F7]\n"
        "              - {ends: [sip4, spin]}\n"
        "                              ^\n"
        "      did you mean `spine`?\n"
        "  m.yaml:21:25: system.sips.network.edges[6].ends[1]: expected a name of letters, digits, "
        "- and _, got 'a.b' [F7]\n"
        "              - {ends: [sip5, a.b]}\n"
        "                              ^\n"
        "  m.yaml:22:25: system.sips.network.edges[7].ends[1]: expected sip0 to sip7 or a router, "
        "got switch [F7]\n"
        "              - {ends: [sip6, switch]}\n"
        "                              ^"
    )


def test_a_machine_in_parts() -> None:
    text = graph("[sip0, a]", "[a, sip1]", "[sip2, sip3]", "[sip2, b]", "[b, sip4]")
    assert error(text) == (
        "[F5] m.yaml: 1 problem\n"
        "  m.yaml:14:7: system.sips.network.edges: expected a connected machine, got 5 parts: "
        "{sip0, sip1, a}; {sip2, sip3, sip4, b}; {sip5}; {sip6}; {sip7}; "
        "sip0 cannot reach sip2 [F5]\n"
        "            edges:\n"
        "            ^"
    )


def test_a_large_machine_in_parts_is_cut() -> None:
    text = error(graph(*(f"[sip{i}, sip{i + 1}]" for i in range(10))), "system.sips.count=40")
    assert "got 30 parts: {sip0, sip1, sip2, sip3, sip4, sip5, sip6, sip7, and 3 more}; " in text
    assert "; {sip17}; and 22 more; sip0 cannot reach sip11 [F5]" in text


def test_one_sip_needs_no_cables() -> None:
    Path("m.yaml").write_text(SIP8.replace("kind: ring", "kind: graph\n      edges: []"))
    topology = load_topology("m.yaml", ["system.sips.count=1"]).topology_obj
    assert topology.sip_route(0, 0) == ()


LIBRARY = "{{start: 1 us, write_back: 0 B, split_k: 1, kernels: [{}]}}"
TILES = "{{rate: {{{}: 2 TFLOP/s}}, edge: 0, tiles: [{}]}}"


def library(*kernels: str) -> str:
    """A machine whose library has these tiles."""
    tile = "        tile: [64, 64]\n"
    assert tile in SIP8
    return SIP8.replace(tile, f"{tile}        library: {LIBRARY.format(', '.join(kernels))}\n")


@pytest.mark.parametrize(
    ("kernels", "code", "expected"),
    [
        ([TILES.format("bf16", "")], "F3", "kernels[0].tiles: expected a tile, got none"),
        (
            [TILES.format("bf61", "[8, 8]")],
            "F7",
            "kernels[0].rate.bf61: expected one of fp64, fp32, fp16, bf16, fp8, int8, int32, as in "
            "system.sip.pe.gemm.rate; got 'bf61'",
        ),
        (
            [TILES.format("bf16", "[8, 8]")] * 2,
            "F7",
            "kernels[1].rate.bf16: expected each type once, got it again; first on line",
        ),
    ],
)
def test_a_library_that_has_no_choice_or_two(kernels: list[str], code: str, expected: str) -> None:
    text = error(library(*kernels))
    assert text.startswith(f"[{code}] m.yaml: 1 problem\n")
    assert f"system.sip.pe.gemm.library.{expected}" in text


def test_a_rate_above_the_peak_is_shown_in_its_place() -> None:
    text = error(library(TILES.format("bf16", "[8, 8]").replace("2 TFLOP/s", "1 TFLOP/s")))
    assert text.startswith("[F7] m.yaml: 1 problem\n")
    assert (
        "system.sip.pe.gemm.rate.bf16: expected at most 1 TFLOP/s, what the library reaches "
        "without its operands on line 41, got 2 TFLOP/s"
    ) in text
    assert "bf16: 2 TFLOP/s\n                      ^" in text


def test_a_changed_library_is_checked_as_well() -> None:
    text = library(TILES.format("bf16", "[8, 8]"))
    kernels = TILES.format("bf61", "[8, 8]")
    changed = f"{{which: [1], sip: {{pe: {{gemm: {{library: {{kernels: [{kernels}]}}}}}}}}}}"
    text = text.replace("    count: 8\n", f"    count: 8\n    changed: [{changed}]\n")
    assert "changed[0].sip.pe.gemm.library.kernels[0].rate.bf61: expected one of" in error(text)


KERNEL = (
    "{backend: flash, direction: forward, start: 1 us, program: 1 us, tile: [64, 64], "
    "share: 50, scores: 10}"
)


def test_a_kernel_of_attention_is_there_once() -> None:
    pe = "    pe:\n"
    assert pe in SIP8
    text = SIP8.replace(pe, f"{pe}      attention:\n        - {KERNEL}\n        - {KERNEL}\n")
    problem = "attention[1].backend: expected each backend and direction once, got flash forward"
    found = error(text)
    assert f"system.sip.pe.{problem} again; first on line" in found
    assert found.startswith("[F7] m.yaml: 1 problem\n")
    changed = f"{{which: [1], sip: {{pe: {{attention: [{KERNEL}, {KERNEL}]}}}}}}"
    text = SIP8.replace("    count: 8\n", f"    count: 8\n    changed: [{changed}]\n")
    assert f"changed[0].sip.pe.{problem}" in error(text)
