"""Autocast on simulated devices, against PyTorch's own kernels of autocast on CUDA.

PyTorch's kernels cast what says that it is on CUDA, also without a GPU and without values. So each
call is made with such tensors outside of ranks, and with tensors of a simulated device; the types
must be the same.
"""

import types
import warnings
from typing import Any

import pytest

import kernbench

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch")

from autocast_cases import (  # noqa: E402 - PyTorch may not be there
    FUNCTIONS,
    MODULES,
    NO_CASE,
    NOT_CALLED,
    OPERATIONS,
    Case,
)
from autocast_oracle import CudaAlone, Make, Seen  # noqa: E402

from kernbench.bridge.cuda import autocast  # noqa: E402
from kernbench.errors import UnsupportedError  # noqa: E402
from kernbench.runtime_api import autocast_lists as lists  # noqa: E402

LOWER = [torch.bfloat16, torch.float16]
KINDS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
CASES: dict[str, Case] = {
    **{f"aten::{name}": case for name, case in OPERATIONS.items()},
    **{f"function {name}": case for name, case in FUNCTIONS.items()},
    **{f"module {name}": case for name, case in MODULES.items()},
}


def types_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype)
    return [types_of(one) for one in value] if isinstance(value, list | tuple) else None


def outcome(case: Case, make: Make) -> Any:
    """Returns the types that a call gives, or that it raises."""
    try:
        with torch.no_grad():
            return types_of(case(make))
    except Exception as error:
        return (
            "unsafe" if "unsafe to autocast" in str(error) else f"{type(error).__name__}: {error}"
        )


def outcomes(lower: Any, kind: Any, *, values: bool) -> dict[str, Any]:
    make = Make(kind, values=values)
    torch.set_autocast_dtype("cuda", lower)
    torch.set_autocast_enabled("cuda", True)
    try:
        return {name: outcome(case, make) for name, case in CASES.items()}
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", torch.float16)
        torch.clear_autocast_cache()


