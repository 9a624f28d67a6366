"""One process: whatever a request does to it, the parent gets an answer or a typed failure."""

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from kernbench.workers.failing import CaseFailed, PoolDied, PoolTimeout, ProtocolError, WorkerError
from kernbench.workers.worker import Worker

pytestmark = pytest.mark.usefixtures("short_waits")

HANDLERS = "worker_handlers"

HANGS = {
    "Python": "while True: pass",
    "a system call": "import time; time.sleep(1000)",
    "C, holding the interpreter": "import ctypes; ctypes.PyDLL(None).sleep(1000)",
}


def run(worker: Worker, code: str, timeout_s: float | None = 60.0, **names: Any) -> Any:
    """Lets a worker run code; returns its `answer`."""
    return worker.call("execute", timeout_s, code=dedent(code), **names)


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker(HANDLERS, echo=False) as fresh:
        yield fresh


@pytest.fixture(scope="module")
def lasting() -> Iterator[Worker]:
    """A worker of several tests, none of which may harm it."""
    with Worker(HANDLERS) as kept:
        yield kept


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """A named pipe, which tells who has opened it to write when the last of them has ended."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def wait_for_end(fifo: Path, meanwhile: Callable[[], object] = lambda: None) -> bytes:
    """Returns what was written to a named pipe, once all who had opened it have ended."""
    with fifo.open("rb") as pipe:
        first = pipe.read(1)
        meanwhile()
        return first + pipe.read()


def test_a_request_runs_elsewhere(lasting: Worker) -> None:
    pid = run(lasting, "import os; answer = {'pid': os.getpid(), 'group': os.getpgrp()}")
    assert (pid["pid"], pid["group"]) == (lasting.pid, lasting.pid)
    assert lasting.pid != os.getpid()
    assert not lasting.busy


def test_a_request_has_its_limit(lasting: Worker) -> None:
    told = run(lasting, "answer['limit'] = timeout_s", 45.5)
    assert told["limit"] == 45.5


def test_a_failed_request_leaves_the_worker_alive(lasting: Worker) -> None:
    with pytest.raises(CaseFailed, match="ZeroDivisionError") as caught:
        run(lasting, "1 / 0")
    assert caught.value.response["ok"] is False
    with pytest.raises(CaseFailed, match="SystemExit: 3"):
        run(lasting, "import sys; sys.exit(3)")
    with pytest.raises(CaseFailed, match="got fly"):
        lasting.call("fly")
    assert lasting.call("ping")["ok"] is True


def test_modules_are_found_as_in_the_parent(lasting: Worker) -> None:
    path = run(lasting, "import sys; answer = {'path': sys.path}")["path"]
    assert path == [folder or os.getcwd() for folder in sys.path]


def test_the_environment_may_be_given() -> None:
    with Worker(HANDLERS, environment={"ONLY": "this"}) as given:
        there = run(given, "import os; answer = dict(os.environ)")
    assert there["ONLY"] == "this"
    assert "PATH" not in there


MEGABYTE = 1 << 20


@pytest.mark.parametrize(
    "code",
    [
        "print('x' * size)",
        "import os; os.write(1, b'x' * size)",
        "import ctypes; c = ctypes.CDLL(None); c.write(1, b'x' * size, size)",
        "import sys; sys.__stdout__.write('x' * size + chr(10))",
        """
        import subprocess, sys
        subprocess.run([sys.executable, "-ISc", f"print('x' * {size})"], check=True)
        """,
        "import os; os.system('head -c 1048576 /dev/zero')",
        'print(\'\\n\' * (size // 2) + \'{"v": 1, "id": 1, "ok": false}\\n\')',
    ],
    ids=["Python", "descriptor", "C", "__stdout__", "child", "shell", "lines"],
)
def test_a_megabyte_on_descriptor_1_breaks_nothing(
    lasting: Worker, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(lasting, code, size=MEGABYTE)
    assert lasting.call("ping")["ok"] is True
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err) >= MEGABYTE // 2


def test_what_a_request_has_printed_is_echoed_before_its_answer(
    lasting: Worker, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(100):
        run(lasting, "import os; print(number); os.write(2, b'raw' + bytes([10]))", number=number)
        assert capsys.readouterr().err == f"{number}\nraw\n"


def test_prints_may_be_kept_for_reports_only(capsys: pytest.CaptureFixture[str]) -> None:
    with Worker(HANDLERS, echo=False) as silent, pytest.raises(PoolDied) as caught:
        run(silent, "import os; print('a word'); os._exit(0)")
    assert capsys.readouterr().err == ""
    assert caught.value.tail == "a word\n"


class Closed:
    """A stream that takes nothing, as that of a capture that has ended."""

    def write(self, text: str) -> None:
        raise ValueError("I/O operation on closed file.")


@pytest.mark.parametrize("stream", [Closed(), None])
def test_a_worker_goes_on_when_its_echo_cannot_be_written(
    stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Worker(HANDLERS) as loud:
        monkeypatch.setattr(sys, "stderr", stream)
        run(loud, "print('x' * size)", size=MEGABYTE)
        assert loud.call("ping")["ok"] is True


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.stdout.close()",
        "import sys; sys.stderr.close()",
        "import sys; sys.stdout = None",
        "import sys; sys.stdout = object()",
        "import os; os.close(1)",
        "import os; os.close(0)",
    ],
)
def test_a_request_may_close_its_streams(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Worker(HANDLERS) as harmed:
        run(harmed, code)
        run(harmed, "import sys; sys.stderr.write('heard' + chr(10))")
        assert capsys.readouterr().err.endswith("heard\n")
        assert harmed.call("ping")["ok"] is True


def test_closed_streams_print_again(worker: Worker) -> None:
    run(worker, "import sys; sys.stdout.close(); sys.stderr.close()")
    run(worker, "print('heard')")
    with pytest.raises(PoolDied) as caught:
        run(worker, "import os; os._exit(1)")
    assert caught.value.tail == "heard\n"


def test_a_request_that_closes_all_descriptors_is_a_death(worker: Worker) -> None:
    with pytest.raises(PoolDied):
        run(worker, "import os; os.closerange(0, 100)")


def test_user_code_reads_nothing(lasting: Worker) -> None:
    code = """
    import os, subprocess, sys
    answer = {
        "own": sys.stdin.read(),
        "raw": os.read(0, 10).decode(),
        "child": subprocess.run(["cat"], stdout=subprocess.PIPE, check=True).stdout.decode(),
    }
    """
    got = run(lasting, code)
    assert (got["own"], got["raw"], got["child"]) == ("", "", "")
    with pytest.raises(CaseFailed, match="EOFError"):
        run(lasting, "input()")


def test_megabytes_go_both_ways(lasting: Worker) -> None:
    text = "x" * (3 * MEGABYTE)
    assert run(lasting, "answer = {'text': text + text}", text=text)["text"] == text + text


def test_the_first_request_may_be_large() -> None:
    with Worker(HANDLERS) as fresh:
        assert run(fresh, "answer = {'size': len(text)}", text="x" * MEGABYTE)["size"] == MEGABYTE


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("import os; os._exit(7)", "exit code 7"),
        ("import os; os._exit(0)", "exit code 0"),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("import os; os.kill(os.getpid(), 15)", "killed by SIGTERM"),
        ("import os; os.kill(os.getpid(), 40)", "killed by signal 40"),
    ],
)
def test_a_death_is_told_with_its_last_words(worker: Worker, code: str, how: str) -> None:
    with pytest.raises(PoolDied) as caught:
        run(worker, "import os; os.write(2, b'last words')\n" + code)
    assert caught.value.reason == "died"
    assert str(caught.value) == (
        f"the worker has ended before its answer\n  {how}\n"
        "--- the end of its standard error ---\nlast words"
    )
    assert not worker.alive
    with pytest.raises(PoolDied, match="before it was asked"):
        worker.call("ping")


def test_a_crash_in_c_tells_where(worker: Worker) -> None:
    with pytest.raises(PoolDied) as caught:
        run(worker, "import ctypes; ctypes.string_at(0)")
    assert "killed by SIGSEGV" in str(caught.value)
    assert "in string_at" in caught.value.tail


def test_the_tail_is_short(worker: Worker) -> None:
    with pytest.raises(PoolDied) as caught:
        run(worker, "import os; print('x' * size); print('the end'); os._exit(1)", size=MEGABYTE)
    assert len(caught.value.tail) == 4000
    assert caught.value.tail.endswith("x\nthe end\n")


@pytest.mark.parametrize("limit", [1e12, float("inf")])
def test_a_limit_may_be_longer_than_the_system_counts(lasting: Worker, limit: float) -> None:
    assert lasting.call("ping", limit)["ok"] is True


def test_a_worker_that_died_idle_is_noticed(worker: Worker) -> None:
    assert worker.call("ping")["ok"] is True
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(PoolDied) as caught:
        worker.call("ping")
    assert "killed by SIGKILL" in str(caught.value)


def told(worker: Worker, fifo: Path, code: str, expected: str) -> str:
    """Returns the tail of a hang, whose limit ends once it has opened a named pipe.

    The wait for the stacks ends when the expected text is there, since any limit may be too short.
    """

    def wait(seconds: float) -> None:
        while expected not in worker._drain.tail():
            worker._drain._poll(10)
            worker._drain.take()
        worker._wait = real_wait  # type: ignore[method-assign]

    worker.call("ping")
    real_wait, worker._wait = worker._wait, wait  # type: ignore[method-assign, assignment]
    worker.ask("execute", 60.0, code=f"open({str(fifo)!r}, 'w').close()\n{code}")
    fifo.open("rb").close()
    worker._limit(0.01)
    with pytest.raises(PoolTimeout) as caught:
        worker.answer()
    assert not worker.alive
    assert caught.value.reason == "timeout"
    assert caught.value.summary == "no answer in 0.01 s of wall time"
    return caught.value.tail


@pytest.mark.parametrize("where", HANGS)
def test_a_hang_ends_with_its_stacks(worker: Worker, fifo: Path, where: str) -> None:
    last = "in stuck" if "C," in where else "rank 3 waits for news\n"
    tail = told(worker, fifo, f"def stuck():\n    {HANGS[where]}\nstuck()", last)
    assert "in stuck" in tail
    assert "Thread" in tail, "the one that reads requests, too"
    assert "C," in where or tail.endswith(last)


def test_a_hang_that_ignores_signals_is_killed(worker: Worker, fifo: Path) -> None:
    code = "import signal\nfor s in (10, 15): signal.signal(s, signal.SIG_IGN)\nwhile True: pass"
    told(worker, fifo, code, "")
    assert worker._process.returncode == -signal.SIGKILL


def test_stacks_that_cannot_be_told_are_told_so(worker: Worker, fifo: Path) -> None:
    code = "import worker_handlers\nworker_handlers.tell = lambda: 1 / 0\nwhile True: pass"
    told(worker, fifo, code, "ZeroDivisionError: division by zero")


def test_the_limit_of_a_request_begins_when_the_process_is_up(fifo: Path) -> None:
    with Worker(HANDLERS) as fresh:
        fresh.ask("execute", 5.0, code=f"open({str(fifo)!r}, 'w').close()")
        assert fresh.left_s is not None
        assert fresh.left_s > 5.0
        while not fresh._up:
            fresh.poll()
        assert fresh.left_s <= 5.0
        fifo.open("rb").close()
        fresh.answer()
        assert fresh.call("ping")["ok"] is True
        assert fresh.left_s is None


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module of handlers; returns its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text: str) -> str:
        (tmp_path / "made_up_handlers.py").write_text(text)
        return "made_up_handlers"

    return write


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import sys; sys.exit('refused')", "refused"),
        ("HANDLER = {}", "has no attribute 'HANDLERS'"),
        ("import not_there", "No module named 'not_there'"),
    ],
)
def test_a_module_that_cannot_be_used(module: Callable[[str], str], text: str, said: str) -> None:
    with Worker(module(text), echo=False) as fresh, pytest.raises(PoolDied) as caught:
        fresh.call("ping")
    assert "exit code 1" in caught.value.facts
    assert said in caught.value.tail


def test_a_module_may_print(module: Callable[[str], str]) -> None:
    name = module("import os; print('x' * 100_000); os.system('echo y'); HANDLERS = {}")
    with Worker(name, echo=False) as fresh:
        assert fresh.call("ping")["ok"] is True


def test_a_module_that_hangs(module: Callable[[str], str], fifo: Path) -> None:
    code = f"open({str(fifo)!r}, 'w').close()\nwhile True: pass"
    with Worker(module(code), echo=False) as fresh:
        fifo.open("rb").close()
        fresh._limit(0.01)
        with pytest.raises(PoolTimeout) as caught:
            fresh.call("ping", text="x" * MEGABYTE)
    assert caught.value.summary == "a worker has not come up in 0.01 s of wall time"
    assert not fresh.alive


FORKS = """
import os
if os.fork() == 0:
    {child}
