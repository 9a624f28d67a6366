"""Measures an operation in nccl-tests' manner: warm-up, counted iterations, values, table."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from benches.models.flags import require_every_rank
from benches.nccl.flags import AVERAGES, REDUCTIONS, TYPES, Flags
from benches.nccl.operations import (
    OPERATIONS,
    Call,
    Case,
    Operation,
    expected,
    values,
    wrong_elements,
)
from kernbench.errors import UsageError
from kernbench.report import (
    Header,
    Measurement,
    Timing,
    as_json,
    busbw_factor,
    footer_lines,
    header_lines,
    row_line,
    timing,
    total_wrong,
)
from kernbench.runtime_api.context import RuntimeContext
from kernbench.units import PS_PER_US, format_bytes


@dataclass(frozen=True)
class Side:
    """What one rank measured out of place, or in place.

    Attributes:
        time_ps: Simulated time of all iterations; 0 if time is not simulated.
        wrong: Elements with a wrong value; None if they were not checked.
    """

    time_ps: int
    wrong: int | None


@dataclass(frozen=True)
class Result:
    """What one rank measured for one size; `in_place` is None if that cannot be called."""

    count: int
    out_of_place: Side
    in_place: Side | None


def _time(torch: Any, flags: Flags, call: Call) -> tuple[int, Any]:
    """Returns the simulated picoseconds of the counted iterations, and the last one's result."""
    result = None
    for _ in range(flags.warmup):
        result = call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.distributed.barrier()
    start.record()
    for _ in range(flags.iterations):
        result = call()
    end.record()
    end.synchronize()
    elapsed_ms: float = start.elapsed_time(end)
    return round(elapsed_ms * 10**9), result


class _Row:
    """One size on one rank."""

    def __init__(self, torch: Any, flags: Flags, case: Case, size: int) -> None:
        self._torch, self._flags, self._case = torch, flags, case
        self._dtype = getattr(torch, TYPES[flags.dtype])
        self._spec: Operation = OPERATIONS[flags.operation]
        self._count = self._spec.count(size, self._dtype.itemsize, case.ranks)
        self._in_count = self._spec.input_count(self._count, case)
        self._out_count = self._spec.output_count(self._count, case)
        self._with_data = torch.engine.enable_data
        self._check = flags.check and self._with_data

    def measure(self) -> Result:
        values = self._values()
        source = None if values is None else values.cuda()
        out_of_place = self._out_of_place(source)
        in_place = self._in_place(source, values) if self._spec.in_place else None
        return Result(self._count, out_of_place, in_place)

    def _values(self) -> Any:
        """Returns the rank's input on the host."""
        if self._in_count is None:
            return None
        if not self._with_data:
            return self._torch.empty(self._in_count, dtype=self._dtype, device="cpu")
        name, case = self._flags.operation, self._case
        return self._torch.from_numpy(
            values(name, case.rank, case.ranks, 0, self._in_count, self._dtype.numpy)
        )

    def _empty(self, count: int) -> Any:
        return self._torch.empty(count, dtype=self._dtype, device="cuda")

    def _out_of_place(self, source: Any) -> Side:
        no_output = self._out_count is None or self._spec.makes_output
        target = None if no_output else self._empty(self._out_count or 0)
        call = self._spec.prepare(self._case, source, target)
        time_ps, result = _time(self._torch, self._flags, call)
        return Side(time_ps, self._wrong(result))

    def _in_place(self, given: Any, values: Any) -> Side:
        source, target = self._in_one(given)
        if source is not given:
            source.copy_(values)
        time_ps, _ = _time(self._torch, self._flags, self._spec.prepare(self._case, source, target))
        if not self._check:
            return Side(time_ps, None)
        # Anew: the iterations have changed the input, or left the right result in the output.
        source, target = self._in_one(given)
        if source is not None:
            source.copy_(values)
        return Side(time_ps, self._wrong(self._spec.prepare(self._case, source, target)()))

    def _in_one(self, source: Any) -> tuple[Any, Any]:
        """Returns input and output, of which the smaller one is inside of the larger one.

        The larger one is `source`, or new.
        """
        if self._out_count is None:
            return source, None
        if source is None:
            return None, self._empty(self._out_count)
        own = slice(self._case.rank * self._count, (self._case.rank + 1) * self._count)
        if self._spec.input_blocks:
            return source, source[own]
        if not self._spec.output_blocks:
            return source, source
        target = self._empty(self._out_count)
        return target[own], target

    def _wrong(self, result: Any) -> int | None:
        flags, case = self._flags, self._case
        if not self._check:
            return None
        right = expected(
            flags.operation,
            flags.redop,
            case.rank,
            case.ranks,
            case.root,
            self._count,
            self._dtype.numpy,
        )
        return (
            0
            if right is None
            else wrong_elements(result.numpy(force=True), right, flags.redop, case.ranks)
        )


