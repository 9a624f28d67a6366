"""Symmetric memory: blocks of a group's devices that all of its ranks read and write."""
