"""The files of `kernbench torchrun --flight-recorder`, read by PyTorch's own analyser."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bridge_torchrun import run

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

START = """\
import os, sys, torch, torch.distributed as dist
dist.init_process_group("nccl")
rank, how = int(os.environ["RANK"]), sys.argv[1]
torch.cuda.set_device(rank)
x = torch.zeros(8, device="cuda")
"""
MISTAKES = (
    START
    + """\
for _ in range(3):
    dist.all_reduce(x)
tail = dist.new_group([2, 3])
if how == "shape":
    dist.all_reduce(torch.ones(4 + (rank == 2), device="cuda"))
elif how == "operation":
    dist.broadcast(x, 0) if rank == 1 else dist.all_reduce(x)
elif how == "dtype":
    dist.all_reduce(x.half() if rank == 3 else x)
elif how == "skipped":
    if rank != 3:
        dist.all_reduce(x)
elif how == "raised":
    if rank == 2:
        raise KeyError("lost")
    dist.all_reduce(x)
elif how == "busy":  # devices are in the midst of what nothing is wrong with
    busy, ys = torch.zeros(1 << 20, device="cuda"), torch.zeros(6, 8, device="cuda")
    works = [dist.all_reduce(y, async_op=busy.add_(rank) is not None) for y in ys]
    if rank == 1:
        raise KeyError("lost")
    dist.all_reduce(x)
elif how == "stopped":
    if rank == 1:
        raise KeyError("lost")
    if rank > 1:
        torch.zeros(1 << 24, device="cuda").add_(1)
        torch.cuda.synchronize()
    dist.all_reduce(x)
elif how == "group":
    if rank == 3:
        dist.all_reduce(x, group=tail)
elif how == "full":  # more calls than are kept, and not as many in each rank
    for turn in range(2100):
        dist.all_reduce(x)
        if rank > 1 and turn % 2:
            dist.all_reduce(x, group=tail)
    if rank != 1:
        dist.all_reduce(x)
dist.destroy_process_group()
"""
)
CULPRITS = {
    "shape": {2},
    "operation": {1},
    "dtype": {3},
    "skipped": {3},
    "raised": {2},
    "busy": {1},
    "stopped": set(),  # whether ranks 2 and 3 would have called, nobody knows
    "group": {2},
    "full": {1},
    "nothing": set(),
}

COLLECTIVES = """\
import os, sys, torch, torch.distributed as dist
dist.init_process_group(sys.argv[1])
x = torch.ones(3, dtype=torch.bfloat16, device=sys.argv[2])
one = dist.new_group([0], group_desc="mine")
dist.all_reduce(x)
dist.broadcast(x, 0)
dist.reduce(x, 0, group=one)
dist.all_gather([torch.zeros_like(x)], x)
dist.gather(x, [torch.zeros_like(x)], 0)
dist.scatter(x, [torch.zeros_like(x)], 0)
dist.all_to_all_single(torch.zeros_like(x), x)
dist.all_reduce(torch.ones(2, 2), group=one) if sys.argv[2] == "cpu" else None
"""
END = "dist.destroy_process_group()\n"
DUMP = """
open(sys.argv[3], "wb").write(torch._C._distributed_c10d._dump_fr_trace())
"""


def _analysed(folder: Path) -> Any:
    """Returns what PyTorch's analyser makes of a folder."""
    from torch.distributed.flight_recorder.components.builder import build_db
    from torch.distributed.flight_recorder.components.loader import read_dir

    asked: Any = SimpleNamespace(
        trace_dir=str(folder),
        prefix=None,
        verbose=False,
        just_print_entries=False,
        allow_incomplete_ranks=False,
        mismatch_cap=10,
    )
    details, version = read_dir(asked)
    return build_db(details, asked, version)


def _culprits(folder: Path) -> set[int]:
    """Returns the ranks that PyTorch's analyser names for the first call with a mistake."""
    for call in _analysed(folder).collectives:
        found = set(call.missing_ranks or ()) | set(call.mismatch_collectives or ())
        if found:
            return found
    return set()


