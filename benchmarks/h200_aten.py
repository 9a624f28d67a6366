"""Operations of PyTorch on `h200x8`: microseconds measured, and what `bridge.costs` says.

Needs `kernbench[torch]`. The argument names a folder with tables measured on an H200: `gemm2.csv`,
`elementwise.csv`, `rowops2.csv`, `embedding.csv`, `optim.csv`, `attention2.csv`, each with the
columns that its function here reads. Nothing runs: the operations are called on tensors without
numbers, and their costs added.

The constants of `bridge.costs*` were fitted on the tables of 2026-11-22 (PyTorch 2.11.0, one NVIDIA
H200). They hold what a pair of events reads with nothing between, so that predicted times get the
machine's `event`.
"""

import csv
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _measure
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from kernbench.bridge.operations.costs import Cost, cost_of
from kernbench.hw.library import Library
from kernbench.topology import load_topology

EVENT_US = load_topology("h200x8").topology_obj.machine.system.sip.event / 1e6
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
WORST = 4
Row = dict[str, str]
aten = torch.ops.aten


class Adding(TorchDispatchMode):  # type: ignore[misc]
    """Adds the times of the operations of a block."""

    def __init__(self, library: Library) -> None:
        super().__init__()
        self.library, self.ps = library, 0
        self.costs: dict[Any, Cost] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        cost = self.costs.get(func)
        if cost is None:
            cost = self.costs[func] = cost_of(func)
        self.ps += cost.duration(self.library, args, kwargs, out)
        return out


def new(*shape: int, dtype: torch.dtype = torch.bfloat16, grad: bool = False) -> torch.Tensor:
    """Returns a tensor without numbers."""
    return torch.empty(*shape, dtype=dtype, device="meta", requires_grad=grad)


def gemm(row: Row) -> Callable[[], object]:
    """A product `a @ b.T`."""
    m, n, k = (int(row[name]) for name in "mnk")
    if row["dtype"] == "fp8":
        a, b = (new(*size, dtype=torch.float8_e4m3fn) for size in ((m, k), (n, k)))
        one = new(1, dtype=torch.float32)
        return lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16)
    torch.set_float32_matmul_precision("high" if row["dtype"] == "tf32" else "highest")
    dtype = DTYPES.get(row["dtype"], torch.float32)
    a, b = new(m, k, dtype=dtype), new(n, k, dtype=dtype)
    return lambda: a @ b.t()


