"""What the host takes for optimisers and backward passes, beside an H200.

`kernbench torchrun --nproc-per-node 1 --data fake benchmarks/h200_calls.py`. `h200_calls.csv` was
read off one H200 with PyTorch 2.11 and CUDA 13.0, which made the same calls: medians of the
host's time of 30, behind 5 others, the device idle before each. `count` is how many parameters of
256 numbers an optimiser has, how many operations a graph has in a row, or how many leaves it has.
"""

import csv
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

FILE = Path(__file__).with_suffix(".csv")
_WARM_UP, _REPEATS = 5, 30


def _parameters(count: int) -> tuple[list[torch.nn.Parameter], Callable[[], None]]:
    """Returns parameters, and what gives all of them their gradients."""
    parameters = [torch.nn.Parameter(torch.randn(256, device="cuda")) for _ in range(count)]
    gradients = [torch.randn_like(each) for each in parameters]

    def give() -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient

    return parameters, give


def _chain(count: int, following: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], object]:
    """Returns the backward pass of operations in a row."""
    x = torch.randn(1024, device="cuda", requires_grad=True)
    y = x
    for _ in range(count):
        y = following(y)
    gradient = torch.ones_like(y)
    return lambda: torch.autograd.grad(y, x, gradient, retain_graph=True)


def _call(name: str, count: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Returns what is done before each call of a row, and the call."""
    if name == "backward of views":
        return lambda: None, _chain(count, lambda y: y.view(-1))
    if name == "backward of products":
        return lambda: None, _chain(count, lambda y: y * 2.0)
    parameters, give = _parameters(count)
    if name == "backward to leaves":
        loss = torch.stack([each.view(-1) for each in parameters]).sum()

        def drop() -> None:
            for each in parameters:
                each.grad = None

        return drop, lambda: loss.backward(retain_graph=True)
    made: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "step of adamw": lambda: torch.optim.AdamW(parameters),
        "step of adamw fused": lambda: torch.optim.AdamW(parameters, fused=True),
        "step of sgd": lambda: torch.optim.SGD(parameters, 0.1, momentum=0.9),
        "zero_grad": lambda: torch.optim.SGD(parameters, 0.1),
    }
    optimizer = made[name]()
    return give, optimizer.zero_grad if name == "zero_grad" else optimizer.step


def host_us(name: str, count: int) -> float:
    """Returns the median microseconds of the host for a call."""
    before, call = _call(name, count)
    times = []
    for _ in range(_WARM_UP + _REPEATS):
        before()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        times.append(1e6 * (time.perf_counter() - begin))
    return median(times[_WARM_UP:])


def main() -> None:
    """Prints each row with what it takes here."""
    print(f"{'call':22} {'count':>5} {'H200':>8} {'here':>8}")
    with FILE.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            name, count = row["call"], int(row["count"])
            us = host_us(name, count)
            print(f"{name:22} {count:5} {float(row['host_us']):8.1f} {us:8.1f}")


if __name__ == "__main__":
    main()
