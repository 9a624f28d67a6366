"""`Work` of PyTorch over commands of this package, and how collectives are called."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final, cast

import torch
import torch.distributed.c10d_logger as c10d_logger
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import Work as _Work
from torch.futures import Future

from kernbench.bridge.base.here import Rank, this_rank
from kernbench.bridge.distributed.futures import Awaited, InHook
from kernbench.bridge.tensors.operands import is_sparse
from kernbench.bridge.tensors.storages import STORAGES, Held, Ref, block_of, let_go
from kernbench.des import Event
from kernbench.distributed.posting import Way
from kernbench.distributed.works import Work
from kernbench.errors import not_simulated
from kernbench.process.process import Process
from kernbench.ranks.at_call import AtCall
from kernbench.ranks.world import world_of
from kernbench.sim_engine.command import Command
from kernbench.tensors.tensor import Tensor

_WATCHDOG: Final = 10**11
"""Picoseconds (100 ms) between looks of `ProcessGroupNCCL`'s watchdog, which lets go the tensors of
a collective for whose handle nobody waits; the next collective frees them."""


class unseen:  # noqa: N801 - reads like a keyword
    """A block whose operations are the bridge's own: no dispatch mode sees them."""

    __slots__ = ("_modes",)

    def __enter__(self) -> None:
        count = torch._C._len_torch_dispatch_stack()
        self._modes = [torch._C._pop_torch_dispatch_stack(None) for _ in range(count)]

    def __exit__(self, *_: object) -> None:
        for mode in reversed(self._modes):
            torch._C._push_on_torch_dispatch_stack(mode)


class SimWork(_Work):
    """`torch.distributed.Work`: an operation of one rank under way.

    Args:
        moved: Settles when the bytes have moved; None if there is nothing to wait for.
        work: The operation in simulated time; None if the stream is behind it already.
        outputs: The tensors that the operation writes.
        used: The storages of all its tensors.
        command: Tells reports what the rank waits for; None: that of `work`.
    """

    def __init__(
        self,
        moved: Event | None,
        work: Work | None,
        outputs: Any,
        used: Sequence[Ref] = (),
        command: Command | None = None,
    ) -> None:
        super().__init__()
        self._command = work.command if command is None and work is not None else command
        self._captured: int | None = None
        self._used = used
        self._moved = moved
        self._work = work
        self._outputs = outputs
        self._future: Any = None

    def _wait_for_numbers(self) -> None:
        moved = self._moved
        if self._captured is not None and this_rank().capture is not None:
            this_rank().capture.waited(self._captured)
        if moved is None or moved.time is not None:
            return
        if self._command is not None:
            # An event of this rank's own, whose label tells reports what the rank waits for.
            shared, moved = moved, Event(self._command)
            shared.when_settled(moved.settle)
        this_rank().process.wait(moved)

    def wait(self, timeout: Any = None) -> bool:
        """Waits for the numbers, which takes no simulated time; the stream waits for the command.

        Args:
            timeout: Ignored by design: a hang is found when it happens, not after a time.
        """
        del timeout
        self._wait_for_numbers()
        if self._work is not None:
            self._work.wait()
            this_rank().hazards.note_waited(self._used)
        return True

    def synchronize(self) -> None:
        """Does what `wait` does."""
        self.wait()

    def block_current_stream(self) -> None:
        """Does what `wait` does."""
        self.wait()

    def is_completed(self) -> bool:
        """Returns whether the operation is over at the host's time. May wait."""
        over = self._work is None or self._work.is_completed()
        return over and (self._moved is None or self._moved.time is not None)

    def is_success(self) -> bool:
        """Returns whether the operation is over; one that fails is raised in its rank."""
        return self.is_completed()

    def exception(self) -> None:
        """Returns None: an operation that fails is raised in its rank."""

    def result(self) -> Any:
        """Returns the tensors that the operation writes."""
        return self._outputs

    def source_rank(self) -> int:
        """Returns the sender's rank in the group, of a receive; may wait."""
        assert self._work is not None
        return self._work._source_rank()

    _source_rank = source_rank

    def get_future(self) -> Any:
        """Returns a future with the numbers, for which it waits.

        C++ code, such as DDP's reducer, waits for a future without giving way to other ranks. In a
        backward pass the stream waits for the command at the end of the pass; elsewhere, when the
        program waits for the future.
        """
        self._wait_for_numbers()
        if self._future is None:
            rank = this_rank()
            by_reducer = rank.ambient or rank.backward
            if self._work is None or (by_reducer and rank.hooked is None):
                self._future = Future()
            else:
                self._future = InHook([self]) if by_reducer else Awaited([self])
            self._future.set_result(self._outputs)
            if by_reducer and self._work is not None:
                rank.outstanding.append(self._work)
                if rank.hooked is None:
                    self.trust()
                else:
                    rank.hooked.append(self)
                kept = [STORAGES[ref.key] for ref in self._used if ref.key in STORAGES]
                rank.stashed.append((rank.process.host.clock + _WATCHDOG, kept))
        return self._future

    def trust(self) -> None:
        """Notes that library code waits in its own way, which nobody sees."""
        if self._captured is not None and this_rank().capture is not None:
            this_rank().capture.trusted.add(self._captured)
        this_rank().hazards.note_waited(self._used, trusted=True)


