"""When the user is told that this computer takes minutes for numbers: once, and early."""

from pathlib import Path

import pytest

from kernbench.cli.app import app
from kernbench.process import effort
from kernbench.process.effort import EFFORT, Effort

TERA = 10**12


class Computer:
    """Computes 100 GFLOP a second, and keeps what is said."""

    def __init__(self) -> None:
        self.now = 0.0
        self.said: list[str] = []
        self.effort = Effort(lambda: self.now, self.said.append)
        self.product(0, TERA // 10)
        self.effort.stepped(0)

    def product(self, rank: int, flops: int, rate: float = 1e11) -> None:
        def compute() -> None:
            self.now += flops / rate

        self.effort.product(rank, "mm", flops, compute)


def test_a_step_is_told_when_its_first_pass_goes_back() -> None:
    computer = Computer()
    for rank in (0, 1):
        computer.product(rank, TERA * 2)
    computer.effort.stepped(1)
    computer.product(1, TERA * 19 // 10)
    computer.effort.backward(1, 2)
    assert not computer.said, "3 passes of 2 ranks are 11.4 TFLOP, which is less than two minutes"
    computer.product(1, TERA // 5)
    computer.effort.backward(1, 2)
    assert computer.said == [
        "kernbench: this step would take about 2 minutes of this computer (forward and back of 2 "
        "ranks: 12.6 TFLOP at 100 GFLOP/s); --data off (data=False) predicts time and memory "
        "without numbers"
    ]
    computer.effort.backward(1, 2000)
    assert len(computer.said) == 1


def test_a_product_is_told_before_it_is_computed() -> None:
    computer = Computer()
    computer.product(0, TERA * 1000)
    assert computer.said == [
        "kernbench: mm would take about 2.8 hours of this computer (one product: 1000 TFLOP at "
        "100 GFLOP/s); --data off (data=False) predicts time and memory without numbers"
    ]


def test_what_has_taken_minutes_is_told_if_nothing_was_before() -> None:
    computer = Computer()
    for _ in range(11):
        computer.product(0, TERA)
    assert not computer.said
    computer.product(0, TERA)
    assert computer.said[0].startswith(
        "kernbench: numbers have taken 2 minutes of this computer so far (products: 12.1 TFLOP"
    )


TRAIN = """\
import os
import torch
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
x = torch.randn(1300, 1300, device="cuda", requires_grad=True)
(x @ x).sum().backward()
"""


@pytest.mark.parametrize(
    "command", ["run --as-torch", pytest.param("torchrun", marks=pytest.mark.torch)]
)
@pytest.mark.parametrize("data", ["on", "off"])
def test_a_program_is_told_of_its_step(
    command: str,
    data: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once for all ranks, and not where nothing is computed."""
    file = tmp_path / "train.py"
    file.write_text(TRAIN)
    product = 2 * 1300**3
    monkeypatch.setattr(effort, "_LONG_S", 3.0)
    monkeypatch.setattr(Effort, "_rate", lambda _: product)
    monkeypatch.setattr(EFFORT, "told", False)
    monkeypatch.setattr(EFFORT, "_steps", {})
    monkeypatch.setattr(EFFORT, "_seconds", 0.0)
    with pytest.raises(SystemExit) as ended:
        app([*command.split(), "--data", data, "--nproc-per-node", "2", str(file)])
    assert ended.value.code == 0
    told = capsys.readouterr().err
    assert told.count("this step would take about") == (data == "on")
    assert ("forward and back of 2 ranks" in told) == (data == "on")