def elementwise(row: Row) -> Callable[[], object]:
    """An operation on operands of so many bytes."""
    dtype = DTYPES[row["dtype"]]
    x, y = (new(int(row["bytes"]) // dtype.itemsize, dtype=dtype) for _ in range(2))
    wide = x.view(-1, 4096)
    other = torch.float32 if dtype is torch.bfloat16 else torch.bfloat16
    some: dict[str, Callable[[], object]] = {
        "add": lambda: torch.add(x, y, out=y),
        "mul": lambda: torch.mul(x, y, out=y),
        "add_scalar": lambda: torch.add(x, 1, out=y),
        "exp": lambda: torch.exp(x, out=y),
        "copy": lambda: y.copy_(x),
        "gelu": lambda: F.gelu(x),
        "silu": lambda: F.silu(x),
        "relu": lambda: F.relu(x),
        "dropout": lambda: torch.native_dropout(x, 0.1, True),
        "where": lambda: torch.where(new(x.numel(), dtype=torch.bool), x, y),
        "cat": lambda: torch.cat((x, y)),
        "cast": lambda: x.to(other),
        "add_bcast": lambda: wide + new(4096, dtype=dtype),
        "transpose_copy": lambda: wide.t().contiguous(),
        "zero": x.zero_,
        "normal_": x.normal_,
        "uniform_": x.uniform_,
        "bernoulli_": x.bernoulli_,
    }
    return some[row["op"]]


def rowops(row: Row) -> Callable[[], object] | None:
    """An operation over the last dimension, or its gradient."""
    rows, columns = int(row["rows"]), int(row["cols"])
    x = new(rows, columns)
    weight, grad, rstd = new(columns), new(rows, columns), new(rows, 1, dtype=torch.float32)
    target = new(rows, dtype=torch.int64)
    total = new(1, dtype=torch.float32)
    names: dict[str, Callable[[], object]] = {
        "softmax": lambda: torch.softmax(x, -1),
        "softmax_bwd": lambda: aten._softmax_backward_data(grad, x, -1, x.dtype),
        "layer_norm": lambda: F.layer_norm(x, (columns,), weight, weight),
        "layer_norm_bwd": lambda: aten.native_layer_norm_backward(
            grad, x, [columns], rstd, rstd, weight, weight, [True] * 3
        ),
        "rms_norm_bwd": lambda: aten._fused_rms_norm_backward(
            grad, x, [columns], rstd, weight, [True, True]
        ),
        "sum": lambda: x.sum(-1),
        "mean": lambda: x.mean(-1),
        "argmax": lambda: x.argmax(-1),
        "cross_entropy": lambda: F.cross_entropy(x, target),
        "cross_entropy_bwd": lambda: aten._log_softmax_backward_data(
            aten.nll_loss_backward(total.to(x.dtype), x, target, None, 1, -100, total[0]),
            x,
            -1,
            x.dtype,
        ),
    }
    return names.get(row["op"])


def rms_norm(library: Library, row: Row) -> int:
    """The cost of `_fused_rms_norm`, which has no function for tensors without numbers."""
    rows, columns = int(row["rows"]), int(row["cols"])
    x = new(rows, columns)
    out = x, new(rows, 1, dtype=torch.float32)
    cost = cost_of(aten._fused_rms_norm.default)
    return int(cost.duration(library, (x, [columns], new(columns), 1e-5), None, out))


def embedding(row: Row) -> Callable[[], object]:
    """A look-up of rows, or its gradient."""
    vocabulary, hidden, tokens = (int(row[name]) for name in ("vocab", "hidden", "tokens"))
    dtype = DTYPES[row["dtype"]]
    ids = new(tokens, dtype=torch.int64)
    if row["op"] == "embedding":
        return lambda: F.embedding(ids, new(vocabulary, hidden, dtype=dtype))
    grad = new(tokens, hidden, dtype=dtype)
    return lambda: aten.embedding_dense_backward(grad, ids, vocabulary, -1, False)


def optim(row: Row) -> Callable[[], object]:
    """One step over the parameters of a model of 1.24 B elements: 146 tensors."""
    dtype, hidden = DTYPES[row["dtype"]], 2048
    sizes = [(128256, hidden), (hidden,)]
    for _ in range(16):
        sizes += [(hidden, hidden)] * 2 + [(512, hidden)] * 2 + [(8192, hidden)] * 3
        sizes += [(hidden,)] * 2
    params, grads, first, second = ([new(*size, dtype=dtype) for size in sizes] for _ in range(4))
    steps = [new(1, dtype=torch.float32) for _ in sizes]

    def sgd() -> None:
        torch._foreach_mul_(first, 0.9)
        torch._foreach_add_(first, grads)
        torch._foreach_add_(params, first, alpha=-0.1)

    def clip() -> None:
        norms = torch._foreach_norm(grads)
        torch.linalg.vector_norm(torch.stack(norms))
        torch._foreach_mul_(grads, new(1, dtype=dtype)[0])

    def adamw() -> None:
        options = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.1, "eps": 1e-8}
        flags = {"amsgrad": False, "maximize": False}
        aten._fused_adamw_(params, grads, first, second, [], steps, **options, **flags)

    known: dict[str, Callable[[], object]] = {
        "sgd_foreach": sgd,
        "clip_grad_norm_foreach": clip,
        "adamw_fused": adamw,
        "foreach_zero": lambda: torch._foreach_zero_(grads),
    }
    return known[row["op"]]


def attention(row: Row, *, backward: bool) -> Callable[[], object]:
    """Attention by the kernel of one backend, or its gradient."""
    batch, heads, groups, queries, keys, width = (
        int(row[name]) for name in ("b", "h", "hk", "sq", "s", "d")
    )
    q = new(batch, heads, queries, width)
    k, v = (new(batch, groups, keys, width) for _ in range(2))
    causal, lse = row["causal"] == "1", new(batch, heads, queries, dtype=torch.float32)
    seed = new(1, dtype=torch.int64)
    if row["backend"] == "cudnn":
        if backward:
            return lambda: aten._scaled_dot_product_cudnn_attention_backward(
                q, q, k, v, q, lse, seed, seed, seed, seed, seed, queries, keys, 0.0, causal
            )
        return lambda: aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal)
    if backward:
        return lambda: aten._scaled_dot_product_flash_attention_backward(
            q, q, k, v, q, lse, seed, seed, queries, keys, 0.0, causal, seed, seed
        )
    return lambda: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)


def predicted(library: Library, call: Callable[[], object]) -> float:
    """Returns the microseconds of the operations of a call."""
    with Adding(library) as adding:
        call()
    return float(adding.ps / 1e6) + EVENT_US


def cells(name: str, row: Row, library: Library) -> Iterator[tuple[str, float, float]]:
    """Yields what was measured and what is predicted of a row, in microseconds."""
    label = " ".join(value for key, value in row.items() if key not in _RESULTS)
    if name == "attention2":
        for column, backward in (("fwd_us", False), ("bwd_us", True)):
            if row[column]:
                call: Any = attention(row, backward=backward)
                yield f"{label} {column}", float(row[column]), predicted(library, call)
        return
    if name == "gemm2":
        yield label, float(row["us"]), predicted(library, gemm(row))
        return
    measured = float(row["us"])
    if row["op"] == "rms_norm":
        yield label, measured, rms_norm(library, row) / 1e6 + EVENT_US
        return
    call = _CALLS[name](row)
    if call is not None:
        yield label, measured, predicted(library, call)


_RESULTS = {"us", "host_us", "fwd_us", "bwd_us", "tflops"}
_CALLS: dict[str, Callable[[Row], Any]] = {
    "elementwise": elementwise,
    "rowops2": rowops,
    "embedding": embedding,
    "optim": optim,
}


def main(folder: Path, worst: int) -> None:
    """Prints a line for each table, and for the rows with the largest error."""
    library = Library(load_topology("h200x8").topology_obj.machine.system.sip)
    lines: list[list[object]] = []
    for name in ("gemm2", "elementwise", "rowops2", "embedding", "optim", "attention2"):
        with (folder / f"{name}.csv").open() as file:
            found = [each for row in csv.DictReader(file) for each in cells(name, row, library)]
        found.sort(key=lambda each: -abs(each[2] / each[1] - 1))
        mean = sum(abs(guess / real - 1) for _, real, guess in found) / len(found)
        lines.append([f"{name}: {len(found)} rows", "", "", f"{mean:.1%}"])
        lines += [
            [f"  {label}", f"{real:.1f}", f"{guess:.1f}", f"{guess / real - 1:+.0%}"]
            for label, real, guess in found[:worst]
        ]
    _measure.show(
        "operations of PyTorch, us on an H200", ["table", "measured", "cost", "error"], lines
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else WORST)
