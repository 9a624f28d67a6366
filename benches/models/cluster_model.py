"""Layers of published models: those of `gpt`, and attention and experts of DeepSeek's kind."""

from dataclasses import dataclass
from functools import partial

import kernbench.torch as torch
import kernbench.torch.distributed as dist
import kernbench.torch.nn.functional as F
from benches.models.gpt import (
    Attention,
    GPTConfig,
    GPTModel,
    SwigluMLP,
    norm_of,
    sharing_of,
)
from benches.models.published import Experts, Latent, Published
from kernbench import extend
from kernbench.cp import DotProductAttention
from kernbench.parallel import differentiable
from kernbench.parallel.exchanges import Exchange
from kernbench.parallel.groups import ProcessGroupCollection
from kernbench.parallel.rotary import apply_rotary_pos_emb
from kernbench.parallel.shards import marked
from kernbench.torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Cut:
    """How ranks share a model: the number of ranks along each dimension, and chunks of stages.

    Attributes:
        tp: Share layers.
        cp: Share sequences.
        ep: Of those of a stage, hold different experts.
        pp: Stages.
        dp: Have batches of their own.
        virtual: Chunks of each stage; layers go round: the first chunks of all stages come first.
    """

    tp: int
    cp: int
    ep: int
    pp: int
    dp: int
    virtual: int = 1

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.stage * self.pp

    @property
    def stage(self) -> int:
        """Those of a stage."""
        return self.tp * self.cp * self.dp

    def part_of(self, rank: int) -> int:
        """Returns which part of its sequences a rank has."""
        return rank // self.tp % self.cp

    def stage_of(self, rank: int) -> int:
        """Returns the stage of a rank; `tp` is the fastest dimension, `pp` the slowest."""
        return rank // self.stage


def layers_of(layers: int, stages: int, stage: int) -> range:
    """Returns the layers of a stage, where the embedding and the output count as a layer each.

    So Llama 3 was cut: its first and last stage have a layer less (arXiv 2407.21783, 3.3.2).

    Args:
        layers: Of the model.
        stages: Of the pipeline; with several chunks a stage, all chunks.
        stage: Number of the stage, or the place of the chunk.
    """
    if stages == 1:
        return range(layers)
    each, more = divmod(layers + 2, stages)
    # Stages in the middle have one more, if some have.
    first = (stages - more) // 2

    def begin(stage: int) -> int:
        return stage * each + min(max(stage - first, 0), more) - (stage > 0)

    return range(begin(stage), min(begin(stage + 1), layers))


