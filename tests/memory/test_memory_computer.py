"""What is left on the computer that simulates, and tensors for which nothing is left."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from kernbench import torch
from kernbench.memory import OutOfMemoryError, available_bytes, storage
from kernbench.memory.computer import STEP, Room
from kernbench.runtime_api.context import RuntimeContext

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 24000000 kB\nMemFree: 12 kB\nMemAvailable: 4194304 kB\n"}


def test_what_linux_calls_available(tmp_path: Path) -> None:
    assert available_bytes(write(tmp_path, MEMINFO)) == 4 * GIB


@pytest.mark.parametrize("inside", ["a/b", "a"])
def test_the_limit_of_a_container_counts_too(tmp_path: Path, inside: str) -> None:
    write(tmp_path, MEMINFO | {"proc/self/cgroup": "0::/a/b\n"})
    write(
        tmp_path / "sys/fs/cgroup" / inside,
        {
            "memory.max": f"{3 * GIB}\n",
            "memory.current": f"{2 * GIB}\n",
            "memory.stat": f"anon 7\ninactive_file {GIB // 2}\n",
        },
    )
    assert available_bytes(tmp_path) == 3 * GIB // 2


def test_the_limit_of_a_container_whose_host_alone_knows_the_path(tmp_path: Path) -> None:
    write(tmp_path, MEMINFO | {"proc/self/cgroup": "4:memory:/elsewhere/x\n0::/\n"})
    write(
        tmp_path / "sys/fs/cgroup/memory",
        {"memory.limit_in_bytes": f"{GIB}\n", "memory.usage_in_bytes": f"{GIB // 4}\n"},
    )
    assert available_bytes(tmp_path) == 3 * GIB // 4


def test_no_limit_of_a_container(tmp_path: Path) -> None:
    write(tmp_path, MEMINFO | {"proc/self/cgroup": "0::/a\n"})
    write(tmp_path / "sys/fs/cgroup/a", {"memory.max": "max\n", "memory.current": "5\n"})
    assert available_bytes(tmp_path) == 4 * GIB


def test_a_container_that_uses_more_than_it_may_leaves_nothing(tmp_path: Path) -> None:
    write(tmp_path, MEMINFO | {"proc/self/cgroup": "0::/\n"})
    write(tmp_path / "sys/fs/cgroup", {"memory.max": "5\n", "memory.current": "9\n"})
    assert available_bytes(tmp_path) == 0


def test_room_is_looked_at_once_in_a_step(
    ctx: RuntimeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def left() -> int:
        looks.append(1)
        return 2 * STEP

    room = Room(left)
    monkeypatch.setattr(storage, "ROOM", room)
    kept = [torch.ones(STEP // 4, dtype=torch.int8) for _ in range(9)]
    assert len(kept) == 9
    assert len(looks) == 2
    assert room.lacks(STEP) is None
    assert room.lacks(STEP + 1) == 2 * STEP
    assert Room(lambda: None).lacks(1 << 60) is None


def test_many_tensors_for_which_there_is_no_room(
    ctx: RuntimeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "ROOM", Room(lambda: 1 << 20))
    kept: list[torch.Tensor] = []

    def fill() -> None:
        while len(kept) < 2 * STEP // (1 << 24):
            kept.append(torch.ones(1 << 24, dtype=torch.int8))

    with pytest.raises(OutOfMemoryError) as refused:
        fill()
    lines = str(refused.value).splitlines()
    assert lines[0].startswith("[M7] tensor [16777216] torch.int8 does not fit into the memory of")
    assert "it takes 16 MiB; 1 MiB" in lines[2]
    assert "--data off" in lines[-1]
    assert len(kept) == STEP // (1 << 24) - 1


# Pages that are kept

_FAULTS = """
import resource
import sys

import numpy as np

from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext

with RuntimeContext(RunSpec(data=sys.argv[1] == "data")):
    def faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        [np.ones(1 << 17, np.float32) for _ in range(8)]
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    faults()
    print(min(faults() for _ in range(5)))
"""


def faults(kind: str, **environment: str) -> int:
    """Returns how many pages 8 arrays of 512 KiB get from the system, after 8 of their size."""
    done = subprocess.run(
        [sys.executable, "-c", _FAULTS, kind],
        env={name: value for name, value in os.environ.items() if "MALLOC" not in name}
        | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc")
def test_a_run_with_data_keeps_the_pages_of_arrays() -> None:
    assert faults("data") == 0
    assert faults("off") > 100
    assert faults("data", MALLOC_TRIM_THRESHOLD_="131072") > 100
