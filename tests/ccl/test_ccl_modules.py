"""Algorithms of one's own: found beside the `ccl.yaml`, recorded if they can be, else run live."""

import string
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ccl_machine import Outcome, cut, own_algorithm, planned, run, skewed

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.ccl.algorithms import ring_allreduce
from kernbench.ccl.config import (
    Chosen,
    check_default,
    choose,
    find_ccl_file,
    load_ccl,
    local_file_notice,
)
from kernbench.ccl.layout import turns
from kernbench.ccl.plan import NOTHING, Comm
from kernbench.config import ConfigError
from kernbench.errors import UsageError
from kernbench.memory import dtypes
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.sim_engine.dials import Fidelity
from kernbench.testing import Kernbench
from kernbench.topology import Topology, load_topology

BRANCHING = """
def all_reduce(comm):
    n = comm.world_size
    after = 0 if comm.rank == n - 1 else comm.rank + 1
    before = n - 1 if comm.rank == 0 else comm.rank - 1
    for step in range(n - 1):
        comm.exchange(send=(comm.rank - step) % n, to=after,
                      receive=(comm.rank - step - 1) % n, source=before, combine="reduce")
    for step in range(n - 1):
        comm.exchange(send=(comm.rank + 1 - step) % n, to=after,
                      receive=(comm.rank - step) % n, source=before)
"""

IN_PLACE = """
def all_reduce(comm):
    n = comm.world_size
    after, before = (comm.rank + 1) % n, (comm.rank - 1) % n
    chunk = comm.rank
    for step in range(2 * n - 2):
        here = (chunk - 1) % n
        comm.exchange(send=chunk % n, to=after, receive=here, source=before,
                      combine="reduce" if step < n - 1 else "copy")
        chunk -= 1
"""

ALIASED = """
def all_reduce(comm):
    n = comm.world_size
    after, before = (comm.rank + 1) % n, (comm.rank - 1) % n
    mine = chunk = comm.rank + 0
    for step in range(n - 1):
        comm.exchange(send=chunk % n, to=after, receive=(chunk - 1) % n, source=before,
                      combine="reduce")
        chunk -= 1  # of an array, this would change `mine`
    chunk = mine + 1
    for step in range(n - 1):
        comm.exchange(send=chunk % n, to=after, receive=(chunk - 1) % n, source=before)
        chunk -= 1
"""

AS_A_NUMBER = """
def all_reduce(comm):
    comm.rank.bit_length()
    from kernbench.ccl.algorithms.ring_allreduce import all_reduce
    all_reduce(comm)
"""

TILES = """
def all_reduce(comm):
    tl, n, count = comm.tl, comm.world_size, comm.buffer.view.shape[0]
    whole = comm.buffer.run(0, count)
    total = mine = tl.load(whole)
    for _ in range(n - 1):
        tl.send(mine, (comm.rank + 1) % n)
        mine = tl.receive((comm.rank - 1) % n)
        total = total + mine
    tl.store(whole, total)
"""

CCL = """
defaults: {{algorithm: mine, n_slots: 2, slot_size: 512 B}}
algorithms:
  mine: {{module: {module}, n_elem: 1}}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Chosen]:
    """Writes a module and its `ccl.yaml` into a working directory, and chooses it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(module: str, code: str) -> Chosen:
        monkeypatch.delitem(sys.modules, module, raising=False)
        (tmp_path / f"{module}.py").write_text(code)
        (tmp_path / "ccl.yaml").write_text(CCL.format(module=module))
        path = find_ccl_file()
        assert path == tmp_path / "ccl.yaml"
        return choose(load_ccl(path), path)

    return write


def check(outcome: Outcome) -> None:
    total = np.sum(outcome.inputs, axis=0)
    for output in outcome.outputs:
        np.testing.assert_array_equal(output, total)


@pytest.mark.parametrize("machine", ["sip8", "h200x8"])
@pytest.mark.parametrize(
    ("module", "code", "recorded"),
    [
        ("own_branching", BRANCHING, True),
        ("own_in_place", IN_PLACE, True),
        ("own_aliased", ALIASED, True),
        ("own_as_a_number", AS_A_NUMBER, True),
        ("own_tiles", TILES, False),
    ],
)
def test_a_module_beside_the_ccl_yaml(
    here: Callable[[str, str], Chosen],
    topology: Callable[[str], Topology],
    machine: str,
    module: str,
    code: str,
    recorded: bool,
) -> None:
    chosen = here(module, code)
    assert (chosen.queue.n_slots, chosen.queue.slot_size, chosen.align) == (2, 512, 1)
    for ranks, count in ((1, 5), (2, 100), (5, 103)):
        assert (planned(chosen.algorithm("all_reduce"), ranks) is not None) is recorded
        starts = skewed(ranks)
        timed = run(topology(machine), chosen, starts, count, dtype=dtypes.int32)
        live = run(topology(machine), chosen, starts, count, dtype=dtypes.int32, fidelity="tile")
        check(timed)
        live.same(timed)


