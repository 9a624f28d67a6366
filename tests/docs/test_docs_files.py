"""Decisions have all their parts, rooms a README; links lead somewhere; pictures are current."""

import ast
import html
import importlib
import importlib.util
import re
import sys
import tomllib
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
DECISIONS = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
ROOMS = sorted(path.parent for path in (ROOT / "kernbench").glob("*/__init__.py"))
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("benchmarks/*.md"),
        *ROOT.glob("kernbench/*/README.md"),
    ]
)

PARTS = ["Question", "Decision", "Alternatives", "Consequences", "Pinned by", "Reopened by"]
ROOM_PARTS = ["What it is", "Key types", "Life of a thing", "What it may import"]


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _parts(text: str) -> dict[str, str]:
    pieces = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    return dict(zip(pieces[::2], pieces[1::2], strict=True))


@pytest.mark.parametrize("path", DECISIONS, ids=_name)
def test_a_decision_has_all_its_parts(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    title, _, status = text.splitlines()[:3]
    assert title.startswith(f"# ADR {path.name[:4]}: ")
    assert re.fullmatch(r"Status: (accepted|superseded by \d{4}), \d{4}-\d\d-\d\d", status)
    parts = _parts(text)
    assert list(parts) == PARTS
    assert all(part.strip() for part in parts.values())
    assert len(re.findall(r"[.?](?:\s|$)", parts["Question"])) == 1, "one sentence"


@cache
def _tests_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("path", DECISIONS, ids=_name)
def test_a_decision_is_pinned_by_tests_that_exist(path: Path) -> None:
    pinned = _parts(path.read_text(encoding="utf-8"))["Pinned by"]
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", pinned)
    assert named
    for file, test in named:
        assert test in _tests_of(file), f"{file}::{test}"


def test_decisions_are_numbered_and_listed() -> None:
    assert [path.name[:4] for path in DECISIONS] == [
        f"{number:04}" for number in range(1, len(DECISIONS) + 1)
    ]
    index = (ROOT / "docs" / "adr" / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[(\d{4})\]", index, re.M) == [path.name[:4] for path in DECISIONS]


def test_the_code_cites_decisions_that_exist() -> None:
    numbers = {path.name[:4] for path in DECISIONS}
    for path in sorted(ROOT.glob("kernbench/**/*.py")):
        for cited in re.findall(r"ADRs? (\d{4})", path.read_text(encoding="utf-8")):
            assert cited in numbers, _name(path)


@pytest.mark.parametrize("room", ROOMS, ids=_name)
def test_a_room_says_what_it_is(room: Path) -> None:
    text = (room / "README.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {room.name}\n")
    assert list(_parts(text)) == ROOM_PARTS
    assert len(text.splitlines()) <= 60


@cache
def _anchors(path: Path) -> set[str]:
    """Returns the anchors of a document's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    return {
        re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }


def _dead_links(path: Path) -> list[str]:
    """Returns the links of a document to files and headings that are not there."""
    text = path.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    dead = []
    for target in re.findall(r"\]\(([^)]+)\)", prose):
        file, _, anchor = target.partition("#")
        place = path.parent / file if file else path
        if not target.startswith("https://") and (
            not place.exists() or (anchor and anchor not in _anchors(place))
        ):
            dead.append(target)
    return dead


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_links_lead_somewhere(path: Path) -> None:
    assert _dead_links(path) == []


def test_dead_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Other\n```\n# no heading\n```\n## It's a `part`\n")
    document = tmp_path / "document.md"
    document.write_text(
        "# One\n[a](#one) [b](#two) [c](other.md#its-a-part) [d](other.md#no-heading) [e](no.md)\n"
        "[f](https://example.com/#x) [g](other.md)\n"
    )
    assert _dead_links(document) == ["#two", "other.md#no-heading", "no.md"]


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_a_document_names_no_place_of_one_computer(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.findall(r"(?<![\w.])/(?:work|tmp|home|root|Users)/", text)


def _pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "docs" / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ANEW = "`python docs/pictures.py` makes it anew"


def test_the_picture_of_the_table_is_what_is_printed_now() -> None:
    pictures = _pictures()
    svg = (ROOT / "docs" / "img" / "table.svg").read_text(encoding="utf-8")
    shown = html.unescape(re.sub(r"<[^>]+>", "", svg)).replace("\xa0", " ")
    for line in pictures.kernbench("run", pictures.BENCH).splitlines():
        assert line in shown, ANEW


@pytest.mark.parametrize("name", ["timeline", "ring"])
def test_the_picture_of_a_timeline_is_that_of_a_trace(name: str) -> None:
    pictures = _pictures()
    svg = (ROOT / "docs" / "img" / f"{name}.svg").read_text(encoding="utf-8")
    trace = pictures.trace(*pictures.TIMELINES[name])
    assert svg == pictures.timeline_svg(trace, (0, 1)), ANEW
    rows = trace["traceEvents"]
    assert any(event["ph"] == "s" and event["cat"] == "message" for event in rows)


def test_the_picture_of_blocks_is_that_of_its_file() -> None:
    svg = (ROOT / "docs" / "img" / "blocks.svg").read_text(encoding="utf-8")
    assert svg == _pictures().blocks_svg(), ANEW


@pytest.mark.plot
def test_the_picture_of_a_sweep_shows_what_it_finds_now() -> None:
    """Outlines of letters depend on the version of matplotlib; texts and lines do not."""
    pytest.importorskip("matplotlib")
    pictures = _pictures()
    svg = (ROOT / "docs" / "img" / "sweep.svg").read_text(encoding="utf-8")
    now = pictures.sweep_svg()
    texts, lines = r"<!-- (.+?) -->", r"<path d=\"(M [\d.]+ [\d.]+ \n(?:L [\d.]+ [\d.]+ \n){9,}\")"
    assert re.findall(texts, svg) == re.findall(texts, now), ANEW
    assert re.findall(lines, svg) == re.findall(lines, now), ANEW
    assert len(re.findall(lines, now)) == 3
    document = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
    shown = " ".join(word for word in pictures.SWEEP if word != "--quiet")
    assert f"```sh\nkernbench {shown}\n```" in document


def test_types_are_the_same_whether_an_extra_is_installed_or_not() -> None:
    """Stubs of a package are read where it is installed, unless they are named, too."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    skipped = [
        each
        for each in settings["tool"]["mypy"]["overrides"]
        if each.get("follow_imports") == "skip"
    ]
    named = {name for each in skipped for name in each["module"]}
    assert {"torch", "triton", "matplotlib", "ray", "transformers"} <= named
    assert all(each.get("follow_imports_for_stubs") for each in skipped)


def test_benchmarks_name_the_versions_of_what_they_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    measure = importlib.import_module("_measure")
    installed = {"greenlet": "1", "numpy": "2"}
    monkeypatch.setattr(measure, "version", installed.__getitem__)
    monkeypatch.delitem(sys.modules, "simpy", raising=False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    measure.show("A table", ["what", "time"], [["all", "1 s"]])
    title, head, *rows = capsys.readouterr().out.splitlines()
    assert title == "A table"
    assert head.endswith(", greenlet 1, numpy 2")
    assert rows == ["what  time", "all    1 s"]
