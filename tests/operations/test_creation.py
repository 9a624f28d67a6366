"""Making tensors."""

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import kernbench.torch as torch
from kernbench.errors import NoDataError
from kernbench.memory import OutOfMemoryError, UninitialisedReadError, dtypes
from kernbench.runtime_api.context import RuntimeContext


def test_the_device_by_default_is_the_host_on_main_and_the_own_one_in_a_rank(
    ctx: RuntimeContext,
) -> None:
    assert torch.zeros(1).device == torch.device("cpu")
    assert torch.tensor([1]).is_cpu
    seen = []

    def worker(rank: int) -> None:
        seen.append(
            [
                str(torch.zeros(1).device),
                str(torch.tensor([1]).device),
                str(torch.rand(1).device),
                str(torch.arange(3, device="cpu").device),
                str(torch.ones(1, device=rank).device),
                str(torch.eye(2, device=torch.device("cuda")).device),
            ]
        )

    ctx.multiprocessing.spawn(worker, nprocs=2)
    assert seen == [[f"cuda:{r}"] * 3 + ["cpu"] + [f"cuda:{r}"] * 2 for r in range(2)]


CASES: Final[list[tuple[Callable[[str], torch.Tensor], Any, Any]]] = [
    (lambda d: torch.zeros(2, 3, device=d), np.zeros((2, 3)), dtypes.float32),
    (lambda d: torch.zeros((2, 3), dtype=torch.int8, device=d), np.zeros((2, 3)), dtypes.int8),
    (lambda d: torch.zeros([], device=d), np.zeros(()), dtypes.float32),
    (lambda d: torch.ones(torch.Size([2]), device=d), np.ones(2), dtypes.float32),
    (lambda d: torch.full((2,), 7, device=d), np.full(2, 7), dtypes.int64),
    (lambda d: torch.full((2,), 7.5, device=d), np.full(2, 7.5), dtypes.float32),
    (lambda d: torch.full((2,), True, device=d), np.full(2, True), dtypes.bool_),
    (lambda d: torch.arange(5, device=d), np.arange(5), dtypes.int64),
    (lambda d: torch.arange(1, 6, 2, device=d), np.arange(1, 6, 2), dtypes.int64),
    (lambda d: torch.arange(5, 0, -2, device=d), np.arange(5, 0, -2), dtypes.int64),
    (lambda d: torch.arange(0, 1, 0.25, device=d), np.arange(0, 1, 0.25), dtypes.float32),
    (lambda d: torch.arange(3, dtype=torch.half, device=d), np.arange(3), dtypes.float16),
    (lambda d: torch.linspace(-3, 10, 7, device=d), np.linspace(-3, 10, 7), dtypes.float32),
    (lambda d: torch.eye(2, 3, device=d), np.eye(2, 3), dtypes.float32),
    (lambda d: torch.tensor([[1, 2], [3, 4]], device=d), [[1, 2], [3, 4]], dtypes.int64),
    (lambda d: torch.tensor([1, 2.5], device=d), [1, 2.5], dtypes.float32),
    (lambda d: torch.tensor([True], device=d), [True], dtypes.bool_),
    (lambda d: torch.tensor([], device=d), [], dtypes.float32),
    (lambda d: torch.tensor(3, device=d), 3, dtypes.int64),
    (lambda d: torch.tensor(np.arange(3.0), device=d), [0, 1, 2], dtypes.float64),
    (lambda d: torch.tensor([1.7, -2.7], dtype=torch.int32, device=d), [1, -2], dtypes.int32),
    (lambda d: torch.tensor([torch.tensor(2), torch.tensor(3)], device=d), [2, 3], dtypes.int64),
    (lambda d: torch.as_tensor([1.0], device=d), [1], dtypes.float32),
    (lambda d: torch.ones(2, device=d).new_zeros(3), np.zeros(3), dtypes.float32),
    (lambda d: torch.ones(2, device=d).new_ones((1, 2)), np.ones((1, 2)), dtypes.float32),
    (lambda d: torch.ones(2, device=d).half().new_full((2,), 3), [3, 3], dtypes.float16),
    (lambda d: torch.zeros_like(torch.ones(2, 2, device=d)), np.zeros((2, 2)), dtypes.float32),
    (lambda d: torch.ones_like(torch.zeros(2, device=d).int()), [1, 1], dtypes.int32),
    (lambda d: torch.full_like(torch.ones(2, device=d), 5), [5, 5], dtypes.float32),
]


