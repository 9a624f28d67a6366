"""Gradients: the formula of each operation, and the pass back."""
