"""What a rank writes into modules and classes that ranks share is its own (ADR 0040)."""

import importlib
import json
import os
import sys
from collections.abc import Callable
from importlib.util import spec_from_loader
from operator import is_
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
from bridge_ranks import on_ranks, others

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch")

from kernbench.isolation import library_state, written  # noqa: E402

RANKS = 3


@pytest.fixture(params=[True, False], ids=["by versions", "by comparison"], autouse=True)
def counts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets writes be found in both ways."""
    assert written._COUNTS, "this Python has no versions where they are expected"
    monkeypatch.setattr(written, "_COUNTS", request.param)


def test_a_method_that_a_rank_replaces_is_called_by_it_alone() -> None:
    real = torch.nn.Linear.forward

    def worker(rank: int) -> tuple[list[int], bool]:
        calls: list[int] = []

        def forward(self: Any, x: Any) -> Any:
            calls.append(rank)
            return real(self, x)

        layer = torch.nn.Linear(2, 2, device="cuda")
        with mock.patch.object(torch.nn.Linear, "forward", forward):
            for _ in range(2 + rank):
                layer(torch.ones(1, 2, device="cuda"))
            for _ in range(2):
                layer(torch.ones(1, 2, device="cuda"))
                others()
        layer(torch.ones(1, 2, device="cuda"))
        return calls, torch.nn.Linear.forward is real

    assert on_ranks(worker, RANKS) == [([rank] * (4 + rank), True) for rank in range(RANKS)]


def test_what_a_rank_leaves_is_seen_by_nobody_after_it() -> None:
    def worker(rank: int) -> Any:
        seen = [getattr(torch.nn.Module, "added", None), torch.nn.functional.relu.__name__]
        torch.nn.Module.added = rank
        torch.nn.functional.relu = lambda x: x * 0 + rank
        os.path.samefile = lambda *_: rank  # type: ignore[assignment]
        if rank == 1:
            del torch.nn.Linear.extra_repr
        others()
        layer = torch.nn.Linear(1, 1)
        found = [
            layer.added,
            int(torch.nn.functional.relu(torch.ones(1))),
            os.path.samefile("", ""),
        ]
        return seen, found, layer.extra_repr() != ""

    real = (torch.nn.functional.relu, torch.nn.Linear.extra_repr, os.path.samefile)
    for _ in range(2):
        assert on_ranks(worker, RANKS) == [
            ([None, "relu"], [rank] * 3, rank != 1) for rank in range(RANKS)
        ]
        now = (torch.nn.functional.relu, torch.nn.Linear.extra_repr, os.path.samefile)
        assert now == real
        assert not hasattr(torch.nn.Module, "added")


def test_a_run_begins_with_what_stands_after_the_one_before() -> None:
    """What a run has watched is watched again by the next: no module is looked at anew."""

    def worker(rank: int) -> Any:
        begun = (torch.nn.Module.__repr__(torch.nn.ReLU()), vars(torch.nn.Dropout).get("added"))
        torch.nn.Module.__repr__ = lambda _: f"of {rank}"
        torch.nn.Dropout.added = rank
        others()
        return begun, repr(torch.nn.ReLU()), vars(torch.nn.Dropout)["added"]

    real = torch.nn.Module.__repr__
    on_ranks(worker, RANKS)
    (watched,) = library_state._WATCHED
    known = list(watched._known)
    between = lambda _: "between"  # noqa: E731
    with (
        mock.patch.object(torch.nn.Module, "__repr__", between),
        mock.patch.object(torch.nn.Dropout, "added", "outside", create=True),
    ):
        assert on_ranks(worker, RANKS) == [
            (("between", "outside"), f"of {rank}", rank) for rank in range(RANKS)
        ]
        assert torch.nn.Module.__repr__ is between
        assert vars(torch.nn.Dropout)["added"] == "outside"
    assert on_ranks(worker, RANKS) == [
        (("ReLU()", None), f"of {rank}", rank) for rank in range(RANKS)
    ]
    assert torch.nn.Module.__repr__ is real
    assert not hasattr(torch.nn.Dropout, "added")
    assert [watched] == library_state._WATCHED
    if written._COUNTS:
        same = sum(map(is_, known, watched._known))
        assert same > 0.9 * len(known), "names of most owners were copied again"


def test_modules_that_have_gone_are_watched_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    gone: Any = ModuleType("gone")
    monkeypatch.setitem(sys.modules, "gone", gone)
    on_ranks(lambda rank: rank, 1)
    assert library_state._WATCHED[0].has(gone)
    monkeypatch.delitem(sys.modules, "gone")
    on_ranks(lambda rank: rank, 1)
    assert not library_state._WATCHED[0].has(gone)


_LIBRARY = """
level = 1
class Model:
    size = 1
    def name(self):
        return "model"
def build():
    return Model().name(), Model.size, level
