"""Rotary embeddings against rotations of complex numbers, alone and on the ranks of a group."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.parallel import parallel_state
from kernbench.parallel.config import ModelParallelConfig
from kernbench.parallel.rotary import (
    RotaryEmbedding,
    apply_rotary_pos_emb,
    get_pos_emb_on_this_cp_rank,
)
from kernbench.testing import Kernbench

Array = np.ndarray[Any, Any]

PLAIN = SimpleNamespace(rotary_interleaved=False, apply_rope_fusion=False)
KINDS = [
    SimpleNamespace(rotary_interleaved=interleaved, apply_rope_fusion=fused)
    for interleaved in (False, True)
    for fused in (False, True)
]


def turned(x: Array, positions: Any, width: int, interleaved: bool = False) -> Array:
    """Pairs of channels as complex numbers, times `exp(i angle)`; tokens are dimension 0."""
    pairs = width // 2
    inverse = 10000.0 ** -(np.arange(pairs) * 2 / width)
    angles = np.asarray(positions)[:, None] * inverse
    turn = np.exp(1j * angles).reshape(len(angles), *[1] * (x.ndim - 2), pairs)
    out = np.array(x, dtype=np.float64)
    real, imag = (
        (slice(0, width, 2), slice(1, width, 2))
        if interleaved
        else (slice(0, pairs), slice(pairs, width))
    )
    z = (out[..., real] + 1j * out[..., imag]) * turn
    out[..., real], out[..., imag] = z.real, z.imag
    return out


def zigzag(length: int, cp: int, rank: int) -> list[int]:
    chunks = np.split(np.arange(length), 2 * cp)
    return [*chunks[rank], *chunks[2 * cp - 1 - rank]]


def values(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def close(got: torch.Tensor, expected: Array, tolerance: float = 1e-12) -> None:
    found = got.detach().cpu().numpy()
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("config", KINDS, ids=["halves", "halves-fused", "pairs", "pairs-fused"])
def test_a_rotation_and_its_gradient(kernbench: Kernbench, config: Any) -> None:
    x, seed = values(0, 6, 2, 3, 10), values(1, 6, 2, 3, 10)

    def worker(rank: int) -> None:
        rotary = RotaryEmbedding(
            10, rotary_percent=0.8, rotary_interleaved=config.rotary_interleaved,
            dtype=torch.float64,
        )  # fmt: skip
        t = torch.from_numpy(x).cuda().requires_grad_()
        freqs = rotary(6, offset=3)
        assert freqs.shape == (6, 1, 1, 8)
        out = apply_rotary_pos_emb(t, freqs, config)
        close(out, turned(x, range(3, 9), 8, config.rotary_interleaved))
        out.backward(torch.from_numpy(seed).cuda())
        # A rotation is undone by the one back.
        assert t.grad is not None
        close(t.grad, turned(seed, -np.arange(3, 9), 8, config.rotary_interleaved))
        half = apply_rotary_pos_emb(t, freqs, config, mscale=0.5)
        both = turned(x, range(3, 9), 8, config.rotary_interleaved)
        close(half, np.concatenate([both[..., :8] * 0.5, x[..., 8:]], -1))

    kernbench.spawn(worker, nprocs=1)


def test_types_follow_the_tensor(kernbench: Kernbench) -> None:
    x = values(0, 8, 1, 2, 4)

    def worker(rank: int) -> None:
        freqs = RotaryEmbedding(4)(8)
        for dtype, tolerance in ((torch.float16, 4e-3), (torch.bfloat16, 4e-2)):
            for config in KINDS[:2]:
                t = torch.from_numpy(x).to(dtype).cuda()
                out = apply_rotary_pos_emb(t, freqs, config)
                assert out.dtype == dtype
                close(out.double(), turned(t.double().cpu().numpy(), range(8), 4), tolerance)

    kernbench.spawn(worker, nprocs=1)


def test_tables_of_whole_sequences(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        rotary = RotaryEmbedding(4, seq_len_interpolation_factor=4.0, use_cpu_initialization=True)
        angles = np.outer(np.arange(2, 7) / 4, [1.0, 0.01])
        freqs = rotary(5, offset=2)
        assert freqs.device.type == "cuda"
        close(freqs.squeeze(), np.concatenate([angles, angles], 1), 1e-6)
        cos, sin = rotary.get_cos_sin(5, offset=2)
        close(cos, np.cos(angles), 1e-6)
        close(sin, np.sin(angles), 1e-6)
        cos, sin = rotary.get_cached_cos_sin(5, offset=2, dtype=torch.float64)
        assert cos.dtype == torch.float64
        close(sin.squeeze(), np.sin(np.concatenate([angles, angles], 1)), 1e-6)

    kernbench.spawn(worker, nprocs=1)


def test_long_periods_are_stretched_as_in_llama(kernbench: Kernbench) -> None:
    """Periods up to 2048 tokens stay, those above 8192 are eight times as long."""
    plain = 500000.0 ** -(np.arange(0, 128, 2) / 128)
    periods = 2 * np.pi / plain
    expected = []
    for period, frequency in zip(periods, plain, strict=True):
        if period < 2048:
            expected.append(frequency)
        elif period > 8192:
            expected.append(frequency / 8)
        else:
            smooth = (8192 / period - 1) / 3
            expected.append((1 - smooth) * frequency / 8 + smooth * frequency)

    def worker(rank: int) -> None:
        rotary = RotaryEmbedding(128, rotary_base=500000, rope_scaling=True, dtype=torch.float64)
        close(rotary.inv_freq, np.array(expected))

    kernbench.spawn(worker, nprocs=1)


@pytest.mark.parametrize("cp", [1, 2, 3, 4])
def test_ranks_rotate_their_own_positions(kernbench: Kernbench, cp: int) -> None:
    length = 2 * cp * 3
    x = values(0, length, 1, 2, 4)

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(context_parallel_size=cp)
        place = parallel_state.get_context_parallel_rank()
        rotary = RotaryEmbedding(4, dtype=torch.float64)
        assert rotary.cp_group is parallel_state.get_context_parallel_group()
        mine = zigzag(length, cp, place)
        t = torch.from_numpy(x[mine]).cuda()
        if rank % 2:
            torch.cuda.synchronize()  # ranks come one after the other
        config = ModelParallelConfig(context_parallel_size=cp)
        seq = rotary.get_rotary_seq_len(None, None, t, config)
        assert seq == length
        close(apply_rotary_pos_emb(t, rotary(seq), PLAIN), turned(x, range(length), 4)[mine])
        assert rotary(seq, packed_seq=True).shape[0] == length
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=2 * cp)


@pytest.mark.parametrize("config", KINDS[:2], ids=["plain", "fused"])
def test_packed_sequences_are_cut_each_for_itself(kernbench: Kernbench, config: Any) -> None:
    """The specification's example, with an empty sequence and two rows of padding at the end."""
    lengths, cp, tail = [8, 8, 0, 8, 16], 4, 2
    ends = [0, *np.cumsum(lengths).tolist()]
    x = values(0, sum(lengths), 2, 4)
    whole = np.concatenate([turned(x[a:b], range(b - a), 4) for a, b in pairwise(ends)])
    extra = values(1, tail, 2, 4)

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        rows = [a + at for a, n in zip(ends, lengths, strict=False) for at in zigzag(n, cp, rank)]
        if rank == 0:
            assert rows == [0, 7, 8, 15, 16, 23, 24, 25, 38, 39]
        t = torch.from_numpy(np.concatenate([x[rows], extra])).cuda()
        rotary = RotaryEmbedding(4, cp_group=dist.group.WORLD, dtype=torch.float64)
        freqs = rotary(16, packed_seq=True)
        cu = torch.tensor(ends, dtype=torch.int32, device="cuda") if rank % 2 else ends
        out = apply_rotary_pos_emb(t, freqs, config, cu_seqlens=cu, cp_group=dist.group.WORLD)
        close(out, np.concatenate([whole[rows], extra]))
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=cp)


