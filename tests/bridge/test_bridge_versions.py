"""Versions of PyTorch: private names of each, what differs, and which are refused."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from bridge_devices import on_ranks

from kernbench.errors import UsageError
from kernbench.runtime_api.pytorch_versions import OLDEST, check_version

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]


def _dotted(node: ast.AST, names: dict[str, str]) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return None
    return ".".join([names[node.id], *parts])


def _private_names(file: Path) -> set[str]:
    """Returns the private names of PyTorch that a file imports, or reaches by a module's name."""
    tree, names = ast.parse(file.read_text()), dict[str, str]()
    for node in ast.walk(tree):
        module = getattr(node, "module", None) or ""
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name.partition(".")[0] == "torch":
                    names[each.asname or "torch"] = each.name if each.asname else "torch"
        elif isinstance(node, ast.ImportFrom) and module.partition(".")[0] == "torch":
            for each in node.names:
                names[each.asname or each.name] = f"{module}.{each.name}"
    found = {*names.values(), *(_dotted(node, names) or "" for node in ast.walk(tree))}
    private = re.compile(r"\._(?!_)")
    return {each for each in found if private.search(each) and "._internal." not in each}


def test_every_private_name_that_the_bridge_reaches_is_in_the_table() -> None:
    from kernbench.bridge.base.private import PRIVATE

    listed = {f"{module}.{name}" for module, names in PRIVATE.items() for name in names}
    assert len(listed) > 100
    left = {
        f"{name} in {file}"
        for file in (ROOT / "kernbench" / "bridge").rglob("*.py")
        for name in _private_names(file)
        if not any(f"{one}.".startswith(f"{name}.") or name.startswith(f"{one}.") for one in listed)
    }
    assert not left


def test_a_name_that_differs_is_that_of_the_newest_version_before() -> None:
    from kernbench.bridge.base.private import PLACES, PRIVATE, Place

    place = Place("torch", {(2, 13): "_old", (2, 15): "_new"})
    minors = (13, 14, 15, 16)
    assert [place.name((2, minor)) for minor in minors] == ["_old", "_old", "_new", "_new"]
    assert all(each.name() in PRIVATE[each.module] for each in PLACES)
    assert all(OLDEST in each.names for each in PLACES)


def test_what_a_group_keeps_in_variables_of_its_module_is_each_ranks_own() -> None:
    import torch.distributed.distributed_c10d as c10d

    from kernbench.bridge.distributed.world import OF_MODULE

    def reads(getter: Any) -> bool:
        return any(f"_{name}" in getter.__code__.co_names for name in (*OF_MODULE, "group_count"))

    kept = {
        name
        for name, one in vars(c10d._World).items()
        if isinstance(one, property)
        and one.fget is not None
        and any(isinstance(vars(c10d).get(each), dict | int) for each in one.fget.__code__.co_names)
    }
    assert kept == {*OF_MODULE, "group_count"}
    assert all(reads(vars(c10d._World)[name].fget) for name in kept)


@pytest.mark.parametrize(
    ("version", "says"),
    [("2.13.0+cpu", ""), ("2.15.0", ""), ("2.16.0a0+git1", "PyTorch 2.16.0a0+git1 is newer than")],
)
def test_a_version_that_is_newer_than_all_known_is_told_once(
    version: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        check_version(version)
    told = capsys.readouterr().err
    assert told.count("\n") == bool(says)
    assert says in told


@pytest.mark.parametrize("version", ["2.12.1", "1.13.0", "of unknown version"])
def test_a_version_that_is_too_old_is_refused(version: str) -> None:
    with pytest.raises(UsageError, match=r"programs run with 2\.13 or newer"):
        check_version(version)


def test_a_pass_back_begins_at_an_edge_of_the_graph() -> None:
    def worker(rank: int) -> Any:
        del rank
        x = torch.ones(3, device="cuda", requires_grad=True)
        edge = torch.autograd.graph.get_gradient_edge(x * 2)
        torch.autograd.backward([edge], [torch.full((3,), 4.0, device="cuda")])
        return x.grad.tolist(), x.grad.device.type

    assert on_ranks(worker) == [([8.0] * 3, "cuda")]


def test_checkpoints_know_their_own_hooks_from_a_programs() -> None:
    from torch.utils.checkpoint import (
        CheckpointPolicy,
        checkpoint,
        create_selective_checkpoint_contexts,
    )

    def contexts() -> Any:
        keeps: Any = lambda *_, **__: CheckpointPolicy.MUST_SAVE  # noqa: E731
        return create_selective_checkpoint_contexts(keeps)

    def worker(rank: int) -> Any:
        del rank
        x = torch.ones(3, device="cuda", requires_grad=True)
        # A warning would be an error: PyTorch warns of a program's hooks around a checkpoint.
        checkpoint(torch.sin, x, use_reentrant=False, context_fn=contexts).sum().backward()
        hooks = torch.autograd.graph.saved_tensors_hooks(_packs, _unpacks)
        return hooks.pack_hook.mark, x.grad is not None

    _packs.mark = "of the program"  # type: ignore[attr-defined]
    assert on_ranks(worker) == [("of the program", True)]


def _packs(tensor: Any) -> Any:
    return tensor


def _unpacks(tensor: Any) -> Any:
    return tensor
