"""A layer of experts: router, dispatcher, experts, and back."""

import kernbench.torch as torch
from kernbench.ep.config import MoEConfig
from kernbench.ep.experts import Experts, SharedExperts
from kernbench.ep.router import TopKRouter
from kernbench.ep.token_dispatcher import dispatcher_of


class MoELayer(torch.nn.Module):
    """Megatron-Core's layer of the same name, on the groups of `parallel_state`.

    Args:
        config: Of the layer.
        layer_number: For routings and reports, and for what weights are drawn.

    Attributes:
        router: Which experts tokens pass.
        experts: Those of the rank.
        token_dispatcher: How tokens get there.
        shared_experts: An expert that all tokens pass, or None.
    """

    def __init__(self, config: MoEConfig, layer_number: int = 0) -> None:
        super().__init__()
        self.config = config
        self.layer_number = layer_number
        self.router = TopKRouter(config, layer_number)
        self.experts = Experts(config, layer_number)
        self.token_dispatcher = dispatcher_of(config, self.router)
        self.shared_experts: SharedExperts | None = None
        if config.moe_shared_expert_intermediate_size is not None:
            self.shared_experts = SharedExperts(config)

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Returns what the layer makes of tokens, and None: there is no bias to add.

        Args:
            hidden_states: `[..., hidden]`; ranks may have different numbers of tokens, or none.

        Raises:
            NoDataError: If a host would read values, and there are none: name a routing.
            RoutingError: If the run's routing does not fit the call.
            GroupMismatchError: If ranks have different layers (C9).
        """
        probs, routing_map = self.router(hidden_states)
        dispatcher, name = self.token_dispatcher, f"moe {self.layer_number}"
        with torch.profiler.record_function(f"{name} dispatch"):
            rows, weights = dispatcher.dispatch_preprocess(hidden_states, routing_map, probs)
            rows, weights = dispatcher.token_dispatch(rows, weights)
            rows, sizes, weights = dispatcher.dispatch_postprocess(rows, weights)
        with torch.profiler.record_function(f"{name} experts"):
            rows = self.experts(rows, sizes, weights)
        with torch.profiler.record_function(f"{name} combine"):
            rows = dispatcher.token_combine(dispatcher.combine_preprocess(rows))
            out: torch.Tensor = dispatcher.combine_postprocess(rows)
        if self.shared_experts is not None:
            x = hidden_states.reshape(-1, self.config.hidden_size)
            out = out + self.shared_experts(x).reshape(hidden_states.shape)
        return out, None
