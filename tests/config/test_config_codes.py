"""Every class of mistake in a file, F1 to F16, with the whole text that a user sees."""

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest

from kernbench.ccl.config import choose, load_ccl
from kernbench.config import ConfigError, DeprecatedKeyWarning, Formerly, Range, load
from kernbench.errors import UsageError
from kernbench.report import check_writable
from kernbench.topology import load_topology, shipped_machines

SIP8 = shipped_machines()["sip8"].read_text()


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


def told(function: Callable[[], object]) -> str:
    with pytest.raises(UsageError) as caught:
        function()
    return str(caught.value)


def machine(text: str) -> str:
    """Returns what is wrong with a machine."""
    assert text != SIP8
    Path("m.yaml").write_text(text, encoding="utf-8")
    return told(lambda: load_topology("m.yaml"))


def replaced(old: str, new: str) -> str:
    assert SIP8.count(old) == 1
    return SIP8.replace(old, new)


NODES = """kind: graph
      edges:
        - {ends: [sip0, spine]}
        - {ends: [spine, sip1]}
        - {ends: [sip2, spin]}
        - {ends: [sip1, sip0]}
        - {ends: [sip0, sip1]}"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(
            "dispatch: 2 us",
            "dispatch: 2 us\n    dispach: 2 us",
            """\
[F1] m.yaml: 1 problem
  m.yaml:8:5: system.host.dispach: expected one of dispatch, launch_queue, pcie, gloo, dispatch_of\
, eager, loop, got an unknown key [F1]
          dispach: 2 us
          ^
      did you mean `dispatch`?""",
            id="F1",
        ),
        pytest.param(
            "count: 8",
            'count: "8"',
            """\
[F2] m.yaml: 1 problem
  m.yaml:11:12: system.sips.count: expected an integer from 1 to 131072, got text '8' \
(remove the quotes) [F2]
          count: "8"
                 ^""",
            id="F2",
        ),
        pytest.param(
            "issue: 2 ns",
            "issue: -2 ns",
            """\
[F3] m.yaml: 1 problem
  m.yaml:28:14: system.sip.pe.issue: expected a time from 0 s to 1 s, got -2 ns [F3]
            issue: -2 ns
                   ^""",
            id="F3",
        ),
        pytest.param(
            "pes: 8",
            "pes: 1000000000000",
            """\
[F4] m.yaml: 1 problem
  m.yaml:23:12: system.sip.cube.pes: expected an integer from 1 to 1048576, got 1000000000000 [F4]
            pes: 1000000000000
                 ^""",
            id="F4",
        ),
        pytest.param(
            "kind: ring",
            "kind: fat_tree\n      leaf: {size: 2}",
            """\
[F5] m.yaml: 1 problem
  m.yaml:12:5: system.sips.network.spine: expected a spine between the 4 leaves, got none; \
sip0 cannot reach sip2 [F5]
          network:
          ^""",
            id="F5",
        ),
        pytest.param(
            "dma: 200 GB/s",
            "dma: 200 GB/s\n      issue: 3 ns",
            """\
[F6] m.yaml: 1 problem
  m.yaml:31:7: system.sip.pe.issue: expected each key once, got it again; first on line 28 [F6]
            issue: 3 ns
            ^""",
            id="F6",
        ),
        pytest.param(
            "kind: ring",
            NODES,
            """\
[F7] m.yaml: 2 problems
  m.yaml:17:25: system.sips.network.edges[2].ends[1]: expected a router with two cables or more, \
got spin with this one only [F7]
              - {ends: [sip2, spin]}
                              ^
      did you mean `spine`?
  m.yaml:19:18: system.sips.network.edges[4].ends: duplicate cable from sip0 to sip1, \
first on line 18 [F7]
              - {ends: [sip0, sip1]}
                       ^""",
            id="F7",
        ),
        pytest.param(
            "pcie: {bandwidth: 50 GB/s, latency: 2 us}",
            "pcie: &link\n      bandwidth: 50 GB/s\n      latency: *link",
            """\
[F8] m.yaml: 1 problem
  m.yaml:11:16: system.host.pcie.latency: alias *link stands inside the value that it names, \
begun on line 9 [F8]
            latency: *link
                     ^""",
            id="F8",
        ),
        pytest.param(
            "shape: [2, 2]",
            "shape: " + "[" * 65 + "]" * 65,
            """\
[F9] m.yaml: 1 problem
  m.yaml:20:74: expected at most 64 levels of nesting, got more [F9]
            shape: """
            + "[" * 65
            + "]" * 18
            + "\n"
            + " " * 79
            + "^",
            id="F9",
        ),
        pytest.param(
            "    dispatch: 2 us",
            "\tdispatch: 2 us",
            """\
[F10] m.yaml: 1 problem
  m.yaml:7:1: a tab may not indent YAML; use spaces [F10]
      \tdispatch: 2 us
      ^""",
            id="F10",
        ),
        pytest.param(
            "kind: ring",
            "kind: torus\n      shape: [2, 3]",
            """\
