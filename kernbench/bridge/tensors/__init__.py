"""Tensors of PyTorch that stand for memory of simulated devices, and who uses them when."""
