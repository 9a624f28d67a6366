"""Functions of PyTorch that on simulated devices are CUDA's operations, with a CPU's numbers."""

from collections.abc import Callable
from typing import Any

import pytest
from bridge_costs import on_one_rank

import kernbench

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
F = torch.nn.functional
BF16 = torch.bfloat16
NAME = "aten::_scaled_dot_product_{}_attention"


def _operands(*, dtype: Any, groups: int = 4, width: int = 64) -> list[Any]:
    torch.manual_seed(0)
    return [torch.randn(2, heads, 16, width, dtype=dtype) for heads in (4, groups, groups)]


def _with_gradients(function: Callable[..., Any], operands: list[Any], **named: Any) -> list[Any]:
    leaves = [each.detach().clone().requires_grad_() for each in operands]
    out = function(*leaves, **named)
    torch.autograd.backward(out, torch.ones_like(out))
    return [out.detach(), *[each.grad for each in leaves]]


def _mask() -> Any:
    torch.manual_seed(1)
    mask = torch.rand(16, 16) > 0.4
    return mask | torch.eye(16, dtype=torch.bool)


CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("cudnn", {"dtype": BF16}, {"is_causal": True}),
    ("cudnn", {"dtype": BF16, "groups": 2}, {"is_causal": True, "enable_gqa": True}),
    ("flash", {"dtype": BF16, "width": 256}, {}),
    ("flash", {"dtype": BF16, "width": 20}, {"is_causal": True}),
    ("efficient", {"dtype": torch.float32}, {}),
    ("efficient", {"dtype": torch.float32}, {"attn_mask": _mask()}),
    ("cudnn", {"dtype": BF16}, {"attn_mask": _mask(), "scale": 0.2}),
]


@pytest.mark.parametrize(("backend", "given", "options"), CASES)
def test_attention_is_one_command_and_has_the_numbers_of_a_cpu(
    backend: str, given: dict[str, Any], options: dict[str, Any]
) -> None:
    operands = _operands(**given)
    expected = _with_gradients(F.scaled_dot_product_attention, operands, **options)
    found: list[Any] = []

    def worker() -> None:
        moved = {
            key: each.cuda() if isinstance(each, torch.Tensor) else each
            for key, each in options.items()
        }
        ours = [each.cuda() for each in operands]
        results = _with_gradients(F.scaled_dot_product_attention, ours, **moved)
        found.extend(each.cpu() for each in results)

    names = on_one_rank(worker)
    name = NAME.format(backend)
    assert [each for each in names if "attention" in each] == [name, f"{name}_backward"]
    assert not {"aten::bmm", "aten::_softmax", "aten::_safe_softmax"} & set(names)
    for ours, theirs in zip(found, expected, strict=True):
        bound = 2e-2 if ours.dtype is BF16 else 1e-5
        scale = float(theirs.float().abs().max())
        assert float((ours.float() - theirs.float()).abs().max()) <= bound * scale


def test_attention_has_the_same_commands_without_numbers() -> None:
    def commands(data: bool) -> list[str]:
        def worker() -> None:
            for _, given, options in CASES:
                if "attn_mask" not in options:
                    ours = [torch.zeros_like(each, device="cuda") for each in _operands(**given)]
                    _with_gradients(F.scaled_dot_product_attention, ours, **options)

        return [each for each in on_one_rank(worker, data=data) if "attention" in each]

    assert commands(True) == commands(False)
    assert len(commands(True)) == 2 * 5


def test_what_no_kernel_takes_is_a_matrix_of_scores() -> None:
    def worker() -> None:
        x = torch.zeros(4, 16, 64, device="cuda")
        F.scaled_dot_product_attention(x, x, x)

    assert {"aten::bmm", "aten::_safe_softmax"} <= set(on_one_rank(worker))


def test_sdpa_kernel_chooses_the_backend() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def worker() -> None:
        x = torch.zeros(1, 4, 16, 64, dtype=BF16, device="cuda")
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            with sdpa_kernel(backend):
                F.scaled_dot_product_attention(x, x, x)

    names = [each for each in on_one_rank(worker) if "attention" in each]
    assert names == [NAME.format("flash"), NAME.format("cudnn")]


def test_cudnn_drops_weights_with_any_probability() -> None:
    def worker() -> None:
        x = torch.zeros(1, 4, 16, 64, dtype=BF16, device="cuda")
        F.scaled_dot_product_attention(x, x, x, dropout_p=0.1)

    assert NAME.format("cudnn") in on_one_rank(worker, data=False)


def test_dropped_weights_are_the_same_in_the_gradient() -> None:
    """Attention is linear in the values: its gradient is that of the weights that were kept."""
    found: list[Any] = []

    def worker() -> None:
        q, k, v = (each.cuda() for each in _operands(dtype=torch.float32))
        v.requires_grad_()
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
        out.sum().backward()
        found.extend([out.detach().cpu().sum(), (v.grad * v.detach()).sum().cpu()])

    on_one_rank(worker)
    assert float(found[0]) == pytest.approx(float(found[1]), rel=1e-4)


