"""Ends of a rank's process, against those of a process of Python."""

import gc
import os
import re
import subprocess
import sys
import threading
from typing import Any

import pytest

import kernbench
from kernbench.ranks.spawn_errors import SpawnException

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch")

BEGINNING = """
import atexit, os, signal, sys
def tell(*words):
    print(*words, flush=True)
def handler(number, frame):
    tell("handler of", signal.Signals(number).name)
"""

ENDS = {
    "returns": "atexit.register(tell, 1); atexit.register(tell, 2, 3); tell(0)",
    "unregistered": "atexit.register(tell, 1); atexit.register(max, 1); atexit.unregister(tell)",
    "of atexit, a failure": "atexit.register(tell, 1); atexit.register(int, 'x')",
    "of atexit, an exit": "atexit.register(tell, 1); atexit.register(sys.exit, 3)",
    "fails": "atexit.register(tell, 1); raise ValueError",
    "exits": "atexit.register(tell, 1); sys.exit(5)",
    "exits well": "atexit.register(tell, 1); sys.exit(0)",
    "_exits": "atexit.register(tell, 1); os._exit(3)",
    "_exits well": "atexit.register(tell, 1); os._exit(0)",
    "aborts": "atexit.register(tell, 1); os.abort()",
    "terminated": "atexit.register(tell, 1); os.kill(os.getpid(), signal.SIGTERM)",
    "raised": "signal.raise_signal(signal.SIGUSR1)",
    "killed": "signal.signal(signal.SIGTERM, handler); os.kill(os.getpid(), signal.SIGKILL)",
    "ignored": "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.raise_signal(15); tell(1)",
    "a child": "os.kill(os.getpid(), signal.SIGCHLD); tell(1)",
    "nothing": "os.kill(os.getpid(), 0); tell(1)",
    "handled": "tell(signal.signal(signal.SIGTERM, handler) == signal.SIG_DFL);"
    "os.kill(os.getpid(), signal.SIGTERM); tell(signal.getsignal(signal.SIGTERM) is handler);"
    "tell(signal.signal(signal.SIGTERM, signal.SIG_DFL) is handler); os.kill(os.getpid(), 15)",
}


def plain(program: str) -> tuple[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", BEGINNING + program], capture_output=True, text=True, check=False
    )
    return done.stdout, done.returncode


@pytest.mark.parametrize("program", ENDS.values(), ids=ENDS.keys())
def test_a_rank_ends_as_a_process_does(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    def worker(_: int) -> None:
        exec(BEGINNING + program, {})

    expected, code = plain(program)
    capsys.readouterr()
    if code:
        with pytest.raises(SpawnException) as failed:
            kernbench.torchrun_spawn(worker, nprocs=1)
        assert getattr(failed.value.errors[0], "code", 1) == code
    else:
        kernbench.torchrun_spawn(worker, nprocs=1)
    assert capsys.readouterr().out == expected


def test_others_are_told_where_a_rank_has_ended() -> None:
    def worker(rank: int, code: int) -> None:
        import torch.distributed as dist

        torch.cuda.set_device(rank)
        dist.init_process_group()
        if rank == 1:
            os._exit(code)  # here
        dist.barrier()

    for code, told in ((0, r"missing rank 1 returned at .*# here"), (3, r"os._exit\(3\)")):
        with pytest.raises(SpawnException) as failed:
            kernbench.torchrun_spawn(worker, nprocs=2, args=(code,))
        assert re.search(told, str(failed.value))


def test_each_rank_calls_its_own_handlers_with_its_own_state() -> None:
    import atexit
    import signal

    found: list[Any] = []
    before = signal.getsignal(signal.SIGTERM)

    def worker(rank: int) -> None:
        import torch.distributed as dist

        torch.cuda.set_device(rank)
        dist.init_process_group()
        os.environ["MINE"] = str(rank)
        torch.set_default_dtype([torch.float64, torch.bfloat16][rank])
        atexit.register(lambda: found.append((os.environ["MINE"], torch.empty(0).dtype, rank)))
        signal.signal(signal.SIGTERM, lambda *_: found.append(rank))
        dist.barrier()
        if rank:
            os.kill(os.getpid(), signal.SIGTERM)
        dist.destroy_process_group()

    kernbench.torchrun_spawn(worker, nprocs=2)
    assert found[0] == 1
    assert sorted(found[1:]) == [("0", torch.float64, 0), ("1", torch.bfloat16, 1)]
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_a_failed_backward_leaves_is_let_go_while_its_thread_is_pythons() -> None:
    threads: list[str] = []

    class Left:
        def __del__(self) -> None:
            threads.append(threading.current_thread().name)

    class First(torch.autograd.Function):  # type: ignore[name-defined,misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.left = Left()
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            raise AssertionError("comes after the one that fails")

    class Fails(torch.autograd.Function):  # type: ignore[name-defined,misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            raise ValueError("in the backward pass")

    def worker(_: int) -> None:
        x = torch.ones(3, requires_grad=True)
        (First.apply(x) + Fails.apply(x)).sum().backward()

    with pytest.raises(SpawnException, match="in the backward pass"):
        kernbench.torchrun_spawn(worker, nprocs=1)
    gc.collect()
    assert threads
    assert not [name for name in threads if name.startswith("Dummy")]