answer = {{"pid": os.getpid()}}
"""


@pytest.mark.parametrize("child", ["pass", "1 / 0", "import sys; sys.exit(1)", "os._exit(0)"])
def test_a_forked_child_that_comes_back_does_not_answer(worker: Worker, child: str) -> None:
    for _ in range(3):
        assert run(worker, FORKS.format(child=child))["pid"] == worker.pid


def test_children_of_a_worker_that_died_are_killed(worker: Worker, fifo: Path) -> None:
    code = f"""
    import os, signal
    if os.fork() == 0:
        with open({str(fifo)!r}, "wb", 0) as pipe:  # it holds standard error, too
            pipe.write(b"up")
            signal.pause()
    """
    run(worker, code)

    def die() -> None:
        with pytest.raises(PoolDied, match="exit code 3"):
            run(worker, "import os; os._exit(3)")

    assert wait_for_end(fifo, die) == b"up"


@pytest.mark.parametrize("end", ["close", "kill"])
def test_children_end_with_their_worker(end: str, fifo: Path) -> None:
    worker = Worker(HANDLERS, echo=False)
    command = f"exec 3>{fifo}; echo up >&3; cat <&0; exec sleep 1000"
    code = "import subprocess; subprocess.Popen(['sh', '-c', command], stdin=subprocess.DEVNULL)"
    run(worker, code, command=command)
    assert wait_for_end(fifo, getattr(worker, end)) == b"up\n"


def test_a_child_that_has_left_the_group_holds_nobody_up(worker: Worker, fifo: Path) -> None:
    code = f"""
    import os, signal
    if os.fork() == 0:
        os.setsid()
        with open({str(fifo)!r}, "wb", 0) as pipe:
            pipe.write(str(os.getpid()).encode() + b" ")
            signal.pause()
    """
    run(worker, code)
    with fifo.open("rb") as pipe:
        stray = b""
        while not stray.endswith(b" "):
            stray += pipe.read(1)
        with pytest.raises(PoolDied) as caught:
            run(worker, "import os; os.write(2, b'last words\\n'); os._exit(3)")
        assert caught.value.tail == "last words\n"
        os.kill(int(stray), signal.SIGKILL)
        assert pipe.read() == b""


def test_a_child_of_c_code_cannot_hide_a_death(
    worker: Worker, fifo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has been forked without Python's knowledge, so it holds the stream of the answers."""
    code = f"""
    import ctypes, os, signal
    if ctypes.PyDLL(None).fork() == 0:
        with open({str(fifo)!r}, "wb", 0) as pipe:
            pipe.write(b"up")
            signal.pause()
    """
    monkeypatch.setattr("kernbench.workers.worker.LOOK_S", 0.05)
    run(worker, code)

    def die() -> None:
        with pytest.raises(PoolDied, match="exit code 3"):
            run(worker, "import os; os._exit(3)", timeout_s=None)

    assert wait_for_end(fifo, die) == b"up"


