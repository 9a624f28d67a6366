"""Process groups of layouts of one world, as one collection each."""

from typing import Final

import kernbench.torch.distributed as dist
from kernbench.errors import call_site, site_fact
from kernbench.parallel.groups import GroupGrid, ProcessGroupCollection
from kernbench.parallel.layout import LayoutError

_ALONG: Final = {
    "tp": "tp",
    "cp": "cp",
    "pp": "pp",
    "dp": "dp",
    "mp": ("tp", "pp"),
    "tp_cp": ("tp", "cp"),
    "dp_cp": ("dp", "cp"),
    "tp_dp_cp": ("tp", "dp", "cp"),
}
"""Which axes the ranks of a group differ in."""


def lay_out(tp: int = 1, cp: int = 1, pp: int = 1) -> ProcessGroupCollection:
    """Returns the groups of a layout of the world; every rank calls it.

    Layouts that differ in `cp` alone have the same ranks in `tp` and `pp`: the rest have batches.

    Args:
        tp: Ranks that share a layer, next to each other.
        cp: Ranks that share a sequence.
        pp: Stages.

    Raises:
        LayoutError: If the world is no multiple of their product.
    """
    world, ranks = dist.get_world_size(), tp * cp * pp
    if world % ranks:
        raise LayoutError(
            f"world_size ({world}) is not divisible by {ranks}",
            [site_fact(call_site()), f"{ranks} = tensor {tp} * context {cp} * pipeline {pp}"],
        )
    dp = world // ranks
    grid = GroupGrid((tp, cp, dp, pp), ("tp", "cp", "dp", "pp"))
    return ProcessGroupCollection(**{name: grid.create_pg(axes) for name, axes in _ALONG.items()})
