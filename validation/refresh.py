"""Runs the tables of measured hosts and writes what came of them into `result.json` and documents.

    python validation/refresh.py [--tables-only] [--jobs N]

Needs PyTorch (`pip install -e '.[torch]'`), and torchvision and transformers for the programs of
libraries: what does not run is named, and its figures of the last time stay. `--tables-only` writes
fidelity.md from the stored result of `h200x8` and runs nothing; `python
tests/docs/docs_shipped_machines.py` writes the other document.
"""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = ROOT / "validation" / "h200x8"
RESULT: Final = FOLDER / "result.json"
MEASURED: Final = ("h200x8", "h100x8")
"""Machines with tables of the host that they stand for."""
DOCUMENT: Final = ROOT / "docs" / "fidelity.md"
MACHINE: Final = ROOT / "configs" / "topology" / "h200x8.yaml"
QUEUES: Final = ROOT / "configs" / "ccl.yaml"
Result = Mapping[str, Any]

_ROWS: Final = "row_sum column_sum large_sum softmax log_softmax nll_loss layer_norm rms_norm"
_ELEMENTS: Final = "pointwise gelu silu dropout fill normal uniform bernoulli indexed scattered cat"
_IMAGES: Final = (
    "batch_norm group_norm max_pool avg_pool adaptive_pool nearest bilinear convolution depthwise "
    "sort topk embedding_bag"
)
_SPATIAL: Final = (
    "roll reflected prelu broadcast_planes split_sum nll_loss2d batched convolution_volume "
    "convolution_undivided group_norm_moments group_norm_gradients bilinear_backward"
)
_PE: Final = "system.sip.pe"
_TRITON: Final = "triton_add triton_softmax triton_gemm triton_flash triton_more"
LAWS: Final[Sequence[tuple[str, str, str, str]]] = (
    ("products", f"{_PE}.gemm.library", "", "gemm gemm2 gemm_sustained"),
    ("attention", f"{_PE}.attention", "", "attention attention2 attention3"),
    ("elementwise", "system.sip.kernels", _ELEMENTS, "memory elementwise"),
    ("rows", "system.sip.kernels", _ROWS, "rowops rowops2 rowops3"),
    ("look-ups", "system.sip.kernels", "embedding", "embedding"),
    ("lists", "system.sip.kernels", "foreach", "optim"),
    (
        "kernels of Triton",
        f"{_PE}.programs",
        "issue latency step traffic atomic sector slices",
        _TRITON,
    ),
    ("memories", "system.sip.cube.hbm", "", "memory"),
    ("the L2 in graphs", "system.sip.warm", "", "memory tp_mlp"),
    ("PCIe", "system.host.pcie", "", "pcie"),
    ("memory of other devices", "system.sip.peers", "", "symmetric"),
    ("convolutions, norms, pools", "system.sip.kernels", _IMAGES, "images"),
    ("planes, slices, volumes", "system.sip.kernels", _SPATIAL, "spatial"),
    ("collectives, messages", "queues", "nccl", "collectives protocols concurrent p2p"),
    ("host", "system.host", "dispatch dispatch_of eager", "launch programs model"),
)
"""Laws: name, key in the machine's file (or in `ccl.yaml`), what the keys below it begin with (all
if empty), tables that they are fitted on and judged by. `images` and `spatial` are those of
`benchmarks`, h200_images.csv and h200_spatial.csv."""


def numbers(value: object) -> int:
    """Returns how many numbers a value of a YAML file has, those with units among them."""
    if isinstance(value, Mapping):
        return sum(map(numbers, value.values()))
    if isinstance(value, list):
        return sum(map(numbers, value))
    if isinstance(value, bool) or value is None:
        return 0
    return int(isinstance(value, int | float) or bool(re.match(r"\d", str(value))))


_GIVEN: Final = {"tile", "tiles", "line", "pes", "count", "part", "least", "up_to"}
"""Numbers of a library itself, not fits.

Sizes of tiles are names of kernels; of lines, channels and parts of messages NCCL's own.
"""


def parameters(key: str, beginnings: str) -> int:
    """Returns how many numbers stand under a key that could be fits; see `_GIVEN`."""
    file = QUEUES if key == "queues" else MACHINE
    found = yaml.safe_load(file.read_text(encoding="utf-8"))
    for part in key.split("."):
        found = found[part]
    starts = tuple(beginnings.split())

    def fitted(value: object) -> object:
        if isinstance(value, Mapping):
            return {name: fitted(each) for name, each in value.items() if name not in _GIVEN}
        return [fitted(each) for each in value] if isinstance(value, list) else value

    if isinstance(found, Mapping) and starts:
        found = {name: value for name, value in found.items() if name.startswith(starts)}
        if "embedding" in starts:
            found = {name: value for name, value in found.items() if "bag" not in name}
    return numbers(fitted(found))


