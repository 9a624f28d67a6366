"""Makes the tables of docs/shipped_machines.md: what machines have, and how near they come.

`python tests/docs/docs_shipped_machines.py` writes them anew from the machines' files and from
`validation/NAME/result.json`.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from kernbench.topology import load_topology, shipped_machines  # noqa: E402 - the path first
from kernbench.units import format_time  # noqa: E402

PAGE: Final = ROOT / "docs" / "shipped_machines.md"

SUBJECTS: Final[Mapping[str, str]] = {
    "products of matrices": "gemm gemm2 gemm_sustained gemm_chain",
    "attention": "attention attention2 attention3",
    "elementwise operations, copies": "memory elementwise",
    "operations over rows": "rowops rowops2 rowops3",
    "look-ups, lists of tensors": "embedding optim",
    "copies between host and device": "pcie",
    "collectives": "collectives protocols concurrent",
    "messages": "p2p",
    "memory of other devices": "symmetric",
    "kernels beside collectives": "overlap overlap2",
    "kernels of Triton": "triton_add triton_softmax triton_gemm triton_flash triton_more",
    "layers over several ranks": "tp_mlp model cp_attention",
    "layers of experts": "moe",
    "calls of the host": "launch host host_ranks host_tp",
    "whole programs": "programs programs3",
}
"""Tables by subject, in the order in which the page has them."""


def machines() -> Iterator[str]:
    """Yields the rows of the table of machines."""
    yield "| machine | what it is | a link | HBM of each | bf16 of each |\n|---|---|---|---|---|\n"
    for name in sorted(shipped_machines()):
        system = load_topology(name).topology_obj.machine.system
        sip, network = system.sip, system.sips.network
        link = f"{network.bandwidth.per_second / 1e9:.4g} GB/s, {format_time(network.latency)}"
        cubes = sip.cubes.shape[0] * sip.cubes.shape[1]
        capacity = f"{cubes * sip.cube.hbm.capacity / 1e9:.3g} GB"
        bandwidth = f"{cubes * sip.cube.hbm.bandwidth.per_second / 1e12:.3g} TB/s"
        rate = cubes * sip.cube.pes * sip.pe.gemm.rate["bf16"].per_second / 1e12
        yield (
            f"| `{name}` | {system.description} | {link} | {capacity}, {bandwidth} "
            f"| {rate:,.0f} TFLOP/s |\n"
        )


def results() -> dict[str, Any]:
    """Returns what was found of each machine that was measured, by its name."""
    files = sorted((ROOT / "validation").glob("*/result.json"))
    return {file.parent.name: json.loads(file.read_text(encoding="utf-8")) for file in files}


def errors() -> Iterator[str]:
    """Yields the rows of the table of errors."""
    found = results()
    yield "| | " + " | ".join(f"`{name}`: cells | mean | median" for name in found) + " |\n"
    yield "|---|" + "---|---|---|" * len(found) + "\n"
    for subject, tables in SUBJECTS.items():
        cells = []
        for result in found.values():
            gone = errors_of(result, tables.split())
            cells += (
                [str(len(gone)), f"{fmean(gone):.1%}", f"{median(gone):.1%}"]
                if gone
                else ["-", "-", "-"]
            )
        yield f"| {subject} | {' | '.join(cells)} |\n"


def errors_of(result: Mapping[str, Any], tables: list[str]) -> list[float]:
    """Returns the error of each cell of some tables, under PyTorch where it runs there.

    Peaks of memory are left out.
    """
    return [
        abs(cell.get("pytorch", cell.get("own")) / cell["measured"] - 1)
        for cell in result["cells"]
        if cell["table"] in tables
        and cell["column"] != "peak_mib"
        and cell.get("pytorch", cell.get("own")) is not None
    ]


def with_tables(text: str) -> str:
    """Returns the page with its tables.

    Args:
        text: The page.
    """
    for name, rows in (("machines", machines), ("errors", errors)):
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        assert pattern.search(text), name
        text = pattern.sub(lambda f, rows=rows: f[1] + "".join(rows()) + f[2], text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
