"""The tables and rules of what is a rank's own, without a library that is simulated."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kernbench.isolation.belonging import is_of_rank
from kernbench.isolation.library_state import LibraryState
from kernbench.isolation.packing import packed
from kernbench.isolation.replaced import Patch, WhenImported
from kernbench.isolation.replacing import Replacing
from kernbench.isolation.states import State, States


def _state(space: Any, name: str, **options: Any) -> State:
    return State(
        name, lambda: getattr(space, name), lambda value: setattr(space, name, value), **options
    )


def test_ranks_take_turns_with_a_switch_and_begin_with_copies() -> None:
    space = SimpleNamespace(level=1, seen=[], draws=0)
    table = States(
        _state(space, "draws", alone=True, begin=lambda _: 100),
        _state(space, "level"),
        _state(space, "seen"),
    )
    assert [state.name for state in table] == ["level", "seen", "draws"]
    outside = table.values()
    ranks = [table.begun(outside) for _ in range(2)]

    table.swap(outside, ranks[0])
    assert (space.level, space.draws) == (1, 100)
    space.seen.append("first")
    space.level = 7
    ranks[0] = table.values()
    table.swap(ranks[0], ranks[1])

    assert (space.level, space.seen, space.draws) == (1, [], 100)
    table.swap(table.values(), ranks[0])
    assert (space.level, space.seen) == (7, ["first"])


def test_what_a_block_changes_is_put_back() -> None:
    space = SimpleNamespace(level=1)
    table = States(_state(space, "level"))
    with table.kept():
        space.level = 2
    assert space.level == 1


def test_modules_belong_to_who_has_written_them() -> None:
    assert not is_of_rank("json", sys.modules["json"])
    assert not is_of_rank("pytest", pytest)
    assert not is_of_rank("kernbench.des", sys.modules["kernbench.des"])
    assert is_of_rank("train", ModuleSpec("train", None, origin="/home/me/train.py"))


def test_state_that_a_package_lists_is_each_ranks_own() -> None:
    module = ModuleType("kernbench_listed")
    vars(module)["registry"] = {"all": 1}
    sys.modules[module.__name__] = module
    try:
        libraries = LibraryState(["kernbench_listed.registry"])
        found: list[dict[str, int]] = []
        for rank in (0, 1, 0, -1):
            libraries.leave()
            libraries.let_stand(rank)
            registry = vars(module)["registry"]
            found.append(dict(registry))
            registry[f"by {rank}"] = rank
    finally:
        del sys.modules[module.__name__]

    assert found == [{"all": 1}, {"all": 1}, {"all": 1, "by 0": 0}, {"all": 1}]


def test_what_a_rank_writes_behind_an_import_is_its_own_before_another_begins() -> None:
    module = ModuleType("kernbench_listed_later")
    vars(module)["registry"] = {"all": 1}
    libraries = LibraryState([f"{module.__name__}.registry"])
    libraries.leave()
    libraries.let_stand(0)
    try:
        with libraries.importing(module):
            sys.modules[module.__name__] = module
        vars(module)["registry"]["by 0"] = 0
        libraries.leave()
        libraries.let_stand(1)
        assert vars(module)["registry"] == {"all": 1}
        libraries.leave()
        libraries.let_stand(0)
        assert vars(module)["registry"] == {"all": 1, "by 0": 0}
    finally:
        del sys.modules[module.__name__]


def test_what_processes_share_is_not_copied() -> None:
    class Tensor:
        requires_grad = False

    class Parameter(Tensor):
        pass

    class Ours(Tensor):
        pass

    fake = SimpleNamespace(Tensor=Tensor, nn=SimpleNamespace(Parameter=Parameter))
    shared, plain = Ours(), ["plain"]
    first, second = packed((shared, plain), fake).unpacked()
    assert first is shared
    assert second == plain
    assert second is not plain


def test_names_are_replaced_also_in_modules_that_come_later(tmp_path: Any) -> None:
    (tmp_path / "comes_later.py").write_text("import json\nsaw = json.dumps\nvalue = 1\n")
    json: Any = sys.modules["json"]
    real = json.dumps
    checked: list[str] = []
    replacing = Replacing(
        ("comes_later",), checked.append, lambda _: _nothing(), contextlib.nullcontext
    )
    sys.path.insert(0, str(tmp_path))
    sys.meta_path.insert(0, replacing)
    try:
        replacing.add(Patch(json, "dumps", lambda *_: "replaced"))
        replacing.add(WhenImported("comes_later", lambda module: [Patch(module, "value", 2)]))
        assert json.dumps(1) == "replaced"
        import comes_later  # type: ignore[import-not-found]

        assert comes_later.saw is real, "it runs as outside of ranks"
        assert (comes_later.value, checked) == (2, ["comes_later"])
    finally:
        replacing.undo()
        sys.meta_path.remove(replacing)
        sys.path.remove(str(tmp_path))
        sys.modules.pop("comes_later", None)
    assert json.dumps is real


@contextlib.contextmanager
def _nothing() -> Iterator[None]:
    yield


def test_no_module_of_the_room_imports_a_library_that_is_simulated() -> None:
    code = (
        "import importlib, pkgutil, sys, kernbench.isolation as room, kernbench.flight_recorder\n"
        "for each in pkgutil.iter_modules(room.__path__):\n"
        "    importlib.import_module(f'kernbench.isolation.{each.name}')\n"
        "import kernbench.flight_recorder.files\n"
        "assert not {'torch', 'kernbench.bridge'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
