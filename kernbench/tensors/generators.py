"""Generators of random numbers; each rank has a default one, or one a device."""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from kernbench.errors import OptionError, call_site, site_fact
from kernbench.memory import Array, dtypes
from kernbench.process.act import act_at_once
from kernbench.process.process import MAIN, Process, RankLocal, current_process
from kernbench.process.types import CPU, Device, DeviceLike
from kernbench.tensors.errors import TensorError
from kernbench.tensors.new import new_tensor
from kernbench.tensors.running import host_array
from kernbench.tensors.tensor import Tensor

FIRST_SEED: Final = 67280421310721
"""Seed of a generator that nobody has seeded; PyTorch's."""

_STATE_WORDS: Final = 2 + 4 + 2 + 4 + 3
"""Numbers of 64 bits in a state: the seed, how often `seed()` was called, and Philox's own."""


class Generator:
    """`torch.Generator`: a stream of random numbers.

    Args:
        device: Device on which the numbers are used; the numbers do not depend on it.

    Attributes:
        device: The device.
    """

    def __init__(self, device: DeviceLike = "cpu") -> None:
        self.device = Device(device)
        self.manual_seed(FIRST_SEED)

    def manual_seed(self, seed: int) -> "Generator":
        """Starts the stream of random numbers that belongs to a seed, and returns the generator.

        Args:
            seed: From -2^63 to 2^64 - 1; a negative one counts from 2^64.

        Raises:
            OptionError: If the seed is out of range.
        """
        number = int(seed)
        if not -(1 << 63) <= number < 1 << 64:
            raise OptionError(
                f"manual_seed expected a seed from -2^63 to 2^64 - 1, got {number}",
                [site_fact(call_site())],
            )
        self._start(number % (1 << 64), 0)
        return self

    def _start(self, seed: int, renewed: int) -> None:
        self._seed, self._renewed = seed, renewed
        self.numbers = np.random.Generator(np.random.Philox(key=seed))

    def initial_seed(self) -> int:
        """Returns the seed that the stream started from."""
        return self._seed

    def seed(self) -> int:
        """Starts from another seed, and returns it.

        PyTorch takes the seed from the operating system. Here it follows from the earlier one, so
        that a run can be repeated; ranks that had the same seed before still have the same.
        """
        renewed = self._renewed + 1
        self._start(_derived(self._seed, renewed), renewed)
        return self._seed

    def snapshot(self) -> Array:
        """Returns the place in the stream, as numbers that `restore` takes."""
        state: Any = self.numbers.bit_generator.state
        words = [self._seed, self._renewed, *state["state"]["counter"], *state["state"]["key"]]
        words += [*state["buffer"], state["buffer_pos"], state["has_uint32"], state["uinteger"]]
        return np.array(words, np.uint64)

    def restore(self, words: Array) -> None:
        """Goes on at the place that `snapshot` has returned."""
        self._start(int(words[0]), int(words[1]))
        self.numbers.bit_generator.state = {
            "bit_generator": "Philox",
            "state": {"counter": words[2:6].copy(), "key": words[6:8].copy()},
            "buffer": words[8:12].copy(),
            "buffer_pos": int(words[12]),
            "has_uint32": int(words[13]),
            "uinteger": int(words[14]),
        }

    def get_state(self) -> Tensor:
        """Returns the place in the stream as a uint8 tensor on the host, for `set_state`."""
        process = current_process()
        words = self.snapshot().view(np.uint8)
        out = new_tensor(process, words.shape, dtypes.uint8, CPU)
        act_at_once(process, "get_state", lambda: out.window.adopt(words), writes=(out,))
        return out

    def set_state(self, new_state: Tensor) -> "Generator":
        """Goes on at the place that `get_state` has returned; returns the generator.

        With data off no numbers are drawn, a state has no values, and the call changes nothing.

        Raises:
            TensorError: If the tensor is no state of a generator of this package.
        """
        process = current_process()
        nbytes = 8 * _STATE_WORDS
        window = new_state.window
        if window.dtype is not dtypes.uint8 or window.shape != (nbytes,) or not new_state.is_cpu:
            raise TensorError(
                "RNG state must be a torch.ByteTensor",
                [
                    site_fact(call_site()),
                    f"got {window.dtype} of shape {list(window.shape)} on {new_state.device}; "
                    f"a state has {nbytes} bytes on the host",
                ],
                hint="give what get_state() or get_rng_state() returned",
            )
        if process.engine.enable_data:
            self.restore(np.ascontiguousarray(host_array(new_state, "set_state")).view(np.uint64))
        return self

    def clone_state(self) -> "Generator":
        """Returns another generator at the same place in the same stream."""
        other = Generator(self.device)
        other.restore(self.snapshot())
        return other