def test_one_rank_has_packed_sequences_of_any_length(kernbench: Kernbench) -> None:
    x = values(0, 8, 2, 4)

    def worker(rank: int) -> None:
        freqs = RotaryEmbedding(4, dtype=torch.float64)(5, packed_seq=True)
        t = torch.from_numpy(x).cuda()
        out = apply_rotary_pos_emb(t, freqs, PLAIN, cu_seqlens=[0, 5, 8])
        close(out, turned(x, [0, 1, 2, 3, 4, 0, 1, 2], 4))
        assert apply_rotary_pos_emb(t, freqs, PLAIN, cu_seqlens=[0, 0]) is t

    kernbench.spawn(worker, nprocs=1)


def test_tables_are_kept_by_all_that_they_depend_on(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        world = dist.group.WORLD
        pair = dist.new_subgroups(2)[0]
        turned_round = dist.new_group([1, 0, 2, 3], sort_ranks=False)
        rotary = RotaryEmbedding(4, cp_group=world)
        first = rotary(16)
        assert rotary(16) is first
        for other in (rotary(8), rotary(16, 1), rotary(16, 0, True), rotary(16, cp_group=pair)):
            assert other is not first
        assert rotary(16) is first
        # The same ranks in another order, and another group in the same attribute.
        other = rotary(16, cp_group=turned_round)
        assert (other.cpu().numpy() == first.cpu().numpy()).all() == (rank > 1)
        tables = rotary.get_cached_cos_sin(16)
        rotary.cp_group = pair
        assert rotary(16).shape[0] == 8
        assert rotary.get_cached_cos_sin(16)[0].shape[0] == 8
        assert rotary.get_cached_cos_sin(16, dtype=torch.float16)[0].dtype == torch.float16
        rotary.cp_group = world
        assert rotary(16) is first
        assert rotary.get_cached_cos_sin(16) is tables
        rotary.inv_freq.mul_(2.0)
        assert rotary(16) is not first
        rotary.inv_freq = rotary.inv_freq.clone()
        last = rotary(16)
        rotary.drop_caches()
        assert rotary(16) is not last
        for length in range(8, 8 + 8 * 40, 8):  # many lengths do not fill the device
            rotary(length)
        assert len(rotary._tables) == 32
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=4)