"""


def test_a_rank_writes_into_a_library_that_it_imports_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "plainlib.py").write_text(_LIBRARY)
    patching = "import plainlib\nplainlib.Model.kind = 'patched'\n"
    (folder / "plainlib_plugin.py").write_text(patching)
    monkeypatch.syspath_prepend(str(folder))
    for name in ("plainlib", "plainlib_plugin"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def worker(rank: int) -> Any:
        plainlib: Any = importlib.import_module("plainlib")
        plainlib.Model.name = lambda _: f"of {rank}"  # before another rank has run
        plainlib.Model.size = plainlib.level = rank + 10
        others()
        # Its patch is that of all ranks, as each would import it.
        assert importlib.import_module("plainlib_plugin").plainlib is plainlib
        others()
        return *plainlib.build(), plainlib.Model.kind

    expected = [(f"of {rank}", rank + 10, rank + 10, "patched") for rank in range(RANKS)]
    for _ in range(2):  # the second run finds both imported
        assert on_ranks(worker, RANKS) == expected
        plainlib: Any = importlib.import_module("plainlib")
        assert plainlib.build() == ("model", 1, 1)


class _Finder:
    """A finder that stands before kernbench's, as pytest's does; each module is a function's."""

    def __init__(self, **bodies: Callable[[dict[str, Any]], object]) -> None:
        self._bodies = bodies

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return spec_from_loader(name, self) if name in self._bodies else None  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> None:
        pass

    def exec_module(self, module: ModuleType) -> None:
        self._bodies[module.__name__](vars(module))


def test_what_a_module_writes_is_of_all_ranks_whoever_has_found_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "plainlib.py").write_text(_LIBRARY)
    monkeypatch.syspath_prepend(str(folder))

    def outer(space: dict[str, Any]) -> None:
        space["before"] = "model"
        importlib.import_module("plainlib")  # after which kernbench looks at what has come
        space["after"] = "model"

    def worker(rank: int) -> Any:
        sys.meta_path.insert(0, _Finder(outerlib=outer))
        outerlib: Any = importlib.import_module("outerlib")
        others()
        found = outerlib.before, outerlib.after
        outerlib.after = rank
        others()
        return *found, outerlib.after

    for _ in range(2):
        for name in ("plainlib", "outerlib"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        assert on_ranks(worker, RANKS) == [("model", "model", rank) for rank in range(RANKS)]


def test_a_module_is_looked_at_once_it_has_run_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int] = []
    look = library_state.LibraryState._watch_writes

    def counted(self: Any, *imported: Any) -> None:
        looks.append(1)
        look(self, *imported)

    def waits(space: dict[str, Any]) -> None:
        others()
        before = len(looks)
        for _ in range(5):
            others()
        space["looks"] = len(looks) - before
        space["level"] = "model"

    def worker(rank: int) -> Any:
        others()
        if rank == 0:
            sys.meta_path.insert(0, _Finder(waitinglib=waits))
            importlib.import_module("waitinglib")
        else:
            for _ in range(6):
                others()
        others()
        waitinglib: Any = sys.modules["waitinglib"]
        found = waitinglib.looks, waitinglib.level
        others()
        waitinglib.level = rank
        others()
        return *found, waitinglib.level

    monkeypatch.setattr(library_state.LibraryState, "_watch_writes", counted)
    monkeypatch.delitem(sys.modules, "waitinglib", raising=False)
    assert on_ranks(worker, RANKS) == [(0, "model", rank) for rank in range(RANKS)]


def test_a_run_that_an_import_starts_has_the_module_of_each_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def starts(space: dict[str, Any]) -> None:
        def worker(rank: int) -> Any:
            startinglib: Any = sys.modules["startinglib"]
            startinglib.level = rank
            others()
            return startinglib.level

        space["level"] = "model"
        space["found"] = on_ranks(worker, RANKS)

    monkeypatch.setattr(sys, "meta_path", [_Finder(startinglib=starts), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "startinglib", raising=False)
    startinglib: Any = importlib.import_module("startinglib")
    assert (startinglib.found, startinglib.level) == ([*range(RANKS)], "model")


def test_a_rank_may_replace_what_kernbench_has_replaced() -> None:
    real = torch.cuda.synchronize

    def worker(rank: int) -> Any:
        calls: list[int] = []
        if rank:
            torch.cuda.synchronize = lambda: calls.append(rank)
        others()
        importlib.import_module("torch.distributed.tensor.parallel")  # real names stand meanwhile
        torch.cuda.synchronize()
        others()
        torch.cuda.synchronize()
        return calls

    assert on_ranks(worker, RANKS) == [[rank] * (2 * bool(rank)) for rank in range(RANKS)]
    assert torch.cuda.synchronize is real


def test_a_module_that_is_replaced_in_a_library_is_so_for_its_rank() -> None:
    def worker(rank: int) -> Any:
        fake = mock.Mock(loads=lambda _: rank)
        with mock.patch.object(json, "decoder", fake):
            others()
            inside = vars(json)["decoder"].loads("")
            others()
        return inside, json.decoder is sys.modules["json.decoder"]

    assert on_ranks(worker, RANKS) == [(rank, True) for rank in range(RANKS)]
