"""Stores that programs open themselves: by a port, by a file, or for themselves."""

import weakref
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from kernbench.bridge.base.here import this_rank
from kernbench.bridge.distributed.store import SimStore
from kernbench.isolation.replaced import Patch
from kernbench.ranks.opened_stores import PORTS, Opened
from kernbench.ranks.stores import WithoutQueues

_DEFAULT: Final = timedelta(seconds=300)
_WORKERS: Final = "init/"
"""The key by which PyTorch counts the workers that have come; it lists it nowhere."""

_TAKEN: Final = (
    "The server socket has failed to listen on any local network address. port: {}, useIpv6: "
    "false, code: -98, name: EADDRINUSE, message: address already in use"
)


OPENED: Final = Opened()


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
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < PORTS:
            raise TypeError(f"TCPStore: port {port!r}: expected a number from 0 to {PORTS - 1}")
        if master_listen_fd is not None:
            raise TypeError("TCPStore: master_listen_fd: no socket is opened here; leave it out")
        if world_size == 0:
            raise ValueError("TCPStore world size cannot be 0")
        process = this_rank().process
        if is_master:
            port, listens = OPENED.listen(process, port, self, multi_tenant=multi_tenant)
            if listens is None:
                raise dist.DistNetworkError(_TAKEN.format(port))
            server = listens
        else:
            server = OPENED.connect(process, host_name, port)
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
            server.contents.wait(process, lambda: server.workers >= world_size, None, [all_there])

    def num_keys(self) -> int:
        """Returns the number of keys, with the one by which workers are counted."""
        return super().num_keys() + bool(self._server.workers)


class FileStore(WithoutQueues, SimStore):
    """`torch.distributed.FileStore`: all ranks that name the same file share its keys.

    Args:
        file_name: The file, which is not touched.
        world_size: Number of stores of the file, with the last of which it ends; -1: it stays.

    Attributes:
        path: The file.
    """

    def __init__(self, file_name: str, world_size: int = -1) -> None:
        file = self._file = OPENED.file(this_rank().process, file_name)
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
