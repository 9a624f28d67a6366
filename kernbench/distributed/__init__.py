"""`torch.distributed`: groups, collectives, messages, objects, meshes."""

from kernbench.tensors.operands import tensors_told

tensors_told(__name__)  # with the rank and the group
