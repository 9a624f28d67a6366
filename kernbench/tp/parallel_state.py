"""Who computes what: names of `parallel.parallel_state`."""

from kernbench.parallel.parallel_state import *  # noqa: F403 - names only
from kernbench.parallel.parallel_state import __all__  # noqa: F401
