"""Triton's IR: what its compiler makes of a kernel, read from text and executed."""
