"""Random numbers: a generator per rank, the same numbers in every run.

The numbers come from numpy's Philox generator and differ from PyTorch's for the same seed. They are
drawn during the call, so their order is that of the program, whatever the device does.
"""

from collections.abc import Callable, Sequence
from typing import Any, Unpack

import numpy as np

from kernbench.errors import OperandError, UnsupportedError, call_site, site_fact
from kernbench.memory import Array, DType, dtypes
from kernbench.operations.creation import as_of, asked, check_pin, shape_of, sizes_of
from kernbench.operations.elementwise import check_distinct
from kernbench.operations.making import LIKE, Drawing, made
from kernbench.process.process import Process, current_process
from kernbench.process.types import Device, DeviceLike
from kernbench.tensors import tape
from kernbench.tensors.errors import TensorError
from kernbench.tensors.generators import (
    DEFAULT_GENERATOR,
    Drawn,
    Generator,
    default_generators,
    generator_on,
)
from kernbench.tensors.new import new_tensor
from kernbench.tensors.running import find_device, run
from kernbench.tensors.settings import default_dtype
from kernbench.tensors.tensor import Tensor

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


def manual_seed(seed: int) -> Generator:
    """Seeds the default generators of the calling rank, and returns the one of the host."""
    generators = default_generators(current_process())
    for generator in generators:
        generator.manual_seed(seed)
    return generators[0]


def initial_seed() -> int:
    """Returns the seed of the calling rank's default generator."""
    return DEFAULT_GENERATOR.of(current_process()).initial_seed()


Draw = Callable[["np.random.Generator"], Array]