[F12] m.yaml: 1 problem
  m.yaml:14:14: system.sips.network.shape: expected extents whose product is the 8 SIPs \
on line 11, got 2 x 3 [F12]
            shape: [2, 3]
                   ^""",
            id="F12",
        ),
        pytest.param(
            "launch_queue: 1024",
            "launch_queue: !!python/name:os.system",
            """\
[F13] m.yaml: 1 problem
  m.yaml:8:19: system.host.launch_queue: expected a value without a tag, \
got the tag tag:yaml.org,2002:python/name:os.system [F13]
          launch_queue: !!python/name:os.system
                        ^""",
            id="F13",
        ),
    ],
)
def test_the_text_of_each_class(old: str, new: str, expected: str) -> None:
    assert machine(replaced(old, new)) == expected


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    Path("machine.yaml").touch()
    assert told(lambda: load_topology("machines.yaml")) == (
        "[F11] machines.yaml: 1 problem\n"
        f"  machines.yaml: no such file: {tmp_path}/machines.yaml; searched in {tmp_path} [F11]\n"
        "      did you mean `machine.yaml`?"
    )


def test_a_module_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "ccl.yaml"
    path.write_text(
        "defaults: {algorithm: mine}\nalgorithms:\n  mine:\n    module: no_such_module\n"
    )
    assert told(lambda: choose(load_ccl(path), path).algorithm("all_reduce")) == (
        f"[F14] {path}: 1 problem\n"
        f"  {path}:4:13: algorithms.mine.module: expected an importable module; "
        "there is no 'no_such_module' [F14]\n"
        "          module: no_such_module\n"
        "                  ^\n"
        f"      it is looked for in {tmp_path} and on sys.path"
    )


def test_an_output_folder_that_is_not_there() -> None:
    assert told(lambda: check_writable("results/t.json")) == (
        "[F15] cannot write results/t.json: No such file or directory"
    )


@pytest.mark.parametrize("key", ["extends", "include", "base"])
def test_a_file_that_would_build_on_another_is_refused_by_the_name_of_the_key(key: str) -> None:
    assert machine(f"{key}: sip8.yaml\n{SIP8}") == (
        "[F1] m.yaml: 1 problem\n"
        f"  m.yaml:1:1: {key}: expected one of system, got an unknown key [F1]\n"
        f"      {key}: sip8.yaml\n"
        "      ^\n"
        "      a file stands alone: vary it with --set, or copy what it shares with others"
    )


def test_a_merge_of_what_is_around_it_ends() -> None:
    pcie = "pcie: {bandwidth: 50 GB/s, latency: 2 us}"
    text = replaced(pcie, "pcie: &s {<<: *s, bandwidth: 50 GB/s, latency: 2 us}")
    assert machine(text) == (
        "[F8] m.yaml: 1 problem\n"
        "  m.yaml:9:19: system.host.pcie.<<: alias *s stands inside the value that it names, "
        "begun on line 9 [F8]\n"
        "          pcie: &s {<<: *s, bandwidth: 50 GB/s, latency: 2 us}\n"
        "                        ^"
    )


@dataclass(frozen=True)
class Queue:
    n_slots: Annotated[int, Formerly("slots"), Range(1, 64)]


@dataclass(frozen=True)
class Queues:
    queues: dict[str, Queue]


def test_a_key_under_its_old_name() -> None:
    """No key of the shipped files is deprecated: the schema is this test's own."""
    Path("q.yaml").write_text("queues:\n  a: {slots: 4}\n  b: {n_slots: 5}\n  c: {slots: 6}\n")
    new = Queues({"a": Queue(4), "b": Queue(5), "c": Queue(6)})
    with pytest.warns(DeprecatedKeyWarning) as caught:
        assert load(Queues, "q.yaml")[0] == new
    (only,) = caught
    assert str(only.message) == (
        "q.yaml:2:7: queues.a.slots: this key is called n_slots now [F16]\n"
        "      a: {slots: 4}\n"
        "          ^\n"
        "    write `n_slots`"
    )
    assert (only.filename, only.lineno) == ("q.yaml", 2)


def test_an_old_name_is_warned_of_once_however_often_a_file_is_read() -> None:
    Path("twice.yaml").write_text("queues: {a: {slots: 4}}\n")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default", DeprecatedKeyWarning)
        load(Queues, "twice.yaml")
        load(Queues, "twice.yaml")
    assert len(caught) == 1


def test_a_key_under_both_names() -> None:
    Path("both.yaml").write_text("queues: {a: {n_slots: 4, slots: 5}}\n")
    with pytest.raises(ConfigError) as error:
        load(Queues, "both.yaml")
    assert str(error.value) == (
        "[F6] both.yaml: 1 problem\n"
        "  both.yaml:1:26: queues.a.slots: expected n_slots only, got its old name, too; n_slots "
        "is on line 1 [F6]\n"
        "      queues: {a: {n_slots: 4, slots: 5}}\n"
        "                               ^"
    )
