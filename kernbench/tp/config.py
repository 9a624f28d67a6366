"""What the layers of a model in shards have in common: names of `parallel.config`."""

from kernbench.parallel.config import GemmKernel, ModelParallelConfig

__all__ = ["GemmKernel", "ModelParallelConfig"]