PARENT = """
import sys
from kernbench.workers.worker import Worker

worker = Worker("worker_handlers")
try:
    worker.call("execute", code=sys.argv[1])
finally:
    worker.close()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_worker_ends_with_its_parent(fifo: Path, number: signal.Signals) -> None:
    code = f"pipe = open({str(fifo)!r}, 'wb', 0); pipe.write(b'up')\nwhile True: pass"
    path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, code],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.PIPE,
    )
    with parent:
        assert wait_for_end(fifo, lambda: parent.send_signal(number)) == b"up"
        assert parent.stderr is not None
        told = parent.stderr.read()
    assert parent.returncode == -number
    assert (b"KeyboardInterrupt" in told) == (number == signal.SIGINT)


def test_a_worker_that_nobody_asks_ends_with_its_parent() -> None:
    worker = Worker(HANDLERS)
    worker.call("ping")
    worker._requests.close()
    assert worker._process.wait(60) == 0
    worker.kill()


def test_a_thread_that_a_request_has_left_does_not_keep_an_orphan() -> None:
    worker = Worker(HANDLERS)
    code = "import threading; threading.Thread(target=threading.Event().wait).start()"
    run(worker, code)
    worker._requests.close()
    assert worker._process.wait(60) == -signal.SIGKILL
    worker.kill()


def test_closing_lets_the_process_end_by_itself(fifo: Path) -> None:
    worker = Worker(HANDLERS)
    run(
        worker,
        "import atexit; atexit.register(lambda: open(path, 'w').write('bye'))",
        path=str(fifo),
    )
    closing = threading.Thread(target=worker.close)
    closing.start()
    assert wait_for_end(fifo) == b"bye"
    closing.join()
    assert worker._process.returncode == 0
    worker.close()
    worker.kill()


def test_closing_does_not_wait_for_ever() -> None:
    worker = Worker(HANDLERS)
    run(worker, "import threading; threading.Thread(target=threading.Event().wait).start()")
    worker.close(0.1)
    assert worker._process.returncode == -signal.SIGKILL


def test_a_busy_worker_is_killed_when_it_is_closed() -> None:
    worker = Worker(HANDLERS)
    worker.ask("execute", code="while True: pass")
    worker.close()
    assert worker._process.returncode == -signal.SIGKILL


def test_an_interrupt_in_the_parent_leaves_a_worker_that_can_be_closed(fifo: Path) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    worker = Worker(HANDLERS)
    code = f"open({str(fifo)!r}, 'w').close()\nwhile True: pass"
    before = signal.signal(signal.SIGUSR2, interrupted)
    main = threading.get_ident()

    def interrupt() -> None:
        fifo.open("rb").close()  # it runs
        signal.pthread_kill(main, signal.SIGUSR2)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            worker.call("execute", code=code)
    finally:
        signal.signal(signal.SIGUSR2, before)
        thread.join()
    worker.close()
    assert worker._process.returncode == -signal.SIGKILL


def test_ctrl_c_at_the_terminal_is_for_the_parent(lasting: Worker) -> None:
    assert os.getsid(lasting.pid) == lasting.pid
    assert os.getsid(0) != lasting.pid


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EMFILE, errno.EAGAIN, errno.ENOMEM])
def test_a_process_that_cannot_be_started(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(PoolDied, match="a worker process cannot be started") as caught:
        Worker(HANDLERS)
    assert os.strerror(number) in str(caught.value)


def test_a_missing_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/not/there/python")
    with pytest.raises(PoolDied, match="No such file or directory: '/not/there/python'"):
        Worker(HANDLERS)


def test_no_descriptors_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = os.open(os.devnull, os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 2, hard))
    try:
        with pytest.raises(PoolDied, match="Too many open files"):
            Worker(HANDLERS)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(used)


def test_a_thread_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    real = subprocess.Popen

    def note(*args: Any, **kwargs: Any) -> Any:
        started.append(real(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", note)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(PoolDied, match="can't start new thread"):
        Worker(HANDLERS)
    assert started[0].returncode == -signal.SIGKILL


FAKE = """\
import sys
for line in {lines!r}:
    sys.stdout.write(line)
    sys.stdout.flush()