@pytest.mark.parametrize("how", CULPRITS)
def test_the_analyser_names_the_ranks_that_the_report_names(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, folder = tmp_path / "program.py", tmp_path / "flight"
    program.write_text(MISTAKES)
    code = run("--nproc-per-node", 4, "--flight-recorder", folder, program, how)
    told = capsys.readouterr().err
    expected = CULPRITS[how]
    assert code == (how != "nothing")
    assert _culprits(folder) == expected
    assert len(list(folder.iterdir())) == 4
    assert how == "nothing" or f"fr_trace {folder}" in told
    for rank in expected:
        assert f"rank {rank}" in told


def test_files_have_the_form_of_pytorchs_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, folder, real = tmp_path / "program.py", tmp_path / "flight", tmp_path / "real"
    program.write_text(COLLECTIVES + DUMP)
    alone = {"MASTER_ADDR": "localhost", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    subprocess.run(
        [sys.executable, program, "gloo", "cpu", real],
        env={**os.environ, **alone, "TORCH_FR_BUFFER_SIZE": "100"},
        check=True,
    )
    program.write_text(COLLECTIVES + END)
    assert run("--nproc-per-node", 1, "--flight-recorder", folder, program, "nccl", "cuda") == 0
    capsys.readouterr()
    theirs = pickle.loads(real.read_bytes())
    ours = pickle.loads((folder / "nccl_trace_rank_0").read_bytes())
    assert ours.keys() == theirs.keys()
    assert ours["version"] == theirs["version"]
    their_calls, our_calls = theirs["entries"][:7], ours["entries"]
    assert [entry.keys() for entry in our_calls] == [entry.keys() for entry in their_calls]
    alike = ["record_id", "pg_id", "process_group", "collective_seq_id", "p2p_seq_id", "op_id"]
    alike += ["input_sizes", "input_dtypes", "output_sizes", "output_dtypes", "is_p2p"]
    for mine, its in zip(our_calls, their_calls, strict=True):
        assert {name: mine[name] for name in alike} == {name: its[name] for name in alike}
        assert mine["profiling_name"] == its["profiling_name"].replace("gloo:", "nccl:")
        assert mine["frames"][0] == its["frames"][0]
        user = [frame for frame in mine["frames"] if frame["filename"] == str(program)]
        assert user == [frame for frame in its["frames"] if frame["filename"] == str(program)]
        assert {type(mine[name]) for name in mine} <= {type(its[name]) for name in its} | {int}
    assert ours["pg_status"]["0"]["last_completed_collective"] == 6
    assert ours["pg_config"]["1"] == {"name": "1", "desc": "mine", "ranks": "[0]"}


def test_hosts_number_their_calls_apart_from_devices(tmp_path: Path) -> None:
    program, folder = tmp_path / "program.py", tmp_path / "flight"
    program.write_text(
        START.replace('"nccl"', '"cpu:gloo,cuda:nccl"')
        + """\
dist.all_reduce(torch.ones(2))
dist.all_reduce(x)
if how == "fails" and rank:
    dist.all_reduce(torch.ones(2))
"""
    )
    assert run("--nproc-per-node", 2, "--flight-recorder", folder, program, "fails") == 1
    assert _culprits(folder) == {0}
    entries = pickle.loads((folder / "nccl_trace_rank_1").read_bytes())["entries"]
    numbered = [(entry["profiling_name"], entry["collective_seq_id"]) for entry in entries]
    assert numbered == [("gloo:all_reduce", 1), ("nccl:all_reduce", 1), ("gloo:all_reduce", 2)]


def test_messages_match(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.flight_recorder.components import utils

    # Without the package `tabulate` the analyser fails where it shows a match of messages.
    monkeypatch.setattr(utils, "tabulate", str, raising=False)
    program, folder = tmp_path / "program.py", tmp_path / "flight"
    program.write_text(
        START
        + """\
for _ in range(2):  # the analyser mixes up equal numbers of collectives and of batches
    dist.all_reduce(x)
if how == "batch":
    kind = dist.irecv if rank else dist.isend
    for work in dist.batch_isend_irecv([dist.P2POp(kind, x, 1 - rank)]):
        work.wait()
else:
    dist.recv(x, 0) if rank else dist.send(x, 1)
dist.all_reduce(x)
"""
    )
    for how in ("batch", "alone"):
        assert run("--nproc-per-node", 2, "--flight-recorder", folder, program, how) == 0
        found = _analysed(folder)
        assert _culprits(folder) == set()
        assert len(found.collectives) == 4
        assert {call.collective_id for call in found.ncclcalls} == {0, 1, 2, 3}


def test_the_folder_holds_the_last_run_alone(tmp_path: Path) -> None:
    program, folder = tmp_path / "program.py", tmp_path / "flight"
    program.write_text(START + "dist.all_reduce(x)\n")
    for ranks in (4, 2):
        assert run("--nproc-per-node", ranks, "--flight-recorder", folder, program, "-") == 0
        names = sorted(path.name for path in folder.iterdir())
        assert names == [f"nccl_trace_rank_{rank}" for rank in range(ranks)]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--flight-recorder", "f.json"], "expected a folder, which takes a file for each rank"),
        (["--flight-recorder", "taken"], "[F15]"),
        (
            ["--flight-recorder", "f", "--same-ranks", "--data", "off"],
            "--flight-recorder and --same-ranks",
        ),
    ],
)
def test_confusions_are_refused_by_name(
    options: list[str],
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken").touch()
    Path("program.py").write_text("raise AssertionError('must not run')\n")
    assert run("--nproc-per-node", 2, *options, "program.py") == 2
    assert told in capsys.readouterr().err
    assert not Path("f").exists()
