"""What programs of PyTorch ask for is looked at before PyTorch is: these tests run without it."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from kernbench.config import ConfigError
from kernbench.errors import UsageError
from kernbench.run_spec import PytorchRun, RunSpec
from kernbench.runtime_api import pytorch_versions
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.pytorch_versions import check_version, minor_of
from kernbench.runtime_api.refused_names import REFUSED, refusal, refused_by_module
from kernbench.scripts.program import program_of
from kernbench.scripts.pytorch import DOCUMENT, run_lines


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"as_torch": True}, "pytorch and as_torch: expected one of them"),
        ({"default_device": "cpu"}, "PyTorch itself decides where tensors are made"),
        ({"pytorch": PytorchRun(nodes=2)}, "--nnodes 2: expected --nproc-per-node, too"),
        ({"pytorch": PytorchRun(same_ranks=True)}, "--same-ranks"),
        ({"pytorch": PytorchRun(check_replicas=True), "data": False}, "--check-replicas"),
    ],
)
def test_what_does_not_fit_a_program_of_pytorch(
    tmp_path: Path, fields: dict[str, Any], told: str
) -> None:
    spec = RunSpec(**{"pytorch": PytorchRun(), **fields})
    with pytest.raises(UsageError, match=told), program_of(spec, tmp_path / "train.py"):
        raise AssertionError


@pytest.mark.parametrize(
    "field",
    # Both have `witnesses`: of `same_ranks` here, of `collapse` there.
    sorted({each.name for each in dataclasses.fields(PytorchRun)} - {"witnesses"}),
)
def test_what_only_a_program_of_pytorch_may_ask_for(field: str) -> None:
    with pytest.raises(ConfigError, match=f"`pytorch` has it: pytorch={{'{field}'"):
        RunSpec.from_fields({field: True})


def test_versions_of_pytorch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytorch_versions, "_TOLD", set())
    assert minor_of("2.16.0a0+git1234") == (2, 16)
    assert minor_of("unknown") == (0, 0)
    with pytest.raises(UsageError, match=r"PyTorch 2\.12\.1 is installed, .* 2\.13 or newer"):
        check_version("2.12.1")
    for version in ("2.13.0+cpu", "2.15.0"):
        check_version(version)
    assert capsys.readouterr().err == ""
    for _ in range(2):
        check_version("2.99.0")
    assert capsys.readouterr().err.count("PyTorch 2.99.0 is newer than") == 1


def test_refused_names_by_module_are_all_of_them() -> None:
    found = refused_by_module()
    whole = {f"{module}.{name}" for module, names in found.items() for name in names}
    assert whole == REFUSED.keys()
    assert found["torch.nn"]["DataParallel"] == REFUSED["torch.nn.DataParallel"]
    assert (refusal("torch.cuda.MemPool.snapshot") or "").startswith("torch.cuda.MemPool is not")


def test_the_last_lines_name_late_events_only_if_there_are_some() -> None:
    with RuntimeContext() as ctx:
        told = {
            "numbers": "CPU",
            "time_us": 2.0,
            "peak_memory_bytes": 1 << 20,
            "late_events": 0,
            "made_up_values": {"count": 0, "first": None},
            "races": [],
            "unknown_operations": [],
        }
        ctx.results.append({DOCUMENT: told})
        (line,) = run_lines(ctx)
        assert line == "simulated time 2 us, peak memory 1 MiB; values computed on the CPU"
        told |= {"numbers": "none", "late_events": 3}
        line, late = run_lines(ctx)
        assert line.endswith("; no values computed")
        assert late.startswith("late events: 3 (calls that arrived after the simulated clock had")
        told |= {"late_events": 0, "time_us": 0.0, "peak_memory_bytes": 0}
        _, hint = run_lines(ctx)
        assert hint.startswith("no device was used: move the model and its inputs to one")
