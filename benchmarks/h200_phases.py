"""What the phases of a training step take of the host, beside an H200.

`kernbench torchrun --nproc-per-node 1 --data fake benchmarks/h200_phases.py [PROGRAM]`.
`h200_phases.csv` was read off two H200 hosts with PyTorch 2.11, by this script without kernbench:
`host` 1 ran whole programs as they lie in `validation/h200x8`, 2 models of layers that are alike.
`us` is the median of the host's time, `low` its lower quartile. Of whole programs, the device was
idle before each step; for models of layers it made no difference, and they were run both ways,
twice. A model of layers has a first layer before them, and its loss is a mean of squares.
"""

import csv
import importlib
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from torch import nn

FILE: Final = Path(__file__).with_suffix(".csv")
_PROGRAMS: Final = Path(__file__).parents[1] / "validation" / "h200x8"
_WARM_UP: Final = 3
_STEPS: Final = 5 if torch.version.cuda is None else 15
"""Steps are alike where they are simulated; PyTorch for CPUs is known by having no CUDA."""
_PHASES: Final = ("fwd", "zero", "bwd", "opt")


class _Scale(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


_LAYERS: Final[dict[str, Callable[[], list[nn.Module]]]] = {
    "mlp": lambda: [nn.Linear(256, 256), nn.ReLU()],
    "conv": lambda: [nn.Conv2d(32, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()],
    "norm": lambda: [nn.LayerNorm(256), nn.GELU(), nn.Dropout(0.1)],
    "scale": lambda: [_Scale()],
    "view": lambda: [nn.Unflatten(1, (16, 16)), nn.Flatten()] * 4 + [_Scale()],
    "act": lambda: [nn.ReLU(), nn.GELU(), nn.Sigmoid(), nn.SiLU(), nn.Tanh(), nn.Softplus()],
}
_OPTIMISERS: Final[dict[str, Callable[[Any], torch.optim.Optimizer]]] = {
    "adamw": torch.optim.AdamW,
    "fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, 1e-3, momentum=0.9),
}

spent: dict[str, float] = {}
inside: list[str] = []


def _timed(real: Callable[..., Any], phase: str) -> Callable[..., Any]:
    def run(*args: Any, **options: Any) -> Any:
        if inside:
            return real(*args, **options)
        inside.append(phase)
        begin = time.perf_counter()
        try:
            return real(*args, **options)
        finally:
            inside.pop()
            spent[phase] = spent.get(phase, 0.0) + 1e6 * (time.perf_counter() - begin)

    return run


def phases(step: Callable[[], object]) -> dict[str, float]:
    """Returns the median microseconds of the host for the phases of a step."""
    for _ in range(_WARM_UP):
        step()
    found: dict[str, list[float]] = {phase: [] for phase in _PHASES}
    for _ in range(_STEPS):
        torch.cuda.synchronize()
        spent.clear()
        begin = time.perf_counter()
        step()
        rest = 1e6 * (time.perf_counter() - begin) - sum(spent.values())
        for phase in _PHASES:
            found[phase].append(rest if phase == "fwd" else spent.get(phase, 0.0))
    return {phase: median(times) for phase, times in found.items()}


def _of_layers(kind: str, depth: str, optimiser: str) -> dict[str, float]:
    first = nn.Conv2d(32, 32, 1) if kind == "conv" else nn.Linear(256, 256)
    layers = [each for _ in range(int(depth)) for each in _LAYERS[kind]()]
    model = nn.Sequential(first, *layers).cuda()
    x = torch.randn((8, 32, 8, 8) if kind == "conv" else (64, 256), device="cuda")
    optimizer = _OPTIMISERS[optimiser](model.parameters())

    def step() -> None:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return phases(step)


def _whole(words: list[str]) -> dict[str, float]:
    """Returns the phases of a program as it lies in `validation`, by its command."""
    found: dict[str, float] = {}

    def measure(name: str, step: Callable[[], object], *args: Any, **said: Any) -> None:
        del name, args, said
        found.update(phases(step))

    inner, loop = ("programs", "llama") if words[0] == "train_single.py" else ("programs3", "step")
    folder = str(_PROGRAMS / inner)
    sys.path.insert(0, folder)
    importlib.import_module(loop).measure = measure  # type: ignore[attr-defined]
    sys.argv[:] = [f"{folder}/{words[0]}", *words[1:]]
    runpy.run_path(sys.argv[0], run_name="__main__")
    return found


def _rows(chosen: list[str]) -> Iterator[tuple[str, dict[str, dict[str, str]]]]:
    """Yields the rows of each program by phase.

    Args:
        chosen: How the programs begin that are wanted; all, if empty.
    """
    programs: dict[str, dict[str, dict[str, str]]] = {}
    with FILE.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            programs.setdefault(row["program"], {})[row["phase"]] = row
    for name, rows in programs.items():
        if not chosen or any(name.startswith(each) for each in chosen):
            yield name, rows


def main(chosen: list[str]) -> None:
    """Prints each row with what it takes here."""
    optimizer: Any = torch.optim.Optimizer
    optimizer.zero_grad = _timed(optimizer.zero_grad, "zero")
    hooked = optimizer.profile_hook_step  # around every step, whatever class it is of
    optimizer.profile_hook_step = staticmethod(lambda step: _timed(hooked(step), "opt"))
    autograd: Any = torch.autograd
    autograd.backward = _timed(autograd.backward, "bwd")
    print(f"{'program':44} {'phase':5} {'H200':>8} {'here':>8}")
    for name, rows in _rows(chosen):
        words = name.split()
        run = partial(_of_layers, *words) if words[0] in _LAYERS else partial(_whole, words)
        found = run()
        for phase, row in rows.items():
            print(f"{name:44} {phase:5} {float(row['us']):8.1f} {found[phase]:8.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
