"""Whether `auto` is beaten: every case in which a shipped algorithm is more than 2 % faster.

Simulates each operation without data on the shipped machines, and on machines drawn with a seed
(rings, tori, meshes, hypercubes, switches, nodes, fat trees; links of 10 to 900 GB/s, latencies of
0.1 to 3 us), with every algorithm of `ccl.yaml` that may take part, and with what `auto` takes.

A choice that is NCCL's own, by `tuning` or by its bounds of sizes of messages (ADR 0049), is marked
`measured`: NCCL itself does not take what is fastest there, and the choice is meant to be NCCL's.

    python benchmarks/auto_choice.py [MACHINE OR NUMBER ...] [--sizes BYTES,BYTES] [--all]

Without names: all shipped machines of up to 64 SIPs and 30 drawn ones. `--all` prints all cases.
"""

import random
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import _measure  # noqa: F401 - before numpy, which takes one thread then
import yaml

from kernbench.ccl.alone import time_alone
from kernbench.ccl.config import Chosen, check_fits, choose, load_ccl, shipped_ccl_file
from kernbench.ccl.operations import OPERATIONS
from kernbench.ccl.tuner import Choices
from kernbench.config.problems import ConfigError
from kernbench.topology import Topology, load_topology, shipped_machines

DRAWN = 30
MOST_SIPS = 64
BEATEN = 1.02
SIZES = [1 << bits for bits in range(10, 31, 4)]


def drawn(number: int) -> Topology:
    """Returns a machine of a seed: PEs and memories of `torus4x4`, and a network of its own."""
    rng = random.Random(number)
    spec = yaml.safe_load(Path(shipped_machines()["torus4x4"]).read_text())
    system = spec["system"]
    link = {
        "bandwidth": f"{rng.choice([10, 25, 50, 100, 200, 450, 900])} GB/s",
        "latency": f"{rng.choice([100, 250, 500, 1000, 3000])} ns",
    }
    kind = ["ring", "torus", "mesh", "hypercube", "switch", "nodes", "fat_tree"][number % 7]
    count = rng.choice([4, 8, 16])
    network: dict[str, Any] = {"kind": kind, **link}
    if kind == "torus":
        network["shape"] = [2, count // 2] if count < 16 else [4, 4]
    if kind in {"mesh", "hypercube"}:
        network["kind"] = "graph"
        pairs = combinations(range(count), 2)
        network["edges"] = [
            {"ends": [f"sip{a}", f"sip{b}"]}
            for a, b in pairs
            if kind == "mesh" or (a ^ b).bit_count() == 1
        ]
    if kind == "nodes":
        inside = {"bandwidth": f"{rng.choice([200, 450, 900])} GB/s", "latency": "500 ns"}
        network["node"] = {"size": count // 2, **inside}
    if kind == "fat_tree":
        network["leaf"] = {"size": count // 2}
    if kind in {"nodes", "fat_tree"}:
        network["spine"] = {"count": 2, "latency": "300 ns"}
    system["name"] = f"{number}:{kind}{count}"
    system["sips"] = {"count": count, "network": network}
    # As a large GPU: what limits is the network.
    system["sip"]["cube"]["pes"] = 64
    system["sip"]["cube"]["hbm"]["bandwidth"] = "4 TB/s"
    system["sip"]["cube"]["sram"]["bandwidth"] = "8 TB/s"
    system["sip"]["pe"]["dma"] = "2 TB/s"
    system["sip"]["pe"]["tcm"]["bandwidth"] = "4 TB/s"
    system.pop("queue")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "drawn.yaml"
        path.write_text(yaml.safe_dump(spec))
        return load_topology(path).topology_obj


def shipped(topology: Topology, operation: str) -> Iterator[Chosen]:
    """Yields the algorithms that may take part in the choice of an operation on a machine."""
    path = shipped_ccl_file()
    loaded = load_ccl(path)
    system = topology.machine.system
    names = system.algorithms or [
        name for name, spec in loaded.value.algorithms.items() if spec.auto
    ]
    found = [choose(loaded, path, name, system) for name in names]
    if not any(one.implements(operation) for one in found):
        every = [name for name, spec in loaded.value.algorithms.items() if spec.auto]
        found = [choose(loaded, path, name, system) for name in every]
    for one in found:
        try:
            check_fits(one, loaded, system)
        except ConfigError:
            continue
        if one.implements(operation):
            yield one


def cases(topology: Topology, sizes: Sequence[int], every: bool) -> tuple[int, int]:
    """Prints the cases of a machine; returns how many there are, and how many `auto` loses."""
    choices, count, lost = Choices(None, (), topology), 0, 0
    for operation in OPERATIONS:
        ranks = 2 if operation == "send_recv" else topology.world_size
        candidates = list(shipped(topology, operation))
        measured = all(one.tuning or one.p2p for one in candidates)
        for nbytes in sizes:
            taken = choices.choose(operation, nbytes, tuple(range(ranks)))
            ours = time_alone(topology, taken, operation, ranks, nbytes)
            best, name = ours, taken.name
            for one in candidates:
                sized = one.for_size(operation, nbytes, ranks)
                time = time_alone(topology, sized, operation, ranks, nbytes)
                if time < best:
                    best, name = time, one.name
            count += 1
            beaten = ours > BEATEN * best
            lost += beaten and not measured
            if beaten or every:
                print(
                    f"{topology.name:16} {operation:14} {nbytes:>11} B  {taken.name:18} "
                    f"{ours / 1e6:10.1f} us  {name:18} {best / 1e6:10.1f} us "
                    f"{100 * (ours / best - 1):6.1f} %  {'measured' if measured else ''}",
                    flush=True,
                )
    return count, lost


def main() -> None:
    """Prints all cases of the machines that the command line names."""
    names = [word for word in sys.argv[1:] if not word.startswith("--")]
    sizes = SIZES
    for word in sys.argv[1:]:
        if word.startswith("--sizes="):
            sizes = [int(size) for size in word.partition("=")[2].split(",")]
    machines = names or [*shipped_machines(), *map(str, range(DRAWN))]
    total = lost = 0
    for name in machines:
        begin = time.process_time()
        topology = drawn(int(name)) if name.isdigit() else load_topology(name).topology_obj
        if topology.world_size > MOST_SIPS and not names:
            print(f"{name}: more than {MOST_SIPS} SIPs, only by name")
            continue
        some, beaten = cases(topology, sizes, "--all" in sys.argv)
        total, lost = total + some, lost + beaten
        print(
            f"{topology.name}: {beaten} of {some}, {time.process_time() - begin:.0f} s", flush=True
        )
    print(f"beaten by more than 2 %: {lost} of {total} cases, but for measured ones")


if __name__ == "__main__":
    main()
