"""The shipped algorithms as the engine runs them."""

from dataclasses import replace
from importlib import import_module

import pytest
from ccl_operations import Case

from kernbench.ccl.config import Chosen, choose, load_ccl, shipped_ccl_file
from kernbench.ccl.operations import OPERATIONS
from kernbench.ccl.programs import channels_of
from kernbench.topology import Topology


def ranks_of(operation: str, *ranks: int) -> tuple[int, ...]:
    return (2,) if operation == "send_recv" else ranks


def shipped(name: str, machine: Topology, *overrides: str) -> Chosen:
    path = shipped_ccl_file()
    return choose(load_ccl(path, overrides), path, name, machine.machine.system)


def slots(name: str, size: int, count: int) -> tuple[str, str]:
    """Returns the overrides that give an algorithm slots of its own."""
    return f"algorithms.{name}.slot_size={size} B", f"algorithms.{name}.n_slots={count}"


def as_run(case: Case, chosen: Chosen, machine: Topology, itemsize: int) -> Case:
    """Returns what the engine is going to do with a collective."""
    return replace(
        case,
        grid=machine.grid(range(case.ranks)),
        channels=channels_of(chosen, machine, tuple(range(case.ranks)))[0],
        slot=chosen.queue.slot_size // itemsize,
        n_slots=chosen.queue.n_slots,
        align=chosen.align,
    )


ENTRIES = [
    pytest.param(name, operation, id=f"{name}-{operation}")
    for name, spec in load_ccl(shipped_ccl_file()).value.algorithms.items()
    for operation in OPERATIONS
    if hasattr(import_module(spec.module), operation)
]