sys.stdin.readline()
REST
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Worker]]:
    """Makes a worker whose process writes what the test says, whatever it is asked."""
    made = []

    def make(*lines: str, rest: str = "sys.stdin.read()") -> Worker:
        file = tmp_path / "fake.py"
        file.write_text(FAKE.format(lines=lines).replace("REST", rest))
        monkeypatch.setattr("kernbench.workers.worker._START", file)
        made.append(Worker("none", echo=False))
        return made[-1]

    yield make
    for worker in made:
        worker.kill()


HELLO = '{"v": 1, "hello": true, "pid": 7}\n'


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["Hello!\n"], "expected a line of JSON, got 'Hello!'"),
        ([HELLO, "a banner\n"], "expected a line of JSON, got 'a banner'"),
        (['{"v": 2, "hello": true}\n'], "expected protocol version 1"),
        (['{"v": 1, "id": 1, "ok": true}\n'], "expected the worker's hello"),
        ([HELLO, '{"v": 1, "id": 2, "ok": true}\n'], "expected the response to 1, got {'id': 2"),
        ([HELLO, '{"v": 1, "id": null, "ok": false}\n'], "expected the response to 1"),
        ([HELLO, f'{{"v": 1, "id": "{"x" * 9999}"}}\n'], "expected the response to 1"),
    ],
)
def test_another_protocol_is_told_and_shown(
    fake: Callable[..., Worker], lines: list[str], said: str
) -> None:
    worker = fake(*lines)
    with pytest.raises(ProtocolError) as caught:
        worker.call("ping")
    assert said in caught.value.summary
    assert len(caught.value.summary) < 400
    assert not worker.alive


