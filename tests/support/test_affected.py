"""Which tests an edit needs: of a made-up checkout by hand, of this one as imports really run."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import affected
import pytest

FILES = {
    "kernbench/__init__.py": """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from kernbench.top import spawn

def __getattr__(name):
    from kernbench import top
    return top.spawn
""",
    "kernbench/low.py": "",
    "kernbench/middle.py": "from kernbench import low\n",
    "kernbench/top.py": "def spawn():\n    from kernbench.middle import x\n",
    "kernbench/typed.py": """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from kernbench.low import Kind
from kernbench.other import y
""",
    "kernbench/other.py": 'NAME = "ring4"\n',
    "benches/demo.py": "from kernbench import other\n",
    "tests/conftest.py": """
import pytest
from kernbench.middle import x

@pytest.fixture
def machine():
    return x

@pytest.fixture(autouse=True)
def clean():
    from kernbench import top
""",
    "tests/support/helper.py": "import kernbench.low\n",
    "tests/a/test_low.py": "from kernbench.low import z\n",
    "tests/a/test_fixture.py": "def test(machine: object) -> None: ...\n",
    "tests/a/test_typed.py": "import kernbench.typed\n",
    "tests/a/test_helper.py": "import helper\n",
    "tests/a/test_face.py": "import kernbench\nkernbench.spawn()\n",
    "tests/a/test_face_by_name.py": "from kernbench import spawn\n",
    "tests/a/test_program.py": 'CODE = """\nimport kernbench.middle\n"""\n',
    "tests/a/test_bench.py": 'run("demo")\n',
    "tests/a/test_file.py": 'open("golden.json")\n',
    "tests/a/test_machine.py": 'load("torus2")\n',
    "tests/a/test_sources.py": 'ROOT.glob("kernbench/**/*.py")\n',
    "tests/b/test_nothing.py": '"""It imports nothing from kernbench."""\n',
    "tests/docs/test_docs.py": "",
}

SOURCES = "tests/a/test_sources.py"


@pytest.fixture
def graph(tmp_path: Path) -> affected.Graph:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return affected.Graph(tmp_path)


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        (
            "kernbench/low.py",
            ["face", "face_by_name", "fixture", "helper", "low", "program", "sources"],
        ),
        ("kernbench/top.py", ["face", "face_by_name", "sources"]),
        ("kernbench/typed.py", ["sources", "typed"]),
        ("kernbench/other.py", ["bench", "sources", "typed"]),
        ("kernbench/removed.py", ["sources"]),
        ("benches/demo.py", ["bench"]),
        ("tests/support/helper.py", ["helper"]),
        ("tests/a/test_low.py", ["low"]),
        ("tests/a/golden.json", ["file"]),
        ("configs/topology/torus2.yaml", ["machine"]),
        ("configs/topology/ring4.yaml", ["bench", "typed"]),  # the default of a module
    ],
)
def test_an_edit_needs_the_tests_that_reach_it(
    graph: affected.Graph, changed: str, tests: list[str]
) -> None:
    assert graph.affected([changed]) == [f"tests/a/test_{name}.py" for name in tests]


def test_some_files_are_of_many_tests(graph: affected.Graph) -> None:
    assert graph.affected(["docs/pytorch.md"]) == ["tests/docs/test_docs.py"]
    for everything in ("pyproject.toml", "tests/conftest.py"):
        assert graph.affected([everything]) == graph.tests
    # Which test reads a file that none names is not known: those beside it may.
    assert graph.affected(["tests/b/data/x.bin"]) == ["tests/b/test_nothing.py"]
    assert graph.affected(["LICENSE"]) == []


def test_several_edits_need_the_tests_of_each(graph: affected.Graph) -> None:
    one, other = "kernbench/typed.py", "benches/demo.py"
    both = graph.affected([one, other])
    assert both == sorted({*graph.affected([one]), *graph.affected([other])})


@cache
def _of_this_checkout() -> affected.Graph:
    return affected.Graph()


@pytest.mark.parametrize(
    "module", ["kernbench.cli.run", "kernbench.torch", "kernbench.sweeps.sweeping", "kernbench.tp"]
)
def test_what_an_import_really_runs_is_reached(module: str) -> None:
    code = f"import sys, {module}\nprint(*(m.__file__ for n, m in sys.modules.items() "
    code += "if n.partition('.')[0] == 'kernbench'), sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=affected.ROOT,
        env={**os.environ, "PYTHONPATH": str(affected.ROOT)},
    )
    loaded = [Path(line).relative_to(affected.ROOT).as_posix() for line in done.stdout.splitlines()]
    assert len(loaded) > 100
    graph = _of_this_checkout()
    part = module.replace(".", "/")
    file = next(each for each in (f"{part}.py", f"{part}/__init__.py") if each in graph.texts)
    users = graph.users_of(loaded)
    assert [each for each in loaded if file not in users[each]] == []


def test_of_this_checkout_it_names_the_near_tests() -> None:
    graph = affected.Graph()
    found = graph.affected(["kernbench/run_spec/values.py"])
    assert {"tests/run_spec/test_run_spec.py", "tests/cli/test_cli_options.py"} <= {*found}
    assert graph.affected(["kernbench/run_spec/values.py"]) == found
    near = graph.affected(["tests/support/run_specs.py"])
    assert {"tests/cli/test_cli_options.py", "tests/run_spec/test_run_spec.py"} <= {*near}
    assert len(near) < 8
    of_sweeps = graph.affected(["kernbench/sweeps/drawing.py"])
    assert "tests/tensors/test_layout.py" not in of_sweeps
    assert len(of_sweeps) < len(graph.tests) / 3


def test_git_tells_what_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def git(*words: str) -> None:
        name = ("-c", "user.name=n", "-c", "user.email=e")
        subprocess.run(["git", *name, *words], cwd=tmp_path, check=True, capture_output=True)

    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    monkeypatch.setattr(affected, "ROOT", tmp_path)
    (tmp_path / "kernbench/typed.py").write_text("x = 1\n")
    (tmp_path / "tests/b/test_new.py").write_text("import kernbench.low\n")
    (tmp_path / "tests/support/helper.py").unlink()
    assert affected.changed_files(tmp_path, "HEAD") == [
        "kernbench/typed.py",
        "tests/b/test_new.py",
        "tests/support/helper.py",
    ]
    git("add", ".")
    git("commit", "-qm", "second")
    assert affected.changed_files(tmp_path, "HEAD") == []
    affected.main(["--base", "HEAD~1"])
    assert capsys.readouterr().out.split() == [
        "tests/a/test_helper.py",
        SOURCES,
        "tests/a/test_typed.py",
        "tests/b/test_new.py",
    ]
    with pytest.raises(SystemExit, match="affected: git diff"):
        affected.changed_files(tmp_path, "no-such-commit")
    with pytest.raises(SystemExit, match="is not in"):
        affected.main(["/etc/hosts"])
