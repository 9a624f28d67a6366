"""`torch.distributed.Work` and its `Future`: handles of asynchronous operations."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from kernbench.des import Event
from kernbench.errors import CallSite, KernbenchError, UnsupportedError, call_site, site_fact
from kernbench.memory import HOST_SIP
from kernbench.process.process import Process, RankLocal, current_process
from kernbench.ranks.world import world_of
from kernbench.sim_engine.command import Command, Stream
from kernbench.tensors.tensor import Tensor


class Work:
    """`torch.distributed.Work`: an asynchronous operation.

    Args:
        process: Who issued it.
        command: What it does on the device.
        outputs: Tensors that it writes.
        blocks_host: Whether `wait` makes the host wait too, as for a barrier.
    """

    def __init__(
        self,
        process: Process,
        command: Command,
        outputs: Sequence[Tensor] = (),
        *,
        blocks_host: bool = False,
    ) -> None:
        self._process = process
        self._command = command
        self._outputs = outputs
        self._blocks_host = blocks_host
        # Now: what its stream is put behind later does not come before it.
        self._seen: Final = {**command.stream.seen, command.stream: command.number}

    @property
    def done(self) -> Event:
        """Its completion."""
        return self._command.done

    @property
    def command(self) -> Command:
        """What runs on the communication stream."""
        return self._command

    def wait(self, timeout: object = None) -> bool:
        """Makes the current stream wait for the operation; the host goes on.

        Only the `Work` of a barrier, or of tensors on the host, makes the host wait too. Waiting
        again is allowed, and costs nothing.

        Args:
            timeout: Ignored by design: a hang is found when it happens, not after a time.

        Returns:
            True.
        """
        del timeout
        process = current_process()
        command = self._command
        # Who remembers the work holds its outputs.
        world_of(process).unwaited.get(process.rank, {}).pop(self, None)
        if command.stream.sip == HOST_SIP:
            process.wait(command.done)
            process.learn(self._seen)
            return True
        stream = process.current_stream(command.stream.sip)
        if not process.ordered(stream, command):
            stream.waits.append(command.done)
            stream.learn(self._seen)
        if self._blocks_host:
            process.wait(command.done)
            process.learn(self._seen)
        return True

    def synchronize(self) -> None:
        """Does what `wait` does."""
        self.wait()

    def block_current_stream(self) -> None:
        """Does what `wait` does."""
        self.wait()

    def is_completed(self) -> bool:
        """Returns whether the operation is over at the host's time. May wait."""
        process = current_process()
        host = process.host
        host.poll(process.engine.dispatch_ps, self._command.done)
        command = self._command
        time = command.done.time
        if time is None or time > host.clock:
            return False
        process.learn(self._seen)
        return True

    def is_success(self) -> bool:
        """Returns whether the operation is over and did not fail. May wait."""
        return self.is_completed() and not self._command.stream.faulted

    def exception(self) -> None:
        """Returns None: an operation that fails is raised in its rank."""

    def result(self) -> list[Tensor]:
        """Returns the tensors that the operation writes; reading them needs a `wait` before."""
        return list(self._outputs)

    def get_future(self) -> "Future":
        """Returns what `torch.futures` would make of it."""
        return Future(self, self.result())


_FUTURES: Final[RankLocal[dict[int, Stream]]] = RankLocal("streams of futures", lambda _: {})
"""By device, the stream that callbacks of futures run on."""


class Future:
    """`torch.futures.Future` of an operation, or of what a callback made of it.

    Args:
        work: What must be over; None if a callback has made the value already.
        value: What it holds then.
    """

    def __init__(self, work: Work, value: Any) -> None:
        self._work = work
        self._value = value

    def done(self) -> bool:
        """Returns whether the operation is over at the host's time. May wait."""
        return self._work.is_completed()

    def wait(self) -> Any:
        """Makes the current stream wait, not the host, and returns the value."""
        self._work.wait()
        return self._value

    def value(self) -> Any:
        """Returns the value; reading its tensors needs a `wait` before."""
        return self._value

    def add_done_callback(self, callback: "Callable[[Future], Any]") -> None:
        """Calls `callback` as `then` does, and forgets what it returns.

        Raises:
            UnsupportedError: For an operation on tensors of the host.
        """
        self.then(callback)

    def then(self, callback: "Callable[[Future], Any]") -> "Future":
        """Calls `callback` with this future, and returns a future of what it returns.

        The callback is called at once. What it issues goes to a stream of its own, behind the
        operation, so neither the host nor the current stream waits for it.

        Raises:
            UnsupportedError: For an operation on tensors of the host.
        """
        process = current_process()
        sip = self._work.command.stream.sip
        if sip == HOST_SIP:
            raise UnsupportedError(
                "then() on the future of an operation between hosts is not simulated",
                [site_fact(call_site())],
                hint="wait() for it, then go on",
            )
        before = process.current_stream(sip)
        streams = _FUTURES.of(process)
        if sip not in streams:
            streams[sip] = process.new_stream(sip)
        stream = streams[sip]
        process.set_stream(stream)
        try:
            value = callback(_Reached(self._work, self.wait()))
        finally:
            process.set_stream(before)
        return _Derived(self._work, value, stream)


class _Reached(Future):
    """What a callback is given: an operation that its stream has waited for."""

    def done(self) -> bool:
        """See `Future`."""
        return True


class _Derived(Future):
    """What a callback has made, on a stream of its own."""

    def __init__(self, work: Work, value: Any, stream: Any) -> None:
        super().__init__(work, value)
        self._stream = stream
        self._tail: Event | None = stream.tail
        self._seen = {**stream.seen, stream: stream.count}

    def done(self) -> bool:
        """See `Future`."""
        tail, host = self._tail, current_process().host
        return super().done() and (
            tail is None or (tail.time is not None and tail.time <= host.clock)
        )

    def wait(self) -> Any:
        """See `Future`."""
        super().wait()
        stream = current_process().current_stream(self._stream.sip)
        if self._tail is not None and stream is not self._stream:
            stream.waits.append(self._tail)
            stream.learn(self._seen)
        return self._value


class IllegalWork:
    """What an operation returns that is only noted down: it is issued with others, later."""

    def __init__(self) -> None:
        self._site: Final[CallSite | None] = call_site()

    def __getattr__(self, name: str) -> Any:
        raise KernbenchError(
            f"work.{name} of an operation that is coalesced with others",
            [site_fact(call_site()), site_fact(self._site, "noted down at")],
            hint="wait for all of them: `with _coalescing_manager(async_ops=True) as cm: ...`, "
            "then cm.wait()",
        )
