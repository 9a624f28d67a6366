"""Subclasses and function modes of a program see PyTorch's functions as they do without ranks."""

from collections.abc import Callable
from typing import Any

import pytest

import kernbench

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
F = torch.nn.functional

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "to": lambda x, where: x.to(where, torch.float16),
    "to, by name": lambda x, where: x.to(device=where, dtype=torch.float64),
    "to the type": lambda x, _: x.to(torch.float16),
    "to another": lambda x, _: x.to(x.double()),
    "cpu": lambda x, _: x.cpu(),
    "type": lambda x, _: x.type(torch.float16),
    "tolist": lambda x, _: x.tolist(),
    "new_zeros": lambda x, _: x.new_zeros(2),
    "new_tensor": lambda x, _: x.new_tensor([1.0]),
    "zeros_like": lambda x, _: torch.zeros_like(x),
    "empty_like, of a type": lambda x, _: torch.empty_like(x, dtype=torch.float16),
    "data_ptr": lambda x, _: x.data_ptr() != 0,
    "is_pinned": lambda x, _: x.is_pinned(),
    "dropout": lambda x, _: F.dropout(x, 0.0),
    "rms_norm": lambda x, _: torch.rms_norm(x, (4,)),
    "attention": lambda x, _: F.scaled_dot_product_attention(
        *[x.reshape(1, 1, 1, 4).expand(1, 1, 2, 4)] * 3
    ),
}


def mode(seen: list[str]) -> Any:
    from torch.overrides import TorchFunctionMode

    class Notes(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    return Notes()


def subclass(seen: list[str]) -> Any:
    class Notes(torch.Tensor):  # type: ignore[name-defined,misc]
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    return Notes


def told(value: Any, where: str) -> Any:
    """Returns what is compared of a result."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.device.type == where, value.dtype, type(value).__name__, tuple(value.shape)


def _functions(seen: list[str]) -> list[str]:
    """Returns names without those of attributes, such as `device`."""
    return [name for name in seen if name != "__get__"]


def outcomes(where: str) -> dict[str, Any]:
    x = torch.ones(4, device=where)
    found: dict[str, Any] = {}
    for name, call in CALLS.items():
        seen: list[str] = []
        with mode(seen):
            result = call(x, where)
        found[name] = _functions(seen), told(result, "cpu" if name == "cpu" else where)
        seen = []
        own = x.as_subclass(subclass(seen))
        seen.clear()
        result = call(own, where)
        found[f"{name} of a subclass"] = (
            _functions(seen),
            told(result, "cpu" if name == "cpu" else where),
        )
    return found


def test_they_see_the_same_functions_and_results_in_a_rank() -> None:
    expected = outcomes("cpu")

    (found,) = kernbench.torchrun_spawn(lambda _: outcomes("cuda"), nprocs=1).returned

    assert found == expected


@pytest.mark.parametrize("data", [True, "fake"])
def test_what_is_moved_to_a_device_stays_there_within_a_default_device(data: Any) -> None:
    def worker(_: int) -> list[str]:
        x = torch.ones(2, device="cuda")
        with torch.device("cuda"):
            found = [x.to("cuda", torch.float16), x.cpu().cuda().to(x.double()), torch.ones(2)]
            found += [torch.zeros_like(x), x.new_zeros(2), x.cpu()]
        return [each.device.type for each in found]

    outcome = kernbench.torchrun_spawn(worker, nprocs=1, data=data)

    assert outcome.returned == [["cuda"] * 5 + ["cpu"]]


def test_a_number_divided_by_a_tensor_of_a_device_is_rounded_down_again_and_again() -> None:
    def worker(_: int) -> list[float]:
        x = torch.ones(2, device="cuda") * 2
        return [value for _ in range(3) for value in (5 // x).tolist()]

    assert kernbench.torchrun_spawn(worker, nprocs=1).returned == [[2.0] * 6]
