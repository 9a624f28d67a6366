"""What the schemes compute, hide and keep: steps, messages beside attention, memory, biases."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cp_cases import numbers, tensor
from cp_reference import Array, Problem, rows_of, solve, zigzag

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import cp, extend
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.sim_engine.op_log import Record
from kernbench.testing import Kernbench

BF16 = torch.bfloat16


def spawn(kernbench: Kernbench, worker: Callable[[int], None], nprocs: int, **dials: Any) -> Any:
    def run(rank: int) -> None:
        dist.init_process_group("cpu:gloo,cuda:nccl")
        worker(rank)
        dist.destroy_process_group()

    return kernbench.spawn(run, nprocs=nprocs, **dials)


def blank(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device="cuda", requires_grad=True)


def attention(records: list[Record], rank: int) -> list[Record]:
    """The attention commands of a rank, in order."""
    return [each for each in records if each.rank == rank and "dot_product" in each.name]


@pytest.mark.parametrize("ranks", [1, 2, 5, 8])
def test_causal_work_is_that_of_the_table(kernbench: Kernbench, ranks: int) -> None:
    """Of chunks of c: c(2c+1) in the first step, then 2c*c by lower tiles and upper ones."""
    c = 3
    plans: dict[int, Any] = {}

    def worker(rank: int) -> None:
        q, k, v = (blank(1, 2 * c, heads, 8) for heads in (2, 1, 1))
        _, plans[rank] = cp.cp_attention(q, k, v, cp_group=dist.group.WORLD, return_plan=True)

    spawn(kernbench, worker, ranks, data=False)
    own = c * (2 * c + 1) if ranks > 1 else 2 * c * (2 * c + 1) // 2
    for rank, plan in plans.items():
        assert plan.scores() == (own, *[2 * c * c] * (ranks - 1))
        for step, bands in enumerate(plan.steps[1:], 1):
            # Both halves see the first half of the keys, or the second half sees both halves.
            lower, upper = (0, 2 * c, 0, c), (c, c, 0, 2 * c)
            assert merged(bands[0]) == (lower if step <= rank else upper)
        assert not plan.padding_active
        assert plan.rows_masked == 0


def merged(bands: extend.Bands) -> tuple[int, int, int, int]:
    """The one rectangle that bands without a diagonal make up."""
    top, left = min(b.query for b in bands), min(b.key for b in bands)
    bottom = max(b.query + b.queries for b in bands)
    right = max(b.key + b.keys for b in bands)
    assert sum(b.seen() for b in bands) == (bottom - top) * (right - left)
    return top, bottom - top, left, right - left


def test_gathered_work_is_the_same_on_all_ranks(kernbench: Kernbench) -> None:
    c, ranks = 4, 4
    plans: list[Any] = []

    def worker(rank: int) -> None:
        del rank
        q, k, v = (blank(2, 2 * c, 1, 8) for _ in range(3))
        _, plan = cp.cp_attention(
            q, k, v, cp_group=dist.group.WORLD, cp_comm_type="all_gather", return_plan=True
        )
        plans.append(plan)

    spawn(kernbench, worker, ranks, data=False)
    assert {sum(plan.scores()) for plan in plans} == {2 * (2 * ranks * c * c + c)}


def test_a_step_that_sees_nothing_computes_nothing(kernbench: Kernbench) -> None:
    """A window of 8 reaches the chunk before, which neighbours have; all keys go around still."""
    ranks, c = 4, 8
    plans: dict[int, Any] = {}

    def worker(rank: int) -> None:
        q, k, v = (blank(1, 2 * c, 1, 8) for _ in range(3))
        out, plans[rank] = cp.cp_attention(
            q, k, v, cp_group=dist.group.WORLD, window_size=(8, 0), return_plan=True
        )
        out.sum().backward()

    records = spawn(kernbench, worker, ranks, data=False, record="full").engine.op_log.records
    assert [plans[rank].steps_computed for rank in range(ranks)] == [2, 3, 3, 2]
    for rank, plan in plans.items():
        assert len(attention(records, rank)) == 2 * plan.steps_computed
        sends = [each for each in records if each.rank == rank and each.category == "send"]
        assert len(sends) == plan.messages + plan.messages_backward == 3 * (ranks - 1)
        assert sum(each.args["bytes"] for each in sends) == (
            plan.bytes_sent + plan.bytes_sent_backward
        )


@pytest.mark.parametrize(("heads", "bound"), [(32, "compute"), (1, "transfer")])
def test_messages_hide_behind_attention(kernbench: Kernbench, heads: int, bound: str) -> None:
    """A step takes the longer of the two; the last has no message.

    On a machine whose messages do not give way to kernels, as those of `h200x8` do.
    """
    ranks, s = 4, 4096
    quick_host = ["dispatch=1 us", "dispatch_of={}", "eager={}"]  # no message waits for it
    beside = ["system.sip.overlap=null", *(f"system.host.{each}" for each in quick_host)]

    def worker(rank: int) -> None:
        del rank
        q, k, v = (blank(1, s, n, 128) for n in (heads, 1, 1))
        with torch.no_grad():
            cp.cp_attention(q, k, v, cp_group=dist.group.WORLD, attn_mask_type="no_mask")

    dials = {"data": False, "record": "full", "machine": "h200x8", "overrides": beside}
    records = spawn(kernbench, worker, ranks, **dials).engine.op_log.records
    steps = attention(records, 0)
    sends = [each for each in records if each.rank == 0 and each.category == "send"]
    assert len(steps) == ranks
    assert len(sends) == ranks - 1
    for number, send in enumerate(sends):
        step, after = steps[number], steps[number + 1]
        # The message leaves before the attention that it hides behind is over.
        assert send.start < step.end
        if bound == "compute":
            assert send.end < step.end
        else:
            assert send.end > step.start
        assert after.start >= send.end
    if bound == "compute":
        gaps = steps[-1].end - steps[0].start - sum(each.end - each.start for each in steps)
        # Between the steps, only the merges of two results.
        merges = [each for each in records if each.rank == 0 and "cp::merge" in each.name]
        assert len(merges) == 2 * (ranks - 1)
        assert gaps <= sum(each.end - each.start for each in merges) * 1.5


@pytest.mark.parametrize("scheme", ["p2p", "a2a+p2p"])
def test_memory_does_not_grow_with_the_ring(kernbench: Kernbench, scheme: str) -> None:
    """Neither buffers nor parts of results pile up, however far ahead the host runs."""
    peaks: dict[int, int] = {}

    def worker(rank: int) -> None:
        group: Any = dist.group.WORLD
        ranks = dist.get_world_size()
        if scheme == "a2a+p2p":
            near, _ = dist.new_subgroups_by_enumeration([[i, i + 1] for i in range(0, ranks, 2)])
            far, _ = dist.new_subgroups_by_enumeration([[*range(i, ranks, 2)] for i in range(2)])
            group = [near, far]
        q, k, v = (blank(1, 2048, heads, 64) for heads in (8, 4, 4))
        out = cp.cp_attention(
            q, k, v, cp_group=group, cp_comm_type=scheme, attn_mask_type="no_mask"
        )
        out.sum().backward()
        if rank == 0:
            peaks[ranks] = torch.cuda.max_memory_allocated()

    few, many = (4, 8) if scheme == "p2p" else (6, 8)
    for ranks in (few, many):
        spawn(kernbench, worker, ranks, data=False)
    assert peaks[many] <= peaks[few] * 1.02


SHAPES = {
    "1hss": (1, 2, 16, 16),
    "bhss": (2, 2, 16, 16),
    "b1ss": (2, 1, 16, 16),
    "11ss": (1, 1, 16, 16),
    "111s": (1, 1, 1, 16),
}


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_biases(kernbench: Kernbench, shape: tuple[int, ...], whole: bool, ranks: int) -> None:
    """A bias of all queries has its whole gradient on every rank, one of a rank's its rows."""
    rng = np.random.default_rng(5)
    x = [rng.normal(size=(32, heads, 3)) for heads in (2, 1, 1, 2)]
    bias = rng.normal(size=shape)
    rows = rows_of([16, 16], [16, 16])
    right = solve(Problem(x[0], x[1], x[2], x[3], rows, rows, (5, 0), 3**-0.5, bias))
    assert right.dbias is not None
    dbias = right.dbias

    def worker(rank: int) -> None:
        places = zigzag(16, ranks, rank)
        at = np.array([s + p for s in (0, 16) for p in places])

        def cut(y: Array) -> Array:
            return y if whole or shape[2] == 1 else y[:, :, places]

        q, k, v, dout = (tensor(y[at].reshape(2, -1, *y.shape[1:]), "float64") for y in x)
        mine = tensor(cut(bias), "float64")
        out = cp.cp_attention(
            q, k, v, cp_group=dist.group.WORLD, window_size=(5, 0), core_attention_bias=mine
        )
        out.backward(dout.detach())
        for got, want in ((out, right.out), (q.grad, right.dq), (k.grad, right.dk)):
            assert got is not None
            expected = want[at].reshape(2, -1, *want.shape[1:])
            np.testing.assert_allclose(numbers(got), expected, rtol=1e-12, atol=1e-12)
        assert mine.grad is not None
        np.testing.assert_allclose(numbers(mine.grad), cut(dbias), rtol=1e-12, atol=1e-12)

    spawn(kernbench, worker, ranks)


