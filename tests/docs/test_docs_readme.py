"""The code of the documents runs and prints what they show; lists are whole."""

import importlib
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import docs_readme
import pytest

from benches.models import eval_table

TEXT = docs_readme.README.read_text(encoding="utf-8")
DOCS = docs_readme.ROOT / "docs"
ROOMS = DOCS / "rooms.md"
STEPS = {
    (document, heading): blocks
    for document in docs_readme.WITH_BLOCKS
    for heading, blocks in docs_readme.tutorial(document.read_text(encoding="utf-8")).items()
}
ON_THEIR_DEVICE = (
    "A program of eight ranks",
    "Streams, events, and what the simulated time says",
    "What if",
    "1. A slow GPU, and a sweep of one's own",
    "4. A tile kernel",
)
"""Steps whose programs say `device="cuda"` wherever PyTorch needs it."""
ANEW = "`python tests/docs/docs_readme.py` writes it anew"
COMPUTED = re.compile(r"\b\d+\.\d{6,}\b")
"""Losses, which alone are shown to six decimals and more: they depend on the processor, whose BLAS
and `exp` round in an order of their own, and Adam's first steps, which take the signs of gradients,
make that 2 %. Tests of layouts hold losses exactly. Times and sizes are exact everywhere."""

Step = tuple[Path, str]


def _name(step: Step) -> str:
    return f"{step[0].name}: {step[1]}"


def _prepared(step: Step, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Goes to the folder, with the files of the steps before; returns the blocks of the step."""
    document, _ = step
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("COLUMNS", "80")
    docs_readme.write_files(docs_readme.files_before(document), folder)
    for earlier in list(STEPS)[: list(STEPS).index(step)]:
        if earlier[0] == document:
            docs_readme.write_files(STEPS[earlier], folder)
    return STEPS[step]


def _assert_shown(got: str, shown: str) -> None:
    assert COMPUTED.sub("", got) == COMPUTED.sub("", shown), ANEW
    losses = [float(loss) for loss in COMPUTED.findall(got)]
    expected = [float(loss) for loss in COMPUTED.findall(shown)]
    assert losses == pytest.approx(expected, rel=0.05), ANEW


@pytest.mark.parametrize("step", list(STEPS), ids=_name)
def test_the_blocks_print_what_they_show(
    step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path.resolve()
    shown = list(docs_readme.outputs(_prepared(step, folder, monkeypatch), folder))
    assert shown, "a step shows what it prints"
    for fence, got in shown:
        _assert_shown(got, fence.content)


@pytest.mark.parametrize("step", [step for step in STEPS if step[1] in ON_THEIR_DEVICE], ids=_name)
def test_programs_that_name_their_device_do_the_same_with_the_host_as_default(
    step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path.resolve()
    blocks = _prepared(step, folder, monkeypatch)
    run = docs_readme._kernbench
    option = ["--default-device", "cpu"]
    monkeypatch.setattr(
        docs_readme, "_kernbench", lambda words: run([*words[:2], *option, *words[2:]])
    )
    shown = list(docs_readme.outputs(blocks, folder))
    assert shown
    for fence, got in shown:
        _assert_shown(got, fence.content)


def test_the_steps_that_name_their_device_are_there() -> None:
    assert set(ON_THEIR_DEVICE) <= {heading for _, heading in STEPS}


def test_every_document_with_blocks_has_a_test_that_runs_them() -> None:
    """`test_docs_errors`, `test_docs_machines` and `test_triton_docs` hold three of them."""
    with_blocks = {
        path
        for path in DOCS.glob("*.md")
        for fence in docs_readme.fences(path.read_text(encoding="utf-8"))
        if fence.language in docs_readme.RUN
    }
    elsewhere = {DOCS / f"{name}.md" for name in ("errors", "machines", "triton")}
    assert with_blocks == {*docs_readme.WITH_BLOCKS, *elsewhere}


@pytest.mark.slow
def test_the_published_evaluations_are_simulated_as_it_says() -> None:
    text = docs_readme.LONG.read_text(encoding="utf-8")
    assert docs_readme.with_evaluations(text) == text, ANEW


def test_the_published_evaluations_are_met() -> None:
    """The test above holds the page to the bench, this one the page to what was published."""
    _, _, table = docs_readme.LONG.read_text(encoding="utf-8").partition("| GPUs, tokens,")
    lines = table.partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    later = [row for row in rows if row[5] != "earlier commit"]
    assert sum(row[5] == "held out" for row in later) == 2
    simulated = [float(row[2]) for row in later]
    assert simulated == pytest.approx([float(row[1]) for row in later], rel=0.15)
    assert simulated == sorted(simulated)
    assert simulated[0] < 1
    assert later[-1][0] == "8, 16384, 8, 1, 4"
    assert all(float(row[4]) < ratio for row, ratio in zip(later, simulated, strict=True))
    assert len(eval_table.CONSTANTS) + 1 <= 5


def test_the_readme_is_short() -> None:
    assert len(TEXT.splitlines()) <= 300


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
        "-m 'not slow and not at_length and not torch and not hta and not plot and not ray "
        "and not browser'" in project["tool"]["pytest"]["ini_options"]["addopts"]
    )
    gate = (docs_readme.ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert gate.splitlines()[-1] == "pytest -q -m 'slow and not at_length' $(marked slow)"
    assert "\n  pytest -q -m 'torch and not at_length and not slow' $(marked torch)\n" in gate
    assert '\n  pytest -q -n 0 -m hta "$(marked hta)"\n' in gate
    assert "\n  pytest -q -n 0 -m plot $(marked plot)\n" in gate
    assert '\n  pytest -q -n 0 -m ray "$(marked ray)"\n' in gate
    assert '\n  pytest -q -n 0 -m browser "$(marked browser)"\n' in gate
    assert "\npytest -q --carriers=threads tests/des tests/ranks " in gate
    assert "the slow ones: `pytest -m slow`" in TEXT


@pytest.mark.parametrize("document", docs_readme.WITH_TIMES, ids=lambda path: path.name)
def test_the_accuracy_is_what_is_simulated_now(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert docs_readme.timed_rows(text)
    assert docs_readme.with_accuracy(text) == text, ANEW


@pytest.mark.parametrize(
    "document", [docs_readme.README, *docs_readme.WITH_BLOCKS], ids=lambda path: path.name
)
def test_the_links_at_the_top_name_every_section(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    top = text.split("\n## ")[0]
    linked = re.findall(r"(?:^|^(\d+)\. |· )\[([^]]+)\]\(#(.+?)\)(?= ·|$)", top, re.MULTILINE)
    sections = [f"{number}. {name}" if number else name for number, name, _ in linked]
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert sections == re.findall(r"^## (.+)", outside, re.MULTILINE)


def test_the_readme_leads_to_every_document() -> None:
    for path in DOCS.glob("*.md"):
        assert f"](docs/{path.name})" in TEXT, path.name
    assert "(docs/tutorial.md#5-test-your-tensor-parallel-layer)" in TEXT


def test_the_names_of_nn_and_optim_are_all_there() -> None:
    section = (DOCS / "torch_names.md").read_text(encoding="utf-8")
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


def test_the_map_has_the_rooms_in_their_layers() -> None:
    rows = re.findall(
        r"^\| (\d+) \| \[(\w+)\]\((.+?)\) \|", ROOMS.read_text(encoding="utf-8"), re.M
    )
    layers: dict[int, set[str]] = {}
    for layer, room, link in rows:
        layers.setdefault(int(layer), set()).add(room)
        assert (ROOMS.parent / link).is_file(), link
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
