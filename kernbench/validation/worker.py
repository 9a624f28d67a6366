"""The process of a worker: runs rows, each on a machine of its own."""

from collections.abc import Mapping
from typing import Any, Final

from kernbench.errors import UsageError, libraries_passed_over
from kernbench.validation.catalogue import TABLES
from kernbench.validation.rows import run_row


def rows(message: Mapping[str, Any]) -> dict[str, Any]:
    """Runs the rows of a request; answers with what came of each.

    Args:
        message: The request: `table`, its `rows`, the `torch` and the `topology`.
    """
    table, which, topology = TABLES[message["table"]], message["torch"], message["topology"]
    found = []
    try:
        with libraries_passed_over():
            for row in message["rows"]:
                one = run_row(table, row, which, topology)
                found.append({"predicted": dict(one.predicted), "missing": one.missing})
    except UsageError as error:
        return {"usage": [error.summary, list(error.facts), error.hint, error.code]}
    return {"found": found}


HANDLERS: Final = {"rows": rows}