@pytest.mark.parametrize("scheme", ["p2p", "all_gather", "a2a"])
def test_backward_may_run_twice(kernbench: Kernbench, scheme: str) -> None:
    """What forward has kept is whole after a backward pass: the ring does not receive into it."""

    def worker(rank: int) -> None:
        torch.manual_seed(rank)
        x = [torch.randn(1, 4, 4, 4, device="cuda", requires_grad=True) for _ in range(3)]
        sink = torch.zeros(4, device="cuda", requires_grad=True)
        out = cp.cp_attention(
            *x,
            cp_group=dist.group.WORLD,
            cp_comm_type=scheme,
            softmax_type="learnable",
            softmax_offset=sink,
        )
        once = torch.autograd.grad(out.sum(), [*x, sink], retain_graph=True)
        twice = torch.autograd.grad(out.sum(), [*x, sink])
        for a, b in zip(once, twice, strict=True):
            assert a is not None
            assert b is not None
            assert torch.equal(a, b)
            assert a.abs().max().item() > 0

    spawn(kernbench, worker, 4)


@pytest.mark.parametrize("scheme", ["p2p", "all_gather", "a2a"])
@pytest.mark.parametrize("layout", ["bshd", "sbhd", "thd"])
def test_views_of_one_projection(kernbench: Kernbench, scheme: str, layout: str) -> None:
    """Queries, keys and values that lie between each other in memory."""

    def worker(rank: int) -> None:
        torch.manual_seed(rank)
        shape = (8, 4, 12) if layout == "thd" else (2, 8, 4, 12)
        shape = (8, 2, 4, 12) if layout == "sbhd" else shape
        qkv = torch.randn(shape, device="cuda", requires_grad=True)
        lengths: dict[str, Any] = {}
        if layout == "thd":
            lengths = {"cu_seqlens_q": [0, 16], "cu_seqlens_q_padded": [0, 16]}
        found = []
        for parts in (qkv.chunk(3, -1), [x.contiguous() for x in qkv.chunk(3, -1)]):
            out = cp.cp_attention(
                *parts,
                cp_group=dist.group.WORLD,
                cp_comm_type=scheme,
                qkv_format=layout,
                **lengths,
            )
            assert out.is_contiguous()
            found.append((out, *torch.autograd.grad(out.square().sum(), [qkv])))
        for a, b in zip(*found, strict=True):
            assert torch.equal(a, b)

    spawn(kernbench, worker, 2)


