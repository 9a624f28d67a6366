"""Rooms: none names an upper one in a string, which no contract of imports sees, or grows large."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "importlinter"
]
ROOMS = next(each for each in CONTRACTS["contracts"] if each["name"] == "rooms")["layers"]
DEPTH = {room: depth for depth, layer in enumerate(ROOMS) for room in layer.split(" | ")}


def _docstrings(tree: ast.AST) -> set[ast.expr]:
    bodies = [getattr(node, "body", None) for node in ast.walk(tree)]
    lines = [line for body in bodies if isinstance(body, list) for line in body]
    return {line.value for line in lines if isinstance(line, ast.Expr)}


def _named_above(room: str, code: str) -> Iterator[str]:
    """Yields the modules of upper rooms that strings name to code; a sentence is for people."""
    tree = ast.parse(code)
    docstrings = _docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = [] if node in docstrings else node.value.split()
            for above in re.findall(r"\bkernbench\.(\w+)", words[0] if len(words) == 1 else ""):
                if DEPTH.get(above, DEPTH[room]) < DEPTH[room]:
                    yield f"{node.value} in line {node.lineno}"


def test_no_room_names_an_upper_one() -> None:
    for path in (ROOT / "kernbench").rglob("*.py"):
        room = path.relative_to(ROOT / "kernbench").parts[0].removesuffix(".py")
        if room != "__init__":
            assert list(_named_above(room, path.read_text(encoding="utf-8"))) == [], path


def test_what_names_an_upper_room_is_found() -> None:
    code = '"""See kernbench.nn.losses."""\nHOME = ("kernbench.nn.losses", f"kernbench.bridge.{1}")'
    assert list(_named_above("tensors", code)) == [
        "kernbench.nn.losses in line 2",
        "kernbench.bridge. in line 2",
    ]
    assert list(_named_above("bridge", code)) == []


def test_imports_for_types_alone_count() -> None:
    assert "exclude_type_checking_imports" not in CONTRACTS


@pytest.mark.parametrize(
    ("package", "rooms"),
    [("greenlet", {"des"}), ("torch", {"bridge", "cuda_on_cpu"}), ("triton", {"triton"})],
)
def test_all_rooms_but_these_may_not_import_a_package(package: str, rooms: set[str]) -> None:
    """The room lists of these contracts are written out, and none of them lacks a new room."""
    contracts = [
        each for each in CONTRACTS["contracts"] if each.get("forbidden_modules") == [package]
    ]
    (sources,) = [each["source_modules"] for each in contracts]
    assert sources == sorted(f"kernbench.{each}" for each in DEPTH.keys() - rooms)


MOST_LINES = {"bridge": 14_000, "operations": 9_000}


@pytest.mark.parametrize("room", MOST_LINES)
def test_a_room_stays_small(room: str) -> None:
    paths = (ROOT / "kernbench" / room).rglob("*.py")
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)
    assert lines <= MOST_LINES[room]
