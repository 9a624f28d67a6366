"""Single kernels on `h200x8`: microseconds measured, and predicted under each of the two torches.

The cells were measured on 2026-11-20 (`rowops`, `memory`) and 2026-11-22 (the others) on NVIDIA
H200 (PyTorch 2.11.0). A folder may be named that has more of them, as `rowops.csv`, `rowops2.csv`,
`elementwise.csv`, `memory.csv` and `embedding.csv`. Both torches run the same functions, without
numbers, and what their commands take on a device counts. Without PyTorch, its column is left out.

Measured times hold what a pair of events reads with nothing between, so that predicted ones get the
machine's `event`: once a call, or a 20th of it where 20 calls ran from one CUDA graph (`memory` up
to 16 MiB).
"""

import csv
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, median
from typing import Any

import _measure

from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology

WORST = 3
Row = Mapping[str, str]
Cell = tuple[str, Row]
Call = Callable[[], object]

TABLES = ("rowops", "rowops2", "elementwise", "memory", "embedding")
EVENT_US = load_topology("h200x8").topology_obj.machine.system.sip.event / 1e6
GRAPH_CALLS, GRAPH_BYTES = 20, 1 << 24
RESULTS = frozenset({"us", "gbps"})
TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
SIZES = {"bf16": 2, "fp16": 2, "fp32": 4}

REFERENCE = {
    "rowops": """op,rows,cols,us
softmax,8192,4096,108.96
sum,8192,4096,28.128
layernorm,8192,8192,119.424
""",
    "rowops2": """op,rows,cols,us
layer_norm,1024,512,7.616
softmax,1024,4096,19.008
softmax,1024,32768,71.392
softmax_bwd,4096,512,13.312
rms_norm,4096,4096,27.904
sum,4096,16384,52.192
rms_norm,16384,512,19.52
softmax_bwd,16384,1024,69.312
layer_norm_bwd,16384,4096,237.248
layer_norm_bwd,16384,16384,1021.536
softmax_bwd,16384,32768,1684.0
argmax,65536,512,63.36
argmax,65536,4096,284.352
mean,65536,32768,1188.288
""",
    "elementwise": """op,dtype,bytes,us
gelu,bf16,1048576,6.272
gelu,fp32,1048576,6.016
add,bf16,8388608,12.256
add,fp32,8388608,11.776
add_scalar,fp32,8388608,9.152
where,bf16,33554432,34.624
relu,fp32,33554432,22.304
transpose_copy,fp32,33554432,70.08
where,bf16,134217728,113.6
add_scalar,fp32,134217728,69.504
zero,bf16,536870912,162.432
zero,fp32,536870912,118.528
normal_,bf16,134217728,160.16
""",
    "memory": """op,bytes,us,gbps
copy,4096,1.393,5.882
copy,65536,1.51,86.78
copy,1048576,1.766,1187.246
copy,16777216,6.339,5293.165
copy,268435456,130.368,4118.119
""",
    "embedding": """op,dtype,vocab,hidden,tokens,us
embedding,bf16,32000,4096,4096,23.872
embedding_bwd,bf16,128256,4096,4096,646.496
embedding,fp32,32000,4096,4096,40.608
embedding_bwd,fp32,128256,4096,16384,1486.144
""",
}
"""Some cells of each table."""


def new(torch: Any, *shape: int, dtype: str = "bfloat16", grad: bool = False) -> Any:
    kind = getattr(torch, dtype)
    return torch.zeros(*shape, dtype=kind, device="cuda", requires_grad=grad)


