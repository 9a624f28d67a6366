"""Output files: complete or absent."""

import gzip
import os
from pathlib import Path

import pytest

from kernbench.errors import UsageError
from kernbench.report import check_writable, replacing


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    with replacing(path) as file:
        file.write("all\n")
        assert not path.exists()
    assert path.read_bytes() == b"all\n"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")

    def fail() -> None:
        with replacing(path) as file:
            file.write("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.txt"]


def test_equal_texts_give_equal_compressed_files(tmp_path: Path) -> None:
    paths = [tmp_path / "a.json.gz", tmp_path / "b.json.gz"]
    for path in paths:
        with replacing(path) as file:
            file.write("text")
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert gzip.decompress(paths[0].read_bytes()) == b"text"


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_what_utf_8_cannot_encode_is_written_by_its_number(tmp_path: Path, name: str) -> None:
    with replacing(tmp_path / name) as file:
        file.write("\u00e9\ud800")
    written = (tmp_path / name).read_bytes()
    assert (gzip.decompress(written) if name.endswith(".gz") else written) == b"\xc3\xa9\\ud800"


def test_a_test_leaves_nothing_behind(tmp_path: Path) -> None:
    check_writable(tmp_path / "out.json")
    assert os.listdir(tmp_path) == []


def test_a_missing_folder_is_told() -> None:
    with pytest.raises(UsageError) as caught:
        check_writable("no/such/folder/t.json")
    assert str(caught.value) == (
        "[F15] cannot write no/such/folder/t.json: No such file or directory"
    )


@pytest.mark.parametrize("name", ["", ".", "..", "folder", "file/t.json"])
def test_what_is_no_file_is_told(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"\[F15\] cannot write"):
        check_writable(name)
    with pytest.raises(UsageError, match=r"\[F15\] cannot write"), replacing(name):
        pytest.fail("the block must not run")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_a_read_only_file_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.json"
    path.touch()
    # Whoever runs the tests as root may write everything.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UsageError, match="it is read-only"):
        check_writable(path)
