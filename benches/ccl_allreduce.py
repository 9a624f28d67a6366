"""All-reduce over all SIPs of the machine, in nccl-tests' manner.

Flags, after `--`, are those of nccl-tests: `-b` and `-e` smallest and largest size, `-f` factor
between sizes, `-d` type, `-o` operation, `-n` counted and `-w` warm-up iterations, `-c` whether
values are checked.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np

from kernbench.errors import UsageError
from kernbench.report import (
    Header,
    Measurement,
    all_reduce_busbw_factor,
    as_json,
    footer_lines,
    header_lines,
    row_line,
    timing,
    total_wrong,
)
from kernbench.runtime_api.context import RuntimeContext

# nccl-tests' name: torch's name
TYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "int32": "int32",
    "int64": "int64",
    "int8": "int8",
    "uint8": "uint8",
}
OPERATIONS = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX", "avg": "AVG"}
# Distance from 1 to the next number, by bytes; for 2 that of bfloat16, the coarser one.
EPSILON = {2: 2.0**-7, 4: 2.0**-23, 8: 2.0**-52}
SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Flags:
    """What follows `--` on the command line.

    Attributes:
        sizes: Bytes of each row.
        dtype: nccl-tests' name of the type.
        op: nccl-tests' name of the reduction.
        iterations: Counted ones.
        warmup: Iterations before them.
        check: Whether values are checked.
    """

    sizes: tuple[int, ...]
    dtype: str
    op: str
    iterations: int
    warmup: int
    check: bool


@dataclass(frozen=True)
class Result:
    """What one rank measured for one size: simulated picoseconds, and wrong elements or None."""

    count: int
    out_of_place_ps: int
    out_of_place_wrong: int | None
    in_place_ps: int
    in_place_wrong: int | None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"ccl_allreduce: {message}", [self.format_usage().strip()])


def _size(text: str) -> int:
    suffix = text[-1:].upper() if text[-1:].isalpha() else ""
    number = text[: len(text) - len(suffix)]
    if suffix not in SUFFIXES or not number.isdigit() or int(number) * SUFFIXES[suffix] > 1 << 40:
        raise argparse.ArgumentTypeError(f"expected a size such as 16M, got {text!r}")
    return int(number) * SUFFIXES[suffix]


def _positive(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) <= 10**6:
        raise argparse.ArgumentTypeError(f"expected a number from 1 to 1000000, got {text!r}")
    return int(text)


def _natural(text: str) -> int:
    return 0 if text == "0" else _positive(text)


def _sizes(begin: int, end: int, factor: int) -> Iterator[int]:
    size = begin
    while size <= end:
        yield size
        size *= factor


def parse(argv: list[str]) -> Flags:
    """Returns the flags.

    Raises:
        UsageError: For flags that nccl-tests would not take either.
    """
    parser = _Parser(prog="ccl_allreduce", add_help=False, allow_abbrev=False)
    parser.add_argument("-b", "--minbytes", type=_size, default=_size("1K"))
    parser.add_argument("-e", "--maxbytes", type=_size, default=_size("16M"))
    parser.add_argument("-f", "--stepfactor", type=_positive, default=2)
    parser.add_argument("-d", "--datatype", choices=TYPES, default="float")
    parser.add_argument("-o", "--op", choices=OPERATIONS, default="sum")
    parser.add_argument("-n", "--iters", type=_positive, default=1)
    parser.add_argument("-w", "--warmup_iters", type=_natural, default=1)
    parser.add_argument("-c", "--check", type=int, choices=(0, 1), default=1)
    given = parser.parse_args(argv)
    if given.stepfactor < 2 and given.minbytes != given.maxbytes:
        parser.error("-f: expected a factor of 2 or more")
    if not 0 < given.minbytes <= given.maxbytes:
        parser.error("-b and -e: expected 0 < b <= e")
    sizes = tuple(_sizes(given.minbytes, given.maxbytes, max(given.stepfactor, 2)))
    return Flags(
        sizes, given.datatype, given.op, given.iters, given.warmup_iters, bool(given.check)
    )


def contribution(rank: int, count: int, world_size: int, dtype: Any) -> np.ndarray[Any, Any]:
    """Returns what a rank puts in: small whole numbers, so that sums are exact in any order."""
    top = max(2, 128 // world_size)
    pattern = np.random.default_rng([rank, world_size]).integers(0, top, 4093 + 2 * rank)
    return np.resize(pattern.astype(dtype), count)


@lru_cache(maxsize=1)
def expectation(op: str, count: int, world_size: int, dtype: Any) -> np.ndarray[Any, Any]:
    """Returns the right result, from the contributions alone."""
    combine = {"prod": np.multiply, "min": np.minimum, "max": np.maximum}.get(op, np.add)
    wide = np.float64 if np.dtype(dtype).kind not in "iu" else dtype
    total = contribution(0, count, world_size, dtype).astype(wide)
    for rank in range(1, world_size):
        combine(total, contribution(rank, count, world_size, dtype), out=total)
    if op == "avg":
        total = total / world_size
    return total.astype(dtype, copy=False)


def _wrong(tensor: Any, op: str, count: int, world_size: int, dtype: Any) -> int:
    got = tensor.numpy()
    expected = expectation(op, count, world_size, dtype)
    (bad,) = np.nonzero(got != expected)
    if (
        not len(bad)
        or np.dtype(dtype).kind in "iu"
        or (op not in {"prod", "avg"} and world_size <= 64)
    ):
        # Whole numbers this small are exact in every type.
        return len(bad)
    values, wanted = got[bad].astype(np.float64), expected[bad].astype(np.float64)
    slack = world_size * EPSILON[np.dtype(dtype).itemsize] * np.abs(wanted)
    # Written so that nan is wrong.
    return int((~(np.abs(values - wanted) <= slack)).sum())


def _time(torch: Any, flags: Flags, call: Any) -> int:
    """Returns the simulated picoseconds of the counted iterations."""
    for _ in range(flags.warmup):
        call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.distributed.barrier()
    start.record()
    for _ in range(flags.iterations):
        call()
    end.record()
    end.synchronize()
    elapsed_ms: float = start.elapsed_time(end)
    return round(elapsed_ms * 10**9)


def worker(rank: int, world_size: int, torch: Any) -> list[Result]:
    """Measures every size on one rank."""
    flags = parse(torch.argv)
    dist = torch.distributed
    dist.init_process_group("nccl")
    dtype = getattr(torch, TYPES[flags.dtype])
    op = getattr(dist.ReduceOp, OPERATIONS[flags.op])
    with_data = torch.engine.enable_data
    check = flags.check and with_data
    results = []
    sizes = torch.progress(flags.sizes, "all_reduce") if rank == 0 else flags.sizes
    for size in sizes:
        count = size // dtype.itemsize
        if with_data:
            values = torch.from_numpy(contribution(rank, count, world_size, dtype.numpy))
        else:
            values = torch.empty(count, dtype=dtype, device="cpu")
        source = values.cuda()
        outputs: list[Any] = []

        def out_of_place(source: Any = source, outputs: list[Any] = outputs) -> None:
            outputs[:] = [dist._functional_collectives.all_reduce(source, op)]

        out_ps = _time(torch, flags, out_of_place)
        out_wrong = _wrong(outputs[0], flags.op, count, world_size, dtype.numpy) if check else None
        in_ps = _time(torch, flags, lambda source=source: dist.all_reduce(source, op))
        in_wrong = None
        if check:
            source.copy_(values)
            dist.all_reduce(source, op)
            in_wrong = _wrong(source, flags.op, count, world_size, dtype.numpy)
        results.append(Result(count, out_ps, out_wrong, in_ps, in_wrong))
    dist.destroy_process_group()
    return results


def _measurement(flags: Flags, results: list[Result], size: int) -> Measurement:
    """Puts the ranks' results for one size together: mean times, as nccl-tests does by default."""
    ranks, count = len(results), results[0].count
    factor = all_reduce_busbw_factor(ranks)
    nbytes = count * np.dtype(TYPES[flags.dtype]).itemsize

    def side(times: list[int], wrong: list[int | None]) -> Any:
        checked = [number for number in wrong if number is not None]
        total = sum(checked) if checked else None
        mean = round(sum(times) / ranks)
        return timing(nbytes, mean, factor, iterations=flags.iterations, wrong=total)

    return Measurement(
        nbytes,
        count,
        flags.dtype,
        flags.op,
        -1,
        side([r.out_of_place_ps for r in results], [r.out_of_place_wrong for r in results]),
        side([r.in_place_ps for r in results], [r.in_place_wrong for r in results]),
    )


def run(ctx: RuntimeContext) -> int:
    """Runs the bench; returns 0 if every checked value is right."""
    flags = parse(ctx.argv)
    world_size: int = ctx.spec["system"]["sips"]["count"]
    per_rank: dict[int, list[Result]] = {}

    def rank_main(rank: int) -> None:
        results = worker(rank, world_size, ctx)
        if results:
            per_rank[rank] = results

    ctx.multiprocessing.spawn(rank_main, nprocs=world_size)
    if not per_rank:
        return 0
    rows = [
        _measurement(flags, [per_rank[rank][index] for rank in sorted(per_rank)], size)
        for index, size in enumerate(flags.sizes)
    ]
    header = Header(
        "all_reduce",
        ctx.engine.topology.name,
        world_size,
        ctx.algorithm.name,
        {
            "data": "on" if ctx.engine.enable_data else "off",
            "fidelity": ctx.engine.fidelity,
            "iterations": str(flags.iterations),
            "warm-up": str(flags.warmup),
        },
    )
    ctx.results.append(as_json(header, rows))
    if not ctx.quiet:
        lines = [*header_lines(header), *map(row_line, rows), *footer_lines(rows)]
        print("\n".join(lines))
    return 1 if total_wrong(rows) else 0
