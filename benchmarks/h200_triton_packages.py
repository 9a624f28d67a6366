"""Kernels of Triton of public packages on `h200x8`: times measured, and what is predicted.

`h200_triton_packages.csv` beside this file has the kernels of `programs/triton_packages.py`
(Liger-Kernel, flash-linear-attention, lightning-attn, SageAttention) and of four of Triton's
tutorials on one NVIDIA H200 of 2026-11-29: PyTorch 2.11, Triton 3.6, torch.profiler, means of ten
steps. All were predicted before they were measured. Half of the kernels, by a hash of their names,
was looked at while ADR 0083 was worked out.

    kernbench torchrun --nproc-per-node 1 --data off benchmarks/programs/triton_packages.py OUT
    python benchmarks/h200_triton_packages.py OUT

Prints mean errors of both halves, and with `-v` all kernels; those below 4 us are left out.
Predictions need the Triton that the table was measured with.
"""

import csv
import hashlib
import math
import sys
from pathlib import Path

TABLE = Path(__file__).with_name("h200_triton_packages.csv")
LEAST_US = 4.0


def times(path: Path) -> dict[tuple[str, str], float]:
    """Returns microseconds by case and kernel."""
    with path.open() as lines:
        return {(row["case"], row["kernel"]): float(row["us"]) for row in csv.DictReader(lines)}


def seen(kernel: str) -> bool:
    """Returns whether a kernel is of the half that was looked at."""
    return int(hashlib.md5(kernel.encode(), usedforsecurity=False).hexdigest(), 16) % 2 == 0


def main() -> None:
    """Prints the errors."""
    predicted = times(Path(next(arg for arg in sys.argv[1:] if arg != "-v")))
    both = [(key, us, predicted[key]) for key, us in times(TABLE).items() if key in predicted]
    cells = sorted((ps / us - 1, *key, us, ps) for key, us, ps in both if us >= LEAST_US)
    for half, name in ((True, "looked at"), (False, "kept aside")):
        errors = [error for error, _, kernel, *_ in cells if seen(kernel) is half]
        if not errors:
            continue
        mean = sum(map(abs, errors)) / len(errors)
        ratio = math.exp(sum(abs(math.log(1 + error)) for error in errors) / len(errors))
        far = sum(abs(error) > 0.4 for error in errors)
        print(f"{name:11} {len(errors):3} kernels: {mean:.1%} in the mean, a factor of ", end="")
        print(f"{ratio:.2f}; {far} beyond 40 %, worst {min(errors):+.0%} and {max(errors):+.0%}")
    for error, case, kernel, us, ps in cells if "-v" in sys.argv else ():
        print(f"  {error:+6.0%} {us:9.1f} {ps:9.1f}  {case} {kernel}")


if __name__ == "__main__":
    main()