def measure(rank: int, ranks: int, torch: Any, flags: Flags) -> Iterator[Result]:
    """Measures every size on one rank, one after the other; every rank must go through all.

    Args:
        rank: The rank that calls.
        ranks: How many there are.
        torch: PyTorch's names, such as a `RuntimeContext`.
        flags: What to measure.
    """
    dist = torch.distributed
    dist.init_process_group("nccl")
    reduces = OPERATIONS[flags.operation].reduces
    reduction = getattr(dist.ReduceOp, REDUCTIONS[flags.redop]) if reduces else None
    case = Case(dist, rank, ranks, flags.root, reduction)
    for size in torch.progress(flags.sizes, "size") if rank == 0 else flags.sizes:
        yield _Row(torch, flags, case, size).measure()
    dist.destroy_process_group()


def _measurement(
    flags: Flags, results: list[Result], timed: bool, algorithm: Callable[[int], str]
) -> Measurement:
    """Puts the ranks' results for one size together.

    Args:
        flags: What was measured.
        results: Of each rank.
        timed: Whether there are times.
        algorithm: Which one runs for so many bytes.
    """
    ranks, count = len(results), results[0].count
    factor = busbw_factor(flags.operation, ranks)
    itemsize = np.dtype(TYPES[flags.dtype]).itemsize
    nbytes = OPERATIONS[flags.operation].nbytes(count, itemsize, ranks)

    def together(sides: list[Side]) -> Timing:
        times = [side.time_ps for side in sides]
        checked = [side.wrong for side in sides if side.wrong is not None]
        chosen = (times[0], round(sum(times) / ranks), min(times), max(times))[flags.average]
        total = chosen if timed else None
        wrong = sum(checked) if checked else None
        return timing(nbytes, total, factor, iterations=flags.iterations, wrong=wrong)

    in_place = [result.in_place for result in results if result.in_place is not None]
    return Measurement(
        nbytes,
        count,
        flags.dtype,
        flags.redop,
        flags.root,
        together([result.out_of_place for result in results]),
        together(in_place) if in_place else None,
        algorithm(nbytes),
    )


def _ranks(ctx: RuntimeContext, flags: Flags) -> int:
    """Returns how many ranks take part.

    Raises:
        UsageError: If the machine, or the operation, cannot do with the flags.
    """
    machine = f"{ctx.engine.topology.name} has {len(ctx.devices)} SIPs"
    ranks = len(ctx.devices) if flags.ranks is None else flags.ranks
    if ranks > len(ctx.devices):
        raise UsageError(f"-g {ranks}: one rank for each SIP, and {machine}")
    if flags.root >= ranks:
        raise UsageError(f"-r {flags.root}: expected a rank from 0 to {ranks - 1}")
    if flags.operation == "sendrecv" and ranks == 1:
        raise UsageError("--op sendrecv: a rank cannot send to itself", hint="-g 2 or more")
    return ranks


