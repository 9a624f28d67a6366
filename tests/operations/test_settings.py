"""Limits of types, and switches that hold for all operations of a rank."""

from typing import Any

import numpy as np
import pytest

import kernbench.torch as torch
from kernbench.errors import OperandError, OptionError
from kernbench.testing import Kernbench

TYPES = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64"]
FACTS = ["bits", "dtype", "eps", "max", "min", "resolution", "smallest_normal", "tiny"]


@pytest.mark.torch
def test_limits_are_those_of_pytorch(kernbench: Kernbench) -> None:
    theirs = pytest.importorskip("torch")
    with kernbench.context():
        for name in TYPES:
            mine, real = (lib.finfo(getattr(lib, name)) for lib in (torch, theirs))
            assert [getattr(mine, each) for each in FACTS] == [
                getattr(real, each) for each in FACTS
            ]
            assert repr(mine) == repr(real)
        for name in ("int64", "int32", "int16", "int8", "uint8"):
            mine, real = (lib.iinfo(getattr(lib, name)) for lib in (torch, theirs))
            assert (mine.bits, mine.max, mine.min) == (real.bits, real.max, real.min)
            assert repr(mine) == repr(real)
        for make in (
            lambda lib: lib.ones(1),
            lambda lib: lib.ones(1, dtype=lib.int64),
            lambda lib: 3,
            lambda lib: dict,
        ):
            assert torch.typename(make(torch)) == theirs.typename(make(theirs))


def test_limits_of_types(kernbench: Kernbench) -> None:
    with kernbench.context():
        assert torch.finfo(torch.bfloat16).max == float(np.float32(3.3895314e38))
        assert torch.finfo().eps == np.finfo(np.float32).eps
        assert (torch.iinfo(torch.uint8).max, torch.iinfo(torch.int16).min) == (255, -32768)
        with pytest.raises(OperandError, match="floating point input type"):
            torch.finfo(torch.int8)
        with pytest.raises(OperandError, match="integer input type"):
            torch.iinfo(torch.float32)


def _made(lib: Any) -> list[str]:
    x = lib.arange(3)
    made = [lib.zeros(2), lib.tensor(1.5), lib.tensor([1, 2.5]), lib.rand(2), lib.linspace(0, 1, 3)]
    made += [x / 2, x * 1.5, x.float() * 2, lib.full((1,), 2.0), lib.arange(0.0, 2.0), lib.eye(2)]
    made += [lib.randn(2), x.sqrt(), lib.ones(2), lib.tensor([]), lib.Tensor(2)]
    made += [lib.nn.Linear(2, 2).weight]
    if lib.get_default_dtype() is not lib.bfloat16:
        made.append(lib.tensor(1j))
    return [str(each.dtype) for each in made]


@pytest.mark.torch
def test_the_default_type_reaches_what_it_does_in_pytorch(kernbench: Kernbench) -> None:
    theirs = pytest.importorskip("torch")
    found: dict[Any, list[list[str]]] = {torch: [], theirs: []}
    with kernbench.context():
        for lib, seen in found.items():
            try:
                for name in ("float64", "bfloat16", "float32"):
                    lib.set_default_dtype(getattr(lib, name))
                    seen.append(_made(lib))
            finally:
                lib.set_default_dtype(lib.float32)
    assert found[torch] == found[theirs]


def test_the_default_type_is_that_of_a_rank(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        if rank:
            torch.set_default_dtype(torch.float64)
        assert torch.get_default_dtype() is (torch.float64 if rank else torch.float32)
        assert torch.ones(1).dtype is torch.get_default_dtype()

    kernbench.spawn(worker, nprocs=2)
    with kernbench.context(), pytest.raises(OperandError, match="only floating-point types"):
        torch.set_default_dtype(torch.int8)


def test_tf32_drops_bits_and_takes_the_time_of_its_rate(kernbench: Kernbench) -> None:
    values = np.random.default_rng(0).standard_normal((2, 256, 256)).astype(np.float32)
    short = (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    rate = "system.sip.pe.gemm.rate={fp32: 0.2 TFLOP/s, tf32: 0.8 TFLOP/s, bf16: 1.6 TFLOP/s}"
    times = []

    def worker(rank: int) -> None:
        a, b = (torch.tensor(each, device="cuda") for each in values)
        bias = torch.tensor(values[0][0], device="cuda")
        for precision in ("highest", "high"):
            torch.set_float32_matmul_precision(precision)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            product = a @ b
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
            x, y = values if precision == "highest" else short
            np.testing.assert_allclose(product.cpu().numpy(), x @ y, rtol=1e-5, atol=1e-5)
            summed = torch.nn.functional.linear(a, b, bias).cpu().numpy()
            np.testing.assert_allclose(summed, x @ y.T + values[0][0], rtol=1e-5, atol=1e-5)

    kernbench.spawn(worker, nprocs=1, overrides=[rate])
    assert times[0] > 2 * times[1]


def test_switches_of_backends(kernbench: Kernbench) -> None:
    with kernbench.context():
        matmul = torch.backends.cuda.matmul
        assert (matmul.allow_tf32, torch.get_float32_matmul_precision()) == (False, "highest")
        matmul.allow_tf32 = True
        assert torch.get_float32_matmul_precision() == "high"
        torch.set_float32_matmul_precision("highest")
        assert not matmul.allow_tf32
        assert not torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.deterministic = True
        assert torch.backends.cudnn.benchmark
        assert torch.backends.cudnn.is_available()
        assert torch.backends.cuda.is_built()
        assert not torch.backends.mps.is_available()
        with pytest.raises(OperandError, match=r"cudnn\.enabled is a bool, got int"):
            torch.backends.cudnn.enabled = 1
        with pytest.raises(AttributeError):
            torch.backends.cudnn.benchmrk = True  # type: ignore[attr-defined]
        with pytest.raises(OptionError, match="not one of 'highest'"):
            torch.set_float32_matmul_precision("most")  # type: ignore[arg-type]


def test_determinism_and_threads(kernbench: Kernbench) -> None:
    with kernbench.context():
        torch.use_deterministic_algorithms(True, warn_only=True)
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(False)
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        torch.set_num_threads(3)
        assert torch.get_num_threads() == 3
        with pytest.raises(OptionError, match="positive"):
            torch.set_num_threads(0)
        with pytest.raises(OperandError, match="expects an int"):
            torch.set_num_threads(1.5)
        assert torch.is_floating_point(torch.ones(1))
