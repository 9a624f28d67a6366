"""docs/shipped_machines.md says of machines what their files and `kernbench validate` say."""

import docs_shipped_machines as page
import pytest

from kernbench.topology import shipped_machines

TEXT = page.PAGE.read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_files() -> None:
    assert page.with_tables(TEXT) == TEXT, "`python tests/docs/docs_shipped_machines.py`"


def test_where_numbers_are_from_is_said_of_every_machine() -> None:
    told = TEXT.split("## Where the numbers are from")[1].split("\n## ")[0]
    assert [name for name in shipped_machines() if f"`{name}`" not in told] == []


@pytest.mark.parametrize("name", page.results())
def test_every_table_of_a_result_has_a_subject(name: str) -> None:
    known = {table for tables in page.SUBJECTS.values() for table in tables.split()}
    assert {cell["table"] for cell in page.results()[name]["cells"]} <= known


def test_errors_are_those_of_pytorch_or_else_of_the_own_torch() -> None:
    cells = [
        {"table": "gemm", "column": "us", "measured": 10, "own": 30, "pytorch": 12},
        {"table": "gemm", "column": "us", "measured": 10, "own": 5},
        {"table": "gemm", "column": "us", "measured": 10, "own": None},
        {"table": "programs", "column": "peak_mib", "measured": 10, "pytorch": 20},
        {"table": "memory", "column": "us", "measured": 10, "own": 10},
    ]
    assert page.errors_of({"cells": cells}, ["gemm", "programs"]) == pytest.approx([0.2, 0.5])
