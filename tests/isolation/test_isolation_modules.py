"""Each rank has the program's modules for itself, however they are found and loaded (ADR 0040)."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

OWN = 'import os\nR = int(os.environ["RANK"])\nseen = []\n'

FOUND = """
import importlib, importlib.util, os, runpy, sys
import torch
import torch.distributed as dist

HERE = os.path.dirname(os.path.abspath(__file__))
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")

{way}

module = load()
dist.barrier()
module.seen.append(rank)
dist.barrier()
assert load() is module or {anew}, "another one the second time"
assert (module.R, module.seen) == (rank, [rank]), (rank, module.R, module.seen)
dist.barrier()
dist.destroy_process_group()
print("each has its own")
"""


def torchrun(*words: object, path: str = "", cwd: Path | None = None) -> str:
    """Returns what `kernbench torchrun WORDS` prints."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    root = str(Path(__file__).parents[2])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (path, root)))
    command = [sys.executable, "-m", "kernbench", "torchrun", *map(str, words)]
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _file(path: Path, content: str = OWN) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def _beside(folder: Path) -> None:
    _file(folder / "mine.py")


def _namespace(folder: Path) -> None:
    _file(folder / "outer" / "inner" / "mine.py")


def _package(folder: Path) -> None:
    _file(folder / "pack" / "__init__.py", "from . import part\nfrom .part import mine\n")
    _file(folder / "pack" / "part" / "__init__.py", "from .. import part as again\n")
    _file(folder / "pack" / "part" / "mine.py")


def _zip(folder: Path) -> None:
    with zipfile.ZipFile(folder / "code.zip", "w") as file:
        file.writestr("mine.py", OWN)


def _editable(folder: Path) -> None:
    """A finder in `site-packages` that maps a name to the source, as editable installs have."""
    _file(folder / "source" / "mine.py")
    finder = f"""
import importlib.util, sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "mine":
            return importlib.util.spec_from_file_location(name, {str(folder / "source/mine.py")!r})
def install():
    sys.meta_path.append(Finder)
"""
    _file(folder / "site-packages" / "editable_finder.py", finder)


def _mixed(folder: Path) -> None:
    """A namespace of which one part is installed."""
    _file(folder / "site-packages" / "mixed" / "theirs.py", "value = 1\n")
    _file(folder / "more" / "mixed" / "mine.py")


IMPORT = "import importlib\ndef load():\n    return importlib.import_module({name!r})\n"

