"""What a failure becomes on the command line: a text, plain values, an exit code."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.cli.failures import Exit, Terminated, end_at_terminate, failed
from kernbench.errors import KernbenchError
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.scripts import failures
from kernbench.scripts.failures import as_json, user_frames
from kernbench.testing import Kernbench


def _worker(rank: int) -> None:
    dist.init_process_group("nccl")
    x = torch.ones(2, device="cuda")
    if rank == 3:
        _recurse(x)
    if rank == 4:
        raise OSError(f"disk of rank {rank}")
    dist.recv(x, (rank + 1) % 3)
    x.tolist()


def _recurse(x: torch.Tensor) -> None:
    _recurse(x)


def _failure(kernbench: Kernbench, nprocs: int) -> SpawnException:
    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(_worker, nprocs=nprocs)
    return caught.value


def test_ranks_of_one_deadlock_are_told_once(
    kernbench: Kernbench, capsys: pytest.CaptureFixture[str]
) -> None:
    error = _failure(kernbench, 3)
    assert failed(error) == Exit.FAILED
    text = re.sub(r"/\S*\.py:\d+:\d+", "FILE", capsys.readouterr().err)
    assert re.sub(r"\(l\.\d+\)", "(l.N)", text) == (
        "ranks 0-2 failed:\n"
        "RankDeadlockError: [P4] ranks 0-2 wait for one another: "
        "0 recv<-1 (l.N) -> 1 recv<-2 -> 2 recv<-0 -> 0\n"
        "  ranks 0-2 wait in message #1 of group WORLD: recv([2], torch.float32, tag 0) at 2 us, "
        "at FILE: dist.recv(x, (rank + 1) % 3)\n"
        "  hint: let one side send before it receives, or start both with batch_isend_irecv\n"
        "explain: kernbench explain P4\n"
    )
    views = [entry["view"] for entry in as_json(error)["errors"].values()]
    assert [re.sub(r", at .*", "", view) for view in views] == [
        f"rank {rank} waits in message #1 of group WORLD: recv([2], torch.float32, "
        f"from rank {(rank + 1) % 3}, tag 0) at 2 us"
        for rank in range(3)
    ]


def test_errors_of_users_code_come_with_their_traceback(
    kernbench: Kernbench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failed(_failure(kernbench, 5)) == Exit.FAILED
    text = capsys.readouterr().err
    assert "rank 3 failed at 2 us:\nTraceback of your code" in text
    assert "RecursionError: maximum recursion depth exceeded" in text
    assert "the calls were " in text
    assert "rank 4 failed at 2 us:\nTraceback of your code" in text
    assert "OSError: disk of rank 4" in text
    assert "ranks 0-2 aborted at 6 us, at " in text


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), Exit.INTERRUPTED, "interrupted\n"),
        (SystemExit(4), 4, ""),
        (SystemExit(None), Exit.OK, ""),
        (SystemExit("no"), Exit.FAILED, "no\n"),
    ],
)
def test_exits(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failed(error) == code
    assert capsys.readouterr().err == said
    assert as_json(error)["class"] == type(error).__name__


@pytest.mark.parametrize("shipped", [True, False])
def test_frames_of_a_shipped_bench_are_shown_if_it_is_broken_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shipped: bool
) -> None:
    """A mistake in flags is not looked for there; a bug of the bench is."""
    file = tmp_path / "of_it.py"
    file.write_text("def run(error):\n    raise error\n")
    called: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), called)

    def frames(error: Exception) -> str:
        with pytest.raises(type(error)) as caught:
            called["run"](error)
        return "\n".join(user_frames(caught.value))

    name = f'File "{file}", line 2'
    monkeypatch.setattr(failures, "shipped", lambda _: tmp_path if shipped else tmp_path / "other")
    assert (name in frames(KernbenchError("no"))) == (not shipped)
    assert name in frames(TypeError("no"))


def test_what_a_program_forks_ends_by_sigterm_as_pythons_own_do() -> None:
    before = signal.getsignal(signal.SIGTERM)
    end_at_terminate()
    try:
        child = os.fork()
        if not child:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        with pytest.raises(Terminated):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGTERM
