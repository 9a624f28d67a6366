"""What all ways to share a model among ranks have in common: groups, shards, exchanges."""

from kernbench.parallel import (
    config,
    differentiable,
    exchanges,
    groups,
    layout,
    members,
    parallel_state,
    random,
    shards,
)

__all__ = [
    "config",
    "differentiable",
    "exchanges",
    "groups",
    "layout",
    "members",
    "parallel_state",
    "random",
    "shards",
]