def groups_of(cut: Cut, rank: int) -> ProcessGroupCollection:
    """Makes the groups of a rank; its members alone call for each.

    Args:
        cut: How ranks share the model.
        rank: The calling rank.
    """

    def make(stride: int, count: int, desc: str) -> dist.ProcessGroup:
        first = rank - rank // stride % count * stride
        ranks = range(first, first + stride * count, stride)
        made: dist.ProcessGroup = dist.new_group(
            ranks, use_local_synchronization=True, group_desc=desc
        )
        return made

    tp, cp, ep, dp = cut.tp, cut.cp, cut.ep, cut.dp
    return ProcessGroupCollection(
        tp=make(1, tp, "tp"),
        cp=make(tp, cp, "cp"),
        dp_cp=make(tp, cp * dp, "dp"),
        pp=make(cut.stage, cut.pp, "pp"),
        ep=make(1, ep, "ep"),
        expt_dp=make(ep, cut.stage // ep, "dp"),
    )


class LatentAttention(torch.nn.Module):
    """Multi-head latent attention of DeepSeek-V2 and V3 (arXiv 2405.04434, 2.1), all heads."""

    def __init__(self, config: GPTConfig, sizes: Latent, groups: ProcessGroupCollection) -> None:
        super().__init__()
        self.config, self.sizes, self.heads = config, sizes, config.num_attention_heads
        linear = partial(torch.nn.Linear, bias=False, device="cuda", dtype=config.params_dtype)
        hidden, heads, key = config.hidden_size, self.heads, sizes.plain + sizes.turned
        self.query_down = linear(hidden, sizes.query)
        self.query_norm = norm_of(config, sizes.query)
        self.query_up = linear(sizes.query, heads * key)
        self.down = linear(hidden, sizes.key_value + sizes.turned)
        self.norm = norm_of(config, sizes.key_value)
        self.up = linear(sizes.key_value, heads * (sizes.plain + sizes.value))
        self.core = DotProductAttention(
            heads,
            (key, sizes.value),
            qkv_format="sbhd",
            attn_mask_type="causal",
            tp_group=groups.tp,
            **sharing_of(config, groups),
        )
        self.out = linear(heads * sizes.value, hidden)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """Returns the output for each token; see `gpt.Attention`."""
        sizes, heads, (s, b, _) = self.sizes, self.heads, x.shape
        query = self.query_up(self.query_norm(self.query_down(x)))
        query = query.view(s, b, heads, sizes.plain + sizes.turned)
        plain, turned = query.split([sizes.plain, sizes.turned], 3)
        query = torch.cat([plain, apply_rotary_pos_emb(turned, angles, self.config)], 3)
        narrow, turned = self.down(x).split([sizes.key_value, sizes.turned], 2)
        turned = apply_rotary_pos_emb(turned.unsqueeze(2), angles, self.config)
        both = self.up(self.norm(narrow)).view(s, b, heads, sizes.plain + sizes.value)
        plain, value = both.split([sizes.plain, sizes.value], 3)
        key = torch.cat([plain, turned.expand(s, b, heads, sizes.turned)], 3)
        out: torch.Tensor = self.out(self.core(query, key, value.contiguous()))
        return out


class SharedExperts(torch.nn.Module):
    """Experts of which each rank holds some, with equally many tokens each, and one for all tokens.

    Which experts a token passes is computed and then not asked: rows are dealt evenly, as a router
    without losses for balance learns to (arXiv 2412.19437, 2.1.2), so that no host reads numbers.
    """

    def __init__(self, config: GPTConfig, sizes: Experts, groups: ProcessGroupCollection) -> None:
        super().__init__()
        self.sizes, self.group, self.ranks = sizes, groups.ep, groups.ep.size()
        self.local = sizes.count // self.ranks
        hidden, dtype = config.hidden_size, config.params_dtype
        linear = partial(torch.nn.Linear, bias=False, device="cuda", dtype=dtype)
        self.router = linear(hidden, sizes.count)

        def weight(rows: int, columns: int) -> torch.nn.Parameter:
            made = torch.empty(self.local, rows, columns, device="cuda", dtype=dtype)
            return marked(torch.nn.Parameter(made), allreduce=False)

        self.gate_up, self.down = weight(hidden, 2 * sizes.ffn), weight(sizes.ffn, hidden)
        self.shared_gate_up = linear(hidden, 2 * sizes.ffn)
        self.shared_down = linear(sizes.ffn, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the output for each token."""
        sizes, tokens = self.sizes, x.reshape(-1, x.shape[-1])
        count = tokens.shape[0]
        rows = count * sizes.topk
        weights, _ = self.router(tokens).float().sigmoid().topk(sizes.topk, 1)
        weights = (weights / weights.sum(1, keepdim=True)).reshape(-1, 1).to(x.dtype)
        places = torch.empty(rows, dtype=torch.int64, device="cuda")
        order = torch.empty(rows, dtype=torch.int64, device="cuda")
        sent = tokens.index_select(0, places)
        if self.ranks > 1:
            sent = differentiable.exchange(sent, Exchange(self.group))
            sent = sent.index_select(0, order)  # by expert, no longer by rank
        each = [rows // self.local] * self.local
        inner = F.swiglu(extend.grouped_mm(sent, self.gate_up, each))
        back = extend.grouped_mm(inner, self.down, each)
        if self.ranks > 1:
            back = differentiable.exchange(back.index_select(0, order), Exchange(self.group))
        out = torch.zeros_like(tokens).index_add(0, places, back * weights)
        shared = self.shared_down(F.swiglu(self.shared_gate_up(tokens)))
        whole: torch.Tensor = (out + shared).view(x.shape)
        return whole


class ClusterLayer(torch.nn.Module):
    """A layer of a published model: attention, and an MLP or experts, behind norms."""

    def __init__(
        self,
        model: Published,
        again: bool,
        config: GPTConfig,
        number: int,
        groups: ProcessGroupCollection,
    ) -> None:
        super().__init__()
        self.number, self._again = number, again
        self.attention_norm = norm_of(config, config.hidden_size)
        self.attention: torch.nn.Module
        self.attention = (
            Attention(config, number, groups)
            if model.latent is None
            else LatentAttention(config, model.latent, groups)
        )
        self.mlp_norm = norm_of(config, config.hidden_size)
        self.mlp: torch.nn.Module
        self.mlp = (
            SharedExperts(config, model.experts, groups)
            if model.experts is not None and model.has_experts(number)
            else SwigluMLP(config, number, groups)
        )

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """Returns the output for each token; see `gpt.Attention`."""
        if self._again:
            out: torch.Tensor = checkpoint(self._forward, x, angles, use_reentrant=False)
            return out
        return self._forward(x, angles)

    def _forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), angles)
        out: torch.Tensor = x + self.mlp(self.mlp_norm(x))
        return out


def chunks_of(
    model: Published, cut: Cut, stage: int, groups: ProcessGroupCollection, recompute: str
) -> list[GPTModel]:
    """Returns what a stage has of a model, chunk by chunk.

    Args:
        model: Its sizes.
        cut: How ranks share it.
        stage: Number of the stage.
        groups: Those of the calling rank.
        recompute: `full`: a layer's activations are computed again in its backward pass; `none`.
    """
    config = GPTConfig(
        num_layers=model.layers,
        hidden_size=model.hidden,
        ffn_hidden_size=model.ffn,
        num_attention_heads=model.heads,
        num_query_groups=model.kv_heads,
        kv_channels=None if model.latent is None else model.latent.turned,
        vocab_size=model.vocab,
        cp_comm_type="all_gather",
        tensor_model_parallel_size=cut.tp,
        context_parallel_size=cut.cp,
        pipeline_model_parallel_size=cut.pp,
        virtual_pipeline_model_parallel_size=cut.virtual if cut.virtual > 1 else None,
        pipeline_dtype=torch.bfloat16,
        deallocate_pipeline_outputs=True,
        sequence_parallel=cut.tp > 1,
        params_dtype=torch.bfloat16,
        perform_initialization=False,
        kernel="library",
    )
    make = partial(ClusterLayer, model, recompute == "full")
    chunks = []
    for chunk in range(cut.virtual):
        numbers = layers_of(model.layers, cut.pp * cut.virtual, chunk * cut.pp + stage)
        chunks.append(GPTModel(config, groups, chunk if cut.virtual > 1 else None, numbers, make))
    return chunks
