"""`torch.nn`: modules, layers, losses."""

from kernbench.tensors.operands import guard_classes

guard_classes(__name__)
