"""`flex_attention`: numbers of attention written out on a CPU, times and memory of one kernel."""

import importlib
import math
from collections.abc import Callable
from typing import Any

import pytest
from bridge_costs import on_one_rank

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
flex = importlib.import_module("torch.nn.attention.flex_attention")
F = torch.nn.functional
BF16 = torch.bfloat16
LENGTH = 200
"""No multiple of a block."""


def _operands(dtype: Any, groups: int = 2, length: int = LENGTH) -> list[Any]:
    torch.manual_seed(0)
    return [torch.randn(2, heads, length, 32, dtype=dtype) for heads in (4, groups, groups)]


def _written_out(
    query: Any, key: Any, value: Any, change: Callable[..., Any], sees: Callable[..., Any]
) -> tuple[Any, Any]:
    """Returns attention and its logarithms of sums, in float32 and without `flex_attention`."""
    share = query.shape[1] // key.shape[1]
    query, key, value = (each.float() for each in (query, key, value))
    key, value = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    sizes = scores.shape
    b, h, i, j = (
        torch.arange(size).view([-1 if at == place else 1 for at in range(4)])
        for place, size in enumerate(sizes)
    )
    scores = change(scores, b, h, i, j)
    scores = scores.masked_fill(~sees(b, h, i, j).expand(sizes), -math.inf)
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


def _causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


