"""Groups by the axes of a grid of ranks, and all groups of a layout in one object."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final

import kernbench.torch.distributed as dist
from kernbench.errors import KernbenchError, OptionError, call_site, site_fact
from kernbench.parallel import parallel_state
from kernbench.parallel.layout import Grid, LayoutError
from kernbench.torch.distributed import ProcessGroup

Dims = str | Sequence[str]

FIELDS: Final = (
    "tp",
    "pp",
    "mp",
    "embd",
    "pos_embd",
    "cp",
    "tp_cp",
    "hcp",
    "ep",
    "expt_tp",
    "tp_ep",
    "tp_ep_pp",
    "tp_dp_cp",
    "dp",
    "dp_cp",
    "expt_dp",
    "intra_dp_cp",
    "intra_expt_dp",
    "inter_dist_opt",
    "intra_dist_opt",
)
"""What a `ProcessGroupCollection` may hold, under Megatron-Core's names."""

_OF_THE_STATE: Final[dict[str, Callable[..., Any]]] = {
    "tp": parallel_state.get_tensor_model_parallel_group,
    "pp": parallel_state.get_pipeline_model_parallel_group,
    "mp": parallel_state.get_model_parallel_group,
    "embd": parallel_state.get_embedding_group,
    "pos_embd": parallel_state.get_position_embedding_group,
    "cp": parallel_state.get_context_parallel_group,
    "tp_cp": parallel_state.get_tensor_and_context_parallel_group,
    "hcp": parallel_state.get_hierarchical_context_parallel_groups,
    "ep": parallel_state.get_expert_model_parallel_group,
    "expt_tp": parallel_state.get_expert_tensor_parallel_group,
    "tp_ep": parallel_state.get_expert_tensor_and_model_parallel_group,
    "tp_ep_pp": parallel_state.get_expert_tensor_model_pipeline_parallel_group,
    "expt_dp": parallel_state.get_expert_data_parallel_group,
    "intra_expt_dp": parallel_state.get_expert_data_parallel_group,
    "intra_dist_opt": parallel_state.get_intra_distributed_optimizer_instance_group,
}


class GridKeyError(KernbenchError, KeyError):
    """A group that the grid has already, or has not yet."""


class GroupGrid:
    """Process groups along the dimensions of a grid of ranks.

    Args:
        dim_names: Their names; neighbouring ranks differ in the first.
        rank_offset: The first rank of the grid.

    Raises:
        OptionError: If names and extents are not equally many, or the offset is negative.
        LayoutError: If the world has not so many ranks.
    """

    def __init__(
        self, shape: Sequence[int], dim_names: Sequence[str], rank_offset: int = 0
    ) -> None:
        if len(shape) != len(dim_names) or len(set(dim_names)) != len(dim_names):
            raise OptionError(
                f"GroupGrid: {len(shape)} extents for the dimensions {', '.join(dim_names)}",
                [site_fact(call_site()), "expected an extent for each, and names that differ"],
            )
        if rank_offset < 0 or any(extent < 1 for extent in shape):
            raise OptionError(
                f"GroupGrid(shape={list(shape)}, rank_offset={rank_offset})",
                [site_fact(call_site()), "expected positive extents and no negative offset"],
            )
        world = dist.get_world_size()
        if rank_offset + prod(shape) > world:
            raise LayoutError(
                f"GroupGrid: a grid of {prod(shape)} ranks from rank {rank_offset} on is too large",
                [site_fact(call_site()), f"the world has {world} ranks"],
            )
        self._grid: Final = Grid(dict(zip(dim_names, shape, strict=True)), rank_offset)
        self._groups: dict[str, ProcessGroup | None] = {}

    def create_pg(self, dims: Dims) -> ProcessGroup | None:
        """Makes the groups of ranks that differ only in some dimensions; every rank calls it.

        Args:
            dims: A name or several, in any order.

        Returns:
            The group of the calling rank; None outside the grid.

        Raises:
            GridKeyError: If the groups were made before.
            GroupMismatchError: If another rank made other groups (C9).
        """
        key = self._key(dims)
        if key in self._groups:
            raise GridKeyError(
                f"GroupGrid has its groups along {key} already",
                [site_fact(call_site())],
                hint="get_pg returns them",
            )
        mine: ProcessGroup | None
        mine, _ = dist.new_subgroups_by_enumeration(self.get_rank_enum(dims), group_desc=key)
        self._groups[key] = mine
        return mine

    def get_pg(self, dims: Dims) -> ProcessGroup | None:
        """Returns what `create_pg` returned for these dimensions.

        Raises:
            GridKeyError: If nobody called it.
        """
        key = self._key(dims)
        if key not in self._groups:
            raise GridKeyError(
                f"GroupGrid has no groups along {key}",
                [site_fact(call_site())],
                hint="every rank calls create_pg first",
            )
        return self._groups[key]

    def get_rank_enum(self, dims: Dims) -> list[list[int]]:
        """Returns the ranks of every group along some dimensions."""
        return [list(ranks) for ranks in self._grid.groups(self._key(dims))]

    def destroy(self) -> None:
        """Destroys the groups that the calling rank is in; may be called again."""
        groups, self._groups = self._groups, {}
        for group in groups.values():
            if group is not None:
                dist.destroy_process_group(group)

    def _key(self, dims: Dims) -> str:
        names = [dims] if isinstance(dims, str) else list(dims)
        unknown = [name for name in names if name not in self._grid.sizes]
        if unknown or not names:
            raise OptionError(
                f"GroupGrid: no dimension {', '.join(map(repr, unknown)) or 'given'}",
                [site_fact(call_site()), f"it has {', '.join(self._grid.sizes)}"],
            )
        return "-".join(name for name in self._grid.sizes if name in names)


