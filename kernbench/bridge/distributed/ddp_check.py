"""DDP's comparison of the parameters of all ranks, which PyTorch does in C++.

C++ reads what it has gathered from the bytes of the device, which are not there without numbers.
The same collectives are called here; the values go beside them.
"""

from collections.abc import Callable
from typing import Any

import torch

from kernbench.bridge.base.here import HERE, Rank
from kernbench.bridge.distributed.store import SimStore
from kernbench.bridge.tensors.devices import device_of, on_device


def checker(real: Callable[..., Any], store_here: Callable[[], SimStore]) -> Callable[..., Any]:
    """Returns what stands for `torch.distributed._verify_params_across_processes`.

    Args:
        store_here: Returns the store of the spawn, in which ranks see each other's shapes.
    """

    def check(group: Any, parameters: Any, logger: Any = None) -> None:
        rank = HERE.rank
        if rank is None or not any(map(on_device, parameters)):
            real(group, parameters, logger)
            return
        store = store_here()
        number = store.add(f"ddp/{group.pg_name}/models of {group.rank()}", 1)
        _check(rank, group, list(parameters), store, f"ddp/{group.pg_name}/{number}/")

    return check


def _check(rank: Rank, group: Any, parameters: Any, store: SimStore, key: str) -> None:
    size, device = group.size(), device_of(parameters[0])
    shapes = [value for one in parameters for value in (*one.shape, *one.stride())]
    store.set(f"{key}{group.rank()}", repr((len(parameters), shapes)))
    counted = torch.tensor([len(parameters)], device=device)
    found = [torch.empty_like(counted) for _ in range(size)]
    group.allgather([found], [counted]).wait()
    for _ in range(size):
        rank.mode.copy_out(8)
    if rank.tape is None:
        theirs = [store.get(f"{key}{place}") for place in range(size)]
    else:  # others do the same; what they do with other shapes takes another time
        theirs = [store.get(f"{key}{group.rank()}")] * size
    numbers = [int(one.decode().strip("(").partition(",")[0]) for one in theirs]
    if len(set(numbers)) > 1:
        wrong = next(place for place in range(size) if numbers[place] != len(parameters))
        raise RuntimeError(
            f"DDP expects same model across all ranks, but Rank {group.rank()} has "
            f"{len(parameters)} params, while rank {wrong} has inconsistent {numbers[wrong]} "
            "params."
        )
    facts = torch.tensor(shapes, device=device)
    group.broadcast([facts], _from_first()).wait()
    rank.mode.copy_out(8 * len(shapes))
    if theirs[0] != theirs[group.rank()]:
        raise RuntimeError(
            f"[{group.rank()}]: params in this process do not match rank 0: expected shapes and "
            f"strides {theirs[0].decode()}, got {shapes}"
        )


def _from_first() -> Any:
    options = torch.distributed.BroadcastOptions()
    options.rootRank = 0
    return options
