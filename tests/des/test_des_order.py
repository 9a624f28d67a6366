"""One table says what comes first at the same instant."""

import ast
from pathlib import Path

import kernbench
from kernbench.des import order

PACKAGE = Path(kernbench.__file__).parent


def test_keys_are_in_the_order_of_the_table() -> None:
    ranks, parts = (-1, 0, 1, 16_383), (0, 1, 31)
    keys = [
        order.INTERRUPT,
        order.FLOWS,
        *(order.program_of(pe) for pe in (0, 1, 1 << 20)),
        *(order.rank_of(rank) for rank in ranks),
        *(order.command_of(rank, part) for part in parts for rank in ranks),
        order.CHOICE,
        order.SOLVE,
        order.REVIEW,
        order.ABORT,
    ]
    assert keys == sorted(set(keys))


def test_no_key_is_made_elsewhere() -> None:
    for file in sorted(PACKAGE.glob("**/*.py")):
        text = file.read_text(encoding="utf-8")
        if file.parent.name == "des" or ".owner(" not in text:
            continue
        for call in ast.walk(ast.parse(text)):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                continue
            if call.func.attr == "owner" and call.args:
                source = ast.unparse(call.args[0])
                assert source.startswith("order.") or source == "owner", f"{file}: {source}"
