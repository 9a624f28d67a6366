"""Caches are listed, bounded, keyed by all that counts, and outlive the contexts that fill them."""

import ast
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import caches, tl
from kernbench.ccl.model import kept_of
from kernbench.report import dump_records
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext
from kernbench.tl.recording import recordings_of
from kernbench.topology import load_topology

pytestmark = pytest.mark.usefixtures("small_heap")

PACKAGE = Path(caches.__file__).parent


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    caches.clear()
    gc.collect()
    yield
    caches.clear()


# The list


def _calls(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yields what makes a cache, and its name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name, given = node.func.id, node.args[:1]
            if name in ("cached", "Table") and given and isinstance(given[0], ast.Constant):
                yield name, str(given[0].value)


def test_every_cache_is_in_the_list_and_the_list_has_no_other() -> None:
    used: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        # To parse all files takes seconds, and most of them make no cache.
        if path != PACKAGE / "caches.py" and ("cached" in text or "Table" in text):
            tree = ast.parse(text)
            used |= {name for _, name in _calls(tree)}
    assert used == set(caches.LIMITS)


def test_nobody_keeps_results_in_another_way() -> None:
    found = []
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "functools" in text else ():
            names: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module == "functools":
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                names = [node.attr] if node.value.id == "functools" else []
            found += [path.name for name in names if name in ("cache", "lru_cache")]
    assert found == ["caches.py"]


def test_the_oldest_entry_makes_room() -> None:
    table: caches.Table[int, str] = caches.Table("distributed.barriers")
    for number in range(table.limit + 2):
        assert table.keep(number, str(number)) == str(number)
    assert len(table) == table.limit
    assert 1 not in table
    assert table[2] == "2"
    assert table.kept == table.limit + 2


def _line(name: str) -> caches.Statistic:
    (line,) = [line for line in caches.statistics() if line.name == name]
    return line


def test_statistics_count_hits_misses_and_entries_of_all_caches_of_a_name() -> None:
    before = _line("ccl.plans")
    double = [caches.cached("ccl.plans")(lambda x: 2 * x) for _ in range(2)]
    assert [function(x) for function in double for x in (1, 2, 1)] == [2, 4, 2] * 2
    line = _line("ccl.plans")
    assert line.caches == before.caches + 2
    assert (line.entries, line.limit) == (4, caches.LIMITS["ccl.plans"])
    assert (line.hits or 0) - (before.hits or 0) == 2
    assert line.misses - before.misses == 4
    caches.clear()
    assert _line("ccl.plans").entries == 0
    del double
    assert _line("ccl.plans").caches == before.caches


def test_names_are_not_listed_twice() -> None:
    names = [line.name for line in caches.statistics()]
    assert names == sorted(set(names))
    assert set(names) <= set(caches.LIMITS)


# What they are kept by


@tl.jit
def scale(x: tl.Pointer, factor: float, n: tl.constexpr) -> None:
    offsets = tl.arange(0, n)
    tl.store(x + offsets, tl.load(x + offsets) * factor)


def worker(rank: int) -> None:
    dist.init_process_group("nccl")
    for count in (64, 5000, 64):
        x = torch.ones(count, device="cuda") * (rank + 1)
        dist.all_reduce(x)
        scale[(1,)](x, 0.5, 64)
        torch.cuda.synchronize()
    dist.all_gather_into_tensor(torch.empty(4 * 8, device="cuda"), torch.ones(8, device="cuda"))
    if rank < 2:
        dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
    torch.cuda.synchronize()


def run(topology: str = "torus4x4", *overrides: str, **fields: Any) -> RuntimeContext:
    spec = RunSpec(topology=topology, overrides=overrides, record="full", **fields)
    with RuntimeContext(spec) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=4)
    return ctx


def _log(ctx: RuntimeContext) -> list[str]:
    return list(dump_records(ctx.engine.op_log))


OF_A_MACHINE = ("ccl.shapes", "ccl.patterns", "ccl.estimates", "ccl.paths", "tl.recordings")


