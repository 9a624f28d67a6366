"""Measures a host's GPUs and writes the tables that `kernbench calibrate` reads.

    torchrun --standalone --nproc-per-node gpu measure/measure.py --out measured

Needs PyTorch with CUDA or ROCm, and nothing of kernbench. A line that a file has already is not
measured again: run it once more with the same `--out` to go on.
"""

import argparse
import datetime
import gc
import json
import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tables_host
import tables_images
import tables_kernels
import tables_several
import torch
import torch.distributed as dist
from rows import File, Group, Row, Table, Values
from timing import Timer, seconds

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        *tables_host.TABLES,
        *tables_several.TABLES,
        *tables_kernels.TABLES,
        *tables_images.TABLES,
    )
}
PROFILED_TOGETHER = 12
LONGEST = datetime.timedelta(hours=1)
CANNOT = (RuntimeError, NotImplementedError, torch.OutOfMemoryError, AttributeError)


class Run:
    """One run of the script.

    Args:
        args: The command line.
        timer: Of this rank's device.
        group: This rank among the others.
    """

    def __init__(self, args: argparse.Namespace, timer: Timer, group: Group) -> None:
        self.folder, self.timer, self.group = Path(args.out), timer, group
        self.end = seconds() + 60 * args.minutes
        self.left: dict[str, int] = {}
        self.measured = 0

    def _say(self, text: str) -> None:
        print(f"[{self.group.rank}] {text}", flush=True)

    def _todo(self, table: Table) -> tuple[File, list[Row]]:
        file = File(self.folder / f"{table.file or table.name}.csv", table)
        rows = list(table.rows(self.timer, self.group))
        if self.timer.quick and table.profiled:
            rows = list({row.text[:2]: row for row in reversed(rows)}.values())
        return file, [row for row in rows if row.text not in file.known]

    def alone(self, table: Table) -> None:
        """Measures a table with this process's GPU only."""
        file, rows = self._todo(table)
        size = PROFILED_TOGETHER if table.profiled else 1
        for at in range(0, len(rows), size):
            if seconds() > self.end:
                self.left[table.name] = len(rows) - at
                return
            for row, values in self._values(table, rows[at : at + size]):
                file.add(row, values)
                self.measured += 1

    def _values(self, table: Table, rows: Sequence[Row]) -> Iterator[tuple[Row, Values]]:
        if not table.profiled:
            for row in rows:
                yield from self._tried(table, row)
            return
        made: list[tuple[Row, Any]] = []
        for row in rows:
            try:
                call = row.measure()
                call()
                made.append((row, call))
            except CANNOT as error:
                self._cannot(table, row, error)
        try:
            times = self.timer.kernels([call for _, call in made])
        except CANNOT as error:
            self._cannot(table, rows[0], error)
            return
        yield from [(row, {"us": us}) for (row, _), us in zip(made, times, strict=True)]
        made.clear()
        self._clean()

    def _tried(self, table: Table, row: Row) -> Iterator[tuple[Row, Values]]:
        try:
            yield row, row.measure()
        except CANNOT as error:
            self._cannot(table, row, error)
        self._clean()

    def _clean(self) -> None:
        if self.timer.gpu and torch.cuda.memory_reserved() > 8 << 30:
            gc.collect()
            torch.cuda.empty_cache()

    def _cannot(self, table: Table, row: Row, error: BaseException) -> None:
        first = next(iter(str(error).splitlines()), "")
        self._say(f"{table.name}: {' '.join(row.text)}: {type(error).__name__}: {first[:120]}")

    def together(self, table: Table) -> None:
        """Measures a table that all ranks are needed for; rank 0 says which lines, and writes."""
        file, rows = self._todo(table)
        todo = self._agreed([row.text for row in rows])
        rows = [row for row in table.rows(self.timer, self.group) if row.text in todo]
        for at, row in enumerate(rows):
            if self._agreed(seconds() > self.end):
                self.left[table.name] = len(rows) - at
                return
            values = row.measure()
            if self.group.rank == 0:
                file.add(row, values)
                self.measured += 1

    def _agreed(self, value: Any) -> Any:
        """Returns what rank 0 says."""
        said = [value]
        dist.broadcast_object_list(said, group=self.group.extra["host"])
        return said[0]

    def barrier(self) -> None:
        """Waits for all ranks without using a GPU."""
        if self.group.world > 1:
            dist.monitored_barrier(self.group.extra["host"], timeout=LONGEST)

    def run(self, names: Sequence[str]) -> None:
        """Measures tables: those of the host by rank 0 alone, of several GPUs, then of single ones.

        Args:
            names: Of the tables.
        """
        for where in ("alone", "all", "gpu"):
            chosen = [TABLES[name] for name in names if TABLES[name].where == where]
            for at, table in enumerate(chosen):
                begin = seconds()
                if where == "all":
                    if self.group.world > 1:
                        self.together(table)
                elif self.group.rank == (0 if where == "alone" else at % self.group.world):
                    self.alone(table)
                    self._say(f"{table.name}: {seconds() - begin:.0f} s")
            self.barrier()


def about(timer: Timer, group: Group) -> Values:
    """Returns what was measured: GPU, host and versions."""
    found: dict[str, Any] = {"torch": torch.__version__, "world": group.world}
    found |= {"cpus": os.cpu_count(), "processor": platform.processor() or platform.machine()}
    if timer.gpu:
        chip = torch.cuda.get_device_properties(timer.device)
        found |= {"gpu": chip.name, "sms": chip.multi_processor_count, "bytes": chip.total_memory}
        found |= {"l2_bytes": chip.L2_cache_size, "cuda": torch.version.cuda}
        found |= {"hip": torch.version.hip, "cudnn": torch.backends.cudnn.version()}
        found |= {"nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    return found


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", default="measured", metavar="DIR", help="folder of the tables")
    parser.add_argument("--minutes", type=float, default=30, help="stop after so long (30)")
    parser.add_argument(
        "--tables", nargs="+", choices=TABLES, default=list(TABLES), help="those only"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="a few lines, to try the script")
    args = parser.parse_args()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU here; --device cpu --quick tries the script without one")
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if args.device == "cuda" else "cpu"
    if args.device == "cuda":
        torch.cuda.set_device(device)
    Path(args.out).mkdir(parents=True, exist_ok=True)
    with tables_several.joined(rank, world, device) as group:
        timer = Timer(device, quick=args.quick)
        if rank == 0:
            said = json.dumps(about(timer, group), indent=2)
            (Path(args.out) / "about.json").write_text(said + "\n")
        job = Run(args, timer, group)
        job.run(args.tables)
        if job.left:
            left = ", ".join(f"{count} of {name}" for name, count in job.left.items())
            print(f"[{rank}] lines not measured: {left}; run again with --out {args.out}")


if __name__ == "__main__":
    main()