def test_the_gradient_of_a_mask_is_that_of_a_cpu() -> None:
    torch.manual_seed(2)
    operands = [*_operands(dtype=torch.float32), torch.randn(2, 4, 16, 16)]
    expected = _with_gradients(F.scaled_dot_product_attention, operands)
    found: list[Any] = []

    def worker() -> None:
        ours = [each.cuda() for each in operands]
        found.extend(each.cpu() for each in _with_gradients(F.scaled_dot_product_attention, ours))

    names = on_one_rank(worker)
    assert NAME.format("efficient") in names
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_rms_norm_is_one_kernel_with_the_numbers_of_a_cpu() -> None:
    torch.manual_seed(3)
    operands = [torch.randn(4, 8, 64), torch.randn(64)]

    def norm(x: Any, weight: Any) -> Any:
        return F.rms_norm(x, (64,), weight, 1e-5)

    expected = _with_gradients(norm, operands)
    found: list[Any] = []

    def worker() -> None:
        ours = [each.cuda() for each in operands]
        found.extend(each.cpu() for each in _with_gradients(norm, ours))

    names = on_one_rank(worker)
    assert [each for each in names if "rms" in each] == [
        "aten::_fused_rms_norm",
        "aten::_fused_rms_norm_backward",
    ]
    assert not {"aten::rsqrt", "aten::pow", "aten::mean"} & set(names)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("data", [True, False])
def test_dropout_is_one_kernel(data: bool) -> None:
    def worker() -> None:
        x = torch.zeros(8, 64, device="cuda")
        F.dropout(x, 0.1)
        F.dropout(x, 0.1, training=False)

    assert on_one_rank(worker, data=data) == ["aten::zeros", "aten::native_dropout"]


@pytest.mark.parametrize("data", [True, False])
def test_clipping_and_optimisers_take_lists(data: bool) -> None:
    def worker() -> None:
        params = [torch.nn.Parameter(torch.ones(4, 4, device="cuda")) for _ in range(3)]
        for each in params:
            each.grad = torch.ones_like(each)
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        torch.optim.SGD(params, 0.1).step()
        torch.optim.AdamW(params, fused=True).step()

    names = on_one_rank(worker, data=data)
    assert [each for each in names if each.startswith(("aten::_foreach", "aten::_fused"))] == [
        "aten::_foreach_norm",
        "aten::_foreach_mul_",
        "aten::_foreach_add_",
        "aten::_foreach_add_",
        "aten::_fused_adamw_",
    ]


def test_outside_of_ranks_nothing_is_replaced() -> None:
    x = torch.zeros(1, 4, 16, 64)
    before = F.scaled_dot_product_attention
    on_one_rank(lambda: None)
    assert F.scaled_dot_product_attention is before
    assert F.rms_norm(x, (64,)).shape == x.shape


@pytest.mark.parametrize("layer", ["attention", "encoder"])
def test_a_layer_takes_as_long_to_evaluate_as_to_train_forward(layer: str) -> None:
    taken: list[float] = []

    def worker(_: int) -> None:
        import time

        if layer == "attention":
            module = torch.nn.MultiheadAttention(256, 4, batch_first=True).cuda()
        else:
            module = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
            module.cuda()
        x = torch.randn(16, 128, 256, device="cuda")
        named = {"need_weights": False} if layer == "attention" else {}
        given = [x] * (3 if layer == "attention" else 1)
        for train in (True, True, False):
            module.train(train)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            with torch.no_grad():
                module(*given, **named)
            torch.cuda.synchronize()
            taken.append(time.perf_counter() - begin)

    kernbench.torchrun_spawn(worker, nprocs=1, data=False)

    _, trained, evaluated = taken
    assert 0.9 < evaluated / trained < 1.1


def test_the_host_reads_the_least_and_the_greatest_value_before_it_counts() -> None:
    def worker() -> None:
        places = torch.tensor([3, 1, 1, 7], device="cuda")
        assert torch.bincount(places, minlength=9).tolist() == [0, 2, 0, 1, 0, 0, 0, 1, 0]
        assert places.bincount().numel() == 8
        assert torch.bincount(torch.tensor([2])).tolist() == [0, 0, 1]  # of the host

    found = [each for each in on_one_rank(worker) if each.startswith("aten::")]
    assert found == ["aten::min", "aten::max", "aten::bincount"] * 2


@pytest.mark.parametrize("data", [True, False])
def test_ones_are_scattered_to_their_classes_as_on_a_gpu(data: bool) -> None:
    def worker(_: int) -> None:
        classes = torch.tensor([[3, 1], [0, 3]], device="cuda")
        codes = F.one_hot(classes, 4)
        assert (tuple(codes.shape), codes.is_cuda) == ((2, 2, 4), True)
        if data:
            assert codes.tolist() == torch.eye(4)[classes.cpu()].tolist()
            assert F.one_hot(classes).shape[-1] == 4  # the host reads the greatest
        assert torch.vmap(lambda each: F.one_hot(each, 4))(classes).shape == codes.shape
        assert F.one_hot(classes[:0], 5).shape == (0, 2, 5)
        for refused, number, reason in (
            (classes, 0, "num_classes should be positive"),
            (classes[:0], -1, "Can not infer total number of classes"),
            (classes.float(), 4, "only applicable to index tensor of type LongTensor"),
        ):
            with pytest.raises(RuntimeError, match=reason):
                F.one_hot(refused, number)

    kernbench.torchrun_spawn(worker, nprocs=1, data=data)


def test_ones_are_scattered_to_their_classes_by_the_kernels_of_a_gpu() -> None:
    def worker() -> None:
        F.one_hot(torch.zeros(9, dtype=torch.int64, device="cuda"), 4)

    found = [each for each in on_one_rank(worker) if each.startswith("aten::")]
    assert found == ["aten::zeros", "aten::zeros", "aten::scatter_"]
