"""The parent's side of one worker process."""

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from kernbench.workers.failing import (
    CaseFailed,
    Message,
    PoolDied,
    PoolTimeout,
    ProtocolError,
    WorkerError,
)
from kernbench.workers.lines import LineBuffer, decode, encode, shortened

_START: Final = Path(__file__).with_name("start.py")

_TAIL_LINES: Final = 200
_TAIL_CHARACTERS: Final = 4000
_CHUNK: Final = 1 << 16
"""Bytes of a read: as many as a pipe holds."""

LOOK_S: Final = 1.0
"""Seconds after which to look whether a process has died whose streams some other one holds."""

_STACKS_S = 1.0
"""Seconds that a worker has to write its stacks, before its process group is terminated."""

_TERMINATE_S = 5.0
"""Seconds that a process group has to end after SIGTERM, before it is killed."""

_LAST_WORDS_S = 1.0
"""Seconds to wait for the end of a standard error that a process outside of the group may hold."""

_TOO_EARLY: Final = "the worker has ended before it was asked"


class Worker:
    """A process that answers requests, one at a time.

    Its standard output and error, and those of its children, are drained and echoed; its responses
    come over a stream of their own. The constructor does not wait for the process: the first answer
    does. One thread at a time may use a worker.

    Args:
        module: Name of the module with its handlers, see `serving.serve`.
        environment: Its environment variables; None for those of this process.
        echo: Whether to write what it prints to `sys.stderr`.
        start_s: Seconds of wall time in which it must come up.

    Raises:
        PoolDied: If the system cannot start a process.

    Attributes:
        pid: Its process, and its process group.
        busy: Whether it has been asked, and has not answered.
    """

    def __init__(
        self,
        module: str,
        *,
        environment: Mapping[str, str] | None = None,
        echo: bool = True,
        start_s: float = 60.0,
    ) -> None:
        try:
            path = [folder or os.getcwd() for folder in sys.path if isinstance(folder, str)]
            self._process = subprocess.Popen(
                [sys.executable, str(_START), module, json.dumps(path)],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=None if environment is None else dict(environment),
                start_new_session=True,  # Ctrl-C is for the parent; children can be killed, too
            )
        except OSError as error:
            raise PoolDied(f"a worker process cannot be started: {error}") from error
        self.pid: Final = self._process.pid
        self.busy = False
        self._up = False
        self._over = False
        self._leaving = False
        self._asked = 0
        self._timeout_s: float | None = None
        self._limit(start_s)
        self._lines = LineBuffer()
        self._ready: deque[bytes] = deque()
        self._outcome: Message | WorkerError | None = None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests: Final = self._process.stdin
        self._responses: Final = self._process.stdout
        # So that a request that nobody reads is late, and does not block.
        os.set_blocking(self._requests.fileno(), False)
        try:
            self._drain = _Drain(self._process, echo)
        except RuntimeError as error:
            self._signal(signal.SIGKILL)
            self._process.communicate()
            raise PoolDied(f"a worker process cannot be drained: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.close() if kind is None else self.kill()

    def fileno(self) -> int:
        """Returns the descriptor that is readable when an answer may have come."""
        return self._responses.fileno()

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return not self._over and self._process.poll() is None

    @property
    def left_s(self) -> float | None:
        """Seconds until the answer is late; None if there is no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def ask(self, op: str, timeout_s: float | None = None, **fields: Any) -> None:
        """Sends a request; `answer` returns the response.

        Args:
            op: Name of the handler.
            timeout_s: Seconds of wall time that the answer may take, once the process is up; None
                for no limit.
            fields: Further plain values of the request.

        Raises:
            WorkerError: If the process has gone, or does not take the request in time.
        """
        assert not self.busy, "a worker answers one request at a time"
        if self._over:
            raise PoolDied(_TOO_EARLY)
        self._asked += 1
        line = encode({**fields, "id": self._asked, "op": op, "timeout_s": timeout_s})
        self.busy = True
        self._timeout_s = timeout_s
        if self._up:
            self._limit(timeout_s)
        try:
            self._send(line)
        except (OSError, WorkerError) as error:
            self.busy = False
            known = error if isinstance(error, WorkerError) else PoolDied(_TOO_EARLY)
            raise self._gone(known) from None

    def poll(self) -> bool:
        """Takes what has come, without waiting; returns whether `answer` would not wait now."""
        if self._outcome is None:
            try:
                self._outcome = self._response()
            except WorkerError as error:
                self._outcome = self._gone(error)
        return self._outcome is not None

    def answer(self) -> Message:
        """Returns the response to the latest request; waits for it.

        Raises:
            CaseFailed: If the response says that the request has failed.
            WorkerError: If there is no response; the process is then gone.
        """
        assert self.busy, "there is an answer to what was asked"
        while not self.poll():
            left = self.left_s
            self._readable(LOOK_S if left is None else min(left, LOOK_S))
        outcome, self._outcome, self.busy = self._outcome, None, False
        self._drain.take()  # what it has printed before it answered
        if isinstance(outcome, WorkerError):
            raise outcome
        assert outcome is not None
        if outcome.get("ok") is not True:
            raise CaseFailed(outcome)
        return outcome

    def call(self, op: str, timeout_s: float | None = None, **fields: Any) -> Message:
        """Does `ask`, then `answer`.

        Args:
            op: Name of the handler.
            timeout_s: Seconds of wall time that the answer may take; None for no limit.
            fields: Further plain values of the request.

        Raises:
            CaseFailed: If the response says that the request has failed.
            WorkerError: If there is no response; the process is then gone.
        """
        self.ask(op, timeout_s, **fields)
        return self.answer()

    def dismiss(self, timeout_s: float = 30.0) -> None:
        """Asks the process to end, if it is not busy, and does not wait for that; `close` does.

        Args:
            timeout_s: Seconds of wall time that it has.
        """
        if not self.busy and self.alive:
            with contextlib.suppress(WorkerError):
                self.ask("shutdown", timeout_s)
                self._leaving = True

    def close(self, timeout_s: float = 30.0) -> None:
        """Asks the process to end; kills it if it is busy, or does not end.

        Args:
            timeout_s: Seconds of wall time that it has.
        """
        self.dismiss(timeout_s)
        if self._leaving and not self._over:
            with contextlib.suppress(WorkerError):
                self.answer()
                left = self.left_s
                # Its stream ends with it: `Popen.wait` looks only now and then.
                self._readable(LOOK_S if left is None else min(left, LOOK_S))
                self._wait(self.left_s)
        self.kill()

    def kill(self) -> None:
        """Kills the process and all processes of its group, and waits until it has gone."""
        if self._over:
            return  # by now the number may be that of another group
        self._over = True
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._drain.join()
        self._requests.close()
        self._responses.close()

    # Writing and reading

    def _limit(self, timeout_s: float | None) -> None:
        self._limit_s = timeout_s
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s

    def _late(self) -> PoolTimeout:
        what = "no answer" if self._up else "a worker has not come up"
        return PoolTimeout(f"{what} in {self._limit_s:g} s of wall time")

    def _send(self, line: bytes) -> None:
        room = select.poll()
        room.register(self._requests, select.POLLOUT)
        rest = memoryview(line)
        while rest:
            left = self.left_s
            seconds = LOOK_S if left is None else min(left, LOOK_S)
            if room.poll(math.ceil(seconds * 1000)):
                with contextlib.suppress(BlockingIOError):
                    rest = rest[os.write(self._requests.fileno(), rest) :]
            elif left == 0.0:
                raise self._late()
            elif self._process.poll() is not None:
                raise PoolDied(_TOO_EARLY)

    def _readable(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self, select.POLLIN)
        return bool(poll.poll(math.ceil(seconds * 1000)))

    def _response(self) -> Message | None:
        """Returns the response; None if it has not come, and is not late."""
        while (line := self._next_line()) is not None:
            message = decode(line)
            if self._up:
                if message.get("id") != self._asked:
                    raise ProtocolError(
                        f"expected the response to {self._asked}, got {shortened(message)}"
                    )
                return message
            if message.get("hello") is not True:
                raise ProtocolError(f"expected the worker's hello, got {shortened(message)}")
            self._up = True
            self._limit(self._timeout_s)
        if self.left_s == 0.0:
            raise self._late()
        return None

    def _next_line(self) -> bytes | None:
        """Returns the next line of the private stream; None if its end has not come."""
        while not self._ready:
            # Looked at first: what it has written before its end is there after it.
            ended = self._process.poll() is not None
            if not self._readable(0.0):
                if ended:
                    raise PoolDied("the worker has ended before its answer")
                return None
            data = os.read(self.fileno(), _CHUNK)
            if not data:
                within = "within" if self._lines.partial else "before"
                raise PoolDied(f"the worker has ended {within} its answer")
            self._ready.extend(self._lines.feed(data))
        return self._ready.popleft()

    # The end

    def _gone(self, error: WorkerError) -> WorkerError:
        """Ends the process after a failure, and returns the error with what is known of it."""
        if isinstance(error, PoolTimeout):
            # So that the tail says where it hangs.
            self._process.send_signal(signal.SIGUSR1)
            self._wait(_STACKS_S)
            self._signal(signal.SIGTERM)
            self._wait(_TERMINATE_S)
        elif isinstance(error, PoolDied):
            self._wait(_STACKS_S)  # its streams are closed, so it is about to end
        ended = self._process.poll()
        self.kill()
        facts = []
        if isinstance(error, PoolDied):
            facts.append("its stream was closed" if ended is None else _how_it_ended(ended))
        told = type(error)(error.summary, facts)
        told.tail = self._drain.tail()
        return told

    def _wait(self, seconds: float | None) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def _signal(self, number: int) -> None:
        """Sends a signal to the process group, of which children may live on after the leader."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def _how_it_ended(code: int) -> str:
    """Returns an exit code of `Popen` in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


class _Drain:
    """Reads the standard error of a worker to its end, in a thread, and keeps the last lines."""

    def __init__(self, process: "subprocess.Popen[bytes]", echo: bool) -> None:
        assert process.stderr is not None
        self._stream = process.stderr
        self._echo = echo
        self._last: deque[str] = deque(maxlen=_TAIL_LINES)
        self._lines = LineBuffer(longest=_CHUNK)
        self._lock = threading.Lock()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="kernbench stderr", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Waits a while for the end; a child that lives on may keep the stream open."""
        self._thread.join(_LAST_WORDS_S)

    def tail(self) -> str:
        """Returns the last lines."""
        with self._lock:
            return "".join(self._last)[-_TAIL_CHARACTERS:]

    def take(self) -> None:
        """Takes what has been written so far, in the thread that calls."""
        with self._lock:
            if not self._ended and self._poll(0):
                data = os.read(self._stream.fileno(), _CHUNK)
                self._ended = not data
                self._keep(self._lines.feed(data) if data else self._lines.rest())

    def _run(self) -> None:
        with self._stream:
            while not self._ended:
                self._poll(None)
                self.take()

    def _poll(self, milliseconds: int | None) -> bool:
        poll = select.poll()
        poll.register(self._stream, select.POLLIN)
        return bool(poll.poll(milliseconds))

    def _keep(self, lines: list[bytes]) -> None:
        if not lines:
            return
        texts = [line.decode(errors="replace") + "\n" for line in lines]
        self._last.extend(text[-_TAIL_CHARACTERS:] for text in texts)
        # It may be closed, or not take the characters; that must not stop the worker.
        if self._echo and sys.stderr is not None:
            with contextlib.suppress(Exception):
                sys.stderr.write("".join(texts))
