"""Files that cannot be read at all: the full text of each, and the limits."""

import tomllib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kernbench.config import ConfigError, load, shipped, yaml_file


@dataclass(frozen=True, slots=True)
class Names:
    names: dict[str, str]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def error(content: str | bytes, name: str = "x.yaml") -> str:
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as caught:
        load(Names, name)
    return str(caught.value)


def missing(path: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(Names, path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(
            "- " * 65 + "x",
            "x.yaml:1:129: expected at most 64 levels of nesting, got more [F9]",
            id="F9 depth",
        ),
        pytest.param(
            "a: &a x\nb: [" + "*a, " * 1001 + "]",
            "x.yaml:2:4005: expected at most 1000 aliases, got more [F9]",
            id="F9 aliases",
        ),
        pytest.param(
            "\n".join(
                f"{name}: &{name} [{', '.join([inner] * 10)}]"
                for name, inner in zip("abcde", ("x", "*a", "*b", "*c", "*d"), strict=True)
            ),
            "x.yaml:5:36: expected at most 100000 values with aliases expanded, got more [F9]",
            id="F9 bomb",
        ),
        pytest.param(
            "[" + "x," * 100_000 + "]",
            "x.yaml:1:200000: expected at most 100000 values with aliases expanded, got more [F9]",
            id="F9 values",
        ),
        pytest.param(
            "#" * ((1 << 20) + 1),
            "x.yaml: expected at most 1048576 bytes, got more [F9]",
            id="F9 size",
        ),
        pytest.param(
            b"names:\n  a: caf\xe9\n",
            "x.yaml:2:9: expected UTF-8, got byte 0xe9 at offset 15 [F10]\n"
            "        a: caf\ufffd\n"
            "              ^",
            id="F10 latin-1",
        ),
        pytest.param(
            b"names:\r\n  a: b\0c\r\n",
            "x.yaml:2:7: character U+0000 at offset 14 is not allowed in YAML [F10]\n"
            "        a: b\ufffdc\n"
            "            ^",
            id="F10 NUL",
        ),
        pytest.param(
            "names:\n\ta: b\n",
            "x.yaml:2:1: a tab may not indent YAML; use spaces [F10]\n      \ta: b\n      ^",
            id="F10 tab",
        ),
        pytest.param(
            "names: {a: b\n",
            "x.yaml:2:1: not YAML: while parsing a flow mapping, did not find expected ',' or '}' "
            "[F10]",
            id="F10 syntax",
        ),
        pytest.param("", "x.yaml: expected a mapping, got an empty file [F11]", id="F11 empty"),
        pytest.param(
            "# nothing\n---\n",
            "x.yaml: expected a mapping, got an empty file [F11]",
            id="F11 comment",
        ),
        pytest.param(
            "names: {}\n---\nnames: {}\n",
            "x.yaml:2:1: expected one document, got the start of another [F13]\n      ---\n      ^",
            id="F13 documents",
        ),
        pytest.param(
            "names:\n  a: b\n  c: d\n  'a': e\n",
            "x.yaml:4:3: names.a: expected each key once, got it again; first on line 2 [F6]\n"
            "        'a': e\n"
            "        ^",
            id="F6 duplicate",
        ),
    ],
)
def test_what_a_broken_file_shows(content: str | bytes, expected: str) -> None:
    text = error(content)
    code = expected.rsplit("[", maxsplit=1)[-1].split("]", maxsplit=1)[0]
    assert text.startswith(f"[{code}] x.yaml: 1 problem\n  {expected}")


def test_the_limits_are_checked_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_file, "_Composer", lambda source: None)
    assert "[F9]" in error("[" + "x," * 100_000 + "]")


def test_a_file_as_large_as_the_limits_is_read() -> None:
    text = "names: {" + ", ".join(f"k{i}: x" for i in range(40_000)) + "}"
    Path("x.yaml").write_text(text.ljust(1 << 20))
    assert len(load(Names, "x.yaml")[0].names) == 40_000


def test_a_byte_order_mark_and_windows_line_ends_are_accepted() -> None:
    Path("x.yaml").write_bytes(b"\xef\xbb\xbfnames:\r\n  a: b\r\n")
    assert load(Names, "x.yaml")[0] == Names({"a": "b"})


def test_a_missing_file_names_what_was_searched_and_what_is_near(tmp_path: Path) -> None:
    Path("sip8.yaml").touch()
    assert missing("sip9.yaml") == (
        "[F11] sip9.yaml: 1 problem\n"
        f"  sip9.yaml: no such file: {tmp_path}/sip9.yaml; searched in {tmp_path} [F11]\n"
        "      did you mean `sip8.yaml`?"
    )


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert missing("no/x.yaml") == (
        "[F11] no/x.yaml: 1 problem\n"
        f"  no/x.yaml: no such file: {tmp_path}/no/x.yaml; there is no folder {tmp_path}/no [F11]"
    )


def test_a_folder_is_no_file() -> None:
    Path("folder").mkdir()
    Path("folder/a.yaml").touch()
    assert missing("folder") == (
        "[F11] folder: 1 problem\n"
        "  folder: expected a file, got a folder [F11]\n"
        "      did you mean `folder/a.yaml`?"
    )


def test_an_unreadable_file_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    Path("x.yaml").touch()
    monkeypatch.setattr(Path, "open", refuse)
    assert missing("x.yaml") == (
        "[F11] x.yaml: 1 problem\n  x.yaml: cannot be read: Permission denied [F11]"
    )


def test_a_path_that_cannot_exist_says_why() -> None:
    assert "cannot be read: embedded null byte [F11]" in missing("a\0b")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("abc<=-", max_size=3), inner, max_size=3)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.text("abc", min_size=1), values, min_size=1))
def test_a_tree_holds_what_yaml_gives(tree: dict[str, object]) -> None:
    text = yaml.safe_dump(tree, allow_unicode=True)
    root, problems = yaml_file.parse_tree(yaml_file.Source("x", text.splitlines()), text)
    assert problems == []
    assert yaml_file.plain(root) == yaml.safe_load(text)


@given(st.binary(max_size=200))
def test_any_bytes_give_an_instance_or_a_config_error(data: bytes) -> None:
    Path("x.yaml").write_bytes(data)
    with pytest.raises(ConfigError):
        load(Names, "x.yaml")


@given(st.text("abn:[]{}&*-? \n'\"|>!%@`#,<", max_size=60))
def test_any_text_gives_an_instance_or_a_config_error(text: str) -> None:
    Path("x.yaml").write_text(f"names:\n  a: b\n{text}\n")
    with suppress(ConfigError):
        load(Names, "x.yaml")


def test_what_comes_with_kernbench_is_found() -> None:
    assert (shipped("configs") / "topology" / "sip8.yaml").is_file()


def test_a_wheel_has_what_comes_with_kernbench() -> None:
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert set(included) == {
        *("configs", "benches", "README.md", "docs/errors.md"),
        *("validation/h200x8/laws.yaml", "validation/h200x8/result.json"),
    }
    for name, place in included.items():
        assert place == f"kernbench/_installed/{name}"
        assert shipped(name).exists()


def test_a_wheel_carries_it_inside_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "kernbench"
    (package / "_installed" / "configs").mkdir(parents=True)
    uncached: Any = shipped.__wrapped__
    monkeypatch.setitem(uncached.__globals__, "__file__", str(package / "config" / "shipped.py"))
    assert uncached("configs") == package / "_installed" / "configs"
    assert uncached("benches") == tmp_path / "benches"
