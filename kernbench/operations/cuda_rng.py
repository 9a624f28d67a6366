"""Seeds and states of `torch.cuda`'s generators; a rank draws on its own device only."""

from collections.abc import Iterable

from kernbench.errors import call_site, site_fact
from kernbench.operations.cuda import current_device, device_count, manual_seed_all
from kernbench.process.process import current_process
from kernbench.process.types import DeviceLike
from kernbench.tensors.errors import TensorError
from kernbench.tensors.generators import device_generator
from kernbench.tensors.running import find_device
from kernbench.tensors.tensor import Tensor

__all__ = [
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def manual_seed(seed: int) -> None:
    """Seeds the generator that the calling rank draws from."""
    manual_seed_all(seed)


def seed() -> None:
    """Starts the generator that the calling rank draws from on its device at another seed."""
    device_generator(current_process()).seed()


def seed_all() -> None:
    """Does what `seed` does: a rank draws on its own device only."""
    seed()


def initial_seed() -> int:
    """Returns the seed of the generator that the calling rank draws from on its device."""
    return device_generator(current_process()).initial_seed()


def get_rng_state(device: DeviceLike = "cuda") -> Tensor:
    """Returns the place of the calling rank's generator, for `set_rng_state`.

    Args:
        device: The rank's device.

    Raises:
        KernbenchError: If the device does not exist.
        OwnershipError: If the device is another rank's (M14).
    """
    process = current_process()
    find_device(process, device)
    return device_generator(process).get_state()


def set_rng_state(new_state: Tensor, device: DeviceLike = "cuda") -> None:
    """Lets the calling rank's generator go on at a place.

    Args:
        new_state: What `get_rng_state` returned, 120 bytes; see `Generator.set_state`.
        device: The rank's device.

    Raises:
        KernbenchError: If the device does not exist.
        OwnershipError: If the device is another rank's (M14).
        TensorError: If the tensor is no state of a generator of this package.
    """
    process = current_process()
    find_device(process, device)
    device_generator(process).set_state(new_state)


def get_rng_state_all() -> list[Tensor]:
    """Returns, for each device, what `get_rng_state` returns for the rank's own."""
    return [get_rng_state() for _ in range(device_count())]


def set_rng_state_all(new_states: Iterable[Tensor]) -> None:
    """Does what `set_rng_state` does with the state at the place of the rank's device.

    Args:
        new_states: A state for each device, as `get_rng_state_all` returned them.

    Raises:
        TensorError: If there is no state for the rank's device, or it is none.
    """
    states = list(new_states)
    index = current_device()
    if index >= len(states):
        raise TensorError(
            f"set_rng_state_all() got {len(states)} states, and none for cuda:{index}",
            [site_fact(call_site())],
            hint="give what get_rng_state_all() returned",
        )
    set_rng_state(states[index])