class Drawn:
    """Random numbers of a command: drawn when it is issued, or at each replay of its CUDA graph.

    Args:
        source: What they are drawn from.
        named: The generator that the program names; None for the default one.
        draw: Draws them.
    """

    __slots__ = ("_values",)

    def __init__(
        self,
        process: Process,
        device: Device,
        source: Generator,
        named: Generator | None,
        draw: Callable[["np.random.Generator"], Any],
    ) -> None:
        self._values: Final[deque[Any]] = deque()
        tape = process.host.tape
        if process.engine.enable_data:

            def again() -> None:
                self._values.append(draw(source.numbers))

            if tape is None or device.index is None or not tape.draws(again, named):
                again()

    def take(self) -> Any:
        """Returns the numbers that were drawn first, for the command that writes them."""
        return self._values.popleft()


def _derived(*numbers: int) -> int:
    """Returns a seed that follows from numbers at least 0, and looks like no other."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def _seeded(process: Process) -> Generator:
    seed = process.ctx.spec.seed
    if process.rank != MAIN:
        seed = _derived(seed, process.rank)
    return Generator().manual_seed(seed)


def default_generator(process: Process, device: Device) -> RankLocal[Generator]:
    """Returns the variable with the generator that a rank draws from on a device.

    If devices are kept apart, the host and the rank's device have one each, as in PyTorch.
    """
    apart = process.strict and device.type == "cuda"
    return DEVICE_GENERATOR if apart else DEFAULT_GENERATOR


def generator_on(process: Process, device: Device, generator: Generator | None) -> Generator:
    """Returns what numbers for a tensor are drawn from.

    Args:
        device: Where the tensor is.
        generator: What the program gave; None for the rank's default generator.

    Raises:
        TensorError: If devices are kept apart, and the generator is for another kind.
    """
    if generator is None:
        return default_generator(process, device).of(process)
    if process.strict and generator.device.type != device.type:
        raise other_generator(device.type, generator.device.type)
    return generator


def other_generator(expected: str, found: str) -> TensorError:
    """Returns the error of a generator for another kind of device.

    Args:
        expected: Kind of device of the tensor.
        found: Kind of device of the generator.
    """
    return TensorError(
        f"Expected a '{expected}' device type for generator but found '{found}'",
        [site_fact(call_site())],
        hint=f"make it with torch.Generator('{expected}')",
    )


def device_generator(process: Process) -> Generator:
    """Returns the default generator of a rank for its device."""
    return default_generator(process, Device("cuda", process.device_index)).of(process)


def default_generators(process: Process) -> list[Generator]:
    """Returns the default generators of a rank: one, or one for each device."""
    host, device = DEFAULT_GENERATOR.of(process), device_generator(process)
    return [host] if device is host else [host, device]


DEFAULT_GENERATOR: Final = RankLocal("default generator", _seeded)
"""The generator that a rank draws from unless told otherwise.

As on hardware, ranks that nobody seeded draw different numbers: where a generator starts follows
from the context's seed and the rank, until the program seeds it.
"""

DEVICE_GENERATOR: Final = RankLocal("default generator of the device", _seeded)
"""The same for tensors on the rank's device, if devices are kept apart."""
