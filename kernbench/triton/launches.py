"""A launch of a compiled kernel: what it is given, as arrays for the executor of its text."""

import operator
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np

from kernbench.caches import Table
from kernbench.errors import KernbenchError, UnsupportedError, call_site, site_fact
from kernbench.hw.library import Library
from kernbench.hw.programs import GridPrice
from kernbench.kernels.grids import GridLaunch, grid_time
from kernbench.process.process import current_process
from kernbench.ranks.watchdog import patience
from kernbench.triton.machine_code import Coming
from kernbench.triton.timing import grid_launch
from kernbench.ttir.arithmetic import Array
from kernbench.ttir.counting import Counter
from kernbench.ttir.executing import Executable
from kernbench.ttir.frames import BlockOf, Held
from kernbench.ttir.memory import Memory
from kernbench.ttir.module import Value
from kernbench.ttir.reader import read
from kernbench.ttir.sums import parts_of as parts_of_sum
from kernbench.ttir.types import Descriptor

_EXECUTABLES: Final[Table[str, Executable]] = Table("triton.kernels")

_COUNTERS: Final[Table[str, Counter]] = Table("triton.counters")

_LAUNCHES: Final[Table[Hashable, GridLaunch]] = Table("triton.launches")

_BF16_DROPS: Final = 16
"""Bits of a float32 that Triton's launcher cuts off, unrounded, for a bfloat16."""


class LaunchError(KernbenchError, ValueError):
    """The grid or the arguments of a launch do not fit the kernel (K1, K3)."""


def executable_of(text: str) -> Executable:
    """Returns a kernel that can run.

    Args:
        text: Triton's IR of it.

    Raises:
        UnsupportedError: If it has an operation that is not simulated.
    """
    found = _EXECUTABLES.get(text)
    return _EXECUTABLES.keep(text, Executable(read(text))) if found is None else found


def counter_of(executable: Executable, text: str) -> Counter:
    """Returns what counts launches of a kernel.

    Args:
        text: Triton's IR of it.
    """
    found = _COUNTERS.get(text)
    return _COUNTERS.keep(text, Counter(executable.module)) if found is None else found


class Given(NamedTuple):
    """What a program gives for a parameter of a kernel.

    Attributes:
        name: Name of the parameter; of a part of a tuple with its place, as `sizes.0`.
        type: Triton's type of it, such as `*fp32`, `i64` or `tensordesc<fp16[16, 64]>`.
        value: The tensor, the number, or the descriptor.
    """

    name: str
    type: str
    value: Any

    def label(self, shape: Sequence[int], dtype: str) -> str:
        """Returns how reports call it.

        Args:
            shape: Of the tensor that is given, or that it describes.
            dtype: Name of its type.
        """
        extents = " x ".join(map(str, shape)) or "one element"
        return f"argument {self.name}, a tensor of {extents} {dtype}"


def parts_of(signature: Mapping[Any, Any], values: Sequence[Any]) -> Iterator[Given]:
    """Yields what a compiled kernel is given: without constants, tuples by their parts.

    Args:
        signature: Triton's types by name of the parameter.
        values: What the program gives, constants included.
    """
    for (name, kind), value in zip(signature.items(), values, strict=True):
        yield from _part(str(name), kind, value)


def _part(name: str, kind: Any, value: Any) -> Iterator[Given]:
    if isinstance(kind, tuple):
        for place, (inner, one) in enumerate(zip(kind, value, strict=True)):
            yield from _part(f"{name}.{place}", inner, one)
    elif kind != "constexpr":
        yield Given(name, kind, value)


