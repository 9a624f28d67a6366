"""`kernbench check`: every name that is not there, with its lines and the way out."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import kernbench.torch as torch
from kernbench.cli.app import app
from kernbench.runtime_api.missing import missing, missing_package, pytorch_names


def _check(folder: Path, text: str, *options: str, **others: str) -> tuple[int, list[str]]:
    for name, content in others.items():
        (folder / f"{name}.py").write_text(content)
    file = folder / "train.py"
    file.write_text(text)
    done = CliRunner().invoke(app, ["check", str(file), *options])
    assert not isinstance(done.exception, Exception), done.exception
    lines = [line.replace(f"{folder}/", "") for line in done.output.splitlines()]
    return done.exit_code, lines


def test_all_names_are_listed_with_their_lines(tmp_path: Path) -> None:
    text = (
        "import torch as t\n"
        "from torch import nn, autocast\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "import torch.distributed as dist\n"
        "F = nn.functional\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        self.c = nn.Conv2d(1, 2, 3)\n"
        "        self.l = nn.Linera(3, 4)\n"
        "    def forward(self, x: t.Tensor) -> t.Tensor:\n"
        "        with autocast('cuda'):\n"
        "            return F.conv2d(F.relu(x))\n"
        "    def more(self):\n"
        "        return [t.nn.Conv2d(1, 2, n) for n in (t.nn.Conv2d, t.Size)]\n"
        "dist.all_reduce(t.ones(2), op=dist.ReduceOp.SUMM)\n"
        "dist.group.WORLD\n"
        "@t.compile\n"
        "def step(): ...\n"
    )
    later = "is not in kernbench.torch; `kernbench torchrun FILE` runs it"
    assert _check(tmp_path, text) == (
        1,
        [
            f"train.py:2: torch.autocast {later}",
            f"train.py:3: torch.distributed.fsdp.FullyShardedDataParallel {later}",
            f"train.py:8: torch.nn.Conv2d {later} (also in line 14)",
            "train.py:9: PyTorch 2.13 has no torch.nn.Linera; did you mean `torch.nn.Linear`?",
            f"train.py:12: torch.nn.functional.conv2d {later}",
            "train.py:15: torch.distributed.ReduceOp.SUMM is not in kernbench.torch; did you mean "
            "`torch.distributed.ReduceOp.SUM`?",
            f"train.py:17: torch.compile {later}",
            "7 names in 1 file to change",
        ],
    )


def test_modules_of_the_user_are_followed(tmp_path: Path) -> None:
    code, lines = _check(
        tmp_path,
        "import model\nfrom parts import layers\nimport os.path, json\n",
        model="import kernbench.torch as torch\nfrom train import x\ntorch.fft.fft2\n",
        parts="import torchvision.models\n",
    )
    assert code == 1
    assert lines == [
        "model.py:3: torch.fft.fft2 is not in kernbench.torch; `kernbench torchrun FILE` runs it",
        "parts.py:1: torchvision is built on PyTorch itself; `kernbench torchrun FILE` runs it; "
        "or: for data, torch.randn of the same shapes takes the same time",
        "2 names in 3 files to change",
    ]


def test_a_package_is_followed(tmp_path: Path) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("from .deep import net\n")
    (package / "deep.py").write_text("from . import other\nimport torch\ntorch.vmap\n")
    (package / "other.py").write_text("from torch.nn import GRU\n")
    code, lines = _check(tmp_path, "from mine import net\n")
    assert code == 1
    assert [line.partition(" is ")[0] for line in lines[:-1]] == [
        "mine/deep.py:3: torch.vmap",
        "mine/other.py:1: torch.nn.GRU",
    ]
    assert lines[-1] == "2 names in 4 files to change"


def test_a_module_of_the_user_may_have_any_name(tmp_path: Path) -> None:
    _, lines = _check(tmp_path, "import apex\n", apex="import torch\ntorch.ones(1)\n")
    assert lines == ["all names of torch in 2 files are there"]


def test_a_name_of_a_tensor_is_told_by_its_name_alone(tmp_path: Path) -> None:
    code, lines = _check(
        tmp_path,
        "import torch\n"
        "import numpy as np\n"
        "x = torch.ones(3)\n"
        "y = (x * 2).cholesky_solve(x).sum()\n"
        "np.linalg.cholesky_solve\n"
        "y.log_softmax(0).tolist().append(1)\n",
    )
    assert (code, lines[:-1]) == (
        1,
        [
            "train.py:4: if this is a tensor: torch.Tensor.cholesky_solve is not in "
            "kernbench.torch; `kernbench torchrun FILE` runs it"
        ],
    )


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch.ones(3).sum()\n",
        "import kernbench.torch\nkernbench.torch.nn.Linear(2, 3).parameters()\n",
        "from kernbench import torch\ntorch.cuda.Event(enable_timing=True)\n",
        "from torch.nn import *\nLinear(2, 3)\n",
        "try:\n    import apex\n    import torch.fft\nexcept ImportError:\n    apex = None\n",
        "import torch as t\nif hasattr(t, 'compile'):\n    step = t.compile(step)\n",
        "def worker(rank, torch):\n    torch.frobnicate()\n",
        "class Mine:\n    def cholesky_solve(self): ...\nMine().cholesky_solve()\n",
        "args.add_argument('--cholesky-solve')\nargs.parse_args().cholesky_solve\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torch.fx import Node\n",
        "torch = 3\ntorch.frobnicate\n",
        "import os\nos.environ.frobnicate\n",
        "import torch\nx = torch.ones(2)\nx.mark_of_mine = 1\nx.mark_of_mine\n",
    ],
)
def test_nothing_to_change(tmp_path: Path, text: str) -> None:
    assert _check(tmp_path, text) == (0, ["all names of torch in 1 file are there"])


def test_what_torchrun_refuses_is_listed_and_nothing_else(tmp_path: Path) -> None:
    text = (
        "import torch\n"
        "from torch.cuda import *\n"
        "import torch.nn as nn\n"
        "import parts, triton, torchvision\n"
        "model = torch.compile(nn.Conv2d(1, 2, 3).cuda())\n"
        "if isinstance(model, (nn.DataParallel, nn.Module)):\n"
        "    model = nn.DataParallel(model)\n"
        "g = MemPool()\n"
        "with torch.cuda.use_mem_pool(g):\n"
        "    model.cholesky_solve(torch.frobnicate(3))\n"
        "torch.cuda.MemPool.snapshot(g)\n"
        "if hasattr(torch.cuda, 'memory_snapshot'):\n"
        "    torch.cuda.memory_snapshot()\n"
    )
    pools = "is not simulated; tensors take memory of the simulated HBM; there is one allocator"
    exchange = "use collectives, or send and recv, of torch.distributed"
    parts = (
        "from torch.distributed import rpc\n"
        "import apex\n"
        "rpc.init_rpc('a')\nrpc.rpc_sync('b', print)\n"
        "try:\n    import flash_attn\nexcept ImportError:\n    pass\n"
    )
    assert _check(tmp_path, text, "--torchrun", parts=parts) == (
        1,
        [
            "train.py:7: torch.nn.DataParallel is not simulated; a rank has one device; use "
            "torch.nn.parallel.DistributedDataParallel",
            f"train.py:8: torch.cuda.MemPool {pools} (also in line 11)",
            f"train.py:9: torch.cuda.use_mem_pool {pools}",
            "parts.py:2: apex has kernels of its own for CUDA, which are not simulated; torch.nn "
            "and torch.optim have what is simulated",
            f"parts.py:4: torch.distributed.rpc.rpc_sync is not simulated; {exchange}",
            "5 names in 2 files to change",
        ],
    )
    right = "import torch\ntorch.compile(torch.nn.Conv2d(1, 2, 3).cuda())\n"
    assert _check(tmp_path, right, "--torchrun") == (
        0,
        ["kernbench torchrun refuses no name in 1 file"],
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "[F11] train.py does not exist"),
        (b"x = (\n", "[F10] train.py:1: '(' was never closed"),
        (b"x = '\xff'\n", "[F10] train.py"),
        (b"\0", "[F10] train.py"),
    ],
)
def test_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("train.py").write_bytes(content)
    done = CliRunner().invoke(app, ["check", "train.py"])
    assert done.exit_code == 2
    assert said in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("module", "name"),
    [("", "compile"), ("", "onse"), (".nn.functional", "conv2d")],
)
def test_a_run_says_the_same_as_the_check(tmp_path: Path, module: str, name: str) -> None:
    _, lines = _check(tmp_path, f"import torch\ntorch{module}.{name}\n")
    place = {"": torch, ".nn.functional": torch.nn.functional}[module]
    with pytest.raises(AttributeError) as raised:
        getattr(place, name)
    assert lines[0] == f"train.py:2: {raised.value}"


def test_the_sentences() -> None:
    assert missing("torch.nn.DataParallel", ()) == (
        "torch.nn.DataParallel is not simulated; a rank has one device; use "
        "torch.nn.parallel.DistributedDataParallel"
    )
    assert missing("torch.cuda.MemPol", ()) == (
        "PyTorch 2.13 has no torch.cuda.MemPol; did you mean `torch.cuda.MemPool`, which is "
        "not in kernbench.torch?"
    )
    assert missing("torch.zzzzzzzz", ()) == "PyTorch 2.13 has no torch.zzzzzzzz"
    assert missing("torch._C", ()).startswith("torch._C is not in kernbench.torch")
    assert missing("torch.multiprocessing.Queue", ()) == (
        "torch.multiprocessing.Queue is not in kernbench.torch; ranks exchange objects with "
        "torch.distributed"
    )
    assert missing("torch.cuda.MemPool.snapshot", ()).startswith(
        "torch.cuda.MemPool is not simulated; tensors take memory of the simulated HBM"
    )
    assert missing_package("apex.optimizers") == (
        "apex has kernels of its own for CUDA, which are not simulated; torch.nn and torch.optim "
        "have what is simulated"
    )


@pytest.mark.torch
def test_the_names_are_those_of_pytorch() -> None:
    real = pytest.importorskip("torch")
    for path in ("torch", "torch.nn", "torch.distributed", "torch.nn.functional"):
        module = real
        for part in path.split(".")[1:]:
            module = getattr(module, part)
        known = pytorch_names()
        lost = {name for name in known[path] if not hasattr(module, name)}
        assert all(f"{path}.{name}" in known for name in lost), "modules that are not imported"
    assert {"compile", "autocast", "save", "float32", "ones"} <= pytorch_names()["torch"]
    assert {name for name in dir(real.Tensor) if name[0] != "_"} == pytorch_names()["torch.Tensor"]
