"""Flags of the benches that run models: what they take, and one line for what they do not."""

import argparse
from collections.abc import Sequence
from math import inf, nan
from typing import Final, NoReturn

from kernbench.errors import KernbenchError, UsageError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.model_memory import Build, ModelMemory

DTYPES: Final = ("float64", "float32", "float16", "bfloat16")
KERNELS: Final = ("tile", "library")
"""Who multiplies matrices; see `kernbench.tp.config.GemmKernel`."""

COMM_TYPES: Final = ("p2p", "all_gather", "a2a", "a2a+p2p")
"""How ranks that share sequences exchange them; see `kernbench.cp`."""


class Parser(argparse.ArgumentParser):
    """A parser that raises `UsageError` with one line."""

    def error(self, message: str) -> NoReturn:
        """Raises `UsageError`."""
        raise UsageError(f"{self.prog}: {message}")


def positive(text: str) -> int:
    """Returns a whole number above 0."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number of 1 or more, got {text!r}")
    return int(text)


def positive_number(text: str) -> float:
    """Returns a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = nan
    if not 0 < number < inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return number


def parser(prog: str, dtypes: Sequence[str] = DTYPES) -> Parser:
    """Returns a parser with the flags that these benches have in common."""
    made = Parser(prog=prog, allow_abbrev=False)
    made.add_argument("--dtype", choices=dtypes, default="float32", help="of parameters: float32")
    made.add_argument(
        "--kernel", choices=KERNELS, default="library", help="who multiplies matrices: library"
    )
    made.add_argument(
        "--sequence-parallel", action="store_true", help="cuts activations between layers, too"
    )
    return made


def require_multiple(prog: str, name: str, value: int, of: str, divisor: int) -> None:
    """Refuses a flag whose value something else does not divide.

    Raises:
        UsageError: If it does not.
    """
    if value % divisor:
        raise UsageError(f"{prog}: {name} {value}: expected a multiple of {of} {divisor}")


def check_heads_exchanged(
    prog: str, comm_type: str, cp: int, a2a_ranks: int | None, kv_heads: int, tp: int
) -> None:
    """Refuses heads that the ranks which share a sequence cannot exchange.

    Args:
        prog: The bench.
        comm_type: One of `COMM_TYPES`.
        cp: Ranks that share a sequence.
        a2a_ranks: Those of them that exchange heads in `a2a+p2p`; None for other types.
        kv_heads: Heads of keys.
        tp: Ranks that share them.

    Raises:
        UsageError: If they cannot.
    """
    if comm_type == "a2a":
        require_multiple(prog, "--kv-heads", kv_heads, "--tp x --cp", tp * cp)
    if a2a_ranks is not None:
        require_multiple(prog, "--cp", cp, "--a2a-ranks", a2a_ranks)
        require_multiple(prog, "--kv-heads", kv_heads, "--tp x --a2a-ranks", tp * a2a_ranks)


def require_fitting(prog: str, ctx: RuntimeContext, build: Build, ranks: int) -> list[ModelMemory]:
    """Refuses flags with which the model does not fit the devices; see `ctx.check_model_fits`.

    Raises:
        UsageError: If it does not (M7).
    """
    try:
        return ctx.check_model_fits(build, ranks)
    except KernbenchError as error:
        if error.code != "M7":
            raise
        raise UsageError(
            f"{prog}: {error.summary}", error.facts, hint=error.hint, code=error.code
        ) from None


def require_ranks(prog: str, ranks: int, flags: str, machine: str, sips: int) -> None:
    """Refuses more ranks than the machine can hold.

    Raises:
        UsageError: If there are more.
    """
    if ranks > sips:
        raise UsageError(
            f"{prog}: {flags}: expected at most {sips} ranks, one a SIP of {machine} "
            f"(--topology, or --set system.sips.count={ranks})"
        )


def require_every_rank(prog: str, ctx: RuntimeContext) -> None:
    """Refuses a run in which ranks stand for others: the bench shows what each has measured.

    Raises:
        UsageError: If it is one.
    """
    if ctx.spec.collapse != "off":
        raise UsageError(
            f"{prog}: --collapse {ctx.spec.collapse}: it shows what every rank has measured",
            hint="leave it out; `kernbench run cluster` is the bench for it",
        )
