"""All-reduces and reduce-scatters of `torch.ops.symm_mem`: kernels that touch blocks of all ranks.

Each is one kernel of PyTorch: it meets those of the other ranks, adds up what they have, and meets
them again before anybody may write there. In time it is these steps, one after the other: words for
which all wait, and loops of few blocks of threads whose loads wait for the way there and back.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kernbench.errors import call_site, site_fact
from kernbench.kernels.grids import LANES, GridLaunch, grid_time
from kernbench.kernels.host_calls import Issue
from kernbench.process.act import act
from kernbench.process.process import Process
from kernbench.sim_engine.command import Command
from kernbench.sim_engine.engine import GraphEngine
from kernbench.symmetric.handles import Handle
from kernbench.symmetric.links import Move, Reach, away
from kernbench.symmetric.regions import Block, SymmetricMemoryError
from kernbench.symmetric.visits import wrote

Used = tuple[list[Move], list[tuple[Block, int, int]]]
"""What goes over links, and what is written: as `Uses.take`."""

Add = Callable[[str, Any, Sequence[Any]], Used]
"""Writes into a tensor the sum of others, added in their order, on this computer and at once.

Takes the operation's name, for reports, the tensor and the others; issues no command.
"""

_WIDTHS: Final = (16, 8, 4)
"""Bytes of a load of one thread; the first one that fits. Here and below: as PyTorch's kernels."""

_BLOCKS: Final = 24
"""Most blocks of threads of a launch."""

_STEPS: Final = 12
"""Instructions of a turn beside loads, stores and sums: places, a comparison, a branch."""

_UNROLLED: Final = (2, 4, 8)
"""Numbers of ranks for which two shots can end elsewhere than in the memory."""

_TYPES: Final = ("torch.float32", "torch.bfloat16")


class _Kind(NamedTuple):
    """What tells the kernels from each other.

    Attributes:
        shots: 1 if each rank adds up all, 2 if each adds up its part.
        local: Whether the tensor is first written from another one.
        out: Where the result goes: to a tensor that is `made` or `given`, or `back` to the memory.
        divided: Whether each rank gets its part of the sum.
    """

    shots: int
    local: bool
    out: str
    divided: bool = False

    @property
    def threads(self) -> int:
        """Most threads of a block."""
        return 512 * self.shots


KINDS: Final[Mapping[str, _Kind]] = {
    "one_shot_all_reduce": _Kind(1, False, "made"),
    "one_shot_all_reduce_out": _Kind(1, False, "given"),
    "one_shot_all_reduce_copy": _Kind(1, True, "made"),
    "one_shot_all_reduce_copy_out": _Kind(1, True, "given"),
    "two_shot_all_reduce_": _Kind(2, False, "back"),
    "two_shot_all_reduce_out": _Kind(2, False, "given"),
    "reduce_scatter_out": _Kind(2, False, "given", divided=True),
}
"""The kernels by name."""


def _width(tensor: Any) -> int:
    size = tensor.element_size()
    at = (tensor.storage_offset() * size, tensor.numel() * size)
    return next((one for one in _WIDTHS if not any(each % one for each in at)), 0)


class _Loop(NamedTuple):
    """How threads divide the elements.

    Attributes:
        blocks: Blocks of threads.
        threads: Threads of a block.
        turns: Turns of each thread.
    """

    blocks: int
    threads: int
    turns: int


