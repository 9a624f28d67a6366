"""Kernels of Triton on simulated devices: what the room `triton` reaches of a rank.

A launch runs the kernel at once on the tensors that it is given, if these have numbers, and is one
command on the current stream. See ADR 0056.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import torch

from kernbench.bridge.base.here import Rank, this_rank
from kernbench.bridge.cuda.cuda_devices import get_device_capability, get_device_properties
from kernbench.bridge.distributed.works import unseen
from kernbench.bridge.tensors.storages import (
    ADDRESS,
    STORAGES,
    Held,
    bytes_on,
    held_by,
    hold,
    is_pinned,
)
from kernbench.errors import CallSite, KernbenchError, call_site, not_simulated, site_fact
from kernbench.isolation.replaced import WhenImported
from kernbench.kernels.grids import LANES
from kernbench.process.act import Span
from kernbench.symmetric.visits import Visit
from kernbench.triton import registering
from kernbench.triton.issuing import Place, check_repeats, issue, told
from kernbench.triton.launches import Given, Launch, LaunchError
from kernbench.ttir.memory import Allocation, Memory

_CACHE: Final = 256 << 20
"""Bytes that Triton clears before each measured run."""


def _address(tensor: torch.Tensor) -> int:
    return int(ADDRESS(tensor.untyped_storage()) + tensor.storage_offset() * tensor.element_size())


def _arguments(launch: Launch, tensors: Iterable[torch.Tensor]) -> dict[int, Allocation]:
    """Returns the memory of a launch's arguments: all of each storage, as on a GPU.

    Args:
        tensors: What its pointers are of, in their order.
    """
    found = {}
    for (number, given), tensor in zip(launch.pointers.items(), tensors, strict=True):
        label = given.label(tensor.shape, str(tensor.dtype).removeprefix("torch."))
        found[number] = _allocation(label, tensor.untyped_storage())
    return found


def _allocation(label: str, storage: Any) -> Allocation:
    rank, held = this_rank(), STORAGES.get(storage._cdata)
    array = bytes_on(storage) if held is None else held.array_of(storage)
    known = held is not None and rank.capture is None  # nothing is read in a capture
    unwritten = rank.hazards.unwritten.bytes_of(held) if known else None
    return Allocation(label, ADDRESS(storage), array, unwritten=unwritten)


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
            UnsupportedError: If it is part of a CUDA graph, and its numbers cannot be made again.
            KernbenchError: As `Devices.launch`.
        """
        rank, site = this_rank(), call_site()
        with unseen():
            tensors = [_pointed(rank, launch.name, one) for one in launch.pointers.values()]
            places = [*map(_place, launch.pointers, tensors)]
            memory, visit = partial(_memory, rank, launch, tensors), partial(_visit, rank, launch)
            begin = partial(issue, rank.process, rank.sip, launch, places, memory, visit)
            if rank.capture is not None and rank.data:
                check_repeats(launch, places)
                again, written = partial(_again, launch, site), [*_stored(launch, tensors)]
                rank.capture.launched(partial(begin, _unsaid, site), again, tensors, written)
                return
            begin(print, site)
            _note_stores(rank, launch, tensors)


def _stored(launch: Launch, tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yields the tensors that a launch may write, of those that its pointers are of."""
    for number, tensor in zip(launch.pointers, tensors, strict=True):
        if number in launch.stores:
            yield tensor


def _note_stores(rank: Rank, launch: Launch, tensors: Iterable[torch.Tensor]) -> None:
    """Notes what a launch has written; what nobody has any more has no memory to note it of."""
    for tensor in _stored(launch, tensors):
        held = held_by(tensor)
        if held is not None:
            rank.hazards.unwritten.note_launch(held, launch.name, ran=rank.data)


def _unsaid(_: str) -> None:
    """Takes what a kernel prints in a capture, which runs nothing."""


def _again(launch: Launch, site: CallSite | None, *tensors: torch.Tensor) -> None:
    """Runs a kernel at a replay of its graph.

    Args:
        site: Where the program launched it.
        tensors: What its pointers are of, in their order; storages that are gone have others.
    """
    rank = this_rank()
    with told(launch, site):
        addresses = dict(zip(launch.pointers, map(_address, tensors), strict=True))
        memory = _memory(rank, launch, tensors)
        assert memory is not None  # only with numbers is this called
        launch.run(addresses, memory, print)
    _note_stores(rank, launch, tensors)


def _place(number: int, tensor: torch.Tensor) -> Place:
    """Returns the memory of a tensor of the device, which an argument points to."""
    held, nbytes = STORAGES[tensor.untyped_storage()._cdata], tensor.nbytes
    elements = id(held), tensor.storage_offset(), nbytes
    block = Span(held, held.window_of(tensor))
    return Place(number, _address(tensor), nbytes, elements, block, held.shared)


def _pointed(rank: Rank, kernel: str, given: Given) -> torch.Tensor:
    """Returns the tensor of the device that a pointer or a descriptor is of.

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
    return value


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


def _memory(rank: Rank, launch: Launch, tensors: Iterable[torch.Tensor]) -> Memory | None:
    """Returns the numbers that the programs may touch; None if tensors have none."""
    if not rank.data:
        given = {one.value for one in launch.given if isinstance(one.value, int)}
        if launch.reaches_all and not rank.hazards.tables.isdisjoint(given):
            raise not_simulated(
                f"kernel {launch.name}, which loads addresses of symmetric memory, without numbers",
                "pass tensors of get_buffer(), or run with numbers (--data on)",
            )
        return None
    others = []
    if launch.reaches_all:
        for held, storage in _on_device(rank):
            label = "a tensor that is no argument" if held.shared is None else held.shared.label
            others.append(_allocation(label, storage))
    return Memory(_arguments(launch, tensors), others)


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