@pytest.mark.parametrize(("make", "expected", "dtype"), CASES)
def test_values_and_types(
    device: str, make: Callable[[str], torch.Tensor], expected: Any, dtype: Any
) -> None:
    x = make(device)
    assert x.dtype is dtype
    assert x.device.type == device
    np.testing.assert_allclose(x.float().numpy(), np.asarray(expected, np.float32), rtol=1e-6)


def test_likeness_keeps_the_layout(ctx: RuntimeContext) -> None:
    turned = torch.ones(2, 3).T
    assert torch.zeros_like(turned).stride() == (1, 3)
    assert torch.empty_like(turned).stride() == (1, 3)
    assert torch.zeros_like(turned, dtype=torch.int8, device="cuda").device.index == 0


def test_empty_is_poisoned_at_once_and_tracked(device: str) -> None:
    x = torch.empty(2, 2, device=device)
    i = torch.empty(2, dtype=torch.int8, device=device)
    assert np.isnan(x.untyped_storage().buffer.data.view(np.float32)).all()  # type: ignore[union-attr]
    assert (i.untyped_storage().buffer.data == 127).all()  # type: ignore[union-attr]
    with pytest.raises(UninitialisedReadError, match="4 of 4 elements"):
        x.tolist()
    assert torch.zeros(2, device=device).tolist() == [0, 0]


def test_empty_takes_no_time_of_the_device_and_zeros_is_a_kernel(ctx: RuntimeContext) -> None:
    stream = ctx.main.current_stream(0)
    torch.empty(1 << 20, device="cuda")
    assert stream.count == 0
    torch.zeros(1 << 20, device="cuda")
    assert stream.count == 1


def test_values_go_to_a_device_by_a_copy_that_the_host_waits_for(ctx: RuntimeContext) -> None:
    x = torch.tensor(list(range(1000)), device="cuda")
    # 8 000 B at 50 GB/s, and 2 us each of dispatch and latency.
    assert ctx.main.host.clock == 2_000_000 + 160_000 + 2_000_000
    assert x[-1].item() == 999


def test_from_numpy_shares_memory_whatever_the_strides(ctx: RuntimeContext) -> None:
    base = np.arange(24.0).reshape(4, 6)
    for array in (base, base.T, base[1:, ::2], base[0, 0], np.broadcast_to(base[0], (3, 6))):
        x = torch.from_numpy(np.asarray(array))
        assert x.dtype is torch.float64
        np.testing.assert_array_equal(x.numpy(), array)
    x = torch.from_numpy(base.T)
    x[0, 1] = -1
    base[0, 0] = -2
    assert (base[1, 0], x[0, 0].item()) == (-1, -2)
    assert np.shares_memory(torch.as_tensor(base).numpy(), base)
    assert torch.from_numpy(np.zeros(0)).shape == (0,)


