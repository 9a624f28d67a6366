"""Random numbers: a generator per rank, the same numbers in every run.

They come from numpy's Philox generator and are not those of PyTorch for the same seed. They are
drawn when the call is made, so their order is that of the program, whatever the device does.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.errors import UnsupportedError, call_site, site_fact
from kernbench.memory import DType, dtypes
from kernbench.runtime_api import tape
from kernbench.runtime_api.ops.creation import asked, check_pin, shape_of, sizes_of
from kernbench.runtime_api.ops.elementwise import check_distinct
from kernbench.runtime_api.ops.running import find_device, run
from kernbench.runtime_api.process import Process, current_process
from kernbench.runtime_api.tensor_base import (
    Array,
    OperandError,
    TensorBase,
    TensorError,
    new_tensor,
)
from kernbench.runtime_api.types import Device, DeviceLike

if TYPE_CHECKING:
    from kernbench.runtime_api.tensor import Tensor

__all__ = [
    "Generator",
    "bernoulli",
    "initial_seed",
    "manual_seed",
    "normal",
    "rand",
    "rand_like",
    "randint",
    "randn",
    "randn_like",
    "randperm",
]

_DEFAULT = "generator"


class Generator:
    """`torch.Generator`: a stream of random numbers.

    Args:
        device: Where its numbers are used; it makes no difference to them.

    Attributes:
        device: As given.
    """

    def __init__(self, device: DeviceLike = "cpu") -> None:
        self.device = Device(device)
        self.manual_seed(0)

    def manual_seed(self, seed: int) -> "Generator":
        """Starts the stream that belongs to a seed, and returns the generator."""
        # PyTorch takes negative seeds as unsigned 64-bit numbers.
        self._seed = int(seed) % (1 << 64)
        self.numbers = np.random.Generator(np.random.Philox(key=self._seed))
        return self

    def initial_seed(self) -> int:
        """Returns the seed that the stream started from."""
        return self._seed


def _default(process: Process) -> Generator:
    """Returns the generator of a rank; all ranks start from the seed of the context."""
    found: Generator | None = process.scratch.get(_DEFAULT)
    if found is None:
        found = process.scratch[_DEFAULT] = Generator().manual_seed(process.ctx.spec.seed)
    return found


def manual_seed(seed: int) -> Generator:
    """Seeds the default generator of the calling rank, and returns it."""
    return _default(current_process()).manual_seed(seed)


def initial_seed() -> int:
    """Returns the seed of the calling rank's default generator."""
    return _default(current_process()).initial_seed()


Draw = Callable[[np.random.Generator], Array]


