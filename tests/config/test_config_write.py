"""What is written of a schema reads as what it was; texts change where they are told to."""

from pathlib import Path

import pytest

from kernbench.config.write import dump, with_texts
from kernbench.topology import Topology, load_topology, shipped_machines

MACHINES = sorted(shipped_machines())

CHANGED = (
    "system.sips.changed=["
    "{which: [1, 2], sip: {cube: {hbm: {bandwidth: 1 TB/s}}}},"
    "{which: [1], sip: {pe: {gemm: {rate: {bf16: 1 TFLOP/s}}}}},"
    "{which: [2], link: {bandwidth: 10 GB/s}}]"
)
GRAPH = [
    "system.sips.count=2",
    "system.sips.network={kind: graph, bandwidth: 1 GB/s, latency: 1 ns, "
    "edges: [{ends: [sip0, sip1], latency: 0 ns}]}",
]
STRANGE = ['system.description="no: \\"#\\" \\u00e9"', "system.name='no'"]


def written(machine: Topology, file: Path) -> Topology:
    file.write_text(dump(machine.machine, lambda _: ""), encoding="utf-8")
    return load_topology(file).topology_obj


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("overrides", [[], GRAPH, STRANGE], ids=["as it is", "graph", "texts"])
def test_a_written_machine_is_the_same(name: str, overrides: list[str], tmp_path: Path) -> None:
    machine = load_topology(name, overrides).topology_obj
    assert written(machine, tmp_path / "m.yaml") == machine


def test_sips_that_differ_are_written(tmp_path: Path) -> None:
    machine = load_topology("h200x8", [CHANGED]).topology_obj
    again = written(machine, tmp_path / "m.yaml")
    assert again == machine
    assert again.machine.system.sip_of(2) != again.machine.system.sip_of(0)


def test_amounts_have_few_digits_and_large_units() -> None:
    machine = load_topology("h200x8").topology_obj.machine
    text = dump(machine, lambda names: "here" if names[-1] == "pes" else "")
    for line in (
        "    dispatch: 9.3 us\n",
        "        bandwidth: 4.45 TB/s\n",
        "        capacity: 227 KiB\n",
        "          fp64: 507 GFLOP/s\n",
        "          write_back: 40 MB\n",
        "      pes: 132                          # here\n",
    ):
        assert line in text


def test_only_the_named_texts_change() -> None:
    text = "# top\na:\n  name: one   # first\n  other: [one, {name: one}]\nb: 'two'\n"
    changed = with_texts(text, {("a", "name"): "other", ("b",): "no", ("a", "missing"): "x"})
    assert changed == text.replace("name: one ", "name: other ").replace("'two'", '"no"')
