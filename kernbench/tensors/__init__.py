"""Tensors: windows on memory, access to the memory, and recording of operations for autograd."""
