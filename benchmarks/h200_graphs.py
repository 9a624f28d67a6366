"""Replays of CUDA graphs beside those of an H200: `python benchmarks/h200_graphs.py`.

`h200_graphs.csv` was read off one H200 with PyTorch 2.11 and CUDA 13.0: medians of the host's time
of a `replay()` while the device is busy (31 of them), and of the time of a replay among 20 back to
back, by events (7 groups); the same for the calls without a graph. The steps have ReLUs between
layers, the mean of squares as loss, and SGD with momentum 0.9, in float32.
"""

import csv
import re
from collections.abc import Callable
from pathlib import Path

import kernbench.torch as torch
from kernbench.process.process import current_process
from kernbench.run_spec import RunSpec
from kernbench.runtime_api.context import RuntimeContext

FILE = Path(__file__).with_suffix(".csv")
_REPLAYS = 5
_PS_PER_US = 1_000_000


def _call(what: str, kernels: int) -> Callable[[], object]:
    """Returns what a row of the table runs."""
    numbers = [int(one) for one in re.findall(r"\d+", what)]
    if what.startswith("step"):
        layers, hidden, batch = numbers
        parts = [
            part
            for _ in range(layers)
            for part in (torch.nn.Linear(hidden, hidden), torch.nn.ReLU())
        ]
        model = torch.nn.Sequential(*parts).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        x = torch.zeros(batch, hidden, device="cuda")

        def step() -> None:
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()

        return step
    if what.startswith("mm"):
        a = torch.zeros(512, 512, device="cuda", dtype=torch.bfloat16)
        out = torch.zeros(512, 512, device="cuda", dtype=torch.bfloat16)
        return lambda: [torch.mm(a, a, out=out) for _ in range(kernels)]
    if "streams" not in what:
        x = torch.zeros(numbers[0], device="cuda")
        return lambda: [x.add_(1) for _ in range(kernels)]
    branches = [(torch.zeros(32, device="cuda"), torch.cuda.Stream()) for _ in range(numbers[1])]

    def add() -> None:
        current = torch.cuda.current_stream()
        for x, stream in branches:
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                for _ in range(kernels // len(branches)):
                    x.add_(1)
        for _, stream in branches:
            current.wait_stream(stream)

    return add


def replayed(what: str, kernels: int) -> float:
    """Returns the microseconds of a replay among others."""
    with RuntimeContext(RunSpec(topology="h200x8", data=False)):
        call, side = _call(what, kernels), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        graph.replay()
        torch.cuda.synchronize()
        host = current_process().host
        begin = host.clock
        for _ in range(_REPLAYS):
            graph.replay()
        torch.cuda.synchronize()
        return (host.clock - begin) / _REPLAYS / _PS_PER_US


def main() -> None:
    """Prints the table."""
    print(f"{'what':44} {'kernels':>7} {'H200':>9} {'here':>9} {'':>6}")
    with FILE.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            expected = float(row["replay_us"])
            found = replayed(row["what"], int(row["kernels"] or 0))
            print(
                f"{row['what']:44} {row['kernels']:>7} {expected:9.1f} {found:9.1f} "
                f"{found / expected - 1:+6.0%}"
            )


if __name__ == "__main__":
    main()
