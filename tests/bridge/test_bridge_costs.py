"""What operations of PyTorch cost: bytes, operations and products worked out by hand."""

from collections.abc import Callable
from typing import Any

import pytest
from bridge_costs import asked, new

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
F = torch.nn.functional
aten = torch.ops.aten
BF16, BOOL = torch.bfloat16, torch.bool


def _moved(call: Callable[[], object], share: int) -> int:
    """Returns the bytes of the only kernel of a call, which reaches a share of the bandwidth."""
    ((nbytes, _),) = asked(call).kernels
    return round(nbytes * share / 100)


def _operations(call: Callable[[], object]) -> int:
    ((_, operations),) = asked(call).kernels
    return operations


x, y = new(1000, 1000), new(1000, 1000)
image = new(8, 16, 32, 32)
narrow = new(1000, 1000, dtype=BF16)
MB = 4_000_000
"""Bytes of x and of y."""


@pytest.mark.parametrize(
    ("call", "nbytes"),
    [
        (lambda: x + y, 3 * MB),
        (lambda: x + 1, 2 * MB),
        (lambda: torch.relu(x), 2 * MB),
        (lambda: x.add_(y), 3 * MB),
        (lambda: x.mul_(2), 2 * MB),
        (lambda: torch.add(x, y, out=y), 3 * MB),
        (lambda: torch.add(x, x, out=y), 3 * MB),
        (lambda: x < y, 2 * MB + MB // 4),
        (lambda: x + y[0], 2 * MB + 4000),
        (lambda: x + y[:1].expand(1000, 1000), 2 * MB + 4000),
        (lambda: x.t() + y.t(), 3 * MB),
        (lambda: torch.where(new(1000, 1000, dtype=BOOL), x, y), 3 * MB + MB // 4),
        (lambda: x.copy_(y), 2 * MB),
        (x.clone, 2 * MB),
        (lambda: x.to(BF16), MB + MB // 2),
        (narrow.float, MB + MB // 2),
        (lambda: torch.native_dropout(x, 0.1, True), 2 * MB + MB // 4),
        (lambda: torch.addcmul(x, x, y), 4 * MB),
    ],
)
def test_an_elementwise_kernel_reads_and_writes_each_operand_once(
    call: Callable[[], object], nbytes: int
) -> None:
    assert _moved(call, 96) == pytest.approx(nbytes, rel=1e-6)


@pytest.mark.parametrize(
    "call",
    [x.zero_, lambda: x.fill_(1), x.normal_, lambda: torch.zeros_like(x)],
)
def test_a_fill_reads_nothing(call: Callable[[], object]) -> None:
    assert _moved(call, 100) == MB


@pytest.mark.parametrize(
    ("call", "each"),
    [
        (lambda: x + y, 1),
        (lambda: x.t() + y.t(), 1),
        (lambda: x.view(-1) + y.view(-1), 1),
        (lambda: x + y[0], 86),  # every element's place is computed, of one that repeats
        (lambda: x[:, :500] + y[:, :500], 50),  # of half as many elements
        (lambda: x + narrow, 100),
        (lambda: x.t().contiguous(), 225),  # neighbours are none
        (lambda: x.view(10, 100, 1000).transpose(0, 1).contiguous(), 100),
        (lambda: x.to(BF16), 1),  # PyTorch has a kernel for this cast
        (narrow.float, 100),
    ],
)
def test_operands_that_lie_otherwise_cost_operations(call: Callable[[], object], each: int) -> None:
    assert _operations(call) == each * 1_000_000


@pytest.mark.parametrize(
    "call",
    [
        lambda: x.view(-1),
        x.t,
        x.detach,
        lambda: torch.empty_like(x),
        lambda: x[:10],
        lambda: x.expand(2, 1000, 1000),
        lambda: x.chunk(2),
    ],
)
def test_views_and_empty_tensors_are_free(call: Callable[[], object]) -> None:
    assert asked(call).launches == 0


def _product(call: Callable[[], object]) -> tuple[Any, ...]:
    (found,) = asked(call).products
    return found


a, b = new(64, 128, dtype=BF16), new(128, 256, dtype=BF16)
AB = 2 * (64 * 128 + 128 * 256 + 64 * 256)
"""Bytes of a, b and their product."""


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: a @ b, ("bf16", 64, 256, 128, AB, 1)),
        (lambda: F.linear(a, b.t()), ("bf16", 64, 256, 128, AB, 1)),
        (lambda: a @ new(256, 128, dtype=BF16).t(), ("bf16", 64, 256, 128, AB, 1)),
        (
            lambda: torch.addmm(new(256, dtype=BF16), a, b),
            ("bf16", 64, 256, 128, AB + 2 * 256, 1),
        ),
        (
            lambda: F.linear(a.view(4, 16, 128), b.t(), new(256, dtype=BF16)),
            ("bf16", 64, 256, 128, AB + 2 * 256, 1),
        ),
        (
            lambda: torch.bmm(new(8, 64, 128, dtype=BF16), new(8, 128, 256, dtype=BF16)),
            ("bf16", 64, 256, 128, 8 * AB, 8),
        ),
        (
            lambda: torch.baddbmm(
                new(8, 64, 256, dtype=BF16),
                new(8, 64, 128, dtype=BF16),
                new(8, 128, 256, dtype=BF16),
            ),
            ("bf16", 64, 256, 128, 8 * (AB + 2 * 64 * 256), 8),
        ),
        (
            lambda: torch._scaled_mm(
                new(64, 128, dtype=torch.float8_e4m3fn),
                new(256, 128, dtype=torch.float8_e4m3fn).t(),
                new(1),
                new(1),
                out_dtype=BF16,
            ),
            ("fp8", 64, 256, 128, 64 * 128 + 256 * 128 + 2 * 64 * 256 + 8, 1),
        ),
    ],
)
def test_a_product_is_one_launch(call: Callable[[], object], expected: tuple[Any, ...]) -> None:
    assert _product(call) == expected


def test_float32_is_multiplied_as_tf32_if_the_program_allows_it() -> None:
    p, q = new(64, 128), new(128, 256)
    assert _product(lambda: p @ q)[0] == "fp32"
    torch.set_float32_matmul_precision("high")
    try:
        assert _product(lambda: p @ q)[0] == "tf32"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_convolution_is_a_product_and_its_gradient_two() -> None:
    image, weight = new(2, 16, 30, 30, dtype=BF16), new(32, 16, 3, 3, dtype=BF16)
    (found,) = asked(lambda: F.conv2d(image, weight, padding=1)).products
    assert found[:5] == ("bf16", 1, 2 * 30 * 30, 32, 16 * 9)
    options = [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
    grad = new(2, 32, 30, 30, dtype=BF16)
    both = asked(lambda: aten.convolution_backward(grad, image, weight, None, *options)).products
    sizes = [each[1:5] for each in both]
    assert sizes == [(1, 2 * 30 * 30, 16, 32 * 9), (1, 32, 16 * 9, 2 * 30 * 30)]


def _attention_bytes(groups: int) -> int:
    queries = 2 * 2 * 8 * 64 * 32
    return 2 * queries + 2 * (2 * 2 * groups * 64 * 32)


@pytest.mark.parametrize("groups", [8, 2])
@pytest.mark.parametrize("name", ["flash", "cudnn"])
def test_attention_is_one_kernel_of_its_backend(name: str, groups: int) -> None:
    query = new(2, 8, 64, 32, dtype=BF16)
    key = new(2, groups, 64, 32, dtype=BF16)
    call = getattr(aten, f"_scaled_dot_product_{name}_attention")
    rest = (None, False, 0.0, True) if name == "cudnn" else (0.0, True)
    ((backend, direction, dtype, shape, patterns, nbytes),) = asked(
        lambda: call(query, key, key, *rest)
    ).attentions
    assert (backend, direction, dtype) == (name, "forward", "bf16")
    assert shape == (2, 8, groups, 32, 32)
    assert sum(band.seen() for band in patterns[0]) == 64 * 65 // 2
    small = 4 * 2 * 8 * 64 + 64  # logarithms of sums; the seed
    assert 0 <= nbytes - _attention_bytes(groups) <= small


def test_the_gradient_of_grouped_attention_writes_every_head() -> None:
    query = new(2, 8, 64, 32, dtype=BF16)
    lse, seed = new(2, 8, 64), new(1, dtype=torch.int64)

    def bytes_of(groups: int) -> int:
        key = new(2, groups, 64, 32, dtype=BF16)
        rest = lse, seed, seed, seed, seed, seed, 64, 64, 0.0, True
        call = aten._scaled_dot_product_cudnn_attention_backward
        (found,) = asked(lambda: call(query, query, key, key, query, *rest)).attentions
        assert found[1] == "backward"
        return int(found[5])

    keys = 2 * 2 * 64 * 32  # bytes of one head of keys
    assert bytes_of(8) - bytes_of(2) == 4 * (8 - 2) * keys - 2 * 2 * 8 * keys


@pytest.mark.parametrize(
    ("call", "nbytes", "share"),
    [
        (lambda: torch.softmax(x, -1), 1.8 * 2 * MB, 96),  # 1000 rows, where 800 are few
        (lambda: torch.log_softmax(x, -1), 2 * MB, 96),
        (lambda: torch.cat([x, y]), 4 * MB, 90),
        (lambda: torch.stack([x, y]), 4 * MB, 90),
        (lambda: x.sum(-1), MB + 4000, 88),
        (lambda: x.sum(0), MB + 4000, 50),
        (x.sum, MB + 4, 88),
        (lambda: x.argmax(-1), 2.6 * (MB + 8000), 44),  # 1000 rows, where 1600 are few
    ],
)
def test_a_row_operation_reads_its_operands_and_writes_its_result(
    call: Callable[[], object], nbytes: float, share: int
) -> None:
    assert _moved(call, share) == pytest.approx(nbytes, rel=1e-6)


def test_a_layer_norm_reads_its_rows_once_and_takes_a_time_for_each() -> None:
    found = asked(lambda: F.layer_norm(x, (1000,), y[0], y[1])).kernels
    (nbytes, _), (_, operations) = found
    # 1000 rows, where 500 are few.
    assert nbytes * 58 / 100 == pytest.approx(1.5 * (2 * MB + 4 * 4000), rel=1e-6)
    assert operations == 30_000 * 1000


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_operands_of_a_convolution_that_lie_otherwise_are_copied(
    *, transposed: bool, last: bool
) -> None:
    def bytes_of(image: Any) -> int:
        def call() -> None:
            aten.convolution(image, weight, None, [1, 1], [1, 1], [1, 1], transposed, [0, 0], 1)

        return sum(nbytes for nbytes, _ in asked(call).kernels)

    weight, plain = new(32, 32, 3, 3, dtype=BF16), new(2, 32, 30, 30, dtype=BF16)
    turned = plain.to(memory_format=torch.channels_last)
    if last:  # the weight's format counts, too
        weight = weight.to(memory_format=torch.channels_last)
    copied = bytes_of(plain if last else turned) - bytes_of(turned if last else plain)
    moved = 2 * plain.nbytes if last else 2 * weight.nbytes
    if last:
        assert copied == pytest.approx(moved * 100 / 96, abs=2)
    else:  # channels last: the weight is copied, no layout is changed
        assert copied < 0


@pytest.mark.parametrize(
    ("call", "read"),
    [
        (lambda: F.max_pool2d(image, 2), 1),
        (lambda: F.avg_pool2d(image, 2), 1),
        (lambda: F.interpolate(image, scale_factor=2), 1),
        (lambda: F.batch_norm(image, None, None, training=True), 2),
        (lambda: F.group_norm(image, 4), 1),
    ],
)
def test_operations_on_images_have_a_price(call: Callable[[], object], read: int) -> None:
    found = asked(call)
    assert sum(nbytes for nbytes, _ in found.kernels) >= read * image.nbytes


def test_an_embedding_reads_the_rows_that_are_looked_up() -> None:
    table, ids = new(100_000, 64), new(500, dtype=torch.int64)
    expected = 2 * 500 * 64 * 4 + 500 * 8
    assert _moved(lambda: F.embedding(ids, table), 84) == pytest.approx(expected, rel=1e-4)


def test_the_gradient_of_an_embedding_fills_the_table() -> None:
    grad, ids = new(500, 64), new(500, dtype=torch.int64)
    zeros, added = asked(
        lambda: aten.embedding_dense_backward(grad, ids, 100_000, -1, False)
    ).kernels
    assert zeros[0] == 100_000 * 64 * 4
    assert round(added[0] * 0.96) == pytest.approx(3 * 500 * 64 * 4 + 500 * 8, rel=1e-4)


def test_a_target_in_place_is_not_copied() -> None:
    table, ids, rows = new(100_000, 64), new(500, dtype=torch.int64), new(500, 64)
    assert len(asked(lambda: table.index_add_(0, ids, rows)).kernels) == 1
    copy, _ = asked(lambda: table.index_add(0, ids, rows)).kernels
    assert round(copy[0] * 0.96) == pytest.approx(2 * 100_000 * 64 * 4, rel=1e-4)


def test_launches_of_a_list_are_bounded_by_tensors_and_by_chunks() -> None:
    from kernbench.kernels.lists import launches_of

    assert launches_of([10] * 110, 1) == 1
    assert launches_of([10] * 111, 1) == 2
    assert launches_of([10] * 36, 4) == 1
    assert launches_of([10] * 37, 4) == 2
    assert launches_of([65536 * 320], 1) == 1
    assert launches_of([65536 * 320 + 1], 1) == 2


@pytest.mark.parametrize(
    ("call", "passes"),
    [
        (lambda: torch._foreach_add_([x, y], [y, x]), 3),
        (lambda: torch._foreach_mul_([x, y], 2.0), 2),
        (lambda: torch._foreach_zero_([x, y]), 1),
        (lambda: torch._foreach_copy_([x, y], [y, x]), 2),
        (lambda: torch._foreach_sqrt([x, y]), 2),
        (lambda: torch._foreach_norm([x, y]), 1),
        (lambda: torch._foreach_addcdiv_([x, y], [y, x], [x, y], 0.1), 4),
    ],
)
def test_a_list_is_read_and_written_once(call: Callable[[], object], passes: int) -> None:
    assert _moved(call, 80) == pytest.approx(passes * 2 * MB, rel=1e-5)


def test_fused_adamw_reads_four_lists_and_writes_three() -> None:
    params, grads, first, second = ([new(1000, 1000)] for _ in range(4))
    options = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.1, "eps": 1e-8}
    call = aten._fused_adamw_
    found = asked(
        lambda: call(
            params, grads, first, second, [], [new(1)], **options, amsgrad=False, maximize=False
        )
    )
    assert found.launches == 1
    ((nbytes, _),) = found.kernels
    assert round(nbytes * 0.8) == pytest.approx(7 * MB, rel=1e-5)


def test_a_smaller_operation_is_not_slower_on_a_gpu() -> None:
    from kernbench.bridge.operations.costs import cost_of
    from kernbench.hw.library import Library
    from kernbench.topology import load_topology

    library = Library(load_topology("h200x8").topology_obj.machine.system.sip)
    cost = cost_of(aten.add.Tensor)

    def duration(size: int) -> int:
        return cost.duration(library, (new(size), new(size)), None, new(size))

    times = [duration(1 << power) for power in range(30)]
    assert times == sorted(times)
    # 2 GiB each at 96 % of 4.45 TB/s
    assert duration(1 << 29) / 1e12 == pytest.approx(3 * 2**31 / (0.96 * 4.45e12), rel=0.01)


def test_unknown_operations_are_listed_by_their_time() -> None:
    from types import SimpleNamespace

    from kernbench.bridge.operations.costs import cost_of, unknown_operations

    unknown = {"odd": [2, 100], "rare": [1, 500], "even": [3, 100]}
    rank: Any = SimpleNamespace(mode=SimpleNamespace(unknown=unknown))
    expected = [("rare", 1, 500), ("even", 3, 100), ("odd", 2, 100)]
    assert unknown_operations(rank) == expected
    assert not cost_of(aten.linalg_eig.default).known
    assert cost_of(aten.mm.default).known
