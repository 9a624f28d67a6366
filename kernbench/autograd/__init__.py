"""Gradients: the formula of each operation, and the backward pass."""
