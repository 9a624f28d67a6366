"""`ccl.yaml`: which algorithm for which operation, queues by name, and what is wrong with it."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kernbench.ccl.algorithms import ring
from kernbench.ccl.config import (
    AUTO,
    Chosen,
    check_default,
    check_fits,
    choose,
    load_ccl,
    shipped_ccl_file,
)
from kernbench.ccl.operations import OPERATIONS
from kernbench.ccl.tuner import Choices
from kernbench.config import ConfigError
from kernbench.config.problems import Problem
from kernbench.errors import UsageError
from kernbench.memory import Space
from kernbench.topology import Topology, load_topology

RING = "{module: kernbench.ccl.algorithms.ring}"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write_(text: str) -> Path:
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return path

    return write_


def problems(path: Path) -> Sequence[Problem]:
    with pytest.raises(ConfigError) as caught:
        load_ccl(path)
    return caught.value.problems


# Which algorithm


def choice(
    machine: Topology, operation: str, *overrides: str, given: Path | None = None, nbytes: int = 64
) -> Chosen:
    return Choices(given, overrides, machine).choose(operation, nbytes, range(2))


def test_the_default_serves_what_its_module_implements(
    topology: Callable[[str], Topology],
) -> None:
    for machine, name, named in (
        ("sip8", "ring_allreduce_tcm", ["defaults.algorithm=ring_allreduce_tcm"]),
        ("fattree64", "ring_allreduce_nvlink", []),
    ):
        for nbytes in (0, 1, 1 << 30):
            chosen = choice(topology(machine), "all_reduce", *named, nbytes=nbytes)
            assert (chosen.name, chosen.auto) == (name, False)
        for operation in OPERATIONS:
            chosen = choice(topology(machine), operation, *named)
            assert chosen.implements(operation)
            assert chosen.auto is (operation != "all_reduce")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_library_chooses_by_default(
    topology: Callable[[str], Topology], operation: str
) -> None:
    file = load_ccl(shipped_ccl_file()).value
    assert file.defaults.algorithm == AUTO
    for name in ("sip8", "torus4x4", "ring1024"):
        machine = topology(name)
        chosen = choice(machine, operation)
        assert chosen.auto
        assert chosen.implements(operation)
        assert file.algorithms[chosen.name].auto
    own = topology("sip8").machine.system.algorithms
    assert choice(topology("sip8"), "all_reduce").name in own
    large = Choices(None, [], topology("sip8")).choose("all_reduce", 1 << 30, range(8))
    assert large.name == "ring_two_way"


def test_equal_estimates_choose_the_fewest_channels(topology: Callable[[str], Topology]) -> None:
    """Both rings take 14 steps, whose time is nearly all latency for a small buffer."""
    machine = topology("sip8")
    for names in ([], ["system.algorithms=[ring_two_way, ring]"]):
        changed = load_topology("sip8", names).topology_obj if names else machine
        choices = Choices(None, [], changed)
        for nbytes, name in ((1, "ring"), (4096, "ring"), (1 << 26, "ring_two_way")):
            assert choices.choose("all_reduce", nbytes, range(8)).name == name


def test_an_operation_may_have_an_algorithm_of_its_own(
    topology: Callable[[str], Topology],
) -> None:
    sip8 = topology("sip8")
    named = "defaults.operations.broadcast=chain", "defaults.operations.all_reduce=auto"
    assert choice(sip8, "broadcast", *named).name == "chain"
    assert choice(sip8, "all_reduce", *named).auto
    assert choice(sip8, "reduce", *named).auto
    assert choice(sip8, "all_reduce", f"defaults.algorithm={AUTO}").auto


def test_a_file_of_ones_own_comes_before_the_machine_and_borrows_what_it_lacks(
    topology: Callable[[str], Topology], write: Callable[[str], Path]
) -> None:
    machine = topology("h200x8")
    path = write(f"defaults: {{algorithm: mine}}\nalgorithms: {{mine: {RING}, more: {RING}}}\n")
    chosen = choice(machine, "all_gather", given=path)
    assert (chosen.name, chosen.path, chosen.auto) == ("mine", path, False)
    assert chosen.algorithm("all_gather") is ring.all_gather
    borrowed = choice(machine, "broadcast", given=path)
    assert (borrowed.path, borrowed.auto) == (shipped_ccl_file(), True)
    both = choice(machine, "all_gather", f"defaults.algorithm={AUTO}", given=path)
    assert (both.name, both.path, both.auto) == ("mine", path, True)


def test_choices_are_remembered(topology: Callable[[str], Topology]) -> None:
    choices = Choices(None, ["defaults.algorithm=ring_allreduce_tcm"], topology("sip8"))
    first = choices.choose("broadcast", 1000, range(8))
    assert choices.choose("broadcast", 1024, range(8)) is first
    assert choices.choose("all_reduce", 5, range(8)) is choices.choose("all_reduce", 1, range(2))


def test_the_default_is_the_first_of_a_file_that_leaves_it_open(
    topology: Callable[[str], Topology],
) -> None:
    system = topology("sip8").machine.system
    assert check_default(None, [f"defaults.algorithm={AUTO}"], system) == "ring"


def test_the_default_is_the_first_that_fits_the_machine(
    topology: Callable[[str], Topology],
) -> None:
    system = topology("torus4x4").machine.system
    assert check_default(None, [], system) == "ring"
    # Those that give no slots of their own, and those of 4 KiB.
    large = "defaults.slot_size=1 MiB"
    assert check_default(None, [large], system) == "ring_allreduce_tcm"
    with pytest.raises(ConfigError, match="expected slots that fit into the 1 MiB of tcm of sip8"):
        check_default(None, [large], topology("sip8").machine.system)


def test_a_file_without_any_algorithm_to_choose_borrows_all(
    topology: Callable[[str], Topology], write: Callable[[str], Path]
) -> None:
    path = write("defaults: {algorithm: auto}\nalgorithms: {}\n")
    machine = topology("sip8")
    assert check_default(path, [], machine.machine.system) == AUTO
    assert choice(machine, "all_reduce", given=path).path == shipped_ccl_file()


def test_f14_an_algorithm_without_the_operation_that_it_is_named_for(
    topology: Callable[[str], Topology], write: Callable[[str], Path]
) -> None:
    path = write(
        "defaults: {algorithm: mine,\n"
        "           operations: {broadcast: mine}}\n"
        f"algorithms: {{mine: {RING}}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        choice(topology("sip8"), "broadcast", given=path)
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("F14", f"{path}:2:36")
    assert problem.field == "defaults.operations.broadcast"
    assert problem.message == (
        "expected an algorithm with a function broadcast(comm); mine has none"
    )
    assert choice(topology("sip8"), "all_gather", given=path).name == "mine"


# Names that stand for nothing


def test_f1_an_operation_that_does_not_exist(write: Callable[[str], Path]) -> None:
    (problem,) = problems(
        write(
            "defaults: {algorithm: auto, operations: {allreduce: mine}}\n"
            f"algorithms: {{mine: {RING}}}\n"
        )
    )
    assert (problem.code, problem.field) == ("F1", "defaults.operations.allreduce")
    assert problem.message.startswith("expected one of all_reduce, reduce,")
    assert problem.hint == "did you mean `all_reduce`?"
    assert problem.where.endswith("mine.yaml:1:53")


def test_f7_names_that_the_file_does_not_have(write: Callable[[str], Path]) -> None:
    found = problems(
        write(
            "defaults: {algorithm: mime, operations: {reduce: xyz}}\n"
            "queues: {wide: {n_slots: 8}}\n"
            "algorithms:\n"
            f"  mine: {RING}\n"
            "  a: {module: m, queue: wise}\n"
            "  b: {module: m, queue: xyz}\n"
            f"  auto: {RING}\n"
        )
    )
    assert [(p.code, p.field, p.hint) for p in found] == [
        ("F7", "defaults.algorithm", "did you mean `mine`?"),
        ("F7", "defaults.operations.reduce", "it has mine, a, b, auto"),
        ("F7", "algorithms.a.queue", "did you mean `wide`?"),
        ("F7", "algorithms.b.queue", "the file has wide"),
        ("F7", "algorithms.auto", ""),
    ]
    assert found[0].message == "expected one of the algorithms of this file, or auto; got 'mime'"


def test_a_shape_and_channels_are_checked(write: Callable[[str], Path]) -> None:
    found = problems(
        write(
            "defaults: {algorithm: mine}\n"
            "algorithms: {mine: {module: m, topology: ring, channels: 0}}\n"
        )
    )
    assert [(p.code, p.field) for p in found] == [
        ("F2", "algorithms.mine.topology"),
        ("F3", "algorithms.mine.channels"),
    ]


# Queues

QUEUES = f"""
defaults: {{algorithm: silent, slot_size: 1 KiB, n_slots: 3}}
queues:
  wide: {{buffer_kind: sram, slot_size: 64 KiB}}
  nvlink: {{slot_size: 32 KiB}}
