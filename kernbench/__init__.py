"""kernbench: multi-GPU programs on simulated machines, real numbers and predicted time."""

__version__ = "0.1.0"
