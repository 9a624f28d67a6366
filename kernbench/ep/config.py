"""What a layer of experts is made from, under the names of Megatron-Core's `TransformerConfig`."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, Literal

import kernbench.torch as torch
from kernbench.errors import OptionError, call_site, site_fact
from kernbench.parallel.config import ModelParallelConfig

BALANCING: Final = ("none", "aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn")
DISPATCHERS: Final = ("alltoall", "allgather")


@dataclass(kw_only=True)
class MoEConfig(ModelParallelConfig):
    """The fields of Megatron-Core's `TransformerConfig` that a layer of experts looks at.

    Attributes:
        hidden_size: Width of the tokens.
        moe_ffn_hidden_size: Width inside of an expert.
        num_moe_experts: Experts of the layer, on all ranks together.
        moe_router_topk: Experts that a token chooses.
        moe_router_score_function: What makes scores of logits, `softmax` or `sigmoid`.
        moe_router_pre_softmax: Whether `softmax` comes before the choice, over all experts.
        moe_router_num_groups: Groups of experts, of which a token chooses some first.
        moe_router_group_topk: How many of them.
        moe_router_topk_scaling_factor: What the scores of the choices are multiplied with.
        moe_router_enable_expert_bias: Whether a bias is added to scores for the choice alone; needs
            `sigmoid`.
        moe_router_bias_update_rate: By how much `finalize_expert_bias` changes it.
        moe_router_dtype: Type of logits and scores, `fp32` or `fp64`; None for that of the tokens.
        moe_router_load_balancing_type: One of `BALANCING`.
        moe_aux_loss_coeff: What the loss for balance is multiplied with.
        moe_z_loss_coeff: What the loss for small logits is multiplied with; None for no such loss.
        moe_router_force_load_balancing: Whether tokens choose in turn, whatever the logits are, as
            `--routing balanced` has it.
        moe_expert_capacity_factor: Rows that an expert takes from a rank, over what it would get if
            all got as many; None for any number.
        moe_pad_expert_input_to_capacity: Whether it gets as many in any case, so that no host reads
            how many there are.
        moe_token_drop_policy: Which rows it takes: `probs`, of the largest scores; `position`, the
            first.
        moe_token_dispatcher_type: One of `DISPATCHERS`.
        moe_permute_fusion: Whether rows are sorted, and those of a token added up, by one kernel
            each that moves every row once; else by `index_select` and `index_add_`.
        moe_grouped_gemm: Whether the products of a rank's experts are one launch.
        moe_shared_expert_intermediate_size: Width inside of an expert that all tokens pass; None
            for no such expert.
        gated_linear_unit: Whether experts have a gate beside the first product.
        activation_func: Of the gate, or of the first product.
        init_method: Fills weights, in place.
        expert_tensor_parallel_size: Ranks that share an expert; None for that of the group.
    """

    hidden_size: int
    moe_ffn_hidden_size: int
    num_moe_experts: int
    moe_router_topk: int = 2
    moe_router_score_function: Literal["softmax", "sigmoid"] = "softmax"
    moe_router_pre_softmax: bool = False
    moe_router_num_groups: int | None = None
    moe_router_group_topk: int | None = None
    moe_router_topk_scaling_factor: float | None = None
    moe_router_enable_expert_bias: bool = False
    moe_router_bias_update_rate: float = 1e-3
    moe_router_dtype: Literal["fp32", "fp64"] | None = None
    moe_router_load_balancing_type: str = "none"
    moe_aux_loss_coeff: float = 0.0
    moe_z_loss_coeff: float | None = None
    moe_router_force_load_balancing: bool = False
    moe_expert_capacity_factor: float | None = None
    moe_pad_expert_input_to_capacity: bool = False
    moe_token_drop_policy: Literal["probs", "position"] = "probs"
    moe_token_dispatcher_type: str = "alltoall"
    moe_permute_fusion: bool = False
    moe_grouped_gemm: bool = True
    moe_shared_expert_intermediate_size: int | None = None
    gated_linear_unit: bool = True
    activation_func: Callable[[torch.Tensor], torch.Tensor] = torch.nn.functional.silu
    init_method: Callable[[torch.Tensor], Any] = torch.nn.init.normal_
    expert_tensor_parallel_size: int | None = None

    def __post_init__(self) -> None:
        """Refuses values that do not fit each other.

        Raises:
            OptionError: If one does not; with both.
        """
        super().__post_init__()
        for name in ("hidden_size", "moe_ffn_hidden_size", "num_moe_experts", "moe_router_topk"):
            self._need(
                getattr(self, name) >= 1, f"{name}={getattr(self, name)}: expected 1 or more"
            )
        experts, topk = self.num_moe_experts, self.moe_router_topk
        self._need(topk <= experts, f"moe_router_topk={topk} of num_moe_experts={experts}")
        self._one_of("moe_router_score_function", ("softmax", "sigmoid"))
        self._one_of("moe_router_load_balancing_type", BALANCING)
        self._one_of("moe_token_drop_policy", ("probs", "position"))
        self._one_of("moe_token_dispatcher_type", DISPATCHERS)
        self._one_of("moe_router_dtype", (None, "fp32", "fp64"))
        groups, chosen = self.moe_router_num_groups, self.moe_router_group_topk
        self._need(
            (groups is None) == (chosen is None),
            "moe_router_num_groups and moe_router_group_topk: expected both, or neither",
        )
        if groups is not None and chosen is not None:
            self._need(
                groups >= 1 and experts % groups == 0,
                f"moe_router_num_groups={groups}: num_moe_experts={experts} is no multiple",
            )
            self._need(
                1 <= chosen <= groups and topk % chosen == 0 and topk <= chosen * experts // groups,
                f"moe_router_group_topk={chosen} of {groups} groups of {experts // groups}, for "
                f"moe_router_topk={topk}",
            )
        self._need(
            not self.moe_router_enable_expert_bias or self.moe_router_score_function == "sigmoid",
            "moe_router_enable_expert_bias needs moe_router_score_function='sigmoid'",
        )
        factor = self.moe_expert_capacity_factor
        self._need(
            factor is None or (isfinite(factor) and factor > 0),
            f"moe_expert_capacity_factor={factor}: expected a number above 0, or None",
        )
        self._need(
            factor is not None or not self.moe_pad_expert_input_to_capacity,
            "moe_pad_expert_input_to_capacity needs moe_expert_capacity_factor",
        )
        self._need(
            factor is None or self.moe_token_dispatcher_type == "alltoall",
            "moe_expert_capacity_factor needs moe_token_dispatcher_type='alltoall'",
        )

    def _one_of(self, name: str, values: tuple[object, ...]) -> None:
        given = getattr(self, name)
        known = ", ".join(str(value) for value in values)
        self._need(given in values, f"{name}={given!r}: expected one of {known}")

    def _need(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise OptionError(f"MoEConfig: {otherwise}", [site_fact(call_site())])
