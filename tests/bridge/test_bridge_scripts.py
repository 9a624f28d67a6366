"""`torch.jit.script` in ranks: it compiles as outside of them, and runs on simulated devices."""

from pathlib import Path
from typing import Any

import pytest
from bridge_devices import on_ranks
from bridge_programs import load
from bridge_torchrun import run

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.torch.jit"),
    pytest.mark.filterwarnings("ignore:torch.jit.script compiles nothing"),
]


@pytest.mark.parametrize("data", [True, False])
def test_functions_that_make_tensors(data: bool) -> None:
    def worker(_: int) -> Any:
        torch.cuda.set_device(0)
        x = torch.ones(3, device="cuda", requires_grad=True)
        scripted = torch.jit.script(load("scripted").outer)
        assert "full_like" in scripted.code
        assert scripted.schema.name == "outer"
        found = scripted(x)
        found.sum().backward()
        on = torch.jit.script(load("scripted").of_nothing)(2)
        assert on.device.type == "cpu"
        return [(y.device.type, y.tolist() if data else None) for y in (found.detach(), x.grad)]

    values = [[3, 5, 7], [1, 1, 1]] if data else [None, None]
    assert on_ranks(worker, 1, data=data) == [[("cuda", each) for each in values]]


def test_names_that_a_rank_has_taken_from_torch(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\nfrom torch import zeros\n\n"
        "@torch.jit.script\ndef made(count: int):\n    return zeros(count) + 1\n\n"
        "print(made(4).tolist())\n"
    )
    assert run("--nproc-per-node", 1, program) == 0
    assert "[1.0, 1.0, 1.0, 1.0]" in capfd.readouterr().out


def test_modules_are_compiled_and_saved(tmp_path: Path) -> None:
    def worker(_: int) -> Any:
        torch.manual_seed(0)
        module = load("scripted").Module().cuda()
        scripted = torch.jit.script(module)
        scripted.save(tmp_path / "module.pt")
        x = torch.ones(2, 3, device="cuda")
        assert torch.equal(scripted(x), module(x))
        return scripted(x).tolist()

    (found,) = on_ranks(worker, 1)
    loaded = torch.jit.load(tmp_path / "module.pt")
    assert loaded(torch.ones(2, 3)).tolist() == found


def test_what_does_not_compile_is_told_in_pytorchs_words() -> None:
    def worker(_: int) -> Any:
        with (
            pytest.warns(UserWarning, match="that of eager PyTorch"),
            pytest.raises(RuntimeError, match="Arguments for call are not valid"),
        ):
            torch.jit.script(load("scripted").wrong)

    on_ranks(worker, 1)


def test_outside_of_ranks_nothing_changes() -> None:
    on_ranks(lambda _: torch.jit.script(load("scripted").outer), 1)
    assert isinstance(torch.jit.script(load("scripted").outer), torch.jit.ScriptFunction)
    assert torch.jit.script(load("scripted").of_nothing)(2).shape == (2,)
