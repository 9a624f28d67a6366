"""Random numbers of simulated devices.

A device draws as CUDA's does: its state is a seed and an offset, and an operation moves the offset
on by what it draws. The numbers come from PyTorch's generator of the host, seeded by both. So they
are the same in every run, but they are not those of a GPU.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, Final
from weakref import WeakValueDictionary

import torch

from kernbench.bridge.base.here import HERE, Rank, this_rank
from kernbench.bridge.tensors.devices import wanted
from kernbench.isolation.replaced import Patch, WhenImported
from kernbench.tensors.generators import FIRST_SEED, other_generator

_REAL: Final = torch.Generator
_PER_BLOCK: Final = 4
"""An offset is a multiple of this: Philox draws four numbers of 32 bits at once."""

_MASK: Final = (1 << 64) - 1
_STATE_BYTES: Final = 16


class DeviceGenerator(_REAL):  # type: ignore[misc, valid-type]
    """`torch.Generator(device="cuda")`: a seed and an offset.

    Attributes:
        offset: How far the generator has drawn.
    """

    _where: torch.device
    _seed: int
    offset: int

    def __new__(cls, device: torch.device) -> "DeviceGenerator":
        """Returns a generator that was given no seed."""
        made: DeviceGenerator = super().__new__(cls)
        made._where, made._seed, made.offset = device, FIRST_SEED, 0
        GENERATORS[made._cdata] = made
        return made

    @property
    def device(self) -> torch.device:
        """Device of the generator."""
        return self._where

    def manual_seed(self, seed: int) -> "DeviceGenerator":
        """Starts again from a seed."""
        if HERE.rank is not None and HERE.rank.capture is not None:
            HERE.rank.capture.check_seed(int(seed) & _MASK == self._seed)
        self._seed, self.offset = int(seed) & _MASK, 0
        return self

    def initial_seed(self) -> int:
        """Returns the seed."""
        return self._seed

    def seed(self) -> int:
        """Starts from another seed, which follows from the earlier one, and returns it."""
        self.manual_seed(_mixed(self._seed, self.offset + 1) >> 11)
        return self._seed

    def get_offset(self) -> int:
        """Returns how far the generator has drawn."""
        return self.offset

    def set_offset(self, offset: int) -> None:
        """Goes on elsewhere.

        Raises:
            RuntimeError: If the offset is no multiple of 4, as in PyTorch.
        """
        if offset % _PER_BLOCK:
            raise RuntimeError("offset must be a multiple of 4")
        self.offset = offset

    def get_state(self) -> torch.Tensor:
        """Returns seed and offset as 16 bytes on the host."""
        return torch.tensor(
            list(self._seed.to_bytes(8, "little") + self.offset.to_bytes(8, "little")),
            dtype=torch.uint8,
            device="cpu",
        )

    graphsafe_get_state = get_state

    def set_state(self, state: torch.Tensor) -> "DeviceGenerator":
        """Goes on where `get_state` was called.

        Raises:
            TypeError: If it is no tensor of bytes on the host.
            RuntimeError: If it has another size.
        """
        if state.dtype != torch.uint8 or state.device.type != "cpu":
            raise TypeError(f"RNG state must be a torch.ByteTensor, got {state.type()}")
        if state.numel() not in {8, _STATE_BYTES}:
            raise RuntimeError("RNG state is wrong size")
        raw = bytes(state.tolist())
        self._seed = int.from_bytes(raw[:8], "little")
        self.offset = int.from_bytes(raw[8:], "little")
        return self

    graphsafe_set_state = set_state

    def clone_state(self) -> "DeviceGenerator":
        """Returns another generator at the same place."""
        other = DeviceGenerator(self._where)
        other._seed, other.offset = self._seed, self.offset
        return other

    def next_seed(self, count: int) -> int:
        """Returns the seed for an operation's numbers, and moves the offset on.

        Args:
            count: Number of elements that the operation draws.
        """
        seed = _mixed(self._seed, self.offset)
        self.offset += -(-max(count, 1) // _PER_BLOCK) * _PER_BLOCK
        return seed


GENERATORS: Final[WeakValueDictionary[int, DeviceGenerator]] = WeakValueDictionary()
"""Generators of devices, by the address of the generator's object in C++."""


