"""The end of the process, for programs that have run in it."""

import sys
from types import ModuleType


def keep(module: ModuleType) -> None:
    """Keeps the main module of a program to the end of the process, as Python keeps `__main__`.

    Python then drops its names one by one, after the functions of `atexit`. Without that the module
    is garbage, and of garbage a file may be closed before what is still to be written to it is.

    Args:
        module: The module, which many programs or ranks may each have.
    """
    sys.modules[f"{module.__name__} at {id(module):#x}"] = module
