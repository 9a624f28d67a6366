"""Programs like Triton's tutorials 01 to 09, on a simulated device, against PyTorch."""

from typing import Any

import pytest
from bridge_devices import on_ranks

torch: Any = pytest.importorskip("torch")
pytest.importorskip("triton.language")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
import launched_tutorials as kernels  # noqa: E402 - after the check that Triton is there
import triton  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

F: Any = torch.nn.functional


def _draw(*shape: int, dtype: Any = torch.float16) -> Any:
    return torch.randn(*shape, device="cuda").to(dtype)


def vector_add() -> Any:
    x, y = _draw(98432), _draw(98432)
    out = torch.empty_like(x)
    grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK_SIZE"]),)  # noqa: E731
    kernels.vector_add[grid](x, y, out, x.numel(), BLOCK_SIZE=1024)
    return out, x + y


def fused_softmax() -> Any:
    x = _draw(183, 781, dtype=torch.float32)
    out = torch.empty_like(x)
    properties = triton.runtime.driver.active.utils.get_device_properties(0)
    given = out, x, x.stride(0), out.stride(0), *x.shape
    kernel = kernels.fused_softmax.warmup(*given, BLOCK_SIZE=1024, num_warps=8, grid=(1,))
    kernel._init_handles()
    fit = properties["max_num_regs"] // (kernel.n_regs * properties["warpSize"] * 8)
    fit = min(fit, properties["max_shared_mem"] // kernel.metadata.shared)
    programs = min(properties["multiprocessor_count"] * fit, 183)
    kernel[programs, 1, 1](*given, 1024)
    return out, torch.softmax(x, 1)


def matmul() -> Any:
    a, b = _draw(130, 100), _draw(100, 90)
    c = torch.empty(130, 90, device="cuda", dtype=torch.float16)
    grid = lambda meta: (  # noqa: E731
        triton.cdiv(130, meta["BLOCK_M"]) * triton.cdiv(90, meta["BLOCK_N"]),
    )
    strides = *a.stride(), *b.stride(), *c.stride()
    kernels.matmul[grid](a, b, c, 130, 90, 100, *strides, ACTIVATION="leaky_relu")
    return c, F.leaky_relu(a @ b, 0.01)


def seeded_dropout() -> Any:
    x = torch.ones(1000, device="cuda")
    first, again, other = (torch.empty_like(x) for _ in range(3))
    for out, seed in ((first, 123), (again, 123), (other, 512)):
        kernels.seeded_dropout[(4,)](x, out, 1000, 0.5, seed, BLOCK_SIZE=256)
    assert set(first.tolist()) == {0.0, 2.0}
    assert 400 < (first > 0).sum() < 600
    assert not torch.equal(first, other)
    return again, first


def layer_norm() -> Any:
    x, dy = _draw(37, 100), _draw(37, 100)
    weight = torch.ones(100, device="cuda", dtype=torch.float16, requires_grad=True)
    F.layer_norm(x, (100,), weight).backward(dy)
    mean, rstd = x.float().mean(1), (x.float().var(1, unbiased=False) + 1e-5).rsqrt()
    locks = torch.zeros(8, dtype=torch.int32, device="cuda")
    parts = torch.zeros(4, 100, device="cuda")
    kernels.norm_weight_gradient[(37,)](dy, x, mean, rstd, locks, parts, 100, GROUPS=4, BLOCK=128)
    return parts.sum(0).half(), weight.grad


def attention(causal: bool = True) -> Any:
    q, k, v = (_draw(128, 64) for _ in range(3))
    out = torch.empty_like(q)
    given = [TensorDescriptor.from_tensor(one, [64, 64]) for one in (q, k, v, out)]
    kernels.attention[(2,)](*given, 0.125, 128, CAUSAL=causal, BLOCK_M=64, BLOCK_N=64, D=64)
    return out, F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=causal)[0]


def extern_functions() -> Any:
    x = torch.rand(1000, device="cuda")
    out = torch.empty_like(x)
    kernels.asin[(1,)](x, out, 1000, BLOCK_SIZE=1024)
    return out, torch.asin(x)


def grouped_matmul() -> Any:
    sizes = [(64, 32, 96), (32, 96, 32)]
    given = [(_draw(m, k), _draw(k, n), _draw(m, n)) for m, n, k in sizes]
    addresses = [
        torch.tensor([one.data_ptr() for one in each], device="cuda")
        for each in zip(*given, strict=True)
    ]
    extents = torch.tensor(sizes, dtype=torch.int32, device="cuda")
    kernels.grouped_matmul[(2,)](*addresses, extents, 2, PROGRAMS=2, BLOCK=32)
    got = torch.cat([c.flatten() for _, _, c in given])
    return got, torch.cat([(a @ b).flatten() for a, b, _ in given])


def persistent_matmul() -> Any:
    triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8))
    a, b = _draw(96, 64), _draw(128, 64)
    c = torch.empty(96, 128, device="cuda", dtype=torch.float16)
    kernels.persistent_matmul[(5,)](a, b, c, 96, 128, 64, BLOCK=32, SMS=5, FLATTEN=True)
    return c, a @ b.T


PROGRAMS = (
    vector_add,
    fused_softmax,
    matmul,
    seeded_dropout,
    layer_norm,
    attention,
    extern_functions,
    grouped_matmul,
    persistent_matmul,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_like_a_tutorial_gives_what_pytorch_gives(program: Any) -> None:
    def worker(rank: int) -> Any:
        torch.manual_seed(0)
        return tuple(one.cpu().double() for one in program())

    ((found, expected),) = on_ranks(worker)
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=1e-3)