class _AnyGenerator(type(_REAL)):  # type: ignore[misc]
    """Class of `torch.Generator` while ranks run: every real generator is one."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _REAL)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, _REAL)

    def __call__(cls, device: Any = "cpu") -> Any:
        rank = HERE.rank
        target = None if rank is None else wanted(rank, device)
        if target is not None and target.type == "cuda":
            return DeviceGenerator(target)
        return _REAL(device)


class Generator(metaclass=_AnyGenerator):
    """`torch.Generator`, on the host or on a simulated device."""


def _mixed(seed: int, offset: int) -> int:
    """Returns 64 bits that look like no others (SplitMix64's function of both)."""
    value = (seed + (offset + 1) * 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def generator_of(rank: Rank) -> DeviceGenerator:
    """Returns the generator from which a rank's device draws if the program names none."""
    generator: DeviceGenerator | None = rank.generator
    if generator is None:
        generator = rank.generator = DeviceGenerator(rank.device)
    return generator


def given_generator(on_device: bool, args: Any, kwargs: Any) -> torch.Generator | None:
    """Returns the generator that the program gives to an operation; None if it gives none.

    Args:
        on_device: Whether the result is on the device.
        args: Arguments of the operation.
        kwargs: Those by name; None for none.

    Raises:
        TensorError: If it is one of another place, as in PyTorch.
    """
    for one in (*(kwargs or {}).values(), *args):
        if isinstance(one, _REAL):
            if (one._cdata in GENERATORS) != on_device:
                raise other_generator(*(("cuda", "cpu") if on_device else ("cpu", "cuda")))
            return one
    return None


def draw(
    rank: Rank, func: Callable[..., Any], on_device: bool, /, *args: Any, **kwargs: Any
) -> Any:
    """Runs an operation that draws random numbers, from the generator of the place of its result.

    Args:
        on_device: Whether the result is on the device.
        args: Arguments of the operation.

    Raises:
        TensorError: If the program gives a generator of another place, as in PyTorch.
    """
    given = given_generator(on_device, args, kwargs)
    ours = None if given is None else GENERATORS.get(given._cdata)
    if not on_device:
        return func(*args, **kwargs)
    if ours is not None and rank.capture is not None:
        rank.capture.check_generator(ours)
    generator = ours or generator_of(rank)
    count = _count(args)
    seed = generator.next_seed(count)
    if not rank.data:
        return func(*args, **kwargs)
    if given is not None:
        given.manual_seed(seed)
        return func(*args, **kwargs)
    host = torch.default_generator
    before = host.get_state()
    host.manual_seed(seed)
    try:
        return func(*args, **kwargs)
    finally:
        host.set_state(before)


def _count(values: Any) -> int:
    """Returns how many elements a call draws: those of its tensor, or of the size that it gives."""
    for value in values:
        if isinstance(value, torch.Tensor):
            return int(value.numel())
        if isinstance(value, list | tuple):
            if all(isinstance(one, int) for one in value):
                return int(torch.Size(value).numel())
            return _count(value)
    return next((value for value in values if type(value) is int), 1)


def seed_of_all(real: Callable[[int], Any]) -> Callable[[int], Any]:
    """Returns `torch.manual_seed`, which seeds the generator of the device, too."""

    def manual_seed(seed: int) -> Any:
        rank = HERE.rank
        if rank is None:
            return real(seed)
        generator_of(rank).manual_seed(int(seed))
        torch.default_generator.manual_seed(int(seed))
        return torch.default_generator

    return manual_seed


@contextlib.contextmanager
def fork_rng(
    devices: Any = None,
    enabled: bool = True,
    _caller: str = "fork_rng",
    _devices_kw: str = "devices",
    device_type: str = "cuda",
) -> Iterator[None]:
    """`torch.random.fork_rng`: a block after which generators go on as if it had not been.

    Args:
        devices: Devices whose generators are kept; None: all of the rank.
        enabled: Whether to do anything.
        device_type: Kind of the devices.
    """
    rank = HERE.rank
    if rank is None:
        with _REAL_FORK(devices, enabled, _caller, _devices_kw, device_type):
            yield
        return
    if not enabled:
        yield
        return
    for device in devices or ():
        wanted(rank, device)
    host = torch.default_generator
    before, state = host.get_state(), None
    if devices is None or list(devices):
        state = generator_of(rank).get_state()
    try:
        yield
    finally:
        host.set_state(before)
        if state is not None:
            generator_of(rank).set_state(state)


_REAL_FORK: Final = torch.random.fork_rng


def _here(device: Any) -> DeviceGenerator:
    rank = this_rank()
    wanted(rank, "cuda" if device is None else device)
    return generator_of(rank)


def get_rng_state(device: Any = "cuda") -> torch.Tensor:
    """Returns the state of the device's generator: 16 bytes, on the host."""
    return _here(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "cuda") -> None:
    """Sets the state of the device's generator."""
    _here(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """Returns the states of the devices of the node; those of other ranks are not known here.

    Every entry is the state of the rank's own device, so that `set_rng_state_all` gives it back.
    """
    rank = this_rank()
    return [generator_of(rank).get_state() for _ in range(rank.local_devices)]


def set_rng_state_all(new_states: Any) -> None:
    """Sets the state of the rank's own device from a list with one of each device."""
    rank = this_rank()
    generator_of(rank).set_state(list(new_states)[rank.local])


def manual_seed(seed: int) -> None:
    """Seeds the device's generator."""
    generator_of(this_rank()).manual_seed(int(seed))


def seed() -> None:
    """Seeds the device's generator from its earlier seed."""
    generator_of(this_rank()).seed()


def initial_seed() -> int:
    """Returns the seed of the device's generator."""
    return generator_of(this_rank()).initial_seed()


FUNCTIONS: Final[dict[str, Any]] = {
    "get_rng_state": get_rng_state,
    "set_rng_state": set_rng_state,
    "get_rng_state_all": get_rng_state_all,
    "set_rng_state_all": set_rng_state_all,
    "manual_seed": manual_seed,
    "manual_seed_all": manual_seed,
    "seed": seed,
    "seed_all": seed,
    "initial_seed": initial_seed,
    "_get_rng_state_offset": lambda device="cuda": _here(device).get_offset(),
    "_set_rng_state_offset": lambda offset, device="cuda": _here(device).set_offset(offset),
    "_get_generator": _here,
}
"""What `torch.cuda` has of random numbers, by name."""


def _trunc_normal(real: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what draws numbers until all are in a range: without numbers it draws once."""

    @functools.wraps(real)
    def draw_within(tensor: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        rank = HERE.rank
        if rank is None or rank.data:
            return real(tensor, *args, **options)
        with rank.mode.remembering(0):  # none is outside
            return real(tensor, *args, **options)

    return draw_within


class _DefaultGenerators:
    """`torch.cuda.default_generators`."""

    def __getitem__(self, index: int) -> DeviceGenerator:
        return _here(index)

    def __len__(self) -> int:
        return this_rank().local_devices


def patches() -> Iterator[Patch | WhenImported]:
    """Yields what is replaced of random numbers."""
    yield Patch(torch, "Generator", Generator)
    within = _trunc_normal(torch.nn.init._no_grad_trunc_normal_)
    yield Patch(torch.nn.init, "_no_grad_trunc_normal_", within)
    yield Patch(torch, "manual_seed", seed_of_all(torch.manual_seed))
    yield Patch(torch.random, "manual_seed", seed_of_all(torch.random.manual_seed))
    yield Patch(torch.random, "fork_rng", fork_rng)
    yield Patch(torch.cuda, "default_generators", _DefaultGenerators())
    yield WhenImported("torch.distributed.tensor._random", _of_tracker)
    yield WhenImported("torch.distributed.tensor._dispatch", _of_dispatch)


def _of_tracker(module: Any) -> Iterator[Patch]:
    """Yields what lets random operations of DTensor run without numbers of states to read."""
    tracker = module.OffsetBasedRNGTracker
    init, region = tracker.__init__, tracker._distribute_region

    def begin(self: Any, device_mesh: Any, run_state_sync: bool = True) -> None:
        rank = HERE.rank
        init(self, device_mesh, run_state_sync and (rank is None or rank.data))

    @contextlib.contextmanager
    def distribute(self: Any, spec: Any, generator: Any = None) -> Iterator[None]:
        rank = HERE.rank
        if rank is not None and not rank.data:
            yield
            return
        with region(self, spec, generator):
            yield

    yield Patch(tracker, "__init__", begin)
    yield Patch(tracker, "_distribute_region", distribute)


def _of_dispatch(module: Any) -> Iterator[Patch]:
    """Yields what lets them run with the states of the device's generator."""
    real = module.run_dtensor_rng_op
    on_cuda = real.py_kernels[torch._C.DispatchKey.CUDA]

    def run(start: int, end: int, op: Any, *args: Any, **options: Any) -> Any:
        rank = HERE.rank
        if rank is None:
            return real(start, end, op, *args, **options)
        if not rank.data:
            return op(*args, **options)
        return on_cuda(start, end, op, *args, **options)

    yield Patch(module, "run_dtensor_rng_op", run)
