"""Gradients: the formula of each operation, and the pass that goes back through them."""
