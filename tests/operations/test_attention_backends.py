"""Which kernels attention may use: set by a block, by switches, for each rank on its own."""

from typing import Any

import pytest

import kernbench.torch as torch
from kernbench.errors import OperandError
from kernbench.operations.attention_backends import allowed
from kernbench.testing import Kernbench
from kernbench.torch.nn.attention import SDPBackend, sdpa_kernel

MATH, FLASH = SDPBackend.MATH, SDPBackend.FLASH_ATTENTION
EFFICIENT, CUDNN = SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION
ALL = (CUDNN, FLASH, EFFICIENT, MATH, SDPBackend.OVERRIDEABLE)


def test_numbers_and_names_are_pytorchs() -> None:
    assert {each.name: int(each) for each in SDPBackend} == {
        "ERROR": -1,
        "MATH": 0,
        "FLASH_ATTENTION": 1,
        "EFFICIENT_ATTENTION": 2,
        "CUDNN_ATTENTION": 3,
        "OVERRIDEABLE": 4,
    }
    assert SDPBackend(1) is FLASH
    assert (str(MATH), repr(MATH)) == ("SDPBackend.MATH", "<SDPBackend.MATH: 0>")


def test_a_block_chooses_and_its_end_restores(kernbench: Kernbench) -> None:
    with kernbench.context():
        assert allowed() == ALL
        with sdpa_kernel(MATH) as nothing:
            assert nothing == {}
            assert allowed() == (MATH,)
            with sdpa_kernel([CUDNN, MATH, CUDNN]):
                assert allowed() == (CUDNN, MATH)  # in the order that was there
            assert allowed() == (MATH,)
        with sdpa_kernel([CUDNN, FLASH], set_priority=True):
            assert allowed() == (CUDNN, FLASH)
            torch.backends.cuda.enable_math_sdp(True)
            assert allowed() == (CUDNN, FLASH, MATH)
        assert allowed() == ALL
        with sdpa_kernel([]):
            assert allowed() == ()
        with pytest.raises(ZeroDivisionError), sdpa_kernel(FLASH):
            _ = 1 / 0
        assert allowed() == ALL


def test_a_function_is_decorated(kernbench: Kernbench) -> None:
    @sdpa_kernel(EFFICIENT)
    def inside() -> Any:
        return allowed()

    with kernbench.context():
        assert inside() == inside() == (EFFICIENT,)
        assert allowed() == ALL


def test_switches(kernbench: Kernbench) -> None:
    cuda = torch.backends.cuda
    with kernbench.context():
        for backend, is_enabled, enable in (
            (FLASH, cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
            (EFFICIENT, cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
            (MATH, cuda.math_sdp_enabled, cuda.enable_math_sdp),
            (CUDNN, cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
        ):
            assert is_enabled()
            enable(False)
            assert not is_enabled()
            assert allowed() == tuple(each for each in ALL if each is not backend)
            enable(True)
            assert allowed() == ALL
            with sdpa_kernel(backend):
                assert is_enabled()
            with pytest.raises(OperandError, match="expects a bool, but got int"):
                enable(1)  # type: ignore[arg-type]


def test_the_earlier_form_warns(kernbench: Kernbench) -> None:
    with kernbench.context():
        with pytest.warns(FutureWarning, match="sdp_kernel.* is deprecated"):
            block = torch.backends.cuda.sdp_kernel(enable_flash=False, enable_mem_efficient=False)
        with block:
            assert allowed() == (CUDNN, MATH)
        assert allowed() == ALL


@pytest.mark.parametrize("wrong", ["MATH", (MATH,), None, 0, [MATH, 1]])
def test_what_is_no_backend_is_refused(kernbench: Kernbench, wrong: Any) -> None:
    with kernbench.context():
        with (
            pytest.raises(OperandError, match="Backend must be an instance of SDPBackend"),
            sdpa_kernel(wrong),
        ):
            pass
        assert allowed() == ALL


def test_each_rank_has_its_own(kernbench: Kernbench) -> None:
    def worker(rank: int) -> None:
        torch.distributed.init_process_group("nccl")
        with sdpa_kernel(MATH if rank else FLASH):
            torch.distributed.barrier()
            assert allowed() == ((MATH,) if rank else (FLASH,))
        torch.distributed.barrier()
        assert allowed() == ALL

    kernbench.spawn(worker, nprocs=2)
