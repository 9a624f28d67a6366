"""`torch.backends`: switches of libraries."""

from typing import Any, Final

from kernbench.errors import OperandError, call_site, site_fact
from kernbench.operations import attention_backends
from kernbench.operations.cuda import is_available
from kernbench.process.process import RankLocal, current_process
from kernbench.tensors.operands import type_name
from kernbench.tensors.settings import products_are_short, settings

__all__ = ["cuda", "cudnn", "mkldnn", "mps", "openmp"]

_KEPT: Final[RankLocal[dict[str, bool]]] = RankLocal("switches of backends", lambda _: {})


def _flag(path: str, default: bool) -> property:
    """Returns a switch that the calling rank sets, of something that is not simulated.

    Args:
        path: Place of the switch.
        default: Its value at first.
    """

    def get(_: Any) -> bool:
        return _KEPT.of(current_process()).get(path, default)

    def set_(_: Any, value: bool) -> None:
        _check_flag(path, value)
        _KEPT.of(current_process())[path] = value

    return property(get, set_)


def _check_flag(path: str, value: object) -> None:
    if not isinstance(value, bool):
        raise OperandError(
            f"torch.backends.{path} is a bool, got {type_name(value)}", [site_fact(call_site())]
        )


class _Part:
    """A part of `torch.backends`, whose attributes are those of its class."""

    __slots__ = ()


class _Matmul(_Part):
    """`torch.backends.cuda.matmul`."""

    __slots__ = ()

    @property
    def allow_tf32(self) -> bool:
        """Whether float32 is multiplied as tf32, see `set_float32_matmul_precision`."""
        return products_are_short()

    @allow_tf32.setter
    def allow_tf32(self, value: bool) -> None:
        _check_flag("cuda.matmul.allow_tf32", value)
        settings().precision = "high" if value else "highest"

    allow_fp16_reduced_precision_reduction = _flag(
        "cuda.matmul.allow_fp16_reduced_precision_reduction", True
    )
    allow_bf16_reduced_precision_reduction = _flag(
        "cuda.matmul.allow_bf16_reduced_precision_reduction", True
    )


class _Cuda(_Part):
    """`torch.backends.cuda`."""

    __slots__ = ()
    matmul = _Matmul()

    @staticmethod
    def is_built() -> bool:
        """Returns True: the devices are of type `cuda`."""
        return True

    cudnn_sdp_enabled = staticmethod(attention_backends.cudnn_sdp_enabled)
    enable_cudnn_sdp = staticmethod(attention_backends.enable_cudnn_sdp)
    enable_flash_sdp = staticmethod(attention_backends.enable_flash_sdp)
    enable_math_sdp = staticmethod(attention_backends.enable_math_sdp)
    enable_mem_efficient_sdp = staticmethod(attention_backends.enable_mem_efficient_sdp)
    flash_sdp_enabled = staticmethod(attention_backends.flash_sdp_enabled)
    math_sdp_enabled = staticmethod(attention_backends.math_sdp_enabled)
    mem_efficient_sdp_enabled = staticmethod(attention_backends.mem_efficient_sdp_enabled)
    sdp_kernel = staticmethod(attention_backends.sdp_kernel)


class _Cudnn(_Part):
    """`torch.backends.cudnn`: switches of convolutions, which are not simulated."""

    __slots__ = ()
    enabled = _flag("cudnn.enabled", True)
    benchmark = _flag("cudnn.benchmark", False)
    deterministic = _flag("cudnn.deterministic", False)
    allow_tf32 = _flag("cudnn.allow_tf32", True)

    @staticmethod
    def is_available() -> bool:
        """Returns whether there are devices."""
        return is_available()


class _Absent(_Part):
    """A backend that no simulated machine has."""

    __slots__ = ()

    @staticmethod
    def is_available() -> bool:
        """Returns False."""
        return False

    @staticmethod
    def is_built() -> bool:
        """Returns False."""
        return False


cuda: Final = _Cuda()
cudnn: Final = _Cudnn()
mps: Final = _Absent()
mkldnn: Final = _Absent()
openmp: Final = _Absent()