class SimWorks(SimWork):
    """Several operations of one rank as one.

    Args:
        works: The operations.
    """

    def __init__(self, works: list[SimWork]) -> None:
        super().__init__(None, None, [])
        self._works = works

    def _wait_for_numbers(self) -> None:
        for work in self._works:
            work._wait_for_numbers()

    def wait(self, timeout: Any = None) -> bool:
        """Waits for all operations, as `SimWork.wait` does for one.

        Args:
            timeout: Ignored by design: a hang is found when it happens, not after a time.
        """
        del timeout
        for work in self._works:
            work.wait()
        return True

    def is_completed(self) -> bool:
        """Returns whether all operations are over at the host's time. May wait."""
        return all(work.is_completed() for work in self._works)

    def trust(self) -> None:
        """Does what `SimWork.trust` does, for all operations."""
        for work in self._works:
            work.trust()

    def get_future(self) -> Any:
        """Returns a future with the numbers of all operations, for which it waits."""
        if self._future is None:
            works = [work for work in self._works if work._work is not None]
            kinds = [type(work.get_future()) for work in self._works]
            kind = next((each for each in kinds if each is not Future), Future)
            self._future = Future() if kind is Future else kind(works)
            self._future.set_result(self._outputs)
        return self._future


def command_of(work: Any, process: Process) -> Command:
    """Returns the command of the operation that the process has issued last."""
    if isinstance(work, Work):
        return work._command
    return cast(Command, process.latest)


def moved_of(command: Command) -> Event | None:
    """Returns what settles when the bytes of a command have moved; None if it moves none."""
    joint = getattr(command.part, "joint", None)
    return joint.moved if isinstance(joint, AtCall) else None


def call(rank: Rank, tensors: Any, function: Callable[[Callable[[Any], Any]], Any]) -> SimWork:
    """Calls a collective of this package on tensors of PyTorch.

    Args:
        rank: The calling rank.
        tensors: The tensors that the collective writes, as `Work.result` returns them.
        function: Calls it; it is given a function that turns a tensor, or a list of tensors, into
            blocks of this package.

    Returns:
        The handle; to wait for it may park the rank.
    """
    blocks: list[Tensor] = []

    def blocks_of(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [blocks_of(one) for one in value]
        if is_sparse(value):
            name = f"a collective or message of a tensor of layout {value.layout}"
            raise not_simulated(name, "use its dense form: tensor.to_dense(), sparse=False")
        blocks.append(block_of(rank, value))
        return blocks[-1]

    process, hazards = rank.process, rank.hazards
    if rank.stashed:
        now = process.host.clock
        rank.stashed = [entry for entry in rank.stashed if entry[0] > now]
    if hazards.looks:
        process.giving = hazards.check_given
    try:
        with unseen():
            work = function(blocks_of)
    finally:
        process.giving = None
    used = refs_of(blocks)
    if isinstance(work, Work) and _is_of_pytorch():
        world_of(process).unwaited.get(process.rank, {}).pop(work, None)
    ours = work if isinstance(work, Work) else None
    if rank.capture is not None:
        made = SimWork(None, ours, tensors, used)
        made._captured = rank.capture.sent(blocks)
        let_go(blocks)
    else:
        hazards.note_used(blocks)
        command = command_of(work, rank.process)
        moved = moved_of(command)
        if moved is None:
            let_go(blocks)
        else:
            moved.when_settled(lambda _: let_go(blocks))
        made = SimWork(moved, ours, tensors, used, command)
    if rank.coalesced is not None:
        rank.coalesced.append(made)
    return made


_PASSED: Final = (str(Path(__file__).parents[1]), c10d.__file__, c10d_logger.__file__)
_MESSAGES: Final = frozenset(("send", "recv", "isend", "irecv"))
_PYTORCH: Final = str(Path(torch.__file__).parent)


def _is_of_pytorch() -> bool:
    """Returns whether PyTorch itself has called `torch.distributed`, and not the program.

    Some of its calls, as those of `DistributedDataParallel.join`, drop the handle.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_PASSED):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_PYTORCH)


def asked(way: Way) -> str:
    """Returns which function of PyTorch the program called for a message, such as `isend`.

    Args:
        way: The method of a group that this function calls.
    """
    frame: FrameType | None = sys._getframe(1)
    name: str = way
    while frame is not None and frame.f_code.co_filename.startswith(_PASSED):
        if frame.f_code.co_name in _MESSAGES and frame.f_code.co_filename == c10d.__file__:
            name = frame.f_code.co_name
        frame = frame.f_back
    return name


def refs_of(blocks: Sequence[Tensor]) -> tuple[Ref, ...]:
    """Returns the storages of blocks, without keeping them or their memory.

    Args:
        blocks: What `block_of` has returned.
    """
    return tuple(block.memory.ref for block in blocks if isinstance(block.memory, Held))