algorithms:
  silent: {RING}
  wide: {{module: kernbench.ccl.algorithms.ring, queue: wide}}
  both: {{module: kernbench.ccl.algorithms.ring, queue: wide, slot_size: 2 KiB, channels: 3}}
  own: {{module: kernbench.ccl.algorithms.ring, n_slots: 5}}
"""


@pytest.mark.parametrize(
    ("name", "machine", "space", "n_slots", "slot_size"),
    [
        ("silent", "sip8", "tcm", 3, 1024),
        ("silent", "h200x8", "tcm", 3, 32 << 10),
        ("wide", "h200x8", "sram", 3, 64 << 10),
        ("both", "h200x8", "sram", 3, 2048),
        ("own", "h200x8", "tcm", 5, 1024),
    ],
)
def test_a_queue_is_the_entrys_own_then_its_profile_then_the_default(
    topology: Callable[[str], Topology],
    write: Callable[[str], Path],
    name: str,
    machine: str,
    space: str,
    n_slots: int,
    slot_size: int,
) -> None:
    path = write(QUEUES)
    system = topology(machine).machine.system
    chosen = choose(load_ccl(path), path, name, system)
    queue = chosen.queue
    assert (queue.space, queue.n_slots, queue.slot_size) == (Space(space), n_slots, slot_size)
    assert chosen.channels == (3 if name == "both" else 1)


def test_a_machine_names_queues_for_the_shipped_algorithms(
    topology: Callable[[str], Topology],
) -> None:
    path = shipped_ccl_file()
    loaded = load_ccl(path)
    system = topology("h200x8").machine.system
    nvlink = choose(loaded, path, "ring_allreduce_nvlink", system).queue
    assert (nvlink.slot_size, nvlink.n_slots, nvlink.vc_chunk_size) == (256 << 10, 16, 4096)
    for name, spec in loaded.value.algorithms.items():
        own = name == "ring_allreduce_tcm" or spec.queue not in {None, "nvlink"}
        assert (choose(loaded, path, name, system).queue == nvlink) is not own


@pytest.mark.parametrize("machine", ["sip8", "torus4x4", "h200x8", "ring1024"])
def test_all_that_is_shipped_fits_every_machine(
    topology: Callable[[str], Topology], machine: str
) -> None:
    path, system = shipped_ccl_file(), topology(machine).machine.system
    loaded = load_ccl(path)
    for name in loaded.value.algorithms:
        check_fits(choose(loaded, path, name, system), loaded, system)


def test_f12_more_channels_than_pes(
    make_topology: Callable[..., Topology], write: Callable[[str], Path]
) -> None:
    machine = make_topology(2, {"kind": "ring"})
    path = write(
        "defaults: {algorithm: mine}\n"
        "algorithms: {mine: {module: kernbench.ccl.algorithms.ring, channels: 33}}\n"
    )
    with pytest.raises(ConfigError, match="expected at most the 32 PEs of a SIP of made-up"):
        choice(machine, "all_reduce", given=path)


def test_what_does_not_fit_is_not_chosen_unless_nothing_does(
    topology: Callable[[str], Topology], write: Callable[[str], Path]
) -> None:
    big = "{module: kernbench.ccl.algorithms.ring, slot_size: 1 MiB}"
    path = write(f"defaults: {{algorithm: auto}}\nalgorithms: {{big: {big}, small: {RING}}}\n")
    assert choice(topology("sip8"), "all_reduce", given=path).name == "small"
    path = write(f"defaults: {{algorithm: auto}}\nalgorithms: {{big: {big}}}\n")
    with pytest.raises(ConfigError, match="expected slots that fit"):
        choice(topology("sip8"), "all_reduce", given=path)


def test_f14_a_function_from_the_standard_library_is_no_algorithm(
    write: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_reduce.py").write_text(
        "from functools import reduce\nfrom kernbench.ccl.algorithms.ring import all_reduce\n"
    )
    path = write("defaults: {algorithm: mine}\nalgorithms: {mine: {module: own_reduce}}\n")
    chosen = choose(load_ccl(path), path)
    assert chosen.implements("all_reduce")
    assert not chosen.implements("reduce")
    with pytest.raises(UsageError, match="algorithm mine has no reduce"):
        chosen.algorithm("reduce")


def test_a_file_is_read_anew_when_it_has_changed(write: Callable[[str], Path]) -> None:
    path = write(f"defaults: {{algorithm: mine}}\nalgorithms: {{mine: {RING}}}\n")
    first = load_ccl(path)
    assert load_ccl(path) is first
    assert load_ccl(path, ("defaults.n_slots=3",)).value.defaults.n_slots == 3
    path.write_text(f"defaults: {{algorithm: auto}}\nalgorithms: {{mine: {RING}}}\n")
    assert load_ccl(path).value.defaults.algorithm == AUTO
    path.unlink()
    with pytest.raises(ConfigError):
        load_ccl(path)