def of_cuda(lower: Any, kind: Any) -> dict[str, Any]:
    with CudaAlone(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return outcomes(lower, kind, values=False)


def run(worker: Any, *, data: Any = True, nprocs: int = 1) -> list[Any]:
    return kernbench.torchrun_spawn(worker, nprocs=nprocs, data=data).returned


@pytest.mark.parametrize("data", [True, "fake"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("lower", LOWER, ids=str)
def test_every_call_gives_the_types_that_cuda_gives(lower: Any, kind: Any, data: Any) -> None:
    # A build with CUDA asks the driver in an LSTM, and there is none here.
    expected = {
        name: given
        for name, given in of_cuda(lower, kind).items()
        if not str(given).startswith("AcceleratorError")
    }

    (found,) = run(lambda _: outcomes(lower, kind, values=True), data=data)

    found = {name: given for name, given in found.items() if name in expected}
    assert len(expected) > 200

    refused = {name for name, given in found.items() if _is_refused_by_a_cpu(str(given))}
    assert len(refused) < (30 if kind is torch.float64 else 10)
    if kind is torch.float64:  # shapes alone are not refused
        found = {name: given for name, given in found.items() if name not in refused}
        expected = {name: given for name, given in expected.items() if name not in refused}
    assert found == expected


def _is_refused_by_a_cpu(given: str) -> bool:
    words = "dtype", "datatype", "scalar type"
    return given.startswith("RuntimeError") and any(word in given for word in words)


def test_all_operations_that_pytorch_casts_are_known_and_have_a_case() -> None:
    assert autocast.with_kernel("AutocastCUDA") <= lists.KNOWN
    assert set(OPERATIONS) | set(NOT_CALLED) == set(lists.KNOWN)


NAMES = {
    "handle_torch_function",
    "has_torch_function",
    "has_torch_function_unary",
    "has_torch_function_variadic",
}


def handlers() -> set[str]:
    """Returns the functions of PyTorch that compute and handle `__torch_function__` themselves."""
    found = set()
    own = torch.Tensor, torch.functional, torch.nn.functional, torch._lowrank, torch._lobpcg
    for name, value in [each for owner in own for each in vars(owner).items()]:
        code = getattr(getattr(value, "__wrapped__", value), "__code__", None)
        if isinstance(code, types.CodeType):
            of_a_number = code.co_name == "wrapped" and "_tensor.py" in code.co_filename
            if of_a_number or NAMES & set(code.co_names):
                found.add(name)
    return found


def test_every_function_that_handles_torch_function_itself_has_a_case() -> None:
    missing = handlers() - set(FUNCTIONS) - NO_CASE
    assert len(handlers()) > 100
    assert not missing


# What remembers casts, and what remembers whether autocast is on


def of_the_lower_type(x: Any) -> bool:
    return bool(x.dtype is torch.bfloat16)


def low() -> Any:
    return torch.autocast("cuda", torch.bfloat16)


def casts(call: Any) -> int:
    """Returns how many casts a call makes."""
    with Seen() as seen:
        call()
    return int(seen.names.count("_to_copy"))


@pytest.mark.parametrize("data", [True, False])
def test_a_parameter_is_cast_once_until_the_outermost_block_ends(data: bool) -> None:
    def worker(_: int) -> list[int]:
        layer = torch.nn.Linear(4, 4).cuda()
        x = torch.ones(2, 4, device="cuda", dtype=torch.bfloat16)

        def twice() -> None:
            with low():
                layer(x)
                layer(x)

        def nested() -> None:
            with low():
                with low():
                    layer(x)
                layer(x)

        def uncached() -> None:
            with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
                layer(x)
                layer(x)

        def views() -> None:
            with low():
                x @ layer.weight.t()
                x @ layer.weight.t()

        def frozen() -> None:
            layer.requires_grad_(False)
            with low():
                layer(x)
                layer(x)

        return [casts(each) for each in (twice, twice, nested, uncached, views, frozen)]

    assert run(worker, data=data) == [[2, 2, 2, 4, 2, 4]]


def test_the_casts_of_a_rank_are_its_own() -> None:
    def worker(rank: int) -> tuple[int, bool]:
        dist = torch.distributed
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", rank=rank, world_size=2, init_method="tcp://x:1")
        layer = torch.nn.Linear(4, 4).cuda()
        x = torch.ones(2, 4, device="cuda", dtype=torch.bfloat16)

        def call() -> None:
            with low():
                layer(x)
                if rank == 0:
                    with low():  # the other rank leaves its outermost block in the meantime
                        dist.barrier()
                layer(x)
            if rank == 1:
                dist.barrier()

        made = casts(call)
        dist.destroy_process_group()
        return made, torch.is_autocast_enabled("cuda")

    assert run(worker, nprocs=2) == [(2, False), (2, False)]


@pytest.mark.parametrize("data", [True, False])
def test_gradients_of_cast_parameters_are_of_their_own_type(data: bool) -> None:
    def worker(_: int) -> list[Any]:
        attention = torch.nn.MultiheadAttention(8, 2).cuda()
        x = torch.ones(3, 2, 8, device="cuda", requires_grad=True)
        with low():
            out, _ = attention(x, x, x, need_weights=False)
            out.sum().backward()
        kinds = {each.grad.dtype for each in [*attention.parameters(), x]}
        return [out.dtype, *kinds]

    assert run(worker, data=data) == [[torch.bfloat16, torch.float32]]


def test_attention_is_cuda_s_for_the_lower_type() -> None:
    def worker(_: int) -> list[str]:
        attention = torch.nn.MultiheadAttention(64, 2, batch_first=True).cuda()
        x = torch.ones(2, 16, 64, device="cuda")
        with low(), Seen() as seen:
            attention(x, x, x, need_weights=False)
        return list(seen.names)

    (seen,) = run(worker)
    assert "_scaled_dot_product_cudnn_attention" in seen
    assert "addmm" in seen


@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_computes_again_with_the_same_types(reentrant: bool, data: bool) -> None:
    def worker(_: int) -> list[Any]:
        from torch.utils.checkpoint import checkpoint

        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).cuda()
        x = torch.ones(2, 3, 8, device="cuda", requires_grad=True)
        seen: list[Any] = []
        layer.linear1.register_forward_hook(lambda *given: seen.append(given[-1].dtype))
        with low():
            out = checkpoint(layer, x, use_reentrant=reentrant)
        out.sum().backward()
        return seen

    assert run(worker, data=data) == [[torch.bfloat16] * 2]


def test_a_block_that_is_not_enabled_casts_nothing() -> None:
    def worker(_: int) -> list[Any]:
        attention = torch.nn.MultiheadAttention(8, 2).cuda()
        x = torch.ones(3, 2, 8, device="cuda")
        kinds = []
        with low():
            with torch.autocast("cuda", enabled=False):
                kinds.append(attention(x, x, x)[0].dtype)
                with torch.autocast("cuda", torch.float16):
                    kinds.append((x @ x.mT).dtype)
                kinds.append((x @ x.mT).dtype)
            kinds.append((x @ x.mT).dtype)
        kinds.append((x @ x.mT).dtype)
        return kinds

    full = torch.float32
    assert run(worker) == [[full, torch.float16, full, torch.bfloat16, full]]


def test_functions_of_a_program_say_how_they_are_cast() -> None:
    from torch.amp import custom_bwd, custom_fwd

    def worker(_: int) -> list[Any]:
        seen: list[Any] = []

        class As(torch.autograd.Function):  # type: ignore[name-defined,misc]
            @staticmethod
            @custom_fwd(device_type="cuda")  # type: ignore[untyped-decorator]
            def forward(ctx: Any, x: Any) -> Any:
                seen.append((x.dtype, (x @ x).dtype))
                return x * 1

            @staticmethod
            @custom_bwd(device_type="cuda")  # type: ignore[untyped-decorator]
            def backward(ctx: Any, grad: Any) -> Any:
                seen.append((grad.dtype, (grad @ grad).dtype))
                return grad

        class Half(As):
            @staticmethod
            @custom_fwd(device_type="cuda", cast_inputs=torch.float16)  # type: ignore[untyped-decorator]
            def forward(ctx: Any, x: Any) -> Any:
                seen.append((x.dtype, (x.float() @ x.float()).dtype))
                return x * 1

        for kind in (As, Half):
            x = torch.ones(2, 2, device="cuda", requires_grad=True)
            with low():
                out = kind.apply(x)
            out.sum().backward()
        return seen

    full, half = torch.float32, torch.float16
    assert run(worker) == [
        [(full, torch.bfloat16), (full, torch.bfloat16), (half, full), (half, half)]
    ]


def test_whoever_calls_an_operation_it_is_cast() -> None:
    def worker(_: int) -> dict[str, Any]:
        x = torch.ones(4, 4, device="cuda")
        scripted = torch.jit.CompilationUnit("def product(x):\n    return x @ x\n").product
        traced: list[Any] = []

        def in_thread() -> None:
            with low():
                traced.append((x @ x).dtype)

        with low():
            found = {
                "script": scripted(x).dtype,
                "operation": torch.ops.aten.mm(x, x).dtype,
                "out of place": x.matmul(x).dtype,
                "functional": torch.func.functional_call(
                    torch.nn.Linear(4, 4).cuda(), {"bias": torch.ones(4, device="cuda")}, (x,)
                ).dtype,
                "jacobian": torch.func.jacrev(lambda y: torch.nn.functional.linear(y, x))(x).dtype,
                "grad": torch.func.grad(lambda y: (y @ x).float().sum())(x).dtype,
            }
        in_thread()
        return {**found, "again": traced[0]}

    assert run(worker) == [
        {
            "script": torch.bfloat16,
            "operation": torch.bfloat16,
            "out of place": torch.bfloat16,
            "functional": torch.bfloat16,
            "jacobian": torch.float32,
            "grad": torch.float32,
            "again": torch.bfloat16,
        }
    ]


def test_a_pass_back_inside_of_a_block_is_cast_too() -> None:
    def worker(_: int) -> Any:
        class Own(torch.autograd.Function):  # type: ignore[name-defined,misc]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x * 1

            @staticmethod
            def backward(ctx: Any, grad: Any) -> Any:
                seen.append((grad @ grad).dtype)
                return grad

        seen: list[Any] = []
        for inside in (True, False):
            x = torch.ones(2, 2, device="cuda", requires_grad=True)
            with low():
                out = Own.apply(x).sum()
                if inside:
                    out.backward()
            if not inside:
                out.backward()
        return seen

    assert run(worker) == [[torch.bfloat16, torch.float32]]


def test_autocast_of_the_host_casts_tensors_of_the_host_alone() -> None:
    def worker(_: int) -> list[Any]:
        there, here = torch.ones(4, 4, device="cuda"), torch.ones(4, 4)
        attention = torch.nn.MultiheadAttention(4, 2)
        other = torch.nn.MultiheadAttention(4, 2).cuda()
        with torch.autocast("cpu", torch.bfloat16):
            kinds = [
                (here @ here).dtype,
                (there @ there).dtype,
                attention(here, here, here)[0].dtype,
            ]
            kinds.append(other(there, there, there)[0].dtype)
        with low():
            kinds += [(here @ here).dtype, (there @ there).dtype]
        return kinds

    full, lower = torch.float32, torch.bfloat16
    for data in (True, "fake"):
        assert run(worker, data=data) == [[lower, full, lower, full, full, lower]]


def test_a_sharded_tensor_is_cast_as_its_parts_are() -> None:
    def worker(rank: int) -> list[Any]:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        mesh = init_device_mesh("cuda", (2,))
        torch.cuda.set_device(rank)
        x = distribute_tensor(torch.ones(4, 4, device="cuda"), mesh, [Shard(0)])
        w = distribute_tensor(torch.ones(4, 4, device="cuda"), mesh, [Replicate()])
        with low():
            found = [
                (x @ w).dtype,
                x.softmax(-1).dtype,
                torch.nn.functional.layer_norm(x, [4]).dtype,
            ]
        torch.distributed.destroy_process_group()
        return found

    full = torch.float32
    assert run(worker, nprocs=2) == [[torch.bfloat16, full, full]] * 2


def test_operands_of_both_lower_types_are_refused_in_pytorchs_words() -> None:
    def worker(_: int) -> None:
        x, y = torch.ones(4, device="cuda").half(), torch.ones(4, device="cuda").bfloat16()
        with low(), pytest.raises(RuntimeError, match="Unexpected floating ScalarType"):
            torch.addcmul(x, y, y)

    run(worker)


def test_an_operation_that_is_not_in_the_lists_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lists, "KNOWN", lists.KNOWN - {"tan"})
    monkeypatch.setattr(lists, "FULL", tuple(each for each in lists.FULL if each != "tan"))
    monkeypatch.setattr(autocast._ON_CUDA, "_made", [])

    def worker(_: int) -> None:
        with low(), pytest.raises(UnsupportedError, match=r"tan inside of torch.autocast"):
            torch.ones(4, device="cuda").tan()

    run(worker)
    autocast._ON_CUDA._made.clear()


def test_after_a_run_autocast_is_pytorchs_own() -> None:
    def worker(_: int) -> None:
        with low(), torch.autocast("cpu", torch.bfloat16):
            assert of_the_lower_type(torch.ones(2, 2) @ torch.ones(2, 2))

    run(worker)
    kernel = torch.library.get_kernel(torch.ops.aten.mm.default, "AutocastCUDA")
    assert autocast._ON_CUDA._library is autocast._ON_HOST._library is None
    assert kernel is not None
    with torch.autocast("cpu", torch.bfloat16):
        assert of_the_lower_type(torch.ones(2, 2) @ torch.ones(2, 2))
    assert outcomes_outside() == "torch.bfloat16"


def outcomes_outside() -> Any:
    return of_cuda(torch.bfloat16, torch.float32)["aten::mm"]
