"""Which tokens of a sequence a rank of a context-parallel group has.

A sequence is cut into `2 * cp` equal chunks; rank r has chunk r and then chunk `2 * cp - 1 - r`.
With a causal mask all ranks then have the same work: what an early chunk does not see, a late one
does. TransformerEngine and Megatron-Core cut so for every way to share attention.
"""

import kernbench.torch as torch
from kernbench.errors import OptionError, call_site, site_fact


def zigzag_chunks(cp: int, rank: int) -> tuple[int, int]:
    """Returns the two chunks of a rank, in the order in which it holds them.

    Args:
        cp: How many ranks share the sequence.
        rank: The place of one of them.

    Raises:
        OptionError: If there is no such place.
    """
    if not 0 <= rank < cp:
        raise OptionError(
            f"a group of {cp} ranks has no place {rank}",
            [site_fact(call_site()), f"expected 0..{cp - 1}"],
        )
    return rank, 2 * cp - 1 - rank


def chunk_length(length: int, cp: int) -> int:
    """Returns how many tokens a chunk has.

    Args:
        length: Tokens of the sequence; a packed one with its padding.
        cp: How many ranks share it.

    Raises:
        OptionError: If the length is not a multiple of `2 * cp`.
    """
    if length % (2 * cp):
        raise OptionError(
            f"a sequence of {length} tokens cannot be cut among {cp} ranks",
            [site_fact(call_site()), f"{length} is not divisible by 2 * cp = {2 * cp}"],
            hint=f"pad it to {-(-length // (2 * cp)) * 2 * cp} tokens",
        )
    return length // (2 * cp)


def zigzag_ranges(length: int, cp: int, rank: int) -> tuple[range, range]:
    """Returns the positions of a rank's tokens, chunk by chunk; see `zigzag_chunks`.

    Args:
        length: Tokens of the sequence.
        cp: How many ranks share it.
        rank: The place of one of them.

    Raises:
        OptionError: If the sequence cannot be cut, or there is no such place.
    """
    first, second = zigzag_chunks(cp, rank)
    chunk = chunk_length(length, cp)
    return (
        range(first * chunk, (first + 1) * chunk),
        range(second * chunk, (second + 1) * chunk),
    )


def places_by_chunk(cp: int) -> list[int]:
    """Returns at which place chunk 0, chunk 1 and so on are after an all-gather of all parts."""
    return [*range(0, 2 * cp, 2), *range(2 * cp - 1, 0, -2)]


def take_zigzag(x: torch.Tensor, dim: int, cp: int, rank: int) -> torch.Tensor:
    """Returns a rank's part of whole sequences; gradients flow back to them.

    Args:
        x: The sequences, with their tokens along `dim`.
        dim: Which dimension is cut.
        cp: How many ranks share them; with 1, `x` itself is returned.
        rank: The place of one of them.

    Returns:
        The rank's two chunks, one behind the other along `dim`.

    Raises:
        OptionError: If the sequences cannot be cut, or there is no such place.
    """
    if cp == 1 and rank == 0:
        return x
    ranges = zigzag_ranges(x.size(dim), cp, rank)
    return torch.cat([x.narrow(dim, part.start, len(part)) for part in ranges], dim)


def join_zigzag(x: torch.Tensor, dim: int, cp: int) -> torch.Tensor:
    """Returns whole sequences of the parts of all ranks; gradients flow back to them.

    Args:
        x: What ranks 0, 1, ... hold, one behind the other along `dim`, as an all-gather leaves it.
        dim: Which dimension was cut.
        cp: How many ranks share them; with 1, `x` itself is returned.

    Returns:
        The tokens along `dim` in their own order.

    Raises:
        OptionError: If the length is not a multiple of `2 * cp`.
    """
    if cp == 1:
        return x
    chunk = chunk_length(x.size(dim), cp)
    return torch.cat([x.narrow(dim, at * chunk, chunk) for at in places_by_chunk(cp)], dim)
