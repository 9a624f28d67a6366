"""`kernbench run` of files that are scripts: as `__main__`, and as `torchrun` would."""

import ast
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kernbench.cli.output import Output
from kernbench.cli.run import run_bench
from kernbench.run_spec import RunSpec
from kernbench.scripts.program import is_bench

IMPORTS = (
    "import os, sys\n"
    "import kernbench.torch as torch\n"
    "import kernbench.torch.distributed as dist\n"
    "import kernbench.torch.multiprocessing as mp\n"
)


def _run(
    folder: Path, text: str, *arguments: str, name: str = "script.py", **fields: Any
) -> tuple[int, Path]:
    file = folder / name
    file.write_text(text)
    output = Output(json=fields.pop("json", None))
    return run_bench(RunSpec(bench=str(file), arguments=arguments, **fields), output), file


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_a_script_runs_as_main_with_its_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, argv = sys.modules["__main__"], sys.argv
    text = IMPORTS + (
        "import __main__\n"
        "def worker(rank, world_size):\n"
        "    dist.init_process_group('gloo', rank=rank, world_size=world_size)\n"
        "    x = torch.full((4,), float(rank), device='cuda')\n"
        "    dist.all_reduce(x)\n"
        "    if rank == 1: print(x.tolist())\n"
        "if __name__ == '__main__':\n"
        "    print(sys.argv[1:], __main__.worker is worker, __file__ == sys.argv[0])\n"
        "    for n in 2, torch.cuda.device_count():\n"
        "        mp.spawn(worker, args=(n,), nprocs=n, join=True)\n"
    )
    status, _ = _run(tmp_path, text, "--epochs", "3")
    assert status == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "['--epochs', '3'] True True",
        "[1.0, 1.0, 1.0, 1.0]",
        "[28.0, 28.0, 28.0, 28.0]",
    ]
    assert said.err == ""
    assert sys.modules["__main__"] is before
    assert sys.argv is argv


TORCHRUN = IMPORTS + (
    "import __main__, pickle\n"
    "from os import environ\n"
    "seen = None\n"
    "class Mine: pass\n"
    "def main():\n"
    "    global seen\n"
    "    rank = int(os.environ['RANK'])\n"
    "    seen = rank\n"
    "    dist.init_process_group(init_method='env://')\n"
    "    torch.cuda.set_device(int(environ['LOCAL_RANK']))\n"
    "    x = torch.full((2,), float(rank), device='cuda')\n"
    "    dist.all_reduce(x)\n"
    "    assert seen == rank == dist.get_rank() == __main__.seen\n"
    "    assert isinstance(pickle.loads(pickle.dumps(Mine())), Mine)\n"
    "    os.environ['MASTER_PORT'] += str(rank)\n"
    "    dist.barrier()\n"
    "    assert environ['MASTER_PORT'] == f'29500{rank}'\n"
    "    if rank == 2:\n"
    "        print(x.tolist(), sys.argv[1:], os.getenv('WORLD_SIZE'), environ['GROUP_RANK'],\n"
    "              os.environ.get('LOCAL_WORLD_SIZE'), 'TORCHELASTIC_RUN_ID' in os.environ)\n"
    "    sys.exit(0)\n"
    "if __name__ == '__main__':\n"
    "    main()\n"
)


def test_every_rank_has_the_file_as_its_main_and_an_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = dict(os.environ)
    status, _ = _run(tmp_path, TORCHRUN, "a", nproc_per_node=4)
    said = capsys.readouterr()
    assert status == 0, said.err
    assert said.out == "[6.0, 6.0] ['a'] 4 0 4 True\n"
    assert dict(os.environ) == before
    assert "RANK" not in os.environ