def elementwise(torch: Any, row: Row) -> Call:
    """An operation on operands of so many bytes."""
    size, dtype = SIZES[row.get("dtype", "bf16")], TYPES[row.get("dtype", "bf16")]
    count = int(row["bytes"]) // size
    x, y = (new(torch, count, dtype=dtype) for _ in range(2))
    op, functional = row["op"], torch.nn.functional
    if op in {"add_bcast", "transpose_copy"}:
        wide, line = x.view(-1, 4096), new(torch, 4096, dtype=dtype)
        return (lambda: wide + line) if op == "add_bcast" else (lambda: wide.t().contiguous())
    if op == "where":
        mask = new(torch, count, dtype="bool")
        return lambda: torch.where(mask, x, y)
    other = torch.float32 if dtype == "bfloat16" else torch.bfloat16
    some: dict[str, Call] = {
        "add": lambda: torch.add(x, y, out=y),
        "mul": lambda: torch.mul(x, y, out=y),
        "add_scalar": lambda: torch.add(x, 1, out=y),
        "exp": lambda: torch.exp(x),
        "copy": lambda: y.copy_(x),
        "gelu": lambda: functional.gelu(x),
        "silu": lambda: functional.silu(x),
        "relu": lambda: functional.relu(x),
        "dropout": lambda: functional.dropout(x, 0.1),
        "cat": lambda: torch.cat((x, y)),
        "cast": lambda: x.to(other),
        "zero": x.zero_,
        "normal_": x.normal_,
        "uniform_": x.uniform_,
        # kernbench.torch has only the function, which draws as many numbers.
        "bernoulli_": getattr(x, "bernoulli_", lambda: torch.bernoulli(x)),
    }
    return some[op]


def rowops(torch: Any, row: Row) -> Call:
    """An operation over the last dimension, or its gradient."""
    rows, columns, functional = int(row["rows"]), int(row["cols"]), torch.nn.functional
    name = row["op"].removesuffix("_bwd").replace("layernorm", "layer_norm")
    backward = row["op"].endswith("_bwd")
    x = new(torch, rows, columns, grad=backward)
    weight, bias = (new(torch, columns, grad=backward) for _ in range(2))
    target = new(torch, rows, dtype="int64")
    forward: dict[str, Call] = {
        "softmax": lambda: torch.softmax(x, -1),
        "layer_norm": lambda: functional.layer_norm(x, (columns,), weight, bias),
        "rms_norm": lambda: functional.rms_norm(x, (columns,), weight),
        "sum": lambda: x.sum(-1),
        "mean": lambda: x.mean(-1),
        "argmax": lambda: x.argmax(-1),
        "cross_entropy": lambda: functional.cross_entropy(x, target),
    }
    if not backward:
        return forward[name]
    out = forward[name]()
    inputs = {"layer_norm": (x, weight, bias), "rms_norm": (x, weight)}.get(name, (x,))
    grad = torch.ones_like(out)
    return lambda: torch.autograd.grad(out, inputs, grad)


def embedding(torch: Any, row: Row) -> Call:
    """A look-up of rows, or its gradient."""
    vocabulary, hidden, tokens = (int(row[name]) for name in ("vocab", "hidden", "tokens"))
    backward = row["op"].endswith("_bwd")
    table = new(torch, vocabulary, hidden, dtype=TYPES[row["dtype"]], grad=backward)
    ids = new(torch, tokens, dtype="int64")
    if not backward:
        return lambda: torch.nn.functional.embedding(ids, table)
    out = torch.nn.functional.embedding(ids, table)
    grad = torch.ones_like(out)
    return lambda: torch.autograd.grad(out, table, grad)


MAKERS: dict[str, Callable[[Any, Row], Call]] = {
    "rowops": rowops,
    "rowops2": rowops,
    "elementwise": elementwise,
    "memory": elementwise,
    "embedding": embedding,
}


def predicted(torch: Any, engine: GraphEngine, cells: Iterable[Cell]) -> list[float]:
    """Returns the microseconds that each cell takes on a device; a rank of the engine runs this."""
    records, found = engine.op_log.records, []
    for table, row in cells:
        call = MAKERS[table](torch, row)
        torch.cuda.synchronize()
        begin = len(records)
        call()
        torch.cuda.synchronize()
        took = sum(each.end - each.start for each in records[begin:]) / 1e6
        found.append(took + events_us((table, row)))
    return found


