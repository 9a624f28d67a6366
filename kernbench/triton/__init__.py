"""Kernels of Triton, compiled by Triton itself and launched on simulated devices."""
