"""Stores that programs open themselves: by a port, by a file, or for themselves."""

import os
import weakref
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from kernbench.bridge.base.here import this_rank
from kernbench.bridge.distributed.store import Contents, SimStore
from kernbench.des import Event
from kernbench.isolation.replaced import Patch
from kernbench.ranks.world import world_of

_PORTS: Final = 65536
_FIRST_FREE: Final = 49152
_DEFAULT: Final = timedelta(seconds=300)
_WORKERS: Final = "init/"
"""The key by which PyTorch counts the workers that have come; it lists it nowhere."""

_NO_QUEUES: Final = "queue support is not implemented."


class _Server:
    """What listens on a port.

    Args:
        master: The store that has opened the port; the server ends with it.
        spawn: The ranks that may reach it; None: all, as main has opened it.
        multi_tenant: Whether further masters of this process may share it.
    """

    def __init__(self, master: "TCPStore", spawn: object, *, multi_tenant: bool) -> None:
        self.contents: Final = Contents()
        self.multi_tenant: Final = multi_tenant
        self.workers = 0
        self._masters: Final = [weakref.ref(master)]
        self._spawn: Final = spawn
        self._rank: Final = this_rank().process.rank

    def join(self, master: "TCPStore") -> None:
        """Adds a master that shares the server."""
        self._masters.append(weakref.ref(master))

    def is_open(self, spawn: object) -> bool:
        """Returns whether a rank of a spawn reaches the server."""
        mine = self._spawn is None or self._spawn is spawn
        return mine and any(master() is not None for master in self._masters)

    def shares(self) -> bool:
        """Returns whether the calling process may have a further master of the port."""
        return self.multi_tenant and self._rank == this_rank().process.rank


class _File:
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
        self._servers: Final[dict[int, _Server]] = {}
        self._files: Final[dict[str, _File]] = {}
        self._changed = Event("the master of a TCPStore")

    def clear(self) -> None:
        """Closes all: the run is over."""
        self._servers.clear()
        self._files.clear()

    def server(self, port: int) -> _Server | None:
        """Returns what listens on a port."""
        found = self._servers.get(port)
        return found if found is not None and found.is_open(_spawn()) else None

    def listen(self, port: int, master: "TCPStore", *, multi_tenant: bool) -> tuple[int, _Server]:
        """Opens a port; returns it with its server.

        Args:
            port: The port; 0: a free one.
            master: The store that opens it.
            multi_tenant: Whether further masters may share it.

        Raises:
            DistNetworkError: If the port is taken.
        """
        if not port:
            port = next(each for each in range(_FIRST_FREE, _PORTS) if self.server(each) is None)
        found = self.server(port)
        if found is not None and multi_tenant and found.shares():
            found.join(master)
            return port, found
        if found is not None:
            raise dist.DistNetworkError(
                "The server socket has failed to listen on any local network address. port: "
                f"{port}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in "
                "use"
            )
        made = self._servers[port] = _Server(master, _spawn(), multi_tenant=multi_tenant)
        changed, self._changed = self._changed, Event("the master of a TCPStore")
        changed.settle(0)
        return port, made

    def connect(self, host: str, port: int) -> _Server:
        """Returns the server of a port; waits until there is one."""
        while (found := self.server(port)) is None:
            waited = Event(f"the master of TCPStore({host!r}, {port})")
            self._changed.when_settled(waited.settle)
            this_rank().process.wait(waited)
        return found

    def file(self, name: str) -> _File:
        """Returns a file for a further store; those of an earlier spawn are gone."""
        path, spawn = os.path.realpath(name), _spawn()
        found = self._files.get(path)
        if found is None or found.spawn not in {None, spawn}:
            found = self._files[path] = _File(spawn)
        found.open += 1
        return found

    def close(self, name: str, file: _File, stores: int) -> None:
        """Ends a store of a file, and removes the file when PyTorch does.

        Args:
            name: The name of the file.
            stores: See `FileStore`.
        """
        file.open -= 1
        file.finished += 1
        if not file.open and 0 <= stores <= file.finished:
            path = os.path.realpath(name)
            if self._files.get(path) is file:
                del self._files[path]