def _drawn(
    name: str,
    shape: tuple[int, ...],
    draw: Draw,
    *,
    dtype: DType | None = None,
    generator: Generator | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    process = current_process()
    where = find_device(process, device)
    check_pin(where, pin_memory)
    out = new_tensor(process, shape, dtype or default_dtype(), where, pinned=pin_memory)
    _fill(process, name, out, generator, draw)
    return asked(out, requires_grad)


def _fill(
    process: Process, name: str, out: Tensor, generator: Generator | None, draw: Draw
) -> None:
    source = generator_on(process, out.device, generator)
    drawn = Drawn(process, out.device, source, generator, draw)
    target = out.window
    node = None
    if out.memory.tracked:
        node = tape.begin(process, "random", (out,), out=out)

    def effect() -> None:
        values = drawn.take()
        if target.buffer.data is None:
            target.adopt(values)
        else:
            target.store(values)

    run(process, f"aten::{name}", (), out, effect)
    if node is not None:
        tape.finish(node, out)


def drawn_mask(
    shape: tuple[int, ...], chance: float, device: Device
) -> tuple[Tensor, Callable[[], None]]:
    """Returns a tensor for random bools, and a function by which a kernel writes them.

    They are drawn at once, from the rank's default generator.

    Args:
        shape: Shape of the result.
        chance: Probability of True.
        device: Device of the result.
    """
    process = current_process()
    mask = new_tensor(process, shape, dtypes.bool_, device)
    source = generator_on(process, device, None)
    drawn = Drawn(
        process, device, source, None, lambda numbers: numbers.random(shape, np.float32) < chance
    )
    target = mask.window

    def write() -> None:
        target.adopt(drawn.take())

    return mask, write


def _refuse_captured(process: Process) -> None:
    if process.host.tape is not None and process.host.tape.later:
        raise UnsupportedError(
            "attention with dropout inside of a CUDA graph is not simulated",
            [site_fact(call_site())],
            hint="drop the output of the attention instead",
        )


def drawn_seed(device: Device) -> int:
    """Returns a seed for numbers that a kernel draws, from the rank's default generator.

    Args:
        device: Device of the kernel.
    """
    process = current_process()
    if not process.engine.enable_data:
        return 0
    _refuse_captured(process)
    return int(generator_on(process, device, None).numbers.integers(1 << 63))


def _floats(name: str, dtype: DType | None) -> DType:
    dtype = dtype or default_dtype()
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
    # The draws are multiples of the type's precision, so that rounding never gives 1.
    bits = {8: 53, 4: 24, 2: 11 if dtype is dtypes.float16 else 8}[dtype.itemsize]

    def draw(numbers: "np.random.Generator") -> Array:
        whole = numbers.integers(0, 1 << bits, shape, np.int64)
        return (whole / (1 << bits)).astype(dtype.numpy)

    return draw


def _normal(shape: tuple[int, ...], dtype: DType, mean: float = 0.0, std: float = 1.0) -> Draw:
    wide = np.float64 if dtype is dtypes.float64 else np.float32

    def draw(numbers: "np.random.Generator") -> Array:
        values: Array = numbers.standard_normal(shape, wide)
        if (mean, std) != (0.0, 1.0):
            values = values * wide(std) + wide(mean)
        return values.astype(dtype.numpy)

    return draw


@made("float32 by default")
def rand(
    *sizes: int | Sequence[int], size: Sequence[int] | None = None, **how: Unpack[Drawing]
) -> Tensor:
    """Returns numbers drawn evenly from 0 up to 1, without 1, as `torch.rand`."""
    shape = sizes_of(sizes, size)
    how["dtype"] = dtype = _floats("rand", how.get("dtype"))
    return _drawn("rand", shape, _uniform(shape, dtype), **how)


@made("float32 by default")
def randn(
    *sizes: int | Sequence[int], size: Sequence[int] | None = None, **how: Unpack[Drawing]
) -> Tensor:
    """Returns numbers drawn from the standard normal distribution, as `torch.randn`."""
    shape = sizes_of(sizes, size)
    how["dtype"] = dtype = _floats("randn", how.get("dtype"))
    return _drawn("randn", shape, _normal(shape, dtype), **how)


@made(LIKE)
def rand_like(input: Tensor, **how: Unpack[Drawing]) -> Tensor:
    """Returns numbers as `rand` in the shape of another tensor, as `torch.rand_like`."""
    shape, how = input.window.shape, as_of(input, how)
    how["dtype"] = dtype = _floats("rand_like", how["dtype"])
    return _drawn("rand_like", shape, _uniform(shape, dtype), **how)


@made(LIKE)
def randn_like(input: Tensor, **how: Unpack[Drawing]) -> Tensor:
    """Returns numbers as `randn` in the shape of another tensor, as `torch.randn_like`."""
    shape, how = input.window.shape, as_of(input, how)
    how["dtype"] = dtype = _floats("randn_like", how["dtype"])
    return _drawn("randn_like", shape, _normal(shape, dtype), **how)


@made("int64 by default")
def randint(
    low: int | None = None,
    high: "int | Sequence[int] | None" = None,
    size: Sequence[int] | None = None,
    **how: Unpack[Drawing],
) -> Tensor:
    """Returns integers from `low` up to `high`, without `high`, as `torch.randint`.

    Args:
        low: Smallest integer; 0 if it is left out.
        high: Bound that the integers do not reach.
        size: Extents of the result.

    Raises:
        OperandError: If the bounds are no integers, or `size` is missing.
        TensorError: If `low` is not below `high`.
    """
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
    shape = shape_of((given,))
    how["dtype"] = dtype = how.get("dtype") or dtypes.int64

    def draw(numbers: "np.random.Generator") -> Array:
        return numbers.integers(first, end, shape, np.int64).astype(dtype.numpy)

    return _drawn("randint", shape, draw, **how)


@made("int64 by default")
def randperm(n: int, **how: Unpack[Drawing]) -> Tensor:
    """Returns the integers from 0 to `n - 1` in random order, as `torch.randperm`.

    Args:
        n: Number of integers.
    """
    how["dtype"] = dtype = how.get("dtype") or dtypes.int64

    def draw(numbers: "np.random.Generator") -> Array:
        return numbers.permutation(n).astype(dtype.numpy)

    return _drawn("randperm", shape_of((n,)), draw, **how)


@made("float32 by default")
def normal(mean: float, std: float, size: Sequence[int], **how: Unpack[Drawing]) -> Tensor:
    """Returns numbers drawn from a normal distribution, as `torch.normal`.

    Args:
        mean: Mean of the distribution.
        std: Standard deviation of the distribution.
        size: Extents of the result.
    """
    shape = shape_of((size,))
    how["dtype"] = dtype = _floats("normal", how.get("dtype"))
    return _drawn("normal", shape, _normal(shape, dtype, mean, std), **how)


def bernoulli(
    input: Tensor, p: float | None = None, *, generator: Generator | None = None
) -> Tensor:
    """Returns 1 with a given probability, else 0, as `torch.bernoulli`.

    Args:
        input: Tensor of probabilities, of the shape and type of the result.
        p: Probability for all elements, instead of those in `input`.
        generator: Source of the numbers; by default the calling rank's generator.
    """
    dtype = _floats("bernoulli", input.dtype)
    process, shape, device = current_process(), input.window.shape, input.device
    out = new_tensor(process, shape, dtype, device)
    source = generator_on(process, device, generator)
    draw = _uniform(shape, dtypes.float64)
    numbers = Drawn(process, device, source, generator, draw)
    given, target = input.window, out.window

    def effect() -> None:
        drawn = numbers.take()
        chances = given.read().astype(np.float64) if p is None else p
        target.adopt(np.less(drawn, chances).astype(np.float32))

    run(process, "aten::bernoulli", [input] if p is None else [], out, effect)
    return out


def normal_(
    self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Fills the tensor with numbers from a normal distribution, as `torch.Tensor.normal_`.

    Args:
        mean: Mean of the distribution.
        std: Standard deviation of the distribution.
        generator: Source of the numbers; by default the calling rank's generator.
    """
    check_distinct("normal_", self)
    draw = _normal(self.window.shape, _floats("normal_", self.dtype), mean, std)
    _fill(current_process(), "normal_", self, generator, draw)
    return self


def uniform_(
    self: Tensor, from_: float = 0.0, to: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Fills the tensor with numbers from a uniform distribution, as `torch.Tensor.uniform_`.

    Args:
        from_: Lower bound.
        to: Upper bound, excluded.
        generator: Source of the numbers; by default the calling rank's generator.

    Raises:
        TensorError: If `from_` is above `to`.
    """
    check_distinct("uniform_", self)
    if from_ > to:
        raise TensorError(
            f"uniform_ expects to return a [from, to) range, but found from={from_} > to={to}",
            [site_fact(call_site())],
        )
    dtype = _floats("uniform_", self.dtype)
    wide = dtype.accumulator
    draw = _uniform(self.window.shape, dtype)

    def scaled(numbers: "np.random.Generator") -> Array:
        values: Array = draw(numbers).astype(wide) * wide.type(to - from_) + wide.type(from_)
        return values.astype(dtype.numpy)

    _fill(current_process(), "uniform_", self, generator, scaled)
    return self
