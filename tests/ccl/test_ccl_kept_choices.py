"""A choice of an algorithm is kept for equal contexts, and made anew where anything differs."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernbench import caches
from kernbench.ccl.algorithms import ring
from kernbench.ccl.config import Chosen
from kernbench.ccl.operations import OPERATIONS
from kernbench.ccl.tuner import Choices
from kernbench.topology import Topology

AUTO = ("defaults.algorithm=auto",)
RING = "kernbench.ccl.algorithms.ring"
TREE = "kernbench.ccl.algorithms.double_binary_tree"


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    caches.clear()
    yield
    caches.clear()


def chosen(
    machine: Topology, given: Path | None = None, overrides: tuple[str, ...] = AUTO
) -> Chosen:
    return Choices(given, overrides, machine).choose("all_reduce", 1 << 16, range(4))


def written(path: Path, module: str) -> Path:
    path.write_text(f"defaults: {{algorithm: auto}}\nalgorithms:\n  mine: {{module: {module}}}\n")
    return path


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("overrides", [(), AUTO, ("defaults.algorithm=ring",)])
def test_what_is_kept_is_what_is_chosen(
    topology: Callable[[str], Topology], operation: str, overrides: tuple[str, ...]
) -> None:
    ranks = range(2 if operation == "send_recv" else 4)

    def choose(nbytes: int) -> Chosen:
        return Choices(None, overrides, topology("h200x8")).choose(operation, nbytes, ranks)

    sizes = (0, 1000, 1 << 20)
    first = [choose(nbytes) for nbytes in sizes]
    again = [choose(nbytes) for nbytes in sizes]
    assert all(a is b for a, b in zip(first, again, strict=True))
    caches.clear()
    assert [choose(nbytes) for nbytes in sizes] == first


def test_other_overrides_and_machines_have_choices_of_their_own(
    topology: Callable[[str], Topology],
) -> None:
    first = chosen(topology("sip8"))
    other = chosen(topology("sip8"), overrides=(*AUTO, "queues.links.n_slots=7"))
    assert other.queue.n_slots == 7
    assert first.queue.n_slots != 7
    assert chosen(topology("h200x8")) != first


def test_a_file_that_has_changed_is_looked_at(
    topology: Callable[[str], Topology], tmp_path: Path
) -> None:
    path = written(tmp_path / "ccl.yaml", RING)
    assert chosen(topology("sip8"), path).module.__name__ == RING
    written(path, TREE)
    assert chosen(topology("sip8"), path).module.__name__ == TREE


def test_a_program_that_has_changed_is_looked_at(
    topology: Callable[[str], Topology], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "ccl.yaml", RING)
    assert chosen(topology("sip8"), path).name == "mine"
    monkeypatch.delattr(ring, "all_reduce")
    assert chosen(topology("sip8"), path).name != "mine"


def test_a_module_beside_the_file_is_looked_for_each_time(
    topology: Callable[[str], Topology], tmp_path: Path
) -> None:
    files = []
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "own_beside.py").write_text("def all_reduce(comm): pass\n")
        path = written(tmp_path / name / "ccl.yaml", "own_beside")
        files.append(chosen(topology("sip8"), path).module.__file__)
    assert files == [str(tmp_path / name / "own_beside.py") for name in "ab"]
    assert not [line for line in caches.statistics() if line.name == "ccl.choices" and line.entries]
