"""Flags of nccl-tests: those that mean something on a simulated machine; others are refused."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NoReturn

from benches.nccl.operations import OPERATIONS
from kernbench.config.near import did_you_mean
from kernbench.errors import UsageError

# nccl-tests' name: torch's name
TYPES: Final = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "int32": "int32",
    "int64": "int64",
    "int8": "int8",
    "uint8": "uint8",
}
FLOATS: Final = ("float", "double", "half", "bfloat16")
REDUCTIONS: Final = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX", "avg": "AVG"}
AVERAGES: Final = ("of rank 0", "mean of ranks", "least of ranks", "greatest of ranks")
"""What `-a` makes of the times that the ranks measured, by its number."""

_SUFFIXES: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_MEAN: Final = 1

# src/common.cu of nccl-tests. A flag that changed nothing would make a promise.
REFUSED: Final = (
    (("-t", "--nthreads"), "a rank is a task of its own; -g says how many there are"),
    (("-m", "--agg_iters"), "operations are issued one by one"),
    (("-N", "--run_cycles"), "a simulation repeats itself; -n counts iterations"),
    (("-p", "--parallel_init"), "initialisation takes no simulated time"),
    (("-z", "--blocking"), "hosts wait once, after the last iteration"),
    (("-y", "--stream_null"), "operations are on the current stream"),
    (("-T", "--timeout"), "a hang is found when it happens"),
    (("-G", "--cudagraph"), "graphs are not simulated"),
    (("-C", "--report_cputime"), "times are those of the stream"),
    (("-S", "--report_timestamps"), "all times are simulated"),
    (("-J", "-F", "--output_file"), "kernbench run --json FILE writes the results"),
    (("-R", "--local_register"), "registration of buffers is not simulated"),
    (("-x", "--cta_policy"), "algorithms and their resources are in ccl.yaml"),
    (("-D", "--device_implementation"), "algorithms and their resources are in ccl.yaml"),
    (("-V", "--device_cta_count"), "algorithms and their resources are in ccl.yaml"),
    (("-M", "--memory_report"), "there is no report of memory"),
)


@dataclass(frozen=True)
class Flags:
    """What follows `--` on the command line.

    Attributes:
        operation: Its name in `OPERATIONS`.
        sizes: Bytes asked for, row by row.
        dtype: nccl-tests' name of the type.
        redop: nccl-tests' name of the reduction; `none` if the operation does not reduce.
        root: Root rank; -1 if the operation has none.
        ranks: How many take part; None for all that the machine can hold.
        iterations: Counted ones.
        warmup: Iterations before them.
        check: Whether values are checked.
        average: Index into `AVERAGES`.
    """

    operation: str
    sizes: tuple[int, ...]
    dtype: str
    redop: str
    root: int
    ranks: int | None
    iterations: int
    warmup: int
    check: bool
    average: int


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}", [self.format_usage().strip()])


class _Refusal(argparse.Action):
    """A flag of nccl-tests that has no meaning here."""

    def __init__(
        self, option_strings: Sequence[str], dest: str, reason: str, **given: object
    ) -> None:
        del given
        super().__init__(
            option_strings, dest, nargs="?", default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )
        self.reason = reason

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        parser.error(f"{option_string} of nccl-tests has no meaning here: {self.reason}")


def _operation(text: str) -> str:
    if text in REDUCTIONS:
        raise argparse.ArgumentTypeError(
            f"{text} is a reduction, which -o takes; expected one of {', '.join(OPERATIONS)}"
        )
    if text not in OPERATIONS:
        hint = did_you_mean(text, OPERATIONS) or f"expected one of {', '.join(OPERATIONS)}"
        raise argparse.ArgumentTypeError(f"no operation {text!r}; {hint}")
    return text


def _size(text: str) -> int:
    suffix = text[-1:].upper() if text[-1:].isalpha() else ""
    number = text[: len(text) - len(suffix)]
    if suffix not in _SUFFIXES or not number.isdigit() or int(number) * _SUFFIXES[suffix] > 1 << 40:
        raise argparse.ArgumentTypeError(f"expected a size such as 16M, got {text!r}")
    return int(number) * _SUFFIXES[suffix]


def _positive(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) <= 10**6:
        raise argparse.ArgumentTypeError(f"expected a number from 1 to 1000000, got {text!r}")
    return int(text)


def _natural(text: str) -> int:
    return 0 if text == "0" else _positive(text)


def _sizes(begin: int, end: int, factor: int, step: int) -> Iterator[int]:
    size = begin
    while size <= end:
        yield size
        size = size + step if step else size * factor


# Kept: every rank parses, and making a parser takes longer than to measure a small size.
@cache
def _parser(prog: str, operation: str | None) -> _Parser:
    parser = _Parser(prog=prog, allow_abbrev=False, description="Flags of nccl-tests.")
    add: Any = parser.add_argument
    if operation is None:
        add("--op", type=_operation, required=True, metavar="OPERATION", help=", ".join(OPERATIONS))
    add("-b", "--minbytes", type=_size, default="1K", metavar="SIZE", help="smallest size: 1K")
    add("-e", "--maxbytes", type=_size, default="16M", metavar="SIZE", help="largest size: 16M")
    add("-i", "--stepbytes", type=_size, metavar="SIZE", help="step between sizes")
    add("-f", "--stepfactor", type=_positive, metavar="N", help="or factor between them: 2")
    add("-d", "--datatype", choices=TYPES, default="float", help="float")
    # nccl-tests has a program for each operation, and can call the reduction `--op`.
    reduction = "--op" if operation is not None else "--redop"
    add("-o", reduction, dest="redop", choices=REDUCTIONS, help="reduction: sum")
    add("-r", "--root", type=_natural, metavar="RANK", help="of operations that have one: 0")
    add("-g", "--ngpus", type=_positive, metavar="N", help="ranks: all of the machine")
    add("-n", "--iters", type=_positive, default=1, metavar="N", help="counted iterations: 1")
    add("-w", "--warmup_iters", type=_natural, default=1, metavar="N", help="those before: 1")
    add("-c", "--check", type=int, choices=(0, 1), default=1, help="whether values are checked")
    averages = ", ".join(f"{number} {name}" for number, name in enumerate(AVERAGES))
    add("-a", "--average", type=int, choices=range(len(AVERAGES)), default=_MEAN, help=averages)
    for names, reason in REFUSED:
        add(*names, action=_Refusal, reason=reason)
    return parser


def parse(argv: Sequence[str], prog: str, operation: str | None = None) -> Flags:
    """Returns the flags.

    Args:
        argv: What follows `--`.
        prog: Name of the bench, for messages.
        operation: The one that the bench measures; None if a flag `--op` says which.

    Raises:
        UsageError: For flags that nccl-tests would not take either, and for those of its flags that
            would change nothing.
    """
    parser = _parser(prog, operation)
    given = parser.parse_args(argv)
    name = given.op if operation is None else operation
    spec = OPERATIONS[name]
    if given.stepbytes is not None and given.stepfactor is not None:
        parser.error("-i and -f: expected one of them")
    factor, step = given.stepfactor or 2, given.stepbytes or 0
    if factor < 2 and given.minbytes != given.maxbytes:
        parser.error("-f: expected a factor of 2 or more")
    if given.stepbytes == 0:
        parser.error("-i: expected a step of 1 or more")
    if not 0 < given.minbytes <= given.maxbytes:
        parser.error("-b and -e: expected 0 < b <= e")
    if given.redop is not None and not spec.reduces:
        parser.error(f"-o: {name} reduces nothing")
    if given.root is not None and not spec.rooted:
        parser.error(f"-r: {name} has no root")
    if given.redop == "avg" and given.datatype not in FLOATS:
        parser.error(f"-o avg: of floats only, as in torch; -d {given.datatype} is none")
    return Flags(
        name,
        tuple(_sizes(given.minbytes, given.maxbytes, max(factor, 2), step)),
        given.datatype,
        given.redop or ("sum" if spec.reduces else "none"),
        (given.root or 0) if spec.rooted else -1,
        given.ngpus,
        given.iters,
        given.warmup_iters,
        bool(given.check),
        given.average,
    )
