"""Drawn programs on drawn machines, run with every rank and with one rank of each class."""

from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.classes.partition import NotAlikeError
from kernbench.classes.splits import Splits, until_stable
from kernbench.process.process import current_process
from kernbench.run_spec import RunSpec
from kernbench.run_spec.values import Collapse
from kernbench.runtime_api.context import RuntimeContext

MACHINES = {
    "switch": ("h200x8", ()),
    "nodes of 8": ("h200x8_x4_nodes", ()),
    "nodes of 4": (
        "h200x8_x4_nodes",
        ("system.sips.network.node.size=4", "system.sips.network.spine.count=2"),
    ),
    "ring": ("ring1024", ()),
}
"""Machines of any number of SIPs: a shipped one, and what is changed."""

ALGORITHMS = ("auto", "ring", "nccl_simple", "nccl_tree", "halving_doubling")
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "message", "work")
DIMENSIONS = ("tp", "dp", "pp")


@dataclass(frozen=True)
class Step:
    """Something that every rank does.

    Attributes:
        kind: One of `KINDS`.
        along: The dimension of the mesh whose group does it.
        elements: Elements of float32.
        beside: Whether it goes on while the rank computes.
        late: Whether the rank waits for that at the end of the program alone.
        stage: The stage that alone does it before the others go on; -1 for all.
    """

    kind: str
    along: str
    elements: int
    beside: bool
    late: bool
    stage: int


@dataclass(frozen=True)
class Case:
    """A machine, a mesh and a program.

    Attributes:
        machine: A key of `MACHINES`.
        algorithm: Of all collectives.
        mesh: Ranks along `tp`, `dp` and `pp`, fastest first.
        steps: The program.
        slow: Ranks whose SIPs start commands later, and by how many microseconds; maybe none of
            the machine.
    """

    machine: str
    algorithm: str
    mesh: tuple[int, int, int]
    steps: tuple[Step, ...]
    slow: tuple[tuple[int, int], ...] = ()

    @property
    def ranks(self) -> int:
        """Number of all ranks."""
        tp, dp, pp = self.mesh
        return tp * dp * pp


def cases(most: int, stragglers: int = 0) -> st.SearchStrategy[Case]:
    """Returns cases of at most so many ranks, some of which may be slow."""
    extents = st.sampled_from([1, 2, 3, 4, 6, 8, 16, 32])
    meshes = st.tuples(extents, extents, st.sampled_from([1, 2, 3, 4]))
    steps = st.builds(
        Step,
        kind=st.sampled_from(KINDS),
        along=st.sampled_from(DIMENSIONS),
        elements=st.sampled_from([1, 1000, 1 << 14, 1 << 20]),
        beside=st.booleans(),
        late=st.booleans(),
        stage=st.integers(-1, 3),
    )
    drawn = st.builds(
        Case,
        machine=st.sampled_from(list(MACHINES)),
        algorithm=st.sampled_from(ALGORITHMS),
        mesh=meshes,
        steps=st.lists(steps, min_size=1, max_size=5).map(tuple),
        slow=st.lists(
            st.tuples(st.integers(0, most - 1), st.sampled_from([3, 50])),
            max_size=stragglers,
            unique_by=lambda pair: pair[0],
        ).map(tuple),
    )
    return drawn.filter(lambda case: 2 <= case.ranks <= most)


def _group(case: Case, rank: int, along: str) -> Any:
    """Returns the group of a rank along a dimension."""
    number = DIMENSIONS.index(along)
    stride = 1
    for extent in case.mesh[:number]:
        stride *= extent
    first = rank - rank // stride % case.mesh[number] * stride
    ranks = range(first, first + stride * case.mesh[number], stride)
    return dist.new_group(ranks, use_local_synchronization=True)