def laws(result: Result) -> Iterator[str]:
    """Yields the rows of the table of laws."""
    measured = FOLDER.parents[1] / "benchmarks"
    counts = {
        name: len((measured / f"h200_{name}.csv").read_text(encoding="utf-8").splitlines())
        for name in ("images", "spatial")
    }
    counts["images"] -= 1  # its head
    for cell in result["cells"]:
        counts[cell["table"]] = counts.get(cell["table"], 0) + 1
    yield "| law | where its numbers stand | numbers | cells | tables |\n|---|---|---|---|---|\n"
    for name, key, beginnings, tables in LAWS:
        cells = sum(counts.get(table, 0) for table in tables.split())
        told = ", ".join(f"`{table}`" for table in tables.split())
        where = f"`{'ccl.yaml: ' if key == 'queues' else ''}{key}`"
        yield f"| {name} | {where} | {parameters(key, beginnings)} | {cells} | {told} |\n"


def errors(result: Result) -> Iterator[str]:
    """Yields the rows of the table of errors."""
    yield (
        "| table | cells | MAPE, own torch | MAPE, PyTorch | geometric mean | within 10 % | worst "
        "| worst cell |\n|---|---|---|---|---|---|---|---|\n"
    )
    for part, scores in result["tables"].items():
        if not scores:
            continue
        told = scores.get("pytorch") or scores["own"]
        own, real = (
            f"{scores[name]['mape']:.1%}" if name in scores else "-" for name in ("own", "pytorch")
        )
        yield (
            f"| {part} | {told['cells']} | {own} | {real} | {told['geomean']:.2f} "
            f"| {told['within_10_percent']:.0%} | {told['worst']:+.0%} | {told['worst_cell']} |\n"
        )


def programs(result: Result) -> Iterator[str]:
    """Yields the rows of the table of whole programs, in the units of their columns."""
    yield "| program | column | measured | predicted | difference |\n|---|---|---|---|---|\n"
    seen = set()
    for cell in result["cells"]:
        predicted = cell.get("pytorch")
        if cell["table"] in {"programs", "programs3"} and cell["column"] != "peak_mib":
            if predicted is None:
                continue
            row = (
                f"| {cell['cell']} | `{cell['column']}` | {cell['measured']:.6g} | {predicted:.6g} "
                f"| {predicted / cell['measured'] - 1:+.0%} |\n"
            )
            if row not in seen:
                seen.add(row)
                yield row


TABLES: Final = {"errors": errors, "laws": laws, "programs": programs}


def with_tables(text: str, result: Result) -> str:
    """Returns the document with its tables as a result has them."""
    for name, rows in TABLES.items():
        begin, end = f"<!-- {name} -->\n", "<!-- end -->"
        before, found, rest = text.partition(begin)
        _, found_end, after = rest.partition(end)
        if not found or not found_end:
            raise SystemExit(f"{DOCUMENT} has no table `{name}`")
        text = f"{before}{begin}{''.join(rows(result))}{end}{after}"
    return text


def main(words: list[str]) -> None:
    """Runs the tables, unless told otherwise, and writes both files."""
    if "--tables-only" not in words:
        from kernbench.validation.validating import validate

        jobs = int(words[words.index("--jobs") + 1]) if "--jobs" in words else 0
        os.chdir(ROOT)  # results name their files from here
        for machine in MEASURED:
            folder = (FOLDER.parent / machine).relative_to(ROOT)
            done = validate(folder, machine, programs=machine == FOLDER.name, jobs=jobs)
            if len(done.torches) < 2:
                raise SystemExit("PyTorch is not installed: pip install -e '.[torch]'")
            done.write_json(folder / RESULT.name)
            for row in done.lost():
                why = next(iter(found.missing for found in row.found.values() if found.missing), "")
                print(f"{row.line.place}: not simulated: {row.found['pytorch'].missing or why}")
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    text = with_tables(DOCUMENT.read_text(encoding="utf-8"), result)
    DOCUMENT.write_text(text, encoding="utf-8")
    print(f"wrote {DOCUMENT.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main(sys.argv[1:])
