"""What does not fit is refused by number and rule, before anything is sent; the world goes on."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import cp
from kernbench.testing import Kernbench
from kernbench.torch.distributed.comm_debug import CommDebugMode

RANKS = 4


def x(*shape: int, dtype: Any = torch.float32, device: str = "cuda") -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device=device, requires_grad=True)


class Given:
    """Arguments that fit, of 4 ranks: 2 dense sequences of 16 tokens, 8 heads in 4 groups."""

    def __init__(self) -> None:
        rank = dist.get_rank()
        self.pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        self.rings = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        self.two = [self.pairs[rank // 2], self.rings[rank % 2]]
        self.dense = {
            "q": x(2, 4, 8, 6),
            "k": x(2, 4, 4, 6),
            "v": x(2, 4, 4, 6),
            "cp_group": dist.group.WORLD,
        }
        cu, rows = [0, 5, 5, 20], [0, 8, 8, 24]
        self.packed = {
            "q": x(6, 8, 6),
            "k": x(6, 4, 6),
            "v": x(6, 4, 6),
            "cp_group": dist.group.WORLD,
            "qkv_format": "thd",
            "attn_mask_type": "padding",
            "cu_seqlens_q": cu,
            "cu_seqlens_kv": cu,
            "cu_seqlens_q_padded": rows,
            "cu_seqlens_kv_padded": rows,
        }


def call(given: dict[str, Any], **changed: Any) -> Any:
    arguments = {**given, **changed}
    q, k, v = (arguments.pop(name) for name in ("q", "k", "v"))
    return cp.cp_attention(q, k, v, **arguments)


def both(name: str, values: list[int]) -> dict[str, list[int]]:
    """Returns a keyword of queries and of keys."""
    first, _, last = name.partition("_q")
    return {f"{first}_{of}{last}": values for of in ("q", "kv")}


Call = Callable[[Given], object]

# By name: the call, and the number and the rule that its report has.
VALUES: dict[str, tuple[Call, str]] = {
    "comm type": (
        lambda g: call(g.dense, cp_comm_type="ring"),
        r"Unsupported communication type.*'ring'",
    ),
    "comm type None": (
        lambda g: call(g.dense, cp_comm_type=None),
        r"Unsupported communication type",
    ),
    "two groups wanted": (
        lambda g: call(g.dense, cp_comm_type="a2a+p2p"),
        r"a2a\+p2p[\s\S]*two groups",
    ),
    "three groups": (
        lambda g: call(g.dense, cp_comm_type="a2a+p2p", cp_group=[*g.two, g.two[0]]),
        r"a2a\+p2p[\s\S]*3",
    ),
    "one group wanted": (lambda g: call(g.dense, cp_group=g.two), r"p2p[\s\S]*one group"),
    "groups that are no grid": (
        lambda g: call(g.dense, cp_comm_type="a2a+p2p", cp_group=[g.two[0], g.two[0]]),
        r"\[0, 1\]|\[2, 3\]",
    ),
    "format": (lambda g: call(g.dense, qkv_format="bhsd"), r"qkv_format.*'bhsd'"),
    "mask": (lambda g: call(g.dense, attn_mask_type="diagonal"), r"attn_mask_type.*'diagonal'"),
    "padding of dense": (
        lambda g: call(g.dense, attn_mask_type="padding"),
        r"padding[\s\S]*cu_seqlens_q",
    ),
    "softmax": (lambda g: call(g.dense, softmax_type="sparse"), r"softmax_type.*'sparse'"),
    "offset missing": (
        lambda g: call(g.dense, softmax_type="learnable"),
        r"learnable[\s\S]*softmax_offset",
    ),
    "offset unasked": (
        lambda g: call(g.dense, softmax_offset=x(8)),
        r"softmax_offset[\s\S]*vanilla",
    ),
    "offset of groups": (
        lambda g: call(g.dense, softmax_type="learnable", softmax_offset=x(4)),
        r"softmax_offset[\s\S]*\[4\][\s\S]*8",
    ),
    "offset on the host": (
        lambda g: call(
            g.dense, softmax_type="learnable", softmax_offset=x(8, device="cpu"), cp_comm_type="a2a"
        ),
        r"softmax_offset is on cpu[\s\S]*cuda",
    ),
    "bias on the host": (
        lambda g: call(g.dense, core_attention_bias=x(1, 8, 16, 16, device="cpu")),
        r"core_attention_bias is on cpu[\s\S]*cuda",
    ),
    "stream of another device": (
        lambda g: call(g.dense, cp_stream=torch.cuda.Stream((dist.get_rank() + 1) % RANKS)),
        r"cp_stream is on cuda:\d[\s\S]*cuda:\d",
    ),
    "complex scale": (lambda g: call(g.dense, softmax_scale=np.complex64(1j)), r"softmax_scale"),
    "groups in the other order": (
        lambda g: call(g.dense, cp_comm_type="a2a+p2p", cp_group=g.two[::-1]),
        r"neighbours[\s\S]*a2a: ranks \[(0, 2|1, 3)\][\s\S]*the other order",
    ),
    "window of causal": (lambda g: call(g.dense, window_size=(-2, 0)), r"window_size[\s\S]*-2"),
    "window on one side": (
        lambda g: call(g.dense, attn_mask_type="no_mask", window_size=(4, -1)),
        r"window_size[\s\S]*\(4, -1\)",
    ),
    "window of three": (lambda g: call(g.dense, window_size=(1, 0, 0)), r"window_size"),
    "odd share": (
        lambda g: call(g.dense, q=x(2, 3, 8, 6), k=x(2, 3, 4, 6), v=x(2, 3, 4, 6)),
        r"12[\s\S]*8",
    ),
    "heads of groups": (
        lambda g: call(g.dense, k=x(2, 4, 3, 6), v=x(2, 4, 3, 6)),
        r"8[\s\S]*3",
    ),
    "heads of ranks": (
        lambda g: call(
            g.dense, q=x(2, 4, 6, 6), k=x(2, 4, 6, 6), v=x(2, 4, 6, 6), cp_comm_type="a2a"
        ),
        r"6[\s\S]*4",
    ),
    "groups of ranks": (
        lambda g: call(g.dense, k=x(2, 4, 2, 6), v=x(2, 4, 2, 6), cp_comm_type="a2a"),
        r"2[\s\S]*4",
    ),
    "groups of inner ranks": (
        lambda g: call(
            g.dense, k=x(2, 4, 1, 6), v=x(2, 4, 1, 6), cp_comm_type="a2a+p2p", cp_group=g.two
        ),
        r"1[\s\S]*2",
    ),
    "types": (
        lambda g: call(g.dense, k=x(2, 4, 4, 6, dtype=torch.float64)),
        r"float32[\s\S]*float64",
    ),
    "integers": (
        lambda g: call(
            g.dense,
            **{
                name: torch.ones(2, 4, 4, 6, dtype=torch.int64, device="cuda")
                for name in ("q", "k", "v")
            },
        ),
        r"int64",
    ),
    "widths": (lambda g: call(g.dense, k=x(2, 4, 4, 5)), r"6[\s\S]*5|5[\s\S]*6"),
    "values of other keys": (lambda g: call(g.dense, v=x(2, 8, 4, 6)), r"4[\s\S]*8"),
    "batches": (
        lambda g: call(g.dense, k=x(1, 4, 4, 6), v=x(1, 4, 4, 6)),
        r"\[1, 4, 4, 6\]",
    ),
    "three dimensions": (lambda g: call(g.dense, q=x(4, 8, 6)), r"\[4, 8, 6\]"),
    "four dimensions": (lambda g: call(g.packed, q=x(1, 6, 8, 6)), r"\[1, 6, 8, 6\]"),
    "no lengths": (
        lambda g: call(g.packed, cu_seqlens_q=None),
        r"thd[\s\S]*cu_seqlens_q",
    ),
    "no rows": (
        lambda g: call(g.packed, cu_seqlens_q_padded=None),
        r"thd[\s\S]*cu_seqlens_q_padded",
    ),
    "no rows of keys": (
        lambda g: call(g.packed, cu_seqlens_kv_padded=None),
        r"thd[\s\S]*cu_seqlens_kv_padded",
    ),
    "rows of 2 cp": (
        lambda g: call(g.packed, **both("cu_seqlens_q_padded", [0, 8, 12, 24])),
        r"4 rows|4[\s\S]*2 \* cp|12|8",
    ),
    "local rows": (
        lambda g: call(g.packed, **both("cu_seqlens_q_padded", [0, 8, 8, 32])),
        r"32[\s\S]*4|8[\s\S]*6",
    ),
    "tokens of rows": (
        lambda g: call(g.packed, **both("cu_seqlens_q", [0, 9, 9, 20])),
        r"9[\s\S]*8",
    ),
    "number of sequences": (
        lambda g: call(g.packed, **both("cu_seqlens_q", [0, 5, 20])),
        r"cu_seqlens_q",
    ),
    "sequences of keys": (
        lambda g: call(g.packed, cu_seqlens_kv=[0, 20], cu_seqlens_kv_padded=[0, 24]),
        r"3 sequences of queries, 1 of keys",
    ),
    "decreasing": (
        lambda g: call(g.packed, **both("cu_seqlens_q", [0, 5, 4, 20])),
        r"cu_seqlens_q[\s\S]*4",
    ),
    "from 0": (
        lambda g: call(g.packed, **both("cu_seqlens_q", [1, 5, 5, 20])),
        r"cu_seqlens_q[\s\S]*1",
    ),
    "padding denied": (
        lambda g: call(g.packed, pad_between_seqs=False),
        r"pad_between_seqs",
    ),
    "padding of dense sequences": (
        lambda g: call(g.dense, pad_between_seqs=True),
        r"pad_between_seqs[\s\S]*bshd",
    ),
    "a word for True": (
        lambda g: call(g.packed, pad_between_seqs="True"),
        r"pad_between_seqs[\s\S]*'True'",
    ),
    "a number for True": (lambda g: call(g.dense, return_max_logit=1), r"return_max_logit"),
    "longest": (lambda g: call(g.packed, max_seqlen_q=8), r"max_seqlen_q[\s\S]*8"),
}
UNSUPPORTED: dict[str, tuple[Call, str]] = {
    "bias of packed": (
        lambda g: call(g.packed, core_attention_bias=x(1, 8, 24, 24)),
        r"bias[\s\S]*thd",
    ),
    **{
        f"bias by {comm}": (
            lambda g, comm=comm: call(  # type: ignore[misc]
                g.dense,
                core_attention_bias=x(1, 8, 16, 16),
                cp_comm_type=comm,
                cp_group=g.two if comm == "a2a+p2p" else dist.group.WORLD,
            ),
            r"bias[\s\S]*p2p",
        )
        for comm in ("all_gather", "a2a", "a2a+p2p")
    },
}
ALL = {
    **{name: (ValueError, *each) for name, each in VALUES.items()},
    **{name: (NotImplementedError, *each) for name, each in UNSUPPORTED.items()},
}


@pytest.mark.parametrize("name", ALL)
def test_refused_before_anything_is_sent(kernbench: Kernbench, name: str) -> None:
    kind, attempt, message = ALL[name]

    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        given = Given()
        with CommDebugMode() as mode, pytest.raises(kind, match=message):
            attempt(given)
        assert mode.get_total_counts() == 0
        total = torch.tensor([float(rank)], device="cuda")
        dist.all_reduce(total)
        assert total.item() == sum(range(RANKS))
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=RANKS)


@pytest.mark.parametrize("comm", ["p2p", "a2a+p2p"])
def test_a_group_without_the_rank(kernbench: Kernbench, comm: str) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        given, pair = Given(), dist.new_group([0, 1])
        group = [given.two[0], pair] if comm == "a2a+p2p" else pair
        if rank > 1:
            with pytest.raises(RuntimeError, match=r"\[C8\][\s\S]*test_cp_bad_input\.py"):
                call(given.dense, cp_comm_type=comm, cp_group=group)
            with pytest.raises(RuntimeError, match=r"\[C8\][\s\S]*test_cp_bad_input\.py"):
                cp.DotProductAttention(8, 6, 4, cp_group=group, cp_comm_type=comm)
        dist.barrier()
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=RANKS)


def test_a_refusal_says_who_and_where(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        del rank
        dist.init_process_group("nccl")
        with pytest.raises(ValueError, match=r"at .*test_cp_bad_input\.py:\d+"):
            call(Given().dense, cp_comm_type="ring")
        dist.destroy_process_group()

    kernbench.spawn(worker, nprocs=RANKS)