@dataclass(frozen=True)
class Launch:
    """A launch of a compiled kernel.

    Attributes:
        name: Name of the kernel.
        grid: Three extents, of which none is 0.
        text: Triton's IR of the kernel.
        given: What it is given.
        warps: Warps of each program.
        stages: Turns of a loop whose loads may be under way at once.
        hash: What Triton knows the compiled kernel by, with all options.
        machine: Begins to make the kernel's machine code.
    """

    name: str
    grid: tuple[int, int, int]
    text: str
    given: Sequence[Given]
    warps: int
    stages: int
    hash: str
    machine: Callable[[], Coming]

    @property
    def executable(self) -> Executable:
        """The kernel."""
        return executable_of(self.text)

    @property
    def programs(self) -> int:
        """How many there are."""
        return prod(self.grid)

    @cached_property
    def pointers(self) -> dict[int, Given]:
        """What points into memory, by number of the compiled kernel's argument."""
        return {number: given for number, given, _ in self._placed if _points(given)}

    @property
    def loads(self) -> frozenset[int]:
        """Numbers of the arguments of whose memory programs may load."""
        return self._touched(self.executable.loads)

    @property
    def stores(self) -> frozenset[int]:
        """Numbers of the arguments in whose memory programs may store."""
        return self._touched(self.executable.stores)

    @property
    def stores_anywhere(self) -> bool:
        """Whether programs may store in memory that no argument tells."""
        return self.executable.stores is None

    @property
    def reaches_all(self) -> bool:
        """Whether programs may touch memory that no argument tells."""
        return self.executable.loads is None or self.stores_anywhere

    def _touched(self, known: frozenset[int] | None) -> frozenset[int]:
        everywhere = frozenset(self.pointers)
        return everywhere if known is None else known & everywhere

    @cached_property
    def _placed(self) -> list[tuple[int, Given, Sequence[Value]]]:
        """What is given, with the arguments of the compiled kernel that stand for it.

        The first of these has the number. A descriptor is several arguments: it is followed by its
        extents and strides; on devices without such descriptors, an address, extents, strides and
        flags stand for it.
        """
        arguments = self.executable.module.kernel.arguments
        found, place = [], 0
        for given in self.given:
            first, after = place, place + 1
            if given.type.startswith("tensordesc"):
                rank = len(given.value.shape)
                if not isinstance(arguments[first].type.element, Descriptor):
                    after += 2 * rank
                    while arguments[after].type.element == "i1":
                        after += 1
                after += 2 * rank
            found.append((first, given, arguments[first:after]))
            place = after
        if place != len(arguments):
            raise AssertionError(f"{self.name} takes {len(arguments)} arguments, not {place}")
        return found

    def run(self, addresses: Mapping[int, int], memory: Memory, say: Callable[[str], None]) -> None:
        """Runs all programs.

        Args:
            addresses: Where pointers point, by number of the argument.
            memory: What the programs may touch.
            say: Takes what they print.

        Raises:
            KernbenchError: As of `Executable.run`.
        """
        held = self._held(addresses)
        self.executable.run(self.grid, held, memory, say, patience=_patience)

    def price(
        self,
        library: Library,
        addresses: Mapping[int, int],
        memory: Memory | None,
        extents: Mapping[int, int],
        same: Mapping[int, int],
    ) -> Callable[[int], GridPrice]:
        """Counts what programs do, which is before they run, and returns what prices it.

        That takes how much longer loads are on their way than in the device, in picoseconds, and
        waits for the kernel's machine code.

        Args:
            addresses: Where pointers point, by number of the argument.
            memory: What programs may read that choose their ways by it; None without numbers.
            extents: Bytes of the tensors that are given, by number of the argument.
            same: For each of them the first argument that is of the same memory.

        Raises:
            UnsupportedError: If it depends on numbers in memory, and there are none.
            OutOfResources: Of Triton, if a program needs more shared memory than a PE has.
        """
        counter = counter_of(self.executable, self.text)
        held = self._held(addresses if counter.looks else dict.fromkeys(self.pointers, 0))
        numbers = tuple(_key(one) for one in held)
        key = "grid", self.hash, self.grid, numbers, tuple(extents.items()), tuple(same.items())
        launch = None if counter.looks else _LAUNCHES.get(key)
        if launch is None:
            launched = self._launched(counter, held, memory, extents, same)

        def priced(away: int) -> GridPrice:
            known = None if counter.looks else library.priced.get((*key, away))
            if not isinstance(known, GridPrice):
                found = launched() if launch is None else launch
                if not counter.looks:
                    _LAUNCHES.keep(key, found)
                known = grid_time(library, replace(found, away=away))
                library.priced.keep((*key, away), known)
            return known

        return priced

    def _launched(
        self,
        counter: Counter,
        held: Sequence[Held],
        memory: Memory | None,
        extents: Mapping[int, int],
        same: Mapping[int, int],
    ) -> Callable[[], GridLaunch]:
        """Counts what programs do while their machine code is made; see `price`."""
        coming = self.machine()
        work = counter.count(self.grid, held, memory, _patience)
        coming.check()
        return lambda: grid_launch(work, coming.code(), self.warps, self.stages, extents, same)

    def _held(self, addresses: Mapping[int, int]) -> list[Held]:
        """Returns what the programs are given, as the executor takes it."""
        held: list[Held] = []
        for number, given, arguments in self._placed:
            if given.type.startswith("tensordesc"):
                held += self._descriptor(given, addresses[number], arguments, number)
            elif number in addresses:
                held.append(np.array([addresses[number]], np.int64))
            else:
                held.append(_number(given))
        return held

    def _descriptor(
        self, given: Given, address: int, arguments: Sequence[Value], number: int
    ) -> Iterator[Held]:
        descriptor = given.value
        if getattr(descriptor, "round_f32_to_tf32", False):
            raise UnsupportedError(
                f"kernel {self.name}: a descriptor that rounds to tf32 is not simulated",
                [site_fact(call_site()), f"argument {given.name}"],
                hint="leave round_f32_to_tf32 out",
            )
        base = np.array([address], np.int64)
        shape = [operator.index(extent) for extent in descriptor.shape]
        strides = [operator.index(stride) for stride in descriptor.strides]
        numbers = [*shape, *strides]
        element = arguments[0].type.element
        if isinstance(element, Descriptor):
            block = element.block
            yield BlockOf(
                base,
                tuple(np.array([extent], np.int64) for extent in shape),
                tuple(np.array([stride * block.dtype.itemsize], np.int64) for stride in strides),
                block.shape,
                descriptor.padding,
                number,
            )
        else:
            yield base
            flags = len(arguments) - 1 - 2 * len(numbers)
            numbers = [*numbers, descriptor.padding == "nan", *[False] * (flags - 1), *numbers]
        for argument, one in zip(arguments[1:], numbers, strict=True):
            yield np.array([one], argument.type.dtype)