def under_own(cells: list[Cell]) -> list[float]:
    """Returns what `kernbench.torch` predicts."""
    import kernbench.torch as torch

    found: list[float] = []
    engine = _engine()
    with RuntimeContext(engine=engine, quiet=True) as ctx:
        ctx.multiprocessing.spawn(lambda _: found.extend(predicted(torch, engine, cells)), nprocs=1)
    return found


def under_bridge(cells: list[Cell]) -> list[float]:
    """Returns what programs of PyTorch get predicted, which must be installed."""
    import torch

    from kernbench.bridge import bridged

    found: list[float] = []
    engine = _engine()

    def main(rank: int) -> None:
        del rank
        found.extend(predicted(torch, engine, cells))

    with RuntimeContext(engine=engine, quiet=True), bridged(data=False):
        torch.multiprocessing.spawn(main, nprocs=1)
    return found


def _engine() -> GraphEngine:
    return GraphEngine(load_topology("h200x8").topology_obj, False, record="full")


def cells_of(folder: Path | None) -> list[Cell]:
    """Returns the cells of a folder's tables; without a folder, those of this script."""
    found: list[Cell] = []
    for table in TABLES:
        text = REFERENCE.get(table, "") if folder is None else (folder / f"{table}.csv").read_text()
        found += [(table, row) for row in csv.DictReader(text.splitlines())]
    return found


def measured(cell: Cell) -> float:
    """Returns what a cell was measured at, in microseconds."""
    return float(cell[1]["us"])


def events_us(cell: Cell) -> float:
    """Returns what events take of a measured time, in microseconds."""
    table, row = cell
    graph = table == "memory" and int(row["bytes"]) <= GRAPH_BYTES
    return EVENT_US / GRAPH_CALLS if graph else EVENT_US


def errors(cells: list[Cell], times: list[float]) -> dict[str, list[float]]:
    """Returns `predicted / measured - 1` of each cell, by table."""
    found: dict[str, list[float]] = {}
    for cell, time in zip(cells, times, strict=True):
        found.setdefault(cell[0], []).append(time / measured(cell) - 1)
    return found


def mean(values: Iterable[float]) -> float:
    """Returns the mean of absolute errors."""
    return fmean(map(abs, values))


def main(folder: Path | None, worst: int) -> None:
    """Prints the errors of each table, and the cells that are worst or differ most."""
    cells = cells_of(folder)
    times = {"own": under_own(cells)}
    if find_spec("torch") is not None:
        times["bridge"] = under_bridge(cells)
    by_table = {name: errors(cells, found) for name, found in times.items()}
    rows = []
    for table in (*TABLES, "all"):
        line: list[object] = [table]
        for found in by_table.values():
            values = [each for name in found if table in {name, "all"} for each in found[name]]
            ends = max(values, key=abs)
            line += [f"{mean(values):.1%}", f"{median(map(abs, values)):.1%}", f"{ends:+.0%}"]
        rows.append(line)
    header = ["table"]
    for name in times:
        header += [f"{name}: mean", "median", "worst"]
    _measure.show(f"{len(cells)} kernels on an H200: error of the predicted time", header, rows)
    print()
    label = {
        at: " ".join(value for key, value in row.items() if key not in RESULTS)
        for at, (_, row) in enumerate(cells)
    }

    def far(at: int) -> float:
        found = [each[at] for each in times.values()]
        return max(found) / min(found)

    chosen = sorted(label, key=far, reverse=True)[:worst]
    chosen += sorted(label, key=lambda at: -abs(times["own"][at] / measured(cells[at]) - 1))[:worst]
    shown = [
        [label[at], f"{measured(cells[at]):.1f}", *(f"{each[at]:.1f}" for each in times.values())]
        for at in dict.fromkeys(chosen)
    ]
    title = "where they differ most, and where they are worst, us"
    _measure.show(title, ["", "measured", *times], shown)


if __name__ == "__main__":
    main(
        Path(sys.argv[1]) if len(sys.argv) > 1 else None,
        int(sys.argv[2]) if len(sys.argv) > 2 else WORST,
    )
