"""`kernbench list`: the shipped benches, machines and algorithms."""

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kernbench.ccl.config import find_ccl_file, load_ccl
from kernbench.cli.failures import Exit, failed
from kernbench.config.shipped import shipped
from kernbench.errors import UsageError
from kernbench.run_spec import RunSpec
from kernbench.topology import load_topology, shipped_machines

_DEFAULT: Final = " (default)"


def print_listing() -> int:
    """Prints benches, machines and algorithms, one line for each; returns the exit code."""
    try:
        ccl_file = find_ccl_file()
        algorithms = load_ccl(ccl_file).value
    except UsageError as error:
        return failed(error)
    benches = sorted(shipped("benches").glob("*.py"))
    _print("benches", ((b.stem, _first_line(b)) for b in benches if b.stem != "__init__"))
    _print(
        "machines (--topology)",
        (
            (
                name,
                load_topology(path).topology_obj.machine.system.description
                + (_DEFAULT if name == RunSpec().topology else ""),
            )
            for name, path in sorted(shipped_machines().items())
        ),
    )
    _print(
        f"algorithms ({ccl_file})",
        (
            (
                name,
                (spec.description or spec.file or spec.module)
                + (_DEFAULT if name == algorithms.defaults.algorithm else ""),
            )
            for name, spec in algorithms.algorithms.items()
        ),
    )
    return Exit.OK


def _print(title: str, rows: Iterable[tuple[str, str]]) -> None:
    print(title)
    for name, line in rows:
        print(f"  {name:<24} {line}")


def _first_line(path: Path) -> str:
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return doc.splitlines()[0] if doc else ""
