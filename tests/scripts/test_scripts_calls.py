"""`kernbench.spawn` and `kernbench.context`: in a line, in a script or a notebook."""

import asyncio
import linecache
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kernbench
import kernbench.torch as torch
from kernbench.errors import KernbenchError, UsageError
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.scripts.calls import LocalFileWarning
from kernbench.testing import Kernbench


def test_a_spawn_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    def worker(rank: int, factor: float) -> None:
        x = torch.full((2,), factor * rank, device="cuda")
        if rank == 1:
            print(x)

    ctx = kernbench.spawn(worker, nprocs=2, args=(3.0,), machine="torus4x4", seed=4)
    assert ctx.engine.topology.world_size == 16
    assert ctx.spec.seed == 4
    assert repr(ctx).startswith("<context of torus4x4, 2 ranks, at ")
    assert capsys.readouterr().out == "tensor([3., 3.], device='cuda:1')\n"


def test_a_context_in_a_line() -> None:
    with kernbench.context(machine="torus4x4", data=False) as ctx:
        assert torch.ones(3, device="cuda").shape == (3,)
        assert not ctx.engine.enable_data
    with kernbench.context(topology="sip8") as ctx:
        assert ctx.spec.topology == "sip8"
    with kernbench.context("torus4x4") as ctx:
        assert ctx.spec.topology == "torus4x4"


def test_a_file_of_the_working_directory_is_named_once_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "ccl.yaml"
    file.write_text("")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            kernbench.spawn(lambda rank: None, nprocs=2)
        kernbench.spawn(lambda rank: None, nprocs=2, ccl=str(file))
        kernbench.context()
    said = f"algorithms are those of {file}; ccl=FILE names others"
    assert [str(each.message) for each in caught] == [said, said]
    assert {(each.category, each.filename) for each in caught} == {(LocalFileWarning, __file__)}
    assert caught[0].lineno == caught[1].lineno - 2


@pytest.mark.torch
def test_ranks_of_pytorch_name_a_file_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "ccl.yaml"
    file.write_text("")
    with pytest.warns(LocalFileWarning, match=re.escape(str(file))) as told:
        kernbench.torchrun_spawn(lambda rank: None, nprocs=2)
    assert told[0].filename == __file__


@pytest.mark.parametrize("call", [kernbench.spawn, Kernbench().spawn])
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"nproc": 3}, "did you mean `nprocs`"),
        ({"machin": "sip8"}, "did you mean `machine`"),
        ({"toplogy": "sip8"}, "did you mean `topology`"),
        ({"machine": "sip8", "topology": "sip8"}, "expected one of them, which mean the same"),
        ({"nproc_per_node": 3}, "how `kernbench run` runs a file"),
        ({"as_torch": True}, "how `kernbench run` runs a file"),
        ({"machine": "h200x9"}, "did you mean `h200x8`"),
        ({"data": 3}, "data: expected true or false, got 3"),
    ],
)
def test_a_wrong_argument_is_told_in_a_sentence(
    call: Callable[..., Any], fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError) as raised:
        call(print, **fields)
    assert said in str(raised.value)


CELL = (
    "def worker(rank):\n"
    "    x = torch.ones(2, device='cuda')\n"
    "    if rank == 1:\n"
    "        x = x + torch.ones(3, device='cuda')\n"
    "kernbench.spawn(worker, nprocs=2)\n"
)


def _as_cell(text: str) -> None:
    """Runs a text as a notebook does: it has no file, only an entry of `linecache`."""
    name = "<ipython-input-7-0123456789ab>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    try:
        exec(compile(text, name, "exec"), {"kernbench": kernbench, "torch": torch})
    finally:
        del linecache.cache[name]


def test_a_cell_of_a_notebook_has_its_lines_in_reports() -> None:
    async def notebook() -> None:
        _as_cell(CELL.replace("ones(3", "ones(2"))
        _as_cell(CELL)

    with pytest.raises(SpawnException) as raised:
        asyncio.run(notebook())
    error = raised.value
    assert "input-7-0123456789ab>:4:13: x = x + torch.ones(3, device='cuda')" in str(error)
    # What IPython shows, in place of a traceback
    shown = "\n".join(error._render_traceback_())
    assert shown.startswith("SpawnException: rank 1 failed\n")
    assert "kernbench/" not in shown
    assert error.__cause__ is None


def test_what_ipython_shows_of_an_error_has_its_codes() -> None:
    error = KernbenchError("no", ["at x.py:1"], hint="do", code="C1")
    assert error._render_traceback_() == [
        "KernbenchError: [C1] no",
        "  at x.py:1",
        "  hint: do",
        "explain: kernbench explain C1",
    ]


def test_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, kernbench, kernbench.testing.plugin\n"
        "assert 'numpy' not in sys.modules and 'kernbench.scripts' not in sys.modules\n"
        "kernbench.spawn, kernbench.context\n"
        "assert 'kernbench.scripts.calls' in sys.modules\n"
        "assert not hasattr(kernbench, 'spwan')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("spwan", "; did you mean `kernbench.spawn`?"),
        ("explore", "; the fixture `kernbench` of pytest has it"),
        ("matrix", ""),
        ("_spwan", ""),
    ],
)
def test_a_name_that_kernbench_lacks(name: str, told: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(kernbench, name)
    assert str(caught.value) == f"module 'kernbench' has no attribute {name!r}{told}"
