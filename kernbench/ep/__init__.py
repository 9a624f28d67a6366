"""Expert parallelism: mixtures of experts, with the routing that really happens."""

from kernbench.ep.config import MoEConfig
from kernbench.ep.experts import Experts, SharedExperts
from kernbench.ep.moe_layer import MoELayer
from kernbench.ep.router import MoEAuxLossAutoScaler, TopKRouter, finalize_expert_bias
from kernbench.ep.token_dispatcher import (
    MoEAllGatherTokenDispatcher,
    MoEAlltoAllTokenDispatcher,
)

__all__ = [
    "Experts",
    "MoEAllGatherTokenDispatcher",
    "MoEAlltoAllTokenDispatcher",
    "MoEAuxLossAutoScaler",
    "MoEConfig",
    "MoELayer",
    "SharedExperts",
    "TopKRouter",
    "finalize_expert_bias",
]
