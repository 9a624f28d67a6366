"""Programs of the real PyTorch on simulated devices: the only room that imports PyTorch.

`bridged` replaces what such programs reach the device and other ranks by, for a block.
"""

from kernbench.bridge.running import bridged

__all__ = ["bridged"]
