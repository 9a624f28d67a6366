"""Operations that libraries define in Python: their kernels are those of what they call."""

from functools import partial
from typing import Any

import pytest
from bridge_devices import on_ranks

from kernbench.ranks.spawn_errors import SpawnException

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture
def scaled() -> Any:
    """Returns an operation `a * x + y`, with a gradient."""

    def operation(x: Any, y: Any, a: float) -> Any:
        out = a * x + y
        seen.append((out.device.type, out.requires_grad))
        return out

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.a = inputs[2]

    seen: list[tuple[str, bool]] = []
    schema = "(Tensor x, Tensor y, float a) -> Tensor"
    defined = torch.library.custom_op("kbtest::scaled", operation, mutates_args=(), schema=schema)
    defined.register_autograd(lambda ctx, grad: (ctx.a * grad, grad, None), setup_context=setup)
    defined.seen = seen
    return defined


def test_its_body_runs_on_the_device_and_takes_the_time_of_its_kernels(scaled: Any) -> None:
    def worker(_: int) -> Any:
        x = torch.arange(4.0, device="cuda").requires_grad_()
        y = torch.ones(4, device="cuda")
        times = []
        calls: list[Any] = [lambda: scaled(x, y, 2.0), lambda: 2.0 * x.detach() + y]
        for call in calls:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            call()  # the first call of an operation takes longer
            begin.record()
            out = call()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        loss = scaled(x, y, 3.0)
        loss.sum().backward()
        return out.tolist(), loss.device.type, x.grad.tolist(), times

    ((out, where, grad, (defined, inline)),) = on_ranks(worker)
    assert out == [1.0, 3.0, 5.0, 7.0]
    assert (where, grad) == ("cuda", [3.0] * 4)
    assert set(scaled.seen) == {("cuda", False)}
    assert defined == pytest.approx(inline, rel=0.02)


def test_it_needs_no_shapes_of_its_own_without_numbers(scaled: Any) -> None:
    def worker(_: int) -> Any:
        return tuple(
            scaled(torch.ones(8, 3, device="cuda"), torch.ones(3, device="cuda"), 1.0).shape
        )

    assert on_ranks(worker, data=False) == [(8, 3)]


@pytest.mark.parametrize("key", ["CUDA", "CompositeExplicitAutograd"])
def test_functions_of_older_libraries_are_operations_of_the_device_too(key: str) -> None:
    seen = []

    def operation(x: Any) -> Any:
        out = x * 2
        seen.append(out.device.type)
        return out

    with torch.library._scoped_library("kbtest", "FRAGMENT") as library:
        library.define(f"twice_{key}(Tensor x) -> Tensor")
        library.impl(f"twice_{key}", operation, key)
        twice = getattr(torch.ops.kbtest, f"twice_{key}")
        assert on_ranks(lambda _: twice(torch.ones(2, device="cuda")).tolist()) == [[2.0, 2.0]]
    assert seen == ["cuda"]


def called(defined: Any, _: int) -> None:
    defined(torch.ones(2, device="cuda"))


def test_what_pytorch_refuses_is_refused() -> None:
    schema = "(Tensor x) -> Tensor"
    same = torch.library.custom_op("kbtest::same", lambda x: x, mutates_args=(), schema=schema)
    cpu = torch.library.custom_op(
        "kbtest::on_cpu", lambda x: x + 1, mutates_args=(), schema=schema, device_types="cpu"
    )
    for defined, text in ((same, "alias"), (cpu, "Could not run 'kbtest::on_cpu'.*'CUDA'")):
        with pytest.raises(SpawnException, match=text):
            on_ranks(partial(called, defined))
    assert on_ranks(lambda _: cpu(torch.ones(2)).tolist()) == [[2.0, 2.0]]


@pytest.mark.parametrize("data", [True, False])
def test_a_library_takes_the_place_of_an_operation_of_pytorch(data: bool) -> None:
    """As libraries of Triton's kernels do, for the device alone and while they are asked to."""

    def seven_times(first: Any, second: Any, *, alpha: int = 1) -> Any:
        del second, alpha
        asked.append(first.device.type)
        return torch.mul(first, 7)

    def worker(_: int) -> Any:
        found: list[Any] = []
        x, host = torch.ones(3, device="cuda"), torch.ones(3)

        def sums() -> None:
            made = [x + x for _ in range(3)]  # met, known, and taken the short way
            found.extend([one.tolist()[0] if data else one.shape[0] for one in made])
            found.append((host + 1)[0].item())

        sums()
        for _ in range(2):
            library = torch.library.Library("aten", "IMPL")
            library.impl("add.Tensor", seven_times, "CUDA")
            sums()
            library._destroy()
            sums()
        return found

    asked: list[str] = []
    ((*found,),) = on_ranks(worker, data=data)
    own, theirs = ([2.0] * 3, [7.0] * 3) if data else ([3] * 3, [3] * 3)
    assert found == [*own, 2.0, *(2 * [*theirs, 2.0, *own, 2.0])]
    assert asked == ["cuda"] * 6


def test_numbers_among_the_operands_reach_a_library_as_numbers() -> None:
    def third(first: Any, second: Any) -> Any:
        return torch.mul(first, 0) + second + 3

    def worker(_: int) -> Any:
        library = torch.library.Library("aten", "IMPL")
        library.impl("floor_divide", third, "CUDA")
        try:
            return (torch.arange(3, device="cuda") // 7).tolist()
        finally:
            library._destroy()

    assert on_ranks(worker) == [[10, 10, 10]]


def test_operations_of_fsdp_are_one_call_each() -> None:
    from torch.distributed import fsdp

    from kernbench.bridge.operations.costs import cost_of
    from kernbench.bridge.operations.overrides import defined

    assert fsdp.fully_shard  # its module defines them
    for name in ("all_gather_copy_in", "split_with_sizes_copy", "chunk_cat"):
        operation = getattr(torch.ops.fsdp, name).default
        cost = cost_of(operation)
        assert cost.known
        assert not defined(operation, cost)
