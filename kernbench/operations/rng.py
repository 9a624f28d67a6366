"""`torch.random`: seeds and states of the calling rank's default generator."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kernbench.errors import call_site, site_fact
from kernbench.operations.random import initial_seed, manual_seed
from kernbench.process.process import current_process
from kernbench.tensors.errors import TensorError
from kernbench.tensors.generators import DEFAULT_GENERATOR, default_generators
from kernbench.tensors.running import find_device
from kernbench.tensors.tensor import Tensor

__all__ = ["fork_rng", "get_rng_state", "initial_seed", "manual_seed", "seed", "set_rng_state"]


def seed() -> int:
    """Starts the calling rank's default generators from another seed, and returns the seed.

    See `Generator.seed`.
    """
    seeds = [generator.seed() for generator in default_generators(current_process())]
    return seeds[0]


def get_rng_state() -> Tensor:
    """Returns the place of the calling rank's default generator, for `set_rng_state`."""
    return DEFAULT_GENERATOR.of(current_process()).get_state()


def set_rng_state(new_state: Tensor) -> None:
    """Lets the calling rank's default generator go on at a place.

    Args:
        new_state: What `get_rng_state` returned, 120 bytes; see `Generator.set_state`.

    Raises:
        TensorError: If the tensor is no state of a generator of this package.
    """
    DEFAULT_GENERATOR.of(current_process()).set_state(new_state)


@contextmanager
def fork_rng(
    devices: Sequence[Any] | None = None,
    enabled: bool = True,
    _caller: str = "fork_rng",
    _devices_kw: str = "devices",
    device_type: str | None = None,
) -> Iterator[None]:
    """Lets draws and seeds in a `with` block leave the calling rank's generator where it was.

    Args:
        devices: The rank's device, by default; if empty, only the host's generator is kept.
        enabled: Whether the block has any effect.
        device_type: Type of `devices`: `cuda`, or None for it.

    Raises:
        TensorError: For another type of device. See `cuda.get_rng_state` for other devices.
    """
    if device_type not in {None, "cuda"}:
        raise TensorError(
            f"torch has no module of `{device_type}`",
            [site_fact(call_site())],
            hint="the devices here are of type 'cuda'",
        )
    most = None if devices is None or [find_device(current_process(), d) for d in devices] else 1
    kept = [(g, g.snapshot()) for g in default_generators(current_process())[:most] if enabled]
    try:
        yield
    finally:
        for generator, words in kept:
            generator.restore(words)
