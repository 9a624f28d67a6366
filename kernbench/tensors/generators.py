"""Generators of random numbers; each rank has a default one."""

from typing import Final

import numpy as np

from kernbench.errors import OperandError, call_site, site_fact
from kernbench.memory import Array, dtypes
from kernbench.process.process import Process, RankLocal, current_process
from kernbench.process.types import CPU, Device, DeviceLike
from kernbench.tensors.new import new_tensor
from kernbench.tensors.running import host_array
from kernbench.tensors.tensor import Tensor

_WORDS: Final = 14
"""64-bit words of a state: seed, counter (4), key (2), numbers drawn ahead (4), what is left."""


class Generator:
    """`torch.Generator`: a stream of random numbers.

    Args:
        device: Device on which the numbers are used; the numbers do not depend on it.

    Attributes:
        device: The device.
    """

    def __init__(self, device: DeviceLike = "cpu") -> None:
        self.device = Device(device)
        self.manual_seed(0)

    def manual_seed(self, seed: int) -> "Generator":
        """Starts the stream of random numbers that belongs to a seed, and returns the generator."""
        # PyTorch takes negative seeds as unsigned 64-bit numbers.
        self._seed = int(seed) % (1 << 64)
        self.numbers = np.random.Generator(np.random.Philox(key=self._seed))
        return self

    def initial_seed(self) -> int:
        """Returns the seed that the stream started from."""
        return self._seed

    def get_state(self) -> Tensor:
        """Returns where the stream is, as bytes on the host; does not wait."""
        process = current_process()
        out = new_tensor(process, (8 * _WORDS,), dtypes.uint8, CPU)
        packed = self._packed().view(np.uint8)
        process.engine.executor.apply(lambda: out.window.adopt(packed))
        return out

    def set_state(self, new_state: Tensor) -> None:
        """Lets the stream go on from where another one, or this one, was.

        While data is off no numbers are drawn, and nothing is changed.

        Args:
            new_state: From `get_state`; on the host.

        Raises:
            OperandError: If it is none.
        """
        if (
            not isinstance(new_state, Tensor)
            or not new_state.is_cpu
            or new_state.window.dtype is not dtypes.uint8
            or new_state.window.shape != (8 * _WORDS,)
        ):
            raise OperandError(
                "set_state: expected a state of a random generator",
                [site_fact(call_site()), f"got {new_state!r}"],
                hint="get_state() and torch.get_rng_state() return one",
            )
        if not current_process().engine.enable_data:
            return
        words = np.frombuffer(host_array(new_state, "set_state").tobytes(), np.uint64)
        self._seed = int(words[0])
        self.numbers = np.random.Generator(np.random.Philox(key=self._seed))
        self.numbers.bit_generator.state = {
            "bit_generator": "Philox",
            "state": {"counter": words[1:5], "key": words[5:7]},
            "buffer": words[7:11],
            "buffer_pos": int(words[11]),
            "has_uint32": int(words[12]),
            "uinteger": int(words[13]),
        }

    def _packed(self) -> Array:
        state = self.numbers.bit_generator.state
        place = state["state"]
        rest = [state[name] for name in ("buffer_pos", "has_uint32", "uinteger")]
        words = [self._seed, *place["counter"], *place["key"], *state["buffer"], *rest]
        return np.array([int(word) for word in words], np.uint64)


def _seeded(process: Process) -> Generator:
    return Generator().manual_seed(process.ctx.spec.seed)


DEFAULT_GENERATOR: Final = RankLocal("default generator", _seeded)
"""The generator that a rank draws from unless told otherwise; it starts from the context's seed."""