class ProcessGroupCollection:
    """The groups of a layout, passed on as one object in place of global state.

    Every name of `FIELDS` is an attribute; one that was not set reads as None. `hcp` is a list.

    Args:
        groups: By name.

    Raises:
        OptionError: If a name is unknown.
    """

    def __init__(self, **groups: Any) -> None:
        unknown = sorted(set(groups).difference(FIELDS))
        if unknown:
            raise OptionError(
                f"ProcessGroupCollection: unknown groups {', '.join(unknown)}",
                [site_fact(call_site()), f"expected some of {', '.join(FIELDS)}"],
            )
        self._groups: dict[str, Any] = groups

    def __getattr__(self, name: str) -> Any:
        if name in FIELDS:
            return self._groups.get(name)
        raise AttributeError(f"ProcessGroupCollection has no group {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FIELDS:
            self._groups[name] = value
        elif name == "_groups":
            object.__setattr__(self, name, value)
        else:
            raise AttributeError(f"ProcessGroupCollection has no group {name!r}")

    def __repr__(self) -> str:
        sizes = []
        for name in FIELDS:
            group = self._groups.get(name)
            if isinstance(group, list):
                sizes.append(f"{name}={[level.size() for level in group]}")
            elif group is not None:
                sizes.append(f"{name}={group.size()}")
        return f"ProcessGroupCollection({', '.join(sizes)})"

    @classmethod
    def use_mpu_process_groups(
        cls, required_pgs: Sequence[str] | None = None
    ) -> "ProcessGroupCollection":
        """Returns the groups that `initialize_model_parallel` made.

        It makes one instance of a distributed optimiser, as Megatron-Core does unless told
        otherwise: its parts are what they are parts of, and `inter_dist_opt`, between instances,
        is None.

        Args:
            required_pgs: Which; None for all.

        Raises:
            OptionError: If a name is unknown.
            ParallelStateError: If it was not called.
        """
        wanted = FIELDS if required_pgs is None else list(required_pgs)
        invalid = [name for name in wanted if name not in FIELDS]
        if invalid:
            raise OptionError(
                f"Invalid process groups requested: {invalid}",
                [site_fact(call_site()), f"expected some of {', '.join(FIELDS)}"],
            )
        return cls(**{name: _of_the_state(name, required_pgs is not None) for name in wanted})


def _of_the_state(name: str, required: bool) -> Any:
    if name in {"dp", "dp_cp", "intra_dp_cp"}:
        return parallel_state.get_data_parallel_group(with_context_parallel=name != "dp")
    if name == "tp_dp_cp":
        return parallel_state.get_tensor_and_data_parallel_group(with_context_parallel=True)
    if name == "inter_dist_opt":
        return None
    optional = name in {"embd", "pos_embd", "hcp"} and not required
    return _OF_THE_STATE[name](check_initialized=not optional)