class Shot:
    """One call of such a kernel by a rank.

    Args:
        name: Name of the operation.
        given: The tensor that is in the memory.
        args: The other arguments.

    Attributes:
        kind: What tells it from the others.
        given: See above.
        local: What `given` is first written from; None: nothing.
        group: Name of the group.
        makes: Like which tensor the caller makes `out`; None if it is there.
        out: Where the result goes; `given` if it goes back there.
    """

    def __init__(self, name: str, given: Any, *args: Any) -> None:
        kind, rest = KINDS[name], list(args)
        self._name: Final = name
        self.kind: Final = kind
        self.given: Final = given
        self.local: Final = rest.pop(0) if kind.local else None
        self._op: Final = "sum" if kind.divided else rest.pop(0)
        self.group: Final[str] = rest.pop(0)
        self._last: Final = bool(rest.pop(0)) if kind.divided else False
        like = given if self.local is None else self.local
        self.makes: Final = like if kind.out == "made" else None
        self.out: Any = rest.pop(0) if rest else given

    def run(self, process: Process, handle: Handle, add: Add) -> None:
        """Computes, and issues its commands.

        Args:
            process: The rank.
            handle: Of the memory.
            add: Computes.

        Raises:
            SymmetricMemoryError: If PyTorch has no kernel for these arguments.
        """
        if self.local is None and not self.given.numel():
            return
        self._check(handle.world_size)
        _Run(f"symm_mem::{self._name}", process, handle, self, add).run()

    def _check(self, ranks: int) -> None:
        given, out, kind = self.given, self.out, self.kind
        here = [one for one in (given, out, self.local) if one is not None]
        types, unit = {str(one.dtype) for one in here}, max(self.width // given.element_size(), 1)
        told = {
            "only sums": self._op != "sum",
            f"one type, of {', '.join(_TYPES)}": len(types) > 1 or not types <= set(_TYPES),
            "tensors without gaps": not all(one.is_contiguous() for one in here),
            "multiples of 4 bytes, from one on": not self.width,
            f"multiples of {self.width} bytes, as in the memory": any(
                _width(one) < self.width for one in (out, self.local) if one is not None
            ),
        }
        shape = list(given.shape)
        if kind.divided:
            divided = given.shape[-1] if self._last else given.numel()
            told["one dimension, or split_last_dim=True"] = not self._last and len(shape) > 1
            told[f"a multiple of {ranks * unit} elements to divide"] = divided % (ranks * unit) != 0
            shape[-1] //= ranks
        told[f"a result of shape {shape}"] = list(out.shape) != shape
        if self.local is not None:
            told[f"{given.numel()} elements of input"] = self.local.numel() != given.numel()
        if kind.shots == 2 and kind.out == "given":
            told[f"{', '.join(map(str, _UNROLLED))} ranks"] = ranks not in _UNROLLED
        for expected, wrong in told.items():
            if wrong:
                raise SymmetricMemoryError(
                    f"torch.ops.symm_mem.{self._name}: PyTorch has no kernel for these arguments",
                    [
                        site_fact(call_site()),
                        f"expected {expected}",
                        f"got {', '.join(f'{list(one.shape)} {one.dtype}' for one in here)} "
                        f"at element {given.storage_offset()}, reduce_op {self._op!r}, "
                        f"{ranks} ranks",
                    ],
                    hint="use the collectives of torch.distributed",
                )

    @property
    def width(self) -> int:
        """Bytes of a load of one thread; 0 if none fits."""
        return _width(self.given)

    def loop(self, parts: int) -> _Loop:
        """Returns how threads divide the tensor.

        Args:
            parts: Of how many parts it is one; 1 if each rank works on all.
        """
        most, width = self.kind.threads, self.width
        share = -(-self.given.numel() // (width * parts)) * width
        threads = -(-share * self.given.element_size() // width)
        if threads <= most:
            return _Loop(1, -(-threads // LANES) * LANES, 1)
        blocks = min(-(-threads // most), _BLOCKS)
        return _Loop(blocks, most, -(-threads // (blocks * most)))


class _Beside(Reach):
    """Action of a step of a kernel of few blocks of threads, which holds up no other kernel.

    Args:
        duration: How long it takes, in picoseconds.
        moves: What goes over links.
        launch: How much of the time is the launch.
    """

    __slots__ = ("_launch",)

    def __init__(
        self, engine: GraphEngine, duration: int, moves: Sequence[Move], launch: int
    ) -> None:
        super().__init__(engine, None, duration, moves)
        self._launch: Final = launch

    def held(self, command: Command, begin: int, end: int) -> None:
        """See `Hold`: sends its bytes once it is launched."""
        self.reach(command, begin, begin + self._launch, end)


class _Run:
    """A call under way.

    Args:
        name: Name of its commands.
        process: The rank.
        handle: Of the memory.
        shot: What is called.
        add: Computes.
    """

    def __init__(self, name: str, process: Process, handle: Handle, shot: Shot, add: Add) -> None:
        self._name: Final = name
        self._process: Final = process
        self._handle: Final = handle
        self._shot: Final = shot
        self._add: Final = add
        self._sip: Final = process.ctx.devices[process.rank]
        self._moves: list[Move] = []
        self._written: list[tuple[Block, int, int]] = []
        self._called = self._launched = False

    def run(self) -> None:
        """Computes, and issues its commands."""
        shot, ranks, here = self._shot, range(self._handle.world_size), self._handle.rank
        kind, out, many = shot.kind, shot.out, len(ranks)
        if shot.local is not None:
            self._move(shot.given, [shot.local.view(shot.given.shape)])
            self._loop(shot.loop(1), 1, 1)
        self._meet()
        if kind.shots == 1:
            self._move(out, [self._theirs(rank) for rank in ranks])
            self._loop(shot.loop(1), many, 1)
        elif kind.divided:
            size = out.shape[-1]
            parts = [self._theirs(rank).narrow(-1, here * size, size) for rank in ranks]
            self._move(out, parts)
            self._loop(shot.loop(many), many, 1)
        else:
            self._two(ranks, here)
        self._meet()

    def _two(self, ranks: range, here: int) -> None:
        """Adds up the rank's part, and gives it to all, or reads those of all."""
        shot, many = self._shot, len(ranks)
        parts = [self._part(self._theirs(rank), here) for rank in ranks]
        back = shot.kind.out == "back"
        self._move(parts[here], parts)
        for rank in ranks if back else ():
            if rank != here:
                self._move(parts[rank], [parts[here]])
        self._loop(shot.loop(many), many, many if back else 1)
        if not back:
            self._meet()
            for rank in ranks:
                self._move(self._part(shot.out, rank), [self._part(self._theirs(rank), rank)])
            self._loop(shot.loop(many), many, many)

    def _theirs(self, rank: int) -> Any:
        """Returns what a rank has in the place of the tensor."""
        given = self._shot.given
        if rank == self._handle.rank:
            return given
        shape, offset = tuple(given.shape), given.storage_offset()
        return self._handle.get_buffer(rank, shape, given.dtype, offset)

    def _part(self, whole: Any, rank: int) -> Any:
        """Returns the part of a tensor that a rank adds up; empty for the last ones of a few."""
        unit, count = self._shot.width // whole.element_size(), whole.numel()
        share = -(-count // (unit * self._handle.world_size)) * unit
        return whole.view(-1)[rank * share : (rank + 1) * share]

    def _move(self, into: Any, parts: Sequence[Any]) -> None:
        if into.numel():
            moves, written = self._add(self._name, into, parts)
            self._moves += moves
            self._written += written

    def _meet(self) -> None:
        """Waits for the kernels of all ranks; what was written until then is seen by them."""
        barriers = self._handle.region.barriers(self._process, self._name)
        barriers.enter_device(self._process, self._name, issue=self._issue())

    def _loop(self, loop: _Loop, loads: int, stores: int) -> None:
        """Issues what has been moved, as a loop of all threads.

        Args:
            loads: How often each thread loads in a turn, all at once.
            stores: How often it stores.
        """
        process, engine, width = self._process, self._process.engine, self._shot.width
        moves, self._moves = self._moves, []
        written, self._written = self._written, []
        library = engine.devices[self._sip].library
        nbytes = loop.blocks * loop.threads * loop.turns * width * (loads + stores)
        price: int = grid_time(
            library,
            GridLaunch(
                warps=loop.threads // LANES,
                stages=1,
                turns=[(loop.blocks, loop.turns)],
                instructions=_STEPS,
                turn_instructions=_STEPS + loads + stores + (loads - 1) * width // 4,
                hbm_bytes=nbytes,
                traffic=nbytes,
                away=away(engine, moves),
            ),
        )
        launch = int(library.sip.launch)
        if self._launched:  # it is one launch, which is in the first step
            price, launch = int(price) - launch, 0
        self._launched = True
        stream = process.current_stream(self._sip)
        work = _Beside(engine, price, moves, launch)
        done = act(process, self._name, "kernel", stream, work, issue=self._issue()).done
        wrote(process, written, done)

    def _issue(self) -> Issue:
        """Returns what the host calls: only the first step takes its time."""
        called, self._called = self._called, True
        return "replayed" if called else "collective"
