"""The kernels of Triton that the table `symmetric` measures: they reach memory of other devices."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, N803 - Triton types the arguments, and their names are the language's
import triton
import triton.language as tl


@triton.jit
def move(into, given, n, BLOCK: tl.constexpr):
    """Copies elements, blocks dealt out to the programs in turn."""
    for first in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        tl.store(into + at, tl.load(given + at, mask=at < n), mask=at < n)


@triton.jit
def barrier(pads, rank, WORLD: tl.constexpr):
    """Waits for the programs of the same number of all ranks."""
    table, slot = pads.to(tl.pointer_type(tl.uint64)), tl.program_id(0) * WORLD
    for peer in tl.static_range(WORLD):
        theirs = tl.load(table + peer).to(tl.pointer_type(tl.uint32)) + slot + rank
        while tl.atomic_cas(theirs, 0, 1, sem="release", scope="sys") != 0:
            pass
    mine = tl.load(table + rank).to(tl.pointer_type(tl.uint32)) + slot
    for peer in tl.static_range(WORLD):
        while tl.atomic_cas(mine + peer, 1, 0, sem="acquire", scope="sys") != 1:
            pass


@triton.jit
def total(blocks, at, inside, WORLD: tl.constexpr, BLOCK: tl.constexpr):
    """Adds up what all ranks have."""
    table, found = blocks.to(tl.pointer_type(tl.uint64)), tl.zeros((BLOCK,), tl.float32)
    for peer in tl.static_range(WORLD):
        theirs = tl.load(table + peer).to(tl.pointer_type(tl.bfloat16))
        found += tl.load(theirs + at, mask=inside, other=0.0)
    return found.to(tl.bfloat16)


@triton.jit
def one_shot(out, blocks, pads, rank, n, WORLD: tl.constexpr, BLOCK: tl.constexpr):
    """Each rank adds up all."""
    barrier(pads, rank, WORLD)
    for first in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        tl.store(out + at, total(blocks, at, at < n, WORLD, BLOCK), mask=at < n)
    barrier(pads, rank, WORLD)


@triton.jit
def two_shot(blocks, pads, rank, n, WORLD: tl.constexpr, BLOCK: tl.constexpr):
    """Each rank adds up a part, and gives it to all."""
    table, share = blocks.to(tl.pointer_type(tl.uint64)), n // WORLD
    barrier(pads, rank, WORLD)
    for first in range(tl.program_id(0) * BLOCK, share, tl.num_programs(0) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        found = total(blocks, rank * share + at, at < share, WORLD, BLOCK)
        for peer in tl.static_range(WORLD):
            theirs = tl.load(table + peer).to(tl.pointer_type(tl.bfloat16)) + rank * share
            tl.store(theirs + at, found, mask=at < share)
    barrier(pads, rank, WORLD)


@triton.jit
def meet(pads, rank, WORLD: tl.constexpr):
    """A barrier, and nothing else."""
    barrier(pads, rank, WORLD)
