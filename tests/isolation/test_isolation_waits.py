"""What threads of a rank wait for in files, sockets and processes: the others run meanwhile."""

import asyncio
import gc
import multiprocessing
import os
import select
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest
from bridge_torchrun import run

import kernbench
from kernbench.ranks import watchdog

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch")

_LARGE = 3_000_000
"""More bytes than a pipe or a socket holds."""


def on_ranks(worker: Callable[[int], Any], nprocs: int = 2) -> list[Any]:
    def rank_main(rank: int) -> Any:
        torch.cuda.set_device(rank)
        return worker(rank)

    returned: list[Any] = kernbench.torchrun_spawn(rank_main, nprocs=nprocs).returned
    return returned


def _beside(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_an_event_loop_of_a_thread_runs_what_the_rank_asks_for() -> None:
    def worker(rank: int) -> int:
        loop = asyncio.new_event_loop()
        thread = _beside(loop.run_forever)

        async def later() -> int:
            await asyncio.sleep(0.001)
            return rank + 3

        found = asyncio.run_coroutine_threadsafe(later(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        return found

    assert on_ranks(worker) == [3, 4]


def test_a_thread_serves_the_rank_by_a_socket() -> None:
    def worker(rank: int) -> list[int]:
        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                while piece := connection.recv(1 << 16):
                    received.append(len(piece))
                connection.sendall(bytes(_LARGE))

        received: list[int] = []
        with socket.create_server(("127.0.0.1", 0)) as server:
            thread = _beside(serve)
            with socket.create_connection(server.getsockname()) as client:
                client.sendall(bytes([rank]) * _LARGE)
                client.shutdown(socket.SHUT_WR)
                answer = sum(len(piece) for piece in iter(lambda: client.recv(1 << 16), b""))
            thread.join()
        return [sum(received), answer]

    assert on_ranks(worker) == [[_LARGE, _LARGE]] * 2


def test_a_socket_with_a_limit_gives_up_and_a_closed_one_is_an_error() -> None:
    def worker(_: int) -> str:
        end = threading.Event()
        thread = _beside(end.wait)
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0.001)
            try:
                server.accept()
            except TimeoutError as error:
                told = str(error)
        try:
            server.accept()
        except OSError as error:
            return f"{told}, {error.strerror}"
        finally:
            end.set()
            thread.join()
        return "no error"

    assert on_ranks(worker, 1) == ["timed out, Bad file descriptor"]


def test_a_thread_reads_what_the_rank_writes() -> None:
    def worker(rank: int) -> Any:
        reader, writer = os.pipe()
        found: list[Any] = []
        thread = _beside(lambda: found.append(os.read(reader, 9)))
        time_to_run.wait(0.001)
        os.write(writer, b"%d" % rank)
        thread.join()
        thread = _beside(lambda: found.append(select.select([reader], [], [])[0] == [reader]))
        time_to_run.wait(0.001)
        os.write(writer, b"x")
        thread.join()
        found.append(select.select([reader], [], [], 0)[0] == [reader])
        os.close(reader)
        os.close(writer)
        return found

    time_to_run = threading.Event()
    assert on_ranks(worker) == [[b"0", True, True], [b"1", True, True]]


def test_a_thread_waits_for_a_process_that_the_rank_lets_end() -> None:
    def worker(rank: int) -> list[int]:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writer)
            os._exit(os.read(reader, 1)[0])
        found: list[int] = []
        thread = _beside(lambda: found.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
        threading.Event().wait(0.001)
        os.write(writer, bytes([rank + 5]))
        thread.join()
        os.close(reader)
        os.close(writer)
        return found

    assert on_ranks(worker) == [[5], [6]]


def test_a_connection_takes_more_than_it_holds() -> None:
    def worker(rank: int) -> int:
        one, other = multiprocessing.Pipe()
        thread = _beside(lambda: one.send([rank] * (_LARGE // 10)))
        found = other.recv()
        thread.join()
        one.close()
        other.close()
        return len(found)

    assert on_ranks(worker) == [_LARGE // 10] * 2


def test_a_semaphore_of_processes_lets_the_thread_run_that_holds_it() -> None:
    def worker(_: int) -> list[str]:
        lock, order = multiprocessing.get_context("fork").Lock(), []

        def second() -> None:
            with lock:
                order.append("second")

        with lock:
            thread = _beside(second)
            threading.Event().wait(0.001)
            order.append("first")
        thread.join()
        assert lock.acquire(False)
        return order

    assert on_ranks(worker) == [["first", "second"]] * 2


def test_threads_of_a_pool_of_multiprocessing_have_the_device_of_their_rank() -> None:
    def worker(rank: int) -> list[float]:
        def add(number: int) -> float:
            return float((torch.ones(2, device="cuda") * number + rank).sum().item())

        with ThreadPool(2) as pool:
            return pool.map(add, range(3))

    assert on_ranks(worker) == [[0.0, 2.0, 4.0], [2.0, 4.0, 6.0]]


def test_executors_that_nobody_shuts_down_end_with_their_rank() -> None:
    def worker(rank: int) -> list[int]:
        executor = ThreadPoolExecutor(2)
        kept.append(executor)
        executor.submit(late.append, rank)
        return list(executor.map(abs, [-rank]))

    kept: list[Any] = []
    late: list[int] = []
    assert on_ranks(worker) == [[0], [1]]
    assert sorted(late) == [0, 1]


_PROCESSES = """
import multiprocessing, sys
import torch, torch.distributed as dist
from concurrent.futures import ProcessPoolExecutor

class Number:
    def __init__(self, value):
        self.value = value

def add(number):
    return Number(number.value + 1)

if __name__ == "__main__":
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    fork = multiprocessing.get_context("fork")
    pool = fork.Pool(2)  # nobody ends it
    found = [each.value for each in pool.map(add, [Number(10 * rank + i) for i in range(3)])]
    found.append(len(pool.apply(bytes, (3_000_000,))))
    with ProcessPoolExecutor(2, fork) as executor:
        found += [each.value for each in executor.map(add, [Number(rank)])]
    queue = fork.Queue()
    filler = fork.Process(target=queue.put, args=(Number(rank + 20),))
    filler.start()
    found.append(queue.get().value)
    filler.join()
    if "fails" in sys.argv:
        if rank == 1:
            raise ValueError("planted")
        dist.barrier()
    print(rank, found)
"""


def test_pools_of_processes_take_what_the_program_defines(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "program.py"
    script.write_text(_PROCESSES)
    assert not run("--nproc-per-node", 2, script)
    told = capfd.readouterr().out.splitlines()
    assert sorted(told[:2]) == ["0 [1, 2, 3, 3000000, 1, 20]", "1 [11, 12, 13, 3000000, 2, 21]"]
    assert multiprocessing.active_children() == []
    gc.collect()  # Python warns of pools that nobody ends, here and not in another test


def test_pools_of_processes_end_if_their_rank_fails(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "program.py"
    script.write_text(_PROCESSES)
    assert run("--nproc-per-node", 2, script, "fails")
    assert "ValueError: planted" in capfd.readouterr().err
    for process in multiprocessing.active_children():
        process.join()
    gc.collect()


def test_threads_that_all_wait_are_told_of_after_the_limit(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tests that ran before in this process may have left children.
    monkeypatch.setattr(watchdog, "_has_children", lambda: False)
    script = tmp_path / "waits.py"
    script.write_text(
        "import socket, threading, torch\n"
        "def serve():\n    server.accept()\n"
        "with socket.create_server(('127.0.0.1', 0)) as server:\n"
        "    thread = threading.Thread(target=serve, daemon=True)\n"
        "    thread.start()\n    thread.join()\n"
    )
    assert run("--watchdog", 0.2, script)
    told = capfd.readouterr().err
    assert "[K5] nobody has moved for the watchdog's 0.2 s of wall time" in told
    assert f"serve at {script}:3" in told
    assert f"<module> at {script}:7" in told
