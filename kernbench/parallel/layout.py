"""Which ranks make up which groups: numbers only, before any group is made.

Ranks are laid out on two grids of the same world. The dense grid has no expert axis, the expert
grid no context axis; what an axis takes from one of them, the data axis gives back. Only the
pipeline stages must be the same on both, since a stage holds dense and expert layers.
"""

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np

from kernbench.caches import cached
from kernbench.errors import KernbenchError, call_site, site_fact

Ranks = tuple[int, ...]
ChooseRanks = Callable[[list[int]], Sequence[int]]


class ParallelStateError(KernbenchError, AssertionError):
    """Parallel state was used before it was made, made twice, or contradicts itself."""


class LayoutError(KernbenchError, RuntimeError):
    """The ranks of a world cannot be laid out as asked."""


def whole_number(value: object, *, at_least: float = -math.inf) -> bool:
    """Returns whether something is a whole number, and not too small."""
    try:
        return operator.index(value) >= at_least  # type: ignore[arg-type]
    except TypeError:
        return False


@dataclass(frozen=True, eq=False)
class Grid:
    """Ranks laid out along axes.

    Attributes:
        sizes: By axis, how many ranks; neighbouring ranks differ in the first axis.
        offset: The first rank.
    """

    sizes: dict[str, int]
    offset: int = 0

    @cached("parallel.groups")
    def groups(self, axes: str) -> tuple[Ranks, ...]:
        """Returns the groups of ranks that differ only in some axes, each in ascending order.

        Args:
            axes: Their names, such as `tp-cp`; in which order makes no difference.
        """
        # numpy counts the last axis fastest, so the axes are turned around.
        names = list(self.sizes)[::-1]
        shape = [self.sizes[name] for name in names]
        ranks = np.arange(self.offset, self.offset + math.prod(shape)).reshape(shape)
        inside = [names.index(name) for name in names if name in axes.split("-")]
        outside = [axis for axis in range(len(names)) if axis not in inside]
        size = math.prod(shape[axis] for axis in inside)
        rows = ranks.transpose(*outside, *inside).reshape(-1, size)
        return tuple(map(tuple, rows.tolist()))


class Kind(NamedTuple):
    """One of the groups that every rank is in.

    Attributes:
        grid: Which of the two it is read from.
        axes: In which its members differ.
        words: What it is called, in the names of functions, in errors and in descriptions.
    """

    grid: Literal["dense", "expert"]
    axes: str
    words: str

    @property
    def description(self) -> str:
        """What `group.desc` says."""
        return f"{self.words} group".replace(" ", "_").upper()


KINDS: Final = {
    "tp": Kind("dense", "tp", "tensor model parallel"),
    "cp": Kind("dense", "cp", "context parallel"),
    "dp": Kind("dense", "dp", "data parallel"),
    "pp": Kind("dense", "pp", "pipeline model parallel"),
    "dp_cp": Kind("dense", "dp-cp", "data and context parallel"),
    "tp_cp": Kind("dense", "tp-cp", "tensor and context parallel"),
    "tp_dp": Kind("dense", "tp-dp", "tensor and data parallel"),
    "tp_dp_cp": Kind("dense", "tp-dp-cp", "tensor and data and context parallel"),
    "mp": Kind("dense", "tp-pp", "model parallel"),
    "ep": Kind("expert", "ep", "expert model parallel"),
    "expt_tp": Kind("expert", "tp", "expert tensor parallel"),
    "expt_dp": Kind("expert", "dp", "expert data parallel"),
    "tp_ep": Kind("expert", "tp-ep", "expert tensor and model parallel"),
    "tp_ep_pp": Kind("expert", "tp-ep-pp", "expert tensor model pipeline parallel"),
    "intra_dist_opt": Kind("expert", "tp-ep-dp-pp", "intra distributed optimizer instance"),
}

# Some ranks of each pipeline, chosen by a function of its ranks.
_ENDS: Final = {
    "embd": Kind("dense", "pp", "embedding"),
    "pos_embd": Kind("dense", "pp", "position embedding"),
}

HIERARCHY: Final = Kind("dense", "cp", "hierarchical context parallel")

WORDS: Final = {name: kind.words for name, kind in (KINDS | _ENDS).items()} | {
    "dp_cp_ag": "data and context parallel all-gather",
    "dp_gloo": "data parallel gloo",
    "dp_cp_gloo": "data and context parallel gloo",
    "expt_dp_gloo": "expert data parallel gloo",
}
"""What a kind is called; the last ones are groups of other kinds once more."""


class Plan(NamedTuple):
    """Groups without a rank in common, of which a rank will be in one or none.

    Attributes:
        name: Of their kind, such as `tp`.
        description: What `group.desc` says.
        parts: The ranks of each.
    """

    name: str
    description: str
    parts: Sequence[Ranks]


