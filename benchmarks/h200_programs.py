"""Holds programs of the real PyTorch on `h200x8` to what they took on eight NVIDIA H200.

Runs the programs in `programs`, unmodified and without numbers, one row of its programs.csv each,
and prints step times and peaks of memory, measured and predicted. A row counts as bound by the
device if the host's time is below 96 % of the mean step, or if the fastest step is within 2 % of
the median on a host whose processes may use every CPU. `host.eager` was fitted without every third
row. `llama.measure` is called with 2 steps of warm-up and 2 measured ones.
To run only some programs: `python benchmarks/h200_programs.py [PROGRAM ...]`.
"""

import contextlib
import csv
import io
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).resolve().parent / "programs"
KEYS = ("hidden", "seq", "reshard", "checkpoint", "batch", "accumulate", "microbatches")
FILES = {"gpt2_ddp": "train_gpt2_ddp.py", "pp_1f1b": "train_pp.py"}
WORKERS = min(6, os.cpu_count() or 1)
NOT_ARGUMENTS = {"gpt2_ddp": ("hidden", "seq")}


def run(nprocs: int, file: str, arguments: list[str]) -> dict[str, Any]:
    """Returns the line that a program prints when it runs without numbers, or its error."""
    from kernbench.bridge import bridged
    from kernbench.runtime_api.context import RuntimeContext
    from kernbench.sim_engine.engine import GraphEngine
    from kernbench.topology import load_topology

    sys.path.insert(0, str(PROGRAMS))
    sys.argv = [file, *arguments]
    path = PROGRAMS / file
    code = compile(path.read_text(encoding="utf-8"), str(path), "exec")

    def program(rank: int) -> None:
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": nprocs}
        os.environ.update({name: str(value) for name, value in numbers.items()})
        import llama  # type: ignore[import-not-found]

        llama.measure.__defaults__ = (2, 2, None)  # steps, warmup, profile
        exec(code, {"__name__": "__main__", "__file__": str(path)})

    engine = GraphEngine(load_topology("h200x8").topology_obj, enable_data=False)
    printed = io.StringIO()
    try:
        with (
            contextlib.redirect_stdout(printed),
            RuntimeContext(engine=engine, quiet=True),
            bridged(data=False),
        ):
            import torch

            torch.multiprocessing.spawn(program, nprocs=nprocs)
    except Exception as error:  # one row is told as failed, and the others go on
        return {"error": f"{type(error).__name__}: {error}"}
    lines = [json.loads(line) for line in printed.getvalue().splitlines() if line.startswith("{")]
    return dict(lines[0]) if lines else {"error": "no output"}


def bound_by_device(row: dict[str, str]) -> bool:
    """Returns whether a row is bound by the device; see the module."""
    step, fastest = float(row["step_us"]), float(row["min_us"])
    steady = row["cpus"] == "free" and fastest > 0.98 * step
    return steady or float(row["host_us"]) < 0.96 * float(row["mean_us"])


def _key(row: dict[str, str]) -> tuple[str, ...]:
    return row["program"], row["world"], *(row[key] for key in KEYS)


def _run_key(key: tuple[str, ...]) -> dict[str, Any]:
    program, world, *values = key
    skipped = NOT_ARGUMENTS.get(program, ())
    named = [(name, value) for name, value in zip(KEYS, values, strict=True) if value]
    arguments = [
        part for name, value in named if name not in skipped for part in (f"--{name}", value)
    ]
    return run(int(world), FILES.get(program, f"train_{program}.py"), arguments)


def predicted(keys: list[tuple[str, ...]]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Runs each in a process of its own, which has PyTorch from the start."""
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.distributed.tensor.parallel  # noqa: F401

    from kernbench.bridge import bridged  # noqa: F401

    fork = multiprocessing.get_context("fork")
    with fork.Pool(WORKERS, maxtasksperchild=1) as pool:
        yield from zip(keys, pool.imap(_run_key, keys, chunksize=1), strict=True)


def main(programs: list[str]) -> None:
    """Prints the table and the mean errors of each class."""
    errors: dict[str, list[float]] = {}
    with (PROGRAMS / "programs.csv").open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if not programs or row["program"] in programs]
    print(
        "| program | ranks | arguments | bound by | step ms, measured | predicted | ratio "
        "| peak MiB, measured | predicted | ratio |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    seen: dict[tuple[str, ...], dict[str, Any]] = {}
    runs = predicted(list(dict.fromkeys(map(_key, rows))))
    for index, row in enumerate(rows):
        while _key(row) not in seen:
            key, found = next(runs)
            seen[key] = found
        found, step = seen[_key(row)], float(row["step_us"])
        kind = "device" if bound_by_device(row) else "host"
        given = " ".join(f"{key} {row[key]}" for key in KEYS if row[key])
        start = f"| {row['program']} | {row['world']} | {given} | {kind} | {step / 1e3:.1f} "
        if "step_us" not in found:
            print(f"{start}| {found['error']} | | {row['peak_mib']} | | |", flush=True)
            continue
        ratio, peak = found["step_us"] / step, found["peak_mib"] / float(row["peak_mib"])
        part = "held out" if index % 3 == 2 else "fitted"
        for name in (f"step times bound by the {kind}", f"step times bound by the {kind}, {part}"):
            errors.setdefault(name, []).append(abs(ratio - 1))
        errors.setdefault("peaks of memory", []).append(abs(peak - 1))
        print(
            f"{start}| {found['step_us'] / 1e3:.1f} | {ratio:.2f} "
            f"| {float(row['peak_mib']):.0f} | {found['peak_mib']:.0f} | {peak:.2f} |",
            flush=True,
        )
    for name, each in sorted(errors.items()):
        mean, worst = (f"{100 * value:.0f} %" for value in (sum(each) / len(each), max(each)))
        print(f"{name}: mean error {mean}, worst {worst}, {len(each)} rows")


if __name__ == "__main__":
    main(sys.argv[1:])
