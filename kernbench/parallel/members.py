"""Who is in a group, and equal parts for its members."""

from typing import TypeAlias

import kernbench.torch as torch
import kernbench.torch.distributed as dist
from kernbench.errors import KernbenchError, OptionError, call_site, site_fact

Group: TypeAlias = dist.ProcessGroup


class ParallelAssertionError(KernbenchError, AssertionError):
    """Sizes or types that do not fit the ranks that share them."""


class ParallelError(KernbenchError, RuntimeError):
    """A layer was asked for what it cannot do."""


def size_of(group: Group) -> int:
    """Returns how many ranks a group has.

    Raises:
        GroupError: If the calling rank is not one of them (C8), or it is destroyed (C18).
    """
    size = dist.get_world_size(group)
    return size if size > 0 else len(dist.get_process_group_ranks(group))  # which refuses it


def refuse_assertion(text: str, *facts: str, hint: str = "") -> ParallelAssertionError:
    """Returns the error of a failed assertion, with the user's line.

    Args:
        text: One sentence: what is refused.
        *facts: Further lines of the report, below the user's line.
    """
    return ParallelAssertionError(text, [site_fact(call_site()), *facts], hint=hint)


def refuse(text: str, *facts: str, hint: str = "") -> ParallelError:
    """Returns the error of a refused request, with the user's line.

    Args:
        text: One sentence: what is refused.
        *facts: Further lines of the report, below the user's line.
    """
    return ParallelError(text, [site_fact(call_site()), *facts], hint=hint)


def refuse_option(text: str, *facts: str, hint: str = "") -> OptionError:
    """Returns the error of a refused argument, a `ValueError`, with the user's line.

    Args:
        text: One sentence: what is refused.
        *facts: Further lines of the report, below the user's line.
    """
    return OptionError(text, [site_fact(call_site()), *facts], hint=hint)


# Division


def ensure_divisibility(numerator: int, denominator: int) -> None:
    """Checks that a number is a multiple of another one.

    Raises:
        ParallelAssertionError: If it is not.
    """
    if numerator % denominator:
        raise refuse_assertion(f"{numerator} is not divisible by {denominator}")


def divide(numerator: int, denominator: int) -> int:
    """Returns the quotient of two numbers that divide without a rest.

    Raises:
        ParallelAssertionError: If they do not.
    """
    ensure_divisibility(numerator, denominator)
    return numerator // denominator


def split_tensor_along_last_dim(
    tensor: torch.Tensor, num_partitions: int, contiguous_split_chunks: bool = False
) -> tuple[torch.Tensor, ...]:
    """Returns equal parts of the last dimension: views, or contiguous copies.

    Args:
        tensor: `[..., n]`.
        num_partitions: How many parts.
        contiguous_split_chunks: Whether to copy those that are not contiguous.

    Raises:
        ParallelAssertionError: If they cannot be equal.
    """
    width = divide(tensor.shape[-1], num_partitions)
    parts = tensor.split(width, -1)
    return tuple([part.contiguous() for part in parts] if contiguous_split_chunks else parts)