def test_ranks_that_main_starts_as_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = IMPORTS + (
        "def run(rank, size):\n"
        "    os.environ['MASTER_PORT'] = str(rank)\n"
        "    dist.init_process_group('gloo', rank=rank, world_size=size)\n"
        "    x = torch.zeros(1)\n"
        "    dist.send(x + 1, 1) if rank == 0 else dist.recv(x, 0)\n"
        "    print(rank, x.item(), os.environ['MASTER_PORT'])\n"
        "if __name__ == '__main__':\n"
        "    mp.set_start_method('spawn')\n"
        "    ranks = [mp.Process(target=run, args=(rank, 2)) for rank in range(2)]\n"
        "    for each in ranks: each.start()\n"
        "    for each in ranks: each.join()\n"
        "    print([each.exitcode for each in ranks], os.environ.get('MASTER_PORT'))\n"
        "    mp.Process(target=print, args=('at the end',)).start()\n"
    )
    status, _ = _run(tmp_path, text)
    said = capsys.readouterr()
    assert status == 0, said.err
    lines = said.out.splitlines()
    assert sorted(lines[:2]) == ["0 0.0 0", "1 1.0 1"]
    assert lines[2:] == ["[0, 0] None", "at the end"]


@pytest.mark.parametrize(
    ("text", "fields", "status", "said"),
    [
        ("import sys; sys.exit(0)\n", {}, 0, ""),
        ("raise SystemExit(7)\n", {}, 7, ""),
        ("raise SystemExit('no data')\n", {}, 1, "no data"),
        ("x = 1\n", {}, 0, ""),
        ("x = (\n", {}, 1, "SyntaxError"),
        ("1 / 0\n", {}, 1, "ZeroDivisionError"),
        ("def start(ctx): ...\n", {}, 2, "calls none of its functions"),
        ("import os; os.environ['LOCAL_RANK']\n", {}, 1, "--nproc-per-node N"),
        ("import os; os.environ['HOMER']\n", {}, 1, "KeyError: 'HOMER'"),
        ("def run(ctx): ...\n", {"nproc_per_node": 2}, 2, "spawns its ranks itself"),
        ("x = 1\n", {"nproc_per_node": 9}, 2, "sip8 has 8 devices"),
        ("x = 1\n", {"nproc_per_node": 2, "devices": [3]}, 2, "or name more devices there"),
        (
            IMPORTS + "mp.spawn(print, nprocs=2)\n",
            {"nproc_per_node": 2},
            1,
            "each rank runs the whole program: --nproc-per-node starts them",
        ),
        ("import sys; sys.exit(3)\n", {"nproc_per_node": 2}, 1, "SystemExit: 3"),
        ("import sys; sys.exit(0)\n", {"nproc_per_node": 2}, 0, ""),
        ("from kernbench.torch.nn import Linera\n", {}, 1, "did you mean `torch.nn.Linear`?"),
        (
            "from kernbench.torch.cuda import MemPool\n",
            {"nproc_per_node": 2},
            1,
            "torch.cuda.MemPool is not simulated",
        ),
        (
            IMPORTS
            + "def worker(rank):\n    from kernbench.torch.nn import Linera\n"
            + "if __name__ == '__main__': mp.spawn(worker)\n",
            {},
            1,
            "ImportError: PyTorch 2.13 has no torch.nn.Linera; did you mean `torch.nn.Linear`?",
        ),
        (
            IMPORTS + "torch.ones(1).cholesky_solve\n",
            {"nproc_per_node": 2},
            1,
            "AttributeError: torch.Tensor.cholesky_solve is not in kernbench.torch; `kernbench",
        ),
        (IMPORTS + "torch.ones(1).summ()\n", {}, 1, "did you mean `torch.Tensor.sum`?"),
        (
            IMPORTS + "torch.nn.Linear(2, 2).get_extra_state\n",
            {},
            1,
            "torch.nn.Module.get_extra_state is not in kernbench.torch",
        ),
        (IMPORTS + "torch.nn.Linear(2, 2).mine\n", {}, 1, "'Linear' object has no attribute"),
        (
            IMPORTS + "dist.init_process_group()\n",
            {},
            1,
            "kernbench run FILE --nproc-per-node N",
        ),
        (
            IMPORTS + "os.environ['RANK'] = '1'; dist.init_process_group()\n",
            {"nproc_per_node": 2},
            1,
            "[C18] init_process_group(os.environ['RANK']='1') on rank 0",
        ),
    ],
)
def test_ends_and_mistakes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
    fields: dict[str, Any],
    status: int,
    said: str,
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    got, _ = _run(tmp_path, text, **fields)
    err = capsys.readouterr().err
    assert got == status, err
    assert said in err
    assert "kernbench/" not in err
    if not said:
        assert err == ""


