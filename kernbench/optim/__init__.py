"""`torch.optim`: optimisers, learning rates by plan, norms of gradients."""

from kernbench.tensors.operands import guard_classes

guard_classes(__name__)
