"""`auto`: the choice makes sense, and what is chosen is hardly slower than the best there is."""

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from ccl_operations import even, simulate

from kernbench.ccl.alone import time_alone
from kernbench.ccl.config import Chosen, choose, load_ccl, shipped_ccl_file
from kernbench.ccl.estimate import Estimator
from kernbench.ccl.operations import OPERATIONS
from kernbench.ccl.plan import NOTHING, RefusedError
from kernbench.ccl.tuner import Choices
from kernbench.topology import Topology, load_topology

AUTO = ("defaults.algorithm=auto",)


def implementing(operation: str, machine: Topology, own: Sequence[str] = ()) -> list[Chosen]:
    """Returns what takes part in the choice, and some of those that are for who names them."""
    path = shipped_ccl_file()
    loaded = load_ccl(path)
    names = [name for name, spec in loaded.value.algorithms.items() if spec.auto or name in own]
    every = [choose(loaded, path, name, machine.machine.system) for name in names]
    return [one for one in every if one.implements(operation)]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("sip8", 8),
        ("sip8", 3),
        pytest.param("torus4x4", 16, marks=pytest.mark.slow),
        ("h200x8", 8),
        ("h200x8", 3),
    ],
)
def test_the_choice_is_hardly_slower_than_the_best(
    topology: Callable[[str], Topology], name: str, ranks: int, operation: str
) -> None:
    machine = topology(name)
    choices = Choices(None, AUTO, machine)
    ranks = 2 if operation == "send_recv" else ranks
    for nbytes in (1 << 8, 1 << 13, 1 << 16, 1 << 18, 1 << 20):
        case = even(
            operation,
            ranks,
            nbytes // 4 // (1 if OPERATIONS[operation].blocks == "one" else ranks),
        )
        times = {
            one.name: simulate(machine, one, case).time for one in implementing(operation, machine)
        }
        chosen = choices.choose(operation, nbytes, range(ranks)).name
        assert times[chosen] <= 1.02 * min(times.values()), (nbytes, chosen, times)


@pytest.mark.parametrize(
    ("name", "ranks", "operation", "nbytes", "expected"),
    [
        ("sip8", 8, "all_reduce", 1 << 10, {"direct", "halving_doubling", "double_binary_tree"}),
        ("sip8", 8, "all_reduce", 1 << 26, {"ring_two_way", "dimension_wise"}),
        ("sip8", 8, "broadcast", 1 << 10, {"direct", "double_binary_tree"}),
        ("sip8", 8, "broadcast", 1 << 26, {"chain"}),
        ("torus4x4", 16, "all_reduce", 1 << 26, {"dimension_wise"}),
        ("h200x8", 8, "all_reduce", 1 << 10, {"direct"}),
        ("h200x8", 8, "all_reduce", 1 << 20, {"two_shot", "two_shot_links"}),
        ("h200x8_x4_nodes", 32, "all_reduce", 1 << 20, {"two_level"}),
        ("h200x8_x4_nodes", 32, "all_gather", 1 << 26, {"two_level"}),
        ("h200x8_x4_nodes", 32, "broadcast", 1 << 22, {"two_level"}),
        ("fattree64", 64, "all_reduce", 1 << 12, {"two_level"}),
        ("ring1024", 1024, "all_reduce", 1 << 26, {"ring_two_way", "dimension_wise"}),
        ("ring1024", 1024, "broadcast", 1 << 12, {"double_binary_tree"}),
        ("ring1024", 1024, "all_to_all", 1 << 20, {"direct"}),
    ],
)
def test_the_choice_is_what_one_would_expect(
    topology: Callable[[str], Topology],
    name: str,
    ranks: int,
    operation: str,
    nbytes: int,
    expected: set[str],
) -> None:
    choices = Choices(None, AUTO, topology(name))
    assert choices.choose(operation, nbytes, range(ranks)).name in expected


@pytest.mark.parametrize("ranks", [257, 512])
@pytest.mark.parametrize(
    ("kind", "expected"), [("switch", "halving_doubling"), ("ring", "ring_two_way")]
)
def test_many_ranks_behind_a_switch_take_few_steps(kind: str, expected: str, ranks: int) -> None:
    network = [f"system.sips.count={ranks}", f"system.sips.network.kind={kind}"]
    own = "system.algorithms=[ring, ring_two_way, halving_doubling, double_binary_tree]"
    machine = load_topology("ring1024", [*network, own]).topology_obj
    choices = Choices(None, AUTO, machine)
    assert choices.choose("all_reduce", 1 << 20, tuple(range(ranks))).name == expected


