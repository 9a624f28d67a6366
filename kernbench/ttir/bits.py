"""Bits of whole numbers."""

import numpy as np

from kernbench.ttir.arithmetic import Array, unsigned


def leading_zeros(a: Array) -> Array:
    """Returns how many bits above the highest set one are 0; the width where none is set."""
    left = a if a.dtype.kind == "u" else unsigned(a)
    count = np.full(a.shape, 8 * a.dtype.itemsize, np.int32)
    while left.any():
        count -= left != 0
        left = left >> left.dtype.type(1)
    return count


def reversed_bits(a: Array) -> Array:
    """Returns whole numbers with their bits in the opposite order."""
    octets = np.ascontiguousarray(a).view(np.uint8).reshape(*a.shape, a.dtype.itemsize)
    turned = np.packbits(np.unpackbits(octets, axis=-1)[..., ::-1], axis=-1)
    return np.ascontiguousarray(turned).view(a.dtype).reshape(a.shape)


def permuted_octets(low: Array, high: Array, selector: Array) -> Array:
    """Returns words of octets chosen from two words, as `prmt` does.

    Args:
        low: Words of 32 bits, whose octets have the numbers 0 to 3.
        high: Words whose octets have the numbers 4 to 7.
        selector: Four bits for each octet of the result, the lowest first: its number, and in the
            highest of the four whether only the sign of it is taken, eight times.
    """
    both = high.astype(np.uint64) << np.uint64(32) | low
    found = np.zeros(np.broadcast(low, high, selector).shape, np.uint32)
    for place in range(4):
        chosen = selector.astype(np.uint64) >> np.uint64(4 * place) & np.uint64(15)
        octet = both >> (chosen & np.uint64(7)) * np.uint64(8) & np.uint64(255)
        sign = np.where(octet >> np.uint64(7) == 1, np.uint64(255), np.uint64(0))
        octet = np.where(chosen >> np.uint64(3) == 1, sign, octet)
        found |= (octet << np.uint64(8 * place)).astype(np.uint32)
    return found


def looked_up(a: Array, b: Array, c: Array, table: int) -> Array:
    """Returns a function of three bits for each bit, as `lop3` does.

    Args:
        table: Bit `4 a + 2 b + c` of it is what becomes of the bits a, b and c.
    """
    found: Array = np.zeros(np.broadcast(a, b, c).shape, a.dtype)
    for row in range(8):
        if table >> row & 1:
            found |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return found
