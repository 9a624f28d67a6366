"""Streams of random numbers: names of `parallel.random`."""

from kernbench.parallel.random import *  # noqa: F403 - names only
from kernbench.parallel.random import __all__  # noqa: F401
