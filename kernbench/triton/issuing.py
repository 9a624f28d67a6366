"""Issues a launch as one command of a rank: what it touches, what it computes, and its price."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from kernbench.errors import CallSite, KernbenchError, not_simulated, site_fact
from kernbench.process.act import Entered, Span, act
from kernbench.process.process import Process
from kernbench.symmetric.links import Move, away
from kernbench.symmetric.regions import Block
from kernbench.symmetric.visits import Visit, action_of
from kernbench.triton.launches import Launch
from kernbench.ttir.memory import Memory


class Place(NamedTuple):
    """Memory of the rank's device that a kernel is given.

    Attributes:
        number: Number of the argument.
        address: Where its first element is.
        nbytes: Bytes of its elements.
        elements: Is equal for tensors of the same elements of a storage.
        block: The elements, for the guard of the memory.
        shared: What it is to other devices, if it is symmetric memory.
    """

    number: int
    address: int
    nbytes: int
    elements: Hashable
    block: Span
    shared: Block | None


def issue(
    process: Process,
    sip: int,
    launch: Launch,
    places: Sequence[Place],
    memory: Callable[[], Memory | None],
    visit: Callable[[Memory], Visit | None],
    say: Callable[[str], None],
    site: CallSite | None,
) -> None:
    """Runs a kernel at once, if there are numbers, and issues it on the current stream.

    Args:
        process: The rank.
        sip: Its current device.
        places: What its pointers are of.
        memory: Returns what its programs may touch; None without numbers.
        visit: Returns what notes that kernels of several ranks meet; None if they cannot.
        say: Takes what the programs print.
        site: Where the program launched it.

    Raises:
        KernbenchError: If a block must not be touched, or a program does what it must not.
    """
    reads = [place for place in places if place.number in launch.loads]
    writes = [place for place in places if place.number in launch.stores]
    engine = process.engine
    device = engine.devices[sip]

    def compute() -> Entered:
        addresses = {place.number: place.address for place in places}
        there = memory()
        extents = {place.number: place.nbytes for place in places}
        first: dict[Hashable, int] = {}
        same = {each.number: first.setdefault(each.elements, each.number) for each in places}
        priced = launch.price(device.library, addresses, there, extents, same)
        met = None
        if there is None:
            moves = [*_moves(sip, reads, writes=False), *_moves(sip, writes, writes=True)]
        else:
            met = there.beside = visit(there)
            launch.run(addresses, there, say)
            moves = [] if met is None else met.moves(there.allocations)
        price = priced(away(engine, moves))
        work = action_of(engine, device.compute, price, met, moves)
        return Entered(work, None, {"grid": list(launch.grid)})

    with told(launch, site):
        act(
            process,
            launch.name,
            "kernel",
            process.current_stream(sip),
            compute,
            reads=[place.block for place in reads],
            writes=[place.block for place in writes],
            site=site,
            new_version=False,  # as with Triton's, autograd does not know about it
        )


def _moves(sip: int, places: Sequence[Place], *, writes: bool) -> Iterator[Move]:
    """Yields what goes over links if all elements are read, or written."""
    for place in places:
        if place.shared is not None:
            yield from place.shared.moves(sip, place.nbytes, writes=writes)


@contextmanager
def told(launch: Launch, site: CallSite | None) -> Iterator[None]:
    """Adds to errors where the program launched a kernel."""
    try:
        yield
    except KernbenchError as error:
        error.add_fact(site_fact(site, f"{launch.name} was launched at"))
        raise


def check_repeats(launch: Launch, places: Iterable[Place]) -> None:
    """Refuses a kernel of a CUDA graph, with numbers, of which no capture knows what it stores.

    Raises:
        UnsupportedError: If it may store at addresses that it loads, or is given symmetric memory.
    """
    shared = any(place.shared for place in places)
    if shared or launch.stores_anywhere:
        what = "touches symmetric memory" if shared else "stores at addresses that it loads"
        raise not_simulated(
            f"kernel {launch.name}, which {what}, inside of a CUDA graph, with numbers,",
            "launch it outside of the graph, or run without numbers (--data off)",
        )
