"""`torch.distributed.Work` and its `Future`: handles of asynchronous operations."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from kernbench.des import Event
from kernbench.errors import (
    CallSite,
    KernbenchError,
    OperandError,
    UnsupportedError,
    call_site,
    site_fact,
)
from kernbench.memory import HOST_SIP
from kernbench.process.process import Process, RankLocal, current_process
from kernbench.ranks.transfers import Transfer
from kernbench.ranks.world import world_of
from kernbench.sim_engine.command import Command, Stream
from kernbench.tensors.tensor import Tensor


class Work:
    """`torch.distributed.Work`: an asynchronous operation.

    Args:
        process: The rank that issued the operation.
        command: The operation's command.
        outputs: Tensors that the operation writes.
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
        # Copied now: what the stream waits for later does not come before this operation.
        self._seen: Final = {**command.stream.seen, command.stream: command.number}

    @property
    def done(self) -> Event:
        """Event of the operation's completion."""
        return self._command.done

    @property
    def command(self) -> Command:
        """The operation's command."""
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
        # Forget the handle: it would keep its output tensors alive.
        world_of(process).unwaited.get(process.rank, {}).pop(self, None)
        if command.stream.sip == HOST_SIP:
            process.wait(command.done)
            process.learn(self._seen)
            return True
        stream = process.current_stream(command.stream.sip)
        if not process.ordered(stream, command.stream, command.number):
            stream.waits.append(command.done)
            stream.learn(self._seen)
        if self._blocks_host:
            process.wait(command.done, "stream")
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
        """Returns the tensors that the operation writes; call `wait` before reading them."""
        return list(self._outputs)

    def _source_rank(self) -> int:
        """Returns the sender's rank in the group; of a receive from any rank the host waits for it.

        Raises:
            OperandError: If the operation is no receive.
        """
        process, command = current_process(), self._command
        args = command.args or {}
        peer = args.get("peer")
        if command.name != "recv" or "peer" not in args:
            raise OperandError(
                f"work._source_rank() of {command.name}: only a receive has a source",
                [site_fact(call_site())],
            )
        if peer is None:
            assert isinstance(command.part, Transfer)
            peer = command.part.wait_for_source(process)
        place: int = world_of(process).groups[args["group"]].place(peer)
        return place

    def get_future(self) -> "Future":
        """Returns the operation as a `Future`."""
        return Future(self, self.result())


_FUTURES: Final[RankLocal[dict[int, Stream]]] = RankLocal("streams of futures", lambda _: {})
"""By device, the stream that callbacks of futures run on."""


class Future:
    """`torch.futures.Future` of an operation, or of what a callback made of it.

    Args:
        work: Operation that must be over; None if a callback has made the value already.
        value: The value, if a callback has made it.
    """

    def __init__(self, work: Work, value: Any) -> None:
        self._work = work
        self._value = value

    def done(self) -> bool:
        """Returns whether the operation is over at the host's time. May wait."""
        return self._work.is_completed()

    def wait(self) -> Any:
        """Makes the current stream wait and returns the value; the host does not wait."""
        self._work.wait()
        return self._value

    def value(self) -> Any:
        """Returns the value; call `wait` before reading its tensors."""
        return self._value

    def add_done_callback(self, callback: "Callable[[Future], Any]") -> None:
        """Calls `callback` as `then` does, and drops the callback's result.

        Raises:
            UnsupportedError: For an operation on tensors of the host.
        """
        self.then(callback)

    def then(self, callback: "Callable[[Future], Any]") -> "Future":
        """Calls `callback` with this future, and returns a future of the callback's result.

        The callback is called at once. Its commands go to a stream of their own, behind the
        operation, so neither the host nor the current stream waits for them.

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
    """The future that a callback is given: the callback's stream has waited for the operation."""

    def done(self) -> bool:
        """See `Future`."""
        return True


class _Derived(Future):
    """The future of a callback's result, which the callback's own stream computes."""

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
    """Result of an asynchronous call inside a coalescing block, whose operation is issued later."""

    def __init__(self) -> None:
        self._site: Final[CallSite | None] = call_site()

    def __getattr__(self, name: str) -> Any:
        raise KernbenchError(
            f"work.{name} of an operation that is coalesced with others",
            [site_fact(call_site()), site_fact(self._site, "noted down at")],
            hint="wait for all of them: `with _coalescing_manager(async_ops=True) as cm: ...`, "
            "then cm.wait()",
        )
