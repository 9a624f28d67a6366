"""Kernels of Triton, compiled by Triton itself and launched on simulated devices."""

from typing import Final

TIME_VARIABLE: Final = "KERNBENCH_TRITON_TIME"
"""Environment variable: what times are worked out from; see `lowering`."""