@pytest.mark.parametrize("topology", ["sip8", "torus4x4", "h200x8", "fattree64"])
def test_the_next_context_of_an_equal_machine_makes_nothing_anew(topology: str) -> None:
    first = _log(run(topology))
    before = {line.name: line for line in caches.statistics()}
    assert before["ccl.shapes"].misses > 0
    second = run(topology)
    after = {line.name: line for line in caches.statistics()}
    for name in OF_A_MACHINE:
        assert after[name].misses == before[name].misses, name
    for name in ("ccl.shapes", "ccl.machines", "tl.machines", "hw.machines"):
        assert (after[name].hits or 0) > (before[name].hits or 0), name
    assert _log(second) == first
    caches.clear()
    assert _log(run(topology)) == first


CHANGES = (
    "system.name=other",
    "system.sips.network.latency=777 ns",
    "system.sip.launch=3 us",
    "system.sip.cube.hbm.bandwidth=77 GB/s",
    "system.sip.pe.issue=7 ns",
    "system.host.dispatch=7 us",
    "system.sips.changed=[{which: [1], sip: {launch: 9 us}}]",
)


@pytest.mark.parametrize("topology", ["sip8", "torus4x4", "fattree64"])
def test_machines_that_differ_share_nothing(topology: str) -> None:
    machines = [
        load_topology(topology, [one] if one else []).topology_obj for one in ("", *CHANGES)
    ]
    again = load_topology(topology).topology_obj
    assert again == machines[0]
    assert hash(again) == hash(machines[0])
    assert kept_of(again) is kept_of(machines[0])
    assert recordings_of(again) is recordings_of(machines[0])
    assert len(set(machines)) == len(machines)
    assert len({id(kept_of(machine)) for machine in machines[:8]}) == len(machines)
    assert len({id(recordings_of(machine)) for machine in machines[:8]}) == len(machines)


@pytest.mark.parametrize("change", CHANGES[1:])
def test_a_warm_cache_of_another_machine_changes_nothing(change: str) -> None:
    cold = _log(run("torus4x4", change))
    caches.clear()
    usual = _log(run("torus4x4"))
    assert _log(run("torus4x4", change)) == cold != usual


def test_dials_have_recordings_of_their_own() -> None:
    for fields in ({"data": False}, {"data": True}):
        caches.clear()
        cold = _log(run("sip8", **fields))
        caches.clear()
        run("sip8", data=not fields["data"])
        assert _log(run("sip8", **fields)) == cold


# What they keep alive


def test_a_context_that_is_gone_is_garbage_while_caches_are_warm() -> None:
    ctx = run("torus4x4", "defaults.algorithm=ring")  # whose patterns are kept
    dead: list[weakref.ref[Any]] = list(map(weakref.ref, (ctx, ctx.engine, ctx.collectives)))
    with RuntimeContext():  # the next one lets go of the last
        pass
    del ctx
    gc.collect()
    assert [reference() for reference in dead] == [None] * 3
    held = {line.name: line.entries for line in caches.statistics()}
    assert held["ccl.shapes"] > 0
    assert held["ccl.patterns"] > 0
    assert held["tl.recordings"] > 0


# The kernel's surroundings


def _module(name: str, **values: Any) -> Any:
    module = type(caches)(name)
    vars(module).update(values)
    return module


own = _module("own", FACTOR=2.0, sub=_module("own.sub", SHIFT=1.0))


@tl.jit
def moved(x: tl.Pointer, n: tl.constexpr) -> None:
    offsets = tl.arange(0, n)
    values = [tl.load(x + offsets) * own.FACTOR + each for each in (own.sub.SHIFT,)]
    tl.store(x + offsets, values[0])


def test_values_in_modules_of_the_user_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def result() -> float:
        with RuntimeContext():
            x = torch.ones(8, device="cuda")
            moved[(1,)](x, 8)
            return float(x[0].item())

    assert result() == 3.0
    assert result() == 3.0
    monkeypatch.setattr(own, "FACTOR", 5.0)
    assert result() == 6.0
    monkeypatch.setattr(own.sub, "SHIFT", 2.0)
    assert result() == 7.0
    kinds = moved.environment()
    assert kinds is not None
    monkeypatch.setattr(own, "FACTOR", np.zeros(2))
    assert moved.environment() is None
