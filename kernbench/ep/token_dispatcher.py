"""Dispatchers: tokens to the ranks of their experts, sorted by expert, and back to their places.

Both have Megatron-Core's steps and order of rows. `dispatch_preprocess` sorts a rank's rows by
expert, for each by token. `token_dispatch` sends them. `dispatch_postprocess` sorts what came by
expert, for each by the rank that it is from. The `combine` steps go back, and add up the rows of
each token. Weights travel with rows; experts apply them.
"""

from typing import Any, NamedTuple

import numpy as np

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import extend
from kernbench.ep.config import MoEConfig
from kernbench.ep.moe_utils import (
    Array,
    Order,
    permute,
    permuted_probs,
    row_map,
    sort_chunks,
    unpermute,
)
from kernbench.ep.router import TopKRouter
from kernbench.parallel import differentiable, exchanges, parallel_state
from kernbench.parallel.exchanges import Cut, Exchange
from kernbench.parallel.members import size_of


class Shares(NamedTuple):
    """Who has which experts, and which of these groups a rank is in.

    Attributes:
        ep: Ranks that hold different experts.
        etp: Ranks that hold parts of the same ones.
        both: All of them; rank `e * etp + t` is number e of the first and t of the second.
        experts: Experts of all ranks.
    """

    ep: dist.ProcessGroup
    etp: dist.ProcessGroup
    both: dist.ProcessGroup
    experts: int

    @property
    def ranks(self) -> tuple[int, int]:
        """Number of ranks in `ep` and in `etp`."""
        return size_of(self.ep), size_of(self.etp)

    @property
    def local(self) -> slice:
        """The calling rank's experts."""
        each = self.experts // size_of(self.ep)
        first = dist.get_rank(self.ep) * each
        return slice(first, first + each)


def shares_of(config: MoEConfig) -> Shares:
    """Returns how the groups of `parallel_state` share the experts of a layer."""
    return Shares(
        parallel_state.get_expert_model_parallel_group(),
        parallel_state.get_expert_tensor_parallel_group(),
        parallel_state.get_expert_tensor_and_model_parallel_group(),
        config.num_moe_experts,
    )


class Plan:
    """What goes where in a call, in numbers that all ranks know.

    Args:
        shares: Who has which experts.
        counts: Rows from each rank for each expert, `[ranks of both, experts]`.

    Attributes:
        inputs: Rows to each rank of `ep`.
        outputs: Rows from each rank of `ep`.
        others: Rows to and from the other ranks of `ep`.
        gathered: Rows of each rank of `etp` after the exchange.
        by_expert: Rows of each of the calling rank's experts.
        order: How the rows that came are sorted by expert; None if they come sorted.
    """

    def __init__(self, shares: Shares, counts: Array) -> None:
        ep, etp = shares.ranks
        mine, part = dist.get_rank(shares.ep), dist.get_rank(shares.etp)
        every = counts.reshape(ep, etp, shares.experts).transpose(1, 0, 2)  # [etp, ep, experts]
        came = every[:, :, shares.local]
        self.inputs: list[int] = every[part, mine].reshape(ep, -1).sum(1).tolist()
        self.outputs: list[int] = came[part].sum(1).tolist()
        self.others = sum(self.inputs) + sum(self.outputs) - self.inputs[mine] - self.outputs[mine]
        self.gathered: list[int] = came.sum((1, 2)).tolist()
        self.by_expert: list[int] = came.sum((0, 1)).tolist()
        sizes = came.reshape(ep * etp, -1)
        sorts = sizes.shape[0] > 1 and sizes.shape[1] > 1
        self.order = Order(sizes) if sorts else None


