"""Kernels of Triton on simulated devices: what the room `triton` reaches of a rank.

A launch runs the kernel at once on the tensors that it is given, if these have numbers, and is one
command on the current stream. See ADR 0056.
"""

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Final

import torch

from kernbench.bridge.base.here import Rank, this_rank
from kernbench.bridge.cuda.cuda_devices import get_device_capability, get_device_properties
from kernbench.bridge.distributed.works import unseen
from kernbench.bridge.tensors.storages import ADDRESS, STORAGES, Held, hold, is_pinned
from kernbench.errors import KernbenchError, call_site, not_simulated, site_fact
from kernbench.isolation.replaced import WhenImported
from kernbench.kernels.grids import LANES
from kernbench.process.act import Entered, Span, act
from kernbench.symmetric.links import Move, away
from kernbench.symmetric.visits import Visit, action_of
from kernbench.triton import registering
from kernbench.triton.launches import Given, Launch, LaunchError
from kernbench.ttir.memory import Allocation, Memory

_CACHE: Final = 256 << 20
"""Bytes that Triton clears before each measured run."""


class Place:
    """Memory of the rank's device that a kernel is given.

    Args:
        held: Stands for the storage.
        tensor: The tensor that the program gives.
        number: Number of the argument.
        given: What the program gives.

    Attributes:
        held: As above, as `tensor` and `number`.
        address: Where its first element is.
    """

    def __init__(self, held: Held, tensor: torch.Tensor, number: int, given: Given) -> None:
        self.held: Final = held
        self.tensor: Final = tensor
        self.number: Final = number
        storage = tensor.untyped_storage()
        self.address: Final = ADDRESS(storage) + tensor.storage_offset() * tensor.element_size()
        shape = " x ".join(map(str, tensor.shape)) or "one element"
        dtype = str(tensor.dtype).removeprefix("torch.")
        self._label: Final = f"argument {given.name}, a tensor of {shape} {dtype}"

    @property
    def memory(self) -> Hashable:
        """Is equal for tensors of the same elements of a storage."""
        return id(self.held), self.tensor.storage_offset(), self.tensor.nbytes

    @property
    def block(self) -> Span:
        """The elements, for the guard of the memory."""
        return Span(self.held, self.held.window_of(self.tensor))

    def moves(self, rank: Rank, *, writes: bool) -> list[Move]:
        """Returns what goes over links if all elements are read, or written."""
        shared, nbytes = self.held.shared, self.tensor.nbytes
        return [] if shared is None else shared.moves(rank.sip, nbytes, writes=writes)

    def allocation(self) -> Allocation:
        """Returns the memory for the programs: all of the storage, as on a GPU."""
        return _allocation(self._label, self.held, self.tensor.untyped_storage())


def _allocation(label: str, held: Held, storage: Any) -> Allocation:
    unwritten = this_rank().hazards.unwritten.bytes_of(held)
    return Allocation(label, ADDRESS(storage), held.array_of(storage), unwritten=unwritten)


