"""What the stores that programs open themselves reach: servers by port, and files by path."""

import os
import weakref
from typing import Final

from kernbench.des import Event
from kernbench.process.process import Process
from kernbench.ranks.stores import Contents
from kernbench.ranks.world import world_of

PORTS: Final = 65536
_FIRST_FREE: Final = 49152


class Server:
    """What listens on a port.

    Args:
        master: The store that has opened the port; the server ends with it.
        process: The process of the store.
        multi_tenant: Whether further masters of this process may share it.
    """

    def __init__(self, master: object, process: Process, *, multi_tenant: bool) -> None:
        self.contents: Final = Contents()
        self.multi_tenant: Final = multi_tenant
        self.workers = 0
        self._masters: Final = [weakref.ref(master)]
        self._spawn: Final = _spawn(process)
        self._rank: Final = process.rank

    def join(self, master: object) -> None:
        """Adds a master that shares the server."""
        self._masters.append(weakref.ref(master))

    def is_open(self, process: Process) -> bool:
        """Returns whether a rank reaches the server: one of the same spawn, or any if main's."""
        mine = self._spawn is None or self._spawn is _spawn(process)
        return mine and any(master() is not None for master in self._masters)

    def shares(self, process: Process) -> bool:
        """Returns whether a process may have a further master of the port."""
        return self.multi_tenant and self._rank == process.rank


class File:
    """What a file holds, and which of its stores are open.

    Args:
        spawn: The ranks that may reach it; None: all, as main has opened it.

    Attributes:
        contents: Its keys.
        finished: Number of stores that were open and are no more.
        open: Number of stores that are open.
        spawn: `spawn`.
    """

    def __init__(self, spawn: object) -> None:
        self.contents: Final = Contents()
        self.spawn: Final = spawn
        self.open = self.finished = 0


class Opened:
    """Servers by port, and files by path; all host names mean the one simulated network."""

    def __init__(self) -> None:
        self._servers: Final[dict[int, Server]] = {}
        self._files: Final[dict[str, File]] = {}
        self._changed = Event("the master of a TCPStore")

    def clear(self) -> None:
        """Closes all: the run is over."""
        self._servers.clear()
        self._files.clear()

    def server(self, process: Process, port: int) -> Server | None:
        """Returns what listens on a port."""
        found = self._servers.get(port)
        return found if found is not None and found.is_open(process) else None

    def listen(
        self, process: Process, port: int, master: object, *, multi_tenant: bool
    ) -> tuple[int, Server | None]:
        """Opens a port; returns it with its server, or with None if it is taken.

        Args:
            port: The port; 0: a free one.
            master: The store that opens it.
            multi_tenant: Whether further masters may share it.
        """
        if not port:
            free = (each for each in range(_FIRST_FREE, PORTS) if not self.server(process, each))
            port = next(free)
        found = self.server(process, port)
        if found is not None:
            if not (multi_tenant and found.shares(process)):
                return port, None
            found.join(master)
            return port, found
        made = self._servers[port] = Server(master, process, multi_tenant=multi_tenant)
        changed, self._changed = self._changed, Event("the master of a TCPStore")
        changed.settle(0)
        return port, made

    def connect(self, process: Process, host: str, port: int) -> Server:
        """Returns the server of a port; waits until there is one."""
        while (found := self.server(process, port)) is None:
            waited = Event(f"the master of TCPStore({host!r}, {port})")
            self._changed.when_settled(waited.settle)
            process.wait(waited)
        return found

    def file(self, process: Process, name: str) -> File:
        """Returns a file for a further store; those of an earlier spawn are gone."""
        path, spawn = os.path.realpath(name), _spawn(process)
        found = self._files.get(path)
        if found is None or found.spawn not in {None, spawn}:
            found = self._files[path] = File(spawn)
        found.open += 1
        return found

    def close(self, name: str, file: File, stores: int) -> None:
        """Ends a store of a file, and removes the file when PyTorch does.

        Args:
            name: The name of the file.
            stores: Number of stores with the last of which the file ends; -1: it stays.
        """
        file.open -= 1
        file.finished += 1
        if not file.open and 0 <= stores <= file.finished:
            path = os.path.realpath(name)
            if self._files.get(path) is file:
                del self._files[path]


def _spawn(process: Process) -> object:
    """Returns the spawn of a rank; None for main."""
    return None if process.rank < 0 else world_of(process)
