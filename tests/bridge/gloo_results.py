"""Runs the programs with gloo processes on the CPU, and stores what they give.

Usage: python tests/bridge/gloo_results.py [FILE ...]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from bridge_programs import RESULTS, Program, as_arrays, load, programs


def _worker(rank: int, file: str, names: list[str], folder: str) -> None:
    torch.set_num_threads(1)
    module, found = load(file), {}
    for name in names:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/{name}", rank=rank, world_size=module.RANKS
        )
        values = getattr(module, f"run_{name}")(torch.device("cpu"))
        for key, value in as_arrays(values).items():
            found[f"{name}/{rank}/{key}"] = value
        dist.destroy_process_group()
    np.savez(f"{folder}/{rank}.npz", **found)


def store(file: str, names: list[str]) -> None:
    """Runs the programs of a file, and writes their results."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = load(file).RANKS
        mp.spawn(_worker, (file, names, folder), nprocs=ranks)
        found = {}
        for rank in range(ranks):
            with np.load(f"{folder}/{rank}.npz") as part:
                found.update({key: part[key] for key in part.files})
        np.savez_compressed(RESULTS / f"{file}.npz", **found)


if __name__ == "__main__":
    wanted = sys.argv[1:] or sorted({program.file for program in programs()})
    for each in wanted:
        store(each, [one.name for one in programs() if one == Program(each, one.name)])
        print(each)
