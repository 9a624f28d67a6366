"""The README's code runs, prints what it shows, and names every option and room."""

import importlib
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import docs_readme
import pytest
import typer.main

from kernbench.cli.app import app

TEXT = docs_readme.README.read_text(encoding="utf-8")
STEPS = docs_readme.tutorial(TEXT)


@pytest.mark.parametrize("heading", list(STEPS))
def test_the_tutorial_prints_what_it_shows(
    heading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path.resolve()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("COLUMNS", "80")
    for earlier in list(STEPS)[: list(STEPS).index(heading)]:
        docs_readme.write_files(STEPS[earlier], folder)
    shown = list(docs_readme.outputs(STEPS[heading], folder))
    assert shown, "a step shows what it prints"
    for fence, got in shown:
        assert got == fence.content, "`python tests/docs/docs_readme.py` writes it anew"


@pytest.mark.parametrize("heading", [step for step in STEPS if re.match(r"[1238]\.", step)])
def test_programs_that_name_their_device_do_the_same_with_the_host_as_default(
    heading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path.resolve()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    run = docs_readme._kernbench
    option = ["--default-device", "cpu"]
    monkeypatch.setattr(
        docs_readme, "_kernbench", lambda words: run([*words[:2], *option, *words[2:]])
    )
    for earlier in list(STEPS)[: list(STEPS).index(heading)]:
        docs_readme.write_files(STEPS[earlier], folder)
    shown = list(docs_readme.outputs(STEPS[heading], folder))
    assert shown
    for fence, got in shown:
        assert got == fence.content


def test_the_set_up_commands_stand_as_they_are_called() -> None:
    (block,) = (fence for fence in docs_readme.fences(TEXT) if "pip install" in fence.content)
    assert block.content == (
        "pip install -e . && kernbench run benches/ccl_allreduce.py         "
        "# set-up and main job\n"
        "pip install -e '.[test]' && pytest                                  "
        "# set-up and tests\n"
    )
    first = block.content.split("#")[0].strip()
    gate = (docs_readme.ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert first.replace("pip install", "pip install -q") in gate


def test_what_pytest_leaves_out_is_run_at_the_end_of_the_gate() -> None:
    project = tomllib.loads((docs_readme.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert (
        "-m 'not slow and not torch and not hta'"
        in project["tool"]["pytest"]["ini_options"]["addopts"]
    )
    gate = (docs_readme.ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert gate.splitlines()[-1] == "pytest -q -m slow"
    assert "\n  pytest -q -m torch\n" in gate
    assert "\n  pytest -q -m hta\n" in gate
    assert "the slow ones: `pytest -m slow`" in TEXT


def test_the_accuracy_is_what_is_simulated_now() -> None:
    assert docs_readme.with_accuracy(TEXT) == TEXT
    (measured, simulated) = re.findall(r"takes (\d+) us there and (\d+) us here", TEXT)[0]
    assert round(docs_readme.simulated_matmul(8192, 8192, 8192)) == int(simulated)
    assert abs(int(simulated) / int(measured) - 1) < 0.1


def test_the_links_at_the_top_name_every_page_and_section() -> None:
    top = TEXT.split("\n## Tutorial\n")[0]
    linked = re.findall(r"^ *(?:-|(\d+)\.) \[(.+?)\]\(#(.+?)\)$", top, re.MULTILINE)
    parts = [(number, text) for number, text, _ in linked]
    headings = re.findall(r"^## (.+)|^### (\d+)\. (.+)", TEXT, re.MULTILINE)
    assert parts == [(number, section or page) for section, number, page in headings]
    for number, text, anchor in linked:
        words = re.sub(r"[^\w -]", "", f"{number}. {text}" if number else text)
        assert anchor == words.lower().replace(" ", "-")
    assert "(#9-test-your-tensor-parallel-layer)" in "".join(TEXT.splitlines(keepends=True)[:20])


def test_the_names_of_nn_and_optim_are_all_there() -> None:
    section = _section("## What there is of `torch.nn` and `torch.optim`")
    rows = re.findall(r"^\| `torch\.(\S+)` \| (.+) \|$", section, re.MULTILINE)
    parts = {name: set(re.findall(r"`(\w+)`", names)) for name, names in rows}
    for name, listed in parts.items():
        module = importlib.import_module(f"kernbench.torch.{name}")
        public = {
            each
            for each, value in vars(module).items()
            if not each.startswith("_") and not isinstance(value, ModuleType)
        }
        assert listed == public - {"not_simulated"}, name
    face = vars(importlib.import_module("kernbench.torch.nn"))
    modules = [name for name in face["__all__"] if isinstance(face[name], ModuleType)]
    assert set(parts) == {"nn", "optim", "optim.lr_scheduler"} | {
        f"nn.{n}" for n in modules if n != "modules"
    }


def _section(heading: str) -> str:
    return TEXT.split(f"\n{heading}\n")[1].split("\n## ")[0]


def test_every_option_is_in_the_readme_and_no_other() -> None:
    command: Any = typer.main.get_command(app)
    section = _section("## Command line")
    _, run, check, explain, list_ = re.split(r"^### ", section, flags=re.MULTILINE)
    parts = {"run": run, "check": check, "explain": explain, "list": list_}
    assert set(command.commands) == set(parts)
    for name, part in parts.items():
        known = {"--help"}
        for parameter in command.commands[name].params:
            known |= {option for option in parameter.opts if option.startswith("-")}
        rows = "".join(re.findall(r"^\| (`-.*?) \|", part, re.MULTILINE)) or part
        # The flags of nccl-tests belong to the bench.
        named = set(re.findall(r"`(--?[a-z-]+)", rows)) - {"--version"}
        assert named == known, f"kernbench {name}"


def test_the_map_has_the_rooms_in_their_layers() -> None:
    rows = re.findall(r"^\| (\d+) \| \[(\w+)\]\((.+?)\) \|", _section("## Map of the rooms"), re.M)
    layers: dict[int, set[str]] = {}
    for layer, room, link in rows:
        layers.setdefault(int(layer), set()).add(room)
        assert (docs_readme.ROOT / link).is_file(), link
    contracts = tomllib.loads((docs_readme.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (held,) = (
        contract["layers"]
        for contract in contracts["tool"]["importlinter"]["contracts"]
        if contract["name"] == "rooms"
    )
    assert [layers[n] for n in sorted(layers, reverse=True)] == [
        set(layer.split(" | ")) for layer in held if layer != "__main__"
    ]
    package = docs_readme.ROOT / "kernbench"
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    files = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
    assert {room for _, room, _ in rows} == folders | files