OPENED: Final = Opened()


def _spawn() -> object:
    """Returns the spawn whose rank runs; None for main."""
    process = this_rank().process
    return None if process.rank < 0 else world_of(process)


class TCPStore(SimStore):
    """`torch.distributed.TCPStore`: a master has the keys, and others reach it by its port.

    Args:
        host_name: A name of the master's host; all mean the same.
        port: The port; 0 for a master: a free one.
        world_size: Number of stores that the master waits for, itself included; None: none.
        is_master: Whether this store has the keys.
        timeout: See `SimStore.timeout`.
        wait_for_workers: Whether to wait until all stores are there.
        multi_tenant: Whether several masters of a process may share the port.
        master_listen_fd: Must be None.
        use_libuv: What `libuvBackend` tells.

    Attributes:
        host: `host_name`.
        port: The port.
        libuvBackend: Whether the server would be one of libuv.

    Raises:
        TypeError: If the port is none.
        ValueError: If `world_size` is 0.
        DistNetworkError: If the port is taken.
    """

    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: timedelta = _DEFAULT,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: int | None = None,
        use_libuv: bool = True,
    ) -> None:
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < _PORTS:
            raise TypeError(f"TCPStore: port {port!r}: expected a number from 0 to {_PORTS - 1}")
        if master_listen_fd is not None:
            raise TypeError("TCPStore: master_listen_fd: no socket is opened here; leave it out")
        if world_size == 0:
            raise ValueError("TCPStore world size cannot be 0")
        if is_master:
            port, server = OPENED.listen(port, self, multi_tenant=multi_tenant)
        else:
            server = OPENED.connect(host_name, port)
        super().__init__(server.contents)
        self._server = server
        self.set_timeout(timeout)
        self.host: Final = host_name
        self.port: Final = port
        self.libuvBackend: Final = use_libuv
        if wait_for_workers and world_size is not None and world_size > 0:
            server.workers += 1
            server.contents.touch()
            all_there = f"{_WORKERS}{world_size}"
            server.contents.wait(lambda: server.workers >= world_size, None, [all_there])

    def num_keys(self) -> int:
        """Returns the number of keys, with the one by which workers are counted."""
        return super().num_keys() + bool(self._server.workers)


class FileStore(SimStore):
    """`torch.distributed.FileStore`: all ranks that name the same file share its keys.

    Args:
        file_name: The file, which is not touched.
        world_size: Number of stores of the file, with the last of which it ends; -1: it stays.

    Attributes:
        path: The file.
    """

    def __init__(self, file_name: str, world_size: int = -1) -> None:
        file = self._file = OPENED.file(file_name)
        super().__init__(file.contents)
        self.path: Final = file_name
        weakref.finalize(self, OPENED.close, file_name, file, world_size).atexit = False

    def num_keys(self) -> int:
        """Returns the number of keys, with those by which stores that are open, or were, count."""
        return super().num_keys() + 1 + bool(self._file.finished)

    def delete_key(self, key: str) -> bool:
        """Forgets a key; returns True, as PyTorch's does, whether or not there was one."""
        super().delete_key(key)
        return True

    def has_extended_api(self) -> bool:
        """Returns False, as PyTorch's does, though it has the calls."""
        return False

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Raises `NotImplementedError`, as PyTorch's does."""
        raise NotImplementedError(_NO_QUEUES)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Raises `NotImplementedError`, as PyTorch's does."""
        raise NotImplementedError(_NO_QUEUES)

    def queue_len(self, key: str) -> int:
        """Raises `NotImplementedError`, as PyTorch's does."""
        raise NotImplementedError(_NO_QUEUES)


class HashStore(SimStore):
    """`torch.distributed.HashStore`: keys of one store alone."""

    def __init__(self) -> None:
        super().__init__()


def patches() -> Iterator[Patch]:
    """Yields the classes that stand for PyTorch's, wherever PyTorch looks them up."""
    owners: list[Any] = [dist, dist.distributed_c10d, torch._C._distributed_c10d]
    for kind in (TCPStore, FileStore, HashStore):
        for owner in owners:
            if hasattr(owner, kind.__name__):
                yield Patch(owner, kind.__name__, kind)
