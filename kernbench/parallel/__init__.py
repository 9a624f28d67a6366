"""What all ways to share a model among ranks have in common: groups, shards, exchanges."""

from kernbench.parallel import (
    config,
    differentiable,
    evaluation,
    exchanges,
    groups,
    layout,
    members,
    parallel_state,
    random,
    rebinding,
    rotary,
    shards,
    zigzag,
)

__all__ = [
    "config",
    "differentiable",
    "evaluation",
    "exchanges",
    "groups",
    "layout",
    "members",
    "parallel_state",
    "random",
    "rebinding",
    "rotary",
    "shards",
    "zigzag",
]