@pytest.mark.parametrize("code", [BRANCHING, IN_PLACE, ALIASED, AS_A_NUMBER])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_recorded_plan_does_not_depend_on_how_the_rank_is_written(
    here: Callable[[str, str], Chosen], code: str, ranks: int
) -> None:
    own = planned(here("own_plan", code).algorithm("all_reduce"), ranks)
    expected = planned(ring_allreduce.all_reduce, ranks)
    assert own is not None
    assert expected is not None
    for name in ("send", "to", "receive", "source", "reduce"):
        np.testing.assert_array_equal(getattr(own, name), getattr(expected, name))


def test_a_module_is_imported_by_its_path_when_a_collective_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernbench: Kernbench
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    paths = list(sys.path)
    (tmp_path / "ccl.yaml").write_text(CCL.format(module="string"))  # as one of Python's
    (tmp_path / "its_neighbour.py").write_text("DONE = []\n")
    (tmp_path / "string.py").write_text(
        f"from its_neighbour import DONE\nDONE.append(1)\n{IN_PLACE}"
    )

    def without(rank: int) -> None:
        torch.ones(4, device="cuda").sum().item()

    def reduces(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(4, device="cuda")
        dist.all_reduce(x)
        assert x.tolist() == [2.0] * 4

    assert check_default(None, [], load_topology("sip8").topology_obj.machine.system) == "mine"
    kernbench.spawn(without, nprocs=2)
    assert "its_neighbour" not in sys.modules
    for _ in range(2):
        kernbench.spawn(reduces, nprocs=2)
    assert sys.modules.pop("its_neighbour").DONE == [1]
    assert sys.modules["string"] is string
    assert sys.path == paths


def test_f12_a_slot_that_is_smaller_than_a_chunk(kernbench: Kernbench) -> None:
    def reduces(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(4096, device="cuda")
        dist.all_reduce(x)
        raise AssertionError("the call returns")

    for name in ("direct", "two_shot", "ring"):
        overrides = ["slot_size=16 B", "n_elem=5", f"algorithm={name}"]
        with pytest.raises(SpawnException) as caught:
            kernbench.spawn(reduces, nprocs=4, overrides=[f"defaults.{text}" for text in overrides])
        assert (
            f"[F12] a slot of algorithm {name} holds less than one chunk of torch.float32\n"
            "  expected slot_size of 20 B or more: n_elem is 5, and an element has 4 B\n"
            "  got 16 B, at --set defaults.slot_size=16 B\n"
            "  hint: raise slot_size, or lower n_elem"
        ) in str(caught.value)


def test_f12_is_told_by_all_ranks_of_a_collective_that_the_last_one_completes(
    kernbench: Kernbench,
) -> None:
    def exchanges(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(4096, device="cuda")
        try:
            dist.all_to_all_single(torch.empty_like(x), x)
        except UsageError:
            assert rank == 3  # the calls of the others have returned
        torch.cuda.synchronize()

    overrides = ["defaults.slot_size=16 B", "queues.links.slot_size=16 B"]
    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(exchanges, nprocs=4, overrides=overrides)
    assert str(caught.value).startswith("ranks 0-3 failed\nranks 0-3: UsageError: [F12] a slot of")


# What is wrong with a module


def problem(path: Path, module: str, said: str, *hints: str) -> str:
    return "\n".join(
        [
            f"[F14] {path}: 1 problem",
            f"  {path}:4:18: algorithms.mine.module: {said} [F14]",
            f"        mine: {{module: {module}, n_elem: 1}}",
            "                       ^",
            *(f"      {hint}" for hint in hints),
        ]
    )


def test_f14_a_module_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "ccl.yaml"
    path.write_text(CCL.format(module="nowhere"))
    with pytest.raises(ConfigError) as caught:
        choose(load_ccl(path), path)
    assert str(caught.value) == problem(
        path,
        "nowhere",
        "expected an importable module; there is no 'nowhere'",
        f"it is looked for in {tmp_path} and on sys.path",
    )


@pytest.mark.parametrize(
    ("module", "code", "said"),
    [
        ("own_raises", "x = 1\nraise RuntimeError('half done')\n", "2: RuntimeError: half done"),
        ("own_syntax", "def all_reduce(comm:\n", "1: SyntaxError: '(' was never closed"),
        (
            "own_import",
            "import nothing_like_this\n",
            "1: ModuleNotFoundError: No module named 'nothing_like_this'",
        ),
    ],
)
def test_f14_a_module_that_cannot_be_imported(
    here: Callable[[str, str], Chosen], tmp_path: Path, module: str, code: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        here(module, code)
    where = tmp_path / f"{module}.py"
    assert str(caught.value) == problem(
        tmp_path / "ccl.yaml", module, f"importing '{module}' failed at {where}:{said}"
    )


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("x = 1\n", "expected a module with a function such as all_reduce(comm); it has none"),
        ("all_reduce = 3\n", "expected a function all_reduce(comm); got int"),
        ("def all_reduce(): ...\n", "expected all_reduce(comm); got all_reduce()"),
        ("def all_reduce(a, b): ...\n", "expected all_reduce(comm); got all_reduce(a, b)"),
    ],
)
def test_f14_a_module_without_an_entry(
    here: Callable[[str, str], Chosen], tmp_path: Path, code: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        here(f"own_entry_{len(code)}", code)
    (problem,) = caught.value.problems
    assert problem.where.startswith(f"{tmp_path / 'ccl.yaml'}:4:")
    assert problem.field == "algorithms.mine.module"
    assert problem.message.startswith(said)


def test_f12_slots_that_do_not_fit_their_memory(topology: Callable[[str], Topology]) -> None:
    system = topology("sip8").machine.system
    with pytest.raises(ConfigError, match="expected slots that fit into the 1 MiB of tcm of sip8"):
        check_default(
            None,
            [
                "defaults.algorithm=ring_allreduce_tcm",
                "algorithms.ring_allreduce_tcm.slot_size='1 MiB'",
            ],
            system,
        )
    assert check_default(None, [], system) == system.algorithms[0] == "ring"


def test_the_machine_chooses_among_the_shipped_algorithms_only(
    topology: Callable[[str], Topology], tmp_path: Path
) -> None:
    system = topology("h200x8").machine.system
    assert check_default(None, [], system) == system.algorithms[0] == "nccl_simple"
    assert check_default(None, ["defaults.algorithm=ring_allreduce_tcm"], system).endswith("_tcm")
    own = tmp_path / "own.yaml"
    own.write_text(find_ccl_file().read_text())
    assert check_default(own, [], system) == "ring"


def test_f7_an_algorithm_that_the_file_does_not_have(
    here: Callable[[str, str], Chosen], tmp_path: Path
) -> None:
    here("own_ring", BRANCHING)
    path = find_ccl_file()
    with pytest.raises(UsageError) as caught:
        choose(load_ccl(path), path, "theirs")
    assert str(caught.value) == f"[F7] no algorithm 'theirs' in {path}\n  it has mine"
    with pytest.raises(ConfigError, match=r"expected one of the algorithms of this file"):
        load_ccl(path, ("defaults.algorithm=theirs",))


def test_the_working_directory_comes_before_what_is_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = find_ccl_file()
    assert (shipped.name, shipped.parent.name) == ("ccl.yaml", "configs")
    (tmp_path / "ccl.yaml").write_text("")
    assert find_ccl_file() == tmp_path / "ccl.yaml"
    assert find_ccl_file(Path("other.yaml")) == Path("other.yaml")
    assert local_file_notice(["other.yaml"]) is None
    assert local_file_notice(["other.yaml", None]) == local_file_notice()
    assert str(tmp_path / "ccl.yaml") in (local_file_notice() or "")
    monkeypatch.chdir(shipped.parent)  # where the working directory's is the shipped one
    assert local_file_notice() is None


def test_an_entry_overrides_the_defaults_and_the_issues_own_file_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ccl.yaml").write_text(
        "defaults: {algorithm: ring_allreduce_tcm, buffer_kind: tcm, backpressure: sleep, "
        "n_slots: 4, slot_size: 4096, vc_chunk_size: 256, ipcq_credit_size_bytes: 16}\n"
        "algorithms:\n"
        "  ring_allreduce_tcm: {module: kernbench.ccl.algorithms.ring_allreduce, "
        "topology: ring_1d, buffer_kind: sram, n_elem: 8}\n"
    )
    path = find_ccl_file()
    chosen = choose(load_ccl(path), path)
    queue = chosen.queue
    assert (queue.space.value, queue.backpressure, queue.n_slots) == ("sram", "sleep", 4)
    assert (queue.slot_size, queue.vc_chunk_size, queue.credit_size) == (4096, 256, 16)
    assert chosen.align == 8
    assert chosen.algorithm("all_reduce") is ring_allreduce.all_reduce


# Plans


def test_who_may_be_done_before_all_have_begun() -> None:
    def shift(comm: Comm) -> None:
        n = comm.world_size
        comm.exchange(send=0, to=(comm.rank + 1) % n, receive=0, source=(comm.rank - 1) % n)

    def pairs(comm: Comm) -> None:
        for _ in range(comm.world_size):
            comm.exchange(send=0, to=comm.rank ^ 1, receive=0, source=comm.rank ^ 1)

    def broadcast(comm: Comm) -> None:
        for step in range(comm.world_size - 1):
            comm.exchange(
                send=0 if comm.rank == step else NOTHING,
                to=step + 1,
                receive=0 if comm.rank == step + 1 else NOTHING,
                source=step,
            )

    for algorithm, ranks, gathers in (
        (ring_allreduce.all_reduce, 2, True),
        (ring_allreduce.all_reduce, 5, True),
        (shift, 2, True),
        (shift, 3, False),
        (pairs, 2, True),
        (pairs, 4, False),
        (broadcast, 3, False),
    ):
        plan = planned(algorithm, ranks)
        assert plan is not None
        assert (plan.in_step and plan.gathers) is gathers, (algorithm, ranks)


@pytest.mark.parametrize("late", [[], [2], [0]])
def test_a_rank_that_needs_nobody_is_done_before_the_others_come(
    topology: Callable[[str], Topology], late: list[int]
) -> None:
    def broadcast(comm: Comm) -> None:
        for step in range(comm.world_size - 1):
            for chunk in range(comm.world_size):
                comm.exchange(
                    send=chunk if comm.rank == step else NOTHING,
                    to=step + 1,
                    receive=chunk if comm.rank == step + 1 else NOTHING,
                    source=step,
                )

    machine, starts = topology("sip8"), [0, 50_000_000, 90_000_000]
    timed, live = (
        run(
            machine,
            own_algorithm(broadcast),
            starts,
            100,
            late=late,
            fidelity="tile" if tile else "kernel",
        )
        for tile in (False, True)
    )
    live.same(timed)
    ends = [end or 0 for end in timed.ends]
    assert ends[0] < starts[1] < ends[1] < starts[2] < ends[2]
    assert all(output.tobytes() == timed.inputs[0].tobytes() for output in timed.outputs)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 100, 1000])
