"""Kernels that read and write memory of other devices, as programs have them."""

import triton
import triton.language as tl


@triton.jit
def gathered_sum(out, pointers, n, WORLD: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    table = pointers.to(tl.pointer_type(tl.uint64))
    total = tl.zeros((BLOCK,), tl.float32)
    for peer in tl.static_range(WORLD):
        theirs = tl.load(table + peer).to(tl.pointer_type(tl.float32))
        total += tl.load(theirs + at, mask=at < n, other=0.0)
    tl.store(out + at, total, mask=at < n)


@triton.jit
def meet(pads, slot, rank, WORLD: tl.constexpr):
    """Each program tells the programs of its number on all devices, and waits for them."""
    table = pads.to(tl.pointer_type(tl.uint64))
    for peer in tl.static_range(WORLD):
        theirs = tl.load(table + peer).to(tl.pointer_type(tl.uint32))
        while tl.atomic_cas(theirs + slot * WORLD + rank, 0, 1, sem="release", scope="sys") != 0:
            pass
    mine = tl.load(table + rank).to(tl.pointer_type(tl.uint32)) + slot * WORLD
    for peer in tl.static_range(WORLD):
        while tl.atomic_cas(mine + peer, 1, 0, sem="acquire", scope="sys") != 1:
            pass


@triton.jit
def two_shot(pointers, pads, n, rank, WORLD: tl.constexpr, BLOCK: tl.constexpr):
    table, pid = pointers.to(tl.pointer_type(tl.uint64)), tl.program_id(0)
    meet(pads, pid, rank, WORLD)
    share = tl.cdiv(n, WORLD)
    at = pid * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for peer in tl.static_range(WORLD):
        theirs = tl.load(table + peer).to(tl.pointer_type(tl.float32)) + rank * share
        total += tl.load(theirs + at, mask=at < share, other=0.0)
    for peer in tl.static_range(WORLD):
        theirs = tl.load(table + peer).to(tl.pointer_type(tl.float32)) + rank * share
        tl.store(theirs + at, total, mask=at < share)
    meet(pads, pid, rank, WORLD)


@triton.jit
def tell(data, flag, value):
    tl.store(data, value)
    tl.atomic_xchg(flag, 1, sem="release", scope="sys")


@triton.jit
def listen(out, data, flag):
    while tl.load(flag, volatile=True) != 1:
        pass
    tl.store(out, tl.load(data))


@triton.jit
def waits(pads, slot, rank, WORLD: tl.constexpr):
    meet(pads, slot, rank, WORLD)


@triton.jit
def publishes(data, flag, SEM: tl.constexpr, SCOPE: tl.constexpr):
    tl.store(data, 7)
    tl.atomic_xchg(flag, 1, sem=SEM, scope=SCOPE)


@triton.jit
def takes(out, data, flag, SEM: tl.constexpr, SCOPE: tl.constexpr):
    while tl.atomic_add(flag, 0, sem=SEM, scope=SCOPE) != 1:
        pass
    tl.store(out, tl.load(data))


@triton.jit
def first_meets_for_all(out, data, flag, start):
    """Program 0 waits for another rank, and tells the others of its launch."""
    if tl.program_id(0) == 0:
        while tl.atomic_add(flag, 0, sem="acquire", scope="sys") != 1:
            pass
        tl.atomic_xchg(start, 1, sem="release", scope="gpu")
    while tl.atomic_add(start, 0, sem="acquire", scope="gpu") != 1:
        pass
    tl.store(out + tl.program_id(0), tl.load(data))
