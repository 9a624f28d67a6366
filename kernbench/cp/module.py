"""Attention as a module, under the names of TransformerEngine's."""

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import extend
from kernbench.cp.attention import cp_attention
from kernbench.cp.checks import Groups, check_name, members
from kernbench.cp.lengths import Cumulative
from kernbench.errors import call_site, site_fact
from kernbench.parallel.members import Group, refuse_option, size_of

_ATTENTION_TYPES: Final = ("self", "cross")
_BIASES: Final = ("no_bias", "post_scale_bias")
_OTHER_BIASES: Final = ("pre_scale_bias", "alibi")
_SAME_LENGTHS: Final = "leave it out: with queries and keys of equal lengths both are the same"


class DotProductAttention(torch.nn.Module):
    """`softmax(query @ key.T * scale) @ value`, of sequences that ranks share or have whole.

    Without a context-parallel group, or with a group of one rank, it is attention of what the rank
    has. Numbers of heads are those of the model, of which a tensor-parallel rank has its part.

    Attributes:
        softmax_offset: The learnable logit of each of the rank's heads, `[heads]` float32, from 0
            on; None unless `softmax_type` is "learnable".
    """

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int | tuple[int, int],
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        sequence_parallel: bool = False,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        tp_group: Group | None = None,
        layer_number: int | None = None,
        attention_type: str = "self",
        cp_group: Groups = None,
        cp_global_ranks: Sequence[int] | None = None,
        cp_stream: torch.cuda.Stream | None = None,
        cp_comm_type: str = "p2p",
        softmax_scale: float | None = None,
        softmax_type: str = "vanilla",
        return_max_logit: bool = False,
    ) -> None:
        """Makes attention of a layer.

        Args:
            num_attention_heads: Heads of the query, of all tensor-parallel ranks together.
            kv_channels: Width of a head; a pair if the value's differs: key's, value's.
            num_gqa_groups: Heads of key and value; None: as many as of the query.
            attention_dropout: Must be 0.
            qkv_format: "sbhd", "bshd" or "thd".
            attn_mask_type: "no_mask", "causal", "padding" or "padding_causal".
            window_size: How many keys before and behind its own position a query sees; -1: all.
            bottom_right_diagonal: Must not be True: positions are counted from the first token.
            sequence_parallel: In TransformerEngine says how dropout draws; there is none here.
            tp_size: How many ranks share the heads.
            get_rng_state_tracker: As `sequence_parallel`.
            tp_group: These ranks; then `tp_size` is its size.
            layer_number: Of the layer, from 1 on; named in reports.
            attention_type: "self", or "cross" if keys are of other tokens; both are computed alike.
            cp_group: Who shares the sequences; see `set_context_parallel_group`.
            cp_global_ranks: Their ranks in the world.
            cp_stream: See `set_context_parallel_group`.
            cp_comm_type: How they share.
            softmax_scale: Factor of the scores; None: 1 / sqrt(width of the key).
            softmax_type: "vanilla", "off-by-one" or "learnable".
            return_max_logit: Whether `forward` returns the largest score of each head, too.

        Raises:
            OptionError: If numbers of heads do not divide, or the groups do not fit `cp_comm_type`.
            UnsupportedError: If something is asked for that is not simulated.
        """
        super().__init__()
        groups = num_attention_heads if num_gqa_groups is None else num_gqa_groups
        counts = {"num_attention_heads": num_attention_heads, "num_gqa_groups": groups}
        for name, count in counts.items():
            if not _is_size(count):
                raise refuse_option(f"{name} is {count!r}", "expected an integer of at least 1")
        widths = kv_channels if isinstance(kv_channels, tuple) else (kv_channels,) * 2
        if len(widths) != 2 or not all(_is_size(each) for each in widths):
            raise refuse_option(
                f"kv_channels is {kv_channels!r}",
                "expected the width of a head, or two: key's, value's",
            )
        check_name("qkv_format", qkv_format)
        check_name("attn_mask_type", _canonical(attn_mask_type))
        check_name("softmax_type", softmax_type)
        shared = tp_size if tp_group is None else size_of(tp_group)
        if num_attention_heads % groups:
            raise refuse_option(
                f"num_attention_heads {num_attention_heads} is no multiple of "
                f"num_gqa_groups {groups}"
            )
        for name, count in counts.items():
            if count % shared:
                raise refuse_option(
                    f"{name} {count} is not divisible by the tensor-parallel size {shared}"
                )
        if attention_dropout:
            raise _not_simulated(f"attention_dropout={attention_dropout}", "use 0.0")
        if bottom_right_diagonal:
            raise _not_simulated("bottom_right_diagonal=True", _SAME_LENGTHS)
        if attention_type not in _ATTENTION_TYPES:
            raise refuse_option(
                f"attention_type is {attention_type!r}",
                f"expected one of {', '.join(_ATTENTION_TYPES)}",
            )
        self.attention_type = attention_type
        self.sequence_parallel = sequence_parallel
        self.get_rng_state_tracker = get_rng_state_tracker
        self.num_attention_heads = num_attention_heads
        self.num_gqa_groups = groups
        self.num_heads_per_partition = num_attention_heads // shared
        self.num_gqa_groups_per_partition = groups // shared
        self.widths = widths
        self.tp_size = shared
        self.tp_group = tp_group
        self.layer_number = 1 if layer_number is None else layer_number
        self.qkv_format = qkv_format
        self.attn_mask_type = attn_mask_type
        self.window_size = window_size
        self.softmax_scale = softmax_scale
        self.softmax_type = softmax_type
        self.return_max_logit = return_max_logit
        self.softmax_offset: torch.nn.Parameter | None = None
        if softmax_type == "learnable":
            zeros = torch.zeros(self.num_heads_per_partition, device="cuda")
            self.softmax_offset = torch.nn.Parameter(zeros)
        self.set_context_parallel_group(cp_group, cp_global_ranks, cp_stream, cp_comm_type)

    def set_context_parallel_group(
        self,
        cp_group: Groups,
        cp_global_ranks: Sequence[int] | None = None,
        cp_stream: torch.cuda.Stream | None = None,
        cp_comm_type: str = "p2p",
    ) -> None:
        """Says who shares the sequences from now on; parameters stay as they are.

        Args:
            cp_group: One group; for "a2a+p2p" a list of two, of neighbours that exchange heads for
                tokens and of the ring; None: nobody, each rank has its sequences whole.
            cp_global_ranks: Their ranks in the world, in the group's order, of two groups
                neighbours behind each other; None: not compared.
            cp_stream: Where every second step of a ring is computed; None: where all others are.
            cp_comm_type: "p2p", "all_gather", "a2a" or "a2a+p2p".

        Raises:
            OptionError: If these do not fit each other; then nothing has changed.
        """
        check_name("cp_comm_type", cp_comm_type)
        if cp_group is not None:
            inner, outer = members(cp_comm_type, cp_group)
            ranks = None if cp_global_ranks is None else [*cp_global_ranks]
            start = inner.size * outer.rank
            for each, place in (
                (inner, slice(start, start + inner.size)),
                (outer, slice(inner.rank, None, inner.size)),
            ):
                if each.group is None or ranks is None:
                    continue
                its = dist.get_process_group_ranks(each.group)
                if ranks[place] != its:
                    raise refuse_option(
                        f"cp_global_ranks are {ranks}, but the group has ranks {its}",
                    )
        self.cp_group = cp_group
        self.cp_global_ranks = cp_global_ranks
        self.cp_stream = cp_stream
        self.cp_comm_type = cp_comm_type

    def forward(
        self,
        query_layer: torch.Tensor,
        key_layer: torch.Tensor,
        value_layer: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        qkv_format: str | None = None,
        cu_seqlens_q: Cumulative | None = None,
        cu_seqlens_kv: Cumulative | None = None,
        cu_seqlens_q_padded: Cumulative | None = None,
        cu_seqlens_kv_padded: Cumulative | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        attn_mask_type: str | None = None,
        window_size: tuple[int, int] | None = None,
        *,
        bottom_right_diagonal: bool | None = None,
        checkpoint_core_attention: bool = False,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        inference_params: object | None = None,
        pad_between_seqs: bool | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Returns the values that each query finds, its heads one behind the other; does not wait.

        Args:
            query_layer: The rank's queries, such as `[b, s, heads, width]`.
            key_layer: The rank's keys, such as `[b, s, groups, width]`.
            value_layer: The rank's values, such as `[b, s, groups, value width]`.
            attention_mask: Must be None: padding is what `cu_seqlens_*` leave out.
            qkv_format: Instead of the module's.
            cu_seqlens_q: Cumulative tokens of packed sequences, of the whole batch.
            cu_seqlens_kv: The same of keys and values.
            cu_seqlens_q_padded: Cumulative rows of packed sequences, of the whole batch.
            cu_seqlens_kv_padded: The same of keys and values.
            max_seqlen_q: Rows of the longest sequence.
            max_seqlen_kv: The same of keys and values.
            attn_mask_type: Instead of the module's.
            window_size: Instead of the module's.
            bottom_right_diagonal: Must not be True, as for the module.
            checkpoint_core_attention: Must be False.
            core_attention_bias_type: "no_bias" or "post_scale_bias".
            core_attention_bias: Added to the scores, see `cp_attention`.
            alibi_slopes: Must be None.
            inference_params: Must be None.
            pad_between_seqs: Whether rows behind a sequence's tokens are padding; None: as the
                cumulative lengths say.

        Returns:
            `[..., heads * value width]`; with `return_max_logit` also the largest score of each of
            the rank's heads, `[heads]`.

        Raises:
            OptionError: If heads or widths are not those of the module, or as in `cp_attention`.
            UnsupportedError: If something is asked for that is not simulated.
        """
        self._check(query_layer, key_layer, value_layer)
        if bottom_right_diagonal:
            raise _not_simulated("bottom_right_diagonal=True", _SAME_LENGTHS)
        for name, given, instead in (
            ("attention_mask", attention_mask, "give cu_seqlens_q and cu_seqlens_kv"),
            ("alibi_slopes", alibi_slopes, "give a core_attention_bias"),
            ("inference_params", inference_params, "give keys and values of all tokens"),
            (
                "checkpoint_core_attention",
                checkpoint_core_attention or None,
                "call the module in torch.utils.checkpoint.checkpoint",
            ),
        ):
            if given is not None:
                raise _not_simulated(name, instead)
        if core_attention_bias_type in _OTHER_BIASES:
            raise _not_simulated(
                f"core_attention_bias_type={core_attention_bias_type!r}", "use 'post_scale_bias'"
            )
        if core_attention_bias_type not in _BIASES:
            raise refuse_option(
                f"core_attention_bias_type is {core_attention_bias_type!r}",
                f"expected one of {', '.join(_BIASES)}",
            )
        if (core_attention_bias is None) != (core_attention_bias_type == "no_bias"):
            given = "no" if core_attention_bias is None else "a"
            raise refuse_option(f"{core_attention_bias_type!r} was asked for with {given} bias")
        found: Any = cp_attention(
            query_layer,
            key_layer,
            value_layer,
            cp_group=self.cp_group,
            # Alone there is nothing to send, and no groups that some schemes would ask for.
            cp_comm_type="p2p" if self.cp_group is None else self.cp_comm_type,
            qkv_format=qkv_format or self.qkv_format,
            attn_mask_type=_canonical(attn_mask_type or self.attn_mask_type),
            window_size=self.window_size if window_size is None else window_size,
            softmax_type=self.softmax_type,
            softmax_offset=self.softmax_offset,
            softmax_scale=self.softmax_scale,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_kv=cu_seqlens_kv,
            cu_seqlens_q_padded=cu_seqlens_q_padded,
            cu_seqlens_kv_padded=cu_seqlens_kv_padded,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_kv=max_seqlen_kv,
            pad_between_seqs=pad_between_seqs,
            core_attention_bias=core_attention_bias,
            return_max_logit=self.return_max_logit,
            cp_stream=self.cp_stream,
        )
        if self.return_max_logit:
            out, max_logit = found
            return out.flatten(-2), max_logit
        return cast("torch.Tensor", found.flatten(-2))

    def _check(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Refuses tensors of other heads or widths than a tensor-parallel rank has."""
        heads, groups = self.num_heads_per_partition, self.num_gqa_groups_per_partition
        width, value_width = self.widths
        for name, x, expected in (
            ("query_layer", query, (heads, width)),
            ("key_layer", key, (groups, width)),
            ("value_layer", value, (groups, value_width)),
        ):
            if tuple(x.shape[-2:]) != expected:
                raise refuse_option(
                    f"{name} of layer {self.layer_number} has shape {[*x.shape]}",
                    f"expected {expected[0]} heads of width {expected[1]} in its last dimensions",
                    f"tensor-parallel size {self.tp_size}, {self.num_attention_heads} heads and "
                    f"{self.num_gqa_groups} of key and value in all",
                )


def _is_size(each: object) -> bool:
    return isinstance(each, int) and not isinstance(each, bool) and each > 0


def _canonical(attn_mask_type: str) -> str:
    """Returns a mask's name as `cp_attention` knows it, of TransformerEngine's ways to write it."""
    name = str(attn_mask_type).replace(",", "_")
    return "padding_causal" if name == "causal_padding" else name


def _not_simulated(what: str, instead: str) -> extend.UnsupportedError:
    return extend.UnsupportedError(
        f"DotProductAttention: {what} is not simulated", [site_fact(call_site())], hint=instead
    )
