"""Triton's own tests of its language: what its interpreter passes, a simulated device passes.

They run with `--triton-tests FOLDER`, which is `python/test` of a checkout of about the version
that is installed, and need scipy. `test_subprocess.py` starts programs without kernbench.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton.language")

HERE = Path(__file__).parent

FILES = ["annotations", "core", "decorator", "frontend", "libdevice", "matmul", "mxfp"]
FILES += ["pipeliner", "random", "standard", "tensor_descriptor", "tuple"]


def outcomes(file: Path, device: str, *words: str, folder: Path, **env: str) -> dict[str, str]:
    paths = os.pathsep.join([str(HERE.parents[1]), str(HERE)])
    given = ["-p", "triton_language_plugin", "-p", "no:cacheprovider", "-q"]
    given += [f"--confcutdir={folder}", str(file), "--device", device]
    subprocess.run(
        [sys.executable, *words, "-m", "pytest", *given],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **env},
        stdout=subprocess.DEVNULL,
        check=False,  # some tests fail
    )
    found: dict[str, str] = json.loads(Path(env["OUTCOMES"]).read_text())
    return found


@pytest.mark.torch
@pytest.mark.at_length
@pytest.mark.parametrize("file", FILES)
def test_what_tritons_interpreter_passes_a_simulated_device_passes(
    file: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    given = request.config.getoption("--triton-tests")
    if given is None:
        pytest.skip("--triton-tests FOLDER names python/test of a checkout of Triton")
    folder = Path(given).resolve()
    path = folder / "unit" / "language" / f"test_{file}.py"
    out = {kind: str(tmp_path / kind) for kind in ("there", "here")}
    there = outcomes(path, "cpu", folder=folder, OUTCOMES=out["there"], TRITON_INTERPRET="1")
    ranks = ("-m", "kernbench", "torchrun", "--nproc-per-node", "1")
    env = {"OUTCOMES": out["here"], "ASKED": out["there"], "KERNBENCH_TRITON_TIME": "ir"}
    env["ZEROS"] = "1"
    here = outcomes(path, "cuda", *ranks, folder=folder, **env)
    asked = {name for name, outcome in there.items() if outcome == "passed"}
    asked -= {name for name, outcome in here.items() if outcome == "skipped"}  # of other GPUs
    missing = sorted(name for name in asked if here.get(name) != "passed")
    print(f"{file}: {len(asked) - len(missing)} of {len(asked)}")
    assert asked
    assert len(missing) <= len(asked) * 0.05, missing
