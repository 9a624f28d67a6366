"""The place where programs look for `Tensor`, and for which of its methods read on the host."""

from kernbench.runtime_api.tensor_methods import _HOST_READ_BARRIERS, Tensor

__all__ = ["_HOST_READ_BARRIERS", "Tensor"]