def test_a_stream_that_ends_within_a_line(fake: Callable[..., Worker]) -> None:
    worker = fake(HELLO, '{"v": 1, "id"', rest="")
    with pytest.raises(PoolDied) as caught:
        worker.call("ping")
    assert str(caught.value) == "the worker has ended within its answer\n  exit code 0"


def test_lines_in_parts_and_several_in_one(fake: Callable[..., Worker]) -> None:
    first, second = (f'{{"v": 1, "id": {number}, "ok": true}}\n' for number in (1, 2))
    worker = fake(HELLO[:5], HELLO[5:] + first[:9], first[9:] + second)
    assert worker.call("ping")["id"] == 1
    assert worker.call("ping")["id"] == 2


def test_a_partial_line_does_not_block_past_the_limit(fake: Callable[..., Worker]) -> None:
    worker = fake(HELLO, '{"v": 1, ')
    with pytest.raises(PoolTimeout, match=r"no answer in 0\.05 s"):
        worker.call("ping", 0.05)


def test_a_request_that_nobody_reads_is_late(fake: Callable[..., Worker]) -> None:
    one = '{"v": 1, "id": 1, "ok": true}\n'
    worker = fake(HELLO, one, rest="import time; time.sleep(1000)")
    worker.call("ping")
    with pytest.raises(PoolTimeout, match=r"no answer in 0\.05 s"):
        worker.call("ping", 0.05, text="x" * MEGABYTE)
    assert not worker.busy


def test_errors_are_told_apart_by_type() -> None:
    kinds = {PoolDied: "died", PoolTimeout: "timeout", ProtocolError: "protocol"}
    assert {kind: kind.reason for kind in kinds} == kinds
    assert all(issubclass(kind, WorkerError) for kind in kinds)
    assert not issubclass(CaseFailed, WorkerError)
