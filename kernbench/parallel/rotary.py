"""Rotary position embeddings whose tables follow the ranks that share a sequence.

Names and formulas are those of Megatron-Core: `rotary_pos_embedding.py` and `rope_utils.py`.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np

import kernbench.torch as torch
from kernbench import extend
from kernbench.errors import OptionError, call_site, site_fact
from kernbench.parallel import parallel_state
from kernbench.parallel.members import Group
from kernbench.parallel.zigzag import take_zigzag, zigzag_ranges

__all__ = ["RotaryEmbedding", "apply_rotary_pos_emb", "get_pos_emb_on_this_cp_rank"]

_KEPT: Final = 32
"""Most tables that a module keeps, as in Megatron-Core."""

_Array: TypeAlias = np.ndarray[Any, Any]


class RotaryEmbedding(torch.nn.Module):
    """Megatron-Core's module of the same name: angles by position, for `apply_rotary_pos_emb`.

    What it has computed is kept by all that it depends on: the frequencies, length, offset, type,
    and the ranks of the group with the caller's place among them. So another group, or the same
    attribute with another group in it, never gets a table of the one before.

    Args:
        kv_channels: Width of a head.
        rotary_percent: Which part of the width is rotated.
        rotary_interleaved: Whether neighbours are rotated together, rather than the two halves.
        seq_len_interpolation_factor: What positions are divided by; None for 1.
        rotary_base: Base of the periods.
        rope_scaling: Whether long periods are stretched as in Llama 3.1.
        rope_scaling_factor: By how much.
        use_cpu_initialization: Whether the frequencies stay on the host until the first use.
        cp_group: Ranks that share each sequence; None: those of `parallel_state`, if any.
        dtype: Type of the angles; Megatron-Core's is float32.

    Attributes:
        inv_freq: Angle from a position to the next, for each pair that is rotated.
        cp_group: Ranks that share each sequence; None for the caller alone.
    """

    def __init__(
        self,
        kv_channels: int,
        rotary_percent: float = 1.0,
        rotary_interleaved: bool = False,
        seq_len_interpolation_factor: float | None = None,
        rotary_base: float = 10000,
        rope_scaling: bool = False,
        rope_scaling_factor: float = 8.0,
        use_cpu_initialization: bool = False,
        cp_group: Group | None = None,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        dim = int(kv_channels * rotary_percent) if rotary_percent < 1.0 else kv_channels
        if dim < 2 or dim % 2:
            raise OptionError(
                f"RotaryEmbedding: {dim} of {kv_channels} channels cannot be rotated in pairs",
                [site_fact(call_site()), "expected an even number, at least 2"],
            )
        self.rotary_interleaved = rotary_interleaved
        self.seq_len_interpolation_factor = seq_len_interpolation_factor
        device = "cpu" if use_cpu_initialization else "cuda"
        exponents = torch.arange(0, dim, 2, dtype=dtype, device=device) / dim
        self.inv_freq = 1.0 / (rotary_base**exponents)
        if rope_scaling:
            self.inv_freq = _stretched(self.inv_freq, rope_scaling_factor)
        self.cp_group = _group_of_state() if cp_group is None else cp_group
        self._tables: dict[tuple[Any, ...], Any] = {}

    def drop_caches(self) -> None:
        """Forgets all tables; `install_pg_collection` does so whenever it changes the group."""
        self._tables.clear()

    def get_freqs_non_repeated(self, max_seq_len: int, offset: int = 0) -> torch.Tensor:
        """Returns the angle of each position and each pair, `[max_seq_len, dim / 2]`.

        Args:
            max_seq_len: How many positions.
            offset: The first position.
        """
        frequencies = self.inv_freq
        positions = torch.arange(max_seq_len, device=frequencies.device, dtype=frequencies.dtype)
        if offset:
            positions = positions + offset
        if self.seq_len_interpolation_factor is not None:
            positions = positions * (1 / self.seq_len_interpolation_factor)
        return torch.outer(positions, frequencies)

    def get_cos_sin(self, max_seq_len: int, offset: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns cosine and sine of each position and each pair, `[max_seq_len, dim / 2]`.

        They are those of whole sequences, whatever the group.

        Args:
            max_seq_len: How many positions.
            offset: The first position.
        """

        def make() -> tuple[torch.Tensor, torch.Tensor]:
            angles = self.get_freqs_non_repeated(max_seq_len, offset)
            return torch.cos(angles), torch.sin(angles)

        found: tuple[torch.Tensor, torch.Tensor] = self._find(
            "cos and sin", make, max_seq_len, offset
        )
        return found

    def get_emb(self, max_seq_len: int, offset: int = 0) -> torch.Tensor:
        """Returns the angles of whole sequences, once for each channel: `[max_seq_len, 1, 1, dim]`.

        Args:
            max_seq_len: How many positions.
            offset: The first position.
        """
        if self.inv_freq.device.type == "cpu":
            self.inv_freq = self.inv_freq.to("cuda")
        angles = self.get_freqs_non_repeated(max_seq_len, offset)
        if self.rotary_interleaved:
            both = torch.stack((angles, angles), dim=-1).view(max_seq_len, -1)
        else:
            both = torch.cat((angles, angles), dim=-1)
        return both[:, None, None, :]

    def forward(
        self,
        max_seq_len: int,
        offset: int = 0,
        packed_seq: bool = False,
        cp_group: Group | None = None,
    ) -> torch.Tensor:
        """Returns the angles of the caller's tokens, as `apply_rotary_pos_emb` takes them.

        Args:
            max_seq_len: Length of the whole sequence, see `get_rotary_seq_len`.
            offset: The first position.
            packed_seq: Whether sequences are packed. Each is cut for itself, so the angles are
                those of whole sequences.
            cp_group: Ranks that share the sequence; None: those of the module.

        Returns:
            `[max_seq_len / cp, 1, 1, dim]`, or `[max_seq_len, 1, 1, dim]` if `packed_seq`.

        Raises:
            OptionError: If the length is not a multiple of `2 * cp`.
        """
        group = self.cp_group if cp_group is None else cp_group
        whose = _sharing(group, packed_seq)

        def make() -> torch.Tensor:
            angles = self.get_emb(max_seq_len, offset)
            return angles if whose is None else get_pos_emb_on_this_cp_rank(angles, 0, group)

        found: torch.Tensor = self._find("angles", make, max_seq_len, offset, whose)
        return found

    def get_cached_cos_sin(
        self,
        seq_len: int,
        offset: int = 0,
        dtype: torch.dtype | None = None,
        packed_seq: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns cosine and sine of what `forward` returns.

        Megatron-Core's YaRN embedding has this function, too, but keeps what it returns when the
        group changes.

        Args:
            seq_len: Length of the whole sequence.
            offset: The first position.
            dtype: Of the results; None for the default type.
            packed_seq: See `forward`.

        Raises:
            OptionError: If the length is not a multiple of `2 * cp`.
        """
        wanted = torch.get_default_dtype() if dtype is None else dtype
        whose = _sharing(self.cp_group, packed_seq)

        def make() -> tuple[torch.Tensor, torch.Tensor]:
            angles = self(seq_len, offset, packed_seq)
            return angles.cos().to(wanted), angles.sin().to(wanted)

        found: tuple[torch.Tensor, torch.Tensor] = self._find(
            "cos and sin of angles", make, seq_len, offset, whose, wanted
        )
        return found

    def get_rotary_seq_len(
        self,
        inference_context: Any,
        transformer: Any,
        transformer_input: torch.Tensor,
        transformer_config: Any,
        packed_seq_params: Any = None,
        *,
        inference_params: Any = None,
    ) -> int:
        """Returns the length of the whole sequence, of which the caller has a part.

        It reads `context_parallel_size` of the configuration anew each time, since
        `eval_cp_context` changes it.

        Args:
            inference_context: Has `max_sequence_length` while text is generated; else None.
            transformer: Has `input_tensor` if the stage before sent its input; or None.
            transformer_input: `[s, b, h]`, looked at if the transformer has none.
            transformer_config: Says how many ranks share what; a size that is None is that of
                `parallel_state`, or of the module's group.
            packed_seq_params: Has `max_seqlen_q` and `max_seqlen_kv` if sequences are packed.
            inference_params: The old name of `inference_context`.
        """
        if packed_seq_params is not None:
            return int(max(packed_seq_params.max_seqlen_q, packed_seq_params.max_seqlen_kv))
        generating = inference_params if inference_context is None else inference_context
        if generating is not None:
            length = int(generating.max_sequence_length)
        else:
            received = getattr(transformer, "input_tensor", None)
            length = (transformer_input if received is None else received).size(0)
            if transformer_config.sequence_parallel:
                tp = transformer_config.tensor_model_parallel_size
                if tp is None:
                    tp = parallel_state.get_tensor_model_parallel_world_size()
                length *= tp
        cp = transformer_config.context_parallel_size
        if cp is None:
            cp = 1 if self.cp_group is None else self.cp_group.size()
        return int(length * cp)

    def _find(self, what: str, make: Callable[[], Any], *key: Any) -> Any:
        """Returns what is kept under a key, or makes it."""
        frequencies = self.inv_freq
        full = (what, self.seq_len_interpolation_factor, self.rotary_interleaved, *key)
        known = self._tables.get(full)
        # The frequencies may be another tensor now, or have other values.
        if known is not None and known[0] is frequencies and known[1] == frequencies._version:
            return known[2]
        found = make()
        if len(self._tables) >= _KEPT:
            del self._tables[next(iter(self._tables))]
        # Read again: `get_emb` may have moved the frequencies to the device.
        self._tables[full] = self.inv_freq, self.inv_freq._version, found
        return found


def _sharing(group: Group | None, packed_seq: bool) -> tuple[tuple[int, ...], int] | None:
    """Returns who shares a table of positions and the caller's place; None if nobody else does."""
    if group is None or packed_seq or group.size() == 1:
        return None
    return tuple(group.ranks), group.rank()


def _group_of_state() -> Group | None:
    if extend.current_rank() is None:
        return None
    return parallel_state.get_context_parallel_group(check_initialized=False)


def _stretched(frequencies: torch.Tensor, factor: float) -> torch.Tensor:
    """Returns frequencies for contexts longer than those that Llama 3 was first trained on.

    Periods up to a quarter of these 8192 tokens stay, those above all of them are stretched, and in
    between it changes smoothly: `apply_scaling` of Meta's reference code of Llama 3.1.
    """
    trained, low, high = 8192, 1.0, 4.0
    periods = 2 * math.pi / frequencies
    smooth = ((trained / periods - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - smooth) * frequencies / factor + smooth * frequencies


def get_pos_emb_on_this_cp_rank(
    pos_emb: torch.Tensor, seq_dim: int, cp_group: Group | None
) -> torch.Tensor:
    """Returns the part of a table that belongs to the caller's tokens.

    Args:
        pos_emb: A table for whole sequences.
        seq_dim: The dimension of positions.
        cp_group: Ranks that share each sequence.

    Raises:
        OptionError: Without a group, or if the length is not a multiple of `2 * cp`.
    """
    if cp_group is None:
        raise OptionError(
            "get_pos_emb_on_this_cp_rank(cp_group=None): expected the ranks that share a sequence",
            [site_fact(call_site())],
        )
    return take_zigzag(pos_emb, seq_dim, cp_group.size(), cp_group.rank())


def apply_rotary_pos_emb(
    t: torch.Tensor,
    freqs: torch.Tensor,
    config: Any,
    cu_seqlens: torch.Tensor | Sequence[int] | None = None,
    mscale: float = 1.0,
    cp_group: Group | None = None,
) -> torch.Tensor:
    """Returns queries or keys, rotated by the angles of their positions.

    Args:
        t: `[s, b, heads, width]`, or `[t, heads, width]` if sequences are packed: the caller's
            part. Channels beyond those of `freqs` stay as they are.
        freqs: Angles, as `RotaryEmbedding` returns them: of the caller's tokens, or if sequences
            are packed of positions 0, 1, ... up to the longest sequence.
        config: `rotary_interleaved` says whether neighbours are rotated together, False if it is
            not there; `apply_rope_fusion` whether one kernel does all of it.
        cu_seqlens: Where packed sequences begin and end in the whole batch, with their padding; on
            a device it is read, for which the host waits. Rows behind the last stay as they are.
        mscale: Cosine and sine are multiplied by it.
        cp_group: Ranks that share packed sequences; None: those of `parallel_state`, if any, which
            stay the same in `eval_cp_context`.

    Returns:
        A tensor like `t`.

    Raises:
        OptionError: If the angles are not as many as the tokens, or a packed sequence cannot be
            cut among the ranks.
    """
    fused = bool(getattr(config, "apply_rope_fusion", False))
    interleaved = bool(getattr(config, "rotary_interleaved", False))
    rotate = _rotate_fused if fused else _rotate
    if cu_seqlens is None:
        if freqs.shape[0] != t.shape[0]:
            raise OptionError(
                f"apply_rotary_pos_emb: {freqs.shape[0]} angles for {t.shape[0]} tokens",
                [site_fact(call_site()), "expected as many along dimension 0"],
                hint="ask RotaryEmbedding for get_rotary_seq_len() positions",
            )
        return rotate(t, freqs, interleaved, mscale)
    group = _group_of_state() if cp_group is None else cp_group
    cp, place = (1, 0) if group is None else (group.size(), group.rank())
    rows = _rows(cu_seqlens, cp, place, t.shape[0], freqs.shape[0])
    if not rows:
        return t
    parts = [freqs.narrow(0, row.start, len(row)) for row in rows]
    angles = (parts[0] if len(parts) == 1 else torch.cat(parts)).squeeze(1)
    count = angles.shape[0]
    turned = rotate(t.narrow(0, 0, count), angles, interleaved, mscale)
    if count == t.shape[0]:
        return turned
    return torch.cat((turned, t.narrow(0, count, t.shape[0] - count)))


def _rows(
    cu_seqlens: torch.Tensor | Sequence[int], cp: int, place: int, tokens: int, angles: int
) -> list[range]:
    """Returns the positions of a rank's tokens of packed sequences, where they follow each other.

    Args:
        cu_seqlens: Where sequences begin and end.
        cp: How many ranks share them.
        place: The rank.
        tokens: How many the rank has.
        angles: How many there are.
    """
    given = cu_seqlens.tolist() if isinstance(cu_seqlens, torch.Tensor) else cu_seqlens
    ends = [int(end) for end in given]
    lengths = [end - start for start, end in pairwise(ends)]
    if not ends or ends[0] or any(length < 0 for length in lengths):
        raise OptionError(
            f"apply_rotary_pos_emb(cu_seqlens={ends})",
            [site_fact(call_site()), "expected 0 and then ends that do not decrease"],
        )
    if max(lengths, default=0) > angles or ends[-1] > tokens * cp:
        raise OptionError(
            f"apply_rotary_pos_emb: {angles} angles and {tokens} tokens on each of {cp} ranks",
            [
                site_fact(call_site()),
                f"cu_seqlens has {ends[-1]} tokens, and {max(lengths)} in its longest sequence",
            ],
            hint="cu_seqlens is that of the whole batch, and angles begin at position 0",
        )
    # A rank that shares with nobody has whole sequences, also of odd lengths.
    parts = [
        part
        for length in lengths
        for part in ([range(length)] if cp == 1 else zigzag_ranges(length, cp, place))
    ]
    return [part for part in parts if part]


def _half_turn(x: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Returns the other channel of each pair, the first with its sign changed."""
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def _rotate(t: torch.Tensor, freqs: torch.Tensor, interleaved: bool, mscale: float) -> torch.Tensor:
    width = freqs.shape[-1]
    part = t if width == t.shape[-1] else t[..., :width]
    cos, sin = torch.cos(freqs), torch.sin(freqs)
    if mscale != 1.0:
        cos, sin = cos * mscale, sin * mscale
    cos, sin = cos.to(t.dtype), sin.to(t.dtype)
    turned = part * cos + _half_turn(part, interleaved) * sin
    return turned if part is t else torch.cat((turned, t[..., width:]), dim=-1)


def _rotate_fused(
    t: torch.Tensor, freqs: torch.Tensor, interleaved: bool, mscale: float
) -> torch.Tensor:
    """Does what `_rotate` does in one kernel, which rounds once."""
    width = freqs.shape[-1]
    pairs = (
        (slice(0, width, 2), slice(1, width, 2))
        if interleaved
        else (slice(0, width // 2), slice(width // 2, width))
    )

    def turn(x: _Array, angles: _Array, back: bool) -> _Array:
        one, two = pairs
        cos, sin = np.cos(angles) * mscale, np.sin(angles) * mscale
        first, second = (-sin[..., two], -sin[..., one]) if back else (sin[..., one], sin[..., two])
        out = np.array(x, copy=True)
        out[..., one] = x[..., one] * cos[..., one] - x[..., two] * first
        out[..., two] = x[..., two] * cos[..., two] + x[..., one] * second
        return out

    return extend.fused(
        "parallel::rotary",
        lambda x, angles: turn(x, angles, False),
        [t, freqs],
        gradients=[lambda grad, x, angles: turn(grad, angles, True), None],
    )