@pytest.mark.parametrize("nbytes", [0, 1 << 10, 1 << 20])
@pytest.mark.parametrize(("name", "ranks"), [("sip8", 8), ("h200x8", 8), ("torus4x4", 16)])
def test_estimates_of_steps_that_all_take_at_once_are_close(
    topology: Callable[[str], Topology], name: str, ranks: int, nbytes: int
) -> None:
    machine = topology(name)
    for one in implementing("all_reduce", machine, machine.machine.system.algorithms):
        if one.name in {"direct", "double_binary_tree"}:
            continue
        # Channels that meet on the links of others at times that no estimate knows, but on a mesh.
        if one.links > 1:
            continue
        # Channels that all use the same ring of links; never chosen for a group of one dimension.
        if one.topology == "grid" and len(machine.grid(range(ranks))) == 1:
            continue
        own = one.queue.launch
        launch = machine.machine.system.sip.collective_launch if own is None else own
        expected = Estimator(machine).estimate(one, "all_reduce", nbytes, tuple(range(ranks)))
        assert expected is not None
        expected -= launch
        time = simulate(machine, one, even("all_reduce", ranks, nbytes // 4)).time - launch
        assert 0.75 * time <= expected <= 1.25 * time + 20_000, one.name


@pytest.mark.parametrize("nbytes", [1 << 10, 1 << 17, 1 << 23])
@pytest.mark.parametrize("sips", [range(15), range(9), (0, 1, 8, 9, 10, 16), (0, 8, 16, 24)])
def test_every_algorithm_of_nodes_is_looked_at_where_nodes_are_uneven(
    topology: Callable[[str], Topology], sips: Sequence[int], nbytes: int
) -> None:
    machine = topology("h200x8_x4_nodes")
    names = machine.machine.system.algorithms
    every = [one for one in implementing("all_reduce", machine, names) if one.name in names]
    assert {"nccl_ll", "nccl_tree_ll"} <= {one.name for one in every}
    estimator, choices = Estimator(machine), Choices(None, (), machine)

    def estimate(one: Chosen) -> float:
        found = estimator.estimate(one, "all_reduce", nbytes, tuple(sips))
        assert found is not None
        return found

    found = choices.choose("all_reduce", nbytes, sips)
    # On one NIC in place of all it may take up to a quarter longer.
    assert estimate(found) <= 1.25 * min(estimate(one) for one in every)


# Algorithms of one's own


def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, name: str) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{name}.py").write_text(code)
    path = tmp_path / "ccl.yaml"
    path.write_text(
        "defaults: {algorithm: auto}\nalgorithms:\n"
        f"  own: {{module: {name}}}\n"
        "  ring: {module: kernbench.ccl.algorithms.ring}\n"
    )
    return path


@pytest.mark.parametrize(
    ("code", "fastest"),
    [
        ("def all_reduce(comm): pass", "own"),
        ("def all_reduce(comm): raise ValueError('only for the moon')", "ring"),
        ("def all_reduce(comm): comm.tl", "ring"),
        ("def all_reduce(comm): comm.exchange(send=0, to=99, receive=0, source=0)", "ring"),
        ("def all_reduce(comm): comm.exchange(send=0, to=1, receive=-1, source=0)", "ring"),
        (
            "def all_reduce(comm):\n"
            "    for _ in range(100): comm.exchange(send=0, to=comm.rank ^ 1, receive=0,\n"
            "                                       source=comm.rank ^ 1, combine='reduce')",
            "ring",
        ),
    ],
)
def test_algorithms_of_ones_own_take_part(
    topology: Callable[[str], Topology],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    fastest: str,
) -> None:
    name = f"own_tuned_{abs(hash(code))}"
    choices = Choices(own(tmp_path, monkeypatch, code, name), [], topology("sip8"))
    chosen = choices.choose("all_reduce", 1 << 16, range(4))
    assert (chosen.name, chosen.auto) == (fastest, True)
    assert choices.choose("broadcast", 64, range(4)).path == shipped_ccl_file()


def test_a_mistake_of_an_algorithm_of_ours_is_no_refusal(
    topology: Callable[[str], Topology], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the user's own may refuse a group by any error, which is told from ours."""
    machine = topology("sip8")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_index.py").write_text("def all_reduce(comm): return (0,)[comm.rank + 1]")
    sys.modules.pop("own_index", None)
    module = importlib.import_module("own_index")
    path = shipped_ccl_file()
    theirs = replace(choose(load_ccl(path), path, "ring", machine.machine.system), module=module)
    with pytest.raises(RefusedError) as caught:
        Estimator(machine).estimate(theirs, "all_reduce", 64, (0, 1))
    assert isinstance(caught.value.__cause__, IndexError)
    module.__name__ = "kernbench.ccl.algorithms.own_index"
    with pytest.raises(IndexError):
        Estimator(machine).estimate(theirs, "all_reduce", 64, (0, 1))


def test_a_message_that_is_held_up_keeps_none_behind_it(
    topology: Callable[[str], Topology],
) -> None:
    """Ranks begin the gather one after another, so all send to the same one at a time.

    A port that was busy until its message had arrived made an estimate of 3.9 times the time.
    """
    machine, ranks = topology("fattree64"), 16
    one = next(one for one in implementing("broadcast", machine) if one.name == "two_shot")
    took = time_alone(machine, one, "broadcast", ranks, 4 << 20)
    expected = Estimator(machine).estimate(one, "broadcast", 4 << 20, tuple(range(ranks)))
    assert expected == pytest.approx(took, rel=0.2)


def test_ranks_that_wait_for_each_other_are_not_estimated(
    topology: Callable[[str], Topology], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "def all_reduce(comm):\n"
        "    peer = comm.rank ^ 1\n"
        f"    comm.exchange(send={NOTHING}, to=peer, receive=0, source=peer)\n"
        f"    comm.exchange(send=0, to=peer, receive={NOTHING}, source=peer)\n"
    )
    path = own(tmp_path, monkeypatch, code, "own_circle")
    assert Choices(path, [], topology("sip8")).choose("all_reduce", 64, range(2)).name == "ring"
