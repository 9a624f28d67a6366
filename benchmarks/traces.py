"""What a record costs in traces as PyTorch's profiler writes them, against a trace for Perfetto."""

import tempfile
from pathlib import Path

import _measure

from kernbench.errors import call_site
from kernbench.report import write_kineto_files, write_trace
from kernbench.sim_engine.op_log import OpLog, Record, Together, TogetherArgs
from kernbench.topology import load_topology

RANKS = 64
STEPS = 100
KERNELS = 10
REPEATS = 3
US = 1_000_000


def log() -> OpLog:
    """Returns a log of steps, each with a range, kernels, and an all-reduce beside them."""
    found, site = OpLog("full"), call_site()
    together = Together("all_reduce", range(RANKS), "default_pg", 1024, 1024)
    facts = {"group": "WORLD", "bytes": 4096, "dtype": "float32", "algorithm": "nccl_ll"}
    for rank in range(RANKS):
        now = 0
        for step in range(STEPS):
            name, began = f"ProfilerStep#{step}", now
            for _ in range(KERNELS):
                now += 10 * US
                found.add(
                    Record("aten::matmul", "compute", rank, f"stream {rank}", now, now,
                           now + 8 * US, site, {}, 0, (name,), 2 * US)
                )  # fmt: skip
            args = TogetherArgs({**facts, "sequence": step}, together)
            found.add(
                Record("all_reduce", "collective", rank, f"communication {rank}", now, now,
                       now + 50 * US, site, args, 0, (name,), 0)
            )  # fmt: skip
            found.add(Record(name, "range", rank, "host", began, began, now, site))
    return found


def main() -> None:
    found, topology = log(), load_topology("fattree64").topology_obj
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        perfetto = min(
            _measure.seconds(
                lambda: write_trace(found, topology, path / "trace.json", dispatch_ps=2 * US)
            )
            for _ in range(REPEATS)
        )
        kineto = min(
            _measure.seconds(
                lambda: write_kineto_files(found, topology, path / "ranks", dispatch_ps=2 * US)
            )
            for _ in range(REPEATS)
        )
    ratio = kineto / perfetto
    times = [f"{seconds / len(found.records) * 1e6:.0f} us" for seconds in (perfetto, kineto)]
    row = [f"{len(found.records)} records", *times, f"{ratio:.1f}x"]
    header = ["traces", "Perfetto", "Kineto", "ratio", "target"]
    _measure.show(
        "Time of a record", header, [[*row, _measure.verdict(ratio, 1.0, at_least=False)]]
    )


if __name__ == "__main__":
    main()
