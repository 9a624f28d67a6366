"""Which generator random numbers come from."""

from collections.abc import Iterator
from contextlib import contextmanager

from kernbench.operations.random import Generator
from kernbench.process.process import current_process
from kernbench.tensors.generators import default_generator


@contextmanager
def draw_from(generator: Generator) -> Iterator[None]:
    """Lets the block draw from a generator instead of the calling rank's default one.

    However the block ends, the default generator goes on where it stood; the given one goes on
    where the block left it. In the block `torch.manual_seed` seeds the given one. If the run's
    default device is `cpu`, there is a default generator for the host and one for the rank's
    device, and the given one replaces that of its own device.

    ```python
    mine = torch.Generator().manual_seed(100 + rank)
    with extend.draw_from(mine):
        mask = torch.rand(16)  # other numbers on each rank
    ```

    Args:
        generator: A `torch.Generator`.

    Raises:
        NoContextError: Outside of any context.
    """
    process = current_process()
    drawn_from = default_generator(process, generator.device)
    default = drawn_from.of(process)
    drawn_from.set(process, generator)
    try:
        yield
    finally:
        drawn_from.set(process, default)
