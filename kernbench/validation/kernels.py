"""Single kernels: of elements, of rows, look-ups, optimisers, copies over PCIe."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from kernbench.calibration import lines
from kernbench.calibration.lines import ROW, known
from kernbench.memory import dtypes
from kernbench.validation.table import BESIDE, COUNT, MEASURED, WORD, Row, Table
from kernbench.validation.timing import (
    Call,
    alone_us,
    eager_us,
    new,
    replayed_us,
)


def _elements(torch: Any, row: Row) -> Call:
    """Returns an operation on elements; its operands are written before."""
    functional, (op, dtype, count) = torch.nn.functional, lines.elements(row)
    x, y, z = (new(torch, count, dtype=dtype.name) for _ in range(3))
    if op in {"add_bcast", "transpose_copy"}:
        wide, line = x.view(-1, ROW), new(torch, ROW, dtype=dtype.name)
        return (lambda: wide + line) if op == "add_bcast" else (lambda: wide.t().contiguous())
    if op == "where":
        mask = new(torch, count, dtype="bool")
        return lambda: torch.where(mask, x, y)
    other = torch.float32 if dtype is dtypes.bfloat16 else torch.bfloat16
    calls: dict[str, Call] = {
        "add": lambda: torch.add(x, y, out=z),
        "mul": lambda: torch.mul(x, y, out=z),
        "add_scalar": lambda: torch.add(x, 1.0, out=z),
        # Without `out=`, which kernbench.torch has not; a result is allocated in no time.
        "exp": lambda: torch.exp(x),
        "copy": lambda: z.copy_(x),
        "gelu": lambda: functional.gelu(x),
        "silu": lambda: functional.silu(x),
        "relu": lambda: functional.relu(x),
        "dropout": lambda: functional.dropout(x, 0.1, True),
        "cat": lambda: torch.cat((x, y)),
        "cast": lambda: x.to(other),
        "zero": z.zero_,
        "normal_": x.normal_,
        "uniform_": x.uniform_,
        # kernbench.torch has only the function, which draws as many numbers.
        "bernoulli_": getattr(x, "bernoulli_", lambda: torch.bernoulli(x)),
    }
    return known(calls, op)


def _elementwise(torch: Any, row: Row) -> Mapping[str, float]:
    return {"us": alone_us(torch, _elements(torch, row))}


def _memory(torch: Any, row: Row) -> Mapping[str, float]:
    timed = replayed_us if lines.replayed(row) else alone_us
    return {"us": timed(torch, _elements(torch, row))}


def _rows(torch: Any, row: Row) -> Mapping[str, float]:
    """An operation over the last dimension, or its gradient of all inputs."""
    functional, (name, dtype, backward, rows, columns) = (
        torch.nn.functional,
        lines.over_rows(row),
    )
    x = new(torch, rows, columns, dtype=dtype.name, grad=backward)
    weight, bias = (new(torch, columns, dtype=dtype.name, grad=backward) for _ in range(2))
    target = new(torch, rows, dtype="int64")
    calls: dict[str, Call] = {
        "softmax": lambda: torch.softmax(x, -1),
        "log_softmax": lambda: torch.log_softmax(x, -1),
        "layer_norm": lambda: functional.layer_norm(x, (columns,), weight, bias),
        "rms_norm": lambda: functional.rms_norm(x, (columns,), weight),
        "sum": lambda: x.sum(-1),
        "mean": lambda: x.mean(-1),
        "argmax": lambda: x.argmax(-1),
        "cross_entropy": lambda: functional.cross_entropy(x, target),
    }
    call = known(calls, name)
    if not backward:
        return {"us": alone_us(torch, call)}
    out: Any = call()
    inputs = {"layer_norm": (x, weight, bias), "rms_norm": (x, weight)}.get(name, (x,))
    grad = torch.ones_like(out)
    return {
        "us": alone_us(torch, lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True))
    }


def _embedding(torch: Any, row: Row) -> Mapping[str, float]:
    backward, dtype, vocabulary, hidden, tokens = lines.look_up(row)
    table = new(torch, vocabulary, hidden, dtype=dtype.name, grad=backward)
    ids = new(torch, tokens, dtype="int64")
    if not backward:
        return {"us": alone_us(torch, lambda: torch.nn.functional.embedding(ids, table))}
    out = torch.nn.functional.embedding(ids, table)
    grad = torch.ones_like(out)
    return {"us": alone_us(torch, lambda: torch.autograd.grad(out, table, grad, retain_graph=True))}


def _optim(torch: Any, row: Row) -> Mapping[str, float]:
    """A step over the parameters of a model of 1.24 B elements: 146 tensors."""
    (op, dtype, shapes), of = lines.step(row), torch.nn.Parameter
    parameters = [of(new(torch, *shape, dtype=dtype.name)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    grads = [parameter.grad for parameter in parameters]
    optim, clip = torch.optim, torch.nn.utils.clip_grad_norm_
    calls: dict[str, Any] = {
        "adamw_foreach": lambda: optim.AdamW(parameters, 1e-4, foreach=True).step,
        "adamw_fused": lambda: optim.AdamW(parameters, 1e-4, fused=True).step,
        "sgd_foreach": lambda: optim.SGD(parameters, 1e-4, momentum=0.9, foreach=True).step,
        "sgd_fused": lambda: optim.SGD(parameters, 1e-4, momentum=0.9, fused=True).step,
        "clip_grad_norm_foreach": lambda: lambda: clip(parameters, 1.0, foreach=True),
        "foreach_zero": lambda: lambda: torch._foreach_zero_(grads),
    }
    return {"us": alone_us(torch, known(calls, op)())}


def _launch(torch: Any, row: Row) -> Mapping[str, float]:
    x = new(torch, 32, dtype="float32")
    ways: dict[str, Callable[[Any, Call], float]] = {
        "add_ 32 floats, graph of 20": replayed_us,
        "add_ 32 floats, eager per call": eager_us,
        "event pair, nothing between": lambda torch, _: alone_us(torch, lambda: None),
        "event pair around one add_, L2 flushed": alone_us,
    }
    return {"us": known(ways, row["what"], "what")(torch, lambda: x.add_(1))}


def _pcie(torch: Any, row: Row) -> Mapping[str, float]:
    there = new(torch, int(row["bytes"]), dtype="int8")
    here = torch.zeros(int(row["bytes"]), dtype=torch.int8, device="cpu").pin_memory()
    ways = {"h2d": (there, here), "d2h": (here, there)}
    to, source = known(ways, row["dir"], "dir")
    return {"us": alone_us(torch, lambda: to.copy_(source, non_blocking=True))}


TABLES: Final = (
    Table(
        name="memory",
        about="elementwise operations on bf16, a few from CUDA graphs",
        columns={"op": WORD, "bytes": COUNT, "us": MEASURED, "gbps": BESIDE},
        program=_memory,
    ),
    Table(
        name="elementwise",
        about="elementwise operations, copies, casts, random fills",
        columns={"op": WORD, "dtype": WORD, "bytes": COUNT, "us": MEASURED},
        program=_elementwise,
    ),
    Table(
        name="rowops",
        about="operations over the last dimension, bf16",
        columns={"op": WORD, "rows": COUNT, "cols": COUNT, "us": MEASURED},
        program=_rows,
    ),
    Table(
        name="rowops2",
        about="operations over the last dimension and their gradients, bf16",
        columns={"op": WORD, "rows": COUNT, "cols": COUNT, "us": MEASURED},
        program=_rows,
    ),
    Table(
        name="rowops3",
        about="softmax over rows of all lengths",
        columns={"op": WORD, "dtype": WORD, "rows": COUNT, "cols": COUNT, "us": MEASURED},
        program=_rows,
    ),
    Table(
        name="embedding",
        about="look-ups and their gradients",
        columns={
            "op": WORD,
            "dtype": WORD,
            "vocab": COUNT,
            "hidden": COUNT,
            "tokens": COUNT,
            "us": MEASURED,
        },
        program=_embedding,
    ),
    Table(
        name="optim",
        about="a step of an optimiser over 1.24 B elements",
        columns={
            "op": WORD,
            "dtype": WORD,
            "tensors": COUNT,
            "elements": COUNT,
            "us": MEASURED,
            "host_us": BESIDE,
        },
        program=_optim,
    ),
    Table(
        name="launch",
        about="one tiny kernel",
        columns={"what": WORD, "us": MEASURED},
        program=_launch,
    ),
    Table(
        name="pcie",
        about="copies between a device and pinned memory of the host",
        columns={"dir": WORD, "bytes": COUNT, "us": MEASURED},
        program=_pcie,
    ),
)
