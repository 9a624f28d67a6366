"""The journal: whatever kills a sweep at whatever byte, nothing is lost, torn, or done twice."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from examples import examples
from fake_sweeps import Executor, grid_of, record_of
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.errors import UsageError
from kernbench.sweeps.journal import Journal
from kernbench.sweeps.records import Record, Run
from kernbench.sweeps.sweeping import Files, Sweep


def _sweep(runs: list[Run], files: Files, executor: Executor, resume: bool = True) -> None:
    with Sweep(runs, files, resume=resume) as sweep:
        for _ in sweep.run(executor):
            pass
        sweep.finish()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    return grid_of(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def whole(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """The files of a sweep that nothing has interrupted."""
    files = _files(tmp_path_factory.mktemp("whole"))
    _sweep(runs, files, Executor())
    return _contents(files)


def _files(folder: Path) -> Files:
    return Files(json=folder / "s.json", csv=folder / "s.csv")


def _contents(files: Files) -> tuple[bytes, bytes]:
    assert files.json is not None
    assert files.csv is not None
    return files.json.read_bytes(), files.csv.read_bytes()


def test_a_journal_cut_at_any_byte_keeps_its_whole_lines(runs: list[Run], tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with Journal(path) as journal:
        for run in runs[:2]:
            journal.add(record_of(run))
    content = path.read_bytes()
    ends = [place for place, byte in enumerate(content, 1) if byte == ord("\n")]
    for cut in [*range(ends[0] + 2), *range(ends[1] - 1, len(content) + 1)]:
        path.write_bytes(content[:cut])
        with Journal(path) as journal:
            kept = sum(end <= cut for end in ends[1:])
            assert list(journal) == [run.key for run in runs[:kept]]
            for run in runs[kept:2]:
                journal.add(record_of(run))
        assert path.read_bytes() == content


class Killed(BaseException):
    """The process has died: nothing that it calls afterwards does anything."""


class Mortal:
    """A process that dies after a number of bytes and of other acts on files.

    Args:
        left: How many there may be.
    """

    def __init__(self, left: int) -> None:
        self._left = left
        self._write = os.write

    def write(self, file: int, data: bytes) -> int:
        some = data[: self._left]
        self._left -= len(some)
        written = self._write(file, some) if some else 0
        if len(some) < len(data):
            raise Killed
        return written

    def act(self, does: Callable[..., Any]) -> Callable[..., Any]:
        def acted(*args: Any, **kwargs: Any) -> Any:
            if self._left <= 0:
                raise Killed
            self._left -= 1
            return does(*args, **kwargs)

        return acted

    @contextmanager
    def living(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(os, "write", self.write))
            for owner, name in (
                (os, "ftruncate"),
                (os, "fsync"),
                (Path, "replace"),
                (Path, "unlink"),
                (Path, "touch"),
            ):
                act = self.act(getattr(owner, name))
                stack.enter_context(mock.patch.object(owner, name, act))
            yield


@settings(max_examples=examples(120), deadline=None)
@given(deaths=st.lists(st.integers(0, 3800), min_size=1, max_size=6), backwards=st.booleans())
def test_deaths_at_any_moments_lose_nothing(
    deaths: list[int],
    backwards: bool,
    runs: list[Run],
    whole: tuple[bytes, bytes],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    files = _files(tmp_path_factory.mktemp("dying"))
    assert files.journal is not None
    kept: list[str] = []
    for death in deaths:
        executor = Executor(backwards)
        try:
            with Mortal(death).living():
                _sweep(runs, files, executor)
        except Killed:
            pass
        assert not set(kept) & set(executor.given), "nothing twice"
        now = _kept(files)
        assert set(kept) <= set(now), "nothing lost"
        assert set(now) >= set(kept) | set(executor.given[:-1]), "but the run under way"
        kept = now
    last = Executor()
    _sweep(runs, files, last)
    assert not set(kept) & set(last.given)
    assert _contents(files) == whole
    assert not files.journal.exists()


def _kept(files: Files) -> list[str]:
    """Returns which runs have a record, read without the code under test."""
    assert files.json is not None
    assert files.journal is not None
    if files.json.exists():
        records = json.loads(files.json.read_text())["records"]
    else:
        text = files.journal.read_text() if files.journal.exists() else ""
        records = [json.loads(line) for line in text.split("\n")[1:-1]]
    names = [record["varied"]["-n"] for record in records]
    assert len(set(names)) == len(names)
    return names


def test_a_journal_in_use_is_refused(tmp_path: Path) -> None:
    with Journal(tmp_path / "j"), pytest.raises(UsageError, match="another sweep writes to it"):
        Journal(tmp_path / "j")


@pytest.mark.parametrize("content", ["{}\n", '{"a": 1}\n{}\n', "\n\n", "[]\n[]\n"])
def test_what_is_no_journal_is_refused_and_stays(tmp_path: Path, content: str) -> None:
    path = tmp_path / "j"
    path.write_text(content)
    with pytest.raises(UsageError, match="it is no journal"):
        Journal(path)
    assert path.read_text() == content


def test_a_line_that_is_no_record_is_refused_unless_it_is_the_last(
    runs: list[Run], tmp_path: Path
) -> None:
    path = tmp_path / "j"
    with Journal(path) as journal:
        for run in runs:
            journal.add(record_of(run))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:-1], b"\0" * 40 + b"\n"]))
    with Journal(path) as journal:
        assert len(journal) == len(runs) - 1
    torn = b"".join([*lines[:2], b'{"key"\n', *lines[3:]])
    path.write_bytes(torn)
    with pytest.raises(UsageError, match="line 3 is no record"):
        Journal(path)
    assert path.read_bytes() == torn


@pytest.mark.parametrize(
    "odd", [{"ok": 1.0}, {"spec": "odd"}, {"results": None}, {"failure": 3}, {"report": 3}, None]
)
def test_a_record_with_a_value_of_another_kind_is_none(
    runs: list[Run], whole: tuple[bytes, bytes], tmp_path: Path, odd: dict[str, Any] | None
) -> None:
    first, second, *_ = json.loads(whole[0])["records"]
    changed = {"key": first["key"]} if odd is None else {**first, **odd}
    files = _files(tmp_path)
    assert files.journal is not None
    lines = [{"kernbench": 1, "journal": 1, "known": 0}, changed, second]
    files.journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(UsageError, match="line 2 is no record"):
        Sweep(runs, files, resume=True)
    assert files.json is not None
    files.json.write_text(json.dumps({"kernbench": 1, "sweep": {}, "records": lines[1:]}))
    files.journal.unlink()
    with pytest.raises(UsageError, match="expected a file that `kernbench sweep --json` has"):
        Sweep(runs, files, resume=True)


def test_a_disk_that_is_full_is_told_and_keeps_what_was_written(
    runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "j"
    with Journal(path) as journal:
        journal.add(record_of(runs[0]))

        def full(file: int, data: bytes) -> int:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, "write", full)
            with pytest.raises(UsageError, match="No space left") as caught:
                journal.add(record_of(runs[1]))
        assert caught.value.code == "F15"
    with Journal(path) as journal:
        assert list(journal) == [runs[0].key]
        assert Record.from_json(journal.values(runs[0].key)) == record_of(runs[0])


def test_a_journal_without_a_file_keeps_records(runs: list[Run]) -> None:
    with Journal(None) as journal:
        for run in runs:
            journal.add(record_of(run))
        journal.sync()
        assert [journal.values(run.key) for run in runs] == [
            json.loads(json.dumps(record_of(run).to_json())) for run in runs
        ]
        assert runs[0].key in journal
        journal.remove()