class SimulatedDevices:
    """The devices of the run, as the room `triton` asks for them; a `triton.devices.Devices`."""

    def current(self) -> int:
        """See `Devices`."""
        return this_rank().current

    def choose(self, device: int) -> None:
        """See `Devices`."""
        torch.cuda.set_device(device)

    def stream(self, device: int) -> int:
        """See `Devices`."""
        return int(torch.cuda.current_stream(device).cuda_stream)

    def capability(self, device: int) -> tuple[int, int]:
        """See `Devices`."""
        return get_device_capability(device)

    def properties(self, device: int) -> Mapping[str, int]:
        """See `Devices`."""
        known = get_device_properties(device)
        return {
            "max_shared_mem": known.shared_memory_per_block_optin,
            "max_num_regs": known.regs_per_multiprocessor,
            "warpSize": LANES,
            "multiprocessor_count": known.multi_processor_count,
        }

    def torch_device(self) -> Any:
        """See `Devices`."""
        return torch.device("cuda", this_rank().current)

    def interface(self) -> Any:
        """See `Devices`."""
        return torch.cuda

    def cache(self) -> Any:
        """See `Devices`."""
        return torch.empty(_CACHE // 4, dtype=torch.int32, device="cuda")

    def launch(self, launch: Launch) -> None:
        """See `Devices`.

        Raises:
            UnsupportedError: If it is part of a CUDA graph, and its numbers are asked for.
            KernbenchError: As `Devices.launch`.
        """
        rank, site = this_rank(), call_site()
        process = rank.process
        if rank.data and process.host.tape is not None and process.host.tape.later:
            raise not_simulated(
                f"kernel {launch.name} inside of a CUDA graph, with numbers,",
                "launch it outside of the graph, or run without numbers (--data off)",
            )
        with unseen():
            places = [_place(rank, launch.name, *one) for one in launch.pointers.items()]
            reads = [place for place in places if place.number in launch.loads]
            writes = [place for place in places if place.number in launch.stores]
            device = process.engine.devices[rank.sip]

            def compute() -> Entered:
                addresses = {place.number: place.address for place in places}
                memory = _memory(rank, launch, places)
                extents = {place.number: place.tensor.nbytes for place in places}
                first: dict[Hashable, int] = {}
                same = {each.number: first.setdefault(each.memory, each.number) for each in places}
                priced = launch.price(device.library, addresses, memory, extents, same)
                visit = None
                if memory is None:
                    moves = [move for one in reads for move in one.moves(rank, writes=False)]
                    moves += [move for one in writes for move in one.moves(rank, writes=True)]
                else:
                    visit = memory.beside = _visit(rank, launch, memory)
                    launch.run(addresses, memory, print)
                    moves = visit.moves(memory.allocations) if visit is not None else []
                price = priced(away(process.engine, moves))
                work = action_of(process.engine, device.compute, price, visit, moves)
                return Entered(work, None, {"grid": list(launch.grid)})

            try:
                act(
                    process,
                    launch.name,
                    "kernel",
                    process.current_stream(rank.sip),
                    compute,
                    reads=[place.block for place in reads],
                    writes=[place.block for place in writes],
                    site=site,
                    new_version=False,  # as with Triton's, autograd does not know about it
                )
            except KernbenchError as error:
                error.add_fact(site_fact(site, f"{launch.name} was launched at"))
                raise
            for place in writes:
                rank.hazards.unwritten.note_launch(place.held, launch.name, ran=rank.data)


def _place(rank: Rank, kernel: str, number: int, given: Given) -> Place:
    """Returns the memory that a pointer or a descriptor is of.

    Raises:
        LaunchError: If it is a tensor of the host, has no memory, or is no address of any (K3).
        UnsupportedError: If it is pinned memory of the host.
    """
    value = given.value
    while not isinstance(value, torch.Tensor) and hasattr(value, "base"):
        value = value.base  # a descriptor's, or that of a tensor that is seen as of another type
    if not isinstance(value, torch.Tensor):
        value = _behind(rank, value, f"kernel {kernel}: argument {given.name}")
    value = value.detach()
    held = STORAGES.get(value.untyped_storage()._cdata)
    if held is None and rank.ambient and rank.data:
        held = hold(rank, value.untyped_storage(), on_device=True, of=value)
    if held is None or held.sip < 0:
        raise _not_of_the_device(kernel, given.name, value)
    if rank.numbers is not None:
        rank.numbers.forget(value)
    if rank.races is not None:
        rank.races.told(held)
    return Place(held, value, number, given)


def _not_of_the_device(kernel: str, name: str, tensor: torch.Tensor) -> KernbenchError:
    """Returns the error of a kernel that is given a tensor which is no memory of the device."""
    if tensor.is_meta:
        what, told = "a tensor of the device meta", "it has a shape and no memory"
        way = "make one: torch.empty_like(tensor, device='cuda')"
    elif is_pinned(tensor):
        return not_simulated(
            f"kernel {kernel} on argument {name}, pinned memory of the host,",
            "move it first: tensor.cuda()",
        )
    else:
        what = "a tensor of the host"
        told = "Triton says: Pointer argument cannot be accessed (cpu tensor?)"
        way = "move it first: tensor.cuda()"
    return LaunchError(
        f"kernel {kernel}: argument {name} is {what}",
        [site_fact(call_site()), told],
        hint=way,
        code="K3",
    )


def _behind(rank: Rank, value: Any, label: str) -> torch.Tensor:
    """Returns the bytes from an address on: a program's own kind of tensor knows it, too."""
    address = int(value.data_ptr() if hasattr(value, "data_ptr") else value)
    for _, storage in _on_device(rank):
        offset = address - (ADDRESS(storage) if rank.data else storage._cdata)
        if 0 <= offset < (storage.nbytes() if rank.data else 1):
            found = torch.empty(0, dtype=torch.uint8, device=storage.device)
            return found.set_(storage, offset, (storage.nbytes() - offset,))
    told = "" if rank.data else "; without numbers, only that of a first element is known"
    raise LaunchError(f"{label} is no tensor's address{told}", [site_fact(call_site())], code="K3")


def _on_device(rank: Rank) -> Iterator[tuple[Held, Any]]:
    """Yields the storages of the rank's device, after what stands for each."""
    for held in STORAGES.values():
        storage = held.ref()
        if held.on_device and held.owner is rank.process and storage is not None:
            yield held, storage


def _memory(rank: Rank, launch: Launch, places: list[Place]) -> Memory | None:
    """Returns the numbers that the programs may touch; None if tensors have none."""
    if not rank.data:
        given = {one.value for one in launch.given if isinstance(one.value, int)}
        if launch.reaches_all and not rank.hazards.tables.isdisjoint(given):
            raise not_simulated(
                f"kernel {launch.name}, which loads addresses of symmetric memory, without numbers",
                "pass tensors of get_buffer(), or run with numbers (--data on)",
            )
        return None
    allocations = {place.number: place.allocation() for place in places}
    others = []
    if launch.reaches_all:
        for held, storage in _on_device(rank):
            label = "a tensor that is no argument" if held.shared is None else held.shared.label
            others.append(_allocation(label, held, storage))
    return Memory(allocations, others)


def _visit(rank: Rank, launch: Launch, memory: Memory) -> Visit | None:
    """Returns what notes that kernels of several ranks meet; None if they cannot."""
    starts = {one.start for one in memory.allocations}
    shared = {
        ADDRESS(storage): held.shared
        for held, storage in _on_device(rank)
        if held.shared is not None and ADDRESS(storage) in starts
    }
    return Visit(rank.process, shared, launch.name, launch.grid) if shared else None


def patches() -> Iterator[WhenImported]:
    """Yields what lets ranks launch kernels of Triton, if a program imports it."""
    yield from registering.patches(SimulatedDevices())
