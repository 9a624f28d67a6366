"""Programs of `torch.autograd`; each takes the module `torch` and returns what is to be compared.

The same program runs with PyTorch and with this package: `test_autograd_vs_torch.py`. The programs
are in the modules `autograd_programs_*`.
"""

from collections.abc import Callable
from typing import Any, Final

Program = Callable[[Any], Any]

PROGRAMS: Final[dict[str, Program]] = {}


def program(function: Program) -> Program:
    """Adds a program to the table."""
    assert function.__name__ not in PROGRAMS, function.__name__
    PROGRAMS[function.__name__] = function
    return function


def leaf(torch: Any, *shape: int) -> Any:
    """Returns a float64 leaf of 1, 2, 3 and so on."""
    count = 1
    for extent in shape:
        count *= extent
    values = torch.arange(1, count + 1, dtype=torch.float64).reshape(shape)
    return values.clone().requires_grad_()
