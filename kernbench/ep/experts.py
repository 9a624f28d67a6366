"""Experts: linear layers with an activation between, one product for all of a rank or one for each.

Weights of an expert depend on `torch.initial_seed`, the layer and the expert's number among all,
so ranks with one seed have parts of the same layer, whatever the number of ranks.
"""

from collections.abc import Sequence

import kernbench.torch as torch
from kernbench import extend
from kernbench.ep.config import MoEConfig
from kernbench.parallel import parallel_state
from kernbench.parallel.members import Group, divide, refuse_option, size_of
from kernbench.parallel.shards import marked


class Experts(torch.nn.Module):
    """The experts of a rank.

    Args:
        config: Sizes, activation and kind of products.
        layer_number: Of the layer; says with others which weights are drawn.

    Attributes:
        num_local_experts: How many there are.
        weight1: `[experts, hidden, width]`; with a gate, twice as wide: gate, then first product.
        weight2: `[experts, width, hidden]`.

    Raises:
        OptionError: If ranks cannot share the experts equally, or groups have other sizes.
    """

    def __init__(self, config: MoEConfig, layer_number: int = 0) -> None:
        super().__init__()
        self.config = config
        ep_group = parallel_state.get_expert_model_parallel_group()
        etp_group = parallel_state.get_expert_tensor_parallel_group()
        _check("expert_model_parallel_size", config.expert_model_parallel_size, ep_group)
        _check("expert_tensor_parallel_size", config.expert_tensor_parallel_size, etp_group)
        ranks, etp = size_of(ep_group), size_of(etp_group)
        if config.num_moe_experts % ranks:
            raise refuse_option(
                f"num_moe_experts={config.num_moe_experts} for {ranks} ranks that share experts",
                "expected a multiple",
            )
        self.num_local_experts = config.num_moe_experts // ranks
        width = divide(config.moe_ffn_hidden_size, etp)
        pieces = 2 if config.gated_linear_unit else 1
        local, hidden = self.num_local_experts, config.hidden_size
        self.weight1 = _parameter(config, local, hidden, pieces * width)
        self.weight2 = _parameter(config, local, width, hidden)
        if config.perform_initialization:
            first = parallel_state.get_expert_model_parallel_rank() * local
            place = parallel_state.get_expert_tensor_parallel_rank()
            self._draw(layer_number, first, place, etp)

    def _draw(self, layer: int, first: int, place: int, etp: int) -> None:
        config, seed = self.config, torch.initial_seed()
        full, hidden = config.moe_ffn_hidden_size, config.hidden_size
        pieces = 2 if config.gated_linear_unit else 1
        part = slice(place * (full // etp), (place + 1) * (full // etp))
        for at in range(self.num_local_experts):
            number = layer * config.num_moe_experts + first + at
            generator = torch.Generator().manual_seed(seed + 1 + number)
            with extend.draw_from(generator), torch.no_grad():
                one = torch.empty(pieces, hidden, full, device="cpu")
                two = torch.empty(full, hidden, device="cpu")
                config.init_method(one)
                config.init_method(two)
                mine = torch.cat([piece[:, part] for piece in one.unbind()], dim=1)
                self.weight1[at].copy_(mine)
                self.weight2[at].copy_(two[part])

    def forward(
        self, x: torch.Tensor, tokens_per_expert: Sequence[int], probs: torch.Tensor
    ) -> torch.Tensor:
        """Returns what the experts make of rows; a part of a sum, if ranks share experts.

        Args:
            x: `[rows, hidden]`, those of each expert one after the other.
            tokens_per_expert: Rows of each.
            probs: Weight of each row, which the inner activations are multiplied with.
        """
        if self.config.moe_grouped_gemm:
            inner = extend.grouped_mm(x, self.weight1, tokens_per_expert)
            return extend.grouped_mm(self._between(inner, probs), self.weight2, tokens_per_expert)
        sizes = [*tokens_per_expert]
        out = [
            self._between(rows @ self.weight1[at], weights) @ self.weight2[at]
            for at, (rows, weights) in enumerate(
                zip(x.split(sizes), probs.split(sizes), strict=True)
            )
        ]
        return torch.cat(out)

    def _between(self, inner: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
        made = activated(inner, self.config)
        return made * probs.unsqueeze(-1).to(made.dtype)


def activated(inner: torch.Tensor, config: MoEConfig) -> torch.Tensor:
    """Returns the activation of a first product, with its gate if there is one."""
    if not config.gated_linear_unit:
        return config.activation_func(inner)
    gate, value = inner.chunk(2, dim=-1)
    return config.activation_func(gate) * value


class SharedExperts(torch.nn.Module):
    """An expert that all tokens pass, whole on each rank.

    Args:
        config: Sizes and activation.

    Attributes:
        weight1: `[hidden, width]`; with a gate, twice as wide.
        weight2: `[width, hidden]`.
    """

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.config = config
        width = config.moe_shared_expert_intermediate_size or 0
        pieces = 2 if config.gated_linear_unit else 1
        for name, shape in (
            ("weight1", (config.hidden_size, pieces * width)),
            ("weight2", (width, config.hidden_size)),
        ):
            made = torch.empty(*shape, dtype=config.params_dtype, device="cuda")
            setattr(self, name, torch.nn.Parameter(made))
            if config.perform_initialization:
                with torch.no_grad():
                    config.init_method(getattr(self, name))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns `[tokens, hidden]` of `[tokens, hidden]`."""
        out: torch.Tensor = activated(x @ self.weight1, self.config) @ self.weight2
        return out


def _parameter(config: MoEConfig, *shape: int) -> torch.nn.Parameter:
    made = torch.empty(*shape, dtype=config.params_dtype, device="cuda")
    # Megatron-Core's mark: its gradient is that of the ranks that hold the same experts.
    return marked(torch.nn.Parameter(made), allreduce=False)


def _check(name: str, wanted: int | None, group: Group) -> None:
    if wanted is not None and wanted != size_of(group):
        raise refuse_option(f"{name}={wanted}", f"the group has {size_of(group)} ranks")