def test_wrong_flags_of_a_script_are_told_without_the_way_through_argparse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "import argparse\nargparse.ArgumentParser().parse_args(['--x'])\n"
    assert _run(tmp_path, text, nproc_per_node=2)[0] == 1
    err = capsys.readouterr().err
    assert "unrecognized arguments: --x" in err
    assert err.count('  File "') == 1
    assert "SystemExit: 2" in err


def test_a_script_that_exits_with_0_has_its_results(tmp_path: Path) -> None:
    results = tmp_path / "out.json"
    status, file = _run(tmp_path, TORCHRUN, "a", nproc_per_node=3, as_torch=True, json=results)
    assert status == 0
    spec = RunSpec.from_file(results)
    assert (spec.nproc_per_node, spec.as_torch, spec.arguments) == (3, True, ("a",))
    assert spec.command() == f"kernbench run {file} --nproc-per-node 3 --as-torch --seed 0 -- a"
    assert "failure" not in json.loads(results.read_text())


def test_a_script_that_imports_pytorch_is_told_of_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # it cannot be imported
    assert _run(tmp_path, "import torch\n")[0] == 1
    assert "hint: --as-torch lets `import torch` mean kernbench.torch" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    said = (
        "script.py imports PyTorch itself, which is not simulated here; `kernbench torchrun` "
        "simulates it, and --as-torch lets `import torch` mean kernbench.torch\n"
    )
    assert _run(tmp_path, "import torch\n")[0] == 0
    assert said in capsys.readouterr().err
    for text in "import torch\nimport kernbench.torch\n", "from os import path\n":
        assert _run(tmp_path, text)[0] == 0
        assert capsys.readouterr().err == ""
    assert _run(tmp_path, "import torch\ntorch.ones(1)\n", as_torch=True)[0] == 0
    assert capsys.readouterr().err == ""


GUARD = "if __name__ == '__main__': pass\n"


@pytest.mark.parametrize(
    ("text", "bench"),
    [
        ("def run(ctx): ...\n", True),
        ("def run(ctx): ...\n" + GUARD, True),
        ("def run(machine): ...\n", True),
        ("run = print\n", True),
        ("try:\n    from somewhere import run\nexcept ImportError:\n    run = print\n", True),
        ("from subprocess import run\n", False),
        ("def run(rank, size): ...\n" + GUARD, False),
        ("def run(config): ...\n" + GUARD, False),
        ("from somewhere import run\n" + GUARD, False),
        ("class A:\n    def run(self): ...\n", False),
        ("print('run')\n", False),
    ],
)
def test_which_file_is_a_bench(text: str, bench: bool) -> None:
    assert is_bench(ast.parse(text)) is bench


def test_a_rank_sets_globals_of_its_own_main(tmp_path: Path) -> None:
    text = """
import os, sys
import __main__
mine = os.environ["RANK"]
__main__.flag = mine
assert flag == sys.modules["__main__"].flag == mine
del __main__.flag
assert "flag" not in globals()
"""
    assert _run(tmp_path, text, nproc_per_node=2)[0] == 0


@pytest.mark.parametrize("text", ["# -*- coding: nothing -*-\n", "x = (\n", "x = 1\n\0"])
def test_a_file_that_is_no_python_shows_no_frame_of_the_parser(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(tmp_path, text)[0] == 1
    said = capsys.readouterr().err
    assert "SyntaxError" in said
    assert "ast.py" not in said
