"""`import torch` as ours: inside the block only, whatever is installed or imported."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

import kernbench.torch
from kernbench.cli.output import Output
from kernbench.cli.run import run_bench
from kernbench.run_spec import RunSpec
from kernbench.scripts.as_torch import as_torch

pytest_plugins = ["pytester"]


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """Stands for PyTorch that somebody has imported."""
    modules = {name: ModuleType(name) for name in ("torch", "torch.nn", "torch.special")}
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return modules


def _torch_modules() -> dict[str, ModuleType]:
    return {name: each for name, each in sys.modules.items() if name.partition(".")[0] == "torch"}


def test_torch_is_ours_inside_and_theirs_after(theirs: dict[str, ModuleType]) -> None:
    finders = list(sys.meta_path)
    specs = {name: each.__spec__ for name, each in vars(kernbench.torch).items() if name == "nn"}
    with as_torch():
        with as_torch():
            assert importlib.import_module("torch") is kernbench.torch
        nn = importlib.import_module("torch.nn")
        functional = importlib.import_module("torch.nn.functional")
        assert nn is kernbench.torch.nn
        assert functional is kernbench.torch.nn.functional
        scope: dict[str, object] = {}
        exec("from torch.distributed import all_reduce\nimport torch.cuda.nvtx as nvtx", scope)
        assert scope["all_reduce"] is kernbench.torch.distributed.all_reduce
        with pytest.raises(ModuleNotFoundError, match=r"torch\.special is not in kernbench"):
            importlib.import_module("torch.special")
        with pytest.raises(ModuleNotFoundError, match=r"torch\.nn\.intrinsic is not in kernbench"):
            importlib.import_module("torch.nn.intrinsic")
        with pytest.raises(ModuleNotFoundError, match="torchvision is built on PyTorch itself"):
            importlib.import_module("torchvision.datasets")
    assert _torch_modules() == theirs
    assert sys.meta_path == finders
    assert {"nn": kernbench.torch.nn.__spec__} == specs
    assert kernbench.torch.nn.__name__ == "kernbench.torch.nn"


def test_a_module_that_was_imported_inside_is_read_again(
    theirs: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a_model_of_mine.py").write_text("import torch\n")
    (tmp_path / "a_layer_of_mine.py").write_text("from torch.nn import Linear\n")
    (tmp_path / "a_table_of_mine.py").write_text("TABLE = [1]\n")
    with as_torch():
        model = importlib.import_module("a_model_of_mine")
        assert model.torch is kernbench.torch
        importlib.import_module("a_layer_of_mine")
        table = importlib.import_module("a_table_of_mine")
    assert "a_layer_of_mine" not in sys.modules
    assert sys.modules.pop("a_table_of_mine") is table
    assert importlib.import_module("a_model_of_mine").torch is theirs["torch"]
    del sys.modules["a_model_of_mine"]


def test_a_package_of_the_user_may_have_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ignite", "timm":
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "ignite.py").write_text("FLAME = 1\n")
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "timm.py").write_text("")
    monkeypatch.syspath_prepend(installed)
    with as_torch():
        assert importlib.import_module("ignite").FLAME == 1
        with pytest.raises(ModuleNotFoundError, match="timm is built on PyTorch itself"):
            importlib.import_module("timm")
    del sys.modules["ignite"]


def test_torch_is_theirs_after_an_error(theirs: dict[str, ModuleType]) -> None:
    with pytest.raises(ZeroDivisionError), as_torch():
        raise ZeroDivisionError
    assert _torch_modules() == theirs


def test_a_file_stays_as_it_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    theirs: dict[str, ModuleType],
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "a_net_of_mine.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.line = nn.Linear(4, 2)\n"
        "    def forward(self, x):\n"
        "        import torch.nn.functional as F\n"
        "        return F.relu(self.line(x))\n"
    )
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "import torch.multiprocessing as mp\n"
        "import kernbench.torch as ours\n"
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "from a_net_of_mine import Net\n"
        "assert ours is torch\n"
        "def worker(rank):\n"
        "    torch.distributed.init_process_group('nccl')\n"
        "    out = DDP(Net().to(rank), device_ids=[rank])(torch.randn(3, 4))\n"
        "    if rank == 0: print(out.shape)\n"
        "if __name__ == '__main__':\n"
        "    mp.spawn(worker, nprocs=2)\n"
    )
    assert run_bench(RunSpec(bench=str(script), as_torch=True), Output()) == 0
    assert capsys.readouterr().out == "torch.Size([3, 2])\n"
    assert "a_net_of_mine" not in sys.modules
    assert _torch_modules() == theirs


TEST_FILE = """
import torch
import kernbench.torch
from conftest import double

def worker(rank):
    assert double(torch.ones(2, device="cuda")).tolist() == [2.0, 2.0]

def test_it(kernbench):
    kernbench.spawn(worker, nprocs=2, machine="torus4x4")

def test_names():
    import kernbench.torch
    assert torch is kernbench.torch
"""


@pytest.mark.parametrize(
    ("ini", "option"),
    [("", ["--kernbench-as-torch"]), ("[pytest]\nkernbench_as_torch = true\n", [])],
)
def test_the_option_of_pytest(
    pytester: pytest.Pytester, ini: str, option: list[str], theirs: dict[str, ModuleType]
) -> None:
    pytester.makeini(ini)
    pytester.makeconftest("import torch\ndef double(x): return x * torch.full((), 2.0)\n")
    pytester.makepyfile(TEST_FILE)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *option)
    result.assert_outcomes(passed=2)
    assert _torch_modules() == theirs


def test_blocks_of_several_threads_overlap(theirs: dict[str, ModuleType]) -> None:
    first, second = as_torch(), as_torch()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert sys.modules["torch"] is kernbench.torch
    second.__exit__(None, None, None)
    assert _torch_modules() == theirs


def test_the_option_ends_with_a_conftest_that_fails(
    pytester: pytest.Pytester, theirs: dict[str, ModuleType]
) -> None:
    pytester.makeconftest("import torch\nraise RuntimeError('broken')\n")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--kernbench-as-torch")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert _torch_modules() == theirs
