"""A machine on which tests launch kernels without the runtime."""

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernbench.caches import Table
from kernbench.errors import call_site
from kernbench.hw.queue import QueueSpec
from kernbench.memory import DType, Storage, View, dtypes
from kernbench.sim_engine.command import Command, Stream
from kernbench.sim_engine.dials import Fidelity
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.host import Host
from kernbench.tl.launch import DEFAULT_QUEUES, Kernel, KernelWork
from kernbench.tl.recording import Recording
from kernbench.tl.tile import Pointer
from kernbench.topology import Topology


class Machine:
    """One rank on device 0, with tensors in its HBM.

    Args:
        topology: What it is.
        data: Whether tensors hold values.
        fidelity: Whether every tile is timed.
        queues: Between programs.
        recorded: Whether launches are recorded and played, as far as that can be.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        data: bool = True,
        fidelity: Fidelity = "kernel",
        queues: QueueSpec = DEFAULT_QUEUES,
        recorded: bool = True,
    ) -> None:
        self.engine = GraphEngine(topology, data, fidelity=fidelity, record="full")
        self.host = Host(self.engine.loop, 0, self.engine.rank_owner(0), 0, 1024)
        self.stream = Stream("s", 0)
        self.memo: Table[Hashable, Recording] = Table("tl.recordings")
        self._queues = queues
        self._recorded = recorded
        self._kept: list[Storage] = []

    def tensor(self, values: Any, dtype: DType | None = None, label: str = "x") -> View:
        """Returns a tensor that holds the values."""
        array = np.ascontiguousarray(values)
        dtype = dtype or dtypes.from_numpy(array.dtype)
        assert dtype is not None
        view = self.empty(array.shape, dtype, label)
        if self.engine.enable_data:
            view.buffer.adopt(array.astype(dtype.numpy))
        return view

    def empty(self, shape: Sequence[int], dtype: DType, label: str = "x") -> View:
        """Returns a tensor that nobody has written."""
        count = int(np.prod(shape))
        nbytes = max(count * dtype.itemsize, 1)
        storage = Storage(self.engine.devices[0].hbm, nbytes, label, call_site())
        self._kept.append(storage)
        if self.engine.enable_data and count:
            storage.buffer.poison(dtype)
        strides = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
        return View(storage.buffer, dtype, tuple(shape), tuple(strides), 0)

    def launch(self, kernel: Kernel, grid: tuple[int, ...] = (1,), **arguments: Any) -> int:
        """Launches a kernel and returns how long it held the device; raises what it failed with."""
        wrapped = {
            name: Pointer(value, 0) if isinstance(value, View) else value
            for name, value in arguments.items()
        }
        shapes = tuple(
            (p.dtype, p.view.shape, p.view.strides) if isinstance(p, Pointer) else p
            for p in wrapped.values()
        )
        outside = kernel.environment()
        key = (outside, grid, shapes) if self._recorded and outside is not None else None
        work = KernelWork(self.engine, 0, kernel, grid, wrapped, self._queues, self.memo, key)
        command = Command(kernel.name, "kernel", self.host, self.stream, work, site=call_site())
        start = self.host.clock
        self.engine.submit(command)
        self.host.wait(command.done)
        return self.host.clock - start


def place(file: str, line: str) -> str:
    """Returns `file:line:column: source` of the one line of a file that reads so."""
    found = [
        (number, text)
        for number, text in enumerate(Path(file).read_text().splitlines(), 1)
        if text.strip() == line
    ]
    ((number, text),) = found
    return f"{file}:{number}:{len(text) - len(text.lstrip()) + 1}: {line}"