@pytest.mark.parametrize(
    ("operation", "kind", "message"),
    [
        (lambda: torch.zeros(-1), RuntimeError, "with negative dimension -1: \\[-1\\]"),
        (lambda: torch.zeros(1 << 40, 1 << 40), RuntimeError, "Storage size calculation overflow"),
        (lambda: torch.zeros(2.5), TypeError, "a size is made of integers"),  # type: ignore[arg-type]
        (lambda: torch.zeros("a"), TypeError, "a size is made of integers"),  # type: ignore[arg-type]
        (lambda: torch.arange(0, 5, -1), RuntimeError, "inconsistent with step sign"),
        (lambda: torch.arange(0, 5, 0), RuntimeError, "step must be nonzero"),
        (lambda: torch.tensor([[1, 2], [3]]), ValueError, "sequences of the same length"),
        (lambda: torch.tensor(["a"]), TypeError, "no tensor can be made of list"),
        (lambda: torch.tensor(None), RuntimeError, "no tensor can be made of NoneType"),
        (lambda: torch.tensor([300], dtype=torch.int8), RuntimeError, "without overflow"),
        (lambda: torch.full((1,), 300, dtype=torch.int8), RuntimeError, "without overflow"),
        (lambda: torch.from_numpy([1]), TypeError, r"expected np.ndarray \(got list\)"),  # type: ignore[arg-type]
        (lambda: torch.from_numpy(np.zeros(1, np.uint16)), TypeError, "of type uint16"),
        (lambda: torch.from_numpy(np.zeros(4)[::-1]), ValueError, "negative strides"),
        (lambda: torch.zeros(1, device="cuda:9"), Exception, "cuda:9, which does not exist"),
        (lambda: torch.zeros(1, device="tpu"), Exception, "'tpu' is no device"),
        (lambda: torch.zeros(1, device="cuda", pin_memory=True), RuntimeError, "can be pinned"),
        (lambda: torch.tensor([1], requires_grad=True), RuntimeError, "only Tensors of floating"),
    ],
)
def test_mistakes(
    ctx: RuntimeContext, operation: Callable[[], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        operation()
    assert "test_creation.py" in str(caught.value)


def test_a_device_that_is_full(ctx: RuntimeContext) -> None:
    kept = torch.empty(1 << 20, device="cuda:1")
    with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
        torch.empty(33 << 30, dtype=torch.int8, device="cuda:1")
    assert isinstance(caught.value, MemoryError)
    lines = str(caught.value).splitlines()
    assert lines[0] == "[M7] sip1.hbm is out of memory"
    assert lines[1].startswith("  at ")
    assert lines[1].endswith('torch.empty(33 << 30, dtype=torch.int8, device="cuda:1")')
    assert lines[2] == ("  requested 33 GiB (35433480192 B) for tensor [35433480192] torch.int8")
    assert lines[3] == "  free 32 GiB (34355544064 B) of 32 GiB, largest free block 32 GiB"
    assert lines[4] == "  in use, by line:"
    assert lines[5].startswith("    4 MiB tensor [1048576] torch.float32 at ")
    assert lines[6] == (
        "  hint: drop tensors that are no longer needed, shard over more ranks, or raise "
        "system.sip.cube.hbm.capacity in the topology file"
    )
    del kept
    assert ctx.engine.devices[1].hbm.allocated == 0


def test_a_tensor_that_this_computer_cannot_hold(ctx: RuntimeContext) -> None:
    with pytest.raises(OutOfMemoryError, match="does not fit into the memory of this computer"):
        torch.zeros(1 << 45)


def test_without_data_size_costs_nothing(ctx_without_data: RuntimeContext) -> None:
    x = torch.zeros(1 << 33, device="cuda", dtype=torch.int8)
    y = torch.empty(1 << 45)
    assert (x.numel(), y.numel()) == (1 << 33, 1 << 45)
    assert torch.tensor([1, 2], device="cuda").shape == (2,)
    assert torch.from_numpy(np.ones((2, 3))).T.shape == (3, 2)
    with pytest.raises(NoDataError):
        torch.from_numpy(np.ones(2)).tolist()


def test_infinite_and_tiny_values_survive(ctx: RuntimeContext) -> None:
    x = torch.tensor([math.inf, -0.0, 5e-324], dtype=torch.float64, device="cuda")
    assert x.tolist() == [math.inf, 0.0, 5e-324]
    assert math.copysign(1, x[1].item()) == -1