WAYS: dict[str, tuple[Callable[[Path], object], str]] = {
    "beside the script": (_beside, "import mine\ndef load():\n    return mine\n"),
    "lazily, in a function": (_beside, "def load():\n    import mine\n    return mine\n"),
    "importlib.import_module": (_beside, IMPORT.format(name="mine")),
    "a folder put into sys.path": (
        lambda folder: _file(folder / "far" / "mine.py"),
        "assert not any(each.endswith('/far') for each in sys.path)\n"
        "sys.path.insert(0, HERE + '/far')\nimport mine\ndef load():\n    return mine\n",
    ),
    "spec_from_file_location": (
        lambda folder: _file(folder / "far" / "file.py"),
        """
def load():
    if "mine" not in sys.modules:
        spec = importlib.util.spec_from_file_location("mine", HERE + "/far/file.py")
        sys.modules["mine"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["mine"])
        dist.barrier()
    return sys.modules["mine"]
""",
    ),
    "runpy.run_path": (
        _beside,
        """
import types
def load():
    before = sys.modules["__main__"]
    found = types.SimpleNamespace(**runpy.run_path(HERE + "/mine.py", run_name="__main__"))
    assert sys.modules["__main__"] is before
    found.seen = kept
    return found
kept = []
""",
    ),
    "a module made by hand": (
        _beside,
        """
import types
def load():
    if "mine" not in sys.modules:
        module = sys.modules["mine"] = types.ModuleType("mine")
        exec(open(HERE + "/mine.py").read(), vars(module))
    return sys.modules["mine"]
""",
    ),
    "a zip file": (_zip, "sys.path.insert(0, HERE + '/code.zip')\n" + IMPORT.format(name="mine")),
    "a namespace package": (
        _namespace,
        "import outer.inner.mine\ndef load():\n    return outer.inner.mine\n",
    ),
    "a relative import in a package": (
        _package,
        "import pack\ndef load():\n    return pack.mine\n",
    ),
    "an editable install": (
        _editable,
        "sys.path.append(HERE + '/site-packages')\nimport editable_finder\n"
        "editable_finder.install()\n" + IMPORT.format(name="mine"),
    ),
    "a namespace that is partly installed": (
        _mixed,
        "sys.path += [HERE + '/site-packages', HERE + '/more']\n"
        "import mixed.mine, mixed.theirs\ndef load():\n"
        "    assert mixed.theirs.value == 1\n    return mixed.mine\n",
    ),
    "loaded anew": (
        _beside,
        "import mine\nmine.R = -1\nimportlib.reload(mine)\ndef load():\n    return mine\n",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_rank_has_a_module_that_it_loads(way: str, tmp_path: Path) -> None:
    make, load = WAYS[way]
    make(tmp_path)
    anew = way == "runpy.run_path"
    script = _file(tmp_path / "program.py", FOUND.format(way=load, anew=anew))
    assert torchrun("--nproc-per-node", 3, script).count("each has its own") == 3


def test_each_rank_has_modules_of_a_folder_on_pythonpath(tmp_path: Path) -> None:
    _file(tmp_path / "repository" / "lib" / "__init__.py", "")
    _file(tmp_path / "repository" / "lib" / "mine.py")
    way = "import lib.mine\ndef load():\n    return lib.mine\n"
    script = _file(tmp_path / "tools" / "program.py", FOUND.format(way=way, anew=False))
    out = torchrun("--nproc-per-node", 2, script, path=str(tmp_path / "repository"))
    assert out.count("each has its own") == 2


def test_each_rank_has_modules_of_a_program_that_is_a_module(tmp_path: Path) -> None:
    _file(tmp_path / "repository" / "app" / "__init__.py", "")
    _file(tmp_path / "repository" / "app" / "mine.py")
    way = "from . import mine\ndef load():\n    return mine\n"
    _file(tmp_path / "repository" / "app" / "program.py", FOUND.format(way=way, anew=False))
    path = str(tmp_path / "repository")
    out = torchrun("--nproc-per-node", 2, "-m", "app.program", path=path, cwd=tmp_path)
    assert out.count("each has its own") == 2


def test_what_is_pickled_by_reference_is_that_of_the_spawned_rank(tmp_path: Path) -> None:
    _file(
        tmp_path / "far" / "mine.py",
        "at_import = []\ndef work(rank):\n    at_import.append(rank)\n",
    )
    text = """
import sys, os
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)) + "/far")
import torch, torch.distributed as dist
import torch.multiprocessing as mp
import mine

def main(rank, work):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="1", RANK=str(rank), WORLD_SIZE="2")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    work(rank)
    dist.barrier()
    assert work is mine.work and mine.at_import == [rank], mine.at_import
    print("its own")
    dist.destroy_process_group()

if __name__ == "__main__":
    mine.at_import.append("main")
    mp.spawn(main, (mine.work,), 2)
    assert mine.at_import == ["main"]
"""
    assert torchrun(_file(tmp_path / "program.py", text)).count("its own") == 2


SUITE = {
    "conftest.py": 'import os\nimport pytest\nRANK = int(os.environ["RANK"])\n'
    "@pytest.fixture\ndef rank():\n    return RANK\n",
    "helper.py": OWN,
    "tests/__init__.py": "",
    "tests/conftest.py": 'import os\nimport pytest\nLOCAL = int(os.environ["LOCAL_RANK"])\n'
    "@pytest.fixture\ndef local():\n    return LOCAL\n",
    "tests/test_one.py": """
import os
import torch
import torch.distributed as dist
import pytest
import helper

R = int(os.environ["RANK"])
calls = []

@pytest.mark.parametrize("turn", range(2))
def test_sums(rank, local, turn, monkeypatch):
    torch.cuda.set_device(local)
    dist.init_process_group("nccl")
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, x: calls.append(R) or x)
    given = torch.full((3,), R + 1.0, device="cuda")
    dist.all_reduce(torch.nn.Linear(3, 3, device="cuda")(given))
    assert given.tolist() == [3.0] * 3
    assert R == rank == local == helper.R == dist.get_rank()
    assert calls == [R] * (turn + 1)
    dist.destroy_process_group()
""",
}


@pytest.mark.parametrize("mode", ["prepend", "append", "importlib"])
def test_each_rank_has_its_own_test_modules_and_conftest(mode: str, tmp_path: Path) -> None:
    for name, content in SUITE.items():
        _file(tmp_path / name, content)
    words = ("--rootdir", tmp_path, f"--import-mode={mode}", "-q", "-p", "no:cacheprovider")
    out = torchrun(
        "--nproc-per-node", 2, "-m", "pytest", *words, "tests", path=str(tmp_path), cwd=tmp_path
    )
    assert out.count("2 passed") == 2
