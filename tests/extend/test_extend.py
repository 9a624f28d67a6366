"""The face for libraries: what ranks agree on and keep, commands of one's own, early checks."""

import ast
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import Context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench import errors, extend, tl
from kernbench.memory import UninitialisedReadError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing import Kernbench

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = {"torch", "extend", "tl", "caches", "errors", "units", "parallel", "cp", "pp", "tp"}


def _rooms(file: Path) -> Iterator[str]:
    """Yields the rooms that a file imports."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "kernbench":
            names = [f"kernbench.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("kernbench."))


@pytest.mark.parametrize("library", ["parallel", "cp", "pp", "tp"])
def test_the_libraries_import_public_faces_only(library: str) -> None:
    found = {room for file in (ROOT / "kernbench" / library).glob("*.py") for room in _rooms(file)}
    assert "torch" in found
    assert found <= PUBLIC


def test_the_example_of_the_readme(kernbench: Kernbench) -> None:
    text = (ROOT / "kernbench" / "extend" / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    names: dict[str, Any] = {}
    exec(compile(block, "example.py", "exec"), names)
    ctx = kernbench.spawn(names["worker"], nprocs=2, record="full")
    ran = [record.name for record in ctx.engine.op_log.records]
    assert ran.count("mylib::softcap") == ran.count("mylib::softcap_backward") == 2


def test_every_name_is_listed_documented_and_named_in_the_readme() -> None:
    text = (ROOT / "kernbench" / "extend" / "README.md").read_text(encoding="utf-8")
    for name in extend.__all__:
        thing = getattr(extend, name)
        assert thing.__doc__, name
        assert name.endswith("Error") or f"`{name}`" in text, name


def test_errors_are_those_that_are_raised(ctx: RuntimeContext) -> None:
    assert extend.KernbenchError is errors.KernbenchError
    with ctx:
        with pytest.raises(extend.TensorError):
            torch.matmul(torch.ones(2, 3), torch.ones(2, 3))
        with pytest.raises(extend.DimensionError):
            torch.ones(2).sum(3)
        with pytest.raises(extend.GroupError):
            dist.get_rank()


# Agreement


def test_ranks_that_agree_wait_for_nobody(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        extend.agree("shard", {"degree": 2, "names": ["a"], "other": None})
        extend.agree("shard", {"degree": 3})
        pair = dist.new_group([0, 2])
        if rank != 1:
            extend.agree("shard", {"degree": 4}, pair)
            dist.destroy_process_group(pair)
        extend.agree("scatter", {}, dist.group.WORLD)

    assert kernbench.spawn(worker, nprocs=3).engine.loop.now == 0


@pytest.mark.parametrize(
    ("mine", "others", "differ"),
    [
        ({"degree": 2}, {"degree": 4}, "degree"),
        ({"a": 1, "b": [2]}, {"a": 1, "b": [3]}, "b"),
        ({"a": None}, {"a": 0}, "a"),
        ({"a": 1}, {"a": 1, "b": 2}, "the names of arguments"),
        ({"a": 1}, {"b": 1}, "the names of arguments"),
    ],
)
def test_ranks_that_disagree(
    kernbench: Kernbench, mine: dict[str, object], others: dict[str, object], differ: str
) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        extend.agree("shard", others if rank else mine)

    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=2)
    error = caught.value.errors[1]
    assert isinstance(error, extend.GroupMismatchError)
    lines = str(error).splitlines()
    assert lines[0] == f"[C9] shard #1 of the world: ranks 0-1 differ in {differ}"
    assert lines[-1] == "  hint: every rank of the world calls shard with the same arguments"
    for rank, given in enumerate((mine, others)):
        shown = ", ".join(f"{k}={v!r}" for k, v in given.items() if v is not None)
        assert lines[1 + rank].startswith(f"  rank {rank}: shard({shown}) at 0 ps, at ")
        assert "test_extend.py" in lines[1 + rank]


def test_a_rank_that_never_calls(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        dist.init_process_group("nccl")
        group = dist.new_group([0, 1])
        if rank == 0:
            extend.agree("shard", {"degree": 2}, group)

    with pytest.raises(SpawnException) as caught:
        kernbench.spawn(worker, nprocs=3)
    assert "[C9] shard #1 of ranks 0-1: rank 0 called it, rank 1 did not" in str(caught.value)
    assert re.search(r"hint: every rank of group G1\{0-1\} calls shard", str(caught.value))


def test_what_ranks_cannot_agree_on(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        del rank
        with pytest.raises(extend.GroupError, match="called shard without an initialised"):
            extend.agree("shard", {})
        dist.init_process_group("nccl")
        for value, kind in ((torch.ones(2), "Tensor"), (np.ones(2), "ndarray")):
            with pytest.raises(extend.OperandError) as caught:
                extend.agree("shard", {"x": value})
            assert str(caught.value).startswith(
                f"shard: ranks cannot agree on x, which is a {kind}"
            )
            assert "test_extend.py" in str(caught.value)

    kernbench.spawn(worker, nprocs=2)


# Values of ranks

_COUNT = extend.RankLocal("count", int)
_SEEN: extend.RankLocal[list[int]] = extend.RankLocal("seen", list)


def test_each_rank_has_its_own_value_for_one_spawn(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        assert _COUNT.get() == 0
        assert _SEEN.get() == []
        _COUNT.set(rank)
        _SEEN.get().append(rank)
        dist.init_process_group("nccl")
        dist.barrier()
        assert _COUNT.get() == rank
        assert _SEEN.get() == [rank]
        _SEEN.forget()
        _SEEN.forget()
        assert _SEEN.get() == []

    with kernbench.context() as ctx:
        _COUNT.set(7)
        for _ in range(2):
            ctx.multiprocessing.spawn(worker, nprocs=4)
        assert _COUNT.get() == 7
        assert _SEEN.get() == []
    assert repr(_COUNT) == "<rank-local count>"


def test_main_is_no_rank(ctx: RuntimeContext) -> None:
    with ctx:
        assert extend.current_rank() is None


def test_where_there_is_no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernbench.process.process._latest", None)
    assert extend.current_rank() is None
    calls: list[Callable[[], object]] = [_COUNT.get, _COUNT.forget, lambda: _COUNT.set(1)]
    for call in calls:
        with pytest.raises(extend.NoContextError, match=r"test_extend\.py"):
            Context().run(call)  # as in a thread that has made no context


def test_which_rank_is_running(kernbench: Kernbench) -> None:
    @tl.jit
    def asking(x: Any) -> None:
        extend.current_rank()

    def worker(rank: int) -> None:
        assert extend.current_rank() == rank
        if rank == 1:
            asking[(1,)](torch.ones(1, device="cuda"))

    with pytest.raises(SpawnException, match=r"\[C20\]"):
        kernbench.spawn(worker, nprocs=2)


def test_a_block_draws_from_another_generator(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        mine = torch.Generator().manual_seed(100 + rank)
        wanted = torch.rand(6, generator=torch.Generator().manual_seed(100 + rank)).tolist()
        expected = torch.rand(4, generator=torch.Generator().manual_seed(5)).tolist()
        torch.manual_seed(5)
        first = torch.rand(2).tolist()
        with extend.draw_from(mine):
            drawn = torch.rand(3).tolist()
        with suppress(ValueError), extend.draw_from(mine):
            drawn += torch.rand(3).tolist()
            raise ValueError
        assert drawn == wanted
        assert first + torch.rand(2).tolist() == expected

    kernbench.spawn(worker, nprocs=2)


# Commands of one's own


def multiply_add(a: Any, b: Any, c: Any = None) -> Any:
    """`a * b + c`, `b` a row."""
    return extend.fused(
        "mylib::multiply_add",
        lambda a, b, c: a * b if c is None else a * b + c,
        [a, b, c],
        gradients=[
            lambda grad, a, b, c: grad * b,
            lambda grad, a, b, c: (grad * a).sum(0),
            lambda grad, a, b, c: grad,
        ],
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_fused_operation_and_its_gradients(
    ctx: RuntimeContext, dtype: torch.dtype, device: str
) -> None:
    """Small whole numbers and halves: exact in every type."""
    with ctx:
        shapes = [(3, 4), (4,), (3, 4)]
        rng = np.random.default_rng(1)
        arrays = [rng.integers(-4, 5, shape) / 2 for shape in shapes]
        a, b, c = (
            torch.tensor(each.tolist(), dtype=dtype, device=device, requires_grad=True)
            for each in arrays
        )
        out = multiply_add(a, b, c)
        assert out.dtype is dtype
        assert str(out.grad_fn) == "<MylibMultiplyAddBackward>"
        weights = rng.integers(-2, 3, (3, 4)).astype(float)
        out.backward(torch.tensor(weights.tolist(), dtype=dtype, device=device))
        x, y, z = arrays
        assert out.tolist() == (x * y + z).tolist()
        for tensor, grad in ((a, weights * y), (b, (weights * x).sum(0)), (c, weights)):
            assert tensor.grad is not None
            assert tensor.grad.dtype is dtype
            assert tensor.grad.tolist() == grad.tolist()


def test_only_gradients_that_are_needed_are_computed(kernbench: Kernbench) -> None:
    with kernbench.context(record="full") as ctx:
        a, b = torch.ones(3, 4, device="cuda"), torch.ones(4, device="cuda", requires_grad=True)
        multiply_add(a, b).sum().backward()
        assert b.grad is not None
        assert b.grad.tolist() == [3.0] * 4
        with torch.no_grad():
            assert not multiply_add(a, b).requires_grad
        names = [record.name for record in ctx.engine.op_log.records]
        assert names.count("mylib::multiply_add") == 2
        assert names.count("mylib::multiply_add_backward") == 1


def test_it_takes_as_long_as_an_operation_of_the_same_traffic(kernbench: Kernbench) -> None:
    with kernbench.context(record="full") as ctx:
        x, y = (torch.ones(1 << 20, device="cuda") for _ in range(2))
        ctx.engine.op_log.records.clear()
        _ = x + y
        for traffic in (None, 3 * x.nbytes, 6 * x.nbytes):
            extend.fused("mylib::add", np.add, [x, y], traffic=traffic)
        torch.cuda.synchronize()
        plain, *same, longer = [each.end - each.start for each in ctx.engine.op_log.records]
        assert same == [plain, plain]
        assert longer > plain


def test_another_shape_and_type(ctx: RuntimeContext, ctx_without_data: RuntimeContext) -> None:
    for context, data in ((ctx, True), (ctx_without_data, False)):
        with context:
            ran: list[int] = []

            def count(x: Any, ran: list[int] = ran) -> Any:
                ran.append(1)
                return (x > 0).sum(0)

            x = torch.ones(3, 2, device="cuda")
            out = extend.fused("mylib::count", count, [x], shape=[2], dtype=torch.int64)
            torch.cuda.synchronize()
            assert out.shape == (2,)
            assert out.dtype is torch.int64
            assert len(ran) == data
            if data:
                assert out.tolist() == [3, 3]


def test_operands_cannot_be_written_nor_given_back(ctx: RuntimeContext) -> None:
    def double(x: Any) -> Any:
        x *= 2
        return x

    with ctx:
        x = torch.ones(4)
        with pytest.raises(errors.KernbenchError, match=r"ValueError: .*read-only"):
            extend.fused("mylib::double", double, [x])
        same = extend.fused("mylib::same", lambda x: x, [x])
        same.add_(1)
        assert x.tolist() == [1.0] * 4
        assert same.tolist() == [2.0] * 4


def test_what_fused_refuses(ctx: RuntimeContext) -> None:
    with ctx:
        x = torch.ones(4, device="cuda", requires_grad=True)
        cases: list[tuple[type[Exception], str, Callable[[], object]]] = [
            (extend.OptionError, "expected a name such as", lambda: extend.fused("f", abs, [x])),
            (extend.OptionError, "2 gradients for 1 operands",
             lambda: extend.fused("a::f", abs, [x], gradients=[None, None])),
            (extend.OperandError, "at least one tensor", lambda: extend.fused("a::f", abs, [None])),
            (extend.OperandError, "argument 'operands[0]' must be Tensor, not list",
             lambda: extend.fused("a::f", abs, [[1.0]])),  # type: ignore[list-item]
            (extend.TensorError, "all tensors to be on the same device",
             lambda: extend.fused("a::f", np.add, [x, torch.ones(4)])),
            (extend.TensorError, "not implemented for torch.complex64",
             lambda: extend.fused("a::f", abs, [torch.ones(4, dtype=torch.complex64)])),
        ]  # fmt: skip
        for kind, text, call in cases:
            with pytest.raises(kind, match=re.escape(text)) as caught:
                call()
            assert "test_extend.py" in str(caught.value)
        out = extend.fused("a::f", lambda x: x + 1, [x])
        with pytest.raises(extend.UnsupportedError, match="a::f has no gradients") as caught:
            out.sum().backward()
        assert "out.sum().backward()" in str(caught.value)
        assert 'out = extend.fused("a::f"' in str(caught.value)


def test_a_function_that_returns_another_shape(ctx: RuntimeContext) -> None:
    with ctx, pytest.raises(extend.TensorError) as caught:
        extend.fused("a::f", lambda x: x[:3], [torch.ones(4)])
    assert str(caught.value).startswith("a::f: its function returned an array of shape [3]")
    assert "expected [4], or what broadcasts to it" in str(caught.value)
    assert "test_extend.py" in str(caught.value)


# What kernels fill


@tl.jit
def _fill(out: Any, count: tl.constexpr) -> None:
    tl.store(out + tl.arange(0, count), 1.0)


def test_a_kernel_fills_what_had_no_bytes(ctx: RuntimeContext) -> None:
    with ctx:
        x = torch.ones(2, device="cuda")
        whole = extend.kernel_output((4,), x.dtype, x.device)
        _fill[(1,)](whole, 4)
        assert whole.tolist() == [1.0] * 4
        part = extend.kernel_output([4], torch.float32)
        assert part.device == torch.ones(1, device="cuda").device
        _fill[(1,)](part, 2)
        assert part[:2].tolist() == [1.0] * 2
        with pytest.raises(UninitialisedReadError, match=r"\[M5\]"):
            part.tolist()
        with pytest.raises(extend.OptionError, match="kernels write tensors on devices"):
            extend.kernel_output((4,), torch.float32, "cpu")


# Early checks


def test_operands_are_refused_before_anything_is_issued(ctx: RuntimeContext) -> None:
    with ctx:
        a, b = torch.ones(2, 3), torch.ones(4, 5)
        with pytest.raises(extend.TensorError, match=r"\(2x3 and 4x5\)"):
            extend.check_gemm(a, b, None, (2, 3), (4, 5))
        extend.check_gemm(a, b, None, (2, 3), (3, 2))
        with pytest.raises(extend.OperandError, match="expected an index tensor"):
            extend.check_index("lookup", a)
        extend.check_index("lookup", torch.arange(3))
        found = np.array([0, 2])
        assert extend.checked_indices("lookup", found, 3, 0) is found
        with pytest.raises(extend.IndexOutOfBoundsError, match=r"\[M1\] lookup: index 2 is out"):
            extend.checked_indices("lookup", found, 2, 0)


def test_a_guarded_module_names_what_is_no_tensor(ctx: RuntimeContext) -> None:
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x.mul(factor)

    names: dict[str, Any] = {"scaled": scaled}
    extend.guard(names)
    with ctx:
        assert names["scaled"](torch.ones(2), 3.0).tolist() == [3.0, 3.0]
        with pytest.raises(extend.OperandError, match=r"scaled\(\): argument 'x' must be Tensor"):
            names["scaled"]([1.0], 3.0)
