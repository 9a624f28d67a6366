"""The journal: whatever kills a sweep at whatever byte, nothing is lost, torn, or done twice."""

import fcntl
import json
import os
import zlib
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
from shooting import shots

from kernbench.errors import UsageError
from kernbench.sweeps import journal as journal_module
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
        records = [json.loads(line[9:]) for line in text.split("\n")[1:-1]]
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


def _line(values: Any) -> str:
    body = json.dumps(values)
    return f"{zlib.crc32(body.encode()):08x} {body}\n"


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
    lines = [{"kernbench": 1, "journal": 2, "known": 0}, changed, second]
    files.journal.write_text("".join(map(_line, lines)))
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


def test_a_line_that_has_changed_on_the_disk_is_no_record(runs: list[Run], tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path) as journal:
        for run in runs[:3]:
            journal.add(record_of(run))
    content = path.read_bytes()
    middle = content.index(b"\n") + content[content.index(b"\n") :].index(b'"ok":true') + 6
    for place in (3, middle):  # the heading; a flag of the first record, which stays JSON
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(UsageError, match=r"no journal|line 2 is no record, or is damaged"):
            Journal(path)
        assert path.read_bytes() == changed


def test_a_journal_is_removed_while_it_is_locked(runs: list[Run], tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    unlink, found = Path.unlink, []

    def watched(self: Path, missing_ok: bool = False) -> None:
        with pytest.raises(UsageError, match="another sweep writes to it"):
            Journal(path)
        found.append(self)
        unlink(self, missing_ok)

    with mock.patch.object(Path, "unlink", watched):
        journal.close()
    assert found == [path]
    assert not path.exists()


def test_a_journal_that_goes_between_open_and_lock_is_opened_anew(
    runs: list[Run], tmp_path: Path
) -> None:
    path = tmp_path / "j"
    others = [Journal(path)]
    lock = fcntl.flock

    def late(file: Any, operation: int) -> None:
        if others:
            others.pop().close()  # the other sweep ends now
        lock(file, operation)

    with mock.patch.object(fcntl, "flock", late), Journal(path) as journal:
        journal.add(record_of(runs[0]))
    with Journal(path) as journal:
        assert list(journal) == [runs[0].key]


def test_a_journal_of_another_sweep_at_the_same_place_stays(
    runs: list[Run], tmp_path: Path
) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    path.unlink()
    with Journal(path) as other:
        other.add(record_of(runs[0]))
        journal.remove()
        journal.close()
    with Journal(path) as other:
        assert list(other) == [runs[0].key]


def _interrupted(runs: list[Run], path: Path, step: int) -> None:
    """Shoots at a journal's life, bytecode by bytecode, and looks at what is left each time."""
    done: list[str] = []

    def live() -> Callable[[], None]:
        path.unlink(missing_ok=True)
        done.clear()

        def call() -> None:
            with Journal(path) as journal:
                for run in runs[:2]:
                    journal.add(record_of(run))
                    done.append(run.key)

        return call

    for _ in shots(live, [journal_module], step):
        with Journal(path) as journal:  # nothing holds its lock
            kept = list(journal)
            assert kept in ([], [runs[0].key], [run.key for run in runs[:2]])
            assert set(done) <= set(kept), "nothing lost"
            for run in runs[:3]:
                if run.key not in kept:
                    journal.add(record_of(run))
        with Journal(path) as journal:
            assert list(journal) == [run.key for run in runs[:3]]
            for run in runs[:3]:
                assert Record.from_json(journal.values(run.key)) == record_of(run)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.slow)])
def test_an_interrupt_at_any_bytecode_leaves_a_journal_to_go_on_from(
    runs: list[Run], tmp_path: Path, step: int
) -> None:
    _interrupted(runs, tmp_path / "j", step)


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_journal_goes_on_after_an_interrupt_at_any_bytecode_of_add(
    runs: list[Run], tmp_path: Path, step: int
) -> None:
    path = tmp_path / "j"
    opened: list[Journal] = []

    def add() -> Callable[[], None]:
        path.unlink(missing_ok=True)
        opened.append(Journal(path))
        opened[-1].add(record_of(runs[0]))
        return lambda: opened[-1].add(record_of(runs[1]))

    for _ in shots(add, [journal_module], step):
        with opened.pop() as journal:
            journal.add(record_of(runs[2]))
            keys = [runs[0].key, *[runs[1].key] * (runs[1].key in journal), runs[2].key]
            assert list(journal) == keys
            for run in runs[:3]:
                if run.key in journal:
                    assert Record.from_json(journal.values(run.key)) == record_of(run)
        with Journal(path) as journal:
            assert list(journal) == keys
    opened.pop().close()
