"""Collectives and messages among the devices of a node."""

from collections.abc import Mapping
from typing import Any, Final

from kernbench.calibration.lines import REPLAYS, known
from kernbench.validation.table import (
    BESIDE,
    COUNT,
    FLAG,
    MEASURED,
    WORD,
    Row,
    Table,
    Times,
)
from kernbench.validation.timing import Call, ahead_us, eager_us, new

_MESSAGES: Final = ("nccl_p2p", "nccl_p2p_ll")
_FORCED: Final[Mapping[str, Mapping[str, str]]] = {
    "ring": {"Simple": "nccl_simple", "LL": "nccl_ll", "LL128": "nccl_ll128"},
    "tree": {"Simple": "nccl_tree", "LL": "nccl_tree_ll", "LL128": "nccl_tree_ll128"},
}
"""What NCCL_ALGO and NCCL_PROTO leave, as `ccl.yaml` calls it."""

_GRAPHS_UP_TO: Final = 4 << 20
"""Bytes up to which `protocols.csv` was replayed from graphs."""
_LARGE_CALLS: Final = 10
"""Calls of what is larger: the host is ahead after the first, and its time is divided among all."""


def batch(torch: Any, messages: list[tuple[Any, Any, int]]) -> Call:
    """Returns what sends and receives messages together.

    Args:
        messages: Of each, `isend` or `irecv`, the tensor, and the other rank.
    """
    dist = torch.distributed

    def call() -> None:
        for work in dist.batch_isend_irecv([dist.P2POp(*message) for message in messages]):
            work.wait()

    return call


def collective(torch: Any, op: str, nbytes: int) -> Call:
    """Returns a collective of bf16 among all ranks.

    Args:
        op: Its name in tables.
        nbytes: The size as nccl-tests counts it: of the larger buffer.
    """
    dist = torch.distributed
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole, other = (new(torch, nbytes // 2) for _ in range(2))
    part = new(torch, nbytes // 2 // ranks)
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    calls: dict[str, Call] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "ring_exchange": batch(torch, [(dist.isend, whole, after), (dist.irecv, other, before)]),
    }
    return known(calls, op)


def _collectives(torch: Any, row: Row) -> Times:
    nbytes = int(row["bytes"])
    call = collective(torch, row["op"], nbytes)
    torch.distributed.barrier()
    if row["graph"] in {"1", "True"}:
        return {"us": ahead_us(torch, call)}
    return {"us": eager_us(torch, call, _LARGE_CALLS if nbytes > _GRAPHS_UP_TO else REPLAYS)}


def _algorithms(row: Row) -> tuple[str, ...]:
    if row["algo"] == "default":
        return ()
    names = (*known(_FORCED, row["algo"], "algo").values(), *_MESSAGES)
    return (f"system.algorithms=[{', '.join(names)}]",)


def _protocols(torch: Any, row: Row) -> Times:
    graph = "1" if int(row["bytes"]) <= _GRAPHS_UP_TO else "0"
    return _collectives(torch, {**row, "graph": graph})


def _one_algorithm(row: Row) -> tuple[str, ...]:
    protocols = known(_FORCED, row["algo"], "algo")
    return (f"defaults.algorithm={known(protocols, row['proto'], 'proto')}",)


_HALVES, _PAIRS = ((0, 1), (2, 3)), ((0, 2), (1, 3))


def _concurrent(torch: Any, row: Row) -> Times | None:
    """All-reduces of groups of two among four ranks; the mean of the ranks that take part."""
    dist = torch.distributed
    ways: Mapping[str, tuple[tuple[tuple[int, int], ...], ...]] = {
        "one half alone": (_HALVES[:1],),
        "both halves at once": (_HALVES,),
        "pairs alone": (_PAIRS,),
        "halves and pairs at once": (_HALVES, _PAIRS),
    }
    wanted, rank = known(ways, row["what"], "what"), dist.get_rank()
    mine = []
    for groups in (_HALVES, _PAIRS):  # every rank makes all groups, in one order
        for ranks in groups:
            group = dist.new_group(list(ranks))
            if rank in ranks and any(ranks in each for each in wanted):
                mine.append((new(torch, int(row["bytes"]) // 2), group))

    def call() -> None:
        works = [dist.all_reduce(x, group=group, async_op=True) for x, group in mine]
        for work in works:
            work.wait()

    return {"us": eager_us(torch, call)} if mine else None


def _messages(torch: Any, row: Row) -> Times | None:
    dist = torch.distributed
    rank, ranks, count = dist.get_rank(), dist.get_world_size(), int(row["bytes"]) // 2
    x = new(torch, count)
    if known(
        {"send 0->1 (mean over all ranks)": False, "incast 7->0": True}, row["pattern"], "pattern"
    ):
        arriving = [(dist.irecv, new(torch, count), peer) for peer in range(1, ranks)]
        return {"us": eager_us(torch, batch(torch, [(dist.isend, x, 0)] if rank else arriving))}
    if rank > 1:
        return None
    return {"us": eager_us(torch, lambda: dist.recv(x, 0) if rank else dist.send(x, 1))}


def _n(row: Row) -> int:
    return int(row["n"])


_ALL: Final = {"op": WORD, "algo": WORD}
TABLES: Final = (
    Table(
        name="collectives",
        about="NCCL's collectives, bf16, from CUDA graphs and eager",
        columns={
            **_ALL,
            "n": COUNT,
            "bytes": COUNT,
            "dtype": WORD,
            "graph": FLAG,
            "us": MEASURED,
            "min_us": BESIDE,
        },
        program=_collectives,
        ranks=_n,
        overrides=_algorithms,
        part=lambda row, column: "" if row["algo"] == "default" else "forced",
    ),
    Table(
        name="protocols",
        about="collectives with NCCL_ALGO and NCCL_PROTO given",
        columns={**_ALL, "proto": WORD, "n": COUNT, "bytes": COUNT, "us": MEASURED},
        program=_protocols,
        ranks=_n,
        overrides=_one_algorithm,
    ),
    Table(
        name="concurrent",
        about="all-reduces of two groups at once, 4 ranks, eager",
        columns={"what": WORD, "bytes": COUNT, "us": MEASURED},
        program=_concurrent,
        ranks=lambda row: 4,
    ),
    Table(
        name="p2p",
        about="a send, and sends of seven ranks to one, eager",
        columns={"pattern": WORD, "bytes": COUNT, "us": MEASURED},
        program=_messages,
        ranks=lambda row: 8,
    ),
)