class _Table:
    """Prints each row as soon as the last rank has measured it.

    Args:
        ctx: The machine.
        flags: What is measured.
        ranks: How many ranks measure.
    """

    def __init__(self, ctx: RuntimeContext, flags: Flags, ranks: int) -> None:
        self._ctx: Final = ctx
        self._flags: Final = flags
        self._ranks: Final = ranks
        self._operation: Final = "send_recv" if flags.operation == "sendrecv" else flags.operation
        # A message goes between two of the ranks, all the others among all of them.
        self._sips: Final = tuple(ctx.devices[: 2 if self._operation == "send_recv" else ranks])
        self._results: Final[list[dict[int, Result]]] = [{} for _ in flags.sizes]
        self.rows: Final[list[Measurement]] = []

    def add(self, rank: int, index: int, result: Result) -> None:
        """Notes what one rank has measured for a size."""
        results = self._results[index]
        results[rank] = result
        if len(results) == self._ranks:
            by_rank = [results[each] for each in range(self._ranks)]
            self.rows.append(_measurement(self._flags, by_rank, self._timed, self._algorithm))
            if not self.rows[1:]:
                self._print(header_lines(self._header()))
            self._print([row_line(self.rows[-1])])

    def end(self) -> None:
        """Prints what stands below the rows, and leaves the results for `--json`."""
        limit = self._slot_limit() or self._shortfall()
        self._ctx.results.append(as_json(self._header(), self.rows, limit, self._link_bound()))
        self._print([*([f"# {limit}"] if limit else []), *footer_lines(self.rows)])

    @property
    def _timed(self) -> bool:
        return self._ctx.engine.timed

    def _print(self, lines: list[str]) -> None:
        if not self._ctx.quiet:
            print("\n".join(lines), flush=True)

    def _algorithm(self, nbytes: int) -> str:
        return self._ctx.choices.choose(self._operation, nbytes, self._sips, self._ranks).name

    def _header(self) -> Header:
        ctx, flags = self._ctx, self._flags
        dials = {
            "data": "on" if ctx.engine.enable_data else "off",
            "fidelity": ctx.engine.fidelity,
            "iterations": str(flags.iterations),
            "warm-up": str(flags.warmup),
        }
        if AVERAGES[flags.average] != "mean of ranks":
            dials["time"] = AVERAGES[flags.average]
        algorithm = ctx.choices.name(self._operation)
        name = ctx.engine.topology.name
        return Header(flags.operation, name, self._ranks, algorithm, dials, self._timed)

    def _link_bound(self) -> float | None:
        """Returns the bus bandwidth in GB/s that the links allow to the largest size.

        Ranks other than the root leave a gather or a scatter long before its end, so the mean of
        the ranks' times, which the table has, may pass the bound: there is none for these.
        """
        if self._flags.operation in {"gather", "scatter"}:
            return None
        nbytes, sips, root = self.rows[-1].size_bytes, self._sips, self._flags.root
        bound = self._ctx.choices.bound(
            self._operation, nbytes, sips, root if root < len(sips) else 0
        )
        if bound is None:
            return None
        rate = busbw_factor(self._flags.operation, self._ranks) * nbytes / bound.time
        return float(f"{1000 * rate:.6g}")

    def _shortfall(self) -> str | None:
        """Returns what limits the largest size, if it gets less than half of what links allow."""
        row, sips, root = self.rows[-1], self._sips, self._flags.root
        time_us = row.out_of_place.time_us
        if not time_us:
            return None
        text = self._ctx.choices.shortfall(
            self._operation,
            row.size_bytes,
            sips,
            round(time_us * PS_PER_US),
            ranks=self._ranks,
            root=root if root < len(sips) else 0,
        )
        return None if text is None else f"{format_bytes(row.size_bytes)}: {text}"

    def _slot_limit(self) -> str | None:
        """Returns what too few slots cost the largest size, and how many would be enough."""
        if not self._timed:
            return None
        nbytes, choices = self.rows[-1].size_bytes, self._ctx.choices
        limit = choices.slot_limit(self._operation, nbytes, self._sips, self._ranks)
        if limit is None:
            return None
        text = f"{format_bytes(nbytes)}: {limit}"
        enough = choices.enough_slots(self._operation, nbytes, self._sips, self._ranks)
        if enough is None:
            return text
        key = f"algorithms.{self.rows[-1].algorithm}.slot_size"
        return f"{text}; try --set {key}='{format_bytes(enough)}'"


def run(
    ctx: RuntimeContext,
    flags: Flags,
    worker: Callable[[int, int, RuntimeContext], Iterable[Result] | None],
) -> int:
    """Runs a bench; returns 0 if every checked value is right.

    Args:
        ctx: The machine.
        flags: What to measure.
        worker: Measures on a rank, of so many, with PyTorch's names of the context; None is no
            result.

    Raises:
        UsageError: If the machine, or the operation, cannot do with the flags.
    """
    require_every_rank("ccl", ctx)
    ranks = _ranks(ctx, flags)
    table = _Table(ctx, flags, ranks)

    def rank_main(rank: int) -> None:
        for index, result in enumerate(worker(rank, ranks, ctx) or ()):
            table.add(rank, index, result)

    ctx.multiprocessing.spawn(rank_main, nprocs=ranks)
    if table.rows:
        table.end()
    return 1 if total_wrong(table.rows) else 0
