"""What PyTorch itself takes: of the host beside issuing commands, and of a device's memory."""

from typing import Any, Final

from kernbench.bridge.base.here import HERE, Rank
from kernbench.bridge.tensors.storages import block
from kernbench.memory import Storage
from kernbench.sim_engine.command import Stream


class Eager:
    """Host times of one rank, in picoseconds, and workspaces.

    Attributes:
        calls: What its calls take.
        kernel: What an operation with a kernel takes beside issuing it: without autograd, and with.
        view: What an operation without a kernel takes: without autograd, and with.
    """

    __slots__ = ("_host", "_rank", "_workspace", "_workspaces", "calls", "kernel", "view")

    def __init__(self, rank: Rank) -> None:
        process = rank.process
        engine, calls = process.engine, process.calls
        self.calls: Final = calls
        workspace = engine.topology.machine.system.host.eager.workspace
        self._host: Final = process.host
        self._rank: Final = rank
        self._workspace: Final = (workspace or 0) if engine.timed else 0
        self._workspaces: Final[dict[tuple[Stream, bool], Storage]] = {}
        self.kernel: Final = (0, calls.issues["recorded"] - calls.issues["compute"])
        self.view: Final = calls.view

    def spend(self, time_ps: int) -> None:
        """Lets time of the host pass, in picoseconds."""
        self._host.clock += time_ps

    def blas(self, stream: Stream) -> None:
        """Takes the workspace of cuBLAS at the first product of a stream in a pass.

        Args:
            stream: Stream of the product.

        Raises:
            DeviceOutOfMemoryError: If the device has no room for it.
        """
        key = stream, self._rank.ambient
        if self._workspace and key not in self._workspaces:
            rank = self._rank
            self._workspaces[key] = block(rank, rank.hbm, self._workspace, "workspace of cuBLAS")

    def parameters(self, args: Any) -> None:
        """Lets the time pass that FSDP2's Python takes for the parameters of an operation.

        Args:
            args: Arguments of `fsdp.split_with_sizes_copy` (one size a parameter), of
                `fsdp.chunk_cat` (one gradient a parameter), or of another operation of FSDP2.
        """
        for value in args[:2]:
            if isinstance(value, list | tuple):
                self.spend(self.calls.shard * len(value))
                return


def hooks(real: Any) -> Any:
    """Returns `saved_tensors_hooks.__init__` with hooks that take the host's time."""

    def init(self: Any, pack: Any, unpack: Any) -> None:
        real(self, _timed(pack), _timed(unpack))

    return init


def _timed(hook: Any) -> Any:
    def run(value: Any) -> Any:
        rank = HERE.rank
        if rank is not None:
            rank.mode.eager.spend(rank.process.calls.hook)
        return hook(value)

    # PyTorch's checkpoints tell their own hooks by attributes, which they set before and after.
    run.__dict__ = getattr(hook, "__dict__", {})
    return run