def _drawn(
    name: str,
    shape: tuple[int, ...],
    dtype: DType,
    device: DeviceLike | None,
    generator: Generator | None,
    draw: Draw,
    *,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> "Tensor":
    process = current_process()
    where = find_device(process, device)
    check_pin(where, pin_memory)
    out = new_tensor(process, shape, dtype, where, pinned=pin_memory)
    _fill(process, name, out, generator, draw)
    return asked(out, requires_grad)


def _fill(
    process: Process, name: str, out: TensorBase, generator: Generator | None, draw: Draw
) -> None:
    source = generator or _default(process)
    values = draw(source.numbers) if process.engine.enable_data else None
    target = out.window
    node = None
    if out.memory.tracked:
        node = tape.begin(process, "random", (out,), out=out)

    def effect() -> None:
        assert values is not None
        if target.buffer.data is None:
            target.adopt(values)
        else:
            target.store(values)

    run(process, f"aten::{name}", (), out, effect)
    if node is not None:
        tape.finish(node, out)


def drawn_mask(name: str, shape: tuple[int, ...], chance: float, device: DeviceLike) -> "Tensor":
    """Returns bools, each True with a probability, drawn from the rank's default generator."""

    def draw(numbers: np.random.Generator) -> Array:
        return numbers.random(shape, np.float32) < chance

    return _drawn(name, shape, dtypes.bool_, device, None, draw)


def _floats(name: str, dtype: DType | None) -> DType:
    dtype = dtype or dtypes.float32
    if dtype.is_complex:
        raise UnsupportedError(
            f"{name} of {dtype} is not simulated",
            [site_fact(call_site())],
            hint="make it of two parts: torch.complex(real, imag)",
        )
    if not dtype.is_floating_point or dtype.itemsize == 1:
        raise TensorError(f"{name} is not implemented for {dtype}", [site_fact(call_site())])
    return dtype


def _uniform(shape: tuple[int, ...], dtype: DType) -> Draw:
    # float32 numbers are drawn on the grid of the type, so that rounding never gives 1.
    bits = {8: 53, 4: 24, 2: 11 if dtype is dtypes.float16 else 8}[dtype.itemsize]

    def draw(numbers: np.random.Generator) -> Array:
        whole = numbers.integers(0, 1 << bits, shape, np.int64)
        return (whole / (1 << bits)).astype(dtype.numpy)

    return draw


def _normal(shape: tuple[int, ...], dtype: DType, mean: float = 0.0, std: float = 1.0) -> Draw:
    wide = np.float64 if dtype is dtypes.float64 else np.float32

    def draw(numbers: np.random.Generator) -> Array:
        values: Array = numbers.standard_normal(shape, wide)
        if (mean, std) != (0.0, 1.0):
            values = values * wide(std) + wide(mean)
        return values.astype(dtype.numpy)

    return draw


def rand(
    *sizes: Any,
    size: Sequence[int] | None = None,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> "Tensor":
    """Returns numbers drawn evenly from 0 up to 1, without it, as `torch.rand`."""
    shape = sizes_of(sizes, size)
    dtype = _floats("rand", dtype)
    return _drawn(
        "rand",
        shape,
        dtype,
        device,
        generator,
        _uniform(shape, dtype),
        requires_grad=requires_grad,
        pin_memory=pin_memory,
    )


def randn(
    *sizes: Any,
    size: Sequence[int] | None = None,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> "Tensor":
    """Returns numbers drawn from the standard normal distribution, as `torch.randn`."""
    shape = sizes_of(sizes, size)
    dtype = _floats("randn", dtype)
    return _drawn(
        "randn",
        shape,
        dtype,
        device,
        generator,
        _normal(shape, dtype),
        requires_grad=requires_grad,
        pin_memory=pin_memory,
    )


def rand_like(
    input: "Tensor",
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> "Tensor":
    """Returns `rand` of the shape, and by default type and device, of another tensor."""
    return rand(
        input.window.shape,
        generator=generator,
        dtype=dtype or input.dtype,
        device=input.device if device is None else device,
        requires_grad=requires_grad,
        pin_memory=pin_memory,
    )


def randn_like(
    input: "Tensor",
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> "Tensor":
    """Returns `randn` of the shape, and by default type and device, of another tensor."""
    return randn(
        input.window.shape,
        generator=generator,
        dtype=dtype or input.dtype,
        device=input.device if device is None else device,
        requires_grad=requires_grad,
        pin_memory=pin_memory,
    )


def randint(
    low: int | None = None,
    high: "int | Sequence[int] | None" = None,
    size: Sequence[int] | None = None,
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> "Tensor":
    """Returns integers from `low` (0 if left out) up to `high`, without it, as `torch.randint`."""
    first: Any = low
    end: Any = high
    given: Any = size
    if size is None:
        first, end, given = 0, low, high
    elif high is None or low is None:
        first, end = 0, low if high is None else high
    if given is None or isinstance(given, int) or not isinstance(end, int):
        raise OperandError(
            "randint() takes (high, size) or (low, high, size)", [site_fact(call_site())]
        )
    if first >= end:
        raise TensorError(
            f"random_ expects 'from' to be less than 'to', but got from={first} >= to={end}",
            [site_fact(call_site())],
        )
    shape, held = shape_of((given,)), dtype or dtypes.int64
    return _drawn(
        "randint",
        shape,
        held,
        device,
        generator,
        lambda numbers: numbers.integers(first, end, shape, np.int64).astype(held.numpy),
        requires_grad=requires_grad,
        pin_memory=pin_memory,
    )


def randperm(
    n: int,
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> "Tensor":
    """Returns the integers from 0 to `n - 1` in random order, as `torch.randperm`."""
    held = dtype or dtypes.int64
    shape = shape_of((n,))
    return _drawn(
        "randperm",
        shape,
        held,
        device,
        generator,
        lambda numbers: numbers.permutation(n).astype(held.numpy),
        requires_grad=requires_grad,
        pin_memory=pin_memory,
    )


def normal(
    mean: float,
    std: float,
    size: Sequence[int],
    *,
    generator: Generator | None = None,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> "Tensor":
    """Returns numbers drawn from a normal distribution, as `torch.normal`."""
    shape, dtype = shape_of((size,)), _floats("normal", dtype)
    return _drawn(
        "normal",
        shape,
        dtype,
        device,
        generator,
        _normal(shape, dtype, mean, std),
        requires_grad=requires_grad,
        pin_memory=pin_memory,
    )


def bernoulli(
    input: "Tensor", p: float | None = None, *, generator: Generator | None = None
) -> "Tensor":
    """Returns 1 with the probability `p`, by default what each element says, else 0."""
    dtype = _floats("bernoulli", input.dtype)
    chances = rand(
        input.window.shape, generator=generator, dtype=dtypes.float64, device=input.device
    )
    return chances.lt(input if p is None else p).to(dtype)


def normal_(
    self: "Tensor", mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None
) -> "Tensor":
    """Fills the tensor with numbers drawn from a normal distribution."""
    check_distinct("normal_", self)
    draw = _normal(self.window.shape, _floats("normal_", self.dtype), mean, std)
    _fill(current_process(), "normal_", self, generator, draw)
    return self


def uniform_(
    self: "Tensor", from_: float = 0.0, to: float = 1.0, *, generator: Generator | None = None
) -> "Tensor":
    """Fills the tensor with numbers drawn evenly from `from_` up to `to`, without it."""
    check_distinct("uniform_", self)
    if from_ > to:
        raise TensorError(
            f"uniform_ expects to return a [from, to) range, but found from={from_} > to={to}",
            [site_fact(call_site())],
        )
    dtype = _floats("uniform_", self.dtype)
    wide = dtype.accumulator
    draw = _uniform(self.window.shape, dtype)

    def scaled(numbers: np.random.Generator) -> Array:
        values: Array = draw(numbers).astype(wide) * wide.type(to - from_) + wide.type(from_)
        return values.astype(dtype.numpy)

    _fill(current_process(), "uniform_", self, generator, scaled)
    return self