def test_ranks_that_call_it_differently(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        q, k, v = (blank(1, 4, 4, 8) for _ in range(3))
        scheme = "a2a" if rank == 1 else "p2p"
        cp.cp_attention(q, k, v, cp_group=dist.group.WORLD, cp_comm_type=scheme)

    with pytest.raises(SpawnException, match=r"C9[\s\S]*cp_comm_type='(p2p|a2a)'"):
        spawn(kernbench, worker, 2)


def test_lengths_of_a_device_need_data(kernbench: Kernbench) -> None:
    """Lengths are read when it is called; a list needs no data."""

    def worker(rank: int) -> None:
        del rank
        q, k, v = (blank(8, 2, 8) for _ in range(3))
        given: dict[str, Any] = {"cp_group": dist.group.WORLD, "qkv_format": "thd"}
        there = torch.tensor([0, 16], device="cuda")
        with pytest.raises(extend.NoDataError):
            cp.cp_attention(q, k, v, **given, cu_seqlens_q=there, cu_seqlens_q_padded=there)
        for lengths in ([0, 16], (0, 16), np.array([0, 16])):
            out = cp.cp_attention(
                q, k, v, **given, cu_seqlens_q=lengths, cu_seqlens_q_padded=lengths
            )
            out.sum().backward()

    spawn(kernbench, worker, 2, data=False)


def test_a_rank_alone_needs_no_group(kernbench: Kernbench) -> None:
    """Any length is taken, and nothing is sent."""

    def worker(rank: int) -> None:
        del rank
        q, k, v = (blank(2, 5, 4, 8) for _ in range(3))
        for scheme in ("p2p", "all_gather", "a2a"):
            out, plan = cp.cp_attention(
                q, k, v, cp_group=None, cp_comm_type=scheme, return_plan=True
            )
            assert out.shape == (2, 5, 4, 8)
            assert (plan.messages, plan.bytes_sent, plan.bytes_sent_backward) == (0, 0, 0)

    spawn(kernbench, worker, 1, data=False)


@pytest.mark.parametrize("scheme", ["p2p", "all_gather", "a2a"])
def test_tensors_of_the_host(kernbench: Kernbench, scheme: str) -> None:
    """The same numbers as on devices, with a handle for each message."""

    def worker(rank: int) -> None:
        found = []
        for device in ("cpu", "cuda"):
            rng = np.random.default_rng(rank)
            q, k, v = (
                torch.from_numpy(rng.normal(size=(1, 4, 2, 4))).to(device).requires_grad_()
                for _ in range(3)
            )
            out = cp.cp_attention(q, k, v, cp_group=dist.group.WORLD, cp_comm_type=scheme)
            out.square().sum().backward()
            grads = [each.grad for each in (q, k, v) if each.grad is not None]
            assert len(grads) == 3
            found.append([numbers(each) for each in (out, *grads)])
        for a, b in zip(*found, strict=True):
            np.testing.assert_array_equal(a, b)

    spawn(kernbench, worker, 2)


@pytest.mark.parametrize("scheme", ["p2p", "all_gather", "a2a"])
def test_sinks_of_16_bits(kernbench: Kernbench, scheme: str) -> None:
    """Their gradients are added in float32, and rounded once."""
    rows = rows_of([256], [256])
    rng = np.random.default_rng(6)
    x = [rng.normal(size=(256, 2, 4)) for _ in range(4)]
    sink = np.array([0.5, 2.0])
    right = solve(Problem(x[0], x[1], x[2], x[3], rows, rows, (-1, 0), 0.5, None, sink))
    assert right.dsink is not None
    expected = right.dsink

    def worker(rank: int) -> None:
        places = zigzag(256, 2, rank)
        q, k, v, grad = (tensor(y[None, places], "float32") for y in x)
        mine = tensor(sink, "bfloat16")
        out = cp.cp_attention(
            q,
            k,
            v,
            cp_group=dist.group.WORLD,
            cp_comm_type=scheme,
            softmax_type="learnable",
            softmax_offset=mine,
        )
        out.backward(grad.detach())
        assert mine.grad is not None
        assert mine.grad.dtype is BF16
        np.testing.assert_allclose(numbers(mine.grad), expected, rtol=2**-8)

    spawn(kernbench, worker, 2)
