"""Runs a row of a table on a fresh machine, so that no row sees what another one has left."""

import importlib
import sys
import warnings
from importlib.util import find_spec
from statistics import fmean
from typing import Any

from kernbench.errors import KernbenchError
from kernbench.ranks.spawn_errors import SpawnException
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.scripts.pytorch import the_bridge
from kernbench.scripts.torchrun import torchrun_spawn
from kernbench.validation.table import OWN, Found, Row, Table, Times

_FACES = ("nn.functional", "nn.attention", "nn.utils", "optim", "distributed")
"""Modules of `torch` that programs of rows reach by their names."""


def torch_of(which: str) -> Any:
    """Returns one of the two torches.

    Args:
        which: `OWN` or `BRIDGE`.

    Raises:
        UsageError: If PyTorch is not installed, or is of another version.
    """
    if which == OWN:
        import kernbench.torch as own

        for name in _FACES:
            importlib.import_module(f"kernbench.torch.{name}")
        return own
    the_bridge()
    for name in _FACES:
        importlib.import_module(f"torch.{name}")
    return sys.modules["torch"]


def run_row(table: Table, row: Row, which: str, topology: str) -> Found:
    """Returns what a row takes on a machine.

    Args:
        which: The torch: `OWN` or `BRIDGE`.
        topology: A topology file, or the name of a shipped machine.

    Raises:
        UsageError: If the machine or PyTorch is not there.
    """
    if which == OWN and table.only_pytorch:
        return Found(missing=table.only_pytorch)
    if refused := table.refused(row):
        return Found(missing=refused)
    for package in table.needs(row):
        if find_spec(package) is None:
            return Found(missing=f"needs {package}")
    torch, ranks = torch_of(which), table.ranks(row)
    returned: list[Times | None] = [None] * ranks

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        grouped = ranks > 1 and not table.scripts  # which make groups themselves
        if grouped:
            torch.distributed.init_process_group("nccl", rank=rank, world_size=ranks)
        returned[rank] = table.program(torch, row)
        if grouped:
            torch.distributed.destroy_process_group()

    try:
        with warnings.catch_warnings():
            # Programs are as they were measured: newer names of PyTorch are not what is asked.
            warnings.simplefilter("ignore")
            _spawn(worker, which, topology, table, row)
    except SpawnException as error:
        return Found(missing=_first_line(next(iter(error.errors.values()))))
    told = [each for each in returned if each is not None]
    names = dict.fromkeys(name for each in told for name in each)
    return Found({name: round(fmean(each[name] for each in told), 6) for name in names})


def _spawn(worker: Any, which: str, topology: str, table: Table, row: Row) -> None:
    ranks, overrides = table.ranks(row), table.overrides(row)
    if which == OWN:
        spec = RunSpec(topology=topology, overrides=overrides, data=False, watchdog_s=0)
        with RuntimeContext(spec, quiet=True) as ctx:
            ctx.multiprocessing.spawn(worker, nprocs=ranks)
        return
    torchrun_spawn(
        worker,
        nprocs=ranks,
        topology=topology,
        overrides=overrides,
        data=True if table.numbers(row) else "fake",
        watchdog_s=0,
    )


def _first_line(error: BaseException) -> str:
    if isinstance(error, KernbenchError):
        return f"{error.summary}; {error.hint}" if error.hint else error.summary
    text = str(error).splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"
