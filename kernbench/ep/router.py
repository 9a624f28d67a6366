"""Routers: which experts a token passes, with which weights, and the losses that keep them even."""

from typing import Any, Final

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import extend
from kernbench.ep.config import MoEConfig
from kernbench.ep.moe_utils import (
    apply_router_token_dropping,
    compute_routing_scores_for_aux_loss,
    get_capacity,
    sinkhorn,
    switch_load_balancing_loss_func,
    topk_routing_with_score_function,
    z_loss_func,
)
from kernbench.extend import Asked, Choices, Routing
from kernbench.parallel import exchanges, parallel_state
from kernbench.parallel.members import size_of

_LOSS_SCALE: Final = extend.RankLocal[float]("scale of auxiliary losses", lambda: 1.0)


class MoEAuxLossAutoScaler(torch.autograd.Function):
    """Adds the gradient of a loss to a backward pass that starts from another one."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, aux_loss: torch.Tensor) -> torch.Tensor:
        """Returns the output."""
        ctx.save_for_backward(aux_loss)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the gradient, and that of the loss: the scale."""
        (aux_loss,) = ctx.saved_tensors
        return grad_output, torch.full_like(aux_loss, _LOSS_SCALE.get())

    @staticmethod
    def set_loss_scale(scale: float) -> None:
        """Sets what the gradients of auxiliary losses are multiplied with, on this rank."""
        _LOSS_SCALE.set(float(scale))


