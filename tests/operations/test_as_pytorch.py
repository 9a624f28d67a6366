"""Corner cases in which PyTorch does something that one would not guess; its answers by hand."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import extend
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException, spawn
from kernbench.tensors.errors import TensorError


def _nested(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_nested(each) for each in value]
    return [value.tolist(), list(value.shape), value.dtype]


def _cube() -> torch.Tensor:
    return torch.arange(24).reshape(2, 3, 4)


def _gradient(function: Callable[[torch.Tensor], torch.Tensor]) -> list[bool]:
    x = torch.tensor([3.0], requires_grad=True)
    function(x).backward()
    assert x.grad is not None
    return [bool(each) for each in torch.isnan(x.grad)]


VALUES: Final[dict[str, tuple[Callable[[], Any], Any]]] = {
    "a 0-d tensor flipped": (lambda: torch.tensor(5.0).flip(0).item(), 5.0),
    "a 0-d tensor rolled": (lambda: torch.tensor(5.0).roll(1).item(), 5.0),
    "slices of a 0-d tensor": (
        lambda: torch.tensor(5.0).index_select(0, torch.tensor([0])).shape,
        (),
    ),
    "var of one value": (lambda: _gradient(torch.var), [True]),
    "std of one value": (lambda: _gradient(torch.std), [True]),
    "a 0-d index picks first": (
        lambda: _cube()[torch.tensor(1), :, torch.tensor([0, 1])].shape,
        (3, 2),
    ),
    "a 0-d index is a view": (lambda: float(_cube()[torch.tensor(1)][0, 0]), 12),
    "True makes a dimension": (lambda: _cube()[True].shape, (1, 2, 3, 4)),
    "False makes it empty": (lambda: _cube()[:, False].shape, (2, 0, 3, 4)),
    "a 0-d mask": (lambda: list(torch.tensor(5.0)[torch.tensor(True)]), [5.0]),
    "numbers of numpy keep their type": (
        lambda: torch.tensor([np.float64(1), 2]).dtype,
        torch.float64,
    ),
    "nested ones too": (lambda: torch.tensor([[1, 2], [np.int8(3), 4]]).dtype, torch.int64),
    "-1 in uint8": (lambda: torch.tensor([-1], dtype=torch.uint8).tolist(), [255]),
    "filled with -1": (lambda: torch.zeros(1, dtype=torch.uint8).fill_(-255).tolist(), [1]),
    "an empty array": (
        lambda: torch.from_numpy(np.zeros((0, 3), np.float32)).add_(1).shape,
        (0, 3),
    ),
    "where of a condition": (
        lambda: [each.tolist() for each in torch.where(torch.tensor([[0, 2], [1, 0]]))],
        [[0, 1], [1, 0]],
    ),
    "where of a 0-d condition": (lambda: list(torch.where(torch.tensor(True))[0]), [0]),
    "where of bytes": (
        lambda: torch.where(torch.tensor([1, 0], dtype=torch.uint8), 1, 2).tolist(),
        [1, 2],
    ),
    "a fractional range of int32": (
        lambda: torch.arange(0.5, 5.9, 1.5, dtype=torch.int32).tolist(),
        [0, 1, 2, 3],
    ),
    "a fractional range of int64": (
        lambda: torch.arange(0.5, 5.9, 1.5, dtype=torch.int64).tolist(),
        [0, 1, 2, 3, 4],
    ),
    "unique of a 0-d tensor": (
        lambda: _nested(torch.unique(torch.tensor(3), return_inverse=True)),
        [[[3], [1], torch.int64], [0, [], torch.int64]],
    ),
    "Tensor of a shape": (lambda: torch.Tensor(2, 3).shape, (2, 3)),
    "Tensor of nothing": (lambda: torch.Tensor().shape, (0,)),
    "LongTensor of nothing": (lambda: torch.LongTensor().shape, (0,)),
    "Tensor of an empty shape": (lambda: torch.Tensor(torch.Size(())).shape, ()),
    "Tensor of numbers": (lambda: _nested(torch.Tensor([1, 2])), [[1.0, 2.0], [2], torch.float32]),
    "Tensor of a tensor": (lambda: torch.Tensor(torch.ones(2)).tolist(), [1.0, 1.0]),
    "LongTensor": (lambda: _nested(torch.LongTensor([1, 2.5])), [[1, 2], [2], torch.int64]),
    "cuda.FloatTensor": (lambda: torch.cuda.FloatTensor([1]).device.type, "cuda"),
    "is a FloatTensor": (lambda: isinstance(torch.ones(1), torch.FloatTensor), True),
    "is no LongTensor": (lambda: isinstance(torch.ones(1), torch.LongTensor), False),
    "is on no device": (lambda: isinstance(torch.ones(1), torch.cuda.FloatTensor), False),
    "the class": (lambda: torch.ones(1, device="cuda").type(), "torch.cuda.FloatTensor"),
    "by the name of a class": (lambda: torch.ones(1).type("torch.HalfTensor").dtype, torch.half),
    "by a class": (lambda: torch.ones(1).type(torch.IntTensor).dtype, torch.int32),
}


@pytest.mark.parametrize("case", VALUES)
def test_values(ctx: RuntimeContext, case: str) -> None:
    function, expected = VALUES[case]
    assert function() == expected


REFUSED: Final[list[tuple[Callable[[], Any], type[Exception], str]]] = [
    (lambda: torch.zeros(2, 2).flip(0, 0), RuntimeError, "a dim appears multiple times"),
    (lambda: torch.tensor(5.0).roll(1, 0), IndexError, "0 but tensor has no dimensions"),
    (
        lambda: torch.tensor(5.0).index_select(0, torch.tensor([0, 0])),
        RuntimeError,
        r"Index to scalar can have only 1 value, got 2 value\(s\)",
    ),
    (lambda: torch.tensor([-300], dtype=torch.uint8), RuntimeError, "without overflow"),
    (lambda: torch.tensor([-1.5], dtype=torch.uint8), RuntimeError, "without overflow"),
    (lambda: torch.tensor([float("nan"), 1], dtype=torch.int32), RuntimeError, "without overflow"),
    (lambda: torch.full((2,), 1e6, dtype=torch.float16), RuntimeError, "without overflow"),
    (lambda: torch.zeros(2, dtype=torch.int8).clamp(max=300), RuntimeError, "without overflow"),
    (lambda: torch.where(torch.tensor([True]), 1), TypeError, "condition alone"),
    (lambda: torch.arange(0, 5, 0.5, dtype=torch.int64), RuntimeError, "step must be nonzero"),
    (lambda: torch.arange(float("inf")), RuntimeError, "unsupported range: 0 -> inf"),
    (lambda: torch.tensor(5.0).unbind(), IndexError, "0 but tensor has no dimensions"),
    (lambda: torch.zeros(2).fill_("a"), TypeError, "expected a number, got str"),  # type: ignore[arg-type]
    (lambda: torch.zeros(2)[torch.tensor([0], dtype=torch.int8)], IndexError, "must be long"),
    (lambda: torch.Tensor(2.5), TypeError, "data must be a sequence"),
    (lambda: torch.FloatTensor(torch.tensor([1])), TypeError, "expected FloatTensor"),
    (lambda: torch.ones(1).type("torch.Tensors"), ValueError, "invalid type"),
    (lambda: torch.ones(1, dtype=torch.complex64).type(), ValueError, "no class of tensors"),
]


@pytest.mark.parametrize(("function", "kind", "message"), REFUSED)
def test_refused(
    ctx: RuntimeContext, function: Callable[[], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        function()
    assert "test_as_pytorch.py" in str(caught.value)


def _set(key: Any, value: torch.Tensor) -> list[float]:
    x = torch.zeros(3, device=value.device)
    x[key] = value
    values: list[float] = x.tolist()
    return values


@pytest.mark.parametrize("key", [torch.int64, torch.bool, None])
@pytest.mark.parametrize("shape", [(), (1,), (2,), (1, 2)])
def test_an_index_tensor_takes_no_value_of_another_type(
    device: str, key: torch.dtype | None, shape: tuple[int, ...]
) -> None:
    value = torch.ones(shape, dtype=torch.float64, device=device)
    index: Any = [0, 1]
    if key is not None:
        index = torch.tensor([0, 1] if key is torch.int64 else [True, True, False], device=device)
    if key is torch.bool and value.numel() == 1:
        assert _set(index, value) == [1, 1, 0]
    else:
        with pytest.raises(TensorError, match="source and destination dtypes match, got"):
            _set(index, value)
    assert _set(index, value.float()) == _set(slice(0, 2), value) == [1, 1, 0]


def test_a_rank_goes_on_to_an_error_of_its_own(ctx: RuntimeContext) -> None:
    def worker(rank: int) -> None:
        x = torch.tensor([3.0], requires_grad=True)
        torch.var(x).backward()
        assert x.grad is not None
        assert torch.isnan(x.grad).item()
        with pytest.raises(RuntimeError, match="Index to scalar"):
            torch.tensor(5.0).index_select(0, torch.tensor([0, 0]))
        assert torch.tensor(5.0).flip(0).item() == 5

    spawn(worker, nprocs=2)


def test_an_operation_that_fails_is_told_and_no_deadlock(ctx: RuntimeContext) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        x = torch.ones(4)
        if rank == 0:
            x = extend.fused("mylib::broken", lambda values: values.reshape(3), [x])
        dist.all_reduce(x)
        torch.cuda.synchronize()

    with pytest.raises(SpawnException) as caught:
        spawn(worker, nprocs=2)
    text = str(caught.value)
    assert "the computation failed: ValueError: cannot reshape array of size 4" in text
    assert "mylib::broken was issued at" in text
    assert "test_as_pytorch.py" in text
    assert "deadlock" not in text.lower()