def _any(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (i >= 0) & (j >= 0)


def _same(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return score


Functions = tuple[Callable[..., Any], Callable[..., Any]]


def _plain(bias: Any) -> Functions:
    return _same, _any


def _of_causal(bias: Any) -> Functions:
    return _same, _causal


def _of_bias(bias: Any) -> Functions:
    return lambda score, b, h, i, j: score + bias[h] * (j - i) / 100, _causal


def _of_documents(bias: Any) -> Functions:
    document = (torch.arange(LENGTH) // 60).to(bias.device)
    return (
        lambda score, b, h, i, j: torch.tanh(score * bias[h]),
        lambda b, h, i, j: (document[i] == document[j]) & (i >= j),
    )


CASES = [_plain, _of_causal, _of_bias, _of_documents]


@pytest.mark.filterwarnings("ignore:return_lse", "ignore:torch.compile is not")
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_are_those_of_attention_that_is_written_out(
    case: Callable[[Any], Functions], dtype: Any
) -> None:
    operands, bias = _operands(dtype), torch.tensor([0.3, -0.2, 1.0, 0.1])
    found: list[Any] = []

    def worker() -> None:
        leaves = [each.cuda().requires_grad_() for each in operands]
        there = bias.cuda().requires_grad_()
        change, sees = case(there)
        mask = None
        if sees is not _any:
            mask = flex.create_block_mask(sees, None, None, LENGTH, LENGTH, device="cuda")
        call = torch.compile(flex.flex_attention)
        out, lse = call(
            *leaves,
            score_mod=None if change is _same else change,
            block_mask=mask,
            enable_gqa=True,
            return_lse=True,
        )
        assert out.device == lse.device == torch.device("cuda", 0)
        ((out.float() * 2).sum() + lse.sum()).backward()
        given = torch.zeros_like(there) if there.grad is None else there.grad
        found.extend(
            each.detach().cpu() for each in (out, lse, *(one.grad for one in leaves), given)
        )

    on_one_rank(worker)
    leaves = [each.clone().requires_grad_() for each in operands]
    here = bias.clone().requires_grad_()
    change, sees = case(here)
    query, key, value = leaves
    out, lse = _written_out(query, key, value, change, sees)
    ((out * 2).sum() + lse.sum()).backward()
    given = torch.zeros(4) if here.grad is None else here.grad
    expected = [out.detach(), lse.detach(), *(one.grad for one in leaves), given]
    bound = 2e-2 if dtype is BF16 else 1e-5
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        scale = max(float(theirs.abs().max()), 1e-3)
        assert float((ours.float() - theirs.float()).abs().max()) <= bound * scale


Commands = list[tuple[str, int]]


def _commands(
    monkeypatch: pytest.MonkeyPatch, worker: Callable[[], object], *, data: bool = True
) -> Commands:
    """Returns name and picoseconds of each command of attention of one rank."""
    alone = importlib.import_module("kernbench.bridge.operations.timing").Alone
    real, found = alone.issue, []

    def issue(self: Any, name: str, stream: Any, duration: int) -> Any:
        found.append((name, duration))
        return real(self, name, stream, duration)

    with monkeypatch.context() as patch:
        patch.setattr(alone, "issue", issue)
        on_one_rank(worker, data=data)
    return [
        each for each in found if "attention" in each[0] or each[0] in {"aten::bmm", "aten::mm"}
    ]


def _flexes(
    length: int, sees: Callable[[], Callable[..., Any]] | None, batch: int = 1
) -> Callable[[], None]:
    def worker() -> None:
        shape = batch, 8, length, 64
        leaves = [
            torch.empty(shape, dtype=BF16, device="cuda").zero_().requires_grad_() for _ in range(3)
        ]
        mask = None
        if sees is not None:
            mask = flex.create_block_mask(sees(), None, None, length, length, device="cuda")
        flex.flex_attention(*leaves, block_mask=mask).sum().backward()

    return worker


def _attends(length: int, *, causal: bool, batch: int = 1) -> Callable[[], None]:
    def worker() -> None:
        shape = batch, 8, length, 64
        leaves = [
            torch.empty(shape, dtype=BF16, device="cuda").zero_().requires_grad_() for _ in range(3)
        ]
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            F.scaled_dot_product_attention(*leaves, is_causal=causal).sum().backward()

    return worker


def _documents_of_512() -> Callable[..., Any]:
    document = torch.arange(2048, device="cuda") // 512
    return lambda b, h, i, j: document[i] == document[j]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (_flexes(2048, None), _attends(2048, causal=False)),
        (_flexes(2048, lambda: _causal), _attends(2048, causal=True)),
        (_flexes(2048, _documents_of_512), _attends(512, causal=False, batch=4)),
    ],
)
def test_time_is_that_of_one_kernel_over_the_blocks_that_are_seen(
    monkeypatch: pytest.MonkeyPatch, ours: Callable[[], None], theirs: Callable[[], None]
) -> None:
    found, expected = (_commands(monkeypatch, worker) for worker in (ours, theirs))
    assert [name for name, _ in found] == ["flex_attention", "flex_attention_backward"]
    assert len(expected) == 2
    for (_, duration), (_, flash) in zip(found, expected, strict=True):
        assert duration == pytest.approx(flash, rel=0.02)


def test_without_numbers_the_function_of_a_mask_tells_its_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = _flexes(2000, lambda: lambda b, h, i, j: (i >= j) & (i - j < 300))
    numbers, none = (_commands(monkeypatch, worker, data=data) for data in (True, False))
    assert none == numbers
    every = _commands(monkeypatch, _flexes(2000, None), data=False)
    assert all(one > other for (_, one), (_, other) in zip(every, numbers, strict=True))


def test_blocks_that_only_the_device_knows_are_all_counted_and_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.warns(UserWarning, match="depends on numbers of the device"):
        found = _commands(monkeypatch, _flexes(2048, _documents_of_512), data=False)
    every = _commands(monkeypatch, _flexes(2048, None), data=False)
    for (name, ours), (same, theirs) in zip(found, every, strict=True):
        assert name == same
        assert ours == pytest.approx(theirs, rel=0.01)


def _held() -> int:
    nbytes: int = torch.cuda.memory_allocated()
    return nbytes


@pytest.mark.parametrize("data", [True, False])
def test_memory_is_that_of_the_results(data: bool) -> None:
    found: list[int] = []

    def worker() -> None:
        leaves = [
            torch.zeros(1, 2, 1024, 64, dtype=BF16, device="cuda").requires_grad_()
            for _ in range(3)
        ]
        mask = flex.create_block_mask(_causal, None, None, 1024, 1024, device="cuda")
        before = _held()
        torch.cuda.reset_peak_memory_stats()
        out = flex.flex_attention(*leaves, block_mask=mask)
        found.append(_held() - before)
        found.append(torch.cuda.max_memory_allocated() - before)
        grad = torch.zeros_like(out)
        before = _held()
        torch.cuda.reset_peak_memory_stats()
        out.backward(grad)
        found.append(torch.cuda.max_memory_allocated() - before)

    on_one_rank(worker, data=data)
    rows, each = 2 * 1024, 2 * 1024 * 64 * 2
    # Forward: the result, logarithms and, for a while, greatest scores; backward: gradients, sums.
    assert found == [each + 4 * rows, each + 2 * 4 * rows, 3 * each + 4 * rows]


def test_policies_of_checkpoints_see_it() -> None:
    from torch.utils.checkpoint import (
        CheckpointPolicy,
        checkpoint,
        create_selective_checkpoint_contexts,
    )

    def policy(context: Any, operation: Any, *_: Any, **__: Any) -> Any:
        kept = operation is torch.ops.higher_order.flex_attention
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    def names(*policies: Any) -> list[str]:
        def worker() -> None:
            x = torch.ones(1, 2, 64, 32, device="cuda", requires_grad=True)
            for each in policies:
                contexts = lambda given=each: create_selective_checkpoint_contexts(given)  # noqa: E731
                options = {"context_fn": contexts} if each else {}
                out = checkpoint(
                    lambda y: flex.flex_attention(y, y, y), x, use_reentrant=False, **options
                )
                out.sum().backward()

        return [each for each in on_one_rank(worker) if "flex" in each]

    assert names(None) == ["flex_attention"] * 2 + ["flex_attention_backward"]
    assert names(policy) == ["flex_attention", "flex_attention_backward"]


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_function_refers_to_learns_inside_of_a_checkpoint(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    operands, bias = _operands(torch.float32, 4), torch.linspace(-1, 1, LENGTH)
    found: list[Any] = []

    def worker() -> None:
        leaves = [each.cuda().requires_grad_() for each in operands]
        there = torch.nn.Parameter(bias.cuda())

        def attend(*given: Any) -> Any:
            change = lambda score, b, h, i, j: score + there[j]  # noqa: E731
            return flex.flex_attention(*given, score_mod=change).tanh()

        checkpoint(attend, *leaves, use_reentrant=reentrant).sum().backward()
        found.extend(each.grad.cpu() for each in (*leaves, there))

    on_one_rank(worker)
    leaves = [each.clone().requires_grad_() for each in operands]
    here = bias.clone().requires_grad_()
    query, key, value = leaves
    out, _ = _written_out(query, key, value, lambda score, b, h, i, j: score + here[j], _any)
    out.tanh().sum().backward()
    for ours, theirs in zip(found, (one.grad for one in (*leaves, here)), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_without_numbers_commands_and_gradients_are_those_with_numbers(
    case: Callable[[Any], Functions],
) -> None:
    def run(data: bool) -> tuple[Any, Any]:
        shapes: list[Any] = []

        def worker() -> None:
            leaves = [each.cuda().requires_grad_() for each in _operands(torch.float32, 4)]
            there = torch.nn.Parameter(torch.tensor([0.3, -0.2, 1.0, 0.1]).cuda())
            change, _ = case(there)
            out = flex.flex_attention(*leaves, score_mod=change)
            (out.sum() + there.sum()).backward()
            made = (out, *(one.grad for one in (*leaves, there)))
            shapes.extend((one.shape, one.stride(), one.dtype, one.device) for one in made)

        return on_one_rank(worker, data=data), shapes

    assert run(False) == run(True)


def test_functions_may_name_the_device() -> None:
    found: list[Any] = []

    def worker() -> None:
        torch.manual_seed(0)
        x = torch.randn(1, 2, 64, 32, device="cuda")

        def change(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            slope = torch.tensor([1.0, 2.0], device="cuda")
            return score * slope[h] + torch.zeros((), device=score.device)

        found.extend((flex.flex_attention(x, x, x, score_mod=change).cpu(), x.cpu()))

    on_one_rank(worker)
    out, x = found
    slope = torch.tensor([1.0, 2.0])
    expected, _ = _written_out(x, x, x, lambda s, b, h, i, j: s * slope[h], _any)
    assert torch.allclose(out, expected, atol=1e-5)


def _refused(worker: Callable[[], object], text: str) -> None:
    with pytest.raises(Exception, match=text):
        on_one_rank(worker)


def test_what_pytorch_refuses_is_refused() -> None:
    def of_the_host() -> None:
        x = torch.ones(1, 2, 64, 32, device="cuda")
        bias = torch.ones(2)
        flex.flex_attention(x, x, x, score_mod=lambda score, b, h, i, j: score + bias[h])

    def without_a_way_back() -> None:
        x = torch.ones(1, 2, 64, 32, device="cuda", requires_grad=True)
        counts = torch.ones(1, 1, 1, dtype=torch.int32, device="cuda")
        mask = flex.BlockMask.from_kv_blocks(
            counts, counts[None] * 0, seq_lengths=(64, 64), compute_q_blocks=False
        )
        flex.flex_attention(x, x, x, block_mask=mask)

    def of_a_dtensor() -> None:
        from torch.distributed.tensor import distribute_tensor, init_device_mesh

        torch.distributed.init_process_group("nccl", rank=0, world_size=1, init_method="tcp://x:1")
        x = torch.ones(1, 2, 64, 32, device="cuda")
        bias = distribute_tensor(torch.ones(2, device="cuda"), init_device_mesh("cuda", (1,)))
        flex.flex_attention(x, x, x, score_mod=lambda score, b, h, i, j: score + bias[h])

    _refused(of_the_host, "same device")
    _refused(of_a_dtensor, "refers to a DTensor")
    _refused(without_a_way_back, "compute_q_blocks=True")
