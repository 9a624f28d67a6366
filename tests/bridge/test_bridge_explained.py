"""`--explain-time` of programs of PyTorch: as under the own torch, and what has no price."""

import re
from pathlib import Path

import pytest
from bridge_torchrun import run

from kernbench.cli.app import app

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

BLOCK = """\
import torch
x = torch.ones(4096, 4096, device="cuda", dtype=torch.bfloat16)
for _ in range(3):
    y = torch.nn.functional.gelu(x @ x) + x
    z = torch.softmax(y, -1)
torch.cuda.synchronize()
"""

UNPRICED = """\
import torch
x = torch.ones(4096, 4096, device="cuda")
for _ in range({times}):
    y = x * 2.0
z = x.kthvalue(3)
torch.cuda.synchronize()
"""


def test_a_program_is_explained_alike_under_both_torches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "block.py"
    program.write_text(BLOCK)
    options = ["--data", "off", "--topology", "h200x8", "--explain-time", str(program)]
    assert run(*options) == 0
    _, *real = capsys.readouterr().out.splitlines()  # the first line is the simulated time
    with pytest.raises(SystemExit) as ended:
        app(["run", "--as-torch", *options])
    assert ended.value.code == 0
    own = capsys.readouterr().out.splitlines()

    assert real == own
    assert own[0].startswith("bound by the tensor engines: ")
    assert any(line.startswith("aten::mm ") and " pe.gemm " in line for line in own)


@pytest.mark.parametrize(("times", "much"), [(1, True), (100, False)])
def test_a_run_says_that_much_of_it_was_timed_by_bytes_alone(
    times: int, much: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "unpriced.py"
    program.write_text(UNPRICED.format(times=times))
    assert run("--data", "fake", program) == 0
    out = capsys.readouterr().out

    assert "timed by their bytes (share of the ranks' time): aten::kthvalue " in out
    found = re.findall(r"^([\d.]+)% of the devices' time is that of .* without a price", out, re.M)
    # Of H200: ones 16.4 us, each product 32.7 us, kthvalue 17.0 us.
    assert found == (["25.7"] if much else [])
