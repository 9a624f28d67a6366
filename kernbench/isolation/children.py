"""Processes of this computer that a rank starts: they have no device.

A rank may start processes that write files or compute on the host, such as those of a checkpoint.
A fork begins with all that the rank has, so it leaves the simulation first.
"""

import contextlib
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any, Final, NoReturn

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernbench.bridge.base.here import HERE, Rank
from kernbench.bridge.base.replaced import Patch
from kernbench.bridge.tensors.devices import on_device
from kernbench.des.carrier import here
from kernbench.errors import UnsupportedError, call_site, site_fact
from kernbench.process.process import MAIN
from kernbench.ranks.environments import Environments

_HINT: Final = "let a rank itself use its device, and give the process tensors of the host"


def _refuse(name: str, *_: Any, **__: Any) -> NoReturn:
    raise UnsupportedError(
        f"a process that {name} has started uses a simulated device",
        [site_fact(call_site()), "only ranks have devices"],
        hint=_HINT,
    )


class _WithoutDevices(TorchDispatchMode):
    """Refuses operations on tensors that a fork has got from its rank's device.

    Args:
        name: Name of the rank.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name: Final = name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation on tensors of the host."""
        del types
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, torch.Tensor) and on_device(value):
                _refuse(self._name)
        return func(*args, **(kwargs or {}))


def _forked() -> None:
    """Takes a fork of a rank out of the simulation, in which it has neither device nor hub."""
    rank = HERE.rank
    if rank is None:
        return
    environment = dict(os.environ)
    stack = torch._C._len_torch_dispatch_stack()
    for _ in range(stack):
        torch._C._pop_torch_dispatch_stack(None)
    HERE.rank = here.carrier = None
    own: Any = os.environ
    if isinstance(own, Environments):
        os.environ = own.of_main  # type: ignore[assignment]  # noqa: B003
    os.environ.clear()
    os.environ.update(environment)
    _without_devices(rank.process.name)


def _without_devices(name: str) -> None:
    torch.cuda._lazy_init = partial(_refuse, name)  # which all that makes tensors there calls
    _WithoutDevices(name).__enter__()


os.register_at_fork(after_in_child=_forked)


@contextlib.contextmanager
def forks_end(rank: Rank) -> Iterator[None]:
    """Ends the process of a fork that comes back out of its rank's code, where nobody waits for it.

    Args:
        rank: The rank, whose code runs in the block.
    """
    code = 0
    try:
        yield
    except BaseException as error:
        if os.getpid() == rank.pid:
            raise
        code = 1
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        else:
            traceback.print_exception(error)
    if os.getpid() != rank.pid:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


class Work:
    """What a process does that a rank starts.

    Args:
        run: The program's function, without arguments.
        name: Name of the rank.
    """

    def __init__(self, run: Callable[[], object], name: str) -> None:
        self._run: Final = run
        self._name: Final = name
        self._environment: Final = dict(os.environ)

    def __call__(self) -> None:
        """Runs, in the process."""
        if torch.cuda._lazy_init.__class__ is not partial:  # not a fork, which has none by now
            os.environ.update(self._environment)
            _without_devices(self._name)
        self._run()


def _with_environment(real: Callable[..., None]) -> Callable[..., None]:
    """Returns what starts a program, which inherits the environment of its rank."""

    @wraps(real)
    def init(process: Any, *args: Any, **options: Any) -> None:
        rank = HERE.rank
        in_rank = rank is not None and rank.process.rank != MAIN
        if in_rank and len(args) <= _ENV and options.get("env") is None:
            options["env"] = dict(os.environ)
        real(process, *args, **options)

    return init


_ENV: Final = 10
"""Place of the environment among the arguments of `Popen`."""


def patches() -> Iterator[Patch]:
    """Yields what is replaced of `subprocess`."""
    yield Patch(subprocess.Popen, "__init__", _with_environment(subprocess.Popen.__init__))