def _patience() -> Callable[[], float]:
    return patience(current_process().ctx.spec.watchdog_s)


def _key(held: Held) -> Hashable:
    """Returns what tells numbers that a kernel is given from others."""
    if isinstance(held, BlockOf):
        parts = held.base, *held.shape, *held.strides
        return tuple(part.tobytes() for part in parts), held.padding
    return tuple((part.dtype.str, part.tobytes()) for part in parts_of_sum(held))


def _points(given: Given) -> bool:
    return given.type.startswith(("*", "tensordesc"))


_FLOATS: Final = {"fp16": "f16", "bf16": "bf16", "fp32": "f32", "f32": "f32", "fp64": "f64"}


def _number(given: Given) -> Held:
    """Returns a number as Triton's launcher passes it on.

    Raises:
        TypeError: If it is none, or no whole one where one is wanted.
        OverflowError: If it does not fit its type.
    """
    kind, value = given.type, given.value
    if kind in _FLOATS:
        single = np.array([float(value)], np.float64)
        if kind == "fp64":
            return single
        if kind == "fp16":
            return single.astype(np.float16)
        single = single.astype(np.float32)
        if kind != "bf16":
            return single
        cut = (single.view(np.uint32) >> _BF16_DROPS).astype(np.uint16)
        return cut.view(ml_dtypes.bfloat16)  # type: ignore[no-any-return]
    number, bits = operator.index(value), int(kind[1:])
    if bits == 1:
        return np.array([bool(number)])
    if not -(1 << (bits - 1)) <= number < 1 << bits:
        raise OverflowError(f"argument {given.name}: {number} does not fit {kind}")
    words = np.array([number & ((1 << bits) - 1)], f"u{bits // 8}")
    signed: Array = words.view(f"i{bits // 8}")
    return signed
