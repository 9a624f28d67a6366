"""Tables of pages are what their commands print."""

import docs_tables
import pytest
from docs_tables import LONG, QUICK, Table


@pytest.mark.parametrize(
    "table", [*QUICK, *(pytest.param(each, marks=pytest.mark.at_length) for each in LONG)], ids=str
)
def test_a_table_is_what_its_command_prints(table: Table) -> None:
    text, _, _ = docs_tables.block_of(table)
    assert text == docs_tables.printed(table)
