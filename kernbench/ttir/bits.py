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
