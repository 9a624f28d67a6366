"""All tables that are known, by name."""

from collections.abc import Mapping
from typing import Final

from kernbench.validation import (
    attending,
    beside,
    collectives,
    experts,
    hosts,
    kernels,
    operations,
    peers,
    products,
    sequences,
    tiles,
    whole,
)
from kernbench.validation.table import Table

TABLES: Final[Mapping[str, Table]] = {
    table.name: table
    for table in (
        products.GEMM,
        products.GEMM2,
        products.CHAIN,
        products.SUSTAINED,
        *kernels.TABLES,
        *attending.TABLES,
        *collectives.TABLES,
        *beside.TABLES,
        peers.TABLE,
        sequences.CP_ATTENTION,
        experts.MOE,
        *tiles.TABLES,
        *hosts.TABLES,
        *whole.TABLES,
        operations.OPERATIONS,
    )
}
"""The tables, in the order in which reports have them."""

WITHOUT_PROGRAMS: Final[Mapping[str, str]] = {
    "images": "its rows are compared by kernbench calibrate, which runs no programs",
}
"""Why tables that are known have no program, by name."""
