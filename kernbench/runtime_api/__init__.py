"""The public face: `RuntimeContext`, and PyTorch's names bound to it."""