def _grid(axes: Sequence[str], sizes: dict[str, int], offset: int, order: str) -> Grid:
    """Returns the grid whose axes are in an order; axes of size 1 may be left out of it."""
    for name, size in sizes.items():
        if size > 1 and name not in axes:
            raise LayoutError(
                f"the size of {name} is {size}, but order={order!r} does not say where it goes",
                [site_fact(call_site())],
            )
    left_out = [name for name in sizes if name not in axes]
    return Grid({name: sizes[name] for name in (*axes, *left_out)}, offset)


def _rest(world: int, **sizes: int) -> int:
    """Returns the size of the data axis: what the other axes leave over."""
    product = math.prod(sizes.values())
    if world % product:
        raise LayoutError(
            f"world_size ({world}) is not divisible by {product}",
            [
                site_fact(call_site()),
                f"{product} = " + " * ".join(f"{name} {size}" for name, size in sizes.items()),
            ],
        )
    return world // product


def _axes(order: str) -> list[str]:
    axes = order.lower().split("-")
    known = ("tp", "cp", "ep", "dp", "pp")
    if len(set(axes)) < len(axes) or not set(axes) <= set(known):
        raise LayoutError(
            f"order={order!r}", [site_fact(call_site()), f"expected each at most once of {known}"]
        )
    return axes


@cached("parallel.layouts")
def lay_out(
    order: str, offset: int, world: int, *, tp: int, cp: int, pp: int, ep: int, etp: int
) -> Mapping[str, Grid]:
    """Returns the `dense` and the `expert` grid of ranks, whose pipelines are the same.

    All ranks that lay out alike share them.

    Args:
        order: The axes from neighbouring ranks outwards, such as `tp-cp-ep-dp-pp`.
        offset: The first rank.
        world: How many ranks.
        tp: Size of the tensor axis; of the dense grid only, like `cp`.
        cp: Size of the context axis.
        pp: Size of the pipeline axis, in both grids.
        ep: Size of the expert axis; of the expert grid only, like `etp`.
        etp: Size of the tensor axis of expert layers.

    Raises:
        LayoutError: If the ranks cannot be laid out like this.
        ParallelStateError: If pipelines differ between dense and expert layers.
    """
    here = site_fact(call_site())
    axes = _axes(order)
    dp = _rest(world, tensor=tp, pipeline=pp, context=cp)
    edp = _rest(world, **{"expert tensor": etp, "expert": ep, "pipeline": pp})
    dense = _grid(axes, {"tp": tp, "cp": cp, "ep": 1, "dp": dp, "pp": pp}, offset, order)
    expert = _grid(axes, {"tp": etp, "cp": 1, "ep": ep, "dp": edp, "pp": pp}, offset, order)
    if axes[-1] != "pp" and pp > 1 and dp != edp:
        raise LayoutError(
            f"order={order!r} does not end in pp, so dense and expert layers need the same data "
            f"parallel size; they have {dp} and {edp}",
            [here],
        )
    pipelines, others = dense.groups("pp"), expert.groups("pp")
    if pipelines != others:
        raise ParallelStateError(
            f"pipeline parallel groups of dense and expert layers differ with order={order!r}",
            [here, f"the first is {list(pipelines[0])} and {list(others[0])}"],
            hint="let order end in pp",
        )
    return {"dense": dense, "expert": expert}


def default_embedding_ranks(pp_ranks: list[int]) -> list[int]:
    """Returns the ranks of a pipeline that hold the word embedding: the first and the last."""
    return [pp_ranks[0], pp_ranks[-1]] if len(pp_ranks) > 1 else [pp_ranks[0]]


def default_position_embedding_ranks(pp_ranks: list[int]) -> list[int]:
    """Returns the rank of a pipeline that holds the position embedding: the first."""
    return pp_ranks[:1]


@cached("parallel.ends")
def _usual_ends(dense: Grid, name: str) -> tuple[Ranks, ...]:
    """Returns the ranks that hold an embedding where the user does not choose them."""
    choose = default_embedding_ranks if name == "embd" else default_position_embedding_ranks
    return tuple(tuple(choose(list(pipeline))) for pipeline in dense.groups(_ENDS[name].axes))


def _ends(dense: Grid, choices: dict[str, tuple[str, ChooseRanks | None]]) -> Iterator[Plan]:
    for name, (argument, choose) in choices.items():
        if choose is None:
            yield Plan(name, _ENDS[name].description, _usual_ends(dense, name))
            continue
        parts = []
        for pipeline in dense.groups(_ENDS[name].axes):
            chosen = tuple(choose(list(pipeline)))
            if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(pipeline):
                raise LayoutError(
                    f"{argument}({list(pipeline)}) returned {list(chosen)}",
                    [site_fact(call_site()), "expected some of these ranks, each at most once"],
                )
            parts.append(chosen)
        yield Plan(name, _ENDS[name].description, parts)


