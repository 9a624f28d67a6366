"""Calls every collective with every reduction and type on two ranks of gloo, and tells what came.

Usage: python tests/bridge/backend_calls.py FOLDER

runs them on PyTorch's own gloo, in two processes, and writes `FOLDER/RANK.json`.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

OPS: Final = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"]
DTYPES: Final = sorted(
    name
    for name in vars(torch)
    if name.startswith(("float", "bfloat", "int", "uint", "complex", "bool"))
    and isinstance(getattr(torch, name), torch.dtype)
    and str(getattr(torch, name)) == f"torch.{name}"
)
"""Every type but those of quantised tensors and of bare bits, which cannot be filled."""

Call = Callable[..., Any]


def _full(dtype: torch.dtype, count: int, value: int = 1) -> torch.Tensor:
    return torch.full((count,), value).to(dtype)


def _mine(dtype: torch.dtype, count: int = 4) -> torch.Tensor:
    return _full(dtype, count, 2 + dist.get_rank())


def all_reduce(dtype: torch.dtype, op: Any) -> Any:
    dist.all_reduce(x := _mine(dtype), op)
    return x


def reduce(dtype: torch.dtype, op: Any) -> Any:
    dist.reduce(x := _mine(dtype), 0, op)
    return x if dist.get_rank() == 0 else None


def reduce_scatter(dtype: torch.dtype, op: Any) -> Any:
    dist.reduce_scatter(out := _full(dtype, 2), [_mine(dtype, 2)] * 2, op)
    return out


def reduce_scatter_tensor(dtype: torch.dtype, op: Any) -> Any:
    dist.reduce_scatter_tensor(out := _full(dtype, 2), _mine(dtype), op)
    return out


def all_reduce_coalesced(dtype: torch.dtype, op: Any) -> Any:
    dist.all_reduce_coalesced([x := _mine(dtype)], op)
    return x


def all_reduce_in_a_block(dtype: torch.dtype, op: Any) -> Any:
    with dist._coalescing_manager():
        dist.all_reduce(x := _mine(dtype), op)
    return x


def reduce_scatter_in_a_block(dtype: torch.dtype, op: Any) -> Any:
    with dist._coalescing_manager():
        dist.reduce_scatter_tensor(out := _full(dtype, 2), _mine(dtype), op)
    return out


def broadcast(dtype: torch.dtype) -> Any:
    dist.broadcast(x := _mine(dtype), 0)
    return x


def all_gather(dtype: torch.dtype) -> Any:
    dist.all_gather(out := [_full(dtype, 4) for _ in range(2)], _mine(dtype))
    return out


def all_gather_into_tensor(dtype: torch.dtype) -> Any:
    dist.all_gather_into_tensor(out := _full(dtype, 8), _mine(dtype))
    return out


def all_gather_coalesced(dtype: torch.dtype) -> Any:
    dist.all_gather_coalesced(out := [[_full(dtype, 4)] for _ in range(2)], [_mine(dtype)])
    return [one for (one,) in out]


def gather(dtype: torch.dtype) -> Any:
    out = [_full(dtype, 4) for _ in range(2)] if dist.get_rank() == 0 else None
    dist.gather(_mine(dtype), out)
    return out


def scatter(dtype: torch.dtype) -> Any:
    given = [_full(dtype, 4, 5), _full(dtype, 4, 6)] if dist.get_rank() == 0 else None
    dist.scatter(out := _full(dtype, 4), given)
    return out


def all_to_all_single(dtype: torch.dtype) -> Any:
    dist.all_to_all_single(out := _full(dtype, 4), _mine(dtype))
    return out


def all_to_all(dtype: torch.dtype) -> Any:
    dist.all_to_all(out := [_full(dtype, 2) for _ in range(2)], [_mine(dtype, 2)] * 2)
    return out


def send_and_recv(dtype: torch.dtype) -> Any:
    out = _full(dtype, 4)
    if dist.get_rank() == 0:
        dist.send(_mine(dtype), 1)
        return None
    dist.recv(out, 0)
    return out


def batch_isend_irecv(dtype: torch.dtype) -> Any:
    out, peer = _full(dtype, 4), 1 - dist.get_rank()
    messages = [dist.P2POp(dist.isend, _mine(dtype), peer), dist.P2POp(dist.irecv, out, peer)]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    return out


REDUCING: Final[list[Call]] = [
    all_reduce,
    reduce,
    reduce_scatter,
    reduce_scatter_tensor,
    all_reduce_coalesced,
    all_reduce_in_a_block,
    reduce_scatter_in_a_block,
]
MOVING: Final[list[Call]] = [
    broadcast,
    all_gather,
    all_gather_into_tensor,
    all_gather_coalesced,
    gather,
    scatter,
    all_to_all_single,
    all_to_all,
    send_and_recv,
    batch_isend_irecv,
]


SPLITS: Final[dict[str, Callable[[], Any]]] = {
    "list": lambda: [2, 2],
    "tuple": lambda: (2, 2),
    "range of none": lambda: range(0),
    "generator": lambda: (2 for _ in range(2)),
    "Size": lambda: torch.Size([2, 2]),
    "array": lambda: np.array([2, 2]),
    "array of int32": lambda: np.array([2, 2], dtype=np.int32),
    "array of none": lambda: np.array([], dtype=np.int64),
    "array of floats": lambda: np.array([2.0, 2.0]),
    "array of rows": lambda: np.array([[2, 2]]),
    "list of NumPy's": lambda: [np.int64(2), np.int32(2)],
    "list of tensors": lambda: [torch.tensor(2), torch.tensor(2)],
    "list of floats": lambda: [2.0, 2.0],
    "tensor": lambda: torch.tensor([2, 2]),
    "tensor of none": lambda: torch.tensor([]),
    "text": lambda: "22",
    "number": lambda: 4,
    "too few": lambda: [4],
}


def split(form: str) -> Any:
    out = _full(torch.float32, 4)
    dist.all_to_all_single(out, _mine(torch.float32), SPLITS[form](), SPLITS[form]())
    return out


def _op(name: str) -> Any:
    return dist._make_nccl_premul_sum(2.0) if name == "PREMUL_SUM" else getattr(dist.ReduceOp, name)


def _told(call: Call, *arguments: Any) -> str:
    """Returns what came of a call: its values, or the error."""
    try:
        made = call(*arguments)
    except Exception as error:  # of every kind: what is refused how is the question
        return f"refused: {type(error).__name__}: {str(error).splitlines()[0]}"
    return str(
        [one.to(torch.complex128).tolist() for one in made]
        if isinstance(made, list)
        else made
        if made is None
        else made.to(torch.complex128).tolist()
    )


def _fillable() -> list[str]:
    found = []
    for name in DTYPES:
        try:
            _full(getattr(torch, name), 1)
        except (RuntimeError, NotImplementedError):
            continue
        found.append(name)
    return found


def calls() -> dict[str, str]:
    """Calls everything in the group of all ranks; returns what came, by call."""
    warnings.simplefilter("ignore")
    told = {}
    for name in _fillable():
        dtype = getattr(torch, name)
        for call in REDUCING:
            for op in OPS:
                told[f"{call.__name__}/{op}/{name}"] = _told(call, dtype, _op(op))
        for call in MOVING:
            told[f"{call.__name__}//{name}"] = _told(call, dtype)
    for form in SPLITS:
        told[f"split/{form}/float32"] = _told(split, form)
    return told


def fully_sharded() -> list[list[float]]:
    """Trains under FSDP2 on a mesh of hosts; returns the parameters."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        model(torch.randn(4, 8, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [each.full_tensor().flatten().tolist() for each in model.parameters()]


def _worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    (Path(folder) / f"{rank}.json").write_text(json.dumps([calls(), fully_sharded()]))
    # A process that ends in the usual way is aborted at times, as a thread of PyTorch's still runs.
    os._exit(0)


if __name__ == "__main__":
    torch.multiprocessing.spawn(_worker, (sys.argv[1],), nprocs=2)