def _issue(step: Step, group: Any) -> Any:
    ranks = group.size()
    whole = torch.zeros(step.elements * ranks, device="cuda")
    part = torch.zeros(step.elements, device="cuda")
    match step.kind:
        case "all_reduce":
            return dist.all_reduce(part, group=group, async_op=step.beside)
        case "all_gather":
            return dist.all_gather_into_tensor(whole, part, group=group, async_op=step.beside)
        case "reduce_scatter":
            return dist.reduce_scatter_tensor(part, whole, group=group, async_op=step.beside)
        case "all_to_all":
            other = torch.zeros(step.elements * ranks, device="cuda")
            return dist.all_to_all_single(other, whole, group=group, async_op=step.beside)
        case _:
            source = dist.get_process_group_ranks(group)[0]
            return dist.broadcast(part, source, group=group, async_op=step.beside)


def _worker(rank: int, case: Case, clocks: dict[int, list[int]]) -> None:
    dist.init_process_group("nccl")
    groups = {along: _group(case, rank, along) for along in DIMENSIONS}
    tp, dp, pp = case.mesh
    stage, host = rank // (tp * dp), current_process().host
    left = []
    for step in case.steps:
        x = torch.ones(step.elements, device="cuda")
        if step.stage in (-1, stage):
            x = x * 2
        work = None
        if step.kind == "message":
            if stage + 1 < pp:
                dist.send(x, rank + tp * dp)
            if stage:
                dist.recv(x, rank - tp * dp)
        elif step.kind != "work":
            work = _issue(step, groups[step.along])
        (x + 1).sum()
        if work is not None and step.late:
            left.append(work)
        elif work is not None:
            work.wait()
        clocks.setdefault(rank, []).append(host.clock)
    for work in left:
        work.wait()
    torch.cuda.synchronize()
    clocks[rank].append(host.clock)
    dist.destroy_process_group()


def _run(
    case: Case, collapse: Collapse, splits: Splits | None = None
) -> tuple[RuntimeContext, dict[int, list[int]]]:
    name, changes = MACHINES[case.machine]
    overrides = [*changes, f"defaults.algorithm={case.algorithm}"]
    changed = [
        f"{{which: [{rank}], sip: {{launch: {us} us}}}}"
        for rank, us in case.slow
        if rank < case.ranks
    ]
    if changed:
        overrides.append(f"system.sips.changed=[{', '.join(changed)}]")
    # Whole nodes, of which the last may be idle.
    sips = max(-(-case.ranks // 8) * 8, 8)
    spec = RunSpec(
        topology=name,
        overrides=(f"system.sips.count={sips}", *overrides),
        data=False,
        record="full",
        collapse=collapse,
    )
    ctx = RuntimeContext(spec, splits=splits)
    tp, dp, _ = case.mesh
    ctx.roles = lambda rank: f"stage {rank // (tp * dp)}"
    clocks: dict[int, list[int]] = {}
    with ctx:
        ctx.multiprocessing.spawn(_worker, args=(case, clocks), nprocs=case.ranks)
    return ctx, clocks


def refused(case: Case, *, split: bool = True) -> NotAlikeError | None:
    """Compares a collapsed run with the run of every rank.

    Args:
        split: Whether classes may be split.

    Returns:
        Why the case is refused; None if it is not, and all is equal.
    """
    try:
        if split:
            ctx, some = until_stable(lambda splits: _run(case, "exact", splits))
        else:
            ctx, some = _run(case, "exact")
    except NotAlikeError as error:
        return error
    except Exception as error:
        cause = error.__cause__
        if isinstance(cause, NotAlikeError):
            return cause
        raise
    (partition,) = ctx.collapsed
    live, every = _run(case, "off")
    for rank, clocks in every.items():
        assert clocks == some[partition.class_of(rank).member], rank
    for rank in partition.callers:
        assert _records(ctx, rank) == _records(live, rank), rank
        assert _peak(ctx, rank) == _peak(live, rank), rank
    return None


def _peak(ctx: RuntimeContext, rank: int) -> int:
    return ctx.engine.devices[ctx.devices[rank]].hbm.peak


def _records(ctx: RuntimeContext, rank: int) -> list[Any]:
    log = ctx.engine.op_log
    return sorted(
        (record.start, record.end, record.name, record.track, record.issued, str(record.args))
        for record in log.records
        if record.rank == rank and not record.track.startswith("dma")
    )
