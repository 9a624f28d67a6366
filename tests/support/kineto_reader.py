"""Reads traces of PyTorch's profiler: figures of a rank, by the definitions of its readers.

It knows nothing of how kernbench writes them. Times are integer nanoseconds, which is what `ts` and
`dur` hold.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

Event = dict[str, Any]


@dataclass(frozen=True)
class Figures:
    """What HolisticTraceAnalysis tells of a rank, in nanoseconds."""

    kernel_time: int
    idle: int
    compute: int
    communication: int
    overlap: int

    @property
    def non_compute(self) -> int:
        return self.kernel_time - self.idle - self.compute


class RankFile:
    def __init__(self, path: Path) -> None:
        self.text = path.read_text(encoding="utf-8")
        self.document: dict[str, Any] = json.loads(self.text, parse_float=Decimal)
        self.events: list[Event] = self.document["traceEvents"]

    @property
    def rank(self) -> int:
        # As readers find it: line by line, before they parse.
        lines = (re.search(r'"rank":\s+(\d+)', line) for line in self.text.splitlines())
        return int(next(match for match in lines if match)[1])

    def of(self, *categories: str) -> list[Event]:
        return [e for e in self.events if e["ph"] == "X" and e.get("cat") in categories]

    def figures(self) -> Figures:
        device = self.of("kernel", "gpu_memcpy", "gpu_memset")
        messages = [e for e in device if re.match(r"nccl.*Kernel", e["name"])]
        computing = [
            e for e in device if e not in messages and not re.match(r"Memcpy|Memset", e["name"])
        ]
        first = min(map(start, device))
        last = max(map(end, device))
        busy, compute, communication = map(covered, (device, computing, messages))
        overlap = compute + communication - covered([*computing, *messages])
        return Figures(last - first, last - first - busy, compute, communication, overlap)

    def launches(self) -> dict[int, tuple[Event, Event]]:
        """Returns calls of CUDA that put work on a device, with that work, by correlation."""
        calls = {e["args"]["correlation"]: e for e in self.of("cuda_runtime")}
        found = {}
        for event in self.of("kernel", "gpu_memcpy", "gpu_memset"):
            number = event["args"]["correlation"]
            assert number not in found
            found[number] = calls[number], event
        return found


def start(event: Event) -> int:
    return exact_ns(event["ts"])


def end(event: Event) -> int:
    return start(event) + exact_ns(event["dur"])


def exact_ns(us: Decimal) -> int:
    ns = us * 1000
    assert ns == int(ns)
    return int(ns)


def covered(events: Iterable[Event]) -> int:
    """Returns the nanoseconds in which at least one event is under way."""
    changes: dict[int, int] = defaultdict(int)
    for event in events:
        changes[start(event)] += 1
        changes[end(event)] -= 1
    total = running = before = 0
    for time in sorted(changes):
        total += (time - before) * (running > 0)
        running, before = running + changes[time], time
    return total


def rank_files(folder: Path) -> dict[int, RankFile]:
    """Returns the traces of a folder by rank."""
    files = [RankFile(path) for path in folder.iterdir()]
    by_rank = {file.rank: file for file in files}
    assert len(by_rank) == len(files)
    return by_rank