def plan_levels(dense: Grid, sizes: Sequence[int]) -> list[Plan]:
    """Cuts each context parallel group into levels; level 0 has the nearest neighbours.

    Args:
        dense: The grid of dense layers.
        sizes: By level, how many ranks.

    Raises:
        ParallelStateError: If the sizes do not give that of the context axis.
    """
    size = dense.sizes["cp"]
    if not all(whole_number(part, at_least=1) for part in sizes) or math.prod(sizes) != size:
        raise ParallelStateError(
            f"the product of hierarchical_context_parallel_sizes={list(sizes)} is not "
            f"context_parallel_size={size}",
            [site_fact(call_site())],
        )
    places = Grid({str(level): part for level, part in enumerate(sizes)})
    wholes = dense.groups(HIERARCHY.axes)
    return [
        Plan(
            f"hcp{level}",
            f"{HIERARCHY.description}_{level}",
            [
                tuple(whole[place] for place in part)
                for whole in wholes
                for part in places.groups(str(level))
            ],
        )
        for level in range(len(sizes))
    ]


def plan_hybrid(dense: Grid) -> list[Plan]:
    """Cuts each group of data and context ranks into neighbours: 2, then 4, then 8, ... of them.

    Args:
        dense: The grid of dense layers.

    Raises:
        ParallelStateError: If a group has an odd number of ranks.
    """
    wholes = dense.groups(KINDS["dp_cp"].axes)
    count = len(wholes[0])
    if count % 2:
        raise ParallelStateError(
            "Hybrid context parallel requires an even number of ranks",
            [site_fact(call_site()), f"{count} ranks differ in data and context"],
        )
    # Megatron-Core's sizes: powers of 2 below the last one that is not above the number of ranks.
    sizes = [2**power for power in range(1, int(math.log2(count)))]
    return [
        Plan(
            f"hybrid{size}",
            f"HYBRID_DP_CP_GROUP_{size}",
            [whole[at : at + size] for whole in wholes for at in range(0, count, size)],
        )
        for size in sizes
    ]


class RankGenerator:
    """Megatron-Core's layout of one grid: which ranks differ in which axes.

    Args:
        tp: Ranks along the tensor axis.
        ep: Along the expert axis; 1 if `cp` is not.
        dp: Along the data axis.
        pp: Along the pipeline axis.
        cp: Along the context axis.
        order: Names of the axes with `-` between them, the one first in which neighbours differ.
        rank_offset: The first rank.

    Attributes:
        world_size: Ranks of the grid.

    Raises:
        ParallelStateError: If both experts and contexts are shared.
        LayoutError: If the order leaves an axis out, or has another name.
    """

    def __init__(
        self, tp: int, ep: int, dp: int, pp: int, cp: int, order: str, rank_offset: int = 0
    ) -> None:
        if ep > 1 and cp > 1:
            raise ParallelStateError(
                f"RankGenerator(ep={ep}, cp={cp}): a grid has an expert or a context axis",
                [site_fact(call_site())],
            )
        sizes = {"tp": tp, "pp": pp, "dp": dp, "ep": ep, "cp": cp}
        self._grid: Final = _grid(_axes(order), sizes, rank_offset, order)
        self.tp, self.ep, self.dp, self.pp, self.cp = tp, ep, dp, pp, cp
        self.rank_offset = rank_offset
        self.world_size = math.prod(sizes.values())
        self.order = "-".join(self._grid.sizes)

    def get_ranks(self, token: str) -> list[list[int]]:
        """Returns the groups of ranks that differ only in some axes.

        Args:
            token: Their names, such as `tp-cp`.
        """
        return [list(group) for group in self._grid.groups(token)]


def plan_groups(
    grids: Mapping[str, Grid],
    choose_embedding: ChooseRanks | None,
    choose_position: ChooseRanks | None,
) -> list[Plan]:
    """Returns the groups of every kind but the hierarchical ones.

    Args:
        grids: See `lay_out`.
        choose_embedding: Chooses the ranks of a pipeline that hold the word embedding; None: the
            first and the last.
        choose_position: Likewise for the position embedding; None: the first.

    Raises:
        LayoutError: If such a function chooses what it was not given.
    """
    choices = {
        "embd": ("get_embedding_ranks", choose_embedding),
        "pos_embd": ("get_position_embedding_ranks", choose_position),
    }
    whole = [
        Plan(name, kind.description, grids[kind.grid].groups(kind.axes))
        for name, kind in KINDS.items()
    ]
    return [*whole, *_ends(grids["dense"], choices)]