class TopKRouter(torch.nn.Module):
    """Megatron-Core's router of the same name.

    All ranks draw the weight from their own generator; those with one seed draw the same.

    Args:
        config: Sizes, scores and losses.
        layer_number: Of the layer, for routings and reports.

    Attributes:
        weight: `[experts, hidden]`.
        expert_bias: Added to scores for the choice alone; None without.
        local_tokens_per_expert: Choices since the last `finalize_expert_bias`; None without a bias.
        routing: Says what tokens choose; None for what the logits say. At first that of the run, or
            `balanced` if the configuration forces it.
        losses: Auxiliary losses of the last call, by name.
        calls: Number of calls; the second run of a checkpoint is none of its own.
    """

    def __init__(self, config: MoEConfig, layer_number: int = 0) -> None:
        super().__init__()
        self.config = config
        self.layer_number = layer_number
        weight = torch.empty(
            config.num_moe_experts, config.hidden_size, dtype=config.params_dtype, device="cuda"
        )
        self.weight = torch.nn.Parameter(weight)
        if config.perform_initialization:
            with torch.no_grad():
                config.init_method(self.weight)
        self.expert_bias: torch.Tensor | None = None
        self.local_tokens_per_expert: torch.Tensor | None = None
        if config.moe_router_enable_expert_bias:
            zeros = torch.zeros(config.num_moe_experts, dtype=torch.float32, device="cuda")
            self.expert_bias, self.local_tokens_per_expert = zeros, zeros.clone()
        forced = config.moe_router_force_load_balancing
        self.routing: Routing | None = extend.routing_of("balanced") if forced else extend.routing()
        self.losses: dict[str, torch.Tensor] = {}
        self._counter = extend.CallCounter()
        self.calls = 0
        self._global_tokens: torch.Tensor | None = None
        self._micro_batches = 0

    @property
    def calls(self) -> int:
        """Number of calls."""
        return self._counter.count

    @calls.setter
    def calls(self, count: int) -> None:
        self._counter.count = count

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns weights and map of the choices of tokens, `[tokens, experts]` each.

        Args:
            hidden_states: `[..., hidden]`; with two dimensions before it, these are the sequence
                and the batch, for `seq_aux_loss`.

        Raises:
            RoutingError: If the run's routing does not fit the call.
        """
        config = self.config
        names = {"fp32": torch.float32, "fp64": torch.float64}
        dtype = names.get(config.moe_router_dtype or "", hidden_states.dtype)
        x = hidden_states.reshape(-1, config.hidden_size).to(dtype)
        logits = torch.nn.functional.linear(x, self.weight.to(dtype))
        self.losses = {}
        if config.moe_z_loss_coeff is not None:
            logits = self._attach(
                logits, "z_loss", z_loss_func(logits.float(), config.moe_z_loss_coeff)
            )
        choices = self._given(x.shape[0])
        self.calls += 1
        if config.moe_router_load_balancing_type == "sinkhorn":
            probs, routing_map = self._sinkhorn(logits, choices)
        else:
            probs, routing_map = topk_routing_with_score_function(
                logits,
                config.moe_router_topk,
                config.moe_router_pre_softmax,
                config.moe_router_num_groups,
                config.moe_router_group_topk,
                config.moe_router_topk_scaling_factor,
                config.moe_router_score_function,
                self.expert_bias,
                choices=choices,
            )
            probs = self._balanced(probs, logits, routing_map, hidden_states.shape)
        if self.local_tokens_per_expert is not None:
            with torch.no_grad():
                self.local_tokens_per_expert += routing_map.sum(0)
        if config.moe_expert_capacity_factor is not None:
            capacity = self.capacity(x.shape[0])
            probs, routing_map = apply_router_token_dropping(
                probs, routing_map, capacity, config.moe_token_drop_policy
            )
        return probs, routing_map

    def capacity(self, tokens: int) -> int:
        """Returns how many rows of a rank an expert takes."""
        config = self.config
        assert config.moe_expert_capacity_factor is not None
        return get_capacity(
            tokens * config.moe_router_topk,
            config.num_moe_experts,
            config.moe_expert_capacity_factor,
        )

    def given(self, rank: int, tokens: int, step: int) -> Choices | None:
        """Returns what tokens choose, whatever the logits are; None if the logits decide.

        Args:
            rank: Rank among those that share the experts.
            tokens: Of that rank.
            step: Number of the call.
        """
        routing = self.routing
        return None if routing is None else routing.choices(self.asked(rank, tokens, step))

    def asked(self, rank: int, tokens: int, step: int) -> Asked:
        """Returns for what a routing is asked; see `given`."""
        size = self.config.num_moe_experts, self.config.moe_router_topk
        return Asked(step, self.layer_number, rank, tokens, *size)

    def _given(self, tokens: int) -> Choices | None:
        group = parallel_state.get_expert_tensor_and_model_parallel_group()
        return self.given(dist.get_rank(group), tokens, self.calls)

    def _sinkhorn(
        self, logits: torch.Tensor, choices: Choices | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        topk = self.config.moe_router_topk
        with torch.no_grad():
            normed = sinkhorn(logits.detach().float())
            _, routing_map = topk_routing_with_score_function(normed, topk, choices=choices)
        scores = torch.sigmoid(logits) if topk == 1 else torch.softmax(logits, dim=-1)
        return scores * routing_map.to(scores.dtype), routing_map

    def _balanced(
        self,
        probs: torch.Tensor,
        logits: torch.Tensor,
        routing_map: torch.Tensor,
        shape: torch.Size,
    ) -> torch.Tensor:
        """Returns the weights, to whose backward pass the loss for balance belongs."""
        config = self.config
        kind, coeff = config.moe_router_load_balancing_type, config.moe_aux_loss_coeff
        if kind == "none" or not coeff or not torch.is_grad_enabled():
            return probs
        scores = compute_routing_scores_for_aux_loss(logits, config.moe_router_score_function)
        batch = 1
        if kind == "seq_aux_loss":
            batch = shape[1] if len(shape) == 3 else 1
            length = scores.shape[0] // batch
            scores = scores.reshape(length, -1)
            routing_map = routing_map.reshape(length, -1)
        group = (
            parallel_state.get_tensor_and_data_parallel_group(with_context_parallel=True)
            if kind == "global_aux_loss"
            else parallel_state.get_tensor_and_context_parallel_group()
        )
        with torch.no_grad():
            tokens = exchanges.all_reduce(routing_map.sum(0).float(), group)
        if kind == "global_aux_loss":
            self._micro_batches += 1
            seen = tokens if self._global_tokens is None else self._global_tokens + tokens
            self._global_tokens = seen
            tokens = seen / self._micro_batches
        total = scores.shape[0] * size_of(group)
        loss = switch_load_balancing_loss_func(
            scores, tokens, total, config.moe_router_topk, config.num_moe_experts, coeff
        )
        return self._attach(probs, kind, loss / batch)

    def _attach(self, x: torch.Tensor, name: str, loss: torch.Tensor) -> torch.Tensor:
        self.losses[name] = loss.detach()
        if not torch.is_grad_enabled():
            return x
        out: torch.Tensor = MoEAuxLossAutoScaler.apply(x, loss)
        return out


def finalize_expert_bias(module: torch.nn.Module) -> None:
    """Raises the bias of experts that got less than the mean of all ranks, and lowers the others'.

    A program calls it after each step of its optimiser, as Megatron-Core's
    `finalize_model_grads` does: `bias += rate x sign(mean load - load)`.

    Args:
        module: A model; all ranks call it with the same routers in the same order.
    """
    group = parallel_state.get_tensor_and_data_parallel_group(with_context_parallel=True)
    with torch.no_grad():
        for router in module.modules():
            if not isinstance(router, TopKRouter):
                continue
            bias, counted = router.expert_bias, router.local_tokens_per_expert
            if bias is None or counted is None:
                continue
            load = exchanges.all_reduce(counted, group)
            bias += torch.sign(load.mean() - load) * router.config.moe_router_bias_update_rate
            counted.zero_()