@pytest.mark.parametrize("parts", [1, 3, 8])
@pytest.mark.parametrize("align", [1, 8])
@pytest.mark.parametrize("size", [1, 16, 1000])
def test_chunks_and_their_pieces_cover_the_buffer_once(
    count: int, parts: int, align: int, size: int
) -> None:
    layout = cut(count, parts, align)
    covered: list[int] = []
    for chunk in range(parts):
        begin, end = layout.extent(0, chunk)
        pieces = layout.pieces(0, chunk, 1, size)
        assert all(0 <= length <= size for _, length in pieces)
        assert sum(length for _, length in pieces) == end - begin
        assert begin % align == 0 or begin == count
        covered += [first + n for first, length in pieces for n in range(length)]
    assert covered == list(range(count))


@pytest.mark.parametrize("n_slots", [1, 2, 4, 9])
@pytest.mark.parametrize("pieces", [0, 1, 3, 4, 20])
def test_sending_runs_ahead_by_all_slots_but_one(pieces: int, n_slots: int) -> None:
    found = list(turns(pieces, pieces, n_slots))
    assert [leaving for leaving, _ in found if leaving is not None] == list(range(pieces))
    assert [arriving for _, arriving in found if arriving is not None] == list(range(pieces))
    ahead = 0
    for leaving, arriving in found:
        ahead += leaving is not None
        assert ahead <= n_slots
        ahead -= arriving is not None
        assert ahead >= 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("send=99, to=0, receive=0, source=0", "send= a chunk from 0 to 3, or NOTHING; got 99"),
        ("send=0, to=4, receive=0, source=0", "to= a rank from 0 to 3; got 4"),
        ("send=0, to=0, receive=-2, source=0", "receive= a chunk from 0 to 3"),
        ("send=0, to=0, receive=0, source=0, combine='sum'", "combine='reduce' or 'copy'"),
    ],
)
@pytest.mark.parametrize("fidelity", ["kernel", "tile"])
def test_an_exchange_that_does_not_exist_is_refused(
    kernbench: Kernbench,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    said: str,
    fidelity: Fidelity,
) -> None:
    name = "".join(c if c.isalnum() else "_" for c in f"bad_{arguments}_{fidelity}")
    (tmp_path / f"{name}.py").write_text(f"def all_reduce(comm):\n    comm.exchange({arguments})\n")
    (tmp_path / "ccl.yaml").write_text(
        f"defaults: {{algorithm: own}}\nalgorithms: {{own: {{module: {name}}}}}\n"
    )
    monkeypatch.chdir(tmp_path)

    def worker(rank: int) -> None:
        torch.distributed.init_process_group()
        x = torch.ones(64)
        torch.distributed.all_reduce(x)
        x.tolist()

    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=4, fidelity=fidelity)
    assert said in str(caught.value)
    assert f"{name}.py:2" in str(caught.value)