class _Noted(torch.autograd.Function):
    """Notes an exchange of tokens in the report, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, facts: dict[str, Any]) -> torch.Tensor:
        ctx.facts = facts
        extend.note_load(direction="forward", **facts)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        extend.note_load(direction="backward", **ctx.facts)
        return grad, None


class MoETokenDispatcher:
    """What dispatchers have in common.

    Args:
        config: Of the layer.
        router: Of the layer; says what tokens choose if the run or a file does.
    """

    plan: Plan

    def __init__(self, config: MoEConfig, router: TopKRouter) -> None:
        self.config = config
        self.router = router
        self.shares = shares_of(config)
        self.tokens = 0
        self.rows: torch.Tensor | None = None
        self._counts: Array | None = None

    @property
    def step(self) -> int:
        """Number of the call of the layer that is under way."""
        return max(0, self.router.calls - 1)

    def known(self, tokens: int) -> Array | None:
        """Returns rows from each rank for each expert, if nobody needs to compute them.

        Args:
            tokens: Of the calling rank. Others have as many, unless a file says how many.
        """
        routing, both = self.router.routing, self.shares.both
        if routing is None:
            return None
        return extend.counts_of(routing, self.router.asked(0, tokens, self.step), size_of(both))

    def _make_plan(self, counts: Array) -> None:
        """Plans a call; what the run says of one call is the same array for all like it."""
        if counts is not self._counts:
            self.plan = Plan(self.shares, counts)
            self._counts = counts

    def read(self, counts: torch.Tensor) -> Array:
        """Returns rows by expert, for which the host waits.

        Raises:
            NoDataError: While data is off.
        """
        try:
            return np.array(counts.tolist(), np.int64)
        except extend.NoDataError as error:
            raise extend.NoDataError(
                f"{type(self).__name__} of layer {self.router.layer_number} reads how many rows "
                "each expert gets, and data is off",
                error.facts,
                hint="--routing NAME|FILE says what tokens choose (balanced, W0 to W7, zipf:S), "
                "--data on computes it",
            ) from None

    def noted(self, x: torch.Tensor, plan: Plan, **more: int | None) -> torch.Tensor:
        """Returns rows, of whose exchange both directions are noted."""
        facts: dict[str, Any] = {
            "layer": self.router.layer_number,
            "step": self.step,
            "ranks": dist.get_process_group_ranks(self.shares.both),
            "by_expert": plan.by_expert,
            **more,
        }
        if torch.is_grad_enabled():
            out: torch.Tensor = _Noted.apply(x, facts)
            return out
        extend.note_load(direction="forward", **facts)
        return x.view_as(x)


class MoEAlltoAllTokenDispatcher(MoETokenDispatcher):
    """Sends each rank the rows of its experts alone."""

    probs: torch.Tensor
    shape: torch.Size

    def dispatch_preprocess(
        self, hidden_states: torch.Tensor, routing_map: torch.Tensor, probs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the rank's rows and their weights, sorted by expert.

        The host reads how many rows go where, unless experts are filled up to their capacity.

        Args:
            hidden_states: The tokens, `[..., hidden]`; how many may differ from rank to rank.
            routing_map: `[tokens, experts]`.
            probs: `[tokens, experts]`.

        Raises:
            NoDataError: If the host would read values, and there are none: name a routing.
            GroupMismatchError: If ranks have different layers (C9).
        """
        config = self.config
        self.shape = hidden_states.shape
        x = hidden_states.reshape(-1, config.hidden_size)
        self.tokens = x.shape[0]
        padded, routing = config.moe_pad_expert_input_to_capacity, self.router.routing
        # Then nobody is told how many tokens the others have.
        as_many = padded or (routing is not None and routing.tokens_of(0) is None)
        extend.agree(
            "MoEAlltoAllTokenDispatcher",
            {
                "layer": self.router.layer_number,
                "tokens": self.tokens if as_many else None,
                "num_moe_experts": config.num_moe_experts,
                "moe_router_topk": config.moe_router_topk,
                "hidden_size": config.hidden_size,
                "moe_expert_capacity_factor": config.moe_expert_capacity_factor,
            },
            self.shares.both,
        )
        capacity: int | None = None
        if padded:
            capacity = min(self.router.capacity(self.tokens), self.tokens)
            counts = np.full((size_of(self.shares.both), config.num_moe_experts), capacity)
        else:
            counts = self._counted(routing_map)
        self._make_plan(counts)
        self.rows = row_map(routing_map, sum(self.plan.inputs), capacity=capacity)
        weights = permuted_probs(probs, routing_map, self.rows, padded=padded)
        return permute(x, self.rows, fused=config.moe_permute_fusion), weights

    def _counted(self, routing_map: torch.Tensor) -> Array:
        """Returns rows from each rank for each expert, gathered and read by the host."""
        both, experts = self.shares.both, self.config.num_moe_experts
        mine = routing_map.sum(0).unsqueeze(0)
        every = exchanges.all_gather(mine, both, 0)
        known = self.known(self.tokens)
        if known is None:
            return self.read(every).reshape(-1, experts)
        every.to("cpu")
        torch.cuda.current_stream().synchronize()
        factor = self.config.moe_expert_capacity_factor
        if factor is not None:
            known = np.minimum(known, self.router.capacity(self.tokens))
        return known

    def token_dispatch(
        self, rows: torch.Tensor, weights: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the rows that other ranks send to this one's experts, and their weights."""
        plan = self.plan
        row = rows.shape[1] * rows.element_size()
        dropped, padded = self._cut()
        rows = self.noted(rows, plan, dropped=dropped, padded=padded, sent=plan.others * row)
        how = Exchange(self.shares.ep, plan.outputs, plan.inputs)
        return differentiable.exchange(rows, how), differentiable.exchange(weights, how)

    def _cut(self) -> tuple[int | None, int | None]:
        """Returns dropped choices of the rank, and rows without a choice that it gets."""
        choices = self.tokens * self.config.moe_router_topk
        if not self.config.moe_pad_expert_input_to_capacity:
            return choices - sum(self.plan.inputs), 0
        known = self.known(self.tokens)
        if known is None:
            return None, None
        kept = np.minimum(known, min(self.router.capacity(self.tokens), self.tokens))
        mine = kept[dist.get_rank(self.shares.both)]
        return choices - int(mine.sum()), sum(self.plan.by_expert) - int(
            kept[:, self.shares.local].sum()
        )

    def dispatch_postprocess(
        self, rows: torch.Tensor, weights: torch.Tensor
    ) -> tuple[torch.Tensor, list[int], torch.Tensor]:
        """Returns rows sorted by expert, how many each of the rank's experts has, and weights."""
        plan = self.plan
        if size_of(self.shares.etp) > 1:
            cut = Cut(self.shares.etp, 0, plan.gathered)
            rows, weights = differentiable.gather(rows, cut), differentiable.gather(weights, cut)
        if plan.order is not None:
            rows, weights = sort_chunks(rows, plan.order), sort_chunks(weights, plan.order)
        return rows, plan.by_expert, weights

    def combine_preprocess(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns rows in the order in which they came; sums of those that share experts."""
        plan = self.plan
        if plan.order is not None:
            rows = sort_chunks(rows, plan.order, back=True)
        if size_of(self.shares.etp) > 1:
            rows = differentiable.reduce_scatter(rows, Cut(self.shares.etp, 0, plan.gathered))
        return rows

    def token_combine(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns the rank's own rows."""
        how = Exchange(self.shares.ep, self.plan.inputs, self.plan.outputs)
        return differentiable.exchange(rows, how)

    def combine_postprocess(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns the sum of the rows of each token, in the tokens' shape."""
        assert self.rows is not None
        fused = self.config.moe_permute_fusion
        return unpermute(rows, self.rows, self.tokens, fused=fused).reshape(self.shape)


class MoEAllGatherTokenDispatcher(MoETokenDispatcher):
    """Gives every rank the tokens of all, of which each takes those for its experts."""

    shape: torch.Size
    map: torch.Tensor

    def dispatch_preprocess(
        self, hidden_states: torch.Tensor, routing_map: torch.Tensor, probs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the rank's tokens and weights.

        Args:
            hidden_states: The tokens, `[..., hidden]`; ranks that gather have as many each.
            routing_map: `[tokens, experts]`.
            probs: `[tokens, experts]`.

        Raises:
            GroupMismatchError: If ranks have different layers, or numbers of tokens (C9).
        """
        config = self.config
        self.shape, self.map = hidden_states.shape, routing_map
        x = hidden_states.reshape(-1, config.hidden_size)
        self.tokens = x.shape[0]
        extend.agree(
            "MoEAllGatherTokenDispatcher",
            {
                "layer": self.router.layer_number,
                "tokens": self.tokens,
                "num_moe_experts": config.num_moe_experts,
                "moe_router_topk": config.moe_router_topk,
                "hidden_size": config.hidden_size,
            },
            self.shares.both,
        )
        return x, probs

    def token_dispatch(
        self, rows: torch.Tensor, weights: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the tokens and weights of all ranks."""
        both = self.shares.both
        ranks = size_of(both)
        self.map = exchanges.all_gather(self.map, both, 0)
        counts = self._counted()
        self._make_plan(counts)
        leaving = (ranks - 1) * rows.numel() * rows.element_size()
        rows = self.noted(rows, self.plan, sent=2 * leaving)
        return differentiable.gather(rows, Cut(both, 0)), differentiable.gather(
            weights, Cut(both, 0)
        )

    def _counted(self) -> Array:
        """Returns rows from each rank for each expert, as the host reads them of its experts."""
        ranks, experts = size_of(self.shares.both), self.config.num_moe_experts
        local = self.map[:, self.shares.local].reshape(ranks, self.tokens, -1).sum(1)
        known = self.known(self.tokens)
        if known is None:
            counts = np.zeros((ranks, experts), np.int64)
            counts[:, self.shares.local] = self.read(local).reshape(ranks, -1)
            return counts
        local.to("cpu")
        torch.cuda.current_stream().synchronize()
        return known

    def dispatch_postprocess(
        self, rows: torch.Tensor, weights: torch.Tensor
    ) -> tuple[torch.Tensor, list[int], torch.Tensor]:
        """Returns rows sorted by expert, how many each of the rank's experts has, and weights."""
        chosen = self.map[:, self.shares.local].contiguous()
        mine = weights[:, self.shares.local].contiguous()
        self.rows = row_map(chosen, sum(self.plan.by_expert))
        found = permuted_probs(mine, chosen, self.rows, padded=False)
        fused = self.config.moe_permute_fusion
        return permute(rows, self.rows, fused=fused), self.plan.by_expert, found

    def combine_preprocess(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns the sum of the rows of each token, of all ranks' tokens."""
        assert self.rows is not None
        tokens, fused = self.tokens * size_of(self.shares.both), self.config.moe_permute_fusion
        return unpermute(rows, self.rows, tokens, fused=fused)

    def token_combine(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns the sums over the ranks, of the rank's own tokens."""
        return differentiable.reduce_scatter(rows, Cut(self.shares.both, 0))

    def combine_postprocess(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns them in the tokens' shape."""
        return rows.reshape(self.shape)


def dispatcher_of(
    config: MoEConfig, router: TopKRouter
) -> MoEAlltoAllTokenDispatcher | MoEAllGatherTokenDispatcher:
    """Returns the dispatcher that the configuration names."""
    if config.moe_token_dispatcher_type == "alltoall":
        return MoEAlltoAllTokenDispatcher(config, router)
    return MoEAllGatherTokenDispatcher(config, router)
