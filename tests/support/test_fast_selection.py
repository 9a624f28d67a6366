"""`./test-fast`: what it runs is there, and is of every room."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
LINES: Final = (ROOT / "tests" / "support" / "fast.txt").read_text(encoding="utf-8").splitlines()
SELECTED: Final = {line.split()[0]: line.split()[1:] for line in LINES}

ELSEWHERE: Final = {
    "bridge": "PyTorch takes longer to import than all of these tests take",
    "cuda_on_cpu": "it is PyTorch's own operations",
    "flight_recorder": "PyTorch reads its files in tests",
    "libraries": "Megatron-Core is what it changes, and PyTorch what that needs",
}
"""Rooms without tests in the selection, and why."""


def test_every_room_has_tests_in_it() -> None:
    assert len(SELECTED) == len(LINES), "a line a room"
    rooms = {path.parent.name for path in (ROOT / "kernbench").glob("*/__init__.py")}
    rooms |= {path.stem for path in (ROOT / "kernbench").glob("*.py")} - {"__init__", "__main__"}
    with_tests = {room for room in rooms if any((ROOT / "tests" / room).glob("test_*.py"))}
    # A folder `tests/triton` would stand for Triton where that is not installed.
    assert rooms - with_tests == {"errors", "triton", "version"}, "each room has a folder of tests"
    assert with_tests - SELECTED.keys() == ELSEWHERE.keys()


def test_what_it_runs_is_there() -> None:
    for room, names in SELECTED.items():
        assert names
        assert sorted(set(names)) == names, room
        for name in names:
            assert (ROOT / "tests" / room / f"test_{name}.py").is_file(), f"{room}: {name}"


def test_it_is_a_part() -> None:
    selected = sum(map(len, SELECTED.values()))
    assert selected < len(list((ROOT / "tests").rglob("test_*.py"))) / 2
