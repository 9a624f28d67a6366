"""Functions of `torch.distributed` that ask a group for backends in C++, which it does not have.

`split_group` makes groups of the parts of one. A timeout is ignored by design: a hang is found when
it happens, not after a time.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from kernbench.bridge.base.here import HERE
from kernbench.bridge.distributed.process_group import SimProcessGroup
from kernbench.distributed import group_making
from kernbench.distributed.groups import backend_of, libraries_of
from kernbench.errors import not_simulated
from kernbench.isolation.replaced import Patch

_NO_DEVICE: Final = (
    "No device associated with the default pg, not safe to split any process groups; give "
    "init_process_group its device_id"
)
_NO_SPLITTING: Final = (
    "No backend for the parent process group or its backend does not support splitting"
)


def patches() -> Iterator[Patch]:
    """Yields the functions."""
    split = _splitting(c10d.split_group)
    for owner in (c10d, dist):
        yield Patch(owner, "split_group", split)
    yield Patch(c10d, "_set_pg_timeout", _setting_timeout(c10d._set_pg_timeout))


def _setting_timeout(real: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(real)
    def set_timeout(timeout: Any, group: Any = None) -> None:
        if HERE.rank is None:
            real(timeout, group)
        elif c10d._rank_not_in_group(c10d._get_default_group() if group is None else group):
            raise ValueError("Invalid process group specified")

    return set_timeout


def _splitting(real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def split_group(
        parent_pg: Any = None,
        split_ranks: Any = None,
        timeout: Any = None,
        pg_options: Any = None,
        group_desc: str | None = None,
        backend: Any = None,
    ) -> Any:
        rank = HERE.rank
        if rank is None:
            return real(parent_pg, split_ranks, timeout, pg_options, group_desc, backend)
        if not split_ranks:
            raise ValueError("split_ranks cannot be None or empty")
        default = c10d._get_default_group()
        if not default.has_device:
            raise RuntimeError(_NO_DEVICE)
        parent = parent_pg or default
        if not isinstance(parent, SimProcessGroup) or parent not in c10d._world.pg_group_ranks:
            raise ValueError(f"Group {parent} is not registered")
        if libraries_of(backend_of(rank.process, parent.simulated)).get("cuda") != "nccl":
            raise RuntimeError(_NO_SPLITTING)
        if rank.tape is not None:
            raise not_simulated("split_group with --same-ranks", "use new_group")
        group = group_making.split_group(
            parent.simulated,
            [list(part) for part in split_ranks],
            timeout,
            pg_options,
            group_desc,
            None if backend is None else str(backend).lower(),
        )
        if group is None:
            return None
        name = c10d._process_group_name(list(group.ranks), use_hashed_name=True)
        made = SimProcessGroup(group, group.place(rank.process.rank), name)
        kind, store = c10d._world.pg_map[parent]
        c10d._register_pg_in_world(
            made,
            backend_name=kind,
            store=c10d.PrefixStore(f"{name}/", store),
            group_name=name,
            backend_config=c10d._world.pg_backend_config[parent],
            rank_mapping={number: place for place, number in enumerate(group.ranks)},
        )
        return made

    return split_group