def test_the_length_of_the_whole_sequence(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        parallel_state.initialize_model_parallel(2, context_parallel_size=2)
        rotary = RotaryEmbedding(4)
        x = torch.zeros(6, 1, 4, device="cuda")
        sizes = {"tensor_model_parallel_size": 2, "context_parallel_size": 2}
        for config, expected in (
            (ModelParallelConfig(**sizes), 12),  # type: ignore[arg-type]
            (ModelParallelConfig(**sizes, sequence_parallel=True), 24),  # type: ignore[arg-type]
            (ModelParallelConfig(sequence_parallel=True), 24),  # sizes of the groups
            (ModelParallelConfig(context_parallel_size=1), 6),
        ):
            assert rotary.get_rotary_seq_len(None, None, x, config) == expected
        stage = SimpleNamespace(input_tensor=torch.zeros(10, 1, 4, device="cuda"))
        config = ModelParallelConfig()
        assert rotary.get_rotary_seq_len(None, stage, x, config) == 20
        stage.input_tensor = None
        assert rotary.get_rotary_seq_len(None, stage, x, config) == 12
        packed = SimpleNamespace(max_seqlen_q=30, max_seqlen_kv=32)
        assert rotary.get_rotary_seq_len(None, None, x, config, packed) == 32
        text = SimpleNamespace(max_sequence_length=7)
        assert rotary.get_rotary_seq_len(text, None, x, config) == 14
        assert rotary.get_rotary_seq_len(None, None, x, config, inference_params=text) == 14
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=4)


def test_what_cannot_be_rotated(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        world = dist.group.WORLD
        with pytest.raises(ValueError, match="3 of 3 channels cannot be rotated in pairs"):
            RotaryEmbedding(3)
        rotary = RotaryEmbedding(4, cp_group=world)
        with pytest.raises(ValueError, match="6 is not divisible by 2 \\* cp = 4") as caught:
            rotary(6)
        assert "test_parallel_rotary.py" in str(caught.value)
        with pytest.raises(ValueError, match="cp_group=None"):
            get_pos_emb_on_this_cp_rank(torch.zeros(4), 0, None)
        freqs = rotary(8, packed_seq=True)
        with pytest.raises(ValueError, match="8 angles for 4 tokens"):
            apply_rotary_pos_emb(torch.zeros(4, 1, 1, 4, device="cuda"), freqs, PLAIN)
        t = torch.zeros(4, 1, 4, device="cuda")
        for ends, message in (
            ([0, 6], "6 is not divisible by 2 \\* cp = 4"),
            ([4, 8], "expected 0 and then ends that do not decrease"),
            ([0, 8, 4], "expected 0 and then ends that do not decrease"),
            ([0, 8, 16], "cu_seqlens has 16 tokens, and 8 in its longest sequence"),
            ([0, 12], "8 angles and 4 tokens on each of 2 ranks"),
        ):
            with pytest.raises(ValueError, match=message):
                apply_rotary_pos_emb(t, freqs, PLAIN, cu_seqlens=ends, cp_group=world)
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=2)


def test_without_a_worker_there_is_no_group(kernbench: Kernbench) -> None:
    kernbench.context()
    rotary = RotaryEmbedding(4)
    assert rotary.cp_group is None
    assert rotary(3).shape == (3, 1, 1, 4)
    assert apply_rotary_pos_emb(
        torch.ones(3, 1, 4, device="cuda"), rotary(3), PLAIN, cu_seqlens=[0, 3]
    ).shape == (3, 1, 4)


def test_without_data_it_takes_the_same_time(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        rotary = RotaryEmbedding(8)
        t = torch.randn(16, 1, 2, 8, device="cuda").requires_grad_()
        for config in KINDS:
            apply_rotary_pos_emb(t, rotary(16), config).sum().backward()
        torch.cuda.synchronize()

    times = [kernbench.spawn(worker, nprocs=1, data=data).engine.loop.now for data in (True, False)]
    assert times[0] == times[1]
