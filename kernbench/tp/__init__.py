"""Models in shards: which rank computes what, and how shards become whole again."""

from kernbench.tp import (
    config,
    cross_entropy,
    gradients,
    groups,
    kernels,
    layers,
    mappings,
    parallel_state,
    primitives,
    random,
    utils,
)

__all__ = [
    "config",
    "cross_entropy",
    "gradients",
    "groups",
    "kernels",
    "layers",
    "mappings",
    "parallel_state",
    "primitives",
    "random",
    "utils",
]
